"""The parts "operator-instances" and "module-instances": torch's databases by `stretto.batch`.

Each sample of an operator or module becomes a function of one instance, a tuple of the sample's
tensors, which is called with batches of several: its own, and some with the same elements in
another order. What is no tensor stands in the text, or is a global name of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from checks.fuzz.instances import OneByOne, compile_batched
from checks.fuzz.operators import (
    PLACES_OF_EQUALS,
    UNINITIALISED,
    Sample,
    job_of,
    module_of,
    module_samples,
    operator_database,
    samples_of,
)
from checks.fuzz.source import load
from checks.fuzz.trial import Made, Program
from checks.fuzz.workers import Job
from stretto.machines.machine import HOST

INSTANCES = 3
"""In a batch: the sample as it is, and others."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor of a sample stands in the instance."""

    number: int


@dataclass(slots=True)
class _Text:
    """A call as text; `names` are what it cannot write down."""

    names: dict[str, Any] = field(default_factory=dict[str, Any])

    def of(self, item: Any) -> str:
        if isinstance(item, _Place):
            return f"given[{item.number}]"
        if type(item) is list:
            return f"[{', '.join(map(self.of, item))}]"
        if type(item) is tuple:
            return f"({''.join(f'{self.of(part)}, ' for part in item)})"
        if type(item) in (int, bool, str) or item is None:
            return repr(item)
        if type(item) is float and math.isfinite(item):
            return repr(item)
        name = f"constant{len(self.names)}"
        self.names[name] = item
        return name


@dataclass(frozen=True, slots=True)
class Called:
    """A function of torch, and what it is called with."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def leaves(self) -> list[Any]:
        return pytree.tree_leaves((list(self.args), dict(self.kwargs)))

    @property
    def instance(self) -> tuple[torch.Tensor, ...]:
        """The tensors of the call."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    def is_of_instances(self) -> bool:
        """Whether it has tensors, and all are such as an instance may have."""
        tensors = self.instance
        plain = all(x.layout is torch.strided and not x.is_complex() for x in tensors)
        return bool(tensors) and plain

    def _is_named(self) -> bool:
        """Whether it returns a named tuple of torch, which is a tuple in the results of a batch."""
        try:
            return hasattr(self.function(*self.args, **self.kwargs), "n_fields")
        except Exception:  # as eager will say
            return False

    def of_instance(self, folder: Path) -> Callable[..., Any]:
        """The call as a function of one instance."""
        leaves, structure = pytree.tree_flatten((list(self.args), dict(self.kwargs)))
        places = itertools.count()
        marked = [_Place(next(places)) if isinstance(x, torch.Tensor) else x for x in leaves]
        positional, named = pytree.tree_unflatten(marked, structure)
        text = _Text()
        shown = [*map(text.of, positional), *(f"{k}={text.of(item)}" for k, item in named.items())]
        part = "[:]" if self._is_named() else ""
        module = load(f"def main(given):\n    return called({', '.join(shown)}){part}\n", folder)
        vars(module).update(text.names, called=self.function)
        return module.main


def batch_of(tensors: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """The instance, and others with the same floats in another order: where a function is defined
    for the elements of its operands, it is for these."""
    random = torch.Generator().manual_seed(0)

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor.clone()
        order = torch.randperm(tensor.numel(), generator=random)
        return tensor.flatten()[order].reshape(tensor.shape)

    others = [tuple(map(other, tensors)) for _ in range(INSTANCES - 1)]
    return [tuple(tensor.clone() for tensor in tensors), *others]


def _program(
    sample: Sample, make_call: Callable[[], Called | None], machines: tuple[str, ...]
) -> Program | None:
    def make(folder: Path) -> Made:
        call = make_call()
        assert call is not None
        function = OneByOne(call.of_instance(folder))
        return Made(function, [((batch_of(call.instance),), {})])

    call = make_call()
    if call is None or not call.is_of_instances():
        return None
    return Program(f"{sample} batch", make, 0, machines, goes_on=True, compile=compile_batched)


def _operator_program(sample: Sample, most: int, machines: tuple[str, ...]) -> Program | None:
    info = operator_database()[sample.entry]
    inputs = samples_of(sample.entry, sample.dtype, most)
    if sample.number >= len(inputs) or info.name in PLACES_OF_EQUALS:
        return None
    given = inputs[sample.number]
    call = Called(info.op, (given.input, *given.args), given.kwargs)
    return _program(sample, lambda: call, machines)


def _module_program(sample: Sample, most: int, machines: tuple[str, ...]) -> Program | None:
    def call() -> Called | None:
        found = module_of(sample)
        return None if found is None else Called(found[0], found[1].args, found[1].kwargs)

    return _program(sample, call, machines)


def operator_instance_samples(per_entry: int) -> list[Sample]:
    """As many samples of each operator in float32; some of them may not be there."""
    return [
        Sample(entry, f"{info.name}.{info.variant_test_name}".rstrip("."), torch.float32, number)
        for entry, info in enumerate(operator_database())
        if info.name not in UNINITIALISED and info.supports_dtype(torch.float32, HOST.type)
        for number in range(per_entry)
    ]


def module_instance_samples(per_entry: int) -> list[Sample]:
    """As many samples of each module in float32."""
    return [s for s in module_samples(per_entry) if s.dtype is torch.float32]


def operator_instances(
    samples: list[Sample], machines: tuple[str, ...], seconds: float
) -> Job[Sample]:
    return job_of(samples, _operator_program, machines, seconds)


def module_instances(
    samples: list[Sample], machines: tuple[str, ...], seconds: float
) -> Job[Sample]:
    return job_of(samples, _module_program, machines, seconds)

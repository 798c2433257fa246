"""The params of main: what of a call's arguments, and of what objects hold, a Program takes."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from stretto.frontends.python.guards.reading import Reading
from stretto.frontends.python.objects.heap import Heap
from stretto.frontends.python.results.captured import (
    ArgumentLeaf,
    External,
    Fetched,
    InputBinding,
    IntLeaf,
)
from stretto.frontends.python.tracing.fakes import fake_like, fake_with_sizes
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.sizes import SizeSource
from stretto.frontends.python.tracing.tensor import (
    FunctionContext,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import Constant, Tracer
from stretto.frontends.python.values.state import rebuild_tuple
from stretto.ir.core import Value
from stretto.ir.types import INDEX


@dataclass(eq=False, slots=True)
class Input:
    """A param of main that stands for a tensor argument."""

    binding: InputBinding
    value: Value
    traced: TracedTensor
    real: torch.Tensor


def bind_inputs(tracer: Tracer, tensors: list[torch.Tensor], reading: Reading) -> list[Input]:
    """A param for each tensor among the arguments, also if it is passed twice, and for each tensor
    that an object holds in a place that is changed."""
    given = [
        _input(tracer, ArgumentLeaf(number), tensor, f"arg{number}")
        for number, tensor in enumerate(tensors)
    ]
    fetched = enumerate(zip(reading.tensors, reading.names, strict=False))
    found = [_input(tracer, Fetched(n, name, x.device), x, name) for n, (x, name) in fetched]
    return [*given, *found]


def _input(tracer: Tracer, binding: InputBinding, tensor: torch.Tensor, hint: str) -> Input:
    tracer.type_of(tensor)  # refuses what a Program cannot have
    shape: list[Any] = list(tensor.shape)
    if isinstance(binding, ArgumentLeaf | Fetched):
        held = isinstance(binding, Fetched)
        sources = (SizeSource(binding.index, dim, held) for dim in range(tensor.dim()))
        shape = list(map(tracer.sizes.size, sources, shape))
    if all(isinstance(size, int) for size in shape):
        fake = fake_like(tracer.fake_mode, tensor)
    else:
        fake = fake_with_sizes(tracer.fake_mode, tensor, shape)
    return _made_input(tracer, binding, fake, tensor, hint)


def _made_input(
    tracer: Tracer, binding: InputBinding, fake: torch.Tensor, tensor: torch.Tensor, hint: str
) -> Input:
    value = tracer.param(tracer.type_of(fake), hint)
    if isinstance(binding, ArgumentLeaf):
        tracer.given[value] = tensor
    traced = TracedTensor(fake, Storage(StorageState(value), tracer.scope, fake))
    return Input(binding, value, traced, tensor)


def bind_sizes(tracer: Tracer, numbers: list[Any]) -> list[Input]:
    """A param per integer among the arguments that is a symbol: a tensor without elements, with as
    many rows."""
    found = list[Input]()
    for index, number in enumerate(numbers):
        if isinstance(number, torch.SymInt):
            with tracer.faking():
                fake = torch.empty((number, 0), dtype=torch.uint8, device="cpu")
            binding = IntLeaf(index, f"int{index}")
            found.append(_made_input(tracer, binding, fake, torch.empty(0), binding.name))
    return found


def fetch_counters(tracer: Tracer, reading: Reading) -> list[Input]:
    """A param per integer that is changed. Where it is needed as a Python number, the capture is
    tried again with its value."""
    made = list[Input]()
    for number in range(len(reading.numbers)):
        index = len(reading.tensors) + number
        value = tracer.param(INDEX, "counter")
        traced = tracer.number(value, loops=frozenset({-1 - number}))
        binding = Fetched(index, "counter", torch.device("cpu"), is_tensor=False)
        made.append(Input(binding, value, traced, torch.empty(0)))
    return made


def traced_arguments(
    heap: Heap, arguments: Any, supply: Iterator[TracedTensor], numbers: Iterator[Any]
) -> Any:
    """The arguments with the tensors of `supply` and the `numbers` in them, in the order of pytree.
    Containers are filled in place, so that they are the same objects; what else torch takes apart
    is made anew."""

    def swapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(supply)
        if type(value) is int:
            return next(numbers)
        if isinstance(value, tuple) and not tree_flatten(value)[1].is_leaf():
            items: list[Any] = [swapped(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            return rebuild_tuple(value, items)
        if type(value) in _FILLED:
            values = {key: swapped(item) for key, item in heap.before_of(value).items()}
            if id(value) in heap.shared:
                return heap.copied(value, values)
            heap.place(value, values)
            return value
        leaves, tree = tree_flatten(value)
        return value if tree.is_leaf() else tree_unflatten([swapped(x) for x in leaves], tree)

    return swapped(arguments)


_FILLED = (list, dict, OrderedDict, defaultdict, deque)


def check_aliases(tracer: Tracer, inputs: list[Input]) -> None:
    """An input (or constant) that is changed must not share memory with another one."""
    reals = [(item.real, item.traced) for item in inputs]
    reals += [(c.tensor, c.traced) for c in tracer.constants.values()]
    read = (t for t in tracer.read_as_found.values() if id(t) not in tracer.constants)
    reals += [(tensor, tracer.promote(tensor)) for tensor in read]
    by_memory = dict[int, list[TracedTensor]]()
    for real, traced in reals:
        with tracer.native():
            memory = real.untyped_storage().data_ptr()
        if memory and real.numel():
            by_memory.setdefault(memory, []).append(traced)
    values = {id(item.traced): item.value for item in inputs}
    for group in by_memory.values():
        states = [(item.memory.state.base, values.get(id(item))) for item in group]
        if len(group) > 1 and any(b is not v for b, v in states if not isinstance(b, str)):
            fail(
                "a tensor that shares memory with another input is changed in place",
                "pass a clone() of one of them",
            )


def externals(tracer: Tracer, context: FunctionContext) -> list[Input]:
    """Constants that were changed: they become params of main."""
    found = list[Input]()
    for constant in list(tracer.constants.values()):
        if isinstance(constant.memory.state.base, str) or not constant.guarded:
            if constant.memory.state.stale is not None:
                raise constant.memory.state.stale
            continue
        _forbid_in_functions(tracer, constant)
        value = context.constants.pop(constant.key, None)
        if value is None:
            value = tracer.param(tracer.type_of(constant.tensor), constant.key)
        found.append(
            Input(External(constant.tensor, constant.key), value, constant.traced, constant.tensor)
        )
    return found


def _forbid_in_functions(tracer: Tracer, constant: Constant) -> None:
    for function in tracer.functions.values():
        for op in function.body.ops:
            if op.name == "constant" and op.key == constant.key:  # type: ignore[attr-defined]
                fail(
                    f"the buffer '{constant.key}' is changed and also read in a recursive function",
                    "pass the buffer to the recursive function as an argument",
                )

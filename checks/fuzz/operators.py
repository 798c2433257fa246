"""The parts "operators", "special", "operator-sizes" and "modules": torch's own sample inputs.

Each sample of each operator, in several dtypes, and each module of `torch.nn` with its sample
inputs, compiled and compared with eager. In "special" infinities, NaN, signed zeros and the
ends of each dtype's range are among the floats of the samples. In "operator-sizes" an operator is
compiled once for all sizes, and called with those of the sample and two other ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from checks.fuzz.outcome import Outcome
from checks.fuzz.trial import Made, Note, Program, try_program
from checks.fuzz.workers import Job
from stretto.machines.machine import HOST

ABSENT = "no such sample"
"""The reason of a case beyond the last sample."""

UNINITIALISED = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
)
"""Operators whose results hold any numbers at all."""

PLACES_OF_EQUALS = ("topk", "kthvalue", "mode", "median", "nanmedian", "sort")
"""Operators whose second result is the place of any one of equal elements."""

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64)


SPECIAL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of an operator or module. `entry` is its place in the database."""

    entry: int
    name: str
    dtype: torch.dtype
    number: int
    in_place: bool = False
    special: bool = False
    sized: bool = False

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        kind = " special" if self.special else " sizes" if self.sized else ""
        return f"{self.name}{'_' if self.in_place else ''} {dtype} {self.number}{kind}"


@lru_cache(maxsize=1)
def operator_database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


@lru_cache(maxsize=1)
def module_database() -> list[Any]:
    from torch.testing._internal.common_modules import module_db

    return module_db


def operator_samples(per_entry: int) -> list[Sample]:
    """As many samples of each operator and dtype; some of them may not be there."""
    found: list[Sample] = []
    for entry, info in enumerate(operator_database()):
        if info.name in UNINITIALISED:
            continue
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        for dtype in DTYPES:
            if not info.supports_dtype(dtype, HOST.type):
                continue
            most = per_entry if dtype in DTYPES[:2] else max(1, per_entry // 3)
            found += [Sample(entry, name, dtype, number) for number in range(most)]
            if info.inplace_variant is not None and dtype in DTYPES[:2]:
                found += [Sample(entry, name, dtype, n, in_place=True) for n in range(most // 3)]
    return found


def special_samples(per_entry: int) -> list[Sample]:
    """As many samples of each operator in each float dtype, with special values among theirs."""
    return [
        Sample(entry, f"{info.name}.{info.variant_test_name}".rstrip("."), dtype, n, special=True)
        for entry, info in enumerate(operator_database())
        if info.name not in UNINITIALISED
        for dtype in SPECIAL_DTYPES
        if info.supports_dtype(dtype, HOST.type)
        for n in range(per_entry)
    ]


def sized_samples(per_entry: int) -> list[Sample]:
    """As many samples of each operator in float32, each for three calls of different sizes."""
    return [
        Sample(
            entry, f"{info.name}.{info.variant_test_name}".rstrip("."), torch.float32, n, sized=True
        )
        for entry, info in enumerate(operator_database())
        if info.name not in UNINITIALISED and info.supports_dtype(torch.float32, HOST.type)
        for n in range(per_entry)
    ]


_OTHER_SIZES: tuple[dict[int, int], ...] = (
    {2: 3, 3: 4, 4: 5, 5: 6, 10: 12, 15: 17, 20: 7},
    {3: 2, 4: 3, 5: 7, 10: 9, 20: 11},
)
"""What the sizes of the samples are in a second and in a third call."""


def with_sizes(
    tensor: torch.Tensor, sizes: Mapping[int, int], generator: torch.Generator
) -> torch.Tensor:
    """A tensor whose elements are in the same range, with other sizes."""
    if tensor.layout is not torch.strided or tensor.is_complex():
        return tensor.clone()
    shape = [sizes.get(size, size) for size in tensor.shape]
    low, high = (tensor.min(), tensor.max()) if tensor.numel() else (0, 1)
    if tensor.is_floating_point():
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (drawn * (float(high) - float(low)) + float(low)).to(tensor.dtype)
    return torch.randint(int(low), int(high) + 1, shape, generator=generator).to(tensor.dtype)


def with_special_values(
    tensor: torch.Tensor, generator: torch.Generator, extreme: bool
) -> torch.Tensor:
    """A copy in which about a third of the elements are special; infinite only every other copy.

    Where sums are taken, the order of which is open, nothing is `extreme`: the numbers are so
    large that a product of two overflows, or so small that no sum of products does.
    """
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return tensor.clone()
    kind = torch.finfo(tensor.dtype)
    tiny, large = kind.smallest_normal, kind.max**0.7
    values = [0.0, -0.0, 1.0, -1.0, tiny, tiny / 4, -tiny / 8, large, -large, kind.max**0.2]
    if extreme:
        values += [kind.max, kind.min, kind.max / 2]
    if torch.rand((), generator=generator) < 0.5:
        values += [math.inf, -math.inf, math.nan]
    places = torch.randint(len(values), tensor.shape, generator=generator)
    drawn = torch.tensor(values, dtype=torch.float64).to(tensor.dtype)[places]
    return torch.where(torch.rand(tensor.shape, generator=generator) < 1 / 3, drawn, tensor)


def module_samples(per_entry: int) -> list[Sample]:
    """The same for modules, in float32 and float64."""
    found: list[Sample] = []
    for entry, info in enumerate(module_database()):
        for dtype in (torch.float32, torch.float64):
            if info.supports_dtype(dtype, HOST.type) if hasattr(info, "supports_dtype") else True:
                found += [Sample(entry, info.name, dtype, number) for number in range(per_entry)]
    return found


@lru_cache(maxsize=1)
def samples_of(entry: int, dtype: torch.dtype, count: int) -> list[Any]:
    """The first samples of an operator."""
    torch.manual_seed(0)
    info = operator_database()[entry]
    return list(islice(info.sample_inputs(HOST.type, dtype, requires_grad=False), count))


def _operator_program(sample: Sample, most: int, machines: tuple[str, ...]) -> Program | None:
    info = operator_database()[sample.entry]
    inputs = samples_of(sample.entry, sample.dtype, most)
    if sample.number >= len(inputs):
        return None
    given = inputs[sample.number]
    if sample.in_place and given.broadcasts_input:
        return None
    operator = info.inplace_variant if sample.in_place else info.op
    if info.name == "argsort":
        operator = _elements_at

    def make(_: Path) -> Made:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = operator(*args, **kwargs)
            first_only = info.name in PLACES_OF_EQUALS and isinstance(result, tuple)
            return result[0] if first_only else result

        generator = torch.Generator().manual_seed(sample.number)

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if not sample.special:
                return tensor.clone()
            return with_special_values(tensor, generator, _is_pointwise(info))

        arguments = ((given.input, *given.args), dict(given.kwargs))
        calls = [pytree.tree_map_only(torch.Tensor, copy, arguments)]
        for sizes in _OTHER_SIZES if sample.sized else ():
            resized = partial(with_sizes, sizes=sizes, generator=generator)
            calls.append(pytree.tree_map_only(torch.Tensor, resized, arguments))
        torch.manual_seed(sample.number)  # eager and the program draw the same numbers
        return Made(call, calls)

    return Program(str(sample), make, 0, machines, True if sample.sized else None)


def _elements_at(x: torch.Tensor, dim: int = -1, **kwargs: Any) -> torch.Tensor:
    """`argsort`, by the elements at its places: those of equal ones are open."""
    places = x.argsort(dim=dim, **kwargs)
    return torch.take_along_dim(x, places, dim) if x.dim() else places


def _is_pointwise(info: Any) -> bool:
    from torch.testing._internal.opinfo import core

    return isinstance(info, core.UnaryUfuncInfo | core.BinaryUfuncInfo)


def module_of(sample: Sample) -> tuple[torch.nn.Module, Any] | None:
    """A module of the database, in eval mode, and its arguments; None beyond the last sample."""
    info = module_database()[sample.entry]
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device=HOST.type, dtype=sample.dtype, requires_grad=False, training=False
    )
    given = next(islice(inputs, sample.number, None), None)
    if given is None:
        return None
    torch.manual_seed(1)
    made = given.constructor_input
    arguments = {**made.kwargs, "dtype": sample.dtype, "device": HOST.type}
    try:
        module = info.module_cls(*made.args, **arguments)
    except TypeError:
        module = info.module_cls(*made.args, **made.kwargs).to(sample.dtype)
    return module.eval(), given.forward_input


def _module_program(sample: Sample, most: int, machines: tuple[str, ...]) -> Program | None:
    def make(_: Path) -> Made:
        found = module_of(sample)
        assert found is not None
        module, forward = found
        return Made(module, [(tuple(forward.args), forward.kwargs)] * 2)

    return None if module_of(sample) is None else Program(str(sample), make, 0, machines)


def job_of(
    samples: list[Sample],
    make: Callable[[Sample, int, tuple[str, ...]], Program | None],
    machines: tuple[str, ...],
    seconds: float,
) -> Job[Sample]:
    most = max((sample.number for sample in samples), default=0) + 1

    def run(sample: Sample, note: Note) -> Outcome:
        note("eager: making the sample")
        program = make(sample, most, machines)
        if program is None:
            return Outcome(str(sample), "skipped", reason=ABSENT)
        return try_program(program, note)

    return Job(samples, run, str, seconds=seconds)


def operators(samples: list[Sample], machines: tuple[str, ...], seconds: float) -> Job[Sample]:
    return job_of(samples, _operator_program, machines, seconds)


def modules(samples: list[Sample], machines: tuple[str, ...], seconds: float) -> Job[Sample]:
    return job_of(samples, _module_program, machines, seconds)

"""`stretto.kernel.check`: runs single tasks of a user kernel on guarded tensors to test its
regions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from stretto.device.user_kernels import DeclaredRegion, Linear, UserKernel
from stretto.errors import RunError
from stretto.extending.cpp_source import compile_error, definition, namespace
from stretto.extending.triton_source import definitions
from stretto.ir.types import DType
from stretto.machines.cpu.pool import HEADERS
from stretto.machines.cpu.printer.cpp_terms import MEMORY_TYPES
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.scalar import POINTER_TYPES
from stretto.machines.cuda.printer.source import ENTRY, PROGRESS, KernelParameter, TritonSource
from stretto.machines.cuda.printer.triton_module import HEADER, library_text
from stretto.machines.cuda.template import power
from stretto.machines.cuda.templates.user import block_sizes, number_text
from stretto.ops.infer import resolve
from stretto.options import Options
from stretto.runtime.compiler import compile_shared

# ---- Guarded tensors, on which the check runs single tasks of a kernel.


GUARD = 64
"""Number of guard elements before and after each tensor, which a kernel must not touch."""

Box = tuple[tuple[int, int], ...]
"""The range of each index."""
Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor with guards around it: `result` is a view into `memory`; `before` is a copy of the
    bits of `memory` from before the call."""

    memory: Tensor
    before: Tensor
    result: Tensor

    @property
    def guarded(self) -> Tensor:
        return bits(self.memory)

    def around(self, inside: Tensor) -> Tensor:
        """Return a mask of the whole memory, given one of the tensor."""
        mask = torch.zeros(self.memory.numel(), dtype=torch.bool)
        mask[GUARD : GUARD + inside.numel()] = inside.reshape(-1)
        return mask

    def positions(self, mask: Tensor, like: Tensor) -> str:
        """Describe the place of the first element in a mask, for messages."""
        at = int(mask.nonzero()[0, 0]) - GUARD
        if at < 0 or at >= like.numel():
            side = "before" if at < 0 else "after"
            return f"{-at if at < 0 else at - like.numel() + 1} elements {side} the tensor"
        found: list[int] = []
        for size in reversed(like.shape):
            at, rest = divmod(at, size)
            found.insert(0, rest)
        return f"element {tuple(found)}"


RunTask = Callable[[Sequence[Guarded], Box, Sequence[Number]], None]
"""Runs one task, on the tensors in the order of the schema, then the result."""


def guarded(tensor: Tensor, known: Tensor, poison: int) -> Guarded:
    memory = _poison(tensor.numel() + 2 * GUARD, tensor.dtype, poison)
    inner = memory[GUARD : GUARD + tensor.numel()].view(tensor.shape)
    inner[known] = tensor[known]
    return Guarded(memory, bits(memory).clone(), inner)


def _poison(count: int, dtype: torch.dtype, kind: int) -> Tensor:
    """Return a tensor filled with one of two values: NaN of either sign, or unlikely integers."""
    if dtype.is_floating_point:
        found = torch.full((count,), float("nan"), dtype=dtype)
        return -found if kind else found
    if dtype is torch.bool:
        return torch.full((count,), bool(kind))
    info = torch.iinfo(dtype)
    return torch.full((count,), info.max - 1 if kind else info.min // 2 + 1, dtype=dtype)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(_BITS[tensor.element_size()])


# ---- Single tasks of a kernel's C++.


_NUMBER_TYPES = {"f64": "double", "i64": "int64_t", "bool": "bool"}


def _cpp_tasks(kernel: UserKernel, tensors: Sequence[Tensor], wanted: Tensor) -> RunTask:
    """Return what runs tasks of C++. Raise BuildError for C++ that does not compile."""
    function = _compiled(kernel, tensors, wanted)

    def run(held: Sequence[Guarded], box: Box, numbers: Sequence[Number]) -> None:
        pointers = [item.memory[GUARD:].data_ptr() for item in held]
        sizes = [n for item in held for n in (*item.result.shape, *item.result.stride())]
        ranges = [end for interval in box for end in interval]
        function(
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_int64 * (len(ranges) + len(sizes)))(*ranges, *sizes),
            (ctypes.c_double * max(len(numbers), 1))(*map(float, numbers)),
        )

    return run


def _compiled(kernel: UserKernel, tensors: Sequence[Tensor], wanted: Tensor) -> Any:
    """Return a function `(pointers, ranges and sizes and strides, numbers)` that runs one task."""
    indices = sum(part.start is not None for part in kernel.write.parts)
    spans = [f"stretto::Range{{n[{2 * k}], n[{2 * k + 1}]}}" for k in range(indices)]
    place, views = 2 * indices, list[str]()
    regions = [*zip(kernel.reads, tensors, strict=True), (kernel.write, wanted)]
    for number, (region, tensor) in enumerate(regions):
        rank, is_result = len(region.parts), number == len(tensors)
        kind = MEMORY_TYPES[DType.from_torch(tensor.dtype)]
        kind = kind if is_result else f"const {kind}"
        dims = [f"n[{place + k}]" for k in range(rank)] or ["1"]
        steps = [f"n[{place + rank + k}]" for k in range(rank)] or ["0"]
        held = f"({kind}*)p[{number}], {{{', '.join(dims)}}}, {{{', '.join(steps)}}}"
        views.append(f"stretto::View<{kind}, {rank}>{{{held}}}")
        place += 2 * rank
    numbers = [f"({_NUMBER_TYPES[t]})v[{k}]" for k, (_, t) in enumerate(kernel.numbers)]
    *reads, result = views
    arguments = ", ".join([*spans, *reads, *numbers, result])
    source = f"""\
#include "tile.h"
{definition(kernel)}
extern "C" void task(void** p, const int64_t* n, const double* v) {{
    {namespace(kernel)}::{kernel.entry}({arguments});
}}
"""
    with compile_error(kernel):
        library = ctypes.CDLL(str(compile_shared(source, Options(), HEADERS).path))
    function = library.task
    function.restype = None
    return function


# ---- Single tasks of a kernel's Triton, which is interpreted.


@dataclass(slots=True)
class TritonTasks:
    """Tasks of Triton. programs: modules that run one task, by their text."""

    kernel: UserKernel
    programs: dict[str, InterpretedKernel] = field(default_factory=dict[str, InterpretedKernel])

    def run(self, held: Sequence[Guarded], box: Box, numbers: Sequence[Number]) -> None:
        """Run one task. Raise RunError for an access outside a tensor, and any error of Triton."""
        source = self._source(held, box, numbers)
        if source.text not in self.programs:
            self.programs[source.text] = InterpretedKernel(source)
        control = torch.zeros(PROGRESS + 1, dtype=torch.int64)
        tensors = [item.result.reshape(-1) for item in held]
        ends = [end for interval in box for end in interval]
        self.programs[source.text].launch([control, *tensors, *ends])

    def _source(self, held: Sequence[Guarded], box: Box, numbers: Sequence[Number]) -> TritonSource:
        kernel, code = self.kernel, self.kernel.triton
        assert code is not None
        names = [*(read.tensor for read in kernel.reads), kernel.write.tensor]
        parameters = [KernelParameter("control", "*i64", "control")]
        arguments: list[str] = []
        lanes = max(power(last - first) for first, last in box) if box else 1
        tiles = [last - first for first, last in box]
        for number, block in enumerate(block_sizes(kernel, tiles, lanes ** max(len(box), 1))):
            arguments.append(f"stretto_Range(begin{number}, end{number}, {block})")
        views: list[str] = []
        for number, (name, item) in enumerate(zip(names, held, strict=True)):
            kind = POINTER_TYPES[DType.from_torch(item.result.dtype)]
            parameters.append(KernelParameter(f"p{number}_{name}", kind, "buffer", number))
            shape, steps = tuple(item.result.shape), item.result.stride()
            views.append(f"stretto_View(p{number}_{name}, {shape}, {steps})")
        for number in range(len(box)):
            parameters += [KernelParameter(f"{n}{number}", "i32", "size") for n in ("begin", "end")]
        *reads, result = views
        call = ", ".join([*arguments, *reads, *map(number_text, numbers), result])
        head = f"def {ENTRY}({', '.join(parameter.name for parameter in parameters)}):"
        entry = f"@triton.jit\n{head}\n    {code.entry}({call})\n"
        text = "\n\n".join([HEADER, library_text(), *definitions([kernel]), entry])
        return TritonSource(text, tuple(parameters), (), 1, 4, user_kernels=(kernel,))


MIDDLE_TILE_COUNT = 3
"""Each index is tried as a whole, in about this many parts, and value by value if there are few."""
MOST_BOXES = 64


def check(
    kernel: UserKernel,
    *calls: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Run a kernel task by task on each of `calls`, arguments of its operator, in each language
    that it has a source in, and compare with torch's results. Triton is interpreted.

    All tensors are between guards, and elements outside of a task's regions are poison: each time
    one of two values, NaN of either sign or, for dtypes without NaN, unlikely numbers. Raises
    RunError for a task that writes outside of its region, leaves some of it unwritten, depends on
    elements outside of its regions, or whose result differs from the operator's by more than the
    tolerances of `torch.testing.assert_close`, and for Triton that reads outside of a tensor;
    BuildError for C++ that does not compile; ValueError for arguments that the kernel is not for.
    """
    for number, call in enumerate(calls):
        for trial in _trials(kernel, call, number):
            for boxes in trial.tilings():
                for box in boxes:
                    trial.run(box, rtol, atol)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One call: its tensors as the kernel sees them, at one position of the leading dims at a
    time."""

    kernel: UserKernel
    label: str
    tensors: tuple[Tensor, ...]
    numbers: tuple[Number, ...]
    wanted: Tensor
    run_task: RunTask

    @property
    def leads(self) -> int:
        return self.wanted.dim() - len(self.kernel.write.parts)

    @property
    def extents(self) -> dict[str, int]:
        parts = zip(self.kernel.write.parts, self.wanted.shape[self.leads :], strict=True)
        named = ((part.start, size) for part, size in parts)
        return {start.name: size for start, size in named if start is not None and start.name}

    def tilings(self) -> Iterator[list[Box]]:
        """Yield lists of boxes that together are the whole result: one, a few, and many."""
        sizes, wanted = list(self.extents.values()), dict(self.kernel.multiples)
        multiples = [wanted.get(name, 1) for name in self.extents]
        for count in (1, MIDDLE_TILE_COUNT, max(1, *sizes, 1)):
            tiles = [
                max(-(-size // count // multiple), 1) * multiple
                for size, multiple in zip(sizes, multiples, strict=True)
            ]
            ranges = [
                [(first, min(first + tile, size)) for first in range(0, size, tile)]
                for size, tile in zip(sizes, tiles, strict=True)
            ]
            yield list(product(*ranges))[:MOST_BOXES]

    def run(self, box: Box, rtol: float | None, atol: float | None) -> None:
        """Run one task at the first and at the last position of the leading dims."""
        lead = self.wanted.shape[: self.leads]
        if 0 in self.wanted.shape:
            return
        for place in {(0,) * len(lead), tuple(size - 1 for size in lead)}:
            pairs = zip(self.tensors, self.kernel.reads, strict=True)
            parts = [self._at(tensor, region, place) for tensor, region in pairs]
            self._task(parts, self.wanted[place], box, place, rtol, atol)

    def _at(self, tensor: Tensor, region: DeclaredRegion, place: tuple[int, ...]) -> Tensor:
        """Return a tensor at a position of the leading dims, broadcast as in torch."""
        own = tensor.dim() - len(region.parts)
        lead = place[len(place) - own :]
        return tensor[tuple(0 if tensor.shape[n] == 1 else at for n, at in enumerate(lead))]

    def _task(
        self,
        parts: list[Tensor],
        wanted: Tensor,
        box: Box,
        place: tuple[int, ...],
        rtol: float | None,
        atol: float | None,
    ) -> None:
        what = f"{self.label}, task {self._shown(box)}" + (f" at {place}" if place else "")
        values = dict(zip(self.extents, box, strict=True))
        inside = _mask(self.kernel.write, wanted, values)
        declared = [_mask(r, t, values) for r, t in zip(self.kernel.reads, parts, strict=True)]
        whole = [torch.ones_like(mask) for mask in declared]
        found = self._call(parts, whole, wanted, box, 0)
        other = self._call(parts, whole, wanted, box, 1)
        written = (found.guarded != found.before) | (other.guarded != other.before)
        if bool((written & ~found.around(inside)).any()):
            positions = found.positions(written & ~found.around(inside), wanted)
            raise RunError(
                f"{what} writes outside of the region that is declared: {positions}",
                remedy="write only the elements of the result whose indices are in the ranges",
            )
        if bool((bits(found.result) != bits(other.result))[inside].any()):
            raise RunError(
                f"{what} leaves elements of its region unwritten, or depends on what was there",
                remedy="write every element of the result whose indices are in the ranges",
            )
        for poison in (0, 1):
            poisoned = self._call(parts, declared, wanted, box, poison)
            if not bool(_same(poisoned.result, found.result)[inside].all()):
                raise RunError(
                    f"{what} reads elements that no region declares",
                    remedy="declare all elements that an element of the result depends on",
                )
        try:
            torch.testing.assert_close(
                found.result[inside], wanted[inside], rtol=rtol, atol=atol, equal_nan=True
            )
        except AssertionError as error:
            raise RunError(f"{what} differs from what torch computes: {error}") from error

    def _shown(self, box: Box) -> str:
        pairs = zip(self.extents, box, strict=True)
        return ", ".join(f"{name} {first}..{last - 1}" for name, (first, last) in pairs) or "whole"

    def _call(
        self, parts: list[Tensor], known: list[Tensor], wanted: Tensor, box: Box, poison: int
    ) -> Guarded:
        """Return the result of the kernel. known: masks of the elements that it may see; others
        are poison."""
        held = [guarded(t, mask, poison) for t, mask in zip(parts, known, strict=True)]
        out = guarded(wanted, torch.zeros_like(wanted, dtype=torch.bool), poison)
        try:
            self.run_task((*held, out), box, self.numbers)
        except RunError as error:
            what = f"{self.label}, task {self._shown(box)}: {error.message}"
            raise RunError(what, location=error.location, remedy=error.remedy) from error
        return out


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _mask(region: DeclaredRegion, tensor: Tensor, values: dict[str, tuple[int, int]]) -> Tensor:
    """Return a mask of the elements that a task's region names. Raise ValueError if they exceed
    the tensor."""
    mask = torch.ones(tensor.shape, dtype=torch.bool)
    for dim, part in enumerate(region.parts):
        size = tensor.shape[dim]
        if part.start is None:
            continue
        if size == 1 and part.start.name is not None and part.length == 1:
            continue  # as torch broadcasts
        one = torch.zeros(size, dtype=torch.bool)
        for start in _values(part.start, values):
            if start < 0 or start + part.length > size:
                raise ValueError(
                    f"the region of `{region.tensor}` names elements {start} to "
                    f"{start + part.length - 1} of a dim of size {size}"
                )
            one[start : start + part.length] = True
        mask &= one.view([-1 if n == dim else 1 for n in range(tensor.dim())])
    return mask


def _values(start: Linear, values: dict[str, tuple[int, int]]) -> Iterator[int]:
    ranges = [range(*values[name]) for name, _ in start.terms]
    for point in product(*ranges):
        factors = (factor for _, factor in start.terms)
        yield start.const + sum(f * at for f, at in zip(factors, point, strict=True))


# ---- trials of a call ----------------------------------------------------------------------------


def _trials(kernel: UserKernel, call: Sequence[Any], number: int) -> Iterator[_Trial]:
    operator = resolve(kernel.target)
    schema = operator._schema
    given = {item.name: item.default_value for item in schema.arguments}
    given |= dict(zip((item.name for item in schema.arguments), call, strict=False))
    tensors = tuple(given[read.tensor] for read in kernel.reads)
    for read, tensor in zip(kernel.reads, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"call {number} gives {tensor!r} for the tensor `{read.tensor}`")
    wanted: Tensor = operator(*call)
    for tensor in (*tensors, wanted):
        if tensor.is_floating_point() and tensor.dtype not in kernel.dtypes:
            names = ", ".join(map(str, kernel.dtypes))
            raise ValueError(f"the kernel of {kernel.name} is for {names}, and not {tensor.dtype}")
    numbers = tuple(given[name] for name, _ in kernel.numbers)
    label = f"{kernel.name}, call {number}"
    if kernel.cpp is not None:
        run = _cpp_tasks(kernel, tensors, wanted)
        yield _Trial(kernel, label, tensors, numbers, wanted, run)
    if kernel.triton is not None:
        run = TritonTasks(kernel).run
        yield _Trial(kernel, f"{label} in Triton", tensors, numbers, wanted, run)

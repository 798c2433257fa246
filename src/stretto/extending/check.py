"""Runs a kernel by itself, between guards, to see whether it keeps to its regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from stretto.device.user_kernels import Linear, Region, UserKernel
from stretto.errors import RunError
from stretto.extending.run_cpp import CppTasks
from stretto.extending.run_triton import TritonTasks
from stretto.extending.tasks import Box, Guarded, Number, Tasks, bits, guarded
from stretto.ops.infer import resolve

TILES = 3
"""Each index is tried whole, in about so many parts, and value by value where there are few."""
MOST_TASKS = 64


def check(
    kernel: UserKernel,
    *calls: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Runs a kernel task by task on each of `calls`, arguments of its operator, in each language
    that it has a source in, and compares with what torch computes. Triton is interpreted.

    All tensors lie between guards, and what a task's regions do not name is poison: NaN, or two
    kinds of rubbish where there is no NaN. Raises RunError for a task that writes outside of its
    region, leaves some of it unwritten, depends on what its regions do not name, or whose result
    differs from the operator's by more than the tolerances of `torch.testing.assert_close`, and for
    Triton that reads outside of a tensor; BuildError for C++ that does not compile. ValueError for
    arguments that the kernel is not for.
    """
    for number, call in enumerate(calls):
        for trial in _trials(kernel, call, number):
            for boxes in trial.tilings():
                for box in boxes:
                    trial.run(box, rtol, atol)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One call: its tensors as the kernel sees them, at one place of the leading dims at a time."""

    kernel: UserKernel
    label: str
    tensors: tuple[Tensor, ...]
    numbers: tuple[Number, ...]
    wanted: Tensor
    tasks: Tasks

    @property
    def leads(self) -> int:
        return self.wanted.dim() - len(self.kernel.write.parts)

    @property
    def extents(self) -> dict[str, int]:
        parts = zip(self.kernel.write.parts, self.wanted.shape[self.leads :], strict=True)
        named = ((part.start, size) for part, size in parts)
        return {start.name: size for start, size in named if start is not None and start.name}

    def tilings(self) -> Iterator[list[Box]]:
        """Boxes that together are the whole result: one, a few, and many."""
        sizes, wanted = list(self.extents.values()), dict(self.kernel.multiples)
        multiples = [wanted.get(name, 1) for name in self.extents]
        for count in (1, TILES, max(1, *sizes, 1)):
            tiles = [
                max(-(-size // count // multiple), 1) * multiple
                for size, multiple in zip(sizes, multiples, strict=True)
            ]
            ranges = [
                [(first, min(first + tile, size)) for first in range(0, size, tile)]
                for size, tile in zip(sizes, tiles, strict=True)
            ]
            yield list(product(*ranges))[:MOST_TASKS]

    def run(self, box: Box, rtol: float | None, atol: float | None) -> None:
        """One task at the first and at the last place of the leading dims."""
        lead = self.wanted.shape[: self.leads]
        if 0 in self.wanted.shape:
            return
        for place in {(0,) * len(lead), tuple(size - 1 for size in lead)}:
            pairs = zip(self.tensors, self.kernel.reads, strict=True)
            parts = [self._at(tensor, region, place) for tensor, region in pairs]
            self._task(parts, self.wanted[place], box, place, rtol, atol)

    def _at(self, tensor: Tensor, region: Region, place: tuple[int, ...]) -> Tensor:
        """A tensor at a place of the leading dims, as torch broadcasts."""
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
                    f"{what} reads what no region declares",
                    remedy="declare all that an element of the result depends on",
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
        """The result of the kernel. known: what of each tensor it may see."""
        held = [guarded(t, mask, poison) for t, mask in zip(parts, known, strict=True)]
        out = guarded(wanted, torch.zeros_like(wanted, dtype=torch.bool), poison)
        try:
            self.tasks.run((*held, out), box, self.numbers)
        except RunError as error:
            what = f"{self.label}, task {self._shown(box)}: {error.message}"
            raise RunError(what, location=error.location, remedy=error.remedy) from error
        return out


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _mask(region: Region, tensor: Tensor, values: dict[str, tuple[int, int]]) -> Tensor:
    """The elements of a tensor that a task's region names. Raises ValueError where there are none
    of them in the tensor."""
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


# ---- the library ---------------------------------------------------------------------------------


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
        tasks = CppTasks.of(kernel, tensors, wanted)
        yield _Trial(kernel, label, tensors, numbers, wanted, tasks)
    if kernel.triton is not None:
        tasks = TritonTasks(kernel)
        yield _Trial(kernel, f"{label} in Triton", tensors, numbers, wanted, tasks)

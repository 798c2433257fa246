"""Whether two observations are the same, and in which part they differ.

Structure, types, shapes and dtypes must be equal; numbers within the tolerance of their dtype, or
within what the float arithmetic of eager itself leaves open: `within` takes several runs of eager
under rounding noise (`reference.py`) and asks whether the found value lies among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from checks.fuzz.observe import Thing

TOLERANCE: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.float32: 3e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
"""Relative to the element, or a third of it to the largest element of the tensor."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two observations differ, and how."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def differences(
    found: Any, wanted: Any, *, place: str = "result", dtypes: bool = True
) -> Iterator[Difference]:
    """All parts in which `found` is not `wanted`. `dtypes=False` compares with a run in float64."""
    if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
        if what := _tensor_difference(found, wanted, dtypes):
            yield Difference(place, what)
    elif isinstance(wanted, float) and isinstance(found, float):
        if not _numbers_close(found, wanted):
            yield Difference(place, f"{found!r} instead of {wanted!r}")
    elif type(found) is not type(wanted):
        yield Difference(place, f"{_kind(found)} instead of {_kind(wanted)}")
    elif isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            yield Difference(place, f"length {len(found)} instead of {len(wanted)}")
            return
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, place=f"{place}[{number}]", dtypes=dtypes)
    elif isinstance(wanted, Thing):
        names = [name for name, _ in wanted.parts]
        if found.kind != wanted.kind or [name for name, _ in found.parts] != names:
            shown = f"{found.kind} of {[name for name, _ in found.parts]}"
            yield Difference(place, f"{shown} instead of {wanted.kind} of {names}")
            return
        for (name, one), (_, other) in zip(found.parts, wanted.parts, strict=True):
            yield from differences(one, other, place=f"{place}.{name}", dtypes=dtypes)
    elif found != wanted:
        yield Difference(place, f"{found!r} instead of {wanted!r}")


def within(found: Any, runs: Sequence[Any]) -> bool:
    """Whether `found` is what one of the runs gave, or lies between them element by element."""
    if any(next(differences(found, run, dtypes=False), None) is None for run in runs):
        return True
    first = runs[0]
    if isinstance(found, torch.Tensor):
        return all(isinstance(run, torch.Tensor) for run in runs) and _between(found, runs)
    if isinstance(found, float):
        return all(isinstance(run, float) for run in runs) and _between(
            torch.tensor(found), [torch.tensor(run) for run in runs]
        )
    if any(type(run) is not type(found) for run in runs):
        return False
    if isinstance(found, list | tuple):
        same = all(len(run) == len(found) for run in runs)
        return same and all(
            within(item, [run[number] for run in runs]) for number, item in enumerate(found)
        )
    if isinstance(found, Thing):
        same = all(len(run.parts) == len(found.parts) for run in runs) and isinstance(first, Thing)
        return same and all(
            within(item, [run.parts[number][1] for run in runs])
            for number, (_, item) in enumerate(found.parts)
        )
    return any(run != first for run in runs) and found in runs


def _between(found: torch.Tensor, runs: Sequence[torch.Tensor]) -> bool:
    """Element by element within twice the spread of the runs around their middle."""
    if any(run.shape != found.shape for run in runs) or not found.numel():
        return False
    many = torch.stack([run.to(torch.float64) for run in runs])
    value = found.to(torch.float64)
    special = ~value.isfinite() | ~many.isfinite().all(0)
    if special.any():
        near = TOLERANCE.get(found.dtype, 0.0) * value.abs()
        some = [
            (value == run) | (value.isnan() & run.isnan()) | ((value - run).abs() <= near)
            for run in many
        ]
        if not torch.stack(some).any(0)[special].all():
            return False
    low, high = many.amin(0), many.amax(0)
    scale = max(1e-30, float(value[~special].abs().max())) if (~special).any() else 1.0
    slack = 2 * (high - low) + TOLERANCE.get(found.dtype, 0.0) * (value.abs() + scale / 3)
    inside = (value >= low - slack) & (value <= high + slack)
    return bool((inside | special).all())


def _tensor_difference(found: torch.Tensor, wanted: torch.Tensor, dtypes: bool) -> str | None:
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)} instead of {list(wanted.shape)}"
    if dtypes and found.dtype != wanted.dtype:
        return f"{found.dtype} instead of {wanted.dtype}"
    if not found.numel():
        return None
    if not found.is_floating_point() and not found.is_complex():
        same = found == wanted
    else:
        same = _close(found, wanted)
    if same.all():
        return None
    flat = int((~same).flatten().to(torch.int8).argmax())
    place = (
        [int(n) for n in torch.unravel_index(torch.tensor(flat), found.shape)]
        if found.dim()
        else []
    )
    one, other = found.flatten()[flat].item(), wanted.flatten()[flat].item()
    count = int((~same).sum())
    return f"{count} of {found.numel()} differ, {one!r} instead of {other!r} at {place}"


def _close(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    tolerance = TOLERANCE.get(found.dtype, 1e-5)
    wide = torch.complex128 if found.is_complex() else torch.float64
    one, other = found.to(wide), wanted.to(wide)
    finite = one.isfinite() & other.isfinite()
    scale = other.abs()[finite].max() if finite.any() else torch.tensor(0.0)
    allowed = tolerance * (other.abs() + scale / 3) + torch.finfo(found.dtype).tiny
    same = (one == other) | (one.isnan() & other.isnan())
    return same | (finite & ((one - other).abs() <= allowed))


def _numbers_close(found: float, wanted: float) -> bool:
    if math.isnan(wanted):
        return math.isnan(found)
    return found == wanted or math.isclose(found, wanted, rel_tol=3e-5, abs_tol=1e-6)


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, Thing) else type(value).__name__

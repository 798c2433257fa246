"""Users' Triton source inside a program, and its errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from stretto.device.operator import Combine, Kernel
from stretto.device.user_kernels import UserKernel, kernel_of
from stretto.errors import BuildError, SourceLocation

TYPES = Path(__file__).parent / "printer" / "library" / "tile.py"


def user_kernels(kernels: Iterable[Kernel]) -> tuple[UserKernel, ...]:
    """Return the users' kernels that some kernels call, in order."""
    operators = (stage.operator for kernel in kernels for stage in kernel.stages)
    calls = (kernel_of(one) for one in operators if one.combine is Combine.KERNEL)
    return tuple(dict.fromkeys(calls))


def definitions(kernels: Iterable[UserKernel]) -> list[str]:
    """Return the text that a module needs to call them: their types, and the users' functions."""
    codes = [kernel.triton for kernel in kernels if kernel.triton is not None]
    if not codes:
        return []
    text = TYPES.read_text()
    types = "from typing import Any, NamedTuple\n\n" + text[text.index("# ---- ") :]
    return [types, *dict.fromkeys(part.text for code in codes for part in code.parts)]


def user_names(kernels: Iterable[Kernel]) -> set[str]:
    """Return the names that the users' Triton source defines in a module."""
    codes = (kernel.triton for kernel in user_kernels(kernels))
    return {part.name for code in codes if code is not None for part in code.parts}


def located(
    text: str, line: int, kernels: Iterable[UserKernel]
) -> tuple[UserKernel, SourceLocation] | None:
    """Return the user's line that a line of a module comes from, or the user's function that it
    calls, and the kernel; None if it is neither."""
    for kernel in kernels:
        for part in kernel.triton.parts if kernel.triton is not None else ():
            place = text.find(part.text)
            if place < 0 or part.location is None:
                continue
            ahead = line - (text.count("\n", 0, place) + 2)  # the decorator takes a line
            if 0 <= ahead < part.text.count("\n") - 1:
                return kernel, replace(part.location, line=part.location.line + ahead)
    called = text.splitlines()[line - 1]
    for kernel in kernels:
        for part in kernel.triton.parts if kernel.triton is not None else ():
            if part.location is not None and f"{part.name}(" in called:
                return kernel, part.location
    return None


def rejected(reason: str, text: str, line: int, kernels: Iterable[UserKernel]) -> BuildError | None:
    """Return the error for a line that is the user's; None for any other line."""
    found = located(text, line, kernels)
    if found is None:
        return None
    kernel, place = found
    return BuildError(
        f"the Triton of the kernel of {kernel.name} does not compile: {reason}",
        location=place,
        remedy="correct the source; the docs of stretto.kernel list the function's arguments",
        op=place.source().strip(),
    )

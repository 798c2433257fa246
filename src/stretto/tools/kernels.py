"""One kernel in words: what was fused into it, how it is computed, how it is cut into tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from stretto.device.expr import Apply, Expr, Extent, Reg
from stretto.device.operator import Kernel, Template, operator_name
from stretto.device.runs import Runs
from stretto.text import seconds_text

MOST_FUNCTIONS = 6
"""Scalar functions named for a kernel; a long chain shows the first ones."""

_FOLDERS = re.compile(r"[^\s:]*/(?=[^/\s:]+:\d)")


def short_file(text: str) -> str:
    """The text with `folder/file.py:12` cut to `file.py:12`."""
    return _FOLDERS.sub("", text)


def kernel_row(kernel: Kernel, runs: Runs) -> tuple[str, ...]:
    """A line of the table of kernels."""
    return (
        kernel.name,
        operators_text(kernel),
        templates_text(kernel),
        tile_text(kernel),
        str(kernel.tasks) if kernel.is_static else "by size",
        str(runs),
        seconds_text(kernel.seconds),
        kernel_lines(kernel),
    )


def operators_text(kernel: Kernel) -> str:
    """The reductions and contractions of a kernel, then the scalar functions applied beside them,
    each in order: `contraction x4, sigmoid, tanh`."""
    if kernel.call is not None:
        return operator_name(kernel.call.target)
    operators = [stage.operator for stage in kernel.stages]
    names = Counter(operator_name(op.name) for op in operators if op.combine)
    words = [f"{name} x{count}" if count > 1 else name for name, count in names.items()]
    functions = dict.fromkeys(f for op in operators if not op.combine for f in _functions(op.value))
    words += list(functions)[:MOST_FUNCTIONS]
    if len(functions) > MOST_FUNCTIONS:
        words.append("...")
    return ", ".join(words) or "copy"


def _functions(expr: Expr) -> Iterator[str]:
    """The scalar functions of an expression, inner ones first, without casts and checks."""
    if isinstance(expr, Apply):
        for arg in expr.args:
            yield from _functions(arg)
        if expr.function not in ("cast", "checked"):
            yield expr.function


def templates_text(kernel: Kernel) -> str:
    """How the stages of a kernel are computed, each way once."""
    return " + ".join(dict.fromkeys(template_text(stage.template) for stage in kernel.stages))


def template_text(template: Template) -> str:
    """A template with the sizes of its tile, as `packed 6x64`."""
    sizes = "x".join(str(size) for _, size in template.choices)
    return f"{template.name} {sizes}".rstrip()


def tile_text(kernel: Kernel) -> str:
    """The tile of a task and the grid that it divides, as `1x64 of 64x1024`; `n/4` is a fourth."""
    if not kernel.grid:
        return "whole"
    tile = "x".join(
        str(dim.tile) if dim.parts is None else f"{_extent(dim.extent)}/{dim.parts}"
        for dim in kernel.grid
    )
    return f"{tile} of {'x'.join(_extent(dim.extent) for dim in kernel.grid)}"


def _extent(extent: Extent) -> str:
    return extent.name if isinstance(extent, Reg) else str(extent)


def kernel_lines(kernel: Kernel) -> str:
    """The user's source lines that a kernel came from, as `lstm.py:38,40`, without folders."""
    if kernel.call is not None:
        sources = [kernel.call.source]
    else:
        sources = [stage.operator.source for stage in kernel.stages]
    lines: dict[str, set[int]] = {}
    for source in filter(None, sources):
        file, _, line = short_file(source).rpartition(":")
        lines.setdefault(file, set()).add(int(line))
    return ", ".join(f"{file}:{','.join(map(str, sorted(found)))}" for file, found in lines.items())

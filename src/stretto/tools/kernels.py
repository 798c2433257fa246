"""One kernel in words: what was fused into it, how it is computed, how it is cut into tasks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from stretto.kernels.expr import Extent, Reg
from stretto.kernels.operator import Kernel, Method
from stretto.text import seconds_text
from stretto.tools.control import Runs

_FOLDERS = re.compile(r"[^\s:]*/(?=[^/\s:]+:\d)")


def short_file(text: str) -> str:
    """The text with `folder/file.py:12` cut to `file.py:12`."""
    return _FOLDERS.sub("", text)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A line of the table of kernels."""

    name: str
    operators: str
    template: str
    tile: str
    tasks: str
    runs: str
    estimate: str
    line: str

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            self.operators,
            self.template,
            self.tile,
            self.tasks,
            self.runs,
            self.estimate,
            self.line,
        )


def kernel_row(kernel: Kernel, runs: Runs) -> KernelRow:
    return KernelRow(
        kernel.name,
        operators_text(kernel),
        " + ".join(dict.fromkeys(method_text(stage.method) for stage in kernel.stages)),
        tile_text(kernel),
        str(kernel.tasks) if kernel.is_static else "by size",
        str(runs),
        seconds_text(kernel.seconds),
        ", ".join(kernel_lines(kernel)),
    )


def operators_text(kernel: Kernel) -> str:
    """The operators of a kernel in order, as `mm x4 + tanh + mul`."""
    if kernel.call is not None:
        return operator_name(kernel.call.target)
    names = Counter(operator_name(stage.operator.name) for stage in kernel.stages)
    return " + ".join(f"{name} x{n}" if n > 1 else name for name, n in names.items())


def operator_name(name: str) -> str:
    """`aten.mm.default` as `mm`."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "stretto", "prims") else name


def method_text(method: Method) -> str:
    """A template with its register tile, as `packed 6x64`."""
    sizes = dict(method.parameters)
    for rows, columns in (("mr", "nr"), ("mb", "nb")):
        if rows in sizes and columns in sizes:
            return f"{method.template} {sizes[rows]}x{sizes[columns]}"
    return method.template


def tile_text(kernel: Kernel) -> str:
    """The tile of a task and the grid that it divides, as `1x64 of 64x1024`."""
    if not kernel.grid:
        return "whole"
    tile = "x".join(str(dim.tile) for dim in kernel.grid)
    return f"{tile} of {'x'.join(_extent(dim.extent) for dim in kernel.grid)}"


def _extent(extent: Extent) -> str:
    return extent.name if isinstance(extent, Reg) else str(extent)


def kernel_lines(kernel: Kernel) -> list[str]:
    """The user's source lines that a kernel came from, in order, without folders."""
    if kernel.call is not None:
        sources = [kernel.call.source]
    else:
        sources = [stage.operator.source for stage in kernel.stages]
    return list(dict.fromkeys(short_file(source) for source in sources if source))

"""One profiled run of a compiled signature: unit, start and end of each task."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch.utils import _pytree as pytree

from stretto.device.expr import Apply, Expr, Extent, Reg
from stretto.device.operator import Kernel, Template, operator_name
from stretto.device.runs import Runs
from stretto.errors import BuildError
from stretto.machines.machine import Profiler, TaskEvent
from stretto.machines.registry import known_machines
from stretto.options import Options
from stretto.text import seconds_text

if TYPE_CHECKING:
    from stretto.call.entry import Entry


# ---- Description of a kernel: its fused operators, templates and tiles.


MOST_FUNCTIONS = 6
"""Maximum number of scalar functions listed for a kernel; the first ones are shown."""

_FOLDERS = re.compile(r"[^\s:]*/(?=[^/\s:]+:\d)")


def short_file(text: str) -> str:
    """Return the text with `folder/file.py:12` cut to `file.py:12`."""
    return _FOLDERS.sub("", text)


def kernel_row(kernel: Kernel, runs: Runs) -> tuple[str, ...]:
    """Return a row of the table of kernels."""
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
    """Return the reductions and contractions of a kernel, then the scalar functions applied with
    them, each in order: `contraction x4, sigmoid, tanh`."""
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
    """Yield the scalar functions of an expression, inner ones first, without casts and checks."""
    if isinstance(expr, Apply):
        for arg in expr.args:
            yield from _functions(arg)
        if expr.function not in ("cast", "checked"):
            yield expr.function


def templates_text(kernel: Kernel) -> str:
    """Return the templates of a kernel's stages, each once."""
    return " + ".join(dict.fromkeys(template_text(stage.template) for stage in kernel.stages))


def template_text(template: Template) -> str:
    """Return a template with its choices, as `packed 6x64`."""
    sizes = "x".join(str(size) for _, size in template.choices)
    return f"{template.name} {sizes}".rstrip()


def tile_text(kernel: Kernel) -> str:
    """Return the tile of a task and the grid that it divides, as `1x64 of 64x1024`; `n/4` is a
    fourth of n."""
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
    """Return the user's source lines of a kernel, without folders, as `lstm.py:38,40`."""
    if kernel.call is not None:
        sources = [kernel.call.source]
    else:
        sources = [stage.operator.source for stage in kernel.stages]
    lines: dict[str, set[int]] = {}
    for source in filter(None, sources):
        file, _, line = short_file(source).rpartition(":")
        lines.setdefault(file, set()).add(int(line))
    return ", ".join(f"{file}:{','.join(map(str, sorted(found)))}" for file, found in lines.items())


SECONDS = 0.3
"""Approximate seconds for which a program is profiled, at least twice; the fastest run is shown,
so that a busy machine disturbs few pictures."""


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """A kernel in a timeline. `busy` is the time of all its tasks, in nanoseconds."""

    name: str
    operators: str
    template: str
    tile: str
    lines: str
    tasks: int
    busy: int


@dataclass(frozen=True)
class Profile:
    """A profiled run. `events` are in order of their start; times in nanoseconds from the
    first task's start.

    Events refer to `kernels` by position.
    """

    title: str
    units: int
    kernels: tuple[ProfiledKernel, ...]
    events: tuple[TaskEvent, ...]

    @property
    def nanoseconds(self) -> int:
        """Nanoseconds from the start of the first task to the end of the last."""
        return max((event.end for event in self.events), default=0)

    @cached_property
    def _totals(self) -> tuple[Counter[int], Counter[int]]:
        """Nanoseconds in tasks, and number of tasks, by unit; cached, since there may be many
        events and units."""
        busy: Counter[int] = Counter()
        for event in self.events:
            busy[event.unit] += event.end - event.start
        return busy, Counter(event.unit for event in self.events)

    def busy(self, unit: int) -> int:
        """Return the nanoseconds that a unit spent in tasks."""
        return self._totals[0][unit]

    def tasks(self, unit: int) -> int:
        return self._totals[1][unit]

    def busy_share(self, unit: int) -> float:
        """Return the fraction of the run that a unit spent in tasks, from 0 to 1."""
        return self.busy(unit) / self.nanoseconds if self.nanoseconds else 0.0


def profile_entry(entry: Entry, options: Options) -> Profile:
    """Build the signature's program again with a clock around each task, and run it on the
    inputs that it was compiled with.

    Raises BuildError for a backend that does not measure time.
    """
    stages = entry.stages
    profiler = stages.machine.profiler(stages, options)
    if profiler is None or stages.device is None:
        clocks = [machine.name for machine in known_machines().values() if machine.is_native]
        raise BuildError(
            f"the {stages.backend} backend has no timeline: it does not measure time",
            remedy=f'compile with backend="{clocks[0]}"',
        )
    events = _fastest(profiler, entry_inputs(entry))
    described = profiled_kernels(profiler.kernels, stages.device.kernels, events)
    return make_profile(_title(entry), stages.device.units, described, events)


def profiled_kernels(
    names: Sequence[str], kernels: Sequence[Kernel], events: Sequence[TaskEvent]
) -> tuple[ProfiledKernel, ...]:
    """Return the profiled kernels, in the order of `names`, which events refer to by position."""
    known = {kernel.name: kernel for kernel in kernels}
    counts = Counter(event.kernel for event in events)
    times: Counter[int] = Counter()
    for event in events:
        times[event.kernel] += event.end - event.start
    return tuple(
        ProfiledKernel(
            name,
            operators_text(known[name]),
            templates_text(known[name]),
            tile_text(known[name]),
            kernel_lines(known[name]),
            counts[number],
            times[number],
        )
        for number, name in enumerate(names)
    )


def make_profile(
    title: str, units: int, kernels: tuple[ProfiledKernel, ...], events: list[TaskEvent]
) -> Profile:
    """Return a profile of events whose times have any origin."""
    first = min((event.start for event in events), default=0)
    moved = (replace(e, start=e.start - first, end=e.end - first) for e in events)
    return Profile(title, units, kernels, tuple(sorted(moved, key=lambda e: (e.start, e.unit))))


def left_out(profile: Profile, most: int) -> str:
    """Return a sentence about the tasks beyond the first `most`; empty if there are none."""
    if len(profile.events) <= most:
        return ""
    return (
        f"Only the first {most:,} of {len(profile.events):,} tasks are shown; the numbers count "
        "all. A .json trace holds the most."
    )


def _fastest(profiler: Profiler, inputs: list[torch.Tensor]) -> list[TaskEvent]:
    """Return the events of the run that took least from its first task to its last."""
    end = time.perf_counter() + SECONDS
    runs = [profiler.profile(inputs)[1] for _ in range(2)]
    while time.perf_counter() < end:
        runs = [min((*runs, profiler.profile(inputs)[1]), key=_span)]
    return min(runs, key=_span)


def _span(events: list[TaskEvent]) -> int:
    return max((e.end for e in events), default=0) - min((e.start for e in events), default=0)


@contextmanager
def one_torch_thread() -> Generator[None]:
    """Limit torch to one thread: its own threads spin for a while after an operator, and would
    take time from what is measured next."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def entry_inputs(entry: Entry) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(entry.example_arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [tensor.detach().contiguous() for tensor in entry.bind(tensors, entry.example_reading())]


def _title(entry: Entry) -> str:
    shapes = ", ".join(str(value.type) for value in entry.captured.program.main.params)
    return shapes if len(shapes) <= 120 else f"{shapes[:117]}..."

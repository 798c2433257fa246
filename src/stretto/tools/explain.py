"""`Compiled.explain()`: what was captured, fused, scheduled and built, as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from stretto.build import Stages
from stretto.capture import ArgumentLeaf
from stretto.ir.ops import TensorOp
from stretto.kernels.operator import Kernel
from stretto.runtime.executable import CpuExecutable
from stretto.schedule.program import DeviceProgram
from stretto.schedule.scheduler import Report
from stretto.text import Writer, bytes_text, seconds_text, table
from stretto.tools.arguments import tensor_names
from stretto.tools.control import (
    NEVER,
    function_runs,
    kernel_runs,
    program_rows,
    recursive_functions,
    schedule_rows,
)
from stretto.tools.kernels import kernel_row, short_file

if TYPE_CHECKING:
    from stretto.api import Compiled, Entry

MOST_ROWS = 60
"""A longer table shows this many rows and says how many it leaves out."""


def explain(compiled: Compiled) -> str:
    """What became of each signature that `compiled` has been called with.

    Plain text; the same program gives the same text, but for the times in it.
    """
    entries = compiled.signatures
    out = Writer()
    name = getattr(compiled, "__name__", None) or type(compiled._function).__name__  # pyright: ignore[reportPrivateUsage]
    if not entries:
        out.write(f"{name}: nothing compiled yet; call it once, or give stretto.compile its inputs")
        return out.text()
    out.write(f"{name}: {_count(len(entries), 'signature')} compiled")
    for number, entry in enumerate(entries, 1):
        out.write()
        out.write(
            f"signature {number}: backend {entry.stages.backend}, {_count(entry.calls, 'call')}"
        )
        with out.indent():
            _write_entry(out, entry, compiled)
    return out.text()


def _write_entry(out: Writer, entry: Entry, compiled: Compiled) -> None:
    stages = entry.stages
    args, kwargs = cast("tuple[tuple[Any, ...], dict[str, Any]]", entry.keep)
    function = compiled._function  # pyright: ignore[reportPrivateUsage]
    _inputs(out, entry, tensor_names(function, args, kwargs))
    if stages.device is not None:
        _summary(out, entry, stages.device)
    _captured(out, stages)
    _passes(out, stages)
    if stages.device is not None:
        _kernels(out, stages.device)
        _library_calls(out, stages.device)
        _schedule(out, stages.device)
    _seconds(out, entry)


def _section(
    out: Writer, title: str, rows: Iterable[Sequence[object]], headers: Sequence[str]
) -> None:
    """A titled table, cut after `MOST_ROWS`; nothing where there are no rows."""
    everything = [tuple(row) for row in rows]
    if not everything:
        return
    out.write(title)
    with out.indent():
        out.write(table(everything[:MOST_ROWS], headers).rstrip("\n"))
        if len(everything) > MOST_ROWS:
            out.write(f"... and {len(everything) - MOST_ROWS} more rows")


def _inputs(out: Writer, entry: Entry, names: Sequence[str]) -> None:
    """`names` are those of the tensors of a call."""
    captured = entry.captured
    mutated = {mutation.input for mutation in captured.mutations}
    rows: list[tuple[str, str, str]] = []
    params = captured.program.main.params
    for number, (value, binding) in enumerate(zip(params, captured.inputs, strict=True)):
        given = isinstance(binding, ArgumentLeaf)
        name = names[binding.index] if given else binding.name
        where = "argument" if given else "buffer"
        if number in mutated:
            where += ", written back after each call"
        rows.append((name, str(value.type), where))
    _section(out, "inputs", rows, ("name", "type", "from"))


def _captured(out: Writer, stages: Stages) -> None:
    rows = program_rows(stages.captured.program)
    headers = ("captured", "trips", "operators", "line", "source")
    _section(out, "control flow, as captured", (row.cells() for row in rows), headers)
    if stages.captured.notes:
        out.write("notes of the capture")
        with out.indent():
            for note in stages.captured.notes:
                out.write(short_file(note))


def _passes(out: Writer, stages: Stages) -> None:
    """What the passes made of the captured Program, in one line."""
    before, after = (
        sum(isinstance(op, TensorOp) for op in program.walk())
        for program in (stages.captured.program, stages.program)
    )
    functions = ", ".join(stages.program.functions)
    out.write(f"passes: {before} tensor operators became {after}; functions: {functions}")


def _kernels(out: Writer, device: DeviceProgram) -> None:
    runs = kernel_runs(device)
    rows = [kernel_row(k, runs[k.name]) for k in device.kernels if k.call is None]
    headers = ("kernel", "operators", "template", "tile", "tasks", "runs", "estimate", "line")
    title = "kernels (tasks each, how often they run in a call, estimated time of a task)"
    _section(out, title, [row.cells() for row in rows], headers)


def _library_calls(out: Writer, device: DeviceProgram) -> None:
    calls = library_calls(device)
    if not calls:
        out.write("library calls: none")
        return
    runs = kernel_runs(device)
    rows = [
        (k.name, k.call.target, k.call.reason, str(runs[k.name]), short_file(k.call.source))
        for k in calls
        if k.call is not None
    ]
    headers = ("kernel", "operator", "reason", "runs", "line")
    _section(out, "library calls (run by torch inside the launch)", rows, headers)


def library_calls(device: DeviceProgram) -> list[Kernel]:
    """The kernels that call into ATen."""
    return [kernel for kernel in device.kernels if kernel.call is not None]


def _schedule(out: Writer, device: DeviceProgram) -> None:
    rows = [row.cells() for row in schedule_rows(device)]
    headers = ("schedule", "runs", "steps", "tasks by unit", "waits", "kernels")
    _section(out, "schedule", rows, headers)


def _summary(out: Writer, entry: Entry, device: DeviceProgram) -> None:
    stages = entry.stages
    lines: list[tuple[str, str]] = [("launches per call", "1")]
    if stages.report is not None:
        lines += _report_lines(stages.report)
    lines.insert(2, ("kernels", _task_text(device)))
    runs = function_runs(device)
    for name in sorted(recursive_functions(device)):
        size = bytes_text(device.frame(name).nbytes)
        lines.append(
            ("recursion frame", f"{name}: {size} per activation, activations {runs[name]}")
        )
    packed = sum(packing.buffer.nbytes for packing in stages.packings)
    if stages.packings:
        count = _count(len(stages.packings), "constant")
        lines.append(("packed weights", f"{count}, {bytes_text(packed)}"))
    if isinstance(entry.executable, CpuExecutable):
        shared = entry.executable.shared
        lines.append(("build cache", "hit" if shared.from_cache else "miss, built now"))
    width = max(len(label) for label, _ in lines)
    out.write("program")
    with out.indent():
        for label, text in lines:
            out.write(f"{label.ljust(width)}  {text}")


def _task_text(device: DeviceProgram) -> str:
    """The number of kernels, and of tasks in one call."""
    runs = kernel_runs(device)
    total = NEVER
    for kernel in device.kernels:
        total = total + runs[kernel.name].times(kernel.tasks if kernel.is_static else None)
    return f"{len(device.kernels)}, tasks per call: {total}"


def _report_lines(report: Report) -> list[tuple[str, str]]:
    frames = bytes_text(report.frame_bytes)
    separate = bytes_text(report.separate_bytes)
    alone = f"one unit: {seconds_text(report.alone)}"
    chosen = f"estimated: {seconds_text(report.seconds)}"
    return [
        ("units", f"{report.units} ({chosen if report.units == 1 else f'{chosen}, {alone}'})"),
        ("leaves and steps", f"{report.leaves} leaves, {report.waves} steps"),
        ("waits", f"{report.waits} inserted, {report.implied} dropped as implied"),
        ("signals", str(report.signals)),
        ("arena", f"{frames} ({separate} without sharing)"),
    ]


def _seconds(out: Writer, entry: Entry) -> None:
    stages = [f"{stage} {seconds_text(spent)}" for stage, spent in entry.stages.seconds.items()]
    out.write(f"compiled in {seconds_text(entry.seconds)}: {', '.join(stages)}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

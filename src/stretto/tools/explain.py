"""`Compiled.explain()`: what was captured, fused, scheduled and built, as text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from stretto.build import Executable, Stages
from stretto.device.operator import Kernel
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram
from stretto.frontends.python import ArgumentLeaf, Fetched
from stretto.ir.ops import TensorOp
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cuda.device import find_gpu
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.plan import PlanExecutable
from stretto.schedule.scheduler import Report
from stretto.text import Writer, bytes_text, seconds_text, table
from stretto.tools.arguments import tensor_names
from stretto.tools.control import (
    NEVER,
    Runs,
    function_runs,
    kernel_runs,
    program_rows,
    recursive_functions,
    schedule_rows,
)
from stretto.tools.kernels import kernel_row, short_file
from stretto.tools.launches import (
    HOST_HEADERS,
    RESOURCE_HEADERS,
    TEXT_HEADERS,
    host_rows,
    launch_rows,
    launch_runs,
    registers_text,
    why_calls_wait,
)

if TYPE_CHECKING:
    from stretto.api import Compiled
    from stretto.entry import Entry

MOST_ROWS = 60
"""A longer table shows this many rows and says how many it leaves out."""

_MISS = "miss, built now"


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


def explain_target(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    stages: Stages,
    multiprocessors: int,
) -> str:
    """What becomes of a function on a GPU that need not be there (build.compile_for_target)."""
    out = Writer()
    target = stages.compiled[0].target if stages.compiled else "a GPU"
    out.write(f"{name}: compiled for {target}, not run")
    with out.indent():
        names = tensor_names(function, args, {})
        _write_stages(out, Subject(stages, names, sum(stages.seconds.values()), multiprocessors))
    return out.text()


@dataclass(frozen=True, slots=True)
class Subject:
    """A signature to write about. names: of the tensors of a call. multiprocessors: of the GPU that
    it was compiled for, if any. executable: None where nothing was loaded."""

    stages: Stages
    names: Sequence[str]
    seconds: float
    multiprocessors: int | None = None
    executable: Executable | None = None


def _write_entry(out: Writer, entry: Entry, compiled: Compiled) -> None:
    args, kwargs = cast("tuple[tuple[Any, ...], dict[str, Any]]", entry.keep)
    function = compiled._function  # pyright: ignore[reportPrivateUsage]
    names = tensor_names(function, args, kwargs)
    gpu = None
    if entry.stages.compiled and isinstance(entry.executable, CudaExecutable):
        gpu = find_gpu(entry.executable.machine.device).multiprocessors
    _write_stages(out, Subject(entry.stages, names, entry.seconds, gpu, entry.executable))


def _write_stages(out: Writer, subject: Subject) -> None:
    stages = subject.stages
    _inputs(out, stages, subject.names)
    if stages.device is not None:
        _summary(out, subject, stages.device)
    if stages.plan is not None:
        _launches(out, subject)
    _captured(out, stages)
    _passes(out, stages)
    if stages.device is not None:
        _kernels(out, stages.device)
        _library_calls(out, stages.device, stages.plan is not None)
        _schedule(out, stages.device)
    _seconds(out, subject)


def _launches(out: Writer, subject: Subject) -> None:
    """The launches of a program for GPUs, and what the host does between them."""
    stages = subject.stages
    assert stages.plan is not None
    rows = launch_rows(stages, subject.multiprocessors)
    title = "launches (kernels, loops and branches, waits on one unit, lines of text)"
    _section(out, title, [row.text_cells() for row in rows], TEXT_HEADERS)
    if stages.compiled:
        numbers = [row.function for row in rows]
        cells = [(n, *row.resource_cells()) for n, row in zip(numbers, rows, strict=True)]
        title = f"resources of a unit on {stages.compiled[0].target}"
        _section(out, title, cells, ("launch", *RESOURCE_HEADERS))
    cells = [row.cells() for row in host_rows(stages.plan)]
    _section(out, "what the host does between launches", cells, HOST_HEADERS)


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


def _inputs(out: Writer, stages: Stages, names: Sequence[str]) -> None:
    """`names` are those of the tensors of a call."""
    captured = stages.captured
    mutated = {mutation.input for mutation in captured.mutations}
    rows: list[tuple[str, str, str]] = []
    params = captured.program.main.params
    for number, (value, binding) in enumerate(zip(params, captured.inputs, strict=True)):
        given = isinstance(binding, ArgumentLeaf)
        name = names[binding.index] if given else binding.name
        where = "argument" if given else "object" if isinstance(binding, Fetched) else "buffer"
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


def _library_calls(out: Writer, device: DeviceProgram, on_gpu: bool) -> None:
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
    where = "between launches" if on_gpu else "inside the launch"
    _section(out, f"library calls (run by torch {where})", rows, headers)


def library_calls(device: DeviceProgram) -> list[Kernel]:
    """The kernels that call into ATen."""
    return [kernel for kernel in device.kernels if kernel.call is not None]


def _schedule(out: Writer, device: DeviceProgram) -> None:
    rows = [row.cells() for row in schedule_rows(device)]
    headers = ("schedule", "runs", "steps", "tasks by unit", "waits", "kernels")
    _section(out, "schedule", rows, headers)


def _summary(out: Writer, subject: Subject, device: DeviceProgram) -> None:
    stages, executable = subject.stages, subject.executable
    lines: list[tuple[str, str]] = [("launches per call", _launch_text(stages))]
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
    if isinstance(executable, CpuExecutable):
        lines.append(("build cache", "hit" if executable.shared.from_cache else _MISS))
    if stages.plan is not None:
        lines += _gpu_lines(subject, stages.plan)
    width = max(len(label) for label, _ in lines)
    out.write("program")
    with out.indent():
        for label, text in lines:
            out.write(f"{label.ljust(width)}  {text}")


def _launch_text(stages: Stages) -> str:
    if stages.plan is None:
        return "1"
    total = NEVER
    for runs in launch_runs(stages.plan).values():
        total = total + runs
    whole = total == Runs() and not host_rows(stages.plan)
    return f"{total}, the whole program" if whole else str(total)


def _gpu_lines(subject: Subject, plan: Plan) -> list[tuple[str, str]]:
    stages = subject.stages
    lines = [("registers", registers_text(plan))]
    reasons = why_calls_wait(stages)
    if stages.backend == "cuda-emulated":
        lines.append(("emulated", "the text of each launch is interpreted on the CPU"))
    wait = f"for the GPU: {'; '.join(reasons)}" if reasons else "for nothing: they enqueue"
    lines.append(("calls wait", wait))
    if stages.compiled:
        cached = all(compiled.from_cache for compiled in stages.compiled)
        lines.append(("build cache", "hit" if cached else _MISS))
    if isinstance(subject.executable, CudaExecutable):
        lines.append(("launched", _count(subject.executable.launches, "time")))
    if isinstance(subject.executable, PlanExecutable) and host_rows(plan):
        reads = _count(subject.executable.reads, "value")
        calls = _count(subject.executable.library_runs, "library call")
        lines.append(("host so far", f"{calls}, {reads} read from the GPU"))
    return lines


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


def _seconds(out: Writer, subject: Subject) -> None:
    spent = subject.stages.seconds.items()
    stages = ", ".join(f"{stage} {seconds_text(seconds)}" for stage, seconds in spent)
    out.write(f"compiled in {seconds_text(subject.seconds)}: {stages}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

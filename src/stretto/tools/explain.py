"""`Compiled.explain()`: what was captured, fused, scheduled and built, as text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from linecache import getline
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils import _pytree as pytree

from stretto.call.fallback import CallSegments
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram
from stretto.device.runs import NEVER, function_runs, recursive_functions
from stretto.errors import SourceLocation
from stretto.frontends.python import (
    ArgumentLeaf,
    Caller,
    Captured,
    External,
    Fetched,
    IntLeaf,
)
from stretto.ir.ops import TensorOp
from stretto.machines.machine import Description, Stages
from stretto.schedule.scheduler import Report
from stretto.text import Writer, bytes_text, counted, seconds_text, table
from stretto.tools.control import HEADERS, decided, kernel_runs, program_rows, schedule_rows
from stretto.tools.profile import kernel_row, short_file

if TYPE_CHECKING:
    from stretto.call.compiled import Compiled
    from stretto.call.entry import Entry
    from stretto.call.loaded import Loaded
    from stretto.tools.models import Model


# ---- Names of the tensors of a call, as the user wrote them.


def tensor_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Return a name for each tensor among the arguments, in the order of the flattened call: `x`,
    or `state[0]` and `batch['mask']` for one inside a container."""
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    positions = _positional_names(function, len(args))
    return [
        _argument_name(path, positions) for path, leaf in leaves if isinstance(leaf, torch.Tensor)
    ]


def _argument_name(path: tuple[Any, ...], positions: list[str]) -> str:
    kind, first, *rest = path
    name = positions[first.idx] if kind.idx == 0 else str(first.key)
    return name + pytree.keystr(tuple(rest))


def _positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return names of `count` positional arguments; those of `*rest` are `rest[0]`, ..."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{n}" for n in range(count)]
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "arg")
    rest = [f"{several}[{n}]" for n in range(count - len(plain))]
    return [*plain[:count], *rest]


MOST_ROWS = 60
"""Maximum number of rows shown of a table; it says how many more there are."""


def explain(compiled: Compiled) -> str:
    """Return a text about the compiled program of each signature that `compiled` has been
    called with.

    The same program gives the same text, except for times.
    """
    entries = compiled.signatures
    out = Writer()
    name = getattr(compiled, "__name__", None) or type(compiled._function).__name__  # pyright: ignore[reportPrivateUsage]
    eager = compiled._notices.eager_calls  # pyright: ignore[reportPrivateUsage]
    if not entries and not eager and not (compiled._fallback and compiled._fallback.calls):  # pyright: ignore[reportPrivateUsage]
        out.write(f"{name}: nothing compiled yet; call it once, or give stretto.compile its inputs")
        return out.text()
    out.write(f"{name}: {counted(len(entries), 'signature')} compiled")
    for line in eager:
        out.write(line)
    for reason in compiled._programs.refused:  # pyright: ignore[reportPrivateUsage]
        out.write(f"each size has its own program: {reason}")
    for number, entry in enumerate(entries, 1):
        out.write()
        again = f", {entry.runs_in_python} of them in Python" if entry.runs_in_python else ""
        calls = counted(entry.calls, "call") + again
        out.write(f"signature {number}: backend {entry.stages.backend}, {calls}")
        with out.indent():
            _write_entry(out, entry, compiled)
    _write_fallback(out, compiled)
    return out.text()


def _write_fallback(out: Writer, compiled: Compiled) -> None:
    """Write which statements run in Python and why, and which parts are compiled."""
    fallback = compiled._fallback  # pyright: ignore[reportPrivateUsage]
    if fallback is None or not fallback.calls:
        return
    out.write()
    out.write(f"in Python: {counted(fallback.calls, 'call')}")
    with out.indent():
        for reason in dict.fromkeys(map(str, fallback.reasons.values())):
            for line in reason.splitlines():
                out.write(line)
        if compiled._surroundings is Caller.CUT:  # pyright: ignore[reportPrivateUsage]
            _write_pieces(out, fallback.pieces)


def _write_pieces(out: Writer, pieces: CallSegments) -> None:
    """Write the statements that ran in Python, and the compiled parts, of a function and its
    callees."""
    cuts = [*pieces.cuts.values(), *pieces.plain.values()]
    cuts = [cut for cut in cuts if cut.runs]
    runs = sum(cut.runs for cut in cuts)
    out.write(f"{counted(len(cuts), 'statement')} in Python, {counted(runs, 'run')}:")
    with out.indent():
        for cut in sorted(cuts, key=lambda cut: (cut.place.file, cut.place.line)):
            reason = f": {cut.reason}" if cut.reason else ""
            out.write(f"{cut.place}: {counted(cut.runs, 'run')}{reason}")
            out.write(f"    {cut.place.source().strip()}")
    for kind, found in (("part", pieces.parts), ("segment", pieces.segments)):
        for piece in found.values():
            if not piece.signatures and not (piece._fallback and piece._fallback.calls):  # pyright: ignore[reportPrivateUsage]
                continue
            out.write(f"a {kind} of it, compiled by itself:")
            with out.indent():
                for line in piece.explain().splitlines():
                    out.write(line)


def explain_target(target: str, model: Model, captured: Captured, stages: Stages) -> str:
    """Return the text about a model compiled for a machine that need not be present."""
    out = Writer()
    out.write(f"{model.name}: compiled for {target}, not run")
    with out.indent():
        names = tensor_names(model.function, model.inputs, {})
        _write_stages(out, Subject(captured, stages, names, sum(stages.seconds.values())))
    return out.text()


def explain_loaded(loaded: Loaded) -> str:
    """Return the text about each signature of a file."""
    out = Writer()
    built = loaded.built_with
    out.write(f"{loaded.__name__}: loaded, {counted(len(loaded.signatures), 'signature')}")
    out.write(
        f"saved by stretto {built['stretto']}, torch {built['torch']}, for {built['machine']}"
    )
    for number, entry in enumerate(loaded.signatures, 1):
        out.write()
        out.write(
            f"signature {number}: backend {entry.stages.backend}, {counted(entry.calls, 'call')}"
        )
        with out.indent():
            names = loaded.names_of_tensors(number - 1)
            _write_stages(out, Subject(entry.captured, entry.stages, names, entry.seconds))
    return out.text()


@dataclass(frozen=True, slots=True)
class Subject:
    """A signature to describe. names: of a call's tensors. seconds: total time of all stages."""

    captured: Captured
    stages: Stages
    names: Sequence[str]
    seconds: float


def _write_entry(out: Writer, entry: Entry, compiled: Compiled) -> None:
    args, kwargs = cast("tuple[tuple[Any, ...], dict[str, Any]]", entry.example_arguments)
    function = compiled._function  # pyright: ignore[reportPrivateUsage]
    names = tensor_names(function, args, kwargs)
    _write_stages(out, Subject(entry.captured, entry.stages, names, entry.seconds))


def _write_stages(out: Writer, subject: Subject) -> None:
    stages = subject.stages
    found = stages.machine.describe(stages)
    _inputs(out, subject)
    _sizes(out, subject)
    if stages.device is not None:
        _summary(out, stages, stages.device, found)
    for described in found.tables:
        _section(out, described.title, described.rows, described.headers)
    _captured(out, subject.captured)
    _passes(out, stages)
    if stages.device is not None:
        _kernels(out, stages.device)
        _library_calls(out, stages.device, found.library_calls)
        _schedule(out, stages.device)
        wait = stages.machine.costs.wait_seconds
        rows = [row.cells() for row in decided(stages.device, wait, found.hosted)]
        _section(out, "control: where each loop, branch and call is decided", rows, HEADERS)
    _section(out, "remarks: what was declined, and why", remark_rows(stages), REMARK_HEADERS)
    _seconds(out, subject)


def _section(
    out: Writer, title: str, rows: Iterable[Sequence[object]], headers: Sequence[str]
) -> None:
    """Write a titled table, cut after `MOST_ROWS`; nothing if it has no rows."""
    everything = [tuple(row) for row in rows]
    if not everything:
        return
    out.write(title)
    with out.indent():
        out.write(table(everything[:MOST_ROWS], headers).rstrip("\n"))
        if len(everything) > MOST_ROWS:
            out.write(f"... and {len(everything) - MOST_ROWS} more rows")


def _inputs(out: Writer, subject: Subject) -> None:
    captured, names = subject.captured, subject.names
    mutated = {mutation.input for mutation in captured.mutations}
    rows: list[tuple[str, str, str]] = []
    params = captured.program.main.params
    for number, (value, binding) in enumerate(zip(params, captured.inputs, strict=True)):
        given = isinstance(binding, ArgumentLeaf)
        name = names[binding.index] if given else binding.name
        where = _ORIGINS[type(binding)]
        if number in mutated:
            where += ", written back after each call"
        rows.append((name, str(value.type), where))
    _section(out, "inputs", rows, ("name", "type", "from"))


_ORIGINS: dict[type, str] = {
    ArgumentLeaf: "argument",
    IntLeaf: "an int among the arguments, as rows",
    Fetched: "object",
    External: "buffer",
}


def _sizes(out: Writer, subject: Subject) -> None:
    """Write the sizes that are symbols, and the conditions on sizes under which this program is
    valid."""
    sizes = subject.captured.sizes
    if sizes is None:
        return
    lines = [symbol.declaration for symbol in sizes.symbols]
    rows = [(text, "", "") for text in lines]
    for condition in sizes.conditions:
        rows.append((condition.text, *_source_line(condition.location)))
    for condition in sizes.branches:
        text = f"either, a branch decides: {condition.text}"
        rows.append((text, *_source_line(condition.location)))
    for source, fixed in sizes.fixed.items():
        what = f"dim {source.dim} of {_name(subject, source.number)}"
        if source.dim is None:
            what = f"int {source.number} among the arguments"
        rows.append((f"{what} is {fixed.value}", *_source_line(fixed.location)))
    _section(out, "sizes: this program is for calls with", rows, ("condition", "line", "source"))


def _name(subject: Subject, number: int) -> str:
    return subject.names[number] if number < len(subject.names) else f"tensor {number}"


def _source_line(location: SourceLocation | None) -> tuple[str, str]:
    if location is None:
        return "", ""
    return short_file(f"{location.file}:{location.line}"), location.source().strip()


def _captured(out: Writer, captured: Captured) -> None:
    rows = program_rows(captured.program)
    headers = ("captured", "trips", "operators", "line", "source")
    _section(out, "control flow, as captured", (row.cells() for row in rows), headers)
    if captured.notes:
        out.write("notes of the capture")
        with out.indent():
            for note in captured.notes:
                out.write(short_file(note))


def _passes(out: Writer, stages: Stages) -> None:
    """Write one line about the number of operators before and after the passes."""
    before, after = (
        sum(isinstance(op, TensorOp) for op in program.walk())
        for program in (stages.captured, stages.program)
    )
    functions = ", ".join(stages.program.functions)
    out.write(f"passes: {before} tensor operators became {after}; functions: {functions}")


def _kernels(out: Writer, device: DeviceProgram) -> None:
    runs = kernel_runs(device)
    rows = [kernel_row(k, runs[k.name]) for k in device.kernels if k.call is None]
    headers = ("kernel", "operators", "template", "tile", "tasks", "runs", "estimate", "line")
    title = "kernels (tasks each, how often they run in a call, estimated time of a task)"
    _section(out, title, rows, headers)


def _library_calls(out: Writer, device: DeviceProgram, where: str) -> None:
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
    _section(out, f"library calls (run by torch {where})", rows, headers)


def library_calls(device: DeviceProgram) -> list[Kernel]:
    """Return the kernels that call into ATen."""
    return [kernel for kernel in device.kernels if kernel.call is not None]


def _schedule(out: Writer, device: DeviceProgram) -> None:
    rows = [row.cells() for row in schedule_rows(device)]
    headers = ("schedule", "runs", "steps", "tasks by unit", "waits", "kernels")
    _section(out, "schedule", rows, headers)


def _summary(out: Writer, stages: Stages, device: DeviceProgram, found: Description) -> None:
    lines: list[tuple[str, str]] = [("launches per call", found.launches)]
    if stages.report is not None:
        lines += _report_lines(stages.report)
    if stages.proof is not None and stages.proof.symbols:
        lines.append(("verified", str(stages.proof)))
    lines.insert(2, ("kernels", _task_text(device)))
    if device.small is not None:
        where = f"{device.small.work} < {device.small.limit} ps (an estimate)"
        lines.append(("small calls", f"on the caller's thread alone, where {where}"))
    runs = function_runs(device.tree)
    for name in sorted(recursive_functions(device.tree)):
        size = bytes_text(device.frame(name).nbytes)
        lines.append(
            ("recursion frame", f"{name}: {size} per activation, activations {runs[name]}")
        )
    for name, frame in device.frames:
        if frame.slots:
            slots = counted(len(frame.slots), "slot")
            lines.append(("sized arena", f"{name}: {frame.end} bytes in {slots}"))
    _, interface = stages.runnable()
    packed = sum(packing.buffer.nbytes for packing in interface.packings)
    if packed:
        count = counted(len(interface.packings), "constant")
        lines.append(("packed weights", f"{count}, {bytes_text(packed)}"))
    lines += found.lines
    width = max(len(label) for label, _ in lines)
    out.write("program")
    with out.indent():
        for label, text in lines:
            out.write(f"{label.ljust(width)}  {text}")


def _task_text(device: DeviceProgram) -> str:
    """Return the number of kernels, and of tasks in one call."""
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
    arena = f"{frames} ({separate} without sharing)"
    if report.sized:
        arena += f", and by sizes {report.sized_bytes} B in {report.slots} slots"
        arena += f" for {report.sized} buffers"
    return [
        ("units", f"{report.units} ({chosen if report.units == 1 else f'{chosen}, {alone}'})"),
        ("leaves and steps", f"{report.leaves} leaves, {report.waves} steps"),
        ("policy", report.policy),
        ("waits", f"{report.waits}, for {report.signals} signals and the ends of leaves"),
        ("arena", arena),
    ]


def remark_rows(stages: Stages) -> list[tuple[str, ...]]:
    """Return what each stage declined, the reason, and the user's line. Equal remarks, as from
    several rounds of a pass, are one row."""
    rows: list[tuple[str, ...]] = []
    for remark, _ in stages.remarks:
        file, _, line = remark.place.rpartition(":")
        source = getline(file, int(line)).strip() if file else ""
        rows.append((remark.stage, remark.subject, remark.reason, short_file(remark.place), source))
    return rows


REMARK_HEADERS = ("stage", "declined", "because", "line", "source")


def remarks_text(stages: Stages) -> str:
    """Return all remarks as a table."""
    return table(remark_rows(stages), REMARK_HEADERS)


def _seconds(out: Writer, subject: Subject) -> None:
    spent = subject.stages.seconds.items()
    stages = ", ".join(f"{stage} {seconds_text(seconds)}" for stage, seconds in spent)
    out.write(f"compiled in {seconds_text(subject.seconds)}: {stages}")

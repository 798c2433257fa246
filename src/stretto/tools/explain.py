"""Explanations of compiled programs: what was captured, fused, scheduled and built, in sections.

The same program gives the same text, except for times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from linecache import getline
from typing import TYPE_CHECKING

import torch
from torch.utils import _pytree as pytree

from stretto.call.restore import TensorForm
from stretto.call.signatures import argument_name, parameter_names
from stretto.device.program import DeviceProgram
from stretto.device.runs import NEVER, function_runs, recursive_functions
from stretto.frontends.python import (
    ArgumentLeaf,
    Captured,
    External,
    Fetched,
    IntLeaf,
)
from stretto.ir.ops import TensorOp
from stretto.machines.machine import Description, Stages
from stretto.schedule.scheduler import Report
from stretto.text import TextSection, bytes_text, counted, explanation, seconds_text, table
from stretto.tools.control_rows import (
    HEADERS,
    decided,
    kernel_runs,
    program_rows,
    schedule_rows,
    source_cells,
)
from stretto.tools.profile import kernel_row, short_file

if TYPE_CHECKING:
    from stretto.call.entry import Entry
    from stretto.tools.models import Model


def tensor_names(arguments: object, parameters: Sequence[str]) -> list[str]:
    """Return a name for each tensor of a call `(args, kwargs)`, in the order of the flattened call:
    `x`, or `state[0]` and `batch['mask']` for one inside a container. parameters: as from
    `parameter_names`."""
    leaves, _ = pytree.tree_flatten_with_path(arguments)
    tensors = [path for path, leaf in leaves if isinstance(leaf, torch.Tensor | TensorForm)]
    return [argument_name(path, parameters) for path in tensors]


def signature_sections(entries: Iterable[Entry], parameters: Sequence[str]) -> list[TextSection]:
    """Return a section about the program of each signature. parameters: names of the function's
    positional parameters."""
    found: list[TextSection] = []
    for number, entry in enumerate(entries, 1):
        again = f", {entry.runs_in_python} of them in Python" if entry.runs_in_python else ""
        calls = counted(entry.calls, "call") + again
        title = f"signature {number}: backend {entry.stages.backend}, {calls}"
        names = tensor_names(entry.example_arguments, parameters)
        parts = _program(entry.captured, entry.stages, names, entry.seconds)
        found.append(TextSection(title, parts=parts))
    return found


def explain_target(target: str, model: Model, captured: Captured, stages: Stages) -> str:
    """Return the text about a model compiled for a machine that need not be present."""
    names = tensor_names((model.inputs, {}), parameter_names(model.function))
    parts = _program(captured, stages, names, sum(stages.seconds.values()))
    return explanation([TextSection(f"{model.name}: compiled for {target}, not run", parts=parts)])


def _program(
    captured: Captured, stages: Stages, names: Sequence[str], seconds: float
) -> list[str | TextSection]:
    """Describe a program. names: of a call's tensors. seconds: total time of all stages."""
    device, found = stages.device, stages.machine.describe(stages)
    parts: list[str | TextSection] = [_inputs(captured, names), _sizes(captured, names)]
    if device is not None:
        parts.append(TextSection("program", _facts(stages, device, found)))
    rows = [row.cells() for row in program_rows(captured.program)]
    headers = ("captured", "trips", "operators", "line", "source")
    parts += [
        *found.sections,
        TextSection("control flow, as captured", rows, headers),
        TextSection("notes of the capture", parts=[short_file(note) for note in captured.notes]),
        _passes(stages),
    ]
    if device is not None:
        parts += _scheduled(device, found, stages.machine.costs.wait_seconds)
    spent = ", ".join(f"{stage} {seconds_text(time)}" for stage, time in stages.seconds.items())
    remarks = TextSection(
        "remarks: what was declined, and why", remark_rows(stages), REMARK_HEADERS
    )
    return [*parts, remarks, f"compiled in {seconds_text(seconds)}: {spent}"]


def _inputs(captured: Captured, names: Sequence[str]) -> TextSection:
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
    return TextSection("inputs", rows, ("name", "type", "from"))


_ORIGINS: dict[type, str] = {
    ArgumentLeaf: "argument",
    IntLeaf: "an int among the arguments, as rows",
    Fetched: "object",
    External: "buffer",
}


def _sizes(captured: Captured, names: Sequence[str]) -> TextSection:
    """List the sizes that are symbols, and the conditions on sizes under which this program is
    valid."""
    rows: list[tuple[str, str, str]] = []
    if (sizes := captured.sizes) is not None:
        rows += [(symbol.declaration, "", "") for symbol in sizes.symbols]
        rows += [(one.text, *source_cells(one.location)) for one in sizes.conditions]
        for condition in sizes.branches:
            text = f"either, a branch decides: {condition.text}"
            rows.append((text, *source_cells(condition.location)))
        for source, fixed in sizes.fixed.items():
            known = source.number < len(names)
            name = names[source.number] if known else f"tensor {source.number}"
            what = f"dim {source.dim} of {name}"
            if source.dim is None:
                what = f"int {source.number} among the arguments"
            rows.append((f"{what} is {fixed.value}", *source_cells(fixed.location)))
    title = "sizes: this program is for calls with"
    return TextSection(title, rows, ("condition", "line", "source"))


def _passes(stages: Stages) -> str:
    """Return one line about the number of operators before and after the passes."""
    before, after = (
        sum(isinstance(op, TensorOp) for op in program.walk())
        for program in (stages.captured, stages.program)
    )
    functions = ", ".join(stages.program.functions)
    return f"passes: {before} tensor operators became {after}; functions: {functions}"


def _scheduled(
    device: DeviceProgram, found: Description, wait_seconds: float
) -> Iterator[str | TextSection]:
    """Yield what the kernels are, in which order units run them, and who decides."""
    runs = kernel_runs(device)
    rows = [kernel_row(k, runs[k.name]) for k in device.kernels if k.call is None]
    headers = ("kernel", "operators", "template", "tile", "tasks", "runs", "estimate", "line")
    title = "kernels (tasks each, how often they run in a call, estimated time of a task)"
    yield TextSection(title, rows, headers)
    rows = [
        (k.name, k.call.target, k.call.reason, str(runs[k.name]), short_file(k.call.source))
        for k in device.kernels
        if k.call is not None
    ]
    headers = ("kernel", "operator", "reason", "runs", "line")
    title = f"library calls (run by torch {found.library_calls})"
    yield TextSection(title, rows, headers) if rows else "library calls: none"
    rows = [row.cells() for row in schedule_rows(device)]
    headers = ("schedule", "runs", "steps", "tasks by unit", "waits", "kernels")
    yield TextSection("schedule", rows, headers)
    rows = decided(device, wait_seconds, found.hosted)
    yield TextSection("control: where each loop, branch and call is decided", rows, HEADERS)


def _facts(stages: Stages, device: DeviceProgram, found: Description) -> list[tuple[str, str]]:
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
    return [*lines, *found.lines]


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

"""What the part `graphs` adds to the summary: where inputs lie, the memory of shapes, a table."""

from __future__ import annotations

from ..record import OWN_SYSTEM
from . import shapes
from .graphs import COPIED, MOVED, PROGRAMS
from .results import PartRecord, Row
from .shortened import summary_of

STAY = PROGRAMS[MOVED]
INPUTS = {"stay": STAY, "move": MOVED, "are copied": COPIED}
COLUMNS = {
    "eager": "eager",
    "eager-graph": "eager in a CUDA graph",
    "compile-reduce-overhead": "torch.compile, reduce-overhead",
    "compile-max-autotune": "max-autotune",
    OWN_SYSTEM: "stretto, one persistent kernel",
    "stretto-streams": "launches on streams",
    "stretto-parallel": "captured, launches by cost",
    STAY: "captured, one per kernel",
    "stretto-library": "captured, library calls",
}
"""Of the table: systems and what stands above them."""


def graph_lines(record: PartRecord) -> list[str]:
    """For the terminal: calls with inputs that stay and that move, then the memory of shapes."""
    models = list(dict.fromkeys(row.name.partition(" ")[0] for row in record.rows))
    return [
        line
        for model in models
        for line in (*_input_lines(record, model), *_memory_lines(record, model))
    ]


def _input_lines(record: PartRecord, model: str) -> list[str]:
    rows = {how: record.row(f"{model} {system}") for how, system in INPUTS.items()}
    return [
        f"  {model:<10} inputs that {how}: {row.values['device']['median']:.4f} ms, {_replays(row)}"
        for how, row in rows.items()
        if row is not None and row.status == "ok" and "device" in row.values
    ]


def _replays(row: Row) -> str:
    values = row.values
    if values.get("as_they_were") is None:
        return "replays were not counted"
    found = f"{100 * values['as_they_were']:.0f} % of replays with all arguments as they were, "
    return f"{found}{values['patched_per_call']:.1f} launches patched a call"


def _memory_lines(record: PartRecord, model: str) -> list[str]:
    lines: list[str] = []
    for system in shapes.SYSTEMS:
        rows = [record.row(shapes.row_name(model, system, count)) for count in shapes.COUNTS]
        found = [row.values for row in rows if row and row.status == "ok"]
        if not found:
            continue
        kinds = {"driver": "driver_bytes", "reserved": "reserved_bytes"}
        kinds["allocated"] = "allocated_bytes"
        counts = ", ".join(str(values["shapes"]) for values in found)
        sizes = [
            f"{kind} {', '.join(f'{values[key] / 2**20:.1f}' for values in found)} MiB"
            for kind, key in kinds.items()
            if all(key in values for values in found)
        ]
        graphs = ", ".join(str(values["graphs"]) for values in found)
        sized = "; ".join(sizes) or "memory was not measured"
        lines.append(f"  {model:<10} {counts} shapes, {system}: {sized}; {graphs} graphs")
    return lines


def graph_table(record: PartRecord) -> str:
    """A table of milliseconds for the README, as Markdown."""
    about = record.about
    lines = [
        f"{about['device']}, float32, batch 1, medians in ms; torch {about['versions']['torch']}.",
        "",
        f"| model | {' | '.join(COLUMNS.values())} |",
        f"|{'---|' * (1 + len(COLUMNS))}",
    ]
    models = dict.fromkeys(row.name.partition(" ")[0] for row in record.rows)
    for model in models:
        times = [_milliseconds(record.row(f"{model} {system}")) for system in COLUMNS]
        if any(times):
            lines.append(f"| {summary_of(model)} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


def _milliseconds(row: Row | None) -> str:
    """Empty for a system that has no time."""
    if row is None or row.status != "ok" or "device" not in row.values:
        return ""
    return f"{row.values['device']['median']:.3f}"

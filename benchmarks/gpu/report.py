"""Tables and pictures from the rows of leases: python3 -m benchmarks.gpu.report ROWS.jsonl.

Files are read in the order given; a later row of the same stage and name replaces an earlier one,
so the second command of a lease follows the first. Prints Markdown, for a page of results;
`--pictures DIR` also draws, which needs matplotlib. What was not measured has no figure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..models.entry import Phase
from ..record import OWN_SYSTEM
from . import graphs, shapes, smoke
from .constants import proposals
from .results import Row, Rows, count, read_rows
from .saved import entry_of

STAGES = (
    "facts",
    "smoke",
    "sanitizer",
    "correctness",
    "ceilings",
    "peers",
    "skipnet",
    "graphs",
    "tuned",
    "shapes",
    "profile",
)
TIMED = ("peers", "skipnet", "graphs", "tuned")
"""Stages whose rows are a model and a system."""
DRY = "DRY RUN: the figures mean nothing."
STAY = graphs.PROGRAMS[graphs.MOVED]
INPUTS = {"stay": STAY, "move": graphs.MOVED, "are copied": graphs.COPIED}
COLUMNS = {
    "eager": "eager",
    "eager-graph": "eager in a CUDA graph",
    "compile-max-autotune": "torch.compile, max-autotune",
    OWN_SYSTEM: "stretto, one persistent kernel",
    "stretto-parallel": "captured, launches by cost",
    STAY: "captured, one per kernel",
    "stretto-library": "captured, library calls",
}
"""Systems in the table of graphs, and their headings."""

Times = dict[str, dict[str, Row]]


def report(rows: Rows) -> str:
    parts = (
        _head(rows),
        _checks(rows),
        _simulated(rows),
        _peers(rows),
        _graphs(rows),
        _constants(rows),
        _ceilings(rows),
        _profile(rows),
    )
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n"


def _head(rows: Rows) -> Iterator[str]:
    if rows.dry_run:
        yield f"**{DRY}**"
        yield ""
    row = rows.row("facts", smoke.GPU)
    if row is None or row.status != "ok":
        yield "It is not known where these figures are from: the row of facts is missing."
        return
    values = row.values
    named = [f"{n} {v}" for n, v in values["versions"].items() if n in ("torch", "triton", "jax")]
    yield f"{values['machine']}; {', '.join(named)}; {values['date']}, commit {values['commit']}."
    yield "Times are medians, in float32 at batch 1; the systems of a model took turns."


# ---- checks ------------------------------------------------------------------------------------


def _checks(rows: Rows) -> Iterator[str]:
    """Yield the number of rows per status of each stage, and all rows that failed or are wrong."""
    yield from _table_head("stage", "rows", "seconds in rows")
    for stage in STAGES:
        found = rows.of(stage)
        if found:
            counts = ", ".join(f"{n} {status}" for status, n in count(found).items())
            yield _line(stage, counts, f"{sum(row.seconds for row in found):.0f}")
    bad = [row for row in rows.rows if row.status in ("failed", "wrong")]
    if bad:
        yield ""
    for row in bad:
        yield f"- {row.status.upper()} {row.stage}, {row.name}: {row.reason[:300]}"


# ---- times -------------------------------------------------------------------------------------


def times(rows: Rows, stages: Sequence[str] = TIMED) -> Times:
    """Return, by model and system, the rows that have a time and passed the accuracy gate."""
    found: Times = {}
    for row in rows.rows:
        if row.stage in stages and row.status == "ok" and "device" in row.values:
            model, _, system = row.name.partition(" ")
            found.setdefault(model, {})[system] = row
    return found


def median_us(row: Row) -> float:
    measured = row.measured_us
    assert measured is not None
    return measured


def is_own(system: str) -> bool:
    """Return True for a system that runs stretto's programs."""
    return system == OWN_SYSTEM or system.startswith(f"{OWN_SYSTEM}-")


def fastest_peer(own: Mapping[str, Row]) -> str | None:
    peers = {system: median_us(row) for system, row in own.items() if not is_own(system)}
    return min(peers, key=peers.__getitem__) if peers else None


def _simulated(rows: Rows) -> Iterator[str]:
    """Yield the measured time of each program of stretto, beside the simulator's earlier
    prediction."""
    lines = [
        _line(
            model,
            system,
            f"{median_us(row):.1f}",
            f"{row.simulated_us:.1f}",
            f"{median_us(row) / row.simulated_us:.2f}",
        )
        for model, own in times(rows).items()
        for system, row in own.items()
        if row.simulated_us is not None
    ]
    if lines:
        yield from _table_head("model", "system", "measured, us", "simulated, us", "ratio")
        yield from lines


def _peers(rows: Rows) -> Iterator[str]:
    found = times(rows, ("peers", "skipnet"))
    if not found:
        return
    yield from _table_head(
        "model",
        "stretto, us",
        "in a CUDA graph",
        "fastest peer",
        "stretto over it",
        "over eager",
        "floor, read again",
        "launches",
    )
    for model, own in found.items():
        if OWN_SYSTEM not in own:
            continue
        time, peer = median_us(own[OWN_SYSTEM]), fastest_peer(own)
        graph = own.get("stretto-graph")
        floors = floor_us(rows, model)
        yield _line(
            entry_of(model).summary,
            f"{time:.1f}",
            f"{median_us(graph):.1f}" if graph else "",
            f"{median_us(own[peer]):.1f} {peer}" if peer else "none",
            f"{median_us(own[peer]) / time:.2f}x" if peer else "",
            f"{median_us(own['eager']) / time:.2f}x" if "eager" in own else "",
            ", ".join(f"{value:.1f}" for value in floors) or "unknown",
            own[OWN_SYSTEM].values.get("launches_per_call", ""),
        )


def floor_us(rows: Rows, model: str) -> list[float]:
    """Return the least times of a model at the measured rates: with every weight read once from
    memory, and with weights read from L2 as often as its steps need them. Empty if rates are
    missing."""
    flops = rows.value("ceilings", "fp32 matmul")
    names = ("copy bandwidth", "read bandwidth, L2")
    memory, near = (rows.value("ceilings", name) for name in names)
    if flops is None or memory is None or near is None:
        return []
    entry = entry_of(model)
    phases = entry.work(entry.presets["small" if rows.dry_run else "full"])
    return [_floor(phases, flops, memory, once=True), _floor(phases, flops, near, once=False)]


def _floor(phases: tuple[Phase, ...], flops: float, bandwidth: float, once: bool) -> float:
    return 1e6 * sum(
        max(phase.flops / flops, (phase.resident if once else phase.bytes) / bandwidth)
        for phase in phases
    )


# ---- graphs ------------------------------------------------------------------------------------


def _graphs(rows: Rows) -> Iterator[str]:
    found = times(rows, ("graphs", "tuned"))
    if found:
        yield "Microseconds of models with parallel branches:"
        yield ""
        yield from _table_head("model", *COLUMNS.values())
    for model, own in found.items():
        cells = [f"{median_us(own[s]):.1f}" if s in own else "" for s in COLUMNS]
        yield _line(entry_of(model).summary, *cells)
    notes = [line for model, own in found.items() for line in _inputs(model, own)]
    notes += [line for model in shapes.MODELS for line in _memory(rows, model)]
    if notes:
        yield ""
        yield from notes


def _inputs(model: str, own: Mapping[str, Row]) -> Iterator[str]:
    for how, system in INPUTS.items():
        if system in own:
            values = own[system].values
            part, patched = values.get("as_they_were"), values.get("patched_per_call")
            counted = "replays were not counted"
            if part is not None:
                counted = f"{100 * part:.0f} % of replays with all arguments as they were, "
                counted += f"{patched:.1f} launches patched a call"
            yield f"- {model}, inputs that {how}: {median_us(own[system]):.1f} us, {counted}"


def _memory(rows: Rows, model: str) -> Iterator[str]:
    for system in shapes.SYSTEMS:
        names = [shapes.row_name(model, system, n) for n in shapes.COUNTS]
        kept = [rows.row("shapes", name) for name in names]
        found = [row.values for row in kept if row is not None and row.status == "ok"]
        if not found:
            continue
        sizes = [
            f"{kind} {', '.join(f'{values[key] / 2**20:.1f}' for values in found)} MiB"
            for kind in ("driver", "reserved", "allocated")
            if all((key := f"{kind}_bytes") in values for values in found)
        ]
        counts, made = (", ".join(str(v[key]) for v in found) for key in ("shapes", "graphs"))
        sized = "; ".join(sizes) or "memory was not measured"
        yield f"- {model}, {counts} shapes, {system}: {sized}; {made} graphs"


# ---- ceilings ----------------------------------------------------------------------------------


def _constants(rows: Rows) -> Iterator[str]:
    """Yield the constants of the cost model beside their measured values."""
    if not rows.of("ceilings"):
        return
    yield from _table_head("constant", "in the source", "measured", "ratio", "by")
    for one in proposals(rows):
        measured, ratio = "not measured", ""
        if one.measured is not None:
            measured, ratio = f"{one.measured:.2e}", f"{one.measured / one.now:.2f}"
        yield _line(f"`{one.constant.name}`", f"{one.now:.2e}", measured, ratio, one.constant.basis)


def _ceilings(rows: Rows) -> Iterator[str]:
    found = [row for row in rows.of("ceilings") if row.status == "ok" and "median" in row.values]
    if not found:
        return
    yield from _table_head("ceiling", "median", "quartiles")
    for row in found:
        middle, low, high = (
            quantity(row.values[key], row.values["unit"]) for key in ("median", "q1", "q3")
        )
        yield _line(row.name, middle, f"{low} to {high}")


def quantity(value: float, unit: str) -> str:
    """Format a value with a metric prefix: 4.31 TB/s, 780 ns."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    for factor, prefix in ((1e-3, "m"), (1e-6, "u"), (1e-9, "n")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# ---- profile -----------------------------------------------------------------------------------


def _profile(rows: Rows) -> Iterator[str]:
    for row in rows.of("profile"):
        if row.status != "ok":
            continue
        if "waiting_part" in row.values:
            values = row.values
            yield (
                f"- {row.name}: {values['span_us']:.1f} us, {values['waits_per_unit']:.0f} waits a "
                f"unit of {quantity(values['wait']['median'], 's')} (median), which are "
                f"{100 * values['waiting_part']['median']:.0f} % of its time"
            )
        else:
            counted = {n: v for n, v in row.values.items() if isinstance(v, dict)}
            shown = ", ".join(f"{n} {_counter(v)}" for n, v in counted.items())
            yield f"- {row.name}: {shown}"


def _counter(value: Any) -> str:
    return f"{value['value']:g} {value['unit']}".strip()


# ---- Markdown ----------------------------------------------------------------------------------


def _table_head(*names: str) -> Iterator[str]:
    yield _line(*names)
    yield f"|{'---|' * len(names)}"


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu.report", description="Tables and pictures of leases."
    )
    parser.add_argument("rows", type=Path, nargs="+", help="files of rows, in their order")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw pictures there")
    options = parser.parse_args(arguments)
    for path in options.rows:
        if not path.is_file():
            parser.error(f"{path} is not a file")
    rows = read_rows(options.rows)
    print(report(rows), end="")
    if options.pictures is not None:
        from . import pictures

        pictures.draw(rows, options.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Results as text: a short table for the terminal, a section for the README, one file to keep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ..record import OWN_SYSTEM
from .graph_summary import graph_lines, graph_table
from .results import PartRecord, Row, count, read_part
from .shortened import short_form, summary_of

PARTS = ("correctness", "ceilings", "models", "graphs", "traces")
MARKS = {
    "nasrnn": 2.0,
    "rae": 4.0,
    "lstm": 1.0,
    "seq2seq": 1.3,
    "attention": 1.2,
    "blockdrop": 1.3,
    "skipnet": 1.0,
}
"""What stretto should reach, times faster than the fastest peer."""
SHOWN_CEILINGS = (
    "copy bandwidth",
    "read bandwidth, L2",
    "bf16 matmul",
    "fp32 matmul",
    "wait between two units",
    "wave over all units",
    "launch of an empty program, device",
    "launch of an empty program, host",
    "call of a compiled function, host",
    "kernel boundary in a CUDA graph",
    "WHILE node of a CUDA graph, one kernel",
    "iteration of a loop, one unit",
    "iteration of a loop, all units",
)

Times = dict[str, dict[str, float]]


def times(record: PartRecord) -> Times:
    """Median milliseconds of a call by model and system, of those that passed the gate."""
    found: Times = {}
    for row in record.rows:
        model, _, system = row.name.partition(" ")
        timing = row.values.get("device") if row.status == "ok" else None
        if timing is not None:
            found.setdefault(model, {})[system] = timing["median"]
    return found


def systems_of(found: Times) -> list[str]:
    return list(dict.fromkeys(system for own in found.values() for system in own))


def fastest_peer(own: Mapping[str, float]) -> str | None:
    peers = {system: time for system, time in own.items() if not is_own(system)}
    return min(peers, key=peers.__getitem__) if peers else None


def is_own(system: str) -> bool:
    """Is it one of the ways to run stretto's programs?"""
    return system == OWN_SYSTEM or system.startswith(f"{OWN_SYSTEM}-")


def table(folder: Path) -> str:
    """All parts, compactly; what is not ok with its reason."""
    lines: list[str] = []
    for part in PARTS:
        record = read_part(folder, part)
        if record is None:
            lines.append(f"== {part}: no results")
            continue
        counts = ", ".join(f"{n} {status}" for status, n in count(record.rows).items())
        note = " DRY RUN: the figures mean nothing" if record.dry_run else ""
        end = "" if record.complete else ", not complete"
        lines.append(f"== {part}: {counts or 'nothing'} ({record.seconds:.0f} s{end}){note}")
        if part == "ceilings":
            lines += ceiling_lines(record)
        if part in ("models", "graphs"):
            lines += model_lines(record)
        if part == "graphs":
            lines += graph_lines(record)
        lines += [
            f"  {row.status.upper()} {row.name}: {row.reason[:220]}"
            for row in record.rows
            if row.status in ("wrong", "failed")
        ]
    return "\n".join(lines)


def ceiling_lines(record: PartRecord) -> list[str]:
    lines: list[str] = []
    best = [row for row in record.rows if row.name.startswith("gemv") and row.status == "ok"]
    shown = [record.row(name) for name in SHOWN_CEILINGS]
    for kind in ("gemv fp32 memory", "gemv bf16 memory", "gemv fp32 L2"):
        of_kind = [row for row in best if row.name.startswith(kind)]
        if of_kind:
            shown.append(max(of_kind, key=lambda row: row.values["median"]))
    for row in shown:
        if row is None:
            continue
        if row.status != "ok":
            lines.append(f"  {row.name}: {row.status}")
            continue
        unit = row.values["unit"]
        spread = f"{quantity(row.values['q1'], unit)} .. {quantity(row.values['q3'], unit)}"
        lines.append(f"  {row.name}: {quantity(row.values['median'], unit)} ({spread})")
    return lines


def model_lines(record: PartRecord) -> list[str]:
    lines = ["  model      system                    ms  +-q    host  lat.  comp.s  calls  over"]
    if any(row.values.get("in_turns") is False for row in record.rows):
        lines.append(
            "  one system after the other, not in turns: one process at a time has the GPU"
        )
    for model, own in times(record).items():
        floor = record.row(f"{model} floor")
        if floor is not None and floor.status == "ok":
            values = ", ".join(f"{key} {value:.4f}" for key, value in floor.values.items())
            lines.append(f"  {model:<10} (floor: {values})")
        for system in own:
            row = record.row(f"{model} {system}")
            assert row is not None
            lines.append(f"  {model:<10} {_model_line(system, row, own.get(OWN_SYSTEM))}")
        peer, mark = fastest_peer(own), MARKS.get(model)
        best = min(filter(is_own, own), key=own.__getitem__, default=None)
        if peer is not None and best is not None:
            ratio = own[peer] / own[best]
            aim = f", aim {mark}x: {'reached' if ratio >= mark else 'MISSED'}" if mark else ""
            by = f" ({best})" if best != OWN_SYSTEM else ""
            lines.append(f"  {model:<10} fastest peer {peer}: {ratio:.2f}x{aim}{by}")
        skipped = record.row(f"{model} compile")
        if short_form(model) is not None and skipped is not None and skipped.status == "skipped":
            lines.append(f"  {model:<10} torch.compile: {skipped.reason}")
    return lines


def _model_line(system: str, row: Row, own: float | None) -> str:
    values = row.values
    device, host, latency = values["device"], values["host"], values["latency"]
    half = (device["q3"] - device["q1"]) / 2
    over = f"{device['median'] / own:5.2f}" if own else ""
    launched = values.get("launches_per_call", "")
    cold = values.get("compile_cold_s", values["compile_s"])
    return (
        f"{system:<23}{device['median']:8.3f}{half:6.3f}{host['median']:7.3f}"
        f"{latency['median']:7.3f}{cold:7.1f}{launched!s:>6} {over}"
    )


def quantity(value: float, unit: str) -> str:
    """In steps of a thousand: 4.31 TB/s, 780 ns."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    for factor, prefix in ((1e-3, "m"), (1e-6, "u"), (1e-9, "n")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# ---- to keep ---------------------------------------------------------------------------------


def section(folder: Path) -> str:
    """A section of the README from results of a GPU; empty where there are none."""
    models, graphs = (read_part(folder, part) for part in ("models", "graphs"))
    tables = [
        table(record)
        for record, table in ((models, _model_table), (graphs, graph_table))
        if record is not None and not record.dry_run
    ]
    return "\n".join(tables)


def _model_table(models: PartRecord) -> str:
    """The table of the part `models`, as Markdown."""
    found = times(models)
    about = models.about
    versions = about["versions"]
    named = ", ".join(f"{n} {versions[n]}" for n in ("torch", "triton", "jax") if n in versions)
    lines = [
        f"{about['device']}, float32, batch 1, medians; {named}; systems in turns in one run.",
        "",
        "| model | stretto | in a CUDA graph | fastest peer | stretto over it | over eager "
        "| floor | launches |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, own in found.items():
        peer, row = fastest_peer(own), models.row(f"{model} {OWN_SYSTEM}")
        if OWN_SYSTEM not in own or row is None:
            continue
        graph = f"{own['stretto-graph']:.3f} ms" if "stretto-graph" in own else ""
        time = own[OWN_SYSTEM]
        floor = models.value(f"{model} floor", "floor_ms")
        cells = [
            summary_of(model),
            f"{time:.3f} ms",
            graph,
            f"{own[peer]:.3f} ms {peer}" if peer else "none",
            f"{own[peer] / time:.1f}x" if peer else "",
            f"{own['eager'] / time:.1f}x" if "eager" in own else "",
            f"{floor:.3f} ms" if floor is not None else "unknown",
            str(row.values.get("launches_per_call", "")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def keep(folder: Path, path: Path) -> None:
    """All parts in one file, for benchmarks/results. Raises ValueError for those of a dry run."""
    records = [record for part in PARTS if (record := read_part(folder, part)) is not None]
    if not records or any(record.dry_run for record in records):
        raise ValueError(f"{folder} has no results of a GPU")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({r.part: asdict(r) for r in records}, indent=1) + "\n")

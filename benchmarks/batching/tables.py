"""Records as tables of benchmarks/results/README.md.

A table is in a page between two marks, and `write_docs` replaces what is there:

    <!-- figures: models -->
    ...
    <!-- end of figures -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..models.instances import INSTANCE_ZOO
from ..streams.service_report import ServiceRecord
from . import suite

DOCS = Path(__file__).parents[1] / "results"
IMAGES = Path(__file__).parents[2] / "docs" / "images"

DYNET = {
    ("treelstm:256", 64): 28.7 / 24.4,
    ("treelstm:512", 64): 79 / 68,
    ("treelstm:256", 8): 3.9 / 5.2,
    ("birnn:256", 64): 15.3 / 10.5,
    ("birnn:256", 8): 2.5 / 2.2,
}
"""DyNet's time as a multiple of the fastest other system's, measured earlier on such a machine.
DyNet is not among the peers, since it cannot be built for current versions of Python."""

_TITLES = {
    "eager": "eager, one by one",
    "stretto_each": "`stretto.compile`, one by one",
    "hand": "by hand",
    "hand_compile": "by hand, torch.compile",
    "stretto": "`stretto.batch`",
}
_ACTIVITIES = ("flatten", "copy", "record", "schedule", "execute", "results", "other")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one model. ms: times by name of the system, of those that have one. partial:
    systems that ran fewer instances; their times are scaled."""

    model: str
    batch: int
    floor_ms: float | None
    ms: dict[str, float]
    partial: frozenset[str]

    @property
    def own(self) -> float:
        return self.ms["stretto"]

    @property
    def fastest(self) -> float:
        return min(ms for system, ms in self.ms.items() if system != "stretto")

    @property
    def dynet(self) -> float | None:
        ratio = DYNET.get((self.model, self.batch))
        return None if ratio is None else ratio * self.fastest

    @property
    def ratio(self) -> float:
        """Time of the fastest other system, DyNet included, divided by stretto's."""
        return min(self.fastest, self.dynet or self.fastest) / self.own

    @property
    def over_eager(self) -> float | None:
        return self.ms["eager"] / self.own if "eager" in self.ms else None


def load(folder: Path, name: str) -> Any:
    """Return a record, or None."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def runs_of(folder: Path, model: str, batch: int) -> list[Run]:
    """Return the runs in which stretto and at least one other system have times."""
    name = model.replace(":", "-")
    found: list[Run] = []
    for path in sorted(folder.glob(f"peers-{name}-{batch}-*.json")):
        (measured,) = json.loads(path.read_text())["models"]
        ran = [system for system in measured["systems"] if system["timing"]]
        ms = {system["system"]: system["timing"]["median_ms"] for system in ran}
        partial = frozenset(s["system"] for s in ran if "times are scaled" in s["note"])
        if "stretto" in ms and len(ms) > 1:
            found.append(Run(model, batch, measured["floor_ms"], ms, partial))
    return found


def published(folder: Path) -> str:
    """The configurations with published times, each by its worst run."""
    names = ("eager", "stretto_each", "hand", "hand_compile")
    heads = ["model", "floor", *(_TITLES[name] for name in names), "DyNet, by its ratio"]
    heads += [_TITLES["stretto"], "over the fastest, each run", "over eager", "over the floor"]
    rows: list[list[str]] = []
    for model, batch in suite.PUBLISHED:
        runs = runs_of(folder, model, batch)
        if not runs:
            continue
        worst = min(runs, key=lambda run: run.ratio)
        each = next((run for run in runs if "stretto_each" in run.ms), worst)
        shown = [(each if name == "stretto_each" else worst) for name in names]
        rows.append(
            [
                f"{_title(model)}, batch {batch}",
                _ms(worst.floor_ms),
                *(_cell(run, name) for run, name in zip(shown, names, strict=True)),
                _ms(worst.dynet),
                f"**{_ms(worst.own)}**",
                " / ".join(f"{run.ratio:.2f}" for run in runs),
                _times(worst.over_eager),
                _times(worst.floor_ms and worst.own / worst.floor_ms),
            ]
        )
    return markdown(heads, rows)


def models(folder: Path) -> str:
    """All models at both batch sizes."""
    names = ("eager", "stretto_each", "hand", "hand_compile", "stretto")
    heads = ["model", "batch", *(_TITLES[name] for name in names), "over eager"]
    heads += ["over the fastest of the others"]
    rows: list[list[str]] = []
    for name in INSTANCE_ZOO:
        model = suite.first_size(name)
        for batch in (64, 8):
            runs = runs_of(folder, model, batch)
            if runs:
                run = min(runs, key=lambda run: run.fastest / run.own)
                cells = [_cell(run, system) for system in names]
                ratio = _times(run.fastest / run.own)
                rows.append([_title(model), str(batch), *cells, _times(run.over_eager), ratio])
    return markdown(heads, rows)


def activities(folder: Path) -> str:
    """Time by activity, and the time to the first result."""
    heads = ["model", "batch", *_ACTIVITIES, "all", "not in tensor operators", "launches"]
    heads += ["first result, s", "from the cache, s"]
    rows: list[list[str]] = []
    for name in sorted(INSTANCE_ZOO, key=lambda name: name not in suite.ACROBAT):
        model = suite.first_size(name)
        record = load(folder, f"first-{model.replace(':', '-')}")
        if record is None:
            continue
        found = record["activities"]
        rows.append(
            [
                _title(model),
                str(record["batch"]),
                *(f"{found['milliseconds'][activity]:.2f}" for activity in _ACTIVITIES),
                _ms(found["total_ms"]),
                f"{100 * found['host_share']:.0f} %",
                str(found["launches"]),
                f"{record['empty_cache']['seconds']:.1f}",
                f"{record['full_cache']['seconds']:.1f}",
            ]
        )
    return markdown(heads, rows)


def sizes(folder: Path) -> str:
    """A sentence about the values at all sizes of a batch."""
    found = [load(folder, f"sizes-{model.replace(':', '-')}") for model in suite.SIZED]
    errors = [error for record in found if record for error in record["errors"].values()]
    if not errors:
        return ""
    return (
        "In batches of 1 to 1,024 the largest difference of a result from eager PyTorch, instance "
        f"by\ninstance, is {max(errors):.1e} of its largest value.\n"
    )


def service(folder: Path) -> str:
    """Return a table of a service's requests and latencies under load."""
    data = load(folder, "service")
    if data is None:
        return ""
    heads = ["system", "requests", "lost", "wrong", "out of order", "mean batch"]
    heads += ["a batch takes, p50"]
    heads += ["p99", "latency, p50", "p90", "p99", "`max_wait_ms` and two batches"]
    rows: list[list[str]] = []
    for result in ServiceRecord.of_dict(data).results:
        counts = (result.sent, result.lost + result.failed, result.wrong, result.reordered)
        times = (result.batch_ms, result.batch_p99_ms)
        latencies = (*(result.percentile_ms(p) for p in (50, 90, 99)), result.limit_ms)
        cells = [f"{ms:.1f} ms" for ms in (*times, *latencies)]
        name = f"{_TITLES.get(result.system, result.system)}, {result.model}"
        numbers = (*(f"{count:,}" for count in counts), f"{result.mean_batch:.1f}")
        rows.append([name, *numbers, *cells])
    return markdown(heads, rows)


TABLES: dict[str, Callable[[Path], str]] = {
    table.__name__: table for table in (published, models, activities, sizes, service)
}
_MARKED = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def write_docs(folder: Path, docs: Path = DOCS) -> None:
    """Replace the text between marks in the pages of a folder. A table without a record stays.
    Raises KeyError for a mark that names no table."""
    for page in sorted(docs.glob("*.md")):
        text = page.read_text()
        new = with_figures(text, folder)
        if new != text:
            page.write_text(new)
            print(f"wrote {page}")


def with_figures(text: str, folder: Path) -> str:
    """Return the text of a page with its tables replaced by current ones."""

    def made(found: re.Match[str]) -> str:
        return f"{found[1]}{TABLES[found[2]](folder) or found[3]}{found[4]}"

    return _MARKED.sub(made, text)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; empty without rows. Columns that are empty in all rows are left out."""
    if not rows:
        return ""
    kept = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    return "".join(_lines([[line[place] for place in kept] for line in (heads, *rows)]))


def _lines(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"| {' | '.join(line)} |\n"
        if number == 0:
            yield f"|{'---|' * len(line)}\n"


def _title(model: str) -> str:
    name, _, size = model.partition(":")
    return f"{name} {size}"


def _cell(run: Run, system: str) -> str:
    """Format a time; `~` marks one that was scaled from fewer instances."""
    ms = run.ms.get(system)
    return ("~" if system in run.partial else "") + _ms(ms) if ms else ""


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _times(value: float | None) -> str:
    return f"{value:.1f}" if value and value >= 10 else f"{value:.2f}" if value else ""

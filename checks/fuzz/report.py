"""The summary of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from checks.fuzz.outcome import FAILURES, ORDER, Outcome

SHOWN_NAMES = 4


@dataclass
class PartReport:
    """The outcomes of one part. `failures`: those that must not occur, or are not known."""

    part: str
    every: list[Outcome] = field(default_factory=list[Outcome])
    counts: Counter[str] = field(default_factory=Counter[str])
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    failures: list[Outcome] = field(default_factory=list[Outcome])
    reduced: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, outcome: Outcome) -> None:
        """All are counted, those that are not equal kept."""
        self.every.append(outcome)
        self.counts[outcome.verdict] += 1
        if outcome.verdict != "equal":
            self.outcomes.append(outcome)
        if outcome.verdict in FAILURES:
            self.failures.append(outcome)

    @property
    def tried(self) -> int:
        return sum(self.counts.values())

    def by_reason(self) -> list[tuple[str, str, list[Outcome]]]:
        """Verdict, reason and outcomes: the worst verdict first, in it the most frequent reason."""
        groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for outcome in self.outcomes:
            groups[outcome.verdict, outcome.reason].append(outcome)
        order = list(ORDER)
        found = [(verdict, reason, cases) for (verdict, reason), cases in groups.items()]
        return sorted(found, key=lambda item: (order.index(item[0]), -len(item[2]), item[1]))  # pyright: ignore[reportArgumentType]


def show_changes(
    report: PartReport, before: Mapping[tuple[str, str, str], Outcome], console: Console
) -> int:
    """Prints the cases of which the verdict or its reason is not what it was; returns their number.

    before: outcomes by part, machines and case. A case that is not among them is not compared.
    """
    was = {case: outcome for (part, _, case), outcome in before.items() if part == report.part}
    changed = [
        f"{one.name}: {known.verdict} ({known.reason}) before, {one.verdict} ({one.reason}) now"
        for one in report.every
        if (known := was.get(one.name)) is not None
        and (known.verdict, known.reason) != (one.verdict, one.reason)
    ]
    for line in changed:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    known = sum(one.name in was for one in report.every)
    console.print(f"{report.part}: {len(changed)} of {known} cases changed")
    return len(changed)


def summary(reports: list[PartReport]) -> Table:
    """A row per part."""
    table = Table(title="fuzz")
    columns = ("part", "tried", "equal", "refused", "wrong", "internal error", "hang", "skipped")
    for column in columns:
        table.add_column(column, justify="left" if column == "part" else "right")
    for report in reports:
        shown = [report.part, str(report.tried)]
        for verdict in columns[2:]:
            count = report.counts[verdict]
            share = f" ({count / report.tried:.1%})" if verdict == "refused" and count else ""
            shown.append(f"{count}{share}")
        table.add_row(*shown)
    return table


def show(report: PartReport, console: Console) -> None:
    """Reasons with their numbers, and the smallest sources of failures."""
    for verdict, reason, cases in report.by_reason():
        names = ", ".join(f"{case.name} [{case.backend}]" for case in cases[:SHOWN_NAMES])
        more = ", ..." if len(cases) > SHOWN_NAMES else ""
        text = f"{len(cases):5}  {verdict}: {reason}  ({names}{more})"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    for name, text in report.reduced.items():
        console.rule(name)
        console.print(text, highlight=False, markup=False, soft_wrap=True)

"""`Batched.profile()`: where the time of a batch goes, by activity (ACRoBat, Table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from time import perf_counter
from typing import Any

from stretto.batching.compiled import CompiledBatch, Times
from stretto.text import table

ACTIVITIES: dict[str, str] = {
    "flatten": "instances read from Python's objects",
    "copy": "their tensors copied to the pools",
    "record": "the program of each instance walked",
    "schedule": "what was recorded sorted into tables",
    "execute": "tensor operators run",
    "results": "Python's objects made",
    "other": "between these",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """Medians of some runs of one batch, in milliseconds.

    seconds: by activity, as in `ACTIVITIES`. launches: how often the level program was launched.
    steps: how many steps it ran; rows: of how many instances of blocks.
    """

    instances: int
    total_ms: float
    milliseconds: dict[str, float]
    launches: int
    steps: int
    rows: int

    @property
    def host_share(self) -> float:
        """The part of the time that is not spent in tensor operators."""
        return 1 - self.milliseconds["execute"] / self.total_ms if self.total_ms else 0.0

    def __str__(self) -> str:
        rows = [
            (name, f"{self.milliseconds[name]:.3f}", f"{self._share(name):.1f} %", what)
            for name, what in ACTIVITIES.items()
        ]
        rows.append(("all", f"{self.total_ms:.3f}", "100.0 %", ""))
        head = (
            f"{self.instances} instances: {self.rows} blocks in {self.steps} steps, "
            f"{self.launches} launches\n"
        )
        return head + table(rows, ("activity", "ms", "share", "what"))

    def _share(self, name: str) -> float:
        return 100 * self.milliseconds[name] / self.total_ms if self.total_ms else 0.0


def profile_of(compiled: CompiledBatch, columns: Sequence[Sequence[Any]], runs: int) -> Profile:
    """Runs a batch several times. Raises ValueError for less than one run."""
    if runs < 1:
        raise ValueError(f"profile: runs must be at least 1, not {runs}")
    found: list[Times] = []
    totals: list[float] = []
    for _ in range(runs):
        begin = perf_counter()
        compiled.is_current()  # as each call asks
        outcomes = compiled.run(columns)
        totals.append(perf_counter() - begin)
        found.append(compiled.times)
        del outcomes  # a user keeps them: to free them is no part of a call
    names = [item.name for item in fields(Times) if item.name != "launches"]
    seconds = {name: median(getattr(times, name) for times in found) for name in names}
    total = median(totals)
    seconds["other"] = max(0.0, total - sum(seconds.values()))
    tables = compiled.steps
    return Profile(
        len(columns[0]) if columns else 0,
        total * 1e3,
        {name: seconds[name] * 1e3 for name in ACTIVITIES},
        compiled.times.launches,
        sum(len(steps) for steps in tables),
        sum(int(steps[:, 1].sum()) for steps in tables),
    )

"""Draw the scheduling results: python -m benchmarks.scheduling.pictures."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parents[1] / "results"
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def growth(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds to schedule by the number of operators, a line for each policy and units."""
    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        name = f"{row['policy']}, {row['units']} units"
        lines[name].append((row["operators"], row["seconds"]))
    figure, axes = plt.subplots(figsize=(6, 4))
    for name, points in lines.items():
        axes.loglog(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xlabel("operators")
    axes.set_ylabel("seconds to schedule")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def waits(devices: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Draw, per device, the gains of waits between tasks over barriers of all cells, sorted."""
    figure, axes = plt.subplots(figsize=(6, 4))
    for name, rows in devices.items():
        gains = sorted(barrier / own for own, barrier in rows.values())
        axes.plot([n / len(gains) for n in range(len(gains))], gains, label=name)
    axes.set_xlabel("part of the cells")
    axes.set_ylabel("time with barriers / with waits")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Draw everything that has results."""
    for name, draw, key in (("growth", growth, "growth"), ("waits", waits, None)):
        source = RESULTS / f"scheduling-{name}.json"
        if source.exists():
            found = json.loads(source.read_text())
            draw(found[key] if key else found, IMAGES / f"scheduling-{name}.png")


if __name__ == "__main__":
    main()

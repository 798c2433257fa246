"""Graphs of launches of the models on a GPU that is simulated: one stream, and several.

    python -m benchmarks.scheduling.graphs [MODELS] [--device h200] [--library] [--json F] [--svg F]
    python -m benchmarks.scheduling.graphs --json F --plot PICTURE

For each model: its launches one after the other on a stream; the same as a captured graph; the
graph on the streams of Opara's algorithm 1 in several orders, its algorithm 2 among them; the
program as one persistent kernel; and what is chosen among these for each stretch of it. --plot
draws what the file has, and runs nothing. --library: operators are library calls. --svg draws the
graph of the last model on its streams. Nothing here was
measured: all times are the simulator's (docs/explanation/graphs.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.models import ZOO
from benchmarks.models.groups import GROUPS
from benchmarks.scheduling.enqueuing import graph_data, graph_model, graph_table, write_picture
from stretto.options import Options
from stretto.tools.models import Model

MODELS = (
    "googlenet",
    "inception_v3",
    "bert_base",
    "t5_small",
    "nasnet_mobile",
    "deepfm",
    "gpt2_decode",
)
LOOPS = ("lstm", "nasrnn", "attention", "seq2seq", "blockdrop", "skipnet", "rae", "deepspeech2")


def zoo_model(name: str, preset: str) -> Model:
    entry = next(group[name] for group in (*GROUPS.values(), ZOO) if name in group)
    with torch.no_grad():
        function, inputs = entry.make(entry.presets[preset], 0)
    return Model(name, function, inputs)


def main(
    models: Annotated[list[str] | None, typer.Argument(help="By default all.")] = None,
    device: Annotated[str, typer.Option(help="A GPU by name.")] = "h200",
    library: Annotated[bool, typer.Option(help="Operators are library calls.")] = False,
    small: Annotated[bool, typer.Option(help="The small presets.")] = False,
    file: Annotated[Path | None, typer.Option("--json", help="Add the results to it.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the last model's graph.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the results.")] = None,
) -> None:
    console = Console(width=110)
    found = json.loads(file.read_text()) if file is not None and file.exists() else {}
    if picture is not None:
        draw(found, picture)
        return
    for name in models or (*MODELS, *LOOPS):
        model = zoo_model(name, "small" if small else "full")
        made = graph_model(model, device, options=Options(library=("*",) if library else ()))
        console.print(graph_table(made))
        kind = "library calls" if library else "own kernels"
        found.setdefault("what", "simulated, nothing was measured")
        found[f"{name}, {kind}, {device}"] = graph_data(made)
        if svg is not None:
            write_picture(made, svg)
        if file is not None:
            file.write_text(json.dumps(found, indent=1) + "\n")


BARS = ("graph, one stream", "depth first", "random", "Opara")
KEYS = {"persistent kernel": "persistent_seconds", "chosen": "mixed_seconds"}
"""Keys of further results, by label."""


def draw(found: dict[str, Any], picture: Path) -> None:
    """Draw bars for each model, relative to the time of its graph on one stream."""
    from matplotlib.figure import Figure

    rows = {name: row for name, row in found.items() if isinstance(row, dict)}
    figure = Figure(figsize=(11, 0.55 * len(rows) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    series: dict[str, list[float]] = {}
    for row in rows.values():
        whole = row["ways"]["graph, one stream"]["seconds"]
        for bar in BARS:
            series.setdefault(bar, []).append(row["ways"][bar]["seconds"] / whole)
        for title, key in (
            ("persistent kernel", "persistent_seconds"),
            ("chosen", "mixed_seconds"),
        ):
            series.setdefault(title, []).append((row.get(key) or float("nan")) / whole)
    height = 0.8 / len(series)
    names = [name.replace(", own kernels", "") for name in rows]
    for number, (title, values) in enumerate(series.items()):
        places = [place + number * height for place in range(len(rows))]
        axes.barh(places, values, height, label=title)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(rows))], names)
    axes.invert_yaxis()
    axes.set_xlabel("simulated time, as a part of that of the captured graph on one stream")
    figure.legend(loc="outside upper center", ncols=6)
    figure.savefig(picture)


if __name__ == "__main__":
    typer.run(main)

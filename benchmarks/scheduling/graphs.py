"""Graphs of launches of the static models on a GPU that is simulated: one stream, and several.

    python -m benchmarks.scheduling.graphs [MODELS] [--device h200] [--library] [--json F]

For each model: its launches one after the other on a stream; the same as a captured graph; the
graph on the streams of Opara's algorithm 1 in several orders, its algorithm 2 among them; and the
program as one persistent kernel. --library: operators are library calls. Nothing here was measured:
all times are the simulator's (docs/graphs.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.models.groups import GROUPS
from stretto.options import Options
from stretto.tools.graphs import graph_data, graph_model, graph_table
from stretto.tools.models import Model

MODELS = ("googlenet", "inception_v3", "bert_base", "t5_small", "nasnet_mobile", "deepfm")


def zoo_model(name: str, preset: str) -> Model:
    entry = next(group[name] for group in GROUPS.values() if name in group)
    with torch.no_grad():
        function, inputs = entry.make(entry.presets[preset], 0)
    return Model(name, function, inputs)


def main(
    models: Annotated[list[str] | None, typer.Argument(help="By default all six.")] = None,
    device: Annotated[str, typer.Option(help="A GPU by name.")] = "h200",
    library: Annotated[bool, typer.Option(help="Operators are library calls.")] = False,
    small: Annotated[bool, typer.Option(help="The small presets.")] = False,
    file: Annotated[Path | None, typer.Option("--json", help="Add the results to it.")] = None,
) -> None:
    console = Console(width=110)
    found = json.loads(file.read_text()) if file is not None and file.exists() else {}
    for name in models or MODELS:
        model = zoo_model(name, "small" if small else "full")
        made = graph_model(model, device, options=Options(library=("*",) if library else ()))
        console.print(graph_table(made))
        kind = "library calls" if library else "own kernels"
        found.setdefault("what", "simulated, nothing was measured")
        found[f"{name}, {kind}, {device}"] = graph_data(made)
        if file is not None:
            file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

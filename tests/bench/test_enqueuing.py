"""Ways to enqueue a graph of launches: the table, the picture, and `explain()` of a graph."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

import stretto
from benchmarks.scheduling.enqueuing import graph_data, graph_model, ways_cells, write_picture
from stretto.options import Options
from stretto.tools.models import Model
from stretto.tools.names import UsageError


def branches(x: Tensor, w: Tensor) -> Tensor:
    parts = [torch.softmax(torch.tanh(x @ w[n]), -1) for n in range(3)]
    return parts[0] @ parts[1] + parts[2]


def model() -> Model:
    torch.manual_seed(0)
    return Model("branches", branches, (torch.rand(64, 64), torch.rand(3, 64, 64)))


@pytest.mark.parametrize("library", [False, True])
def test_the_ways_of_a_model(library: bool, tmp_path: Path) -> None:
    found = graph_model(model(), "h200", 8, Options(library=("*",) if library else ()))
    kinds = {str(node.kind) for node in found.given.graph.nodes}
    assert ("library" in kinds) == library
    assert (found.persistent is None) == library
    names = [name for name, *_ in ways_cells(found.ways)]
    assert names[:3] == ["launches, one stream", "graph, one stream", "Opara"]
    seconds = {name: way["seconds"] for name, way in graph_data(found)["ways"].items()}
    assert seconds["Opara"] <= seconds["graph, one stream"] < seconds["launches, one stream"]
    if "best of all orders" in seconds:
        assert seconds["best of all orders"] == min(seconds.values())
    file = tmp_path / "graph.svg"
    write_picture(found, file)
    boxes = ElementTree.fromstring(file.read_text()).iter("{http://www.w3.org/2000/svg}title")
    assert len(list(boxes)) == len(found.given.graph.nodes)


def test_a_cpu_has_no_launches() -> None:
    with pytest.raises(UsageError, match="is no GPU"):
        graph_model(model(), "cpu:2")


def test_explain_lists_the_graph() -> None:
    def calls(x: Tensor) -> Tensor:
        return torch.cummax(x @ x, 0)[0] + torch.cummax(x + 1, 0)[0]

    x = torch.rand(5, 5)
    made = stretto.compile(calls, (x,), backend="cuda-emulated", options=Options(units=2))
    text = made.explain()
    assert "main as a graph, on h200 simulated (not measured)" in text
    whole = stretto.compile(torch.tanh, (x,), backend="cuda-emulated", options=Options(units=2))
    assert "as a graph" not in whole.explain()

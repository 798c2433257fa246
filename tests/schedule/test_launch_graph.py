"""Graphs of launches: their edges, text and verifier; shuffled runs find what an edge is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import stretto
from benchmarks.scheduling.enqueuing import implied
from stretto.call.compiler import begin, run_stages
from stretto.device.expr import Buffer
from stretto.device.launch_graph import (
    COUNTERS,
    Arrangement,
    Dependence,
    Edge,
    GraphNode,
    LaunchGraph,
    NodeKind,
    dependences,
    parse_graph,
    print_graph,
)
from stretto.device.plan import Plan
from stretto.device.program import FrameLayout, Placement, SizedPlacement
from stretto.device.regions import whole
from stretto.device.tree import Leaf, walk
from stretto.device.verifier import verify_plan
from stretto.device.verifier.plans import verify_arrangement, verify_graph
from stretto.errors import ScheduleError, VerifyError
from stretto.frontends.python import capture
from stretto.ir.types import DType
from stretto.machines.cuda.host import PlanExecutable, in_order
from stretto.machines.machine import HOST
from stretto.machines.registry import known_machines
from stretto.options import Debug, Options
from stretto.schedule.launch_graph import (
    arranged,
    opara_streams,
    plan_graph,
    shared_bytes,
    with_own_memory,
)
from stretto.schedule.plan import make_plan
from stretto.schedule.scheduler import schedule
from tests.schedule.random_trees import random_tree
from tests.schedule.shuffled import sequence_graphs, shuffled
from tests.schedule.trees import EAGER

Function = Callable[[torch.Tensor], torch.Tensor]


def diamond(x: torch.Tensor) -> torch.Tensor:
    a = torch.cummax(torch.tanh(x @ x), 0)[0]
    b = torch.cummax(torch.softmax(x, -1), 0)[0]
    return torch.cummax(a @ b, 0)[0] + a


def looping(x: torch.Tensor) -> torch.Tensor:
    h, side = x, torch.cummax(x + 1, 0)[0]
    for _ in range(3):
        h = torch.cummax(torch.tanh(h @ x), 0)[0] + torch.cummax(x * 2, 0)[0]
    return h + side


def deciding(x: torch.Tensor) -> torch.Tensor:
    side = torch.cummax(x + 1, 0)[0]
    while x.sum() < 200:
        x = torch.cummax(x + 1, 0)[0]
    if x[0, 0] > 3:
        x = torch.cummax(-x, 0)[0]
    return x + side


def drawing(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x) * x - torch.rand_like(x)


FUNCTIONS = (diamond, looping, deciding)


def compiled(function: Function) -> tuple[Plan, PlanExecutable, Function, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(7, 7)
    options = Options(units=3, debug=Debug(unroll=0, launches="per_kernel", control="units"))
    made = stretto.compile(function, (x,), backend="cuda-emulated", options=options)
    stages = made.signatures[0].stages
    assert isinstance(stages.executable, PlanExecutable)
    return stages.product.plan, stages.executable, made, x  # pyright: ignore


@pytest.mark.parametrize("function", [*FUNCTIONS, drawing])
def test_a_graph_is_read_back_and_verified(function: Function) -> None:
    plan, _, _, _ = compiled(function)
    graph = plan_graph(plan)
    assert parse_graph(print_graph(graph)) == graph
    verify_graph(graph)


def test_a_mistake_in_the_text_is_told() -> None:
    graph = plan_graph(compiled(diamond)[0])
    with pytest.raises(ScheduleError, match="expected"):
        parse_graph(print_graph(graph).replace("edges", "edgs"))


def test_edges_are_dependences_and_not_the_plans_order() -> None:
    graph = plan_graph(compiled(diamond)[0])
    names = [node.name for node in graph.nodes]
    calls = [n for n, node in enumerate(graph.nodes) if node.kind is NodeKind.LIBRARY]
    assert len(calls) == 3
    first, second, _ = calls
    assert second not in graph.before[first] and first not in graph.before[second], names
    assert all(edge.reason is Dependence.FLOW for edge in graph.edges)


def test_random_numbers_keep_their_order() -> None:
    graph = plan_graph(compiled(drawing)[0])
    first, second = (n for n, node in enumerate(graph.nodes) if node.kind is NodeKind.LIBRARY)
    assert first in graph.before[second]


def test_control_has_graphs_of_its_own() -> None:
    graph = plan_graph(compiled(looping)[0])
    (loop,) = (node for node in graph.nodes if node.kind is NodeKind.CONTROL)
    (body,) = loop.bodies
    assert len(body.nodes) > 3 and any(name.startswith("&") for name in loop.writes)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_order_of_the_edges_gives_the_same(function: Function) -> None:
    plan, executable, run, x = compiled(function)
    graphs = sequence_graphs(plan)
    expected = function(x)
    for seed in range(4):
        executable.order = shuffled(graphs, seed)
        torch.testing.assert_close(run(x), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_edge_that_is_missing_is_found(function: Function) -> None:
    """Of each edge that no others imply. Not every one shows in a result: a branch that was decided
    on an older value may be the same one."""
    plan, executable, run, x = compiled(function)
    graphs = sequence_graphs(plan)
    expected = function(x)
    shown = 0
    edges = [(key, edge) for key, graph in graphs.items() for edge in needed_edges(graph)]
    for key, edge in edges:
        graph = graphs[key]
        mutant = replace(graph, edges=tuple(one for one in graph.edges if one != edge))
        with pytest.raises(VerifyError, match=f"has to come before .* for {edge.reason}"):
            verify_graph(mutant)
        first = edge.after
        executable.order = in_order
        for _ in range(2):  # leaves in memory what is wrong for the next run
            run(x.flip(0) / 2)
        executable.order = shuffled({**graphs, key: mutant}, 0, {key: first})
        shown += differs(run, x, expected)
    executable.order = shuffled(graphs, 0)
    torch.testing.assert_close(run(x), expected)
    assert shown >= len(edges) / 2, f"{shown} of {len(edges)}"


def needed_edges(graph: LaunchGraph) -> list[Edge]:
    before = graph.before
    return [edge for edge in graph.edges if not implied(before, (edge.before, edge.after))]


def differs(run: Function, x: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a run gives another result, or fails."""
    try:
        return not torch.allclose(run(x), expected, equal_nan=True)
    except Exception:  # what the emulator raises for memory that nobody has written
        return True


def test_edges_in_a_circle_are_told() -> None:
    graph = plan_graph(compiled(diamond)[0])
    wrong = replace(graph, edges=(*graph.edges, Edge(2, 1, Dependence.FLOW)))
    with pytest.raises(VerifyError, match="in no circle"):
        verify_graph(wrong)


def test_an_arrangement_without_its_events_is_told() -> None:
    graph = plan_graph(compiled(diamond)[0])
    before = graph.before
    made = arranged(before, range(len(before)), opara_streams(before))
    verify_arrangement(graph, made)
    for event in made.events:
        fewer = tuple(one for one in made.events if one != event)
        with pytest.raises(VerifyError, match="no streams and events say so"):
            verify_arrangement(graph, replace(made, events=fewer))
    with pytest.raises(VerifyError, match="not every node"):
        verify_arrangement(graph, Arrangement((0,), (0,)))


@pytest.mark.parametrize("seed", range(8))
def test_graphs_of_random_programs(seed: int) -> None:
    program = schedule(random_tree(seed), 3, EAGER)
    leaves = frozenset(id(n) for n in walk(program.tree.main.body) if isinstance(n, Leaf))
    graph = plan_graph(make_plan(program, cuts=leaves))
    verify_graph(graph)
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize("seed", range(8))
def test_memory_of_its_own_has_no_shared_bytes(seed: int) -> None:
    program = schedule(random_tree(seed), 1 + seed % 2, EAGER)
    frames = [frame for _, frame in with_own_memory(program).frames]
    assert not any(shared_bytes(frame) for frame in frames)
    verify_plan(make_plan(with_own_memory(program)))


def test_shared_bytes_are_a_reason_to_wait() -> None:
    frames = FrameLayout(
        192,
        (("a", Placement(0, 64)), ("b", Placement(32, 64)), ("c", Placement(128, 64))),
        (64,),
        (("d", SizedPlacement(0, 0, 8)), ("e", SizedPlacement(0, 8, 8))),
    )
    assert shared_bytes(frames) == (("a", "b"), ("d", "e"))
    a, b = (Buffer(name, DType.F32, (16,)) for name in ("a", "b"))
    nodes = [
        GraphNode(NodeKind.LAUNCH, "writes a", (whole(a, True),)),
        GraphNode(NodeKind.LAUNCH, "writes b", (whole(b, True),)),
    ]
    assert list(dependences(nodes)) == []
    assert list(dependences(nodes, [("a", "b")])) == [Edge(0, 1, Dependence.MEMORY)]


def test_a_node_that_may_stop_the_run_keeps_its_place() -> None:
    changed = Buffer("x", DType.F32, (4,), "updated", 0)
    nodes = [
        GraphNode(NodeKind.LAUNCH, "first"),
        GraphNode(NodeKind.LAUNCH, "changes an input", (whole(changed, True),)),
        GraphNode(NodeKind.LAUNCH, "checks", stops=True),
        GraphNode(NodeKind.LAUNCH, "behind"),
    ]
    found = [(edge.before, edge.after, edge.reason) for edge in dependences(nodes)]
    assert found == [(1, 2, Dependence.ORDER), (2, 3, Dependence.ORDER)]


def test_launches_whose_units_wait_run_one_at_a_time() -> None:
    nodes = [GraphNode(NodeKind.LAUNCH, f"{n}", writes=(COUNTERS,)) for n in range(2)]
    assert list(dependences(nodes)) == [Edge(0, 1, Dependence.REGISTER)]


def test_a_program_of_library_calls_in_shuffled_orders() -> None:
    torch.manual_seed(0)
    x = torch.rand(6, 6)

    def function(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.tanh(x @ x), torch.softmax(x, -1)
        return (a @ b).t() + a.sum(0)

    options = Options(units=2, library=("*",))
    captured = capture(function, (x,), {}, options)
    stages = begin(captured.program, known_machines()["cuda-emulated"], options, HOST)
    run_stages(stages, stages.machine.stages)
    executable = stages.executable
    assert isinstance(executable, PlanExecutable)
    graphs = sequence_graphs(executable.plan)
    kinds = {node.kind for graph in graphs.values() for node in graph.nodes}
    assert kinds == {NodeKind.LIBRARY, NodeKind.LAUNCH}  # the launch transposes
    for seed in range(4):
        executable.order = shuffled(graphs, seed)
        (found,) = executable([x])
        torch.testing.assert_close(found, function(x))

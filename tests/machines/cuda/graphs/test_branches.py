"""Branches in graphs: conditional nodes and predicated launches compute what eager computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from benchmarks.scheduling.enqueuing import implied
from stretto.device.forms import Planned
from stretto.device.plan import Plan
from stretto.device.text import parse_form, print_form
from stretto.device.tree import Branching, If, map_tree, walk
from stretto.device.verifier import verify_plan
from stretto.device.verifier.plans import verify_graph
from stretto.errors import VerifyError
from stretto.machines.cuda.frequencies import known_frequencies
from stretto.machines.cuda.machine import gpu_program
from stretto.machines.cuda.styles import compile_plan
from stretto.machines.cuda.templates import TEMPLATES
from stretto.options import BRANCHES, Options
from stretto.schedule import plan_search
from stretto.schedule.launch_graph import plan_graph
from tests.e2e.machines import CUDA, spread
from tests.machines.cuda.cuda_fakes import FakeCuda
from tests.machines.cuda.graphs.programs import (
    APART,
    arguments,
    on_fake_gpu,
    random_branches,
    until_large,
)

PREDICATED = replace(APART, debug=replace(APART.debug, branches="predicated"))
Function = Callable[..., Any]


def nested(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A branch with a branch in an arm, beside what needs nothing of either."""
    a = torch.tanh(x @ w)
    if x.sum() > 0:
        b = a * 2
        if x.mean() > 0.1:
            b = b.cumsum(0) + w[0]
    else:
        b = (a + 1).cumsum(1)
    return b @ w + a, x.softmax(1)


def compiled(function: Function, inputs: tuple[Tensor, ...], options: Options) -> Any:
    fast = stretto.compile(function, backend=CUDA, options=options)
    with torch.no_grad(), spread():
        fast(*inputs)
    return fast


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def plan_of(function: Function, options: Options = PREDICATED) -> Plan:
    (entry,) = compiled(function, arguments(0), options).signatures
    return gpu_program(entry.stages).plan


@pytest.mark.parametrize("branches", BRANCHES)
@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int, units: int, branches: str) -> None:
    """Nodes in another order each time, with sizes that no tile divides; as one replay, unless an
    unlikely arm is taken."""
    program = random_branches(seed)
    options = replace(APART, units=units, debug=replace(APART.debug, branches=branches))
    fast = compiled(program, arguments(0, rows=5), options)
    for given in range(4):
        x, w = arguments(given, rows=5)
        same(fast(x, w), program(x, w))
    (entry,) = fast.signatures
    run = entry.executable
    guarded = sum(len(launch.guards) > 0 for _, launch in gpu_program(entry.stages).plan.launches)
    assert guarded > 1 if branches == "predicated" else True
    if branches == "unlikely":
        assert run.exit_count and run.waits and run.counts.replayed >= 5 + run.counts.left
    else:
        assert run.reads == 0 and run.counts.replayed == 5


@pytest.mark.parametrize("seed", range(12))
def test_all_ways_in_one_program(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each branch in a way of its own, drawn; of unlikely ones either arm."""
    draw = random.Random(seed)

    search = plan_search.search_plan

    def drawn(program: Any, *arguments: Any, **options: Any) -> plan_search.PlanChoice:
        chosen = search(program, *arguments, **options)
        branches = [node for node in walk(program.tree.main.body) if isinstance(node, If)]
        ways = {id(branch): draw.choice(list(Branching)) for branch in branches}
        predicated = {key for key, way in ways.items() if way is Branching.PREDICATED}
        unlikely = {key: way for key, way in ways.items() if way.startswith("unlikely")}
        return replace(chosen, predicated=frozenset(predicated), unlikely=unlikely)

    monkeypatch.setattr("stretto.schedule.plan_search.search_plan", drawn)
    program = random_branches(seed)
    fast = compiled(program, arguments(0, rows=5), replace(APART, units=1 + seed % 3))
    for given in range(6):
        inputs = arguments(given, rows=5)
        same(fast(*inputs), program(*inputs))


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(3))
def test_random_programs_of_sizes_that_change(seed: int) -> None:
    program = random_branches(seed)
    fast = stretto.compile(program, backend=CUDA, options=PREDICATED, dynamic=True)
    with torch.no_grad(), spread():
        for rows in (6, 7, 2, 13):
            inputs = arguments(rows, rows)
            same(fast(*inputs), program(*inputs))


@pytest.mark.parametrize("enqueue", ["stream", "graph"])
def test_nobody_waits_for_a_predicated_branch(enqueue: str) -> None:
    fast = compiled(nested, arguments(0), replace(PREDICATED, enqueue=enqueue))
    for seed in range(6):
        inputs = arguments(seed)
        same(fast(*inputs), nested(*inputs))
    (entry,) = fast.signatures
    assert entry.executable.reads == 0
    assert not gpu_program(entry.stages).plan.decides_on_host


@pytest.mark.parametrize("rows", [0, 1])
def test_nothing_to_do(rows: int) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        if w[0, 0] > 0:
            x = torch.tanh(x @ w) + 1
        return x * 2

    fast = compiled(program, arguments(0, rows), PREDICATED)
    for seed in range(3):
        inputs = arguments(seed, rows)
        same(fast(*inputs), program(*inputs))


def test_launches_whose_units_wait_leave_their_counters_alone() -> None:
    """One launch for each arm, in which units meet: skipped in some calls, not in others, and in a
    loop in which the arms take turns."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            if x[0, 0] > 0:
                x = torch.tanh(x @ w).cumsum(0) @ w - 1
            else:
                x = (x.softmax(0) @ w).cumsum(0) + 1
        return x

    options = replace(PREDICATED, debug=replace(PREDICATED.debug, launches="one"))
    fast = compiled(program, arguments(0), options)
    for seed in range(6):
        inputs = arguments(seed)
        same(fast(*inputs), program(*inputs))
    (entry,) = fast.signatures
    made = gpu_program(entry.stages)
    guarded = [launch for _, launch in made.plan.launches if launch.guards]
    assert guarded and any(launch.units_wait for launch in guarded)
    texts = [source.text for source in made.sources]
    looks = "\n    if tl.load(words + "  # around all else of the entry
    assert sum(looks in text[text.index("def stretto_run") :] for text in texts) == len(guarded)


def test_guarded_launches_are_compiled_for_a_gpu(tmp_path: Path) -> None:
    """One of one kernel, and one whose units wait."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        if x[0, 0] > 0:
            x = torch.tanh(x @ w).cumsum(0) @ w
        return x + 1

    for launches in ("one", "per_kernel"):
        options = replace(
            PREDICATED, debug=replace(PREDICATED.debug, launches=launches), cache_dir=tmp_path
        )
        (entry,) = compiled(program, arguments(0), options).signatures
        made = compile_plan(gpu_program(entry.stages), "sm_90", options)
        guarded = [
            kernel.resources.spill_bytes
            for kernel, (_, launch) in zip(made.compiled, made.plan.launches, strict=True)
            if launch.guards
        ]
        assert guarded and not any(guarded)


def test_a_call_between_runs_of_two_kinds_of_arms() -> None:
    """What an arm wrote in an earlier call is not taken for what this call computes."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * 3
        if x[0, 0] > 0:
            y = torch.tanh(x @ w)
        return y.cumsum(0)

    fast = compiled(program, arguments(0), PREDICATED)
    x, w = arguments(0)
    for sign in (1, -1, 1, -1, -1, 1):
        x = x.abs() * sign
        same(fast(x, w), program(x, w))


def test_the_text_of_a_plan_says_which_branches_are_predicated() -> None:
    (entry,) = compiled(nested, arguments(0), PREDICATED).signatures
    made = gpu_program(entry.stages)
    text = print_form(Planned(made.plan, entry.stages.runnable()[1]))
    assert "if " in text and " as predicated {" in text and " guards " in text
    again = parse_form(text, templates=TEMPLATES)
    assert print_form(again) == text
    assert again.plan == made.plan  # pyright: ignore


def test_launches_of_two_arms_need_no_order() -> None:
    plan = plan_of(nested)
    graph = plan_graph(plan)
    verify_graph(graph)
    arms: dict[bool, list[int]] = {False: [], True: []}
    for number, node in enumerate(graph.nodes):
        if node.guards:
            arms[node.guards[0].negated].append(number)
    assert arms[False] and arms[True]
    pairs = {(edge.before, edge.after) for edge in graph.edges}
    assert not pairs & {(a, b) for a in arms[False] for b in arms[True]}
    writers = {a for a, b in pairs if graph.nodes[b].guards}
    assert writers  # what decides comes before what is decided


def test_the_verifier_finds_a_missing_edge_of_a_predicate() -> None:
    graph = plan_graph(plan_of(nested))
    found = 0
    for edge in graph.edges:
        later = graph.nodes[edge.after]
        written = {*graph.nodes[edge.before].writes}
        if written & {guard.register.name for guard in later.guards}:
            if implied(graph.before, (edge.before, edge.after)):
                continue
            fewer = tuple(one for one in graph.edges if one != edge)
            with pytest.raises(VerifyError, match="has to come before .* for register"):
                verify_graph(replace(graph, edges=fewer))
            found += 1
    assert found >= 3


def test_the_verifier_finds_a_wrong_guard() -> None:
    plan = plan_of(nested)
    verify_plan(plan)
    launch = next(launch for _, launch in plan.launches if launch.guards)
    for wrong in ((), tuple(replace(one, negated=not one.negated) for one in launch.guards)):
        with pytest.raises(VerifyError, match="other guards than the predicated branches"):
            verify_plan(changed(plan, launch, replace(launch, guards=wrong)))


def changed(plan: Plan, old: Any, new: Any) -> Plan:
    """The plan with another launch in the place of one."""
    return replace(plan, tree=map_tree(plan.tree, lambda body: new if body is old else body))


def test_what_cannot_be_predicated_is_conditional_and_says_why() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        if x.sum() > 0:
            x = torch.cummax(x @ w, 1)[0]
        if x.sum() > 1:
            for _ in range(3):
                x = x @ w
        return x

    fast = compiled(program, arguments(0), PREDICATED)
    for seed in range(4):
        inputs = arguments(seed)
        same(fast(*inputs), program(*inputs))
    (entry,) = fast.signatures
    reasons = {one.reason for one in gpu_program(entry.stages).branches}
    assert "a library call is in an arm" in reasons
    assert any("is taken apart in an arm" in reason for reason in reasons)
    assert all(one.execution == "conditional" for one in gpu_program(entry.stages).branches)


@pytest.mark.parametrize("function", [nested, until_large])
def test_on_the_driver(cuda: FakeCuda, function: Function) -> None:
    """Predicated launches are ordinary nodes, which are patched; no arm is a body."""
    gpu = on_fake_gpu(cuda, function, arguments(0), PREDICATED)
    for seed in range(5):
        cuda.library.fake_seed(seed)
        inputs = arguments(seed)
        same(tuple(gpu(*inputs)), function(*inputs))
    loops = 2 if function is until_large else 0
    assert len(cuda.log("cuGraphAddNode")) == loops
    assert gpu.run.counts.made == 1 and gpu.run.reads == 0
    assert len(cuda.log("cuGraphLaunch")) == 5


def with_counts(x: Tensor, w: Tensor) -> Tensor:
    """Branches of known ways: twice in a loop, once in an arm, once by itself."""
    for _ in range(3):
        if x[0, 0] > 0:
            x = torch.tanh(x @ w) - 2
            if w[0, 0] > 0:
                x = x.cumsum(0)
        else:
            x = x.flip(0).abs() + 1
    if x[0, 0] > 100:
        x = x.cumsum(1) @ w
    return x


@pytest.mark.parametrize("cost", [0.0, 1.0], ids=["conditional", "predicated"])
def test_ways_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
    """Whatever executes a branch counts the same; what is counted is asked for by the next
    compilation of the program."""
    chosen = {"conditional": 0, "predicated": 0}

    def better(self: Any, best: Any, more: Any, gain: float) -> Any:
        best, other, _ = compare(self, best, more, gain)
        return best, other, cost > 0

    compare = plan_search._PlanSearch.better  # pyright: ignore
    monkeypatch.setattr(plan_search._PlanSearch, "better", better)  # pyright: ignore
    options = replace(APART, debug=replace(APART.debug, branches="auto"), cache_dir=tmp_path)
    fast = compiled(with_counts, arguments(0), options)
    wanted = dict.fromkeys(("x first", "x", "w first", "w", "last"), 0)
    for seed in (0, *range(5)):  # the first call has compiled it
        x, w = arguments(seed)
        same(fast(x, w) if seed or wanted["last"] else with_counts(x, w), with_counts(x, w))
        wanted["last"] += 1
        for _ in range(3):
            wanted["x"] += 1
            if x[0, 0] > 0:
                wanted["x first"] += 1
                wanted["w"] += 1
                wanted["w first"] += int(w[0, 0] > 0)
                x = torch.tanh(x @ w) - 2
                x = x.cumsum(0) if w[0, 0] > 0 else x
            else:
                x = x.flip(0).abs() + 1
    (entry,) = fast.signatures
    for one in gpu_program(entry.stages).branches:
        chosen[one.execution] += 1
    assert chosen["predicated" if cost else "conditional"] == 3
    counts = entry.executable.branch_counts()
    found = sorted((one.total, one.first) for one in counts.values())
    pairs = ((wanted["x"], wanted["x first"]), (wanted["w"], wanted["w first"]))
    assert found == sorted((*pairs, (wanted["last"], 0)))
    assert any(str(wanted["x first"]) in line and str(wanted["x"]) in line
               for line in fast.explain().splitlines() if "if main" in line)  # fmt: skip
    again = compiled(with_counts, arguments(0), options)
    (entry,) = again.signatures
    reasons = [one.reason for one in gpu_program(entry.stages).branches]
    assert any("with the ways that were counted" in reason for reason in reasons)
    names = sorted(counts)
    shares = known_frequencies(entry.stages, names)
    assert shares == {n: (counts[n].first + 0.5) / (counts[n].total + 1) for n in names}
    assert not known_frequencies(begun_without(entry.stages), names)


def begun_without(stages: Any) -> Any:
    """The same compilation, of a user who takes no measurement into account."""
    return replace(stages, options=replace(stages.options, tune="off"))


# ---- unlikely arms ---------------------------------------------------------------------------
UNLIKELY = replace(APART, debug=replace(APART.debug, branches="unlikely"))


def twice_in_a_loop(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A branch in a loop in a branch, another one behind it, and what needs nothing of them."""
    side = w.softmax(0)
    if x[0, 0] > -5:
        for step in range(4):
            if x[0, 1] > 0:
                x = torch.tanh(x @ w) - 1.5 + step
            x = x.flip(1) * 0.9 + 0.3
    if x.sum() > 0:
        x = x.cumsum(0) @ w
    return x, side @ side


@pytest.mark.parametrize("function", [twice_in_a_loop, nested, until_large])
def test_arms_are_the_hosts_and_the_rest_is_replayed(function: Function) -> None:
    fast = compiled(function, arguments(0), UNLIKELY)
    for seed in range(8):
        inputs = arguments(seed)
        same(fast(*inputs), function(*inputs))
    (entry,) = fast.signatures
    counts = entry.executable.counts
    assert counts.left > 9 if function is twice_in_a_loop else counts.left > 3
    # The call that compiled it, too; an arm of several launches is a graph of its own.
    assert 9 + counts.left <= counts.replayed <= 9 + 2 * counts.left
    # Other addresses are in words: a graph of the whole, of each arm, and of what is behind it.
    assert counts.made <= 1 + 2 * entry.executable.exit_count


def test_a_usual_call_is_one_replay() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(x @ w)
            if x[0, 0] > 100:
                x = x.cumsum(0)
        return x + 1

    fast = compiled(program, arguments(0), UNLIKELY)
    (entry,) = fast.signatures
    for seed in range(4):
        before = entry.executable.counts.replayed
        inputs = arguments(seed)
        same(fast(*inputs), program(*inputs))
        assert entry.executable.counts.replayed == before + 1
    assert entry.executable.counts.left == 0


def repairing(x: Tensor, w: Tensor) -> Tensor:
    """Noise is drawn only where a row has become useless."""
    for _ in range(3):
        x = torch.tanh(x @ w) * 1.2
        if x[0].abs().sum() < 0.5:
            x = x + torch.rand_like(x)
    return x @ w


def test_an_arm_that_cannot_be_captured_is_unlikely() -> None:
    options = replace(APART, debug=replace(APART.debug, branches="auto"))
    fast = compiled(repairing, arguments(0), options)
    (entry,) = fast.signatures
    run = entry.executable
    (chosen,) = gpu_program(entry.stages).branches
    assert chosen.execution == "unlikely" and "cannot be captured" in chosen.reason
    assert chosen.reason in fast.explain()
    for scale in (1.0, 1e-4, 1.0):
        for seed in range(3):
            x, w = arguments(seed)
            before = run.counts.replayed, run.counts.left
            torch.manual_seed(seed)
            found = fast(x * scale, w * scale)
            torch.manual_seed(seed)
            same(found, repairing(x * scale, w * scale))
            left = run.counts.left - before[1]
            assert left == (3 if scale < 1 else 0)
            assert run.counts.replayed - before[0] == 1 + left


def test_an_error_behind_an_exit_leaves_nothing_for_the_next_call() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        for step in range(3):
            if x[0, 0] > 0:
                x = x - 1
                if x[0, 0] > 5:
                    raise ValueError("too large")
            x = x @ w + step
        return x

    fast = compiled(program, arguments(0), UNLIKELY)
    x, w = arguments(0)
    for _ in range(2):
        with pytest.raises(ValueError, match="too large"):
            fast(x.abs() + 100, w)
        same(fast(x, w), program(x, w))


@pytest.mark.parametrize("function", [twice_in_a_loop, until_large])
def test_unlikely_arms_on_the_driver(cuda: FakeCuda, function: Function) -> None:
    gpu = on_fake_gpu(cuda, function, arguments(0), UNLIKELY)
    for seed in range(5):
        cuda.library.fake_seed(seed)
        inputs = arguments(seed)
        same(tuple(gpu(*inputs)), function(*inputs))
    counts = gpu.run.counts
    assert counts.left > 3
    assert len(cuda.log("cuGraphLaunch")) == counts.replayed >= 5 + counts.left

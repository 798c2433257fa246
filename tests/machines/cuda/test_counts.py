"""What programs for 132 units cost whatever the GPU: waits in a row, releases, kernels, stores."""

from __future__ import annotations

import re
from functools import cache

import pytest

from stretto.device.analyses import awaited_ends, has_end
from stretto.device.expr import loads
from stretto.device.program import DeviceProgram, Run, Signal, Wait
from stretto.device.tree import If, leaves, walk
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.printer.triton_module import library_text
from stretto.machines.cuda.styles import usual_sources
from stretto.options import Debug, Options
from stretto.schedule.plan import make_plan
from stretto.simulator.simulate import simulate
from stretto.tools.models import find_model
from stretto.tools.simulate import device_machine, scheduled_program, simulate_model
from tests.sampling import sampled

WAITS = {"lstm": 75, "nasrnn": 1002, "rae": 7}
"""LSTM: a wavefront of 73; NASRNN: 1,000 steps; RAE: the inner nodes of a tree that is taken to be
four levels deep, three of which have inner nodes."""
CASES = sampled(["lstm", "nasrnn"], ["lstm"])


@cache
def program(name: str, recursion: str = "calls") -> DeviceProgram:
    machine, _, options = device_machine("h200", None, Options(debug=Debug(recursion=recursion)))
    return scheduled_program(find_model(name), machine, options)


@cache
def source(name: str) -> TritonSource:
    """In the first style that keeps all weights in registers, or else in one that ptxas has
    registers for, with the rest in shared memory."""
    (made,) = usual_sources(make_plan(program(name)))
    return made


def text(name: str) -> str:
    return source(name).text.replace(library_text(), "")


@pytest.mark.whole
@pytest.mark.parametrize("name", [*CASES, "rae"])
def test_waits_in_a_row(name: str) -> None:
    machine, device, _ = device_machine("h200", None, Options())
    found = simulate(program(name), device, costs=machine.costs)
    assert 0.9 * WAITS[name] < found.dependent_waits <= WAITS[name]


LEVELS = 12
"""RAE by levels, along its own tree: one wait for each of seven levels, one for the walk, three for
the table, and one for the result."""


@pytest.mark.whole
def test_a_level_of_a_tree_is_one_wait() -> None:
    """Call by call the same tree takes one for each of 32 inner nodes, and longer."""
    model, found = find_model("rae"), {}
    for how in ("levels", "calls"):
        options = Options(debug=Debug(recursion=how))
        found[how] = simulate_model(model, "h200", followed=True, options=options).result
    assert found["levels"].dependent_waits <= LEVELS
    assert found["calls"].dependent_waits == 32
    assert found["levels"].seconds < 0.75 * found["calls"].seconds


def test_a_leaf_of_a_tree_costs_no_kernel_no_wait_and_no_release() -> None:
    """RAE: an inner node is one kernel, after which all units wait once; those that have computed
    publish that. What is left is the copy of the result, which is published for the next run."""
    made = program("rae")
    encode = made.tree.function("encode")
    (branch,) = (node for node in walk(encode.body) if isinstance(node, If))
    leaf, inner = ([*leaves(arm)] for arm in (branch.then, branch.orelse))
    assert not any(isinstance(item, Run | Wait) for body in leaf for item in body.units[0])
    (body,) = (body for body in leaves(encode.body) if body.kernels)
    assert body in inner
    awaited = awaited_ends(made)
    assert not any(awaited[id(one)] for one in leaves(encode.body))
    for unit, items in enumerate(body.units):
        assert sum(isinstance(item, Wait) for item in items) == 1
        runs = any(isinstance(item, Run) for item in items)
        assert sum(isinstance(item, Signal) for item in items) == runs == (unit < 128)
    assert len(re.findall(r" signal(?:_by)?\(control", text("rae"))) == 2


def test_an_activation_waits_for_memory_once_before_it_branches() -> None:
    """The three numbers of a node are loaded by statements of one leaf, none by another."""
    encode = program("rae").tree.function("encode")
    loading = [
        body
        for body in leaves(encode.body)
        if any(True for item in body.statements for e in item.exprs for _ in loads(e))
    ]
    assert len(loading) == 1
    found = [load for item in loading[0].statements for e in item.exprs for load in loads(e)]
    assert len(found) == 3


def step(name: str) -> str:
    """The function of the kernel with most reductions: the one of a step."""
    functions = re.findall(r"^def k_.*?^    return$", text(name), re.MULTILINE | re.DOTALL)
    return max(functions, key=lambda one: one.count("stretto_row_sum("))


@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_all_loads_of_a_step_come_before_what_is_computed(name: str) -> None:
    """Where registers hold its weights; and its kernel has no barrier of its own."""
    body = step(name)
    pieces = {"nasrnn": 1, "lstm": 2}[name]  # 20 rows of eight warps are 16 and 4
    assert body.count("stretto_row_sum(") == 8 * pieces
    assert "debug_barrier" not in body
    if name == "nasrnn":
        assert body.rindex("tl.load(") < body.index("stretto_row_sum(")


@pytest.mark.parametrize("name", CASES)
def test_a_step_stores_what_the_next_one_reads(name: str) -> None:
    """Two states; and, of LSTM, what the next layer reads."""
    assert step(name).count("tl.store(") == {"nasrnn": 2, "lstm": 2 * 3}[name]


@pytest.mark.parametrize("name", CASES)
def test_no_release_that_nobody_waits_for(name: str) -> None:
    made = program(name)
    awaited = awaited_ends(made)
    ends = [body for f in made.tree.functions for body in leaves(f.body) if has_end(body)]
    inside = [{item for items in body.units for item in items} for body in ends]
    inner = sum(isinstance(item, Signal) for items in inside for item in items)
    signals = text(name).count(" signal(control")
    assert 0 < signals <= sum(bool(awaited[id(body)]) for body in ends) + inner


# ---- weights on chip -------------------------------------------------------------------------
KEPT = {"nasrnn": 8 * 4, "seq2seq": 4 * 4 + 32 + 2, "rae": 2 * 8 + 0.5, "lstm": 16 * 8 + 2 * 4}
"""KiB of a unit's registers that loops hold. NASRNN: 8 products of 4 rows. Seq2seq: 4 of 4 rows,
30 rows of the projection in 32, and 4 biases; RAE: two products of 4 rows, 512 deep, and a bias.
LSTM: of 192 KiB all 16 blocks of 16 rows, and 2 of 16 of those of 4 rows, which take 8."""
SHARED = {"lstm": (14 + 8) * 4096 + (8 + 4) * 32 + 8 * 64 + 16}
"""Bytes of a unit's shared memory: the other 14 of those blocks and 8 of the kernel of the last
layer, numbers of 4 rows, which take those of 8 warps, and of 16, and the number of a layer."""


@pytest.mark.parametrize("name", sampled(sorted(KEPT), ["lstm", "rae"]))
def test_weights_stay_on_chip(name: str) -> None:
    """They are loaded before the loop; what it runs does not load what is laid out by rows and
    depth."""
    made = source(name)
    assert made.kept == KEPT[name] * 1024
    assert made.shared_bytes == SHARED.get(name, 0)
    loads, runs = (
        re.search(rf"^ *{what}", text(name), re.MULTILINE) for what in ("early", "while")
    )
    assert loads is not None and runs is not None
    before, loop = text(name)[: runs.start()], text(name)[runs.start() :]
    assert len(re.findall(r"^ +s_\w+\(", before, re.MULTILINE)) == len(made.shared_reads)
    assert not re.search(r"^ +(early.* = e|s)_\w+\(", loop, re.MULTILINE)
    called = re.findall(r"^ +(k_\w+)\((.*)", loop, re.MULTILINE)
    given = [k for k, values in called if "early" in values or "stretto_kept(" in function(name, k)]
    assert len(given) == len(made.shares)
    again = sum(len(re.findall(r"tl.load\(.*\(x\d+ \* \d+ \+", function(name, k))) for k in given)
    parts = {share for kernel in made.shares.values() for share in kernel.values()}
    assert not made.lacking and not again and parts == {1.0}


def function(name: str, of: str) -> str:
    found = re.search(rf"^def {of}\(.*?^    return", text(name), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("name", [*CASES, "attention"])
def test_waits_in_loops_read_no_table(name: str) -> None:
    """Whom a unit waits for in a loop is the same in each iteration, and is read before it."""
    functions = re.split(r"^(?=@triton\.jit|def )", text(name), flags=re.MULTILINE)
    looping = [f for f in functions if re.search(r"^ +while .*(?:\n .*)*= wait", f, re.MULTILINE)]
    assert looping
    for function in looping:
        loop = function[function.index("    while ") :]
        assert "tables" not in loop, loop
        assert "wait_by(" in loop or "wait(" in loop

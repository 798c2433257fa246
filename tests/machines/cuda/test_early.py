"""Constants that are loaded before a task may begin: the split of a kernel, and its use."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import stretto
from stretto.device.expr import Buffer
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.cuda.printer.early import EarlyLoads, split_early
from stretto.machines.cuda.printer.kernel import TritonKernel
from stretto.machines.cuda.printer.row_pieces import shared_bytes
from stretto.machines.cuda.printer.scalar import BARRIER
from stretto.machines.statements import python_function
from stretto.machines.terms import Term, call, infix, literal, variable
from stretto.options import Debug, Options

X = Buffer("x", DType.F32, (256,), "input", 0)
W = Buffer("w", DType.F32, (64, 256), "constant", 1)
Y = Buffer("y", DType.F32, (64,), "local")

UNIT, OK, TASK = (variable(name) for name in ("unit", "ok", "task"))
P = [variable(f"p{n}") for n in range(3)]
BLOCK = (16, 256)


def load(name: str, buffer: Buffer, pointer: Term, shape: tuple[int, ...] = BLOCK) -> code.Assign:
    return code.Assign(
        variable(name), replace(call("tl.load", pointer), reads=(buffer,)), shape=shape
    )


G0 = code.Assign(variable("g0"), TASK * 16)
TOTAL = code.Assign(variable("a1"), call("tl.full", "[16, 256]", 0, "tl.float32"))
LANES = code.Assign(variable("x2"), literal("tl.arange(0, 256)[None, :]"), shape=(1, 256))
INPUT = load("v3", X, P[0] + variable("x2"), (1, 256))
WEIGHTS = load("v4", W, P[1] + variable("g0") * 256 + variable("x2"))
ADDED = code.Assign(variable("a1"), variable("a1") + variable("v3") * variable("v4"))
STORED = code.Store(Y, P[2] + variable("g0"), call("stretto_row_sum", variable("a1")))
PRODUCT = (G0, LANES, INPUT, WEIGHTS, TOTAL, ADDED, STORED, code.Return())


def kernel(body: code.Block = PRODUCT) -> TritonKernel:
    function = code.Function((*P, variable("control"), TASK), body)
    return TritonKernel(function, (X, W, Y), ())


def changed(old: code.Statement, *new: code.Statement) -> code.Block:
    return tuple(s for statement in PRODUCT for s in (new if statement == old else (statement,)))


def test_only_the_weights_come_first() -> None:
    split = split_early(kernel())
    assert split is not None
    assert split.values == (variable("v4"),)
    assert split.constants == (1,)
    assert split.nbytes == 16 * 256 * 4
    assert split.early.parameters == (P[1], TASK)
    assert split.early.body == (G0, LANES, WEIGHTS, code.Return((variable("v4"),)))
    assert split.body.parameters == (*P, variable("control"), TASK, variable("v4"))
    assert split.body.body == changed(WEIGHTS)


def test_what_stays_where_it_is() -> None:
    def stays(body: code.Block) -> bool:
        return split_early(kernel(body)) is None

    no_constant = load("v4", X, P[0] + variable("g0") * 256 + variable("x2"))
    assert stays(changed(WEIGHTS, no_constant))
    read_from_memory = load("g0", X, P[0], ())
    assert stays(changed(G0, read_from_memory))
    may_fail = code.Assign(variable("g0"), call("stretto_checked", TASK, effect=True))
    assert stays(changed(G0, may_fail))
    in_a_loop = code.For(variable("c5"), literal(0), literal(9), body=(WEIGHTS,))
    assert stays(changed(WEIGHTS, in_a_loop))
    assert not stays(changed(TOTAL))


def test_a_name_that_changes_is_no_place() -> None:
    again = code.Assign(variable("x2"), variable("x2") + 1)
    assert split_early(kernel(changed(INPUT, again, INPUT))) is None


def test_little_is_not_worth_it() -> None:
    small = load("v4", W, WEIGHTS.value, (16, 16))
    assert split_early(kernel(changed(WEIGHTS, small))) is None


# ---- where the loads go ----------------------------------------------------------------------
def run(name: str, first: Term = UNIT) -> code.Run:
    return code.Run(name, (*P, variable("control"), TASK), first, literal(4), literal(5), 4)


WAIT = code.Wait(call("wait", UNIT), OK)


def early(budget: int = 40_000, shared: int = 0, **kernels: TritonKernel) -> EarlyLoads:
    names = iter(range(99))
    return EarlyLoads(
        kernels or {"one": kernel(), "two": kernel()},
        lambda hint, function, inline, kernel: hint,
        lambda hint: variable(f"{hint}_{next(names)}"),
        budget,
        shared=shared,
    )


def text(loads: EarlyLoads, *block: code.Statement) -> list[str]:
    return python_function("f", code.Function((), loads.placed(block))).splitlines()[1:]


def calls(lines: list[str]) -> list[str]:
    """The functions that are called, a wait as `wait`, each with the indentation of its line."""
    found = [re.match(r"( *)(?:.* = )?(wait|[eks]_\w+)\(", line) for line in lines]
    return [match[1][4:] + match[2] for match in found if match]


def test_loads_go_ahead_of_the_waits() -> None:
    only = code.If(infix(UNIT, "==", 3), (WAIT,))
    assert calls(text(early(), only, WAIT, BARRIER, run("one"))) == [
        "e_one", "    wait", "wait", "    k_one",
    ]  # fmt: skip


def test_a_kernel_with_many_tasks_loads_for_itself() -> None:
    many = replace(run("one"), tasks=0)
    assert calls(text(early(), WAIT, many)) == ["wait", "    k_one"]


def test_a_loop_loads_what_every_iteration_runs() -> None:
    branch = code.If(variable("c"), (run("two"),))
    loop = code.Loop(OK, body=(code.Section((WAIT, run("one"))), branch))
    assert calls(text(early(), loop)) == ["e_one", "    wait", "        k_one", "            k_two"]


def test_other_tasks_of_the_kernel_do_not_take_the_values() -> None:
    """They would be weights of other rows."""
    other = run("one", UNIT + 1)
    lines = text(early(), code.Loop(OK, body=(run("one"), code.If(variable("c"), (other,)))))
    ours, theirs = [line for line in lines if "k_one" in line]
    assert "early_" in ours and "early_" not in theirs


def test_registers_run_out_and_come_back() -> None:
    loads = early(20_000)
    one = code.Loop(OK, body=(run("one"), run("two")))
    two = code.Loop(OK, body=(run("two"),))
    found = [line for line in calls(text(loads, one, two)) if line.startswith("e_")]
    assert found == ["e_one", "e_two"]
    assert loads.budget == 20_000 and not loads.held


def two_loads(name: str, rows: int = 8) -> code.Block:
    """Weights as warps have them, and a number for each row."""
    deep = load("v4", W, WEIGHTS.value, (128, 4, rows // 4))
    more = load("v5", W, WEIGHTS.value + 128, (128, 4, rows // 4))
    each = load("v6", W, WEIGHTS.value + 256, (32, 4, rows // 4))
    return changed(WEIGHTS, each, deep, more)


def test_what_a_block_takes_in_the_registers_of_all_warps() -> None:
    few, many = (split_early(kernel(two_loads("k")), warps) for warps in (4, 8))
    assert few is not None and many is not None
    assert few.sizes == (1024, 4096, 4096)
    assert many.sizes == (2048, 8192, 8192)  # four of the warps have the same as the others


def test_a_loop_keeps_the_large_blocks_that_fit() -> None:
    loads = early(5200, one=kernel(two_loads("one")))
    lines = text(loads, code.Loop(OK, body=(run("one"),)))
    (kept,) = [line for line in lines if "e_one" in line]
    assert kept.count("early_") == 1 and "v4" in kept  # a number for each row is not worth it
    (first,) = [line for line in lines if "task = " in line]
    assert "stretto_again(unit)" in first
    assert (loads.kept, loads.lacking) == (4096, 4096 + 1024)
    assert loads.shares == {"one": {"w": 4096 / (2 * 4096 + 1024)}}


def test_where_everything_fits_addresses_may_stay_too() -> None:
    lines = text(early(one=kernel(two_loads("one"))), code.Loop(OK, body=(run("one"),)))
    assert not any("stretto_again" in line for line in lines)


def test_inner_loops_have_registers_first() -> None:
    loads = early(20_000)
    inner = code.Loop(OK, body=(run("two"),))
    lines = text(loads, code.Loop(OK, body=(run("one"), inner)))
    assert [line for line in calls(lines) if "e_" in line] == ["    e_two"]
    assert loads.budget == 20_000 and not loads.held


def test_states_of_recursive_functions_keep_what_they_read() -> None:
    def states(recurs: bool) -> list[str]:
        state = code.If(infix(variable("state"), "==", 3), (WAIT, run("one")), recurs=recurs)
        return calls(text(early(), code.Loop(OK, body=(state,))))

    assert states(True) == ["e_one", "        wait", "            k_one"]
    assert states(False) == ["        e_one", "        wait", "            k_one"]


# ---- shared memory ---------------------------------------------------------------------------
def test_shared_memory_keeps_what_registers_have_no_room_for() -> None:
    loads = early(5200, 9999, one=kernel(two_loads("one")))
    lines = text(loads, code.Loop(OK, body=(run("one"),)))
    assert calls(lines) == ["s_one", "e_one", "        k_one"]
    assert lines[1].strip() == "tl.debug_barrier()"
    assert (loads.kept, loads.lacking, loads.used) == (4096, 0, 4096 + 1024)
    assert loads.shares == {"one": {"w": 1.0}}
    assert loads.read == {"one": 4096 + 1024}
    assert any("stretto_again" in line for line in lines)  # registers are as scarce as before


def test_the_task_loads_from_shared_memory_before_the_first_use() -> None:
    body = two_loads("one")
    split = split_early(kernel(body), 4, [variable("v4")], {variable("v5"): 4096})
    assert split is not None and split.fill is not None
    assert split.values == (variable("v4"),) and split.shared == ((W, 4096),)
    fill = python_function("s", split.fill)
    assert "stretto_keep(end, 4096, v5, 128, 4, 2)" in fill and fill.count("v5 =") == 1
    lines = python_function("k", split.body).splitlines()
    assert not any("v5" in line for line in lines)  # nothing here uses it
    used = code.Assign(variable("a1"), variable("a1") + variable("v5"))
    kernels = kernel(tuple(s for one in body for s in ((used, one) if one == STORED else (one,))))
    split = split_early(kernels, 4, [variable("v4")], {variable("v5"): 4096})
    assert split is not None
    lines = [line.strip() for line in python_function("k", split.body).splitlines()]
    place = lines.index("v5 = stretto_kept(end, 4096, tl.float32, 128, 4, 2)")
    assert lines[place + 1] == "a1 = a1 + v5"
    assert lines.index("end = stretto_shared_end()") < place


def test_no_more_in_shared_memory_than_there_is_room_for() -> None:
    loads = early(5200, 4096, one=kernel(two_loads("one")))
    text(loads, code.Loop(OK, body=(run("one"),)))
    assert (loads.kept, loads.lacking, loads.used) == (4096, 1024, 4096)
    assert loads.shares == {"one": {"w": (4096 + 4096) / (2 * 4096 + 1024)}}


def test_shared_memory_is_filled_before_the_outermost_loop() -> None:
    """At most once in a launch: nobody stores where others may still read."""
    loads = early(0, 99_999)
    inner = code.Loop(OK, body=(run("two"),))
    loop = code.Loop(OK, body=(run("one"), code.For(variable("n"), literal(0), literal(2)), inner))
    branch = code.If(variable("c"), (loop,))
    assert calls(text(loads, branch)) == [
        "    s_one", "    s_two", "            k_one", "                k_two",
    ]  # fmt: skip
    assert loads.used == 2 * 16 * 256 * 4 and not loads.lacking


def test_inner_loops_have_shared_memory_first() -> None:
    loads = early(0, 20_000)
    inner = code.Loop(OK, body=(run("two"),))
    lines = text(loads, code.Loop(OK, body=(run("one"), inner)))
    assert [line for line in calls(lines) if "s_" in line] == ["s_two"]


def test_tasks_that_are_not_known_before_the_loop_are_not_kept() -> None:
    loads = early(0, 99_999)
    other = run("one", variable("turn") + 1)
    text(loads, code.Loop(OK, body=(other,)))
    assert not loads.used and loads.lacking


def test_what_cannot_be_in_shared_memory() -> None:
    small = Buffer("w", DType.I8, (64, 256), "constant", 1)
    assert not shared_bytes(load("v4", small, WEIGHTS.value))
    assert not shared_bytes(load("v4", W, WEIGHTS.value, (2, 2, 2, 2)))
    assert shared_bytes(load("v4", W, WEIGHTS.value)) == 16 * 256 * 4
    assert shared_bytes(load("v4", W, WEIGHTS.value, ())) == 16
    assert shared_bytes(replace(load("v4", W, WEIGHTS.value, (32, 4, 2)), alike=True)) == 32
    wide = Buffer("w", DType.I64, (64, 256), "constant", 1)
    assert shared_bytes(load("v4", wide, WEIGHTS.value, (64,))) == 512


class Recurrence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.out = nn.Linear(width, 3)

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(1, xs.shape[1])
        for x in xs:
            h, c = self.cell(x.unsqueeze(0), (h, c))
        return self.out(h)


@pytest.mark.parametrize("units", [1, 3, 16])
def test_a_loop_keeps_its_weights(units: int) -> None:
    torch.manual_seed(0)
    model, xs = Recurrence(72).requires_grad_(False), torch.randn(5, 72)
    fast = stretto.compile(
        model, backend="cuda-emulated", options=Options(units=units, debug=Debug(unroll=0))
    )
    for _ in range(2):
        torch.testing.assert_close(fast(xs), model(xs), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    entry = source.text[source.text.index("def stretto_run") :]
    if units == 16:  # with few units a unit has several tasks, and no registers for all
        pieces = re.findall(r"def piece_main.*?\n    return", source.text, re.DOTALL)
        (loop,) = [piece for piece in pieces if "while ok" in piece]
        assert loop.index("early") < loop.index("while ok")
        assert re.search(r"= piece_main\w*\(", entry)


def test_weights_are_under_way_while_a_unit_waits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
    x = torch.randn(1, 512)
    fast = stretto.compile(
        model.requires_grad_(False), backend="cuda-emulated", options=Options(units=132)
    )
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    pieces = re.findall(r"def piece_main.*?\n    return", source.text, re.DOTALL)
    early = [piece for piece in pieces if "= e_" in piece]
    assert early
    for piece in early:
        load, wait = piece.index("= e_"), piece.index("ok = wait(")
        assert load < wait < piece.index("k_", wait)
        assert "early" in piece[piece.index("k_", wait) :]


COMBINE = nn.Linear(2 * 48, 48).requires_grad_(False)


def encode(n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if n.sum() <= 1:
        return x * n
    left, right = encode(n - 1, x), encode(n - 2, torch.tanh(x))
    return torch.tanh(COMBINE(torch.cat([left, right])))


@pytest.mark.parametrize("units", [1, 5, 20])
def test_a_recursion_keeps_its_weights(units: int) -> None:
    """Those of the only product; no call of it is too many, and no call at all is none too few."""
    x = torch.randn(48)
    options = Options(units=units, debug=Debug(unroll=0))
    fast = stretto.compile(encode, backend="cuda-emulated", options=options)
    for n in (5, 1, 0, 3):
        depth = torch.tensor(n)
        torch.testing.assert_close(fast(depth, x), encode(depth, x), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    if units == 20:  # a unit with several tasks keeps nothing
        entry = source.text[source.text.index("def stretto_run") :]
        assert source.recursive and source.kept and not source.lacking
        assert entry.index("= e_") < entry.index("while ok")

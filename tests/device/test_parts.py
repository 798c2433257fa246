"""Grid dims of symbolic extent that are cut into parts: tasks, regions, waits, and their proof."""

from __future__ import annotations

import re

import pytest
import torch

from stretto.device.boxes import Boxes
from stretto.device.evaluate import tile_ranges
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel, Piece, TileDim
from stretto.device.program import Wait
from stretto.device.regions import Region, covers, overlap
from stretto.device.text import parse_program, print_program
from stretto.device.tree import leaves
from stretto.device.verifier import verify
from stretto.device.verifier.cells import Cells
from stretto.errors import VerifyError
from stretto.interp.interpreter import run
from stretto.ir.sizes import symbol
from stretto.ir.types import DType
from stretto.machines.cpu.templates import TEMPLATES
from tests.backends import Built, assert_close, built
from tests.support import program_of
from tests.symbolic import Example

N = symbol("n", 0)
ROWS = Buffer("rows", DType.F32, (N, 8))


@pytest.mark.parametrize("tile", [1, 6])
@pytest.mark.parametrize("parts", [1, 3, 4])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 24, 25])
def test_the_parts_are_the_whole_once(n: int, parts: int, tile: int) -> None:
    kernel = Kernel("k", (TileDim(N, tile, parts),), ())
    assert kernel.is_static and kernel.tasks == parts
    ends = [tile_ranges(kernel, task, {"size.n": n})[0] for task in range(parts)]
    assert [value for first, last in ends for value in range(first, last)] == list(range(n))
    assert all(first % tile == 0 or first == n for first, _ in ends)
    tiles = [-(-(last - first) // tile) for first, last in ends]
    assert max(tiles) - min(tiles) <= 1 and (n == 0 or tiles[0] > 0)


def region(first: int, last: int, cut: TileDim, columns: tuple[int, int] | None = None) -> Region:
    return Region(ROWS, ROWS.shape, (Piece(cut, first, last), columns), write=True)


def test_parts_of_one_cut_are_compared() -> None:
    cut, other = TileDim(N, 1, 4), TileDim(N, 2, 4)
    assert not overlap(region(0, 2, cut), region(2, 4, cut))
    assert overlap(region(0, 3, cut), region(2, 4, cut))
    assert not overlap(region(0, 2, cut, (0, 4)), region(0, 2, cut, (4, 8)))
    assert overlap(region(0, 1, cut), region(3, 4, other))
    assert covers(region(0, 3, cut), region(1, 3, cut))
    assert not covers(region(0, 3, cut), region(1, 3, other))
    pairs = [(region(0, 2, cut), region(2, 4, cut)), (region(0, 1, cut), region(3, 4, other))]
    for a, b in pairs:
        assert Boxes.of([a]).overlap(Boxes.of([b]))[0, 0] == overlap(a, b)


def test_cells_are_the_tiles_of_a_cut() -> None:
    cut, other = TileDim(N, 1, 4), TileDim(N, 2, 4)
    tasks = [region(n, n + 1, cut, (0, 4)) for n in range(4)] + [region(0, 2, other, (4, 8))]
    cells = Cells.of(ROWS, tasks, ())
    known = cells.none()
    for task in tasks[:4]:
        assert cells.is_exact(task)
        known[cells.region(task)] = True
    assert known.sum() == 4 and len(known) == 8
    assert not cells.is_exact(tasks[4])
    known[cells.region(tasks[4])] = True
    assert known.all()


CHAIN = Example(
    "chain",
    """
    func @main[0 <= n](%x: f32[n, 40]) -> (f32[n, 40]) {
      %a = aten._softmax.default(%x, 1, False) : f32[n, 40]
      %b = aten.neg.default(%a) : f32[n, 40]
      %c = aten._softmax.default(%b, 1, False) : f32[n, 40]
      return %c
    }
    """,
    lambda x: (-x.softmax(1)).softmax(1),
    (0, 1, 2, 9, 64),
)


def chain(units: int) -> Built:
    return built(program_of(CHAIN.text), units, fuse=False)


@pytest.mark.parametrize("units", [2, 3])
def test_who_reads_its_own_rows_does_not_wait(units: int) -> None:
    made = chain(units)
    (schedule,) = leaves(made.device.tree.main.body)
    assert not any(isinstance(item, Wait) for items in schedule.units for item in items)
    for number, binding in enumerate(CHAIN.bindings()):
        inputs = CHAIN.inputs(binding)
        assert_close(made.emulator(seed=number)(inputs), CHAIN.expected(inputs))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("run neg 8 count 8", "run neg 7 count 9", "task 7 of kernel neg runs 2 times"),
        ("run neg 8 count 8", "run neg 9 count 7", "runs 15 of its 16 tasks"),
        (
            "kernel softmax.2 1.0 grid (#n/1 in 16",
            "kernel softmax.2 1.0 grid (#n/3 in 16",
            "race on",
        ),
        ("(#n/1 in 16)", "(#n/1 in 0)", "into 0 parts"),
        (
            "), -87.0:f32))), main.sum.2[i0]",
            "), -87.0:f32))), main.sum.2[#n + -1*i0 + -1]",
            "race on",
        ),
        (
            "main.max.4[i0] = main.b.3[i0, i1]",
            "main.max.4[i0] = main.b.3[#n + -1*i0 + -1, i1]",
            "race on",
        ),
    ],
)
def test_mutants_are_refused(old: str, new: str, reason: str) -> None:
    text = re.sub(r"(kernel \S+) \S+ grid", r"\1 1.0 grid", print_program(chain(2).device))
    assert old in text, text
    with pytest.raises(VerifyError, match=reason):
        verify(parse_program(text.replace(old, new, 1), TEMPLATES))


# ---- slots -----------------------------------------------------------------------------------
def _turned(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = (x @ w).flip(0) @ v
    return x


SLOTS = Example(
    "slots",
    """
    func @main[0 <= n](%x: f32[n, 40], %w: f32[40, 24], %v: f32[24, 40]) -> (f32[n, 40]) {
      %a = aten.mm.default(%x, %w) : f32[n, 24]
      %b = aten.flip.default(%a, (0,)) : f32[n, 24]
      %c = aten.mm.default(%b, %v) : f32[n, 40]
      %d = aten.mm.default(%c, %w) : f32[n, 24]
      %e = aten.flip.default(%d, (0,)) : f32[n, 24]
      %f = aten.mm.default(%e, %v) : f32[n, 40]
      %g = aten.mm.default(%f, %w) : f32[n, 24]
      %h = aten.flip.default(%g, (0,)) : f32[n, 24]
      %i = aten.mm.default(%h, %v) : f32[n, 40]
      return %i
    }
    """,
    _turned,
    (0, 1, 9, 30),
)


@pytest.mark.parametrize("units", [1, 3])
def test_buffers_of_symbolic_size_share_slots(units: int) -> None:
    made = built(program_of(SLOTS.text), units, fuse=False)
    frame = made.device.frame("main")
    assert len(frame.slots) == (2 if units == 1 else 3) < len(frame.sized) == 5
    for number, binding in enumerate(SLOTS.bindings()):
        inputs = SLOTS.inputs(binding)
        assert_close(made.emulator(seed=number)(inputs), SLOTS.expected(inputs), scale=100)


BOTH = """
    func @main[0 <= m, 0 <= n](%x: f32[n, 4], %w: f32[4, m], %v: f32[m, 4]) -> (f32[n, 4]) {
      %a = aten.mm.default(%x, %w) : f32[n, m]
      %b = aten.mm.default(%a, %v) : f32[n, 4]
      %c = aten.cat.default((%b, %b, %b), 1) : f32[n, 12]
      %d = aten.exp.default(%c) : f32[n, 12]
      %e = aten.slice.Tensor(%d, 1, 1, 5) : f32[n, 4]
      %f = aten.mm.default(%e, %w) : f32[n, m]
      %g = aten.mm.default(%f, %v) : f32[n, 4]
      return %g
    }
    """


def test_a_slot_is_as_large_as_the_largest_of_its_buffers() -> None:
    frame = built(program_of(BOTH), 1, fuse=False).device.frame("main")
    assert [str(slot) for slot in frame.slots] == [
        "-64*((min(-4*m*n, -48*n)) // 64)",
        "-64*((-16*n) // 64)",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "max(4*(#m * #n), 48*#n)",
            "max(4*(#m * #n), 44*#n)",
            "main.c.3 may reach beyond its slot",
        ),
        (
            "max(4*(#m * #n), 48*#n)",
            "max(2*(#m * #n), 48*#n)",
            "main.a.1 may reach beyond its slot",
        ),
        ("64*(-1*max", "60*(-1*max", "may end where nothing may begin"),
        ("main.b.2 at slot 1", "main.b.2 at slot 0", "which share memory"),
        ("main.f.5 at slot 0", "main.f.5 at slot 1", "may reach beyond its slot"),
        ("main.e.4 at slot 1", "main.e.4 at slot 0", "which share memory"),
        ("main.e.4[i0, i2], in1", "main.b.2[i0, i2], in1", "may not be written before"),
    ],
)
def test_slots_that_are_wrong_are_refused(old: str, new: str, reason: str) -> None:
    text = print_program(built(program_of(BOTH), 1, fuse=False).device)
    assert old in text, text
    with pytest.raises(VerifyError, match=reason):
        verify(parse_program(text.replace(old, new, 1), TEMPLATES))


def test_reuse_of_a_slot_waits() -> None:
    device = built(program_of(SLOTS.text), 3, fuse=False).device
    lines = print_program(device).splitlines()
    waits = [number for number, line in enumerate(lines) if line.strip().startswith("wait")]
    assert waits
    for number in waits:
        mutant = "\n".join([*lines[:number], *lines[number + 1 :]])
        with pytest.raises(VerifyError):
            verify(parse_program(mutant + "\n", TEMPLATES))


def test_a_proof_names_the_ranges() -> None:
    proof = verify(chain(2).device)
    assert str(proof) == "for 0 <= n: 26 accesses in range"
    assert str(verify(built(program_of(BOTH), 1).device)).startswith("for 0 <= m, 0 <= n: ")
    taken = """
    func @main[1 <= n](%x: f32[n, 3], %p: i64[4]) -> (f32[4, 3]) {
      %a = aten.index_select.default(%x, 0, %p) : f32[4, 3]
      return %a
    }
    """
    assert str(verify(built(program_of(taken), 1).device)).endswith(", 1 checked in the run")
    fixed = (
        "func @main(%x: f32[3]) -> (f32[3]) {\n  %a = aten.neg.default(%x) : f32[3]\n  return %a\n}"
    )
    assert str(verify(built(program_of(fixed), 1).device)) == "for its sizes"


# ---- boxes of one operator -------------------------------------------------------------------
HALVES = """
    func @main[0 <= n](%x: f32[n, 8]) -> (f32[n, 32]) {
      %w = constant "w" : f32[8, 64]
      %y = aten.mm.default(%x, %w) : f32[n, 64]
      %a = aten.slice.Tensor(%y, 1, 0, 32) : f32[n, 32]
      %b = aten.slice.Tensor(%y, 1, 32, 64) : f32[n, 32]
      %s = aten.sigmoid.default(%a) : f32[n, 32]
      %c = aten.mul.Tensor(%s, %b) : f32[n, 32]
      return %c
    }
    """


def test_tasks_compute_several_boxes_of_one_operator() -> None:
    """As the gates of an LSTM cell: a task has the same columns of each half."""
    made = built(program_of(HALVES), 2)
    assert "box (#n @ 0, 32 @ 1 + 32)" in print_program(made.device)
    for size in (0, 1, 5):
        given = [torch.randn(size, 8)]
        assert_close(made.emulator(seed=size)(given), run(program_of(HALVES), given))

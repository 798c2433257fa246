"""Functions that parallel loops call: each unit runs them by itself, in frames of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from stretto.device.forms import Scheduled
from stretto.device.program import DeviceProgram, FrameLayout, Schedule, Wait
from stretto.device.runs import functions_in_parallel_loops
from stretto.device.text import parse_form, print_form
from stretto.device.tree import Call, Leaf, Node, Seq, is_parallel, map_leaves, walk
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from tests import backends
from tests.support import program_of

FOREST = """
func @main(%x: f32[4, 3], %deep: i64[4]) -> (f32[4, 3]) {
  %z = aten.zeros.default((4, 3), dtype=torch.float32) : f32[4, 3]
  %rows = for %t in (0, 4, 1) parallel carry (%a = %z) {
    %r = aten.select.int(%x, 0, %t) : f32[3]
    %k = aten.select.int(%deep, 0, %t) : i64[]
    %y = call @f(%k, %r) : f32[3]
    %one = aten.unsqueeze.default(%y, 0) : f32[1, 3]
    %u = stretto.narrow_scatter.default(%a, %one, 0, %t) : f32[4, 3]
    yield %u
  } : f32[4, 3]
  %e = aten.exp.default(%rows) : f32[4, 3]
  return %e
}
func @f(%k: i64[], %x: f32[3]) -> (f32[3]) {
  %go = aten.gt.Scalar(%k, 0) : bool[]
  %y = if %go {
    %less = aten.sub.Tensor(%k, 1) : i64[]
    %t = aten.tanh.default(%x) : f32[3]
    %g = call @g(%t) : f32[3]
    %b = call @f(%less, %g) : f32[3]
    %s = aten.add.Tensor(%b, %x) : f32[3]
    yield %s
  } else {
    yield %x
  } : f32[3]
  return %y
}
func @g(%x: f32[3]) -> (f32[3]) {
  %s = aten.softmax.int(%x, 0) : f32[3]
  return %s
}
"""


@cache
def made() -> DeviceProgram:
    return backends.built(program_of(FOREST), 2).device


def with_frame(name: str, frame: FrameLayout) -> DeviceProgram:
    frames = {**dict(made().frames), name: frame}
    return replace(made(), frames=tuple(frames.items()))


def with_bodies(**bodies: Node[Schedule]) -> DeviceProgram:
    tree = made().tree
    functions = tuple(f.with_body(bodies.get(f.name, f.body)) for f in tree.functions)
    return replace(made(), tree=replace(tree, functions=functions))


def body(name: str) -> Node[Schedule]:
    return made().tree.function(name).body


def rejected(program: DeviceProgram, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify(program)


def test_each_unit_has_frames_of_its_own() -> None:
    assert functions_in_parallel_loops(made().tree) == {"f", "g"}
    verify(made())
    frames = dict(made().frames)
    assert [frames[name].copies for name in ("main", "f", "g")] == [1, 2, 2]
    assert frames["f"].nbytes == frames["g"].nbytes
    assert frames["f"].end == 2 * frames["f"].nbytes
    assert frames["f"].stride(frames["f"].placements[0][0]) == frames["f"].nbytes
    assert all(not leaf.steps for name in "fg" for leaf in _schedules(body(name)))


def test_the_text_has_the_copies() -> None:
    built = backends.built(program_of(FOREST), 2)
    text = print_form(Scheduled(built.device, built.interface))
    assert " copies 2" in text
    assert print_form(parse_form(text)) == text


def test_frames_that_units_would_share() -> None:
    frame = made().frame("f")
    rejected(with_frame("f", replace(frame, copies=1)), "f has 1 frames side by side")
    rejected(with_frame("f", replace(frame, copies=3)), "f has 3 frames side by side")
    rejected(with_frame("f", replace(frame, nbytes=frame.nbytes + 64)), "of different sizes")
    main = made().frame("main")
    rejected(with_frame("main", replace(main, copies=2)), "main has 2 frames side by side")


def test_what_others_call_too() -> None:
    call = next(node for node in walk(body("main")) if isinstance(node, Call))
    rejected(with_bodies(main=Seq((body("main"), call))), "called in parallel loops and by main")


def test_a_leaf_that_counts_steps() -> None:
    counted = map_leaves(body("g"), lambda leaf: replace(leaf, steps=1))
    rejected(with_bodies(g=counted), "publishes steps, which units count apart")


def test_units_that_do_not_meet() -> None:
    """Even where nothing that they computed is read: their frames are used again."""
    main = body("main")
    assert isinstance(main, Seq)
    place = next(n for n, node in enumerate(main.children) if is_parallel(node))
    before, meeting, behind = (
        main.children[: place + 1],
        main.children[place + 1],
        main.children[place + 2 :],
    )
    assert isinstance(meeting, Leaf)
    rejected(with_bodies(main=Seq((*before, *behind))), "do not meet")
    alone = replace(
        meeting.body,
        units=tuple(
            tuple(item for item in items if unit or not isinstance(item, Wait))
            for unit, items in enumerate(meeting.body.units)
        ),
    )
    rejected(with_bodies(main=Seq((*before, Leaf(alone), *behind))), "do not meet")


def test_loops_in_functions() -> None:
    loop = next(node for node in walk(body("main")) if is_parallel(node))
    inner = replace(loop, body=body("g"))
    rejected(with_bodies(g=inner), "g has a parallel loop, and is called in another one")


def _schedules(node: Node[Schedule]) -> list[Schedule]:
    return [item.body for item in walk(node) if isinstance(item, Leaf)]

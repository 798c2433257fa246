"""Pending accesses: what needs a wait, and what another wait implies."""

from __future__ import annotations

from stretto.device.regions import Region
from stretto.schedule.hazards import Layout, LeafHazards, State, Touch, covering
from tests.schedule.trees import buffer

H, N = buffer("h", 12), buffer("n", 12)


def part(low: int, high: int, *, write: bool = False, of=H) -> Region:  # pyright: ignore
    return Region(of, of.shape, ((low, high),), write)


def leaf(units: int, state: State | None = None, layout: Layout | None = None) -> LeafHazards:
    return LeafHazards(state or State(), units, layout or Layout())


def test_reads_do_not_wait_for_reads() -> None:
    hazards = leaf(2)
    hazards.touch(0, (part(0, 6),), 1)
    assert hazards.needed(1, (part(0, 6),)) == {}


def test_a_consumer_waits_for_the_producer() -> None:
    hazards = leaf(2)
    hazards.touch(0, (part(0, 6, write=True),), 1)
    assert hazards.needed(1, (part(5, 7),)) == {0: 1}
    assert hazards.needed(1, (part(6, 7),)) == {}
    assert hazards.needed(0, (part(0, 6),)) == {}


def test_a_writer_waits_for_readers() -> None:
    hazards = leaf(3)
    hazards.touch(0, (part(0, 6),), 1)
    hazards.touch(1, (part(3, 9),), 2)
    assert hazards.needed(2, (part(4, 5, write=True),)) == {0: 1, 1: 2}


def test_a_wait_is_made_once() -> None:
    hazards = leaf(2)
    hazards.touch(0, (part(0, 6, write=True),), 1)
    hazards.publish(1)
    hazards.wait(1, 0, 1)
    assert hazards.needed(1, (part(0, 6),)) == {}
    assert hazards.implied == 1


def test_a_wait_gives_what_the_other_knew() -> None:
    """Unit 1 has waited for unit 0 before it published step 2: unit 2 need not wait for unit 0."""
    hazards = leaf(3)
    hazards.touch(0, (part(0, 6, write=True),), 1)
    hazards.publish(1)
    hazards.wait(1, 0, 1)
    hazards.touch(1, (part(6, 12, write=True),), 2)
    hazards.publish(2)
    assert hazards.needed(2, (part(0, 12),)) == {1: 2}


def test_knowledge_that_came_after_the_signal_does_not_count() -> None:
    hazards = leaf(3)
    hazards.touch(0, (part(0, 6, write=True),), 1)
    hazards.touch(1, (part(6, 12, write=True),), 1)
    hazards.publish(1)
    hazards.wait(1, 0, 1)
    assert hazards.needed(2, (part(0, 12),)) == {0: 1, 1: 1}


def test_between_leaves_it_is_known_who_knows() -> None:
    hazards = leaf(3)
    hazards.touch(0, (part(0, 6, write=True),), 1)
    hazards.publish(1)
    hazards.wait(1, 0, 1)
    state = hazards.finish()
    assert dict(state.pending) == {Touch(0, part(0, 6, write=True)): 0b011}
    following = leaf(3, state)
    assert following.needed(1, (part(0, 6),)) == {}
    assert following.needed(2, (part(0, 6),)) == {0: 0}
    following.wait(2, 1, 0)  # unit 1 knew when the leaf began
    assert following.needed(2, (part(0, 6),)) == {}
    assert dict(following.finish().pending) == {}


def test_a_new_write_replaces_what_it_covers() -> None:
    hazards = leaf(2)
    hazards.touch(0, (part(0, 6),), 1)
    hazards.touch(0, (part(0, 12, write=True),), 2)
    hazards.touch(0, (part(0, 6),), 3)
    kept = {touch.region for touch in hazards.finish().pending}
    assert kept == {part(0, 12, write=True), part(0, 6)}


def test_merging_keeps_what_either_side_has() -> None:
    a, b = Touch(0, part(0, 6)), Touch(1, part(6, 12))
    merged = State({a: 0b011}).merge(State({a: 0b101, b: 0b010}))
    assert dict(merged.pending) == {a: 0b001, b: 0b010}


def test_who_knows_of_what_one_arm_has_replaced() -> None:
    """Before a branch unit 0 writes. In one arm unit 1, which knows, writes it again: unit 2 then
    knows only by the other arm, so a third unit may not ask it."""
    old, new = Touch(0, part(0, 6, write=True)), Touch(1, part(0, 6, write=True))
    start = State({old: 0b0001})
    joined = start.join(State({new: 0b0010}), State({old: 0b0101}))
    assert dict(joined.pending) == {old: 0b0001, new: 0b0010}
    inside = State().join(State({new: 0b0010}), State({old: 0b0101}))
    assert dict(inside.pending) == {old: 0b0101, new: 0b0010}


def test_rotation_renames() -> None:
    state = State({Touch(0, part(0, 6, write=True, of=N)): 1, Touch(1, part(0, 12)): 2})
    turned = state.rotate(((H, N),))
    expected = {Touch(0, part(0, 6, write=True)): 1, Touch(1, part(0, 12, of=N)): 2}
    assert dict(turned.pending) == expected


def test_shared_bytes_conflict() -> None:
    layout = Layout({"h": (0, 48), "n": (24, 72)}, sharing={"h": ("n",), "n": ("h",)})
    assert layout.conflict(part(6, 8), part(0, 2, write=True, of=N))
    assert not layout.conflict(part(0, 6), part(0, 6, write=True, of=N))
    moving = Layout(layout.extents, frozenset({"n"}), layout.sharing)
    assert moving.conflict(part(6, 8), part(10, 12, write=True, of=N))
    hazards = leaf(2, layout=layout)
    hazards.touch(0, (part(6, 8),), 1)
    assert hazards.needed(1, (part(0, 2, write=True, of=N),)) == {0: 1}


def test_few_units_cover() -> None:
    assert covering([]) == ()
    assert covering([0b0011, 0b0110, 0b1010]) == (1,)
    assert covering([0b001, 0b100]) == (0, 2)


def test_pending_that_matters() -> None:
    touched = State({Touch(0, part(0, 6)): 0b001, Touch(1, part(0, 6, write=True)): 0b110})
    assert touched.unseen(2, lambda region: True) == (0,)
    assert touched.unseen(0, lambda region: region.write) == (1,)
    assert touched.unseen(0, lambda region: False) == ()

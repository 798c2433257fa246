"""The waits of one leaf: what needs one, and what another wait implies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from stretto.device.expr import Buffer, Var
from stretto.device.operator import Kernel
from stretto.device.program import Item, Run, Schedule, Signal, Wait
from stretto.errors import ScheduleError
from stretto.schedule.footprint import Footprints, MemoryMap, UnitTasks
from stretto.schedule.leaf_waits import LeafWaits, Pending, SyncSetting
from stretto.schedule.policy import Placed
from tests.schedule.trees import buffer, load, map_kernel

X = buffer("x", 12, kind="input", slot=0)
A, B, C = (buffer(name, 12) for name in "abc")

Work = tuple[Kernel, tuple[UnitTasks, ...]]


def copying(name: str, out: Buffer, source: Buffer) -> Kernel:
    """12 tasks: task t copies element t."""
    return map_kernel(name, out, load(source, Var(0)), 1)


def gathering(name: str, out: Buffer, source: Buffer) -> Kernel:
    """Every task reads all of `source`."""
    return map_kernel(name, out, load(source, Var(1)), 1, reduce=(12,), combine="max")


def on(unit: int, first: int = 0, count: int = 12) -> UnitTasks:
    return UnitTasks(unit, first, count)


def leaf(
    units: int,
    *waves: Iterable[Work],
    pending: Pending | None = None,
    number: int = 0,
    setting: dict[str, Any] | None = None,
) -> LeafWaits:
    chosen = {"footprints": Footprints(units), "memory": MemoryMap(), "ranges": False}
    made = SyncSetting(units, **(chosen | (setting or {})))
    waits = LeafWaits(number, pending or {}, made, lambda name: True)
    for wave in waves:
        for kernel, parts in wave:
            footprints = made.footprints.of(kernel, parts)
            waits.append(
                Placed(kernel, parts), tuple(f for f in footprints if f.buffer.name != "x")
            )
        waits.close_wave()
    return waits


def waits_of(schedule: Schedule) -> list[list[Wait]]:
    return [[item for item in items if isinstance(item, Wait)] for items in schedule.units]


def kinds(items: Iterable[Item]) -> list[str]:
    return [item.kernel if isinstance(item, Run) else type(item).__name__ for item in items]


def test_reads_do_not_wait_for_reads() -> None:
    one = copying("one", B, A), (on(0),)
    other = copying("other", C, A), (on(1),)
    assert waits_of(leaf(2, [one], [other]).schedule()) == [[], []]


def test_a_consumer_waits_for_the_producer() -> None:
    first = copying("first", A, X), (on(0, 0, 6), on(1, 6, 6))
    second = copying("second", B, A), (on(1, 0, 6), on(0, 6, 6))
    schedule = leaf(2, [first], [second]).schedule()
    assert waits_of(schedule) == [[Wait(1, 1)], [Wait(0, 1)]]
    assert kinds(schedule.units[0]) == ["first", "Signal", "Wait", "second"]
    aligned = copying("second", B, A), (on(0, 0, 6), on(1, 6, 6))
    assert waits_of(leaf(2, [first], [aligned]).schedule()) == [[], []]


def test_a_writer_waits_for_readers() -> None:
    reads = [(copying("r0", B, A), (on(0),)), (copying("r1", C, A), (on(1),))]
    write = copying("write", A, X), (on(2),)
    assert waits_of(leaf(3, reads, [write]).schedule())[2] == [Wait(0, 1, 2)]
    # Of different steps each is waited for.
    assert waits_of(leaf(3, reads[:1], reads[1:], [write]).schedule())[2] == [
        Wait(0, 1),
        Wait(1, 2),
    ]


def test_a_wait_is_made_once() -> None:
    first = copying("first", A, X), (on(0),)
    again = [copying(name, out, A) for name, out in (("second", B), ("third", C))]
    schedule = leaf(2, [first], [(again[0], (on(1),))], [(again[1], (on(1),))]).schedule()
    assert kinds(schedule.units[1]) == ["Wait", "second", "third"]


def test_a_wait_gives_what_the_other_knew() -> None:
    """Unit 1 has waited for unit 0 before it published step 2: unit 2 need not wait for unit 0."""
    first = copying("first", A, X), (on(0),)
    second = copying("second", B, A), (on(1),)
    both = gathering("both", C, B), (on(2),)
    third = copying("third", buffer("d", 12), A), (on(2),)
    schedule = leaf(3, [first], [second], [both], [third]).schedule()
    assert waits_of(schedule)[2] == [Wait(1, 2)]


def test_knowledge_that_came_after_the_signal_does_not_count() -> None:
    """Unit 1 waits for unit 0 in the wave after the one that unit 2 waits for."""
    first = [(copying("a", A, X), (on(0),)), (copying("b", B, X), (on(1),))]
    learns = copying("learns", buffer("d", 12), A), (on(1),)
    reads = [(copying("r0", C, B), (on(2),)), (copying("r1", buffer("e", 12), A), (on(2),))]
    schedule = leaf(3, first, [learns], reads).schedule()
    assert waits_of(schedule)[2] == [Wait(1, 1), Wait(0, 1)]


def test_between_leaves_it_is_known_who_knows() -> None:
    setting = {"footprints": Footprints(4)}
    first = copying("first", A, X), (on(0),)
    second = copying("second", B, A), (on(1),)
    pending = leaf(4, [first], [second], setting=setting).pending()
    (seen,) = [
        mask for (*_, name, write), (_, mask) in pending.items() if (name, write) == ("a", 1)
    ]
    assert seen[:, 0].tolist() == [True, True, False, False]
    # Unit 2 writes what unit 0 has written and unit 1 has read.
    write = copying("write", A, X), (on(2),)
    following = leaf(4, [write], pending=pending, number=1, setting=setting)
    assert waits_of(following.schedule())[2] == [Wait(0, 0, 2)]
    read = copying("read", B, X), (on(1),)
    assert waits_of(leaf(4, [read], pending=pending, setting=setting).schedule())[1] == []


def test_one_wait_for_the_range_of_all_that_are_needed() -> None:
    spread = copying("spread", A, X), (on(0, 0, 4), on(3, 4, 8))
    gather = gathering("gather", B, A), (on(5),)
    exact = leaf(6, [spread], [gather]).schedule()
    assert waits_of(exact)[5] == [Wait(0, 1), Wait(3, 1)]
    wide = leaf(6, [spread], [gather], setting={"ranges": True}).schedule()
    assert waits_of(wide)[5] == [Wait(0, 1, 4)]


def test_units_that_wait_for_all_others_have_one_text() -> None:
    spread = copying("spread", A, X), tuple(on(unit, 4 * unit, 4) for unit in range(3))
    gather = gathering("gather", B, A), tuple(on(unit, 4 * unit, 4) for unit in range(3))
    assert waits_of(leaf(3, [spread], [gather]).schedule()) == [[Wait(0, 1, 3)]] * 3


def test_shared_bytes_conflict() -> None:
    """Each float of `a` lies where one of `b` does, 24 bytes further."""
    memory = MemoryMap({"a": (24, 72), "b": (0, 48)}, sharing={"a": ("b",), "b": ("a",)})
    moving = MemoryMap(memory.extents, frozenset("ab"), memory.sharing)
    first = copying("first", A, X), (on(0, 0, 6),)

    def waits(memory: MemoryMap, part: UnitTasks) -> list[Wait]:
        second = copying("second", B, X), (part,)
        return waits_of(leaf(2, [first], [second], setting={"memory": memory}).schedule())[1]

    assert waits(memory, on(1, 6, 6)) == [Wait(0, 1)]
    assert waits(memory, on(1, 0, 6)) == []
    # Buffers that rotate may each lie anywhere in their block.
    assert waits(moving, on(1, 0, 6)) == [Wait(0, 1)]
    assert waits(MemoryMap(), on(1, 6, 6)) == []


def test_a_signal_stands_where_the_wave_ends() -> None:
    first = copying("first", A, X), (on(0),)
    beside = copying("beside", C, X), (on(0),)
    second = copying("second", B, A), (on(1),)
    last = copying("last", buffer("d", 12), X), (on(0),)
    schedule = leaf(2, [first, beside], [second], [last]).schedule()
    assert kinds(schedule.units[0]) == ["first", "beside", "Signal", "last"]
    # The end of the leaf publishes by itself.
    assert Signal(1) not in leaf(2, [first, beside], [second]).schedule().units[0]


def test_a_plan_whose_wave_waits_for_itself_is_refused() -> None:
    first = copying("first", A, X), (on(0),)
    second = copying("second", B, A), (on(1),)
    with pytest.raises(ScheduleError, match="another unit's item of the same wave"):
        leaf(2, [first, second])


def test_what_matters_is_over_at_the_end() -> None:
    works = [(copying("a", A, X), (on(0),)), (copying("b", B, X), (on(1),))]
    made = leaf(3, works)
    settled = made.settled(lambda footprint: footprint.buffer.name == "b")
    assert waits_of(settled.schedule()) == [[Wait(1, 1)], [], [Wait(1, 1)]]
    assert {touch.footprint.buffer.name for touch, _ in settled.pending().values()} == {"a"}
    assert made.settled(lambda footprint: footprint.buffer.name == "c") is made
    assert waits_of(made.schedule()) == [[], [], []]

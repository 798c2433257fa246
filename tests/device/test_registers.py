"""What is known of registers, and of parts of buffers in terms of them."""

from __future__ import annotations

import pytest

from stretto.device.accesses import (
    Box,
    Shape,
    boxed,
    index_range,
    rewritten,
    stage_ranges,
    widened,
)
from stretto.device.accesses import BufferAccess as Part
from stretto.device.expr import Access, Apply, Expr, Index, Load, Position, Reg, Var
from stretto.device.operator import Combine, Kernel, Operator, Span, Stage, TileDim
from stretto.device.ranges import Range
from stretto.device.registers import LARGEST_STEP, Registers
from stretto.ir.types import DType
from tests.schedule.trees import buffer, condition, load, number

N, M, K = Reg("n"), Reg("m"), Reg("k")
X = buffer("x", 8)
NOTHING = Registers()


def of(register: Reg, more: int = 0) -> Expr:
    return Position(Index.of(register) + more)


def behind(*assignments: tuple[Reg, Expr | None], before: Registers = NOTHING) -> Registers:
    for register, expr in assignments:
        before, _ = before.assigned(register, expr)
    return before


def test_values_are_in_terms_of_registers_without_one() -> None:
    known = behind((M, of(N, 1)), (K, of(M, 1)))
    assert known.values == {M: Index.of(N) + 1, K: Index.of(N) + 2}
    assert known.known(Index.of(K) - Index.of(M)) == Index(const=1)


def test_a_step_changes_what_is_said_in_terms_of_a_register() -> None:
    known, (change,) = behind((M, of(N))).assigned(N, of(N, 1))
    assert known.values == {M: Index.of(N) - 1}
    box = (Range.of(Index.of(N)),)
    assert rewritten(box, N, change.substitution) == (Range.of(Index.of(N) - 1),)


def test_another_register_takes_the_place_of_one_that_is_lost() -> None:
    known, (change,) = behind((M, of(N, 2)), (K, of(N, 5))).assigned(N, None)
    assert known.values == {K: Index.of(M) + 3}
    assert change.substitution is not None and change.substitution(N) == Index.of(M) - 2


def test_what_is_loaded_is_not_known() -> None:
    known, changes = behind((M, of(N, 1))).assigned(M, load(X, 0))
    assert known == NOTHING and changes == ()  # nothing is said in terms of it
    known, (change,) = behind((N, number(1))).joined(NOTHING).assigned(N, load(X, 0))
    assert known == NOTHING and change.register == N and change.substitution is None


def test_a_register_that_follows_from_itself_and_is_lost() -> None:
    known, (change,) = NOTHING.assigned(N, Position(Index.of(N) * 2))
    assert known.values == {} and change.substitution is None
    assert rewritten((Range(Index.of(N), None),), N, change.substitution) == (Range(),)


def test_narrow_registers_wrap_around() -> None:
    small = Reg("small", DType.I32)
    assert behind((small, number(1))) == NOTHING


# ---- limits --------------------------------------------------------------------------------------
def test_limits_follow_small_steps_alone() -> None:
    start = behind((N, number(3)))
    assert start.ranges[N] == (3, 3)
    joined = start.joined(behind((N, number(4))))
    assert joined.ranges[N] == (3, 4) and joined.values == {}
    grown = joined.grown(behind((N, number(9))))
    assert grown.ranges[N] == (3, None)
    assert behind((N, of(N, 1)), before=grown).ranges[N] == (4, None)
    assert N not in behind((N, of(N, LARGEST_STEP + 1)), before=grown).ranges


@pytest.mark.parametrize("index", [Index.of(N) * 2, Index.of(N) + Index.of(M)])
def test_what_may_double_has_no_limits(index: Index) -> None:
    """In a loop it would wrap around at 64 bits within a hundred iterations."""
    limits = behind((N, number(1)), (M, number(1)))
    grown = limits.grown(behind((N, number(2)), (M, number(2))))
    assert grown.ranges == {N: (1, None), M: (1, None)}
    assert N not in behind((N, Position(index)), before=grown).ranges
    assert behind((K, Position(index)), before=limits).ranges[K] == (2, 2)


def either(test: Expr, yes: Expr, no: Expr) -> Expr:
    return Apply("where", (test, yes, no), DType.I64)


def test_limits_choose_the_arm_of_a_position_that_may_count_from_the_end() -> None:
    wrapped = either(condition("lt", of(N), number(0)), of(N, 7), of(N))
    positive, negative = behind((N, number(0))), behind((N, number(-1)))
    positive = positive.grown(behind((N, number(1))))
    assert behind((M, wrapped), before=positive).values == {M: Index.of(N)}
    assert behind((M, wrapped), before=negative).values[M] == Index(const=6)
    assert M not in behind((M, wrapped)).values


def test_nothing_is_said_of_conditions_on_registers_without_limits() -> None:
    assert NOTHING.holds(condition("lt", of(N), of(N, 1))) is None
    known = behind((N, number(2)))
    assert known.holds(condition("lt", of(N), of(N, 1))) is True
    assert known.holds(condition("ge", of(N), number(3))) is False
    both = Apply(
        "and", (condition("lt", of(N), number(0)), condition("lt", of(M), number(0))), DType.BOOL
    )
    assert known.holds(both) is False
    assert known.holds(Apply("not", (both,), DType.BOOL)) is True
    assert NOTHING.holds(both) is None


# ---- parts ---------------------------------------------------------------------------------------
def item(first: Index | int, last: Index | int) -> tuple[Range, ...]:
    return (Range(Index.of(first), Index.of(last) - 1),)


def may_overlap(a: Box, shape: Shape, b: Box, other: Shape, registers: Registers) -> bool:
    return Part(X, False, shape, a).may_overlap(Part(X, False, other, b), registers)


def test_items_before_a_length_do_not_meet_the_one_that_is_appended() -> None:
    length = Index.of(N)
    appended = item(length, length + 1)
    assert not may_overlap(item(0, length), (8,), appended, (8,), NOTHING)
    assert may_overlap(item(0, length + 1), (8,), appended, (8,), NOTHING)
    assert may_overlap(item(0, 1), (8,), appended, (8,), NOTHING)
    assert not may_overlap(
        item(0, 1), (8,), appended, (8,), behind((N, number(1))).grown(behind((N, number(2))))
    )


def test_parts_seen_with_other_dims() -> None:
    row = (Range.of(Index.of(N)), Range(Index(), Index(const=2)))
    flat = item(0, Index.of(N) * 3)
    assert not may_overlap(row, (4, 3), flat, (12,), NOTHING)
    assert may_overlap(row, (4, 3), item(0, Index.of(N) * 3 + 1), (12,), NOTHING)
    assert may_overlap((Range(), Range()), (4, 3), flat, (12,), NOTHING)


def test_a_part_that_grows_keeps_the_end_that_does_not_move() -> None:
    grown = widened(item(Index.of(N) - 1, Index.of(N)), item(Index.of(N) - 2, Index.of(N) - 1))
    assert grown == (Range(None, Index.of(N) - 1),)
    whole = Part(X, False, (8,), grown)
    assert whole.covers(Part(X, False, (8,), item(Index.of(N) - 7, Index.of(N) - 6)))
    assert not whole.covers(Part(X, False, (8,), item(Index.of(N), Index.of(N) + 1)))


def test_ranges_of_indices() -> None:
    ranges = (Range(Index(), Index(const=4)), Range(Index(), Index.of(N) - 1))
    one, other = Index.of(Var(0)), Index.of(Var(1))
    assert index_range(one * -2 + 9, ranges) == Range(Index(const=1), Index(const=9))
    assert index_range(other + Index.of(M), ranges) == Range(
        Index.of(M), Index.of(M) + Index.of(N) - 1
    )
    assert index_range(one // 2, ranges) == Range(Index(), Index(const=2))
    assert index_range((one + 4) % 3, ranges) == Range(Index(), Index(const=2))
    assert index_range(one % 8, ranges) == Range(Index(), Index(const=4))


def test_the_box_of_a_stage_is_that_of_all_tasks() -> None:
    access = Access(X, (8,), (Index.of(Var(0)) + Index.of(N),))
    value = Load(Access(X, (8,), (Index.of(Var(0)),)))
    operator = Operator("k", (6,), (), Combine.NONE, value, access)
    stage = Stage(operator, (Span(3, grid=0, offset=2),))
    kernel = Kernel("k", (TileDim(3, 2),), (stage,))
    ranges = stage_ranges(stage, kernel)
    assert boxed(access, True, ranges).box == item(Index.of(N) + 2, Index.of(N) + 5)
    assert boxed(value.access, False, ranges).box == item(2, 5)

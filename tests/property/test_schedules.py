"""Random Programs under all policies, numbers of units, and passes that change what waits for what.

`python -m checks.fuzz --part schedules` draws many more.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from stretto.ir.core import Program
from stretto.schedule.policies import POLICIES
from tests.property.combinations import Combination, check, check_drawn, combinations
from tests.property.recurrences import recurrences
from tests.sampling import sampled
from tests.support import program_of

SETTINGS = settings(
    max_examples=35,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.whole
@SETTINGS
@given(program=recurrences(), how=combinations((2, 7, 3, 1)))
def test_a_schedule_gives_what_the_interpreter_gives(program: Program, how: Combination) -> None:
    check(program, how)


@pytest.mark.whole
@settings(SETTINGS, max_examples=3)
@given(program=recurrences(), how=combinations((132,)))
def test_so_does_one_of_many_units(program: Program, how: Combination) -> None:
    check(program, how)


@pytest.mark.parametrize("first", sampled(range(10), []))
def test_so_do_many(first: int) -> None:
    check_drawn(first, 20)


NESTED = """
func @main(%x: f32[5, 3], %h0: f32[3], %n: i64[]) -> (f32[3], f32[5, 3], f32[3]) {
  %none = list.new() : list<f32[3]>
  %h, %ys = for %t in (0, 5, 1) carry (%p = %h0, %l = %none) {
    %x_t = aten.select.int(%x, 0, %t) : f32[3]
    %q = for %i in (0, %n, 1) carry (%r = %p) {
      %w = constant "w" : f32[3, 3]
      %m = aten.linear.default(%r, %w) : f32[3]
      %s = aten.add.Tensor(%m, %x_t) : f32[3]
      %o = aten.tanh.default(%s) : f32[3]
      yield %o
    } : f32[3]
    %pushed = list.push(%l, %q) : list<f32[3]>
    yield %q, %pushed
  } : f32[3], list<f32[3]>
  %all = list.stack(%ys) : f32[5, 3]
  %v = constant "v" : f32[3, 3]
  %b = aten.linear.default(%all, %v) : f32[5, 3]
  %g = for %u in (0, 5, 1) carry (%k = %h0) {
    %b_t = aten.select.int(%b, 0, %u) : f32[3]
    %w2 = constant "w2" : f32[3, 3]
    %y = aten.linear.default(%k, %w2) : f32[3]
    %z = aten.add.Tensor(%b_t, %y) : f32[3]
    %a = aten.tanh.default(%z) : f32[3]
    yield %a
  } : f32[3]
  return %h, %b, %g
}
"""
"""A recurrence with a loop of unknown length in its step, and a layer on it."""

ALL = ("skew", "speculate", "recursion_levels")


@pytest.mark.parametrize("policy", ["auto", *sorted(POLICIES)])
@pytest.mark.parametrize("uniform", [False, True])
def test_all_passes_under_each_policy(policy: str, uniform: bool) -> None:
    how = Combination(policy, 7, uniform, uses=tuple((name, "always") for name in ALL))
    check(program_of(NESTED), how)
    check(program_of(NESTED), replace(how, units=2, uses=tuple((name, "never") for name in ALL)))


AGAIN = """
func @main(%x: f32[2, 3], %n: i64[]) -> (f32[2, 3], f32[2, 3]) {
  %y = call @f(%n, %x) : f32[2, 3]
  %z = call @f(%n, %y) : f32[2, 3]
  return %y, %z
}
func @f(%n: i64[], %x: f32[2, 3]) -> (f32[2, 3]) {
  %c = aten.gt.Scalar(%n, 0) : bool[]
  %r = if %c {
    %m = aten.sub.Tensor(%n, 1) : i64[]
    %s = aten.sin.default(%x) : f32[2, 3]
    %y = call @f(%m, %x) : f32[2, 3]
    %t = aten.add.Tensor(%y, %s) : f32[2, 3]
    yield %t
  } else {
    yield %x
  } : f32[2, 3]
  return %r
}
"""


@pytest.mark.parametrize("uniform", [False, True])
def test_a_recursion_reads_what_it_has_given(uniform: bool) -> None:
    """An output of the program is a result in one call of the function and an argument in another
    one, and never both in one."""
    program = program_of(AGAIN)
    check(program, Combination("auto", 2, uniform))
    check(program, Combination("auto", 3, uniform, fuse=False, uses=(("if_convert", "never"),)))

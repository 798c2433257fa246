"""A small program of each kind of schedule: what the passes over loops, branches and recursions
make, of which the verifier has to reject what is broken."""

from __future__ import annotations

from functools import cache

import torch

from checks.mutants import Specimen
from stretto.ir.core import Program
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.passes.manager import run_passes
from tests.backends import SPREAD
from tests.property.combinations import Combination, Use
from tests.schedule.policies import POLICIES
from tests.schedule.specimens import Recorded, captured_specimen
from tests.support import program_of, random_inputs

LAYERS = """
func @main(%x: f32[6, 4], %h0: f32[4], %g0: f32[4]) -> (f32[4], f32[4]) {
  %v = constant "v" : f32[4, 4]
  %w = constant "w" : f32[4, 4]
  %none = list.new() : list<f32[4]>
  %h, %ys = for %t in (0, 6, 1) carry (%p = %h0, %l = %none) {
    %x_t = aten.select.int(%x, 0, %t) : f32[4]
    %m = aten.linear.default(%p, %v) : f32[4]
    %s = aten.add.Tensor(%m, %x_t) : f32[4]
    %y = aten.tanh.default(%s) : f32[4]
    %k = list.push(%l, %y) : list<f32[4]>
    yield %y, %k
  } : f32[4], list<f32[4]>
  %all = list.stack(%ys) : f32[6, 4]
  %b = aten.linear.default(%all, %w) : f32[6, 4]
  %g = for %u in (0, 6, 1) carry (%q = %g0) {
    %b_u = aten.select.int(%b, 0, %u) : f32[4]
    %z = aten.mul.Tensor(%b_u, %q) : f32[4]
    %c = aten.tanh.default(%z) : f32[4]
    yield %c
  } : f32[4]
  return %h, %g
}
"""

UNTIL = """
func @main(%x: f32[4]) -> (f32[4]) {
  %w = constant "w" : f32[4, 4]
  %y = while (%p = %x) {
    %s = aten.mul.Tensor(%p, %p) : f32[4]
    %n = aten.sum.dim_IntList(%s, (0,)) : f32[]
    %c = aten.gt.Scalar(%n, 0.01) : bool[]
    yield %c
  } do (%q) {
    %m = aten.linear.default(%q, %w) : f32[4]
    %t = aten.tanh.default(%m) : f32[4]
    %z = aten.mul.Tensor(%t, 0.25) : f32[4]
    yield %z
  } : f32[4]
  return %y
}
"""

APART = """
func @main(%x: f32[5, 4]) -> (f32[5, 4], f32[4]) {
  %w = constant "w" : f32[4, 4]
  %zero = aten.zeros.default((4,)) : f32[4]
  %none = list.new() : list<f32[4]>
  %ys, %sum = for %t in (0, 5, 1) carry (%l = %none, %s = %zero) {
    %x_t = aten.select.int(%x, 0, %t) : f32[4]
    %y = while (%p = %x_t) {
      %a = aten.mul.Tensor(%p, %p) : f32[4]
      %n = aten.sum.dim_IntList(%a, (0,)) : f32[]
      %c = aten.gt.Scalar(%n, 0.01) : bool[]
      yield %c
    } do (%q) {
      %m = aten.linear.default(%q, %w) : f32[4]
      %h = aten.tanh.default(%m) : f32[4]
      %z = aten.mul.Tensor(%h, 0.25) : f32[4]
      yield %z
    } : f32[4]
    %k = list.push(%l, %y) : list<f32[4]>
    %u = aten.add.Tensor(%s, %y) : f32[4]
    %v = aten.tanh.default(%u) : f32[4]
    yield %k, %v
  } : list<f32[4]>, f32[4]
  %all = list.stack(%ys) : f32[5, 4]
  return %all, %sum
}
"""

LATE = """
func @main(%x: f32[4], %z: f32[4]) -> (f32[4]) {
  %v = constant "v" : f32[4, 4]
  %w = constant "w" : f32[4, 4]
  %a = aten.linear.default(%x, %v) : f32[4]
  %b = aten.tanh.default(%a) : f32[4]
  %d = aten.linear.default(%b, %v) : f32[4]
  %e = aten.tanh.default(%d) : f32[4]
  %f = aten.select.int(%e, 0, 0) : f32[]
  %c = aten.gt.Scalar(%f, 0.0) : bool[]
  %y = if %c {
    %g = aten.linear.default(%z, %w) : f32[4]
    %h = aten.mul.Tensor(%g, %e) : f32[4]
    yield %h
  } else {
    yield %e
  } : f32[4]
  return %y
}
"""

TREE = """
func @main(%x: f32[7, 4], %left: i64[7], %right: i64[7]) -> (f32[4]) {
  %n = literal 6 : i64[]
  %y = call @f(%n, %x, %left, %right) : f32[4]
  return %y
}
func @f(%n: i64[], %x: f32[7, 4], %left: i64[7], %right: i64[7]) -> (f32[4]) {
  %w = constant "w" : f32[4, 4]
  %l = aten.select.int(%left, 0, %n) : i64[]
  %o = aten.select.int(%x, 0, %n) : f32[4]
  %c = aten.lt.Scalar(%l, 0) : bool[]
  %y = if %c {
    yield %o
  } else {
    %a = call @f(%l, %x, %left, %right) : f32[4]
    %r = aten.select.int(%right, 0, %n) : i64[]
    %b = call @f(%r, %x, %left, %right) : f32[4]
    %m = aten.linear.default(%a, %w) : f32[4]
    %s = aten.add.Tensor(%m, %b) : f32[4]
    %t = aten.tanh.default(%s) : f32[4]
    yield %t
  } : f32[4]
  return %y
}
"""

KINDS = {
    "skew": LAYERS,
    "rotate": UNTIL,
    "parallel_loops": APART,
    "fork_calls": TREE,
    "speculate": LATE,
    "recursion_levels": TREE,
    "recursion": TREE,
}
"""A program that each pass changes; and a recursion as it is."""
USES: dict[str, tuple[tuple[str, Use], ...]] = {
    "rotate": (),
    "recursion": (),
}
"""Where it is not the pass itself that is told: it has no choice, or another would be first."""
CHOICES = ["auto", *sorted(POLICIES)]


@cache
def made_by(kind: str) -> Recorded:
    """What the passes make of the program, with inputs."""
    how = Combination(uses=USES.get(kind, ((kind, "always"),)))
    changed: set[str] = set()

    def note(name: str, _: Program) -> None:
        changed.add(name)

    program = program_of(KINDS[kind])
    made = run_passes(program, how.passes(), dump=note, skip=how.skipped)
    assert kind in changed or kind == "recursion"
    inputs = [item for item in random_inputs(program) if isinstance(item, torch.Tensor)]
    if KINDS[kind] == TREE:
        inputs[1:] = torch.tensor([-1, -1, 0, -1, -1, 3, 2]), torch.tensor([0, 0, 1, 0, 0, 4, 5])
    return Recorded(made, inputs)


def kind_specimen(kind: str, policy: str, units: int = 3, *, uniform: bool = False) -> Specimen:
    """A schedule of that kind by a policy. uniform: as on a GPU."""
    costs = CUDA_COSTS if uniform else SPREAD
    return captured_specimen(kind, made_by(kind), units, costs, policy)

"""What is only read in registers is not stored."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from stretto.device.plan import Plan
from stretto.machines.cuda.printer.dead_stores import handed_over
from stretto.machines.cuda.printer.triton_module import library_text, print_plan
from stretto.schedule.plan import make_plan
from tests import backends
from tests.support import program_of

CELL = """
    func @main(%x: f32[256], %c: f32[256]) -> (f32[256], f32[256]) {
      %w = constant "w" : f32[512, 256]
      %y = aten.linear.default(%x, %w) : f32[512]
      %a = aten.slice.Tensor(%y, 0, 0, 256, 1) : f32[256]
      %b = aten.slice.Tensor(%y, 0, 256, 512, 1) : f32[256]
      %s = aten.sigmoid.default(%a) : f32[256]
      %t = aten.tanh.default(%b) : f32[256]
      %u = aten.mul.Tensor(%s, %c) : f32[256]
      %v = aten.add.Tensor(%u, %t) : f32[256]
      %h = aten.tanh.default(%v) : f32[256]
      return %v, %h
    }
"""
LOOP = """
    func @main(%x: f32[64], %n: i64[]) -> (f32[64]) {
      %w = constant "w" : f32[64, 64]
      %y = for %i in (0, %n, 1) carry (%a = %x) {
        %p = aten.linear.default(%a, %w) : f32[64]
        %q = aten.tanh.default(%p) : f32[64]
        yield %q
      } : f32[64]
      return %y
    }
"""
LIBRARY = """
    func @main(%x: f32[6, 40]) -> (f32[6, 40]) {
      %t = aten.tanh.default(%x) : f32[6, 40]
      %s, %k = aten.sort.default(%t, 1, False) : f32[6, 40], i64[6, 40]
      %e = aten.exp.default(%s) : f32[6, 40]
      return %e
    }
"""
BRANCH = """
    func @main(%x: f32[64]) -> (f32[64]) {
      %a = aten.tanh.default(%x) : f32[64]
      %m = aten.sum.default(%a) : f32[]
      %c = aten.gt.Scalar(%m, 0.0) : bool[]
      %y = if %c {
        %b = aten.exp.default(%a) : f32[64]
        yield %b
      } else {
        yield %x
      } : f32[64]
      return %y
    }
"""


def checked(text: str, *inputs: Tensor, units: int = 3) -> tuple[Plan, str]:
    """The plan and its text, which computes what the interpreter does."""
    program = program_of(text)
    backends.check(program, list(inputs), units=(1, 3, 7), native=())
    plan = make_plan(backends.built_cuda(program, units=units, spread=False).device)
    return plan, "\n".join(one.text.replace(library_text(), "") for one in print_plan(plan))


def stores(text: str) -> list[str]:
    """The pointers of what is stored, by the names of their parameters."""
    return re.findall(r"tl\.store\((\w+)", text)


def test_a_cell_stores_its_results_alone() -> None:
    _, text = checked(CELL, torch.randn(256), torch.randn(256), units=32)
    assert len(stores(text)) == 2


def test_a_loop_stores_what_it_carries() -> None:
    _, text = checked(LOOP, torch.randn(64), torch.tensor(3))
    kernels = text[text.index("def k_linear") :]
    assert len(stores(kernels[: kernels.index("return")])) == 1


def test_what_a_condition_or_another_kernel_reads_is_stored() -> None:
    """The sum is read by the branch, its operand in one arm."""
    for x in (torch.ones(64), -torch.ones(64)):
        _, text = checked(BRANCH, x)
    assert len(stores(text)) >= 3


def test_what_a_library_call_reads_is_stored() -> None:
    plan, text = checked(LIBRARY, torch.randn(6, 40))
    assert len(plan.launches) == 2
    assert {buffer.kind for buffer in handed_over(plan)} >= {"local"}
    assert len(stores(text)) == 2


def test_a_plan_of_one_launch_hands_nothing_over() -> None:
    plan, _ = checked(CELL, torch.randn(256), torch.randn(256))
    assert handed_over(plan) == frozenset()

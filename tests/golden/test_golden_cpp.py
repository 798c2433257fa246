"""The C++ of small programs, whole: what a reader of `dump_dir` sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.machines.cpu.printer.cpp_file import print_program
from tests.backends import built
from tests.support import program_of

PROGRAMS = {
    "softmax": """
        func @main(%x: f32[64, 48]) -> (f32[64, 48]) {
          %e = aten.exp.default(%x) : f32[64, 48]
          %s = aten._softmax.default(%e, 1, False) : f32[64, 48]
          return %s
        }
        """,
    "lstm-loop": """
        func @main(%gates: f32[8, 1, 256], %h0: f32[1, 64], %c0: f32[1, 64]) -> (f32[1, 64]) {
          %w = constant "w" : f32[256, 64]
          %h, %c = for %i in (0, 8, 1) carry (%h1 = %h0, %c1 = %c0) {
            %of_x = aten.select.int(%gates, 0, %i) : f32[1, 256]
            %of_h = aten.linear.default(%h1, %w, None) : f32[1, 256]
            %g = aten.add.Tensor(%of_x, %of_h) : f32[1, 256]
            %a = aten.slice.Tensor(%g, 1, 0, 64) : f32[1, 64]
            %b = aten.slice.Tensor(%g, 1, 64, 128) : f32[1, 64]
            %d = aten.slice.Tensor(%g, 1, 128, 192) : f32[1, 64]
            %e = aten.slice.Tensor(%g, 1, 192, 256) : f32[1, 64]
            %in = aten.sigmoid.default(%a) : f32[1, 64]
            %forget = aten.sigmoid.default(%b) : f32[1, 64]
            %new = aten.tanh.default(%d) : f32[1, 64]
            %out = aten.sigmoid.default(%e) : f32[1, 64]
            %kept = aten.mul.Tensor(%forget, %c1) : f32[1, 64]
            %added = aten.mul.Tensor(%in, %new) : f32[1, 64]
            %c2 = aten.add.Tensor(%kept, %added) : f32[1, 64]
            %t = aten.tanh.default(%c2) : f32[1, 64]
            %h2 = aten.mul.Tensor(%out, %t) : f32[1, 64]
            yield %h2, %c2
          } : f32[1, 64], f32[1, 64]
          return %h
        }
        """,
    "recursion": """
        func @main(%x: f32[4], %n: i64[]) -> (f32[4]) {
          %y = call @tree(%x, %n) : f32[4]
          return %y
        }
        func @tree(%x: f32[4], %n: i64[]) -> (f32[4]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %y = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %half = aten.mul.Tensor(%x, 0.5) : f32[4]
            %a = call @tree(%half, %m) : f32[4]
            %b = call @tree(%a, %m) : f32[4]
            %s = aten.add.Tensor(%a, %b) : f32[4]
            yield %s
          } else {
            yield %x
          } : f32[4]
          return %y
        }
        """,
    "while-list": """
        func @main(%x: f32[4], %limit: f32[]) -> (list<f32[4]>, i64[]) {
          %l0 = list.new() : list<f32[4]>
          %y, %l = while (%a = %x, %l1 = %l0) {
            %s = aten.sum.default(%a) : f32[]
            %c = aten.lt.Tensor(%s, %limit) : bool[]
            yield %c
          } do (%b, %l2) {
            %b2 = aten.add.Tensor(%b, 1.0) : f32[4]
            %l3 = list.push(%l2, %b2) : list<f32[4]>
            yield %b2, %l3
          } : f32[4], list<f32[4]>
          %n = list.length(%l) : i64[]
          return %l, %n
        }
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_cpp(name: str, golden: Callable[[str, str], None]) -> None:
    program = program_of(PROGRAMS[name])
    golden(print_program(built(program, units=2).device).text, f"{name}.cpp")

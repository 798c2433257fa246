"""The text of whole programs: shared kernels, names, arguments."""

from __future__ import annotations

import re

import pytest

from stretto.machines.cpu.printer.cpp_file import CppSource, print_program
from tests.backends import assert_close, built
from tests.support import program_of, random_inputs


def printed(text: str, units: int = 2) -> CppSource:
    return print_program(built(program_of(text), units).device)


def kernel_functions(source: CppSource) -> list[str]:
    return re.findall(r"static void (k\d+_\w+)\(", source.text)


def test_kernels_that_differ_in_their_buffers_share_a_function() -> None:
    source = printed("""
        func @main(%x: f32[32, 32], %y: f32[32, 32]) -> (f32[32, 32], f32[32, 32], f32[32, 32]) {
          %a = aten.exp.default(%x) : f32[32, 32]
          %b = aten.exp.default(%y) : f32[32, 32]
          %c = aten.cumsum.default(%x, 1) : f32[32, 32]
          return %a, %b, %c
        }
        """)
    assert len(source.kernels) == 3 and len(kernel_functions(source)) == 2


def test_arguments_are_inputs_outputs_lists_and_the_constants_that_are_read() -> None:
    source = printed("""
        func @main(%x: f32[4, 8], %unused: f32[3]) -> (f32[4, 16], list<f32[4, 8]>) {
          %w = constant "w" : f32[8, 16]
          %m = aten.mm.default(%x, %w) : f32[4, 16]
          %l = list.new(%x) : list<f32[4, 8]>
          return %m, %l
        }
        """)
    kinds = [buffer.kind for buffer in source.arguments]
    assert kinds == ["input", "input", "output", "list", "constant"]
    assert source.arguments[-1].name == "w.packed0"  # "w" itself is read by nothing
    assert not source.recursive and source.library == ()


NAMES = """
    func @main(%limit: f32[4], %n: i64[]) -> (f32[4], f32[4]) {
      %a = call @f.g(%limit, %n) : f32[4]
      %b = call @f_g(%limit, %n) : f32[4]
      return %a, %b
    }
    func @f.g(%x_1: f32[4], %n: i64[]) -> (f32[4]) {
      %c = aten.gt.Scalar(%n, 0) : bool[]
      %y = if %c {
        %m = aten.sub.Tensor(%n, 1) : i64[]
        %x = aten.mul.Tensor(%x_1, 0.5) : f32[4]
        %x_2 = call @limit(%x, %m) : f32[4]
        %x_12 = aten.sin.default(%x_2) : f32[4]
        %x_1_2 = call @f_g(%x_12, %m) : f32[4]
        yield %x_1_2
      } else {
        yield %x_1
      } : f32[4]
      return %y
    }
    func @f_g(%x: f32[4], %n: i64[]) -> (f32[4]) {
      %y = call @limit(%x, %n) : f32[4]
      return %y
    }
    func @limit(%v1: f32[4], %n: i64[]) -> (f32[4]) {
      %c = aten.gt.Scalar(%n, 1) : bool[]
      %y = if %c {
        %m = aten.sub.Tensor(%n, 2) : i64[]
        %v = aten.cos.default(%v1) : f32[4]
        %v12 = call @f.g(%v, %m) : f32[4]
        yield %v12
      } else {
        %v2 = aten.neg.default(%v1) : f32[4]
        yield %v2
      } : f32[4]
      return %y
    }
    """


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_names_that_differ_in_signs_only_stay_apart(depth: int) -> None:
    from stretto.interp.interpreter import run

    program = program_of(NAMES)
    data = list(random_inputs(program))
    data[1] = data[1].new_tensor(depth)
    source = printed(NAMES)
    assert source.recursive
    names = re.findall(r"^static bool (\w+)\(.*\);", source.text, re.MULTILINE)
    assert len(names) == len(set(names)) == 4
    assert_close(built(program, 2).cpu()(data), run(program, data))

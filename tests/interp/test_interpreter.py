"""The interpreter against what the same program says in Python."""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch

from stretto.errors import RunError, SourceLocation
from stretto.interp.interpreter import STACK_ENDED, evaluate, run
from stretto.ir.core import Program
from stretto.ir.text import parse_program
from stretto.ir.verifier import verify
from stretto.ops.infer import tensor_op
from tests.support import program_of


@contextmanager
def deep() -> Generator[None]:
    """Skips a test of deep calls where Python 3.12 counts each as one in C: once torch.compile has
    run in a process, they go through its hook."""
    try:
        yield
    except RunError as error:
        if error.message == STACK_ENDED and sys.version_info[:2] == (3, 12):
            pytest.skip(STACK_ENDED)
        raise


def number(value: int) -> torch.Tensor:
    return torch.tensor(value)


FIBONACCI = """
    func @main(%n: i64[]) -> (i64[]) {
      %c = aten.lt.Scalar(%n, 2) : bool[]
      %r = if %c {
        yield %n
      } else {
        %a = aten.sub.Tensor(%n, 1) : i64[]
        %b = aten.sub.Tensor(%n, 2) : i64[]
        %d = call @main(%a) : i64[]
        %e = call @main(%b) : i64[]
        %f = aten.add.Tensor(%d, %e) : i64[]
        yield %f
      } : i64[]
      return %r
    }
"""


def test_recursion() -> None:
    program = program_of(FIBONACCI)
    assert [run(program, (number(n),))[0] for n in range(9)] == [0, 1, 1, 2, 3, 5, 8, 13, 21]


def test_for_with_every_kind_of_bounds() -> None:
    text = """
        func @main(%a: i64[], %b: i64[]) -> (i64[], i64[], i64[]) {{
          %l = list.new() : list<i64[]>
          %z = literal 0 : i64[]
          %s, %m, %k = for %i in (%a, %b, {step}) carry (%p = %z, %q = %l, %o = %z) {{
            %t = aten.mul.Tensor(%p, 10) : i64[]
            %u = aten.add.Tensor(%t, %i) : i64[]
            %v = list.push(%q, %i) : list<i64[]>
            %w = list.length(%v) : i64[]
            yield %u, %v, %w
          }} : i64[], list<i64[]>, i64[]
          %n = list.length(%m) : i64[]
          return %s, %n, %k
        }}
    """
    for step in (1, 2, -1, -3):
        program = program_of(text.format(step=step))
        for start, stop in ((0, 4), (4, 0), (3, 3), (-1, 5)):
            trips = list(range(start, stop, step))
            total = 0
            for trip in trips:
                total = total * 10 + trip
            found = run(program, (number(start), number(stop)))
            assert found == (total, len(trips), len(trips))


def test_while_carries_values_through_condition_and_body() -> None:
    program = program_of(
        """
        func @main(%n: i64[]) -> (i64[], i64[]) {
          %z = literal 0 : i64[]
          %a, %b = while (%i = %z, %s = %z) {
            %c = aten.lt.Tensor(%i, %n) : bool[]
            yield %c
          } do (%j, %t) {
            %u = aten.add.Tensor(%t, %j) : i64[]
            %v = aten.add.Tensor(%j, 1) : i64[]
            yield %v, %u
          } : i64[], i64[]
          return %a, %b
        }
        """
    )
    assert run(program, (number(5),)) == (5, 10)
    assert run(program, (number(0),)) == (0, 0)


def test_lists_are_values() -> None:
    program = program_of(
        """
        func @main(%x: i64[], %y: i64[], %z: i64[]) -> (list<i64[]>, list<i64[]>, i64[], i64[2]) {
          %m = literal -1 : i64[]
          %a = list.new(%x) : list<i64[]>
          %b = list.push(%a, %y) : list<i64[]>
          %c = list.set(%b, %m, %z) : list<i64[]>
          %d, %e = list.pop(%b) : list<i64[]>, i64[]
          %f = list.stack(%b) : i64[2]
          %g = list.get(%c, %m) : i64[]
          %h = aten.add.Tensor(%g, %e) : i64[]
          return %a, %c, %h, %f
        }
        """
    )
    before, after, last, stacked = run(program, (number(1), number(2), number(3)))
    assert before == [1] and after == [1, 3] and last == 5
    assert torch.equal(stacked, torch.tensor([1, 2]))  # type: ignore


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%r = list.get(%l, %i) : f32[2]", "list index out of range"),
        ("%r = list.set(%l, %i, %x) : list<f32[2]>", "list assignment index out of range"),
        ("%r, %t = list.pop(%e) : list<f32[2]>, f32[2]", "pop from empty list"),
        ("%r = list.stack(%e) : f32[s0, 2]", "stack expects a non-empty TensorList"),
        ("%r = list.stack(%l) : f32[3, 2]", "stack of 2 items where 3 are expected"),
        ("%r = aten.select.int(%x, 0, %i) : f32[]", "index 3 out of range for tensor"),
        ("%r = stretto.narrow(%x, 0, %i, 1) : f32[1]", "index 3 is out of bounds"),
        ("%r = aten.remainder.Scalar(%i, 0) : i64[]", "ZeroDivisionError"),
        ("%r = call @endless(%x) : f32[2]", "recursion is deeper than allowed at @endless"),
    ],
)
def test_what_stops_the_run_names_the_op(line: str, reason: str) -> None:
    program = parse_program(
        f"""
        func @main(%x: f32[2], %i: i64[]) -> () {{
          %e = list.new() : list<f32[2]>
          %l = list.new(%x, %x) : list<f32[2]>
          {line}
          return
        }}
        func @endless(%x: f32[2]) -> (f32[2]) {{
          %y = call @endless(%x) : f32[2]
          return %y
        }}
        """
    )
    verify(program)
    place = SourceLocation("model.py", 3)
    for op in program.walk():
        op.location = place
    with pytest.raises(RunError) as caught, deep():
        run(program, (torch.zeros(2), number(3)))
    assert re.search(reason, caught.value.message)
    assert caught.value.op == (line if "endless" not in line else "%y = call @endless(%x) : f32[2]")
    assert caught.value.location == place


def test_deep_recursion() -> None:
    program = program_of(
        """
        func @main(%n: i64[]) -> (i64[]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %k = call @main(%m) : i64[]
            %s = aten.add.Tensor(%k, 1) : i64[]
            yield %s
          } else {
            yield %n
          } : i64[]
          return %r
        }
        """
    )
    with deep():
        assert run(program, (number(5000),))[0] == 5000
    with pytest.raises(RunError, match="recursion is deeper"):
        run(program, (number(101),), max_depth=100)
    assert run(program, (number(100),), max_depth=100)[0] == 100


SYMBOLIC = """
    func @main(%x: f32[n, 3], %l: list<f32[3]>) -> (f32[n + p, 3], f32[2*n, 3], f32[k, 3]) {
      %s = list.stack(%l) : f32[p, 3]
      %a = aten.cat.default((%x, %s)) : f32[n + p, 3]
      %b = call @twice(%x) : f32[2*n, 3]
      %z = aten.zeros.default((p, 3)) : f32[p, 3]
      %t = aten.add.Tensor(%s, %z) : f32[p, 3]
      %c = list.stack(%l) : f32[k, 3]
      return %a, %b, %c
    }
    func @twice(%y: f32[m, 3]) -> (f32[2*m, 3]) {
      %a = aten.cat.default((%y, %y)) : f32[2*m, 3]
      return %a
    }
"""


def test_symbols_stand_for_sizes() -> None:
    program = program_of(SYMBOLIC)
    x, items = torch.randn(4, 3), [torch.randn(3), torch.randn(3)]
    both, double, stacked = run(program, (x, items))
    assert isinstance(both, torch.Tensor) and torch.equal(both, torch.cat([x, torch.stack(items)]))
    assert isinstance(double, torch.Tensor) and torch.equal(double, torch.cat([x, x]))
    assert isinstance(stacked, torch.Tensor) and stacked.shape == (2, 3)


def test_inputs_must_have_the_types_of_the_parameters() -> None:
    program = program_of(SYMBOLIC)
    good = (torch.zeros(4, 3), [torch.zeros(3)])
    for inputs, reason in (
        (good[:1], "takes 2 inputs, not 1"),
        ((good[0].double(), good[1]), r"%x should be f32\[n, 3\], found torch.float64"),
        ((torch.zeros(4, 2), good[1]), r"%x should be f32\[n, 3\], found .* shape \[4, 2\]"),
        ((good[0], [torch.zeros(2)]), r"%l should be list<f32\[3\]>"),
        ((good[0], good[0]), "%l should be a list"),
        ((good[1], good[1]), "%x should be a tensor"),
    ):
        with pytest.raises(RunError, match=reason):
            run(program, inputs)


def test_a_result_of_another_shape_than_its_type_stops_the_run() -> None:
    program = parse_program(
        "func @main(%x: f32[2]) -> (f32[3]) { %y = aten.neg.default(%x) : f32[3] return %y }"
    )
    with pytest.raises(
        RunError, match=r"%y should be f32\[3\], found torch.float32 of shape \[2\]"
    ):
        run(program, (torch.zeros(2),))


def test_a_reference_in_float64() -> None:
    program = program_of(
        """
        func @main(%x: f32[3], %h: f16[3], %i: i64[3]) -> (f32[3], i64[3]) {
          %w = constant "w" : f32[3]
          %z = literal 0.5 : f32[]
          %a = aten.add.Tensor(%x, %w) : f32[3]
          %b = aten._to_copy.default(%h, dtype=torch.float32) : f32[3]
          %c = aten.mul.Tensor(%a, %b) : f32[3]
          %d = aten.div.Tensor(%c, %z) : f32[3]
          %e = aten.div.Tensor(%i, 3) : f32[3]
          %f = aten.add.Tensor(%d, %e) : f32[3]
          return %f, %i
        }
        """
    )
    x, h, i = torch.randn(3), torch.randn(3).half(), torch.tensor([1, 2, 3])
    found, same = run(program, (x, h, i), dtype=torch.float64)
    w = program.constants["w"].double()
    expected = (x.double() + w) * h.double() / 0.5 + i.double() / 3
    assert isinstance(found, torch.Tensor) and isinstance(same, torch.Tensor)
    assert found.dtype is torch.float64 and torch.equal(found, expected)
    assert same.dtype is torch.int64


def test_views_of_views_and_results_of_their_own() -> None:
    program = program_of(
        """
        func @main(%x: f32[2, 3]) -> (f32[6], f32[2, 3]) {
          %t = aten.permute.default(%x, (1, 0)) : f32[3, 2]
          %v = aten.view.default(%t, (6,)) : f32[6]
          return %v, %x
        }
        """
    )
    x = torch.arange(6.0).view(2, 3)
    flat, same = run(program, (x,))
    assert isinstance(flat, torch.Tensor) and flat.tolist() == [0, 3, 1, 4, 2, 5]
    assert isinstance(same, torch.Tensor) and same.data_ptr() != x.data_ptr()


def test_narrow_and_its_inverse() -> None:
    program = program_of(
        """
        func @main(%x: f32[4], %y: f32[2], %i: i64[]) -> (f32[2], f32[4]) {
          %a = stretto.narrow(%x, 0, %i, 2) : f32[2]
          %b = stretto.narrow_scatter(%x, %y, 0, %i) : f32[4]
          return %a, %b
        }
        """
    )
    x, y = torch.arange(4.0), torch.tensor([8.0, 9.0])
    for place, taken, put in ((1, [1, 2], [0, 8, 9, 3]), (-2, [2, 3], [0, 1, 8, 9])):
        found = [item.tolist() for item in run(program, (x, y, number(place)))]  # type: ignore
        assert found == [taken, put]
    assert x.tolist() == [0, 1, 2, 3]


def test_one_op_on_its_own() -> None:
    program: Program = program_of("func @main(%x: f32[2]) -> (f32[2]) { return %x }")
    (x,) = program.main.params
    op = tensor_op("aten.mul.Tensor", x, 2.0)
    (found,) = evaluate(op, {x: torch.ones(2)}, {})
    assert isinstance(found, torch.Tensor) and found.tolist() == [2, 2]


def test_strides_count_from_the_value() -> None:
    """A value that is a view of another one has no storage of its own."""
    program = program_of("""
        func @main(%x: f32[3, 4]) -> (f32[2]) {
          %r = aten.select.int(%x, 0, 1) : f32[4]
          %y = aten.as_strided.default(%r, (2), (2), 1) : f32[2]
          return %y
        }
    """)
    x = torch.arange(12.0).view(3, 4)
    torch.testing.assert_close(run(program, [x])[0], torch.tensor([5.0, 7.0]))

"""Horizontal fusion: which contractions become one, and that results are the same."""

import pytest
import torch

from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.ops import ForOp, IfOp
from stretto.passes.analyses.op_facts import Constants
from stretto.passes.horizontal import Horizontal
from stretto.passes.pipeline import loop_passes
from tests.passes.loops import apply, check, contractions, loops_of, targets
from tests.support import check_unchanged, program_of


def test_two_layers_of_one_input() -> None:
    check(
        """
        func @main(%x: f32[2, 3]) -> (f32[2, 4], f32[2, 5]) {
          %q = constant "q" : f32[4, 3]
          %k = constant "k" : f32[5, 3]
          %a = aten.linear.default(%x, %q) : f32[2, 4]
          %u = aten.relu.default(%a) : f32[2, 4]
          %b = aten.linear.default(%x, %k) : f32[2, 5]
          return %u, %b
        }
        """,
        Horizontal(),
        """
        func @main(%x: f32[2, 3]) -> (f32[2, 4], f32[2, 5]) {
          %q = constant "q" : f32[4, 3]
          %k = constant "k" : f32[5, 3]
          %qk = constant "joined_weight.0" : f32[9, 3]
          %ab = aten.linear.default(%x, %qk) : f32[2, 9]
          %a = aten.slice.Tensor(%ab, 1, 0, 4) : f32[2, 4]
          %b = aten.slice.Tensor(%ab, 1, 4, 9) : f32[2, 5]
          %u = aten.relu.default(%a) : f32[2, 4]
          return %u, %b
        }
        """,
    )


def test_a_constant_for_each_of_a_symbolic_batch_is_not_known() -> None:
    check_unchanged(
        """
        func @main[0 <= n](%x: f32[n, 2, 3]) -> (f32[n, 2, 4], f32[n, 2, 4]) {
          %a = constant "a" : f32[3, 4]
          %p = aten.unsqueeze.default(%a, 0) : f32[1, 3, 4]
          %e = aten.expand.default(%p, (n, 3, 4)) : f32[n, 3, 4]
          %y = aten.matmul.default(%x, %e) : f32[n, 2, 4]
          %z = aten.matmul.default(%x, %e) : f32[n, 2, 4]
          return %y, %z
        }
        """,
        Horizontal(),
    )


MIXED = """
func @main(%x: f32[2, 3], %v: f32[3]) -> (f32[2, 4], f32[2, 5], f32[2, 4], f32[2, 2], f32[4]) {
  %a = constant "a" : f32[4, 3]
  %b = constant "b" : f32[3, 5]
  %c = constant "c" : f32[3, 4]
  %d = constant "d" : f32[2, 3]
  %bias = constant "bias" : f32[4]
  %t = aten.t.default(%d) : f32[3, 2]
  %ya = aten.linear.default(%x, %a, %bias) : f32[2, 4]
  %yb = aten.mm.default(%x, %b) : f32[2, 5]
  %yc = aten.addmm.default(%bias, %x, %c) : f32[2, 4]
  %yd = aten.matmul.default(%x, %t) : f32[2, 2]
  %yv = aten.mv.default(%a, %v) : f32[4]
  return %ya, %yb, %yc, %yd, %yv
}
"""


def test_all_forms_of_a_product_and_its_bias() -> None:
    after = apply(program_of(MIXED), Horizontal())
    first, vector = contractions(after.main.body)
    assert first.result.tensor.shape == (2, 15)
    assert len(first.operands) == 3
    assert vector.target == "aten.mv.default"


def test_vectors() -> None:
    after = apply(
        program_of("""
        func @main(%v: f32[3]) -> (f32[4], f32[2]) {
          %a = constant "a" : f32[4, 3]
          %b = constant "b" : f32[2, 3]
          %y = aten.mv.default(%a, %v) : f32[4]
          %z = aten.linear.default(%v, %b) : f32[2]
          return %y, %z
        }
        """),
        Horizontal(),
    )
    assert len(contractions(after.main.body)) == 1


def test_matrices_from_the_left_and_batched_ones() -> None:
    after = apply(
        program_of("""
        func @main(%x: f32[3, 2], %h: f32[4, 1, 3])
            -> (f32[4, 2], f32[5, 2], f32[4, 1, 3], f32[4, 1, 2]) {
          %a = constant "a" : f32[4, 3]
          %b = constant "b" : f32[5, 3]
          %c = constant "c" : f32[4, 3, 3]
          %d = constant "d" : f32[4, 3, 2]
          %ya = aten.mm.default(%a, %x) : f32[4, 2]
          %yb = aten.mm.default(%b, %x) : f32[5, 2]
          %yc = aten.bmm.default(%h, %c) : f32[4, 1, 3]
          %yd = aten.bmm.default(%h, %d) : f32[4, 1, 2]
          return %ya, %yb, %yc, %yd
        }
        """),
        Horizontal(),
    )
    shapes = [op.result.tensor.shape for op in contractions(after.main.body)]
    assert shapes == [(9, 2), (4, 1, 5)]


CONVOLUTIONS = """
func @main(%x: f32[1, 3, 6, 6]) -> (f32[1, 2, 6, 6], f32[1, 4, 6, 6], f32[1, 2, 3, 3]) {
  %a = constant "a" : f32[2, 3, 3, 3]
  %b = constant "b" : f32[4, 3, 3, 3]
  %bias = constant "bias" : f32[4]
  %ya = aten.convolution.default(%x, %a, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    : f32[1, 2, 6, 6]
  %yb = aten.convolution.default(%x, %b, %bias, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    : f32[1, 4, 6, 6]
  %yc = aten.convolution.default(%x, %a, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1)
    : f32[1, 2, 3, 3]
  return %ya, %yb, %yc
}
"""


def test_convolutions_of_equal_geometry() -> None:
    after = apply(program_of(CONVOLUTIONS), Horizontal())
    shapes = [op.result.tensor.shape for op in contractions(after.main.body)]
    assert shapes == [(1, 6, 6, 6), (1, 2, 3, 3)]


@pytest.mark.parametrize(
    "second",
    [
        "aten.linear.default(%y, %b) : f32[2, 4]",  # another input
        "aten.linear.default(%x, %w) : f32[2, 4]",  # a weight that is not constant
        "aten.addmm.default(%w, %w, %b, alpha=2) : f32[4, 4]",  # scaled
    ],
)
def test_others_stay(second: str) -> None:
    check_unchanged(
        f"""
        func @main(%x: f32[2, 4], %y: f32[2, 4], %w: f32[4, 4]) -> (f32[2, 4]) {{
          %a = constant "a" : f32[4, 4]
          %b = constant "b" : f32[4, 4]
          %u = aten.linear.default(%x, %a) : f32[2, 4]
          %v = {second}
          return %u
        }}
        """,
        Horizontal(),
    )


def test_in_bodies_and_arms_but_not_across_them() -> None:
    after = apply(
        program_of("""
        func @main(%x: f32[2, 4], %flag: bool[]) -> (f32[2, 4]) {
          %a = constant "a" : f32[4, 4]
          %b = constant "b" : f32[4, 4]
          %r = if %flag {
            %s = for %i in (0, 2, 1) carry (%h = %x) {
              %u = aten.linear.default(%h, %a) : f32[2, 4]
              %v = aten.linear.default(%h, %b) : f32[2, 4]
              %n = aten.mul.Tensor(%u, %v) : f32[2, 4]
              yield %n
            } : f32[2, 4]
            %t = aten.linear.default(%x, %a) : f32[2, 4]
            %st = aten.add.Tensor(%s, %t) : f32[2, 4]
            yield %st
          } else {
            %e = aten.linear.default(%x, %b) : f32[2, 4]
            yield %e
          } : f32[2, 4]
          return %r
        }
        """),
        Horizontal(),
    )
    (loop,) = loops_of(after.main.body)
    assert len(contractions(loop.body)) == 1
    (branch,) = [op for op in after.main.body.ops if isinstance(op, IfOp)]
    assert [len(contractions(block)) for block in branch.blocks] == [1, 1]


def nasrnn(length: int) -> str:
    """A cell with eight products of the input and eight of the state, as NASRNN has."""
    heads = "".join(
        f'%{name}{n} = constant "{name}{n}" : f32[4, 4]\n' for name in "wu" for n in range(8)
    )
    lines: list[str] = []
    for n in range(8):
        lines += [
            f"%a{n} = aten.linear.default(%x_t, %w{n}) : f32[2, 4]",
            f"%b{n} = aten.linear.default(%p, %u{n}) : f32[2, 4]",
            f"%c{n} = aten.add.Tensor(%a{n}, %b{n}) : f32[2, 4]",
            f"%d{n} = aten.tanh.default(%c{n}) : f32[2, 4]",
        ]
        total = f"%e{n - 1}" if n > 1 else "%d0"
        if n:
            lines.append(f"%e{n} = aten.add.Tensor({total}, %d{n}) : f32[2, 4]")
    body = "\n".join(lines)
    return f"""
        func @main(%x: f32[{length}, 2, 4], %h0: f32[2, 4]) -> (f32[2, 4]) {{
          {heads}
          %h = for %t in (0, {length}, 1) carry (%p = %h0) {{
            %x_t = aten.select.int(%x, 0, %t) : f32[2, 4]
            {body}
            %n = aten.sin.default(%e7) : f32[2, 4]
            yield %n
          }} : f32[2, 4]
          return %h
        }}"""


def test_a_view_of_a_transposed_constant_is_a_reshape() -> None:
    """The tensors of constants may have any strides; in a Program they have none."""
    program = program_of("""
        func @main(%x: f32[1, 1, 3]) -> (f32[6], f32[1, 1, 3]) {
          %w = constant "w" : f32[3, 2]
          %flat = aten.view.default(%w, (6)) : f32[6]
          %turned = aten.t.default(%w) : f32[2, 3]
          %other = aten.view.default(%turned, (6)) : f32[6]
          %part = aten.slice.Tensor(%other, 0, 0, 3) : f32[3]
          %kernel = aten.view.default(%part, (1, 1, 3)) : f32[1, 1, 3]
          %y = aten.mul.Tensor(%x, %kernel) : f32[1, 1, 3]
          return %flat, %y
        }
        """)
    weight = torch.arange(6.0).view(2, 3).t()
    program.constants["w"] = weight
    ((_, known),) = Constants.by_function(program)
    flat, _, other, part, kernel = (op.result for op in program.main.body.ops[1:6])
    for value, wanted in (
        (flat, weight.reshape(-1)),
        (other, torch.arange(6.0)),
        (kernel, torch.arange(3.0).view(1, 1, 3)),
    ):
        found = known.tensor(value)
        assert found is not None and torch.equal(found, wanted)
    x = torch.randn(1, 1, 3)
    one, two = run(program, [x])
    assert isinstance(one, torch.Tensor) and torch.equal(one, weight.reshape(-1))
    assert isinstance(two, torch.Tensor)
    torch.testing.assert_close(two, x * torch.arange(3.0))
    assert part.tensor.shape == (3,)


def turned(count: int) -> Program:
    """Products with constants that are not contiguous, each in a loop of its own."""
    constants = "".join(f'%w{n} = constant "w{n}" : f32[4, 4]\n' for n in range(2 * count))
    loops = "".join(
        f"""
        %h{n} = for %t{n} in (0, 2, 1) carry (%p{n} = %x) {{
          %a{n} = aten.t.default(%w{2 * n}) : f32[4, 4]
          %b{n} = aten.t.default(%w{2 * n + 1}) : f32[4, 4]
          %c{n} = aten.mm.default(%p{n}, %a{n}) : f32[3, 4]
          %d{n} = aten.mm.default(%p{n}, %b{n}) : f32[3, 4]
          %e{n} = aten.add.Tensor(%c{n}, %d{n}) : f32[3, 4]
          yield %e{n}
        }} : f32[3, 4]
        """
        for n in range(count)
    )
    results, types = ", ".join(f"%h{n}" for n in range(count)), ", ".join(["f32[3, 4]"] * count)
    program = program_of(
        f"func @main(%x: f32[3, 4]) -> ({types}) {{ {constants} {loops} return {results} }}"
    )
    program.constants |= {key: w.t().contiguous().t() for key, w in program.constants.items()}
    return program


def test_constants_of_copies_that_are_gone_are_not_mistaken() -> None:
    """A later copy may lie where an earlier one lay."""
    program = turned(64)
    ((body, known),) = Constants.by_function(program)
    views = [op.result for op in body.walk() if op.results and op.result.hint[0] in "ab"]
    places: set[int] = set()
    for value in views:
        weight = known.tensor(value)
        assert weight is not None
        places.add(weight.data_ptr())
        weight = None  # nobody else has it
    assert len(places) == len(views)


def test_what_is_made_of_a_copy_of_a_constant_is_made_of_the_constant() -> None:
    program = turned(1)
    after = apply(program, Horizontal())
    weights = {weight.untyped_storage().data_ptr() for weight in program.constants.values()}
    assert after.folded.sources == weights


def test_a_derived_constant_cannot_depend_on_more_than_its_sources() -> None:
    ((_, known),) = Constants.by_function(turned(1))
    factor = 2
    with pytest.raises(AssertionError, match="more than its sources"):
        known.derived("scaled", lambda weight: weight * factor, torch.ones(3))


def test_the_negative_view_of_a_tensor_is_another_source() -> None:
    ((_, known),) = Constants.by_function(turned(1))
    numbers = torch.randn(3, dtype=torch.complex64)
    keys = [known.derived("x", torch.neg, x).key for x in (numbers.imag, numbers.conj().imag)]
    assert keys[0] != keys[1]


def test_sixteen_products_of_a_cell_become_two() -> None:
    after = apply(program_of(nasrnn(6)), *loop_passes())
    (before,) = contractions(after.main.body)
    assert before.result.tensor.shape == (6, 2, 32)
    (loop,) = [op for op in after.main.body.ops if isinstance(op, ForOp)]
    (inside,) = contractions(loop.body)
    assert inside.result.tensor.shape == (2, 32)
    assert targets(loop.body)[0] == "aten.select.int"
    assert len(after.constants) == 2


def test_a_product_outside_the_recurrence_is_not_bound_to_it() -> None:
    after = apply(
        program_of("""
        func @main(%h0: f32[4], %g0: f32[4]) -> (f32[4], f32[4]) {
          %a = constant "a" : f32[4, 4]
          %b = constant "b" : f32[4, 4]
          %h, %g = for %i in (0, 3, 1) carry (%p = %h0, %q = %g0) {
            %u = aten.linear.default(%p, %a) : f32[4]
            %v = aten.linear.default(%p, %b) : f32[4]
            %y = aten.tanh.default(%u) : f32[4]
            %z = aten.mul.Tensor(%v, %q) : f32[4]
            yield %y, %z
          } : f32[4], f32[4]
          return %h, %g
        }
        """),
        *loop_passes(),
    )
    first, second = loops_of(after.main.body)
    assert [len(contractions(loop.body)) for loop in (first, second)] == [1, 0]


def test_weights_joined_again_and_again_are_one_constant() -> None:
    lines = "".join(
        f"""
        %u{n} = aten.linear.default(%h{n}, %a) : f32[4]
        %v{n} = aten.linear.default(%h{n}, %b) : f32[4]
        %h{n + 1} = aten.mul.Tensor(%u{n}, %v{n}) : f32[4]"""
        for n in range(4)
    )
    after = apply(
        program_of(f"""
        func @main(%h0: f32[4]) -> (f32[4]) {{
          %a = constant "a" : f32[4, 4]
          %b = constant "b" : f32[4, 4]
          {lines}
          return %h4
        }}
        """),
        *loop_passes(),
    )
    assert len(contractions(after.main.body)) == 4
    assert list(after.constants) == ["joined_weight.0"]

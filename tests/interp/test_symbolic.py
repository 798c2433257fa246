"""Programs with symbolic sizes in the interpreter: for many sizes what eager computes."""

from __future__ import annotations

import pytest
import torch

from stretto.errors import RunError, VerifyError
from stretto.interp.interpreter import run
from stretto.ir.core import Block, Function, Program, Value
from stretto.ir.sizes import symbol
from stretto.ir.text import parse_program, print_program
from stretto.ir.types import DType, TensorType
from stretto.ir.verifier import verify
from stretto.ops.infer import infer, relations, tensor_op
from tests.ops.test_infer import value
from tests.support import program_of
from tests.symbolic import EXAMPLES, Example


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_sizes_are_bound_at_the_call(example: Example) -> None:
    program = example.program()
    for binding in example.bindings():
        inputs = example.inputs(binding)
        for found, expected in zip(run(program, inputs), example.expected(inputs), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_text_is_read_back(example: Example) -> None:
    text = print_program(example.program())
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (((65, 4), (4,), (65, 1)), r"size 65, which is not in the range 0 <= n <= 64"),
        (((3, 4), (4,), (2, 1)), r"the size n is 3 in one dim and 2 in another"),
        (((3, 5), (4,), (3, 1)), r"%x should be f32\[n, 4\], found .* \[3, 5\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(RunError, match=reason):
        run(EXAMPLES[0].program(), [torch.ones(shape) for shape in shapes])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("%a = aten.full.default((`n - 1`,), 1.0) : f32[n - 1]", "would have to hold"),
        ("%a = aten.arange.default(k) : i64[k]", "nothing binds the size k"),
        ("%a = aten.neg.default(%x) : f32[m]", "should be f32[n], found f32[m]"),
        (
            "%a = aten.add.Tensor(%x, %y) : f32[n]",
            "`aten.add.Tensor` cannot treat the symbolic sizes of its arguments: n == m would",
        ),
        (
            "%a = aten.view.default(%x, (2, -1)) : f32[2, (n // 2)]",
            "(n % 2) == 0 would",
        ),
    ],
)
def test_the_verifier_refuses(body: str, reason: str) -> None:
    text = f"func @main[0 <= m, 0 <= n](%x: f32[n], %y: f32[m]) -> () {{ {body} return }}"
    with pytest.raises(VerifyError) as error:
        program_of(text)
    assert reason in str(error.value)


def test_a_size_that_may_be_negative() -> None:
    with pytest.raises(VerifyError, match="the size n - 1 of %y may be negative"):
        program_of("func @main[0 <= n](%x: f32[n], %y: f32[n - 1]) -> () { return }")


def test_a_call_with_a_size_out_of_range() -> None:
    text = """
        func @main[0 <= n](%x: f32[n]) -> () {{
          call @f(%x)
          return
        }}
        func @f[{low} <= m](%x: f32[m]) -> () {{
          return
        }}
        """
    program_of(text.format(low=0))
    with pytest.raises(VerifyError, match="the size n may be out of the range 2 <= m"):
        program_of(text.format(low=2))


def test_a_name_with_two_ranges() -> None:
    n = [Value(TensorType(DType.F32, (symbol("n", low),))) for low in (0, 1)]
    program = Program({"main": Function("main", Block(tuple(n)))})
    with pytest.raises(VerifyError, match="a size has two ranges: 0 <= n, 1 <= n"):
        verify(program)


def test_a_size_that_no_dim_of_main_is() -> None:
    with pytest.raises(VerifyError, match="n is not a dim of any parameter itself"):
        program_of("func @main(%x: f32[2*n]) -> () { return }")


def test_ranges_decide_what_is_inferred() -> None:
    (type,) = infer("aten.slice.Tensor", (value("f32[s0]"), 0, 1, 2**63 - 1))
    assert str(type) == "f32[s0 - 1]"


@pytest.mark.parametrize(("low", "known"), [(0, False), (1, True)])
def test_what_ranges_tell_is_not_asked_for(low: int, known: bool) -> None:
    """A convolution needs images with pixels."""
    image = Value(TensorType(DType.F32, (1, 2, symbol("n"), symbol("m", low))))
    ones, zeros = (1, 1), (0, 0)
    op = tensor_op(
        "aten.convolution.default", image, value("f32[4, 2, 1, 1]"), None, ones, zeros, ones, False,
        zeros, 1,
    )  # fmt: skip
    assert str(op.result.type) == "f32[1, 4, n, m]"
    assert [str(relation) for relation in relations(op)] == ([] if known else ["1 <= m"])

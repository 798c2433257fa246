"""Recognising contractions and convolutions in operators."""

from __future__ import annotations

import pytest

from stretto.device.expr import Buffer
from stretto.device.operator import Operator
from stretto.kernels.contraction import Contraction, contraction_of, convolution_of
from tests.lowering.programs import items_of, lowered


def only(text: str, name: str) -> Operator:
    """The last operator of that name."""
    found = [i for i in items_of(lowered(text)) if isinstance(i, Operator) and i.name == name]
    return found[-1]


def operator_of(left: str, right: str, shapes: str, result: str = "f32[4, 16]") -> Operator:
    return only(
        f"""
        func @main({shapes}) -> ({result}) {{
          %w = constant "w" : f32[8, 16]
          %wt = constant "wt" : f32[16, 8]
          %a = {left}
          %b = {right}
          %m = aten.mm.default(%a, %b) : {result}
          return %m
        }}
        """,
        "contraction",
    )


def product(left: str, right: str, shapes: str, result: str = "f32[4, 16]") -> Contraction | None:
    return contraction_of(operator_of(left, right, shapes, result))


def operands(left: str, right: str, shapes: str) -> tuple[Buffer, ...]:
    """The buffers of the left and the right operand of the contraction."""
    operator = operator_of(left, right, shapes)
    found = contraction_of(operator)
    assert found is not None
    return tuple(access.buffer for access in found.operands(operator))


X, Y = "%x: f32[4, 8]", "%y: f32[8, 16]"
SAME_X, SAME_Y = "aten.alias.default(%x) : f32[4, 8]", "aten.alias.default(%y) : f32[8, 16]"


def test_a_product_of_matrices() -> None:
    found = product(SAME_X, SAME_Y, f"{X}, {Y}")
    assert found is not None
    assert (found.batch, found.rows, found.column, found.depth) == ((), (0,), 1, 8)
    assert (found.left_depth, found.right_depth) == (1, 16)
    left, right = operands(SAME_X, SAME_Y, f"{X}, {Y}")
    assert (left.name, right.name) == ("in0", "in1")


def test_one_matrix_with_many_is_a_batch() -> None:
    operator = only(
        """
        func @main(%x: f32[4, 8], %y: f32[3, 8, 16]) -> (f32[3, 4, 16]) {
          %m = aten.matmul.default(%x, %y) : f32[3, 4, 16]
          return %m
        }
        """,
        "contraction",
    )
    found = contraction_of(operator)
    assert found is not None
    assert (found.batch, found.rows, found.column, found.depth) == ((0,), (1,), 2, 8)
    assert (found.left_depth, found.right_depth) == (1, 16)


def test_constants_go_to_the_right() -> None:
    _, right = operands(SAME_X, "aten.alias.default(%w) : f32[8, 16]", X)
    assert right.kind == "constant"
    turned = product(SAME_X, "aten.t.default(%wt) : f32[8, 16]", X)
    assert turned is not None and turned.right_depth == 1


def test_operands_that_are_turned_have_other_strides() -> None:
    left = product("aten.t.default(%x) : f32[4, 8]", SAME_Y, f"%x: f32[8, 4], {Y}")
    assert left is not None and left.left_depth == 4
    right = product(SAME_X, "aten.t.default(%y) : f32[8, 16]", f"{X}, %y: f32[16, 8]")
    assert right is not None and right.right_depth == 1


def test_batches_and_single_rows() -> None:
    batched = contraction_of(
        only(
            """
            func @main(%x: f32[3, 4, 8], %y: f32[3, 8, 16]) -> (f32[3, 4, 16]) {
              %m = aten.bmm.default(%x, %y) : f32[3, 4, 16]
              return %m
            }
            """,
            "contraction",
        )
    )
    assert batched is not None and (batched.batch, batched.rows, batched.column) == ((0,), (1,), 2)
    row = product("aten.alias.default(%x) : f32[1, 8]", SAME_Y, f"%x: f32[1, 8], {Y}", "f32[1, 16]")
    assert row is not None and row.rows == () and row.column == 1


@pytest.mark.parametrize("dtype", ["i64", "bf16", "f16", "f64"])
def test_the_dtypes_of_contractions(dtype: str) -> None:
    operator = only(
        f"""
        func @main(%x: {dtype}[4, 8], %y: {dtype}[8, 16]) -> ({dtype}[4, 16]) {{
          %m = aten.mm.default(%x, %y) : {dtype}[4, 16]
          return %m
        }}
        """,
        "contraction",
    )
    found = contraction_of(operator)
    if dtype == "i64":
        assert found is None
    else:
        assert found is not None and found.dtype.value == dtype
        assert found.is_narrow == (dtype != "f64")


def test_a_plain_sum_is_not_a_contraction() -> None:
    operator = only(
        """
        func @main(%x: f32[4, 8]) -> (f32[4]) {
          %m = aten.sum.dim_IntList(%x, (1,), False) : f32[4]
          return %m
        }
        """,
        "sum",
    )
    assert contraction_of(operator) is None


# ---- convolutions ----------------------------------------------------------------------------


def convolution(image: str, weight: str, arguments: str, result: str, kind: str = "x") -> Operator:
    return only(
        f"""
        func @main(%x: {image}) -> ({result}) {{
          %w = constant "w" : {weight}
          %y = aten.convolution.default(%{kind}, %w, None, {arguments}) : {result}
          return %y
        }}
        """,
        "convolution",
    )


def test_the_geometry_of_a_convolution() -> None:
    found = convolution_of(
        convolution(
            "f32[2, 6, 9, 12]",
            "f32[8, 3, 3, 5]",
            "(2, 1), (1, 2), (1, 2), False, (0, 0), 2",
            "f32[2, 8, 5, 8]",
        )
    )
    assert found is not None
    assert (found.batch, found.groups, found.in_channels, found.out_channels) == (2, 2, 3, 8)
    assert (found.height, found.width, found.kernel) == (9, 12, (3, 5))
    assert (found.step, found.padding, found.dilation) == ((2, 1), (1, 2), (1, 2))


def test_one_dim_is_an_image_of_height_one() -> None:
    found = convolution_of(
        convolution(
            "f32[2, 3, 20]", "f32[4, 3, 3]", "(2,), (1,), (1,), False, (0,), 1", "f32[2, 4, 10]"
        )
    )
    assert found is not None
    assert (found.height, found.width, found.kernel) == (1, 20, (1, 3))
    assert (found.step, found.padding) == ((1, 2), (0, 1))


def test_depthwise_and_single_pixels() -> None:
    depthwise = convolution_of(
        convolution(
            "f32[1, 5, 8, 8]",
            "f32[5, 1, 3, 3]",
            "(1, 1), (1, 1), (1, 1), False, (0, 0), 5",
            "f32[1, 5, 8, 8]",
        )
    )
    assert depthwise is not None and (depthwise.groups, depthwise.in_channels) == (5, 1)
    pixel = convolution_of(
        convolution(
            "f32[1, 5, 3, 3]",
            "f32[4, 5, 3, 3]",
            "(1, 1), (0, 0), (1, 1), False, (0, 0), 1",
            "f32[1, 4, 1, 1]",
        )
    )
    assert pixel is not None and pixel.padding == (0, 0)

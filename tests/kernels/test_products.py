"""Sums of products: the part that each dim has in them."""

from __future__ import annotations

import pytest

from stretto.device.expr import Access, Apply, Buffer, Expr, Index, Load, Var
from stretto.device.operator import Combine, Operator
from stretto.ir.types import DType
from stretto.kernels.contraction import MatrixProduct, contraction_of, product_of

SIZES = {0: 2, 1: 3, 2: 4, 3: 5}
"""Of the dims 0 .. 2 and of the depth."""


def access(name: str, dtype: DType, *dims: int | Index) -> Access:
    """An element of a buffer that has these dims of the operator."""
    index = tuple(dim if isinstance(dim, Index) else Index.of(Var(dim)) for dim in dims)
    shape = tuple(SIZES[dim] if isinstance(dim, int) else 2 for dim in dims)
    return Access(Buffer(name, dtype, shape), shape, index)


def operator(first: Expr, second: Expr, *dims: int, dtype: DType = DType.F32) -> Operator:
    value = Apply("mul", (first, second), dtype)
    out = access("out", dtype, *dims)
    sizes = (SIZES[0], SIZES[1], SIZES[2])
    return Operator("product", sizes, (SIZES[3],), Combine.SUM, value, out)


def load(*dims: int | Index, dtype: DType = DType.F32) -> Load:
    return Load(access("x", dtype, *dims))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 1, 3), (0, 3, 2), MatrixProduct(False, (0,), (1,), (2,))),
        ((0, 3, 2), (0, 1, 3), MatrixProduct(True, (0,), (1,), (2,))),
        ((1, 3), (3, 2), MatrixProduct(False, (), (1,), (2,), (0,))),
        ((0, 1, 2, 3), (0, 1, 3), MatrixProduct(True, (0, 1), (), (2,))),
    ],
)
def test_roles(first: tuple[int, ...], second: tuple[int, ...], expected: MatrixProduct) -> None:
    one = operator(load(*first), load(*second), 0, 1, 2)
    found = product_of(one)
    assert found == expected
    pair = (load(*first), load(*second))
    assert found.factors(one) == (pair[::-1] if found.turned else pair)


def test_free_dims_are_rows_of_a_contraction() -> None:
    found = contraction_of(operator(load(1, 3), load(3, 2), 0, 1, 2))
    assert found is not None
    assert (found.batch, found.rows, found.column) == ((), (0, 1), 2)
    assert (found.depth, found.left_depth, found.right_depth) == (5, 1, 4)


def test_groups_are_pieces_of_rows() -> None:
    group = Index.of(Var(1)) // 2
    one = operator(load(1, 3), Load(access("y", DType.F32, group, 3, 2)), 0, 1, 2)
    found = product_of(one)
    assert found is not None and found.pieces == ((1, 2),)
    assert contraction_of(one) is None


def test_f64_is_a_product_of_which_only_contractions_exist() -> None:
    left, right = load(1, 3, dtype=DType.F64), load(3, 2, dtype=DType.F64)
    one = operator(left, right, 0, 1, 2, dtype=DType.F64)
    assert product_of(one) is not None and contraction_of(one) is not None


def test_factors_that_are_widened_from_16_bits_are_a_contraction() -> None:
    def converted(dtype: DType, *dims: int) -> Apply:
        return Apply("cast", (load(*dims, dtype=dtype),), DType.F32)

    one = operator(converted(DType.BF16, 1, 3), converted(DType.BF16, 3, 2), 0, 1, 2)
    found = contraction_of(one)
    assert product_of(one) is not None and found is not None and found.is_narrow
    assert [access.buffer.dtype for access in found.operands(one)] == [DType.BF16] * 2
    mixed = operator(converted(DType.BF16, 1, 3), converted(DType.F16, 3, 2), 0, 1, 2)
    whole = operator(converted(DType.I8, 1, 3), converted(DType.I8, 3, 2), 0, 1, 2)
    for other in (mixed, whole):
        assert product_of(other) is not None and contraction_of(other) is None

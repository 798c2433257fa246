"""Lazy tensors: views are index maps, checked element by element against torch."""

from __future__ import annotations

import pytest
import torch

from stretto.device.evaluate import Scope, TensorMemory, evaluate_tensor
from stretto.device.expr import Apply, Buffer, Const, Index, Load, Reg, Var
from stretto.ir.types import DType
from stretto.lowering.lazy import (
    Lazy,
    broadcast,
    cast,
    constant,
    contiguous_base,
    memory_order,
    memory_shape,
    narrow,
    permute,
    placed,
    reshape,
    select,
    stored,
    whole_buffer,
)

SHAPE = (2, 3, 4, 6)
BUFFER = Buffer("x", DType.I64, SHAPE)
DATA = torch.arange(144).view(SHAPE)
X = stored(BUFFER)


def values(lazy: Lazy) -> torch.Tensor:
    """Every element of a lazy tensor over `DATA`."""
    shape = [dim for dim in lazy.shape if isinstance(dim, int)]
    variables = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    ranges = tuple((0, size) for size in shape)
    scope = Scope(tuple(variables), ranges, {}, TensorMemory({"x": DATA}))
    return evaluate_tensor(lazy.expr, scope).expand(shape)


def test_a_stored_tensor_is_a_plain_load() -> None:
    assert X.is_stored and whole_buffer(X) == BUFFER
    assert torch.equal(values(X), DATA)


@pytest.mark.parametrize(
    "shape", [(144,), (6, 24), (2, 3, 24), (3, 2, 4, 6), (2, 1, 3, 4, 1, 6), (12, 12), (4, 36)]
)
def test_another_shape_of_the_whole_is_the_same_memory(shape: tuple[int, ...]) -> None:
    lazy = reshape(X, shape)
    assert whole_buffer(lazy) == BUFFER
    assert torch.equal(values(lazy), DATA.reshape(shape))


@pytest.mark.parametrize(
    ("order", "shape"),
    [
        ((1, 0, 2, 3), (6, 24)),
        ((3, 2, 1, 0), (24, 6)),
        ((0, 2, 1, 3), (2, 4, 18)),
        ((1, 3, 0, 2), (9, 16)),
        ((3, 0, 1, 2), (2, 3, 2, 12)),
        ((2, 3, 0, 1), (144,)),
    ],
)
def test_a_reshape_of_a_permutation_divides_and_takes_remainders(
    order: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    lazy = reshape(permute(X, order), shape)
    assert lazy.is_stored
    assert torch.equal(values(lazy), DATA.permute(order).reshape(shape))


def test_views_of_views() -> None:
    lazy = narrow(select(permute(X, (3, 1, 0, 2)), 2, 1), 0, 1, 2, step=3)
    expected = DATA.permute(3, 1, 0, 2).select(2, 1)[1:7:3]
    assert torch.equal(values(lazy), expected)
    wider = broadcast(select(lazy, 1, 2), (5, 2, 4))
    assert torch.equal(values(wider), expected.select(1, 2).expand(5, 2, 4))


def test_broadcast_repeats_dims_of_size_one() -> None:
    one = narrow(X, 1, 2, 1)
    assert torch.equal(values(broadcast(one, SHAPE)), DATA[:, 2:3].expand(SHAPE))


def test_a_run_of_memory_has_a_start() -> None:
    part = narrow(select(X, 0, 1), 0, 1, 2)
    base = contiguous_base(part)
    assert base is not None and base.offset == Index(const=72 + 24)
    assert contiguous_base(narrow(X, 1, 0, 2)) is None
    assert contiguous_base(permute(X, (1, 0, 2, 3))) is None
    at_run_time = contiguous_base(select(X, 0, Index.of(Reg("i"))))
    assert at_run_time is not None and at_run_time.offset.coefficient(Reg("i")) == 72


def test_a_part_of_a_buffer_is_not_the_whole() -> None:
    assert whole_buffer(narrow(X, 0, 0, 1)) is None
    assert whole_buffer(narrow(X, 3, 1, 5)) is None
    assert whole_buffer(constant(1, DType.I64)) is None


def test_a_dynamic_dim_comes_first_in_memory() -> None:
    length = Reg("n")
    shape = (3, length, 4)
    assert memory_order(shape) == (1, 0, 2)
    assert memory_shape(shape) == (length, 3, 4)
    access = placed(Buffer("b", DType.F32, memory_shape(shape), "list", 0), shape)
    assert access.index == (Index.of(Var(1)), Index.of(Var(0)), Index.of(Var(2)))
    assert access.offset.coefficient(Var(1)) == 12


def test_casts_of_numbers_are_done_at_once() -> None:
    assert cast(Const(2.7, DType.F32), DType.I64) == Const(2, DType.I64)
    assert cast(Const(3, DType.I64), DType.BOOL) == Const(True, DType.BOOL)
    load = X.expr
    assert isinstance(load, Load)
    assert cast(load, DType.I64) is load
    assert cast(load, DType.F32) == Apply("cast", (load,), DType.F32)

"""Rules that read and write at computed positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.device.expr import Buffer
from stretto.device.operator import Operator
from stretto.device.tree import leaves
from stretto.errors import RunError
from stretto.ir.core import Block, Function, Program, Value
from stretto.ir.types import DType
from stretto.lowering.lower_program import lower
from stretto.ops.infer import tensor_op
from tests.lowering.straight_line import (
    NotNative,
    Number,
    RunStopped,
    build,
    check,
    execute,
    run,
    type_of,
)


def counted(*shape: int) -> Tensor:
    size = torch.Size(shape).numel()
    return torch.arange(size, dtype=torch.float32).reshape(shape)


def places(*items: Any) -> Tensor:
    return torch.tensor(items)


# ---- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index", (places(3), places(0, 2, 2), places([0, 4], [1, 3]), torch.tensor(2))
)
def test_embedding(index: Tensor) -> None:
    check("aten.embedding.default", counted(5, 3), index)
    check("aten.embedding.default", counted(5, 3).bfloat16(), index.int())


@pytest.mark.parametrize("wrong", (places(0, 5), places(0, -1), places(-7)))
def test_a_wrong_row_stops_the_run(wrong: Tensor) -> None:
    with pytest.raises((RunError, RunStopped)):
        run("aten.embedding.default", counted(5, 3), wrong)


def test_index_select() -> None:
    x = counted(3, 4, 2)
    check("aten.index_select.default", x, 1, places(3, 0, 0))
    check("aten.index_select.default", x, -1, places(1))
    check("aten.index_select.default", x, 0, torch.zeros(0, dtype=torch.int64))
    check("aten.index_select.default", x, 0, torch.tensor(2))


def test_gather() -> None:
    x = counted(3, 4)
    check("aten.gather.default", x, 1, places([0, 3], [1, 1], [2, 0]))
    check("aten.gather.default", x, 0, places([2, 1, 0]))
    with pytest.raises(NotNative):  # no element depends on the positions, which must be checked
        check("aten.gather.default", counted(3, 1), 1, places([0], [0]))
    check("aten.take.default", x, places([0, -1], [5, 11]))


A, B = places([0, 2], [1, -1]), places(1, 0)


@pytest.mark.parametrize(
    "indices",
    [
        [A],
        [None, A],
        [None, None, B],
        [A, B],
        [None, A, B],
        [A, None, B],
        [B, B, B],
        [places(1), None, A],
        [torch.tensor(-1)],
        [None, torch.tensor(1), B],
        [torch.zeros(0, dtype=torch.int64)],
    ],
)
def test_advanced_indexing(indices: list[Any]) -> None:
    check("aten.index.Tensor", counted(3, 3, 4), indices)
    selected = torch.ops.aten.index.Tensor(counted(3, 3, 4), indices)
    check("aten.index_put.default", counted(3, 3, 4), indices, selected + 100)
    check("aten.index_put.default", counted(3, 3, 4), indices, torch.tensor(-1.0))


def test_masks_are_library_calls() -> None:
    with pytest.raises(NotNative):
        run("aten.index_put.default", counted(3, 3), [counted(3, 3) > 2], torch.tensor(0.0))


@pytest.mark.parametrize("wrong", (3, -4))
def test_a_wrong_position_stops_the_run(wrong: int) -> None:
    for index in (places(0, wrong), places(wrong)):
        with pytest.raises((RunError, RunStopped)):
            run("aten.index.Tensor", counted(3, 4), [index])
        with pytest.raises((RunError, RunStopped)):
            run("aten.index_put.default", counted(3, 4), [index], torch.tensor(0.0))


# ---- writing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.int64))
def test_accumulating(dtype: torch.dtype) -> None:
    x, index = counted(4, 3).to(dtype), places(1, 1, 3, -3)
    check("aten.index_put.default", x, [index], counted(4, 3).to(dtype), True)
    check("aten.index_add.default", x, 0, places(1, 1, 3), counted(3, 3).to(dtype), alpha=2)
    check("aten.scatter_add.default", x, 0, places([0, 0, 3], [0, 1, 3]), counted(2, 3).to(dtype))
    check(
        "aten.scatter_reduce.two",
        x,
        0,
        places([0, 0, 3], [0, 1, 3]),
        counted(2, 3).to(dtype),
        "sum",
    )


def test_scatter() -> None:
    x, index = counted(4, 3), places([0, 3, 1], [2, 1, 0])
    check("aten.scatter.src", x, 0, index, -counted(2, 3) - 1)
    check("aten.scatter.src", x, 0, index, -counted(5, 4) - 1)
    check("aten.scatter.src", x, 1, places([0], [2]), -counted(2, 3) - 1)
    check("aten.scatter.value", x, 0, index, 7)
    check("aten.scatter.value", x, 0, index, Number(2.5))
    check("aten.index_copy.default", x, 0, places(3, 1), -counted(2, 3))
    check("aten.index_fill.int_Scalar", x, 1, places(2, 0), 9.0)


def test_positions_may_be_read_from_what_is_changed() -> None:
    """The inverse of a permutation, in memory or not computed yet."""

    def inverse(order: Tensor) -> Tensor:
        return order.scatter(0, order, torch.arange(order.shape[0]))

    def of_a_result(x: Tensor) -> Tensor:
        order = (x * 2).long()
        return inverse(order) + order

    for function, x in (
        (inverse, torch.tensor([2, 0, 1])),
        (of_a_result, torch.tensor([1, 0, 0.5])),
        (lambda x: x.index_put((x,), x * 2), torch.tensor([2, 0, 1])),
        (lambda x: x.index_copy(0, x, x - 7), torch.tensor([2, 0, 1])),
    ):
        assert torch.equal(stretto.compile(function, backend="emulator")(x), function(x))


def test_regions() -> None:
    x = counted(4, 6, 2)
    check("aten.select_scatter.default", x, -counted(4, 2), 1, 3)
    check("aten.select_scatter.default", x, -counted(6, 2), 0, -1)
    check("aten.select_scatter.default", x, -counted(6, 2), 0, Number(-2))
    check("aten.slice_scatter.default", x, -counted(4, 2, 2), 1, 1, 5, 2)
    check("aten.slice_scatter.default", x, -counted(2, 6, 2), 0, -2)
    check("aten.slice_scatter.default", x, -counted(0, 6, 2), 0, 4, 9)
    check("aten.diagonal_scatter.default", counted(4, 6), -counted(4), 1)
    check("stretto.narrow_scatter", x, -counted(4, 2, 2), 1, Number(3))
    check("stretto.narrow_scatter", x, -counted(4, 2, 2), 1, -2)


@pytest.mark.parametrize("position", (5, -7))
def test_a_wrong_region_stops_the_run(position: int) -> None:
    with pytest.raises(RunStopped, match="index"):
        run("stretto.narrow_scatter", counted(4, 6), -counted(4, 2), 1, Number(position))


def chain(make: Any, *tensors: Tensor) -> tuple[Program, list[Tensor]]:
    """A program whose ops `make` builds from parameters."""
    params = tuple(Value(type_of(tensor)) for tensor in tensors)
    ops, yields = make(*params)
    return Program({"main": Function("main", Block(params, ops, yields))}), list(tensors)


def test_an_update_keeps_the_base_that_is_read_later() -> None:
    def make(x: Value, y: Value) -> Any:
        base = tensor_op("aten.add.Tensor", x, x)
        changed = tensor_op("aten.select_scatter.default", base.result, y, 0, 1)
        after = tensor_op("aten.mul.Tensor", base.result, x)
        return [base, changed, after], (changed.result, after.result)

    x, y = counted(3, 2), -counted(2)
    found = execute(*chain(make, x, y))
    torch.testing.assert_close(found, [(x + x).select_scatter(y, 0, 1), (x + x) * x])


def test_an_update_may_read_its_base() -> None:
    """The source is a flipped view of what is overwritten."""

    def make(x: Value) -> Any:
        row = tensor_op("aten.select.int", x, 0, 0)
        base = tensor_op("aten.add.Tensor", x, x)
        first = tensor_op("aten.select_scatter.default", base.result, row.result, 0, 2)
        part = tensor_op("aten.slice.Tensor", first.result, 0, 0, 2)
        flipped = tensor_op("aten.flip.default", part.result, (0,))
        second = tensor_op("aten.slice_scatter.default", first.result, flipped.result, 0, 1, 3)
        last = tensor_op("aten.neg.default", second.result)
        return [row, base, first, part, flipped, second, last], (last.result,)

    x = counted(3, 2)
    first = (x + x).select_scatter(x[0], 0, 2)
    expected = -first.slice_scatter(first[0:2].flip(0), 0, 1, 3)
    torch.testing.assert_close(execute(*chain(make, x)), [expected])


def test_an_update_by_the_base_itself() -> None:
    def make(x: Value, index: Value) -> Any:
        base = tensor_op("aten.add.Tensor", x, x)
        added = tensor_op("aten.index_add.default", base.result, 0, index, base.result)
        return [base, added], (added.result,)

    x, index = counted(3, 2), places(1, 2, 0)
    found = execute(*chain(make, x, index))
    torch.testing.assert_close(found, [(x + x).index_add(0, index, x + x)])


def test_updates_in_a_row_share_one_buffer() -> None:
    def make(x: Value, y: Value) -> Any:
        ops = [tensor_op("aten.add.Tensor", x, x)]
        for row in range(3):
            ops.append(tensor_op("aten.select_scatter.default", ops[-1].result, y, 0, row))
        ops.append(tensor_op("aten.mul.Tensor", ops[-1].result, x))
        return ops, (ops[-1].result,)

    program, tensors = chain(make, counted(3, 2), counted(2))
    items = [item for leaf in leaves(lower(program).tree.main.body) for item in leaf]
    written: list[Buffer] = [item.out.buffer for item in items if isinstance(item, Operator)]
    assert len(set(written[:-1])) == 1
    torch.testing.assert_close(execute(program, tensors), [counted(2).expand(3, 2) * counted(3, 2)])


def test_one_position_becomes_a_register() -> None:
    """So that the row of an embedding is read in place, at an affine position."""
    program, _ = build("aten.embedding.default", counted(5, 3), places(3))
    items = [item for leaf in leaves(lower(program).tree.main.body) for item in leaf]
    (copy,) = [item for item in items if isinstance(item, Operator)]
    assert all(load.access.offset.is_affine for load in copy.reads())
    assert copy.value.dtype is DType.F32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_in_place_of_halves_are_verified_and_run(dtype: torch.dtype) -> None:
    """They are added in f32, and rounded once for each element that is added."""

    def function(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
        return x.index_put((index,), source, accumulate=True).index_add(0, index, source)

    compiled = stretto.compile(function, backend="emulator")
    arguments = torch.ones(4, dtype=dtype), torch.tensor([1, 3, 1]), torch.ones(3, dtype=dtype)
    torch.testing.assert_close(compiled(*arguments), function(*arguments))

"""What passes ask of tensor ops."""

import pytest
import torch

from stretto.ir.ops import TensorOp
from stretto.ir.text import parse_program
from stretto.ir.types import DType
from stretto.ops.properties import is_lossless, is_random, stop_reason

HEAD = (
    "func @main(%x: f32[3], %m: f32[3, 3], %i: i64[], %j: i64[3], %s: f32[s0], %t: f32[s1], "
    "%b: bool[3]) -> () {"
)


def op_of(line: str) -> TensorOp:
    (op,) = parse_program(f"{HEAD} %r = {line} : f32[] return }}").main.body.ops
    assert isinstance(op, TensorOp)
    return op


@pytest.mark.parametrize(
    "line",
    [
        "aten.add.Tensor(%x, %x)",
        "aten.mm.default(%m, %m)",
        "aten.linear.default(%m, %m)",
        "aten.mul.Scalar(%x, %i)",
        "aten.add.Tensor(%j, %j)",
        "aten.sum.default(%m)",
        "aten.permute.default(%m, (1, 0))",
        "aten.select.int(%j, 0, 1)",
        "aten.select.int(%s, 0, `s0 - 1`)",
        "aten.select.int(%s, 0, -1)",
        "aten._to_copy.default(%j, dtype=torch.float32)",
        "aten.div.Tensor(%x, %x)",
        "aten.mul.Tensor(%s, %s)",
        "aten.exp.default(%s)",
        "aten.full.default((3,), %i)",
        "aten.sum.default(%j)",
        "aten.div.Tensor(%j, %j)",
        "aten.pow.Tensor_Tensor(%j, %j)",
    ],
)
def test_ops_that_cannot_stop(line: str) -> None:
    assert stop_reason(op_of(line)) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("aten.select.int(%m, 0, %i)", "argument `index` is a run-time number"),
        ("stretto.narrow(%m, 0, %i, 2)", "argument `start` is a run-time number"),
        ("aten.embedding.default(%m, %j)", "positions out of range"),
        ("aten.gather.default(%x, 0, %j)", "positions out of range"),
        ("aten.remainder.Tensor(%j, %j)", "a divisor of 0"),
        ("aten.floor_divide.default(%j, %j)", "a divisor of 0"),
        ("aten.pow.Tensor_Scalar(%j, %i)", "a divisor of 0"),
        ("aten.linalg_inv.default(%m)", "not known to take all values"),
        ("aten.one_hot.default(%j, 4)", "refuses some values"),
        ("aten.index_put.default(%x, (%b,), %x)", "positions out of range"),
        ("aten.masked_scatter.default(%x, %b, %x)", "refuses some values"),
        ("aten.mul.Tensor(%s, %t)", "symbolic dims"),
        ("aten.select.int(%s, 0, `s1 - 1`)", "may be out of range for the size s0"),
        ("aten.select.int(%s, 0, 99)", "may be out of range for the size s0"),
    ],
)
def test_ops_that_may_stop(line: str, reason: str) -> None:
    assert reason in (stop_reason(op_of(line)) or "")


@pytest.mark.parametrize(
    ("line", "random"),
    [
        ("aten.rand_like.default(%x)", True),
        ("aten.bernoulli.default(%x)", True),
        ("aten.dropout.default(%x, 0.5, True)", True),
        ("aten.dropout.default(%x, 0.5, False)", False),
        ("aten.dropout.default(%x, 0.0, True)", False),
        ("aten.bernoulli.p(%x, 0.0)", True),
        ("aten.scaled_dot_product_attention.default(%m, %m, %m)", False),
        ("aten.scaled_dot_product_attention.default(%m, %m, %m, None, 0.1)", True),
        ("aten.neg.default(%x)", False),
    ],
)
def test_random_ops(line: str, random: bool) -> None:
    assert is_random(op_of(line)) is random


@pytest.mark.parametrize("source", DType)
@pytest.mark.parametrize("target", DType)
def test_lossless_casts_come_back_the_same(source: DType, target: DType) -> None:
    if not is_lossless(source, target):
        return
    kind = source.torch
    if source is DType.BOOL:
        numbers = torch.tensor([False, True])
    elif source.is_float:
        info = torch.finfo(kind)
        numbers = torch.tensor([info.max, info.tiny, info.eps, torch.inf, -0.0], dtype=kind)
    else:
        info = torch.iinfo(kind)
        numbers = torch.tensor([info.min, info.max, info.max - 1, 1], dtype=kind)
    assert torch.equal(numbers.to(target.torch).to(kind), numbers)

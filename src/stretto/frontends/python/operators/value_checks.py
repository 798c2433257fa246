"""Operators that check values: what eager PyTorch raises for them becomes checks of the Program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.operators.eager import eager_error, infer
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.raises import check, require
from stretto.frontends.python.values.scalars import concrete, flag_of
from stretto.ir.core import Block
from stretto.ir.failure import Failure
from stretto.ir.ops import IfOp
from stretto.ir.types import DType

aten = torch.ops.aten

_NOT_TRUE = "Expected Tensor with single nonzero value, but got zero"


def check_all(valid: Any, error: str, message: str, values: Any = None) -> None:
    """Stop the run where an element of `valid` is false.

    values: integers of the same shape, whose first one that is not valid stands for the `{}` in
    the message. It is looked for only when the check fails.
    """
    if not isinstance(valid, TracedTensor):
        valid = tracer().promote(valid)
    if valid.numel() == 0:
        return
    if values is None:
        check(valid.all(), error, message)
        return
    state = tracer()
    flag = flag_of(valid.all())
    with state.region() as region:
        wrong = torch.logical_not(valid).reshape(-1).to(torch.int64)
        place = torch.argmax(wrong, 0, keepdim=True)
        first: Any = values.reshape(-1).index_select(0, place).to(torch.int64).reshape(())
        failure = Failure(error, message)
        require(state.literal(False, DType.BOOL), failure, state.read(first))
    state.place(IfOp(flag, Block(), region.scope.block), ())


def _equal(one: Any, other: Any) -> bool:
    """The Python flag that code that is not rewritten asks for."""
    return one.shape == other.shape and bool(concrete((one == other).all(), "bool"))


def _all_close(*args: Any, **kwargs: Any) -> bool:
    return bool(concrete(torch.isclose(*args, **kwargs).all(), "bool"))


def _assert_async(condition: Any, message: str = _NOT_TRUE) -> None:
    check(condition, "RuntimeError", message)


def _functional_assert(condition: Any, message: str, token: Any) -> Any:
    check(condition, "RuntimeError", message)
    return token.clone()


def _nll_loss(scores: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    """Classes in range; then the operator is recorded as any other."""
    classes = scores.shape[1 if scores.dim() > 1 else 0]
    valid = (target >= 0) & (target < classes) | (target == ignored)
    check_all(valid, "IndexError", "Target {} is out of bounds.", target)
    return NotImplemented


def _binary_cross_entropy(probability: Any, *rest: Any, **kwargs: Any) -> Any:
    check_all(
        (probability >= 0) & (probability <= 1),
        "RuntimeError",
        "all elements of input should be between 0 and 1",
    )
    return NotImplemented


def _max_unpool(x: Any, places: Any, size: Any, *rest: Any) -> Any:
    """Places in the output volume; `index_put`, which torch decomposes this to, takes others."""
    shown = "x".join(str(extent) for extent in size)
    check_all(
        (places >= 0) & (places < math.prod(size)),
        "RuntimeError",
        f"Found an invalid max index: {{}} (output volumes are of size {shown})",
        places,
    )
    return NotImplemented


def _index_add(x: Any, dim: int, index: Any, source: Any, **kwargs: Any) -> Any:
    """The shape of the source, of which torch's own rule knows nothing."""
    shapes = [list(item.shape) for item in (x, source)]
    if any(isinstance(size, torch.SymInt) for shape in shapes for size in shape):
        return NotImplemented
    own, other = (
        shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :] if shape else []
        for shape in shapes
    )
    if x.dim() and own != other:
        refused = eager_error(aten.index_add.default, (x, dim, index, source), kwargs)
        if refused is not None:
            raise refused
    return NotImplemented


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """The shape of the values, of which torch's own rule knows nothing, either.
    Masks select as many elements as the run tells: there the selection checks it."""
    if any(item is not None and item.dtype in (torch.bool, torch.uint8) for item in indices):
        return NotImplemented
    state = tracer()
    wanted = infer(state, aten.index.Tensor, (x, indices), {}).shape
    wanted = (*[1] * (values.dim() - len(wanted)), *wanted)
    pairs = list(zip(reversed(values.shape), reversed(wanted), strict=False))
    if all(str(state.dim(size)) in ("1", str(state.dim(other))) for size, other in pairs):
        return NotImplemented
    refused = eager_error(aten.index_put.default, (x, indices, values), {"accumulate": accumulate})
    if refused is not None:
        raise refused
    if not all(size == 1 or size == other for size, other in pairs):  # guards of symbolic sizes
        fail(
            f"values of shape {list(values.shape)} are assigned to a selection of shape "
            f"{list(wanted)}",
            "give as many values as are selected",
        )
    return NotImplemented


def check_classes(index: Any, classes: int) -> None:
    """What `one_hot` checks."""
    check_all(index >= 0, "RuntimeError", "Class values must be non-negative.")
    check_all(index < classes, "RuntimeError", "Class values must be smaller than num_classes.")


RULES: dict[Any, Callable[..., Any]] = {
    aten.equal.default: _equal,
    aten.allclose.default: _all_close,
    aten._assert_async.default: _assert_async,
    aten._assert_async.msg: _assert_async,
    aten._functional_assert_async.msg: _functional_assert,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten.max_unpool2d.default: _max_unpool,
    aten.max_unpool3d.default: _max_unpool,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
}

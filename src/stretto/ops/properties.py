"""What a pass must know of a tensor op before it moves, merges, drops or evaluates it.

All of it is read from torch's own tags and schemas; two short lists hold what those do not say.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from stretto.ir.failure import eager_class
from stretto.ir.ops import TensorOp, argument_values
from stretto.ir.types import DType, TensorType
from stretto.ops.infer import named_arguments, resolve

_STOPS_ON_SOME_INTEGERS = frozenset(
    {"div", "divide", "floor_divide", "remainder", "fmod", "pow", "float_power"}
)
"""Pointwise operators that refuse some integers: a divisor of 0, a negative exponent."""

_NOT_CORE_BUT_TOTAL = frozenset(
    name if name.startswith("stretto.") else f"aten.{name}"
    for name in (
        *("sort.stable", "stretto.topk.default"),
        *("linear.default", "matmul.default", "baddbmm.default", "mv.default", "dot.default"),
        *("conv1d.default", "conv2d.default", "layer_norm.default", "group_norm.default"),
        *("batch_norm.default", "softmax.int", "log_softmax.int", "stack.default"),
        *("sum.default", "var.default", "std.correction", "norm.ScalarOpt_dim"),
        *("tril.default", "triu.default", "roll.default", "_unsafe_view.default", "pad.default"),
        *("scaled_dot_product_attention.default", "rms_norm.default", "addmv.default"),
    )
)
"""Operators without torch's `core` tag that take every float of the right shape."""


_REDUCTIONS = frozenset(
    ("all", "amax", "amin", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum")
)


@cache
def is_pointwise(target: str) -> bool:
    """Each result element depends on the operands' elements at that place only."""
    return torch.Tag.pointwise in resolve(target).tags


@cache
def is_view(target: str) -> bool:
    """The result may share memory with an operand in torch; here that means: it only rearranges."""
    returns: list[Any] = resolve(target)._schema.returns
    return any(item.alias_info is not None and not item.alias_info.is_write for item in returns)


@cache
def is_cheap(target: str) -> bool:
    """Each element is read at most once: pointwise operators, views, constants and reductions."""
    name = _name(target)
    return is_pointwise(target) or is_view(target) or name in _REDUCTIONS or name == "full"


def is_random(op: TensorOp) -> bool:
    """Two runs may differ: random numbers, and dropout unless it is switched off."""
    if torch.Tag.nondeterministic_seeded not in resolve(op.target).tags:
        return False
    given = {item.name: value for item, value in named_arguments(op.target, op.args, op.kwargs)}
    schema: list[Any] = resolve(op.target)._schema.arguments
    values = {item.name: given.get(item.name, item.default_value) for item in schema}
    off = values.get("dropout_p") == 0.0 or values.get("train") is False
    return not off


def stop_reason(op: TensorOp) -> str | None:
    """Why the op may stop the run although its types are right, or None when it cannot.

    An op that cannot stop may run earlier, or where it did not run before.
    """
    if not op.results:
        return "it only checks values"
    if (reason := _run_time_number(op)) is not None:
        return reason
    types = _tensor_types(op)
    if any(not type.is_static for type in types) and len({type.shape for type in types}) > 1:
        return "whether the symbolic dims of its operands agree is known only at run time"
    integers = any(type.dtype.is_integer for type in types)
    if is_pointwise(op.target) or _name(op.target) == "floor_divide":
        if integers and _name(op.target) in _STOPS_ON_SOME_INTEGERS:
            return "it refuses some integers, as a divisor of 0"
        return None
    if is_view(op.target):
        return None
    if integers and op.target != "aten._to_copy.default":
        return "the integers it reads may be positions out of range"
    if torch.Tag.core in resolve(op.target).tags or op.target in _NOT_CORE_BUT_TOTAL:
        return None
    return f"`{op.target}` is not known to take all numbers"


def eager_errors(op: TensorOp) -> tuple[type[Exception], ...]:
    """The classes of what the op may raise for the values of its operands, as code that catches
    them sees it: positions out of range, integers divided by 0, matrices without a solution."""
    if _run_time_number(op) is not None:
        return (IndexError, RuntimeError)
    types = _tensor_types(op)
    for item, argument in named_arguments(op.target, op.args, op.kwargs):
        if item.name in ("index", "indices") and argument_values(argument):
            return (IndexError, RuntimeError)
    name = _name(op.target)
    if name in _STOPS_ON_SOME_INTEGERS and all(not type.dtype.is_float for type in types):
        return (ZeroDivisionError, RuntimeError)
    if not op.results or "linalg" in name or "cholesky" in name:
        return (eager_class("LinAlgError"),)
    return ()


def _run_time_number(op: TensorOp) -> str | None:
    if is_pointwise(op.target) or op.target.startswith("aten.full"):
        return None
    for item, argument in named_arguments(op.target, op.args, op.kwargs):
        if not item.is_tensor and argument_values(argument):
            return f"its argument `{item.name}` is a run-time number that may be out of range"
    return None


def _tensor_types(op: TensorOp) -> list[TensorType]:
    named = named_arguments(op.target, op.args, op.kwargs)
    values = (value for one, item in named if one.is_tensor for value in argument_values(item))
    return [value.tensor for value in values]


def _name(target: str) -> str:
    """`div` for `aten.div.Tensor_mode`."""
    return target.split(".")[1]


def is_lossless(source: DType, target: DType) -> bool:
    """Whether every number of `source` is one of `target`: casting there and back is exact."""
    if source is target or source is DType.BOOL:
        return True
    if target is DType.BOOL or (source.is_float and not target.is_float):
        return False
    if source.is_float:
        return target is DType.F64 or (target is DType.F32 and source is not DType.F64)
    if not target.is_float:
        signed = source is not DType.U8 and target is DType.U8
        return not signed and target.itemsize > source.itemsize
    bits = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}[target]
    return source.itemsize * 8 - (source is not DType.U8) <= bits

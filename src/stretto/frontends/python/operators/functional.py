"""Operators that write into their arguments, as pure operators plus a write to a storage."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from stretto.errors import NotCaptured, OnlyInPython
from stretto.frontends.python.operators.checks import eager_error
from stretto.frontends.python.operators.views import part_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import is_decided, plain
from stretto.frontends.python.values.raises import check
from stretto.ir.types import TensorType

aten = torch.ops.aten


def is_mutating(func: Any) -> bool:
    """True if an operator writes into an argument."""
    return func._schema.is_mutable


def apply_functionally(func: Any, args: Any, kwargs: Any) -> Any:
    """Run the pure form of `func` and write its results to the arguments that `func` changes."""
    targets = written_by(func, args, kwargs)
    pure, by_out = _pure_form(func)
    if pure is None:
        fail(
            f"{func} changes a tensor in place and has no pure form", "use an out-of-place operator"
        )
    given = kwargs
    if by_out:
        outs = {p.name for p in func._schema.arguments if p.alias_info is not None}
        kwargs = {key: item for key, item in kwargs.items() if key not in outs}
    outcome = pure(*args, **kwargs)
    outcomes = outcome if isinstance(outcome, tuple | list) else (outcome,)
    for target, new in zip(targets, outcomes, strict=False):
        if by_out and target.dim() == new.dim():
            what = f"{func} returns size {{}} for an `out` of another size: eager resizes it"
            new = _with_sizes_of(new, target, NotCaptured.__name__, what)
        if by_out and tuple(target.shape) != tuple(new.shape):
            fail(
                f"{func} gives a tensor of shape {list(new.shape)} for `out`, whose shape is "
                f"{list(target.shape)}: eager PyTorch would resize it",
                "give `out` a tensor of the shape of the result",
            )
        if by_out and new.dtype != target.dtype:
            refused = eager_error(func, args, given)
            if refused is not None:
                raise refused
        if not torch.can_cast(new.dtype, target.dtype) and eager_error(func, args, given) is None:
            new = aten._to_copy.default(new, dtype=target.dtype)  # eager accepts empty ones
        _check_result(target, new)
        overwrite(target, new)
    if not func._schema.returns:
        return None
    return targets[0] if len(targets) == 1 else tuple(targets)


def overwrite(target: torch.Tensor, source: torch.Tensor) -> None:
    """Emit `target[...] = source`, with a cast and a broadcast if they differ."""
    state = tracer()
    traced = target if isinstance(target, TracedTensor) else state.promote(target)
    if source.dtype != traced.dtype:
        source = aten._to_copy.default(source, dtype=traced.dtype)
    what = "the assigned tensor has size {}, which is not the size of the target"
    source = _with_sizes_of(source, traced, OnlyInPython.__name__, what)
    if state.type_of(source).shape != state.type_of(traced).shape:
        source = aten.expand.default(source, list(traced.shape))
    moved = source if isinstance(source, TracedTensor) else state.promote(source)
    value = state.read(moved)
    assert isinstance(value.type, TensorType)
    state.assign(traced, value)


def _with_sizes_of(source: Any, target: torch.Tensor, error: str, message: str) -> Any:
    """Return the written tensor with the sizes of the target. If two sizes differ and one is data-
    dependent, the run compares them and raises the error unless they are equal. message: `{}`
    is the size."""
    state = tracer()
    for back in range(1, min(source.dim(), target.dim()) + 1):
        size, wanted = source.shape[-back], target.shape[-back]
        dim = source.dim() - back
        if state.dim(size) in (1, state.dim(wanted)):
            continue
        if not any(map(is_decided, (size, wanted))):
            continue
        number: Any = plain(size)
        with state.mode:
            shown = state.read(number) if isinstance(number, TracedTensor) else None
            said = message if shown else message.format(number)
            check(number == plain(wanted), error, said, shown)
        moved = source if isinstance(source, TracedTensor) else state.promote(source)
        source = part_of(moved, dim, 0, wanted)
    return source


def _check_result(target: torch.Tensor, new: torch.Tensor) -> None:
    """Raise eager's error if the result does not fit into the tensor that is changed."""
    if not torch.can_cast(new.dtype, target.dtype):
        found, wanted = (type_name(tensor.dtype) for tensor in (new, target))
        raise RuntimeError(f"result type {found} can't be cast to the desired output type {wanted}")
    state = tracer()
    if state.type_of(target).shape != state.type_of(new).shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(new.shape)}"
        )


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in eager's error messages."""
    names = {
        torch.float32: "Float",
        torch.float64: "Double",
        torch.float16: "Half",
        torch.bfloat16: "BFloat16",
        torch.bool: "Bool",
        torch.uint8: "Byte",
        torch.int8: "Char",
        torch.int16: "Short",
        torch.int32: "Int",
        torch.int64: "Long",
    }
    return names.get(dtype, str(dtype))


def written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that `func` writes to."""
    targets = list[Any]()
    for position, parameter in enumerate(func._schema.arguments):
        if parameter.alias_info is None or not parameter.alias_info.is_write:
            continue
        found = args[position] if position < len(args) else kwargs.get(parameter.name)
        if found is not None:
            targets += found if isinstance(found, list | tuple) else (found,)
    return targets


@cache
def _pure_form(func: Any) -> tuple[Any, bool]:
    """Return the overload without side effects, or None; and True if `func` is an out= overload."""
    name = func._schema.name.split("::")[1]
    namespace = getattr(torch.ops, func.namespace)
    is_out = any(p.is_out for p in func._schema.arguments)
    base = name if is_out else name.removesuffix("_")
    if base.startswith("__i"):  # __iand__ is the in-place form of __and__
        base = name.replace("__i", "__", 1)
    packet = getattr(namespace, base, None)
    if packet is None:
        return None, is_out
    wanted = [p.name for p in func._schema.arguments if not p.is_out]
    types = [str(p.type) for p in func._schema.arguments if not p.is_out]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        schema = candidate._schema
        if schema.is_mutable:
            continue
        if [p.name for p in schema.arguments][: len(wanted)] != wanted:
            continue
        if [str(p.type) for p in schema.arguments][: len(wanted)] == types:
            return candidate, is_out
    return None, is_out

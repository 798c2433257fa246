"""Operators on a value that is a number of one kind or another: an int or a float, or a 0-d tensor.

Most uses do not depend on which of them it is: the product with a float tensor, or the comparison
with another number. These need no branch on the flags of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.tracing.poison import COMPARISONS
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either, first_either, replaced
from stretto.frontends.python.values.flags import possible
from stretto.frontends.python.values.leaves import kind_of, materialize, wrap
from stretto.frontends.python.values.scalars import Kind, is_number, number_kind
from stretto.ir.types import DType

_OF_NUMBERS = {*COMPARISONS, "add", "sub", "mul", "neg", "pos", "abs"}
"""Operators that raise for no int and no float."""
_OF_TENSORS = {*COMPARISONS, "add", "sub", "mul", "truediv", "floordiv", "mod", "pow"}
"""Operators whose result with a float tensor does not depend on the kind of a number."""
_FUNCTIONS = {
    "add": "add", "add_": "add", "sub": "sub", "sub_": "sub", "mul": "mul", "mul_": "mul",
    "div": "truediv", "div_": "truediv", "true_divide": "truediv", "pow": "pow", "pow_": "pow",
    "__rsub__": "sub", "__rdiv__": "truediv", "__rpow__": "pow", "__truediv__": "truediv",
    **{name: name for name in COMPARISONS}, "clamp_min": "lt", "clamp_max": "lt",
    **{f"__{prefix}{name}__": name for name in _OF_TENSORS for prefix in ("", "r", "i")},
}  # fmt: skip
"""Functions and methods of torch with two operands, and the operators that they are."""

Operation = Callable[..., Any]


def of_operator(name: str, operation: Operation, value: Either, others: tuple[Any, ...]) -> Any:
    """The result of `operation(number, *others)` without a branch; NotImplemented where it needs
    one.

    Each number that `value` may be takes its place.
    """
    pairs = possible(value)
    options = [option for _, option in pairs]
    if len(pairs) < 2 or any(isinstance(option, Either) for option in options):
        return NotImplemented
    if any(isinstance(other, torch.Tensor) and not is_number(other) for other in others):
        merged = _merged(pairs, others[0]) if name in _OF_TENSORS else None
        return NotImplemented if merged is None else operation(merged, *others)
    are_plain = all(number_kind(item) in (int, float) for item in (*options, *others))
    if name not in _OF_NUMBERS or not are_plain:
        return NotImplemented
    return _one_of(pairs, [operation(option, *others) for option in options])


def of_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same for a function of torch with two operands."""
    name = _FUNCTIONS.get(getattr(function, "__name__", ""))
    if name is None or kwargs or len(args) != 2:
        return NotImplemented
    for number, value in enumerate(args):
        if isinstance(value, Either) and first_either(args[1 - number]) is None:
            place = function if number == 0 else lambda option, other: function(other, option)
            return of_operator(name, place, value, (args[1 - number],))
    return NotImplemented


def with_tensors(given: Any) -> Any:
    """The arguments, with one tensor in the place of each value that is a number or a 0-d
    tensor."""
    while (found := _number_or_tensor(given)) is not None:
        either, kind = found
        pairs = [(flag, materialize(option, kind)) for flag, option in possible(either)]
        state, value = tracer(), pairs[-1][1]
        for flag, other in pairs[:-1]:
            arguments = (state.read(flag), other, value)
            value = state.tensor_op("aten.where.self", arguments, value.tensor)
        given = replaced(given, either, wrap(value, kind))
    return given


def _number_or_tensor(given: Any) -> tuple[Either, Kind] | None:
    """A value among the arguments that is a number or a tensor, and the kind of tensor that can
    hold both."""
    args, kwargs = given
    for leaf in (*args, *kwargs.values()):
        if isinstance(leaf, Either):
            kinds = [kind_of(option) for option in leaf.stretto_options]
            known = [kind for kind in kinds if kind is not None]
            tensor = next((kind for kind in known if not kind.number), None)
            if tensor is None or len(known) < len(kinds):
                continue
            if all(kind.type == tensor.type for kind in known):
                return leaf, tensor
    return None


def _merged(pairs: list[tuple[Any, Any]], other: torch.Tensor) -> Any:
    """One number or 0-d tensor that can stand for all that a value may be; None where the dtype of
    the result with the other operand, a float tensor, depends on which of them it is."""
    dtype = other.dtype
    if not dtype.is_floating_point:
        return None
    for _, option in pairs:
        if number_kind(option) in (int, float):
            continue
        if not isinstance(option, TracedTensor) or option.dim() or option.dtype == torch.bool:
            return None
        if not other.dim() and torch.promote_types(option.dtype, dtype) != dtype:
            return None
    widest = torch.float64 if dtype == torch.float64 else torch.get_default_dtype()
    for _, option in pairs:
        if isinstance(option, TracedTensor) and option.dtype.is_floating_point:
            widest = torch.promote_types(option.dtype, widest)
    converted = [(flag, _converted(option, widest)) for flag, option in pairs]
    value = converted[-1][1]
    for flag, other in converted[:-1]:
        value = torch.where(flag, other, value)
    return value


def _converted(option: Any, dtype: torch.dtype) -> Any:
    if isinstance(option, TracedTensor):
        return option if option.dtype == dtype else option.to(dtype)
    state = tracer()
    return state.number(state.literal(float(option), DType.from_torch(dtype)))


def _one_of(pairs: list[tuple[Any, Any]], results: list[Any]) -> Any:
    """A value that is one of the results. Results of one kind become one number."""
    found = list[tuple[Any, Any]]()
    for (flag, _), result in zip(pairs, results, strict=True):
        same = next((n for n, (_, x) in enumerate(found) if kind_of(x) == kind_of(result)), None)
        if same is None:
            found.append((flag, result))
        else:
            other, value = found[same]
            found[same] = torch.logical_or(flag, other), torch.where(flag, result, value)
    if len(found) == 1:
        return found[0][1]
    return Either(*zip(*found, strict=True))

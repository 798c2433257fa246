"""Arguments of tensor ops by their names in the operator's schema, with defaults filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ops.infer import named_arguments, resolve, tensor_op


def arguments(
    target: str, args: Sequence[Any], kwargs: Iterable[tuple[str, Any]]
) -> dict[str, Any]:
    """Return all arguments; an omitted one has the schema's default, or None if there is none."""
    given = named_arguments(target, args, kwargs)
    return _defaults(target) | {parameter.name: value for parameter, value in given}


def argument(op: TensorOp, name: str) -> Argument:
    """Return the argument of that name; if omitted, the schema's default or None."""
    for parameter, value in named_arguments(op.target, op.args, op.kwargs):
        if parameter.name == name:
            return value
    return _defaults(op.target).get(name)


def value_argument(op: TensorOp, name: str) -> Value | None:
    """Return the argument of that name if it is a Value, else None."""
    value = argument(op, name)
    return value if isinstance(value, Value) else None


def int_argument(op: TensorOp, name: str) -> int | None:
    """Return the argument of that name if it is an int, else None."""
    value = argument(op, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def with_arguments(op: TensorOp, changed: dict[str, Argument]) -> TensorOp:
    """Return a new op with some arguments replaced; raise VerifyError if torch refuses them."""
    given = named_arguments(op.target, op.args, op.kwargs)
    values = {parameter.name: value for parameter, value in given} | changed
    positional: list[Argument] = []
    keywords: dict[str, Argument] = {}
    for place, item in enumerate(resolve(op.target)._schema.arguments):
        if item.name not in values:
            continue
        if item.kwarg_only or len(positional) < place:
            keywords[item.name] = values[item.name]
        else:
            positional.append(values[item.name])
    return tensor_op(op.target, *positional, **keywords)


@cache
def _defaults(target: str) -> dict[str, Argument]:
    return {item.name: _frozen(item.default_value) for item in resolve(target)._schema.arguments}


def _frozen(value: Any) -> Argument:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value

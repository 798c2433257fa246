"""Whether two values of the evaluation are surely the same value of Python."""

from __future__ import annotations

from stretto.batching.frontend.state.values import (
    Choice,
    Closure,
    Dynamic,
    Method,
    Static,
    TupleValue,
    Unbound,
    Value,
    is_scalar,
)


def same(first: Value, second: Value) -> bool:
    """Whether two values are surely the same."""
    match first, second:
        case Static(a), Static(b):
            return a is b or (is_scalar(first) and type(a) is type(b) and a == b)
        case Dynamic(a, kind), Dynamic(b, other):
            return kind == other and (a is b or a == b)
        case TupleValue(a, x), TupleValue(b, y):
            return x == y and len(a) == len(b) and all(map(same, a, b))
        case Method(f, a), Method(g, b):
            return f is g and same(a, b)
        case Closure(a, x), Closure(b, y):  # it reads what is around it by reference
            return a is b and x is y and _same_defaults(first, second)
        case Unbound(), Unbound():
            return True
        case Choice(a, i, _), Choice(b, j, _):
            alike = len(a) == len(b) and same(i, j)
            return alike and all(
                x[0] == y[0] and same(x[1], y[1]) for x, y in zip(a, b, strict=True)
            )
        case _:
            return first is second


def _same_defaults(first: Closure, second: Closure) -> bool:
    pairs = zip(first.defaults, second.defaults, strict=True)
    named = ((v, second.keyword_defaults[k]) for k, v in first.keyword_defaults.items())
    return all(same(a, b) for a, b in (*pairs, *named))

"""Sizes that data decide: traced numbers as dims of tensors, and such dims as traced numbers.

In the shape of a tensor such a size is a `torch.SymInt` without a hint. Where Python would need its
value (a condition, a loop, arithmetic with tensors), it becomes a traced number; where torch needs
a dim, a traced number becomes a SymInt, which an op of the Program binds.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch.utils._pytree import tree_map_only

from stretto.errors import OnlyInPython
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import is_number, known_value
from stretto.frontends.python.values.size_numbers import condition_of_sizes, number_of_size
from stretto.ir.size_bounds import bounds
from stretto.ir.sizes import Size

Dim = int | torch.SymInt

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool
MOST = 1 << 40
"""The largest size that a run tries to take memory for, whatever the memory of the machine."""

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_decided(value: object) -> TypeGuard[Symbolic]:
    """Whether data decide a size, or what Python has computed of sizes."""
    return isinstance(value, _SYMBOLIC) and not value.node.has_hint()


def plain(value: Any) -> Any:
    """The value; a traced number for a size that data decide, and a flag for a condition on one."""
    if not is_decided(value):
        return value
    state = tracer()
    if isinstance(value, torch.SymBool):
        found = condition_of_sizes(state, value)
    else:
        found = number_of_size(state, value, torch.float64)
    if found is None:
        fail(
            f"the condition {value.node.expr} on a size that data decide is not captured",
            "compare sizes, and what +, -, *, //, %, min and max make of them",
        )
    return found


def plain_parts(value: Any) -> Any:
    """The same for what containers hold."""
    if active() is None:
        return value
    return tree_map_only(_SYMBOLIC, plain, value)


def is_integer(value: Any) -> bool:
    """Whether a value is a traced number that may be a size."""
    return is_number(value) and value.dtype == torch.int64


def dim_of(
    number: Any,
    message: str,
    low: int = 0,
    most: Dim | None = None,
    error: type[Exception] = RuntimeError,
) -> Dim:
    """A number as a dim. The run stops with `error` and `message` where it is below `low`; the
    caller knows that it is at most `most`."""
    known = known_value(number) if isinstance(number, TracedTensor) else number
    if known is not None:
        return known
    check(number >= low, error.__name__, message, tracer().read(number))
    return bounded_dim(number, low, most)


def bounded_dim(number: TracedTensor, low: int = 0, most: Dim | None = None) -> Dim:
    """A number that surely lies between `low` and `most` as a dim. The same number is the same
    dim."""
    known = known_value(number)
    if known is not None:
        return known
    state = tracer()
    value = state.read(number)
    if value in state.sizes_read:
        return state.symbolic_dim(state.sizes_read[value])
    found: Any = state.sizes_of.get(value)
    if isinstance(found, int):  # of a size that is a number in this capture
        return found
    # A trace that was given up may have found that the size is a constant there.
    if found is not None and found.node.expr in state.symbols:
        symbol = state.symbols[found.node.expr]
        if state.is_known(state.symbol_values[symbol]):
            return found
    limit = None if most is None else Size.of(state.dim(most))
    if limit is None:
        too_many = "a size of {} is more than memory has room for"
        with state.mode:
            check(number <= MOST, "RuntimeError", too_many, value)
    high = None if limit is None else bounds(limit)[1]
    tells = limit is not None and limit.terms and (high is None or _is_of_the_call(limit))
    size = state.new_size(value, low, high, limit if tells else None)
    state.sizes_of[value] = size
    return size


def _is_of_the_call(size: Size) -> bool:
    return tracer().symbol_dims.keys().isdisjoint(size.symbols)


def compare_in_run() -> None:
    """Emits the comparisons of sizes that torch has made outside of operators. A function that C++
    makes of several operators, as `broadcast_tensors`, compares sizes before it calls any of them,
    and takes those that data decide for what it needs. A call where they are others runs in
    Python."""
    state = tracer()
    for symbol, expression in state.sizes.env.forget_equal(state.symbols):
        dim = state.dim_of(expression)
        if dim is not None and state.is_known(state.symbol_values[symbol]):
            same: Any = state.symbolic_dim(Size.of(symbol)) == state.symbolic_dim(dim)
            check(plain(same), OnlyInPython.__name__, f"sizes are needed with {symbol} == {dim}")


def is_size_number(value: Any) -> bool:
    """Whether a value is a size that is known at the call, or a float computed from such sizes, as
    torch has them."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.expr.free_symbols <= tracer().sizes.known.keys()
    return False

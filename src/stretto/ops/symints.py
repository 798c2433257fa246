"""Sizes as torch's SymInts, and the sympy expressions inside of these as sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.numbers import int_oo

from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most, maximum, minimum, with_maximum_outside
from stretto.ir.sizes import Size, Symbol, ceil_div
from stretto.ir.types import Dim
from stretto.ops.elements import require_elements

_KEYS: Any = torch._C.DispatchKey  # pyright: ignore


def to_symint(dim: Dim, values: Mapping[Symbol, torch.SymInt]) -> int | torch.SymInt:
    """The size, where each symbol has the given value."""
    return dim if isinstance(dim, int) else dim.evaluate(values.__getitem__, torch.sym_max)


def from_sympy(expression: Any, symbols: Mapping[Any, Symbol]) -> Dim:
    """The size that a sympy expression over known symbols says.

    VerifyError for what the algebra of sizes has no form for.
    """
    return with_maximum_outside(_size(expression, symbols)).dim


def backed_symint(env: ShapeEnv, name: str, value: int, low: int, high: int | None) -> torch.SymInt:
    """A new symbol of torch's with this range, which has the value where torch decides by it."""
    origin = ConstantSource(name)
    expression = env.create_symbol(
        value,
        source=origin,
        dynamic_dim=DimDynamic.DYNAMIC,
        positive=None,
        do_not_specialize_zero_one=True,
    )
    env.constrain_symbol_range(
        expression, compiler_min=low, compiler_max=int_oo if high is None else high
    )
    made: Any = env.create_symintnode(expression, hint=value, source=origin)
    return made


def on_fakes(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The results of an operator on fake tensors with symbolic sizes.

    Where its kernel is made of others, in C++, it would ask for the sizes as numbers; what torch
    has in Python for it does not.
    """
    require_elements(overload, args, kwargs)
    is_made_of_others = overload.has_kernel_for_dispatch_key(_KEYS.CompositeExplicitAutograd)
    if is_made_of_others and not overload.is_view:
        of_torch = decomposition_table.get(overload, overload)
        overload = overload.py_kernels.get(_KEYS.Meta, of_torch)
    return overload(*args, **kwargs)


def comparisons(condition: Any) -> Iterator[Any]:
    """The comparisons that together are a condition of sympy's. VerifyError for any other."""
    if condition.is_Relational:
        yield condition
    elif type(condition).__name__ == "And":
        for part in condition.args:
            yield from comparisons(part)
    else:
        raise VerifyError(f"sizes would have to be such that {condition}")


def _size(expression: Any, symbols: Mapping[Any, Symbol]) -> Size:
    if expression.is_Integer:
        return Size(const=int(expression))
    if expression in symbols:
        return Size.of(symbols[expression])
    name = type(expression).__name__
    if name in _ROUNDED and type(expression.args[0]).__name__ == "IntTrueDiv":
        return _ROUNDED[name](*(_size(part, symbols) for part in expression.args[0].args))
    meaning = _MEANINGS.get(name)
    if meaning is None:
        raise VerifyError(f"the size {expression} of a result is not a formula that sizes may have")
    return reduce(meaning, [_size(part, symbols) for part in expression.args])


def _power(size: Size, exponent: Size) -> Size:
    if not exponent.is_const or exponent.const < 0:
        raise VerifyError(f"a size to the power of {exponent}")
    return reduce(Size.__mul__, [size] * exponent.const, Size(const=1))


def _divided(size: Size, divisor: Size) -> Size:
    return size // _divisor(divisor)


def _remainder(size: Size, divisor: Size) -> Size:
    return size % _divisor(divisor)


def _divided_up(size: Size, divisor: Size) -> Size:
    return ceil_div(size, _divisor(divisor))


def _truncated(size: Size, divisor: Size) -> Size:
    if not at_most(0, size):
        raise VerifyError(f"the size {size} may be negative, and is rounded to 0")
    return _divided(size, divisor)


def _divisor(divisor: Size) -> int | Size:
    if not at_most(1, divisor):
        raise VerifyError(f"the divisor {divisor} of a size may be 0")
    return divisor.dim


_ROUNDED: dict[str, Callable[[Size, Size], Size]] = {
    "FloorToInt": _divided,
    "CeilToInt": _divided_up,
    "TruncToInt": _truncated,
}
"""What becomes of a quotient of two sizes, as `math.ceil(n / 2)` rounds it."""

_MEANINGS: dict[str, Callable[[Size, Size], Size]] = {
    "Add": Size.__add__,
    "Mul": Size.__mul__,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _divided,
    "CleanDiv": _divided,
    "CeilDiv": _divided_up,
    "Mod": _remainder,
    "PythonMod": _remainder,
    "Max": maximum,
    "Min": minimum,
}

"""Sizes as torch's SymInts, and the sympy expressions inside of these as sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dynamo.source import ConstantSource
from torch._guards import SLoc
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.torch_version import TorchVersion
from torch.utils._sympy.numbers import int_oo

from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most, maximum, minimum, with_maximum_outside
from stretto.ir.sizes import Size, Symbol, ceil_div
from stretto.ir.types import Dim
from stretto.ops.elements import require_elements

_KEYS: Any = torch._C.DispatchKey  # pyright: ignore
_CHECK: Any = torch._check  # pyright: ignore


class SizeEnv(ShapeEnv):
    """What torch knows of sizes, without the places in Python that made it ask. To find one, it
    walks the frames for each fact, and imports its own compiler and exporter to skip theirs."""

    def _get_stack_summary(
        self, is_debug: bool = False, framework_loc: str | None = None
    ) -> tuple[SLoc, str]:
        return SLoc(framework_loc or "", None), ""


def without_cache(mode: FakeTensorMode) -> FakeTensorMode:
    """The mode, which does not remember what operators gave. Of symbolic sizes, torch makes each
    result once more to see whether it may, and to make one from memory takes it half as long."""
    mode.cache_enabled = False
    return mode


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
    formula = None if ASKS_NO_SIZES else _FORMULAS.get(overload)
    if formula is not None and any(map(_has_unknown_size, args)):
        return formula(*args, **kwargs)
    is_made_of_others = overload.has_kernel_for_dispatch_key(_KEYS.CompositeExplicitAutograd)
    if is_made_of_others and not overload.is_view:
        of_torch = decomposition_table.get(overload, overload)
        overload = overload.py_kernels.get(_KEYS.Meta, of_torch)
    return overload(*args, **kwargs)


def sliced(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> torch.Tensor:
    """The view `x[start:end:step]` in a dim, whose size is a formula of the bounds."""
    size = x.shape[dim]
    first = _inside(0 if start is None else start, size)
    last = torch.sym_max(_inside(size if end is None else end, size), first)
    shape, strides = list(x.shape), list(x.stride())
    offset = x.storage_offset() + first * strides[dim]
    shape[dim] = (last - first + (step - 1)) // step
    strides[dim] = strides[dim] * step
    return x.as_strided(shape, strides, offset)


def _has_unknown_size(item: Any) -> bool:
    """Whether an argument has, or is, a size that torch cannot ask for."""
    sizes = item.shape if isinstance(item, torch.Tensor) else (item,)
    return any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in sizes)


def _inside(place: Any, size: Any) -> Any:
    """A place in a dim, from the end if it is a negative number, no further than the dim goes."""
    if isinstance(place, int) and place < 0:
        return torch.sym_max(size + place, 0)
    return torch.sym_min(place, size)


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **named: Any
) -> torch.Tensor:
    _CHECK(query.shape[-1] == key.shape[-1])
    _CHECK(key.shape[-2] == value.shape[-2])
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


ASKS_NO_SIZES = TorchVersion(torch.__version__) >= "2.13"
"""Whether torch infers shapes without asking whether a size is 0 or 1, where that does not matter.
Earlier versions give a slice a size of its own then."""
_FORMULAS: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.slice.Tensor: sliced,
    torch.ops.aten.scaled_dot_product_attention.default: _attended,
}
"""Shapes of operators for which earlier versions ask."""


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

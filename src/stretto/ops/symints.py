"""Conversion of sizes to torch's SymInts and back from sympy expressions; operators on fake
tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy
import torch
from torch._decomp import decomposition_table
from torch._dynamo.source import ConstantSource
from torch._guards import SLoc
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most, maximum, minimum, with_maximum_outside
from stretto.ir.sizes import Size, Symbol, ceil_div
from stretto.ir.types import Dim
from stretto.ops.table import Replaced, entry

# ---- Operators that need elements, although torch's shape rules do not require them -----------
#
# The maximum of an empty tensor is an error in eager PyTorch, but torch's shape rule does not check
# a size that is known only at the call. Here it becomes a condition on that size: a guard while a
# function is captured, a relation while the type of an op is inferred.


def require_elements(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Require that the sizes that the operator reduces are at least 1; raise RuntimeError for a
    size of 0."""
    if not entry(str(overload)).needs_elements:
        return
    known = [argument.name for argument in overload._schema.arguments]
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    tensor, dims = given["self"], given.get("dim", -1 if "mode" in str(overload) else None)
    if dims is None or dims == []:
        dims = range(tensor.dim())
    for dim in (dims,) if isinstance(dims, int) else dims:
        size = tensor.shape[dim] if tensor.dim() else 1
        require(size >= 1)


def require_positions(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Require that the tensor accessed at positions has elements. Eager PyTorch checks positions
    even in a tensor without elements, where kernels have nothing to do; sizes of 0 get a
    separate program, which checks."""
    argument = entry(str(overload)).positions
    if argument is None:
        return
    known = [item.name for item in overload._schema.arguments]
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    positions = given.get(argument.name)
    tables = positions if isinstance(positions, list | tuple) else [positions]
    if not any(isinstance(table, torch.Tensor) and table.dim() for table in tables):
        return  # a single position, for example in a loop over rows, is always checked
    tensor = given["weight"] if "weight" in given else given["self"]
    for size in tensor.shape:
        require(size >= 1)
    if not tensor.dim():  # the number of positions must be static: nothing depends on it
        for item in filter(torch.is_tensor, given.values()):
            for size in item.shape:
                int(size)


_KEYS: Any = torch._C.DispatchKey  # pyright: ignore


require: Any = torch._check  # pyright: ignore
"""Makes a condition on sizes a guard or a relation; raises RuntimeError if it is false."""


class SizeEnv(ShapeEnv):
    """torch's shape environment, without recording the Python location of each fact. To find one,
    torch walks the frames, and imports its own compiler and exporter to skip their frames."""

    def _get_stack_summary(
        self, is_debug: bool = False, framework_loc: str | None = None
    ) -> tuple[SLoc, str]:
        return SLoc(framework_loc or "", None), ""

    def forget_equal(self, symbols: Mapping[Any, Symbol]) -> list[tuple[Symbol, Any]]:
        """Forget what data-dependent sizes are equal to; an operator that needs an equality has it
        compared at run time. Otherwise torch would use the other expression for the size from
        now on, also in arms of branches that do not reach the operator. Return the sizes and
        what they are equal to."""
        known = [name for name in self.replacements if name in symbols]
        found = [(symbols[name], self.replacements[name]) for name in known]
        for name in known:
            symbol = symbols[name]
            high = int_oo if symbol.high is None else symbol.high
            self.var_to_range[name] = ValueRanges(symbol.low, high)
            del self.replacements[name]
        if not known:
            return found
        for asserted in self.deferred_runtime_asserts.values():
            asserted[:] = [
                one
                for one in asserted
                if not isinstance(one.expr, sympy.Eq) or one.expr.free_symbols.isdisjoint(symbols)
            ]
        # From torch 2.13 on, replaced expressions are cached until this number changes.
        self._replacements_version_counter = getattr(self, "_replacements_version_counter", 0) + 1
        self._update_version_counter()
        return found

    def _log_create_unbacked_symbol(self, *_: Any, **__: Any) -> None:
        """Skip torch's logging of new symbols, which takes time."""


def without_cache(mode: FakeTensorMode) -> FakeTensorMode:
    """Disable the mode's cache of results. For symbolic sizes, torch computes each result again to
    decide whether to cache it, and even a cache hit takes half as long as computing it."""
    mode.cache_enabled = False
    return mode


def to_symint(dim: Dim, values: Mapping[Symbol, torch.SymInt]) -> int | torch.SymInt:
    """Return the size with each symbol replaced by its value."""
    return dim if isinstance(dim, int) else dim.evaluate(values.__getitem__, torch.sym_max)


def from_sympy(expression: Any, symbols: Mapping[Any, Symbol]) -> Dim:
    """Return the size for a sympy expression over known symbols.

    Raise VerifyError if the algebra of sizes cannot express it.
    """
    return with_maximum_outside(_size(expression, symbols)).dim


def backed_symint(env: ShapeEnv, name: str, value: int, low: int, high: int | None) -> torch.SymInt:
    """Return a new torch symbol of this range, with `value` as the hint that torch uses for
    decisions."""
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


def plainly(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of an operator on fake tensors of static sizes."""
    rule = entry(str(overload)).shape
    if rule is not None and rule.when is Replaced.ALWAYS:
        return rule.compute(*args, **kwargs)
    return overload(*args, **kwargs)


def on_fakes(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of an operator on fake tensors with symbolic sizes.

    A kernel composed of others in C++ would ask for the sizes as numbers; torch's Python
    version of it does not, so that is used instead.
    """
    require_elements(overload, args, kwargs)
    formula = _formula(overload, args)
    if formula is not None:
        return formula(*args, **kwargs)
    is_made_of_others = overload.has_kernel_for_dispatch_key(_KEYS.CompositeExplicitAutograd)
    if is_made_of_others and not overload.is_view:
        of_torch = decomposition_table.get(overload, overload)
        # Without operands, a rule for the meta device would create its result on that device.
        has_operands = any(isinstance(arg, torch.Tensor) for arg in tree_leaves((args, kwargs)))
        overload = overload.py_kernels.get(_KEYS.Meta, of_torch) if has_operands else of_torch
    return overload(*args, **kwargs)


def _formula(overload: Any, args: Sequence[Any]) -> Callable[..., torch.Tensor] | None:
    """Return the function that computes the result of an operator in place of torch, or None."""
    rule = entry(str(overload)).shape
    if rule is None:
        return None
    sizes = [
        size
        for item in args
        for size in (item.shape if isinstance(item, torch.Tensor) else (item,))
        if isinstance(size, torch.SymInt)
    ]
    match rule.when:
        case Replaced.ALWAYS:
            is_replaced = True
        case Replaced.SYMBOLIC:
            is_replaced = bool(sizes)
        case Replaced.UNBACKED:
            is_replaced = any(not size.node.has_hint() for size in sizes)
    return rule.compute if is_replaced else None


def comparisons(condition: Any) -> Iterator[Any]:
    """Iterate over the comparisons whose conjunction is a sympy condition; raise VerifyError for
    any other condition."""
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
"""The integer division for each rounding of a quotient of two sizes, such as `math.ceil(n / 2)`."""


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

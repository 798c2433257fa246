"""The sizes of a captured Program: its symbols with their ranges, and what a call must have."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.frontends.python.results.captured import (
    ArgumentLeaf,
    Fetched,
    InputBinding,
    IntLeaf,
)
from stretto.frontends.python.tracing.sizes import CallSizes, SizePlan, Sizes
from stretto.ir.core import Program, Value
from stretto.ir.rewrite import defined_values
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size, symbols_in
from stretto.ir.symbols import dims_of, rename_symbols
from stretto.ir.types import Dim


def settled_sizes(
    sizes: Sizes,
    program: Program,
    inputs: Sequence[tuple[InputBinding, Value]],
    *,
    writes: bool,
) -> CallSizes | None:
    """Renames the symbols in the program as the guards leave them; what a call must have. None
    where no size is a symbol. writes: whether it changes tensors in place."""
    if not sizes.are_symbolic and not sizes.plan.fixed:
        return None
    final = sizes.final()
    renaming = sizes.renaming()
    for function in program.functions.values():
        rename_symbols(function.body, renaming)
    shapes: dict[int, tuple[Dim, ...]] = {}
    ints: dict[int, Dim] = {}
    held: dict[int, tuple[Dim, ...]] = {}
    for binding, value in inputs:
        if isinstance(binding, ArgumentLeaf):
            shapes[binding.index] = value.tensor.shape
        elif isinstance(binding, IntLeaf):
            ints[binding.index] = value.tensor.shape[0]
        elif isinstance(binding, Fetched) and binding.is_tensor:
            held[binding.index] = value.tensor.shape
    conditions = sizes.conditions(final, writes=writes)
    program.is_guarded = bool(conditions or sizes.plan.seen.branches)
    symbols = symbols_in(final.values())
    return CallSizes(
        tuple(shape for _, shape in sorted(shapes.items())),
        ints,
        symbols,
        conditions,
        sizes.plan.fixed,
        tuple(shape for _, shape in sorted(held.items())),
        sizes.branches(final),
    )


def provable(sizes: Sizes, program: Program) -> SizePlan | None:
    """A plan with one symbol less, where a size is not proved to be at least 0 for all values of
    its symbols; None where all are."""
    for function in program.functions.values():
        for value in defined_values(function.body):
            for dim in dims_of(value.type):
                if isinstance(dim, int) or at_most(0, dim):
                    continue
                known = symbols_in(dim for dim in sizes.final().values())
                less = [atom for atom, factor in dim.terms if factor < 0]
                for symbol in (*symbols_in(Size.of(atom) for atom in less), *dim.symbols):
                    if symbol in known:
                        return sizes.without(symbol)
    return None

"""The sizes of a captured Program: its symbols with their ranges, and what a call must have."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.frontends.python.results.captured import ArgumentLeaf, InputBinding, IntLeaf
from stretto.frontends.python.tracing.sizes import CallSizes, Sizes
from stretto.ir.core import Program, Value
from stretto.ir.sizes import symbols_in
from stretto.ir.symbols import rename_symbols
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
    for binding, value in inputs:
        if isinstance(binding, ArgumentLeaf):
            shapes[binding.index] = value.tensor.shape
        elif isinstance(binding, IntLeaf):
            ints[binding.index] = value.tensor.shape[0]
    symbols = symbols_in(final.values())
    return CallSizes(
        tuple(shape for _, shape in sorted(shapes.items())),
        ints,
        symbols,
        sizes.conditions(final, writes=writes),
        sizes.plan.fixed,
    )

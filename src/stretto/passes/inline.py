"""Inlining: a call becomes a copy of the function's body.

Functions that call themselves, directly or through others, stay functions. The others are
copied to each call, callees first, until a function holds more than `limit` ops. Symbols
that a copy binds get new names. The functions themselves stay, for `dce` to drop.

    func @main(%x: f32[4]) -> (f32[4]) {      func @main(%x: f32[4]) -> (f32[4]) {
      %y = call @f(%x) : f32[4]        ->       %y = aten.sin.default(%x) : f32[4]
      return %y                                 return %y
    }                                         }
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

from stretto.components import components
from stretto.ir.call_graph import call_graph, recursive_functions
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import CallOp
from stretto.ir.rewrite import Definitions, Replacement, clone_block, rewrite_block, substitute
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import (
    Renaming,
    match_types,
    rename_symbols,
    renamed_symbols,
    symbols_of_block,
    symbols_of_types,
)
from stretto.ir.types import Dim, Type


@dataclass(frozen=True, slots=True)
class InlineFunctions:
    """The pass; it inlines a call only if the caller then has at most `limit` ops, nested ones
    included."""

    limit: int = 20_000
    name: ClassVar[str] = "inline"

    def apply(self, program: Program) -> bool:
        recursive = recursive_functions(program)
        changed = False
        for name in (name for group in components(call_graph(program)) for name in group):
            changed |= _CallInliner(program, program.functions[name], recursive, self.limit).run()
        return changed


def keep_reason(program: Program, op: CallOp, recursive: frozenset[str]) -> str | None:
    """Return why a call stays a call, or None."""
    if op.function in recursive:
        return f"@{op.function} is recursive"
    body = program.functions[op.function].body
    known: Renaming = {}
    match_types(_types(body.params), _types(op.arguments), known)
    if not symbols_of_types(_types(body.params)) <= renamed_symbols(known):
        return f"a parameter of @{op.function} has a formula as dim"
    match_types(_types(body.yields), _types(op.results), known)
    if not symbols_of_types(_types(body.yields)) <= renamed_symbols(known):
        return f"a result of @{op.function} has a formula as dim"
    return None


class _CallInliner:
    """Inlines the calls in one function."""

    def __init__(
        self, program: Program, function: Function, recursive: frozenset[str], limit: int
    ) -> None:
        self.program = program
        self.function = function
        self.recursive = recursive
        self.left = limit - _size(function.body)
        self.copies = Copies(program)

    def run(self) -> bool:
        return rewrite_block(self.function.body, self.visit)

    def visit(self, op: Op, _: Definitions) -> Replacement | None:
        if not isinstance(op, CallOp):
            return None
        callee = self.program.functions[op.function].body
        size = _size(callee)
        reason = keep_reason(self.program, op, self.recursive)
        if reason is None and size > self.left:
            reason = f"its {size} ops would make @{self.function.name} too large"
        if reason is not None:
            self.program.remarks.decline("inline", f"call @{op.function}", reason, op.location)
            return None
        self.left -= size
        return self.copies.inlined(callee, op)


class Copies:
    """Copies functions' bodies for calls, with new names for the symbols that they bind."""

    def __init__(self, program: Program) -> None:
        self.taken: set[str] = set()
        for item in program.functions.values():
            self.taken |= {symbol.name for symbol in symbols_of_block(item.body)}

    def inlined(self, callee: Block, op: CallOp) -> Replacement:
        """Return the replacement of a call to a function with the body `callee`."""
        copy = clone_block(callee, {})
        rename_symbols(copy, self._renaming(callee, op))
        substitute(copy, dict(zip(copy.params, op.arguments, strict=True)))
        return copy.ops, copy.yields

    def _renaming(self, callee: Block, op: CallOp) -> Renaming:
        """Return the names of the callee's symbols in a copy: those of the call, else new ones."""
        known: Renaming = {}
        match_types(_types(callee.params), _types(op.arguments), known)
        match_types(_types(callee.yields), _types(op.results), known)
        unknown = symbols_of_block(callee) - renamed_symbols(known)
        return known | {Size.of(item): self._fresh(item) for item in sorted(unknown, key=str)}

    def _fresh(self, known: Symbol) -> Dim:
        """Return a symbol of the same range that the program does not use."""
        name = next(text for i in count(1) if (text := f"{known}_{i}") not in self.taken)
        self.taken.add(name)
        return Size.of(replace(known, name=name))


def _types(values: tuple[Value, ...]) -> tuple[Type, ...]:
    return tuple(value.type for value in values)


def _size(block: Block) -> int:
    return sum(1 for _ in block.walk())

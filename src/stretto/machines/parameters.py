"""Parameters of printed kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stretto.device.expr import Access, Buffer, Index, Reg
from stretto.ir.sizes import Atom, Product, Symbol
from stretto.machines.terms import Term, variable


def _start(offset: Index) -> Index:
    """The part of a position that depends on nothing but the sizes of a call."""
    terms = tuple((atom, factor) for atom, factor in offset.terms if _is_of_sizes(atom))
    return Index(terms, offset.const)


def _is_of_sizes(atom: Atom) -> bool:
    if isinstance(atom, Product):
        return all(map(_is_of_sizes, atom.factors))
    return isinstance(atom, Symbol)


def element_of(names: Naming, access: Access) -> tuple[Term, Index]:
    """A pointer into a buffer, and how far behind it an element is."""
    if isinstance(names, Parameters):
        return names.element(access)
    return names.buffer(access.buffer), access.offset


class Naming(Protocol):
    """What buffers and registers are called in the text at hand."""

    def buffer(self, buffer: Buffer, /) -> Term: ...
    def reg(self, reg: Reg, /) -> Term: ...


@dataclass(slots=True)
class Parameters:
    """Names handed out in the order of first use.

    bases: where in a buffer its parameter points to, if not to its start.
    """

    bases: Mapping[Buffer, Index] = field(default_factory=dict[Buffer, Index])
    buffers: dict[Buffer, Term] = field(default_factory=dict[Buffer, Term])
    regs: dict[Reg, Term] = field(default_factory=dict[Reg, Term])
    uses: Counter[Buffer] = field(default_factory=Counter[Buffer])
    """How often a buffer was named."""
    starts: dict[Buffer, list[Index]] = field(default_factory=dict[Buffer, list[Index]])
    """The part of each access that is the same for all tasks and iterations."""

    def buffer(self, buffer: Buffer) -> Term:
        self.uses[buffer] += 1
        return self.buffers.setdefault(buffer, variable(f"p{len(self.buffers)}"))

    def element(self, access: Access) -> tuple[Term, Index]:
        """The parameter of a buffer, and how far behind it an element is."""
        offset = access.offset
        self.starts.setdefault(access.buffer, []).append(_start(offset))
        return self.buffer(access.buffer), offset - self.bases.get(access.buffer, 0)

    def first_places(self) -> dict[Buffer, Index]:
        """Where in each buffer its first access begins, if that is not its start, and if the buffer
        is named by accesses only."""
        return {
            buffer: starts[0]
            for buffer, starts in self.starts.items()
            if starts[0] != Index() and len(starts) == self.uses[buffer]
        }

    def reg(self, reg: Reg) -> Term:
        return self.regs.setdefault(reg, variable(f"r{len(self.regs)}"))

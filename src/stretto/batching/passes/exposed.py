"""What a body reads before it assigns it."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.batching.passes.uses import assigned, used
from stretto.batching.program import (
    Body,
    Break,
    Continue,
    Fork,
    ForkLoop,
    If,
    Leave,
    Loop,
    Raise,
    Return,
    Scope,
    Statement,
    Variable,
    bodies,
)


def exposed(body: Body) -> set[Variable]:
    """Variables that a body may read with the value that they had before it."""
    found: set[Variable] = set()
    _Exposed(found).body(body, frozenset())
    return found


_Known = frozenset[Variable]


@dataclass(slots=True)
class _Exposed:
    """Follows what is assigned on all ways; None stands for a way that goes elsewhere."""

    found: set[Variable]
    ends: dict[int, list[_Known]] | None = None
    breaks: list[_Known] | None = None

    def body(self, body: Body, known: _Known | None) -> _Known | None:
        for statement in body:
            if known is None:
                return None
            known = self.statement(statement, known)
        return known

    def statement(self, statement: Statement, known: _Known) -> _Known | None:
        self.found.update(v for v in used(statement) if v not in known)
        match statement:
            case If(_, then, orelse):
                return _meet([self.body(then, known), self.body(orelse, known)])
            case Loop(inner):
                outer, self.breaks = self.breaks, []
                self.body(inner, known)
                ends, self.breaks = self.breaks, outer
                return _meet(list(ends))
            case ForkLoop(head, inner, tail):
                outer, self.breaks = self.breaks, []
                self.body(tail, self.body(inner, self.body(head, known)))
                ends, self.breaks = self.breaks, outer
                return _meet(list(ends))
            case Scope(label, inner):
                self.ends = self.ends or {}
                self.ends[label] = []
                end = self.body(inner, known)
                return _meet([end, *self.ends[label]])
            case Leave(label):
                if self.ends is not None and label in self.ends:
                    self.ends[label].append(known)
                return None
            case Break():
                if self.breaks is not None:
                    self.breaks.append(known)
                return None
            case Continue() | Return() | Raise():
                return None
            case Fork(several):
                several_ends = [self.body(inner, known) for inner in several]
                return known.union(*(end for end in several_ends if end is not None))
            case _:
                for inner in bodies(statement):
                    self.body(inner, known)
                return known.union(assigned(statement))


def _meet(ways: list[_Known | None]) -> _Known | None:
    arriving = [way for way in ways if way is not None]
    return frozenset.intersection(*arriving) if arriving else None

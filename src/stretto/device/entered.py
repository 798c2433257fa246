"""Which loops of a function surely have an iteration, whatever the data is.

Registers that numbers decide are followed through the control tree. `while` loops often begin with
a condition of such registers: a flag that is set, a counter that is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.device.evaluate import Number, Tensors, evaluate
from stretto.device.expr import (
    Apply,
    Const,
    Dynamic,
    Expr,
    Index,
    Load,
    Position,
    Reg,
    constant,
    expr_atoms,
    expr_regs,
    parts,
    substitute_index,
)
from stretto.device.flow import Facts, Loop
from stretto.device.functions import FUNCTIONS
from stretto.device.program import Schedule
from stretto.device.tree import Call, For, Let, Node, assigns
from stretto.ir.size_bounds import at_most

Known = Mapping[Reg, Number]
"""The registers of which the value is known."""


def entered_loops(body: Node[Schedule]) -> frozenset[int]:
    """Identities of the loops of a function that have at least one iteration whenever they are
    come to."""
    analysis = _Entered()
    analysis.end(body, {})
    return frozenset(loop for loop, is_entered in analysis.entered.items() if is_entered)


class _Entered(Facts[Schedule, Known]):
    def __init__(self) -> None:
        super().__init__()
        self.entered: dict[int, bool] = {}

    def after(self, body: Schedule, state: Known) -> Known:
        for item in body.statements:
            if isinstance(item, Let):
                state = _assigned(state, item)
        return state

    def merge(self, a: Known, b: Known) -> Known:
        return {register: value for register, value in a.items() if b.get(register) == value}

    def call(self, call: Call[Schedule], state: Known) -> tuple[Node[Schedule], Known]:
        return call, _without(state, call)

    def begin(self, node: For[Schedule], state: Known) -> Known:
        return _without(state, node)

    def loop(self, node: Loop[Schedule], state: Known) -> tuple[Node[Schedule], Known]:
        # In a loop around it this is done again, at last with what holds in all its iterations.
        self.entered[id(node)] = self._is_entered(node, state)
        return super().loop(node, state)

    def _is_entered(self, node: Loop[Schedule], state: Known) -> bool:
        if not isinstance(node, For):
            return bool(self.end(node.head, state).get(node.condition, False))
        first, last = _bound(node.start, state), _bound(node.stop, state)
        if first is None or last is None:
            return False
        return at_most(first + 1, last) if node.step > 0 else at_most(last + 1, first)


def _without(state: Known, node: Node[Schedule]) -> Known:
    gone = {*assigns(node)}
    return {register: value for register, value in state.items() if register not in gone}


def _assigned(state: Known, item: Let) -> Known:
    found = {register: value for register, value in state.items() if register != item.reg}
    if _is_computed(item.value, state):
        found[item.reg] = evaluate(
            item.value, {register.name: value for register, value in state.items()}, Tensors({})
        )
    return found


def _is_computed(expr: Expr, state: Known) -> bool:
    """Whether an expression follows from what is known, by integers and flags, and without anything
    that may stop the run."""
    if not expr_regs(expr) <= state.keys() or not all(
        isinstance(atom, Reg) for atom in expr_atoms(expr)
    ):
        return False
    return all(_is_exact(part) for part in parts(expr))


def _is_exact(part: Expr) -> bool:
    if part.dtype.is_float:
        return False
    match part:
        case Load():
            return False
        case Apply(function):
            known = FUNCTIONS[function]
            return function != "checked" and not known.is_expensive
        case Const() | Position():
            return True


def _bound(expr: Expr, state: Known) -> Index | None:
    """A bound of a loop, in terms of the sizes that a call gives."""
    number = constant(expr)
    if number is not None:
        return Index(const=number)
    if not isinstance(expr, Position):
        return None
    found = substitute_index(
        expr.index,
        lambda atom: (
            Index(const=int(state[atom]))
            if isinstance(atom, Reg) and atom in state
            else Index.of(atom)
        ),
    )
    return None if any(isinstance(atom, Dynamic) for atom in found.atoms()) else found

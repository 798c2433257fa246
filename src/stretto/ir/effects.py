"""Effects: ops that must run exactly when control comes to them, whoever reads their results."""

from __future__ import annotations

from collections.abc import Callable

from stretto.ir.core import Function, Op, Program
from stretto.ir.ops import CallOp, CheckOp, TensorOp, WhileOp

Predicate = Callable[[Op], bool]


def is_check(op: Op) -> bool:
    """A check, or an operator without results, which only checks values."""
    return isinstance(op, CheckOp) or (isinstance(op, TensorOp) and not op.results)


def has_check(op: Op) -> bool:
    """Whether the op is a check, or has one in its blocks. Calls are not followed."""
    nested = (inner for block in op.blocks for inner in block.walk())
    return is_check(op) or any(is_check(inner) for inner in nested)


def may_have_effect(op: Op) -> bool:
    """Whether the op itself has to run, or calls what may. Its blocks are not looked into."""
    return is_check(op) or isinstance(op, WhileOp | CallOp)


def checking_functions(program: Program, checks: Predicate = is_check) -> frozenset[str]:
    """The functions in which a check or a `while` loop may run, also in what they call."""
    found: set[str] = set()
    before = -1
    while before != len(found):
        before = len(found)
        for name, function in program.functions.items():
            if name not in found and effectful(function, frozenset(found), checks):
                found.add(name)
    return frozenset(found)


def effectful(
    function: Function, checking: frozenset[str], checks: Predicate = is_check
) -> set[Op]:
    """The ops of a function that must stay: checks, `while` loops, which may not end, calls of
    `checking` functions, and the control ops around them. `checks` says what counts as a check."""
    found: set[Op] = set()

    def visit(op: Op) -> bool:
        inside = [visit(inner) for block in op.blocks for inner in block.ops]
        calls = isinstance(op, CallOp) and op.function in checking
        if checks(op) or isinstance(op, WhileOp) or calls or any(inside):
            found.add(op)
            return True
        return False

    for op in function.body.ops:
        visit(op)
    return found

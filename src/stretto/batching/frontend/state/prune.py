"""Removes statements whose results nothing uses, and which cannot fail.

    %t_choice = copy(1)          (removed: nothing reads it)
    %h_1 = tanh(%x)              (removed with what it alone is made of)

Loops and branches carry each local variable that they may assign; most are not read afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.batching.program import (
    Assign,
    Body,
    Call,
    Fork,
    If,
    Loop,
    Operand,
    Operate,
    Raise,
    Read,
    Record,
    Return,
    Scope,
    Statement,
    Variable,
    walk,
)

_CANNOT_FAIL = frozenset(
    (
        "copy", "shared", "has_type", "is", "not", "truth", "cast", "tuple", "item", "list",
        "record", "add", "sub", "mul", "neg", "abs", "and", "or", "xor", "lt", "le", "gt", "ge",
        "eq", "ne", "min", "max", "len", "to_list", "to_float", "concat", "keys", "values", "dict",
    )
)  # fmt: skip


def pruned(body: Body) -> Body:
    """The body of a function without what is not used."""
    reads: dict[Variable, list[Variable]] = {}
    pending: list[Variable] = []
    for statement in walk(body):
        used = [operand for operand in _operands(statement) if isinstance(operand, Variable)]
        targets = _targets(statement)
        if _is_pure(statement):
            for target in targets:
                reads.setdefault(target, []).extend(used)
        else:
            pending += used
    live: set[Variable] = set()
    while pending:
        variable = pending.pop()
        if variable not in live:
            live.add(variable)
            pending += reads.get(variable, ())
    return _kept(body, live)


def _is_pure(statement: Statement) -> bool:
    match statement:
        case Assign(target, op):
            return target is not None and op in _CANNOT_FAIL
        case Operate():
            return not statement.may_raise
        case Record() | Read():
            return True
        case _:
            return False


def _targets(statement: Statement) -> tuple[Variable, ...]:
    match statement:
        case Operate(targets) | Record(targets):
            return targets
        case Assign(Variable() as target) | Call(Variable() as target) | Read(target):
            return (target,)
        case _:
            return ()


def _operands(statement: Statement) -> Iterator[Operand]:
    match statement:
        case Assign(_, _, args) | Call(_, _, args):
            yield from args
        case Operate(_, _, operands) | Record(_, _, operands):
            yield from operands
        case Read(_, operand) | If(operand) | Return(operand):
            yield operand
        case Raise(_, parts):
            yield from (part for part in parts if not isinstance(part, str))
        case _:
            pass


def _kept(body: Body, live: set[Variable]) -> Body:
    found: list[Statement] = []
    for statement in body:
        if _is_pure(statement) and not any(target in live for target in _targets(statement)):
            continue
        match statement:
            case Call(target, function, args, location) if target not in live:
                statement = Call(None, function, args, location)
            case If(condition, then, orelse):
                statement = If(condition, _kept(then, live), _kept(orelse, live))
                if not statement.then and not statement.orelse:
                    continue
            case Loop(inner):
                statement = Loop(_kept(inner, live))
            case Scope(label, inner):
                statement = Scope(label, _kept(inner, live))
            case Fork(several):
                statement = Fork(tuple(_kept(inner, live) for inner in several))
            case _:
                pass
        found.append(statement)
    return tuple(found)

"""The oracle: run an InstanceProgram on one instance in plain Python with eager PyTorch.

It runs programs whose operators are still single (`OperateStatement`) or in blocks
(`RecordStatement`). Rows are one tensor here. A failing instance raises what the user's code would
raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import torch
from torch.utils import _pytree as pytree

from stretto.batching.instance_program import (
    AssignStatement,
    Body,
    BreakStatement,
    CallStatement,
    ContinueStatement,
    ForkLoopStatement,
    ForkStatement,
    IfStatement,
    InstanceProgram,
    LeaveStatement,
    Literal,
    LoopStatement,
    Operand,
    OperateStatement,
    PhaseStatement,
    RaiseStatement,
    ReadStatement,
    RecordStatement,
    ReturnStatement,
    ScopeStatement,
    Variable,
    call_operation,
)
from stretto.batching.primitives import apply, in_64_bits
from stretto.batching.types import Scalar

_READ: dict[Scalar, type] = {Scalar.BOOL: bool, Scalar.INT: int, Scalar.FLOAT: float}


def interpret(
    program: InstanceProgram,
    args: Sequence[Any],
    watch: Callable[[Variable, Any], None] | None = None,
    order: Callable[[int], Iterable[int]] = range,
) -> Any:
    """Return the result of functions[0] for the parameters of one instance. `watch` is called with
    each variable and each value assigned to it. `order(n)` gives the order in which n
    concurrent bodies run: every order must give the same result."""
    return _call(_Run(program, watch, order), 0, args)


@dataclass(frozen=True, slots=True)
class _Run:
    program: InstanceProgram
    watch: Callable[[Variable, Any], None] | None
    order: Callable[[int], Iterable[int]]

    def assign(
        self, values: dict[Variable, Any], targets: Sequence[Variable], results: Sequence[Any]
    ) -> None:
        values.update(zip(targets, results, strict=True))
        if self.watch is not None:
            for target, result in zip(targets, results, strict=True):
                self.watch(target, result)


@dataclass(slots=True)
class _Returned:
    """The end of a function, with its result."""

    value: Any


_End = BreakStatement | ContinueStatement | LeaveStatement | _Returned
"""The statement by which a body ended before its last statement."""
_Values = dict[Variable, Any]


def _call(run: _Run, number: int, args: Sequence[Any]) -> Any:
    function = run.program.functions[number]
    values: _Values = {}
    run.assign(values, function.parameters, args)
    end = _body(run, function.body, values)
    return end.value if isinstance(end, _Returned) else None


def _body(run: _Run, body: Body, values: _Values) -> _End | None:
    """Run the statements of a body; return None if it reached its end."""

    def of(operand: Operand) -> Any:
        return operand.value if isinstance(operand, Literal) else values[operand]

    def assign(targets: Sequence[Variable], results: Sequence[Any]) -> None:
        run.assign(values, targets, results)

    for statement in body:
        end: _End | None = None
        match statement:
            case AssignStatement(Variable() as target, "unset"):
                values.pop(target, None)
            case AssignStatement(target, op, args, detail):
                result = apply(run.program, op, detail, [of(arg) for arg in args])
                if target is not None:
                    assign([target], [result])
            case OperateStatement(targets, operation, operands):
                made = call_operation(operation, [of(operand) for operand in operands])
                leaves = pytree.tree_leaves(made)
                assign(targets, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
            case RecordStatement(targets, block, operands):
                assign(targets, run.program.blocks[block](*map(of, operands)))
            case CallStatement(target, function, args):
                result = _call(run, function, [of(arg) for arg in args])
                if target is not None:
                    assign([target], [result])
            case ReadStatement(target, tensor):
                assert isinstance(target.type, Scalar)
                value = _READ[target.type](of(tensor).item())
                assign([target], [in_64_bits(value)])
            case IfStatement(condition, then, orelse):
                end = _body(run, then if of(condition) else orelse, values)
            case LoopStatement(inner):
                end = _loop(run, inner, values)
            case ScopeStatement(label, inner):
                end = _body(run, inner, values)
                if isinstance(end, LeaveStatement) and end.label == label:
                    end = None
            case BreakStatement() | ContinueStatement() | LeaveStatement():
                end = statement
            case ReturnStatement(value):
                end = _Returned(of(value))
            case RaiseStatement(exception, parts):
                texts = [part if isinstance(part, str) else str(of(part)) for part in parts]
                raise exception("".join(texts)) if parts else exception()
            case ForkStatement(several):
                _fork(run, [partial(_body, run, inner, values) for inner in several])
            case ForkLoopStatement():
                _fork_loop(run, statement, values)
            case PhaseStatement():
                pass
            case _:
                assert_never(statement)
        if end is not None:
            return end
    return None


def _loop(run: _Run, body: Body, values: _Values) -> _End | None:
    while True:
        end = _body(run, body, values)
        if isinstance(end, BreakStatement):
            return None
        if isinstance(end, LeaveStatement | _Returned):
            return end


def _fork(run: _Run, several: Sequence[Callable[[], _End | None]]) -> None:
    """Run concurrent bodies, and raise the exception of the first one (in program order) that
    fails."""
    failures: dict[int, Exception] = {}
    for place in run.order(len(several)):
        try:
            end = several[place]()
            assert end is None, "a concurrent body ends at its end"
        except Exception as error:
            failures[place] = error
    if failures:
        raise failures[min(failures)]


def _fork_loop(run: _Run, loop: ForkLoopStatement, values: _Values) -> None:
    iterations: list[_Values] = []
    """The private variables of each iteration."""
    failures: dict[int, Exception] = {}

    def part(body: Body, own: _Values) -> _End | None:
        for variable in loop.private:
            values.pop(variable, None)
        values.update(own)
        end = _body(run, body, values)
        own.update({v: values[v] for v in loop.private if v in values})
        return end

    try:
        while not isinstance(part(loop.head, own := {}), BreakStatement):
            iterations.append(own)
    except Exception as error:
        failures[len(iterations)] = error
    for place in run.order(len(iterations)):
        try:
            end = part(loop.body, iterations[place])
            assert end is None, "a concurrent body ends at its end"
        except Exception as error:
            failures[place] = error
    for own in iterations[: min(failures, default=None)]:
        end = part(loop.tail, own)
        assert end is None, "the tail of a concurrent loop ends at its end"
    if failures:
        raise failures[min(failures)]

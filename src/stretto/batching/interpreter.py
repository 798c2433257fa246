"""The oracle: run an InstanceProgram on one instance in plain Python with eager PyTorch.

It runs programs whose operators are still single (`OperateOp`) or in blocks
(`RecordOp`). Rows are one tensor here. A failing instance raises what the user's code would
raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.batching.instance_program import InstanceProgram, call_operation
from stretto.batching.primitives import apply, has_type, in_64_bits
from stretto.ir.core import Block, Literal, Operand, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    ContinueOp,
    ForkLoopOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    LeaveOp,
    LoopOp,
    OperateOp,
    PhaseOp,
    RaiseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    ScopeOp,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import Scalar

_READ: dict[Scalar, type] = {Scalar.BOOL: bool, Scalar.INT: int, Scalar.FLOAT: float}


def interpret(
    program: InstanceProgram,
    args: Sequence[Any],
    watch: Callable[[Variable, Any], None] | None = None,
    order: Callable[[int], Iterable[int]] = range,
) -> Any:
    """Return the result of the main function for the parameters of one instance. `watch` is called
    with each variable and each value assigned to it. `order(n)` gives the order in which n
    concurrent bodies run: every order must give the same result."""
    return _call(_Run(program, watch, order), program.main, args)


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
                if result is not UNSET:
                    self.watch(target, result)


UNSET = object()
"""The value of an unset variable, which may be copied and passed on; no operator can read it."""


@dataclass(slots=True)
class _Returned:
    """The end of a function, with its result."""

    value: Any


_End = BreakOp | ContinueOp | LeaveOp | _Returned
"""The statement by which a body ended before its last statement."""
_Values = dict[Variable, Any]


def _call(run: _Run, function: InstanceFunction, args: Sequence[Any]) -> Any:
    values: _Values = {}
    run.assign(values, function.parameters, args)
    end = _body(run, function.body, values)
    return end.value if isinstance(end, _Returned) else None


def _body(run: _Run, body: Block, values: _Values) -> _End | None:
    """Run the statements of a body; return None if it reached its end."""

    def of(operand: Operand) -> Any:
        return operand.value if isinstance(operand, Literal) else values[operand]

    def assign(targets: Sequence[Variable], results: Sequence[Any]) -> None:
        run.assign(values, targets, results)

    for statement in body.ops:
        end: _End | None = None
        match statement:
            case AssignOp(Variable() as target, "unset"):
                values[target] = UNSET
            case AssignOp(Variable() as target, "cast", (source,), detail) if not has_type(
                run.program, of(source), detail
            ):
                values[target] = UNSET
            case AssignOp(target, op, args, detail):
                result = apply(run.program, op, detail, [of(arg) for arg in args])
                if target is not None:
                    assign([target], [result])
            case OperateOp(targets, operation, operands):
                made = call_operation(operation, [of(operand) for operand in operands])
                leaves = pytree.tree_leaves(made)
                assign(targets, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
            case RecordOp(targets, block, operands):
                assign(targets, run.program.blocks[block](*map(of, operands)))
            case InvokeOp(target, function, args):
                result = _call(run, run.program.functions[function], [of(arg) for arg in args])
                if target is not None:
                    assign([target], [result])
            case ReadOp(target, tensor):
                assert isinstance(target.type, Scalar)
                value = _READ[target.type](of(tensor).item())
                assign([target], [in_64_bits(value)])
            case IfOp(Variable() as condition, then, orelse):
                end = _body(run, then if of(condition) else orelse, values)
            case LoopOp(inner):
                end = _loop(run, inner, values)
            case ScopeOp(label, inner):
                end = _body(run, inner, values)
                if isinstance(end, LeaveOp) and end.label == label:
                    end = None
            case BreakOp() | ContinueOp() | LeaveOp():
                end = statement
            case ReturnOp(value):
                end = _Returned(of(value))
            case RaiseOp(exception, parts):
                texts = [part if isinstance(part, str) else str(of(part)) for part in parts]
                raise exception("".join(texts)) if parts else exception()
            case ForkOp(several):
                _fork(run, [partial(_body, run, inner, values) for inner in several])
            case ForkLoopOp():
                _fork_loop(run, statement, values)
            case PhaseOp():
                pass
            case _:
                raise AssertionError(statement)
        if end is not None:
            return end
    return None


def _loop(run: _Run, body: Block, values: _Values) -> _End | None:
    while True:
        end = _body(run, body, values)
        if isinstance(end, BreakOp):
            return None
        if isinstance(end, LeaveOp | _Returned):
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


def _fork_loop(run: _Run, loop: ForkLoopOp, values: _Values) -> None:
    iterations: list[_Values] = []
    """The private variables of each iteration."""
    failures: dict[int, Exception] = {}

    def part(body: Block, own: _Values) -> _End | None:
        for variable in loop.private:
            values.pop(variable, None)
        values.update(own)
        end = _body(run, body, values)
        own.update({v: values[v] for v in loop.private if v in values})
        return end

    try:
        while not isinstance(part(loop.head, own := {}), BreakOp):
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

"""The oracle: runs an InstanceProgram on one instance in plain Python with eager PyTorch.

It executes programs before their operators are in blocks (`Operate`) and after (`Record`). Rows
are tensors here. A failing instance raises what the user's code would raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch.utils import _pytree as pytree

from stretto.batching.primitives import apply
from stretto.batching.program import (
    Assign,
    Body,
    Break,
    Call,
    Continue,
    Fork,
    If,
    InstanceProgram,
    Leave,
    Literal,
    Loop,
    Operand,
    Operate,
    Phase,
    Raise,
    Read,
    Record,
    Return,
    Scope,
    Variable,
    call_operation,
)
from stretto.batching.types import Scalar

_READ: dict[Scalar, type] = {Scalar.BOOL: bool, Scalar.INT: int, Scalar.FLOAT: float}


def interpret(program: InstanceProgram, args: Sequence[Any]) -> Any:
    """What functions[0] returns for the parameters of one instance."""
    return _call(program, 0, args)


@dataclass(slots=True)
class _Returned:
    """Ends a function, with its result."""

    value: Any


_End = Break | Continue | Leave | _Returned
"""Why a body ended before its last statement."""
_Values = dict[Variable, Any]


def _call(program: InstanceProgram, number: int, args: Sequence[Any]) -> Any:
    function = program.functions[number]
    values = dict(zip(function.parameters, args, strict=True))
    end = _run(program, function.body, values)
    return end.value if isinstance(end, _Returned) else None


def _run(program: InstanceProgram, body: Body, values: _Values) -> _End | None:
    """Runs the statements of a body; None where it came to its end."""

    def of(operand: Operand) -> Any:
        return operand.value if isinstance(operand, Literal) else values[operand]

    def assign(targets: Sequence[Variable], results: Sequence[Any]) -> None:
        values.update(zip(targets, results, strict=True))

    for statement in body:
        end: _End | None = None
        match statement:
            case Assign(target, op, args, detail):
                result = apply(program, op, detail, [of(arg) for arg in args])
                if target is not None:
                    values[target] = result
            case Operate(targets, operation, operands):
                made = call_operation(operation, [of(operand) for operand in operands])
                leaves = pytree.tree_leaves(made)
                assign(targets, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
            case Record(targets, block, operands):
                assign(targets, program.blocks[block](*map(of, operands)))
            case Call(target, function, args):
                result = _call(program, function, [of(arg) for arg in args])
                if target is not None:
                    values[target] = result
            case Read(target, tensor):
                assert isinstance(target.type, Scalar)
                values[target] = _READ[target.type](of(tensor).item())
            case If(condition, then, orelse):
                end = _run(program, then if of(condition) else orelse, values)
            case Loop(inner):
                end = _loop(program, inner, values)
            case Scope(label, inner):
                end = _run(program, inner, values)
                if isinstance(end, Leave) and end.label == label:
                    end = None
            case Break() | Continue() | Leave():
                end = statement
            case Return(value):
                end = _Returned(of(value))
            case Raise(exception, parts):
                texts = [part if isinstance(part, str) else str(of(part)) for part in parts]
                raise exception("".join(texts)) if parts else exception()
            case Fork(several):
                for inner in several:
                    end = _run(program, inner, values)
                    assert end is None, "a body of a fork ends at its end"
            case Phase():
                pass
            case _:
                assert_never(statement)
        if end is not None:
            return end
    return None


def _loop(program: InstanceProgram, body: Body, values: _Values) -> _End | None:
    while True:
        end = _run(program, body, values)
        if isinstance(end, Break):
            return None
        if isinstance(end, Leave | _Returned):
            return end

"""What tests of passes on InstancePrograms share: programs of functions, and their oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from stretto.batching.frontend import Evaluation, Observer, evaluate
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.interpreter import interpret
from stretto.batching.passes.pipeline import InstancePass
from stretto.batching.verifier import verify
from stretto.ir.data import RecordOp
from tests.batching.texts import assert_reads_back

Columns = Sequence[Sequence[Any]]


def program_of(function: Callable[..., Any], columns: Columns) -> InstanceProgram:
    """The program of a function, for instances whose parameters are in columns."""
    evaluation = Evaluation()
    observer = Observer(evaluation)
    parameters = [
        (f"p{number}", observer.observe(list(column), number, f"argument {number}"))
        for number, column in enumerate(columns)
    ]
    with torch.no_grad():
        return evaluate(function, parameters, evaluation)


def same(a: Any, b: Any) -> bool:
    if torch.is_tensor(a):
        return torch.is_tensor(b) and a.shape == b.shape and torch.allclose(a, b, atol=1e-6)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    return type(a) is type(b) and a == b


def check(function: Callable[..., Any], columns: Columns, *passes: InstancePass) -> InstanceProgram:
    """Applies passes to the program of a function, which has to give for each instance what the
    function gives, before and after; returns the program."""
    program = program_of(function, columns)
    verify(program)
    for item in (None, *passes):
        if item is not None:
            item.apply(program)
            verify(program)
        again = assert_reads_back(program)
        with torch.no_grad():
            for args in zip(*columns, strict=True):
                wanted = _outcome(lambda args=args: function(*args))
                for order in (range, backwards):
                    found = _outcome(lambda a=args, o=order, p=again: interpret(p, a, order=o))
                    assert same(wanted, found), (wanted, found)
    return program


def backwards(count: int) -> Iterable[int]:
    """An order of concurrent bodies: none may need what an earlier one does."""
    return reversed(range(count))


def _outcome(run: Callable[[], Any]) -> Any:
    """What a call returns, or the class and the message of what it raises."""
    try:
        return run()
    except Exception as error:
        return (type(error), str(error))


def records(program: InstanceProgram, function: int = 0) -> list[str]:
    """The functions of torch in each record of a function, in the order of the text."""
    found: list[str] = []
    for statement in [*program.functions.values()][function].body.walk():
        if isinstance(statement, RecordOp):
            steps = program.blocks[statement.block].steps
            names = (step.operation.function for step in steps)
            found.append(" ".join(getattr(f, "__name__", type(f).__name__) for f in names))
    return found

"""The front end of batching: from a Python function for one instance to an InstanceProgram.

`evaluate` evaluates the user's source on types. What is the same for all instances is computed at
once; the rest becomes statements. `observe` finds the types of instances. The other modules are
layers, each of which imports only earlier ones: the state of the evaluation (`values` to
`dispatch`), control flow (`joins`, `loops`), operators of torch (`purity` to `tensor_operators`),
data (`truth` to `walks`), functions of Python (`functions` to `methods`), syntax (`expressions` to
`statements`), and calls (`sources` to `application`). A lower layer reaches functions of a higher
one (to evaluate an expression, to call a value) through the tables of `dispatch`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stretto.batching.frontend import (
    application,
    displays,
    expressions,
    functions,
    patterns,
    sequences,
    statements,
)
from stretto.batching.frontend.dispatch import apply
from stretto.batching.frontend.evaluation import Evaluation
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.function_builder import Draft, PathEnds, finished
from stretto.batching.frontend.guards import ReadGuards, holds
from stretto.batching.frontend.purity import noting_content
from stretto.batching.frontend.python_library import MODULE as LIBRARY_MODULE
from stretto.batching.frontend.values import Dynamic, Static, Value
from stretto.batching.instance_guards import FunctionOfInstances
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.instances.observe import Observer
from stretto.errors import CaptureError, SourceLocation
from stretto.ir.core import Block, Variable
from stretto.ir.data import ReturnOp
from stretto.ir.types import (
    NEVER,
    DataType,
    DictType,
    ListType,
    RecordType,
    TupleType,
    alternatives,
)
from stretto.options import Options
from stretto.passes.dce import drop_unused

__all__ = ["Evaluation", "Observer", "evaluate", "holds", "read_instance"]

_REGISTERED = (application, displays, expressions, functions, patterns, sequences, statements)
"""Modules that register their handlers in the tables of `dispatch` and of `functions` when
imported."""


def evaluate(
    function: Callable[..., Any],
    parameters: Sequence[tuple[str, DataType]],
    evaluation: Evaluation,
    keywords: Sequence[tuple[str, DataType]] = (),
    static: dict[str, Any] | None = None,
) -> InstanceProgram:
    """Return the program of a function for one instance.

    parameters: names and types of its positional arguments. keywords: those of its keyword
    arguments that are numbers or tensors; `static` has the other keyword arguments. The
    keywords follow the positional ones as parameters of function 0. Raises CaptureError with
    the user's line.
    """

    def body() -> None:
        made, _ = evaluation.outline("main", "main", None)
        frame = Frame(
            evaluation, made.builder, "main", "", {}, None, {}, "main", ("main",), {}, frozenset()
        )
        frame.result_key = "main"
        now = evaluation.with_merged_cells
        variables = [made.builder.variable(name, now(type_)) for name, type_ in parameters]
        named = [made.builder.variable(name, now(type_)) for name, type_ in keywords]
        draft: Draft = []
        with made.builder.into(draft):
            try:
                kwargs: dict[str, Value] = {n: Static(v) for n, v in (static or {}).items()}
                kwargs |= {v.name: _argument(v) for v in named}
                found = apply(frame, Static(function), [_argument(v) for v in variables], kwargs)
                given = frame.dynamic(found)
                frame.builder.emit(ReturnOp(given.operand))
                frame.returned(given.type)
            except PathEnds:
                pass
        made.function.body = Block((*variables, *named), list(finished(draft)))
        drop_unused(made.function)
        made.function.result = evaluation.results.get("main", NEVER)

    try:
        with noting_content(evaluation.content):
            program = evaluation.run(body)
    except CaptureError as error:
        if error.location is not None:
            raise
        raise CaptureError(
            error.message, location=_location(function), remedy=error.remedy
        ) from error
    _check_result(evaluation, function)
    if not program.functions:
        raise CaptureError("the function never returns")
    return program


def read_instance(
    function: Callable[..., Any],
    parameters: Sequence[tuple[str, DataType]],
    evaluation: Evaluation,
    options: Options,
    keywords: Sequence[tuple[str, DataType]] = (),
    static: dict[str, Any] | None = None,
) -> FunctionOfInstances:
    """Return the program of a function, and what it relies on."""
    program = evaluate(function, parameters, evaluation, keywords, static)
    reads = tuple(evaluation.reads.values())
    tensors = [read.value for read in reads if isinstance(read.value, torch.Tensor)]
    content = tuple(evaluation.content.values())
    return FunctionOfInstances(
        program, lambda native: ReadGuards(reads, native).hold, tensors, content
    )


def _check_result(evaluation: Evaluation, function: Callable[..., Any]) -> None:
    """Raise CaptureError if a result contains an object of Python's library, such as a deque or a
    set, which the program represents by another class (`LIBRARY_MODULE`)."""
    pending, seen = [evaluation.results.get("main", NEVER)], set[DataType]()
    while pending:
        for kind in alternatives(pending.pop()):
            if kind in seen:
                continue
            seen.add(kind)
            match kind:
                case RecordType():
                    info = evaluation.info(kind)
                    if info.python.__module__ == LIBRARY_MODULE:
                        raise CaptureError(
                            f"a {info.python.__name__.lower()} is returned",
                            location=_location(function),
                            remedy="return list(x), dict(x) or sorted(x)",
                        )
                    pending += [evaluation.cells[cell] for cell in info.cells]
                case TupleType(items):
                    pending += items
                case ListType(cell) | DictType(_, cell):
                    pending.append(evaluation.cells[cell])
                case _:
                    pass


def _argument(variable: Variable) -> Dynamic:
    return Dynamic(variable, variable.type)


def _location(function: Callable[..., Any]) -> SourceLocation | None:
    """Return the first line of a function, or of a module's `forward`; None without source."""
    found = inspect.unwrap(getattr(function, "forward", function))
    code = getattr(found, "__code__", None)
    if code is None:
        return None
    return SourceLocation(code.co_filename, code.co_firstlineno, function=code.co_qualname)

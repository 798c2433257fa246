"""Capture of a function for one instance of a batch: its arguments are Python data of known types.

The interpreter of `frontends.python` reads the function, as for `stretto.compile`: what is the
same for all instances is computed at once, and branches, loops and recursions on data are those of
the Program. Only the arguments differ: they are values of the data dialect (`instance_data`).
`lowering` makes an InstanceProgram of the captured Program.

`stretto.batch` does not use it yet (docs/decisions/2026-11-30-batches-by-capture.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stretto.batching.capture.instance_data import InstanceData, type_in_program
from stretto.batching.capture.lowering import (
    MadeResult,
    ResultPart,
    SharedResult,
    YieldedResult,
    lowered,
)
from stretto.batching.instance_guards import Check, FunctionOfInstances
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.instances.types import InstanceTypes, TypesGrew
from stretto.call.eager import RequiresGrad
from stretto.errors import CaptureError, SourceLocation
from stretto.frontends.python.calls.output_journal import intercepted_output
from stretto.frontends.python.guards.guards import Guards, NativeCheck
from stretto.frontends.python.guards.reading import Exempt
from stretto.frontends.python.interpreter.capture import capturing, interpreting, unbounded
from stretto.frontends.python.interpreter.execution import PythonInterpreter
from stretto.frontends.python.interpreter.heap import ITEMS, PythonHeap, Ref
from stretto.frontends.python.interpreter.outside import Outside
from stretto.frontends.python.operators.dispatch import recording
from stretto.frontends.python.results.programs import reachable_functions
from stretto.frontends.python.tracing import locations
from stretto.frontends.python.tracing.history import Hints
from stretto.frontends.python.tracing.signals import (
    Abort,
    GradientsWanted,
    KeepApart,
    NeedsPeel,
    NeedsUnroll,
    NoAlternative,
    Replan,
    UnknownResult,
    fail,
)
from stretto.frontends.python.tracing.tensor import FunctionContext
from stretto.frontends.python.tracing.tracer import Tracer, activate, tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import kind_of, materialize
from stretto.frontends.python.values.raises import raises, stop_at
from stretto.frontends.python.values.texts import is_text
from stretto.ir.core import Function, Program, Value
from stretto.ir.types import DataType
from stretto.options import Options

_TRIES = 60
"""Number of times that a capture starts again because types have grown, or hints were found."""

Parameters = Sequence[tuple[str, DataType]]
"""Names of parameters, with the types of instances there."""


@dataclass(frozen=True, slots=True)
class CapturedInstance:
    """A function captured for one instance.

    result: the structure of what it returns. guards: the static values that it has read. tensors:
    those of the program, and those that may later require grad. content: tensors whose content was
    read. looked_up: the names that were looked up in classes.
    """

    program: Program
    data: InstanceData
    result: ResultPart
    guards: Guards
    tensors: tuple[torch.Tensor, ...]
    content: tuple[torch.Tensor, ...]
    looked_up: tuple[tuple[type, str], ...]
    location: SourceLocation | None

    def lowered(self) -> InstanceProgram:
        """Return the InstanceProgram. Its classes have the names that no object of them stores, as
        far as the program relies on that; special names are only looked up in classes."""
        try:
            program = lowered(self.program, self.data, self.result)
        except CaptureError as error:
            error.location = error.location or self.location
            raise
        names: dict[type, list[str]] = {}
        for kind, name in self.looked_up:
            names.setdefault(kind, []).append(name)
        program.classes = [
            replace(
                info,
                absent=tuple(
                    name
                    for name in names.get(info.python, ())
                    if name not in info.fields and not name.startswith("__")
                ),
            )
            for info in program.classes
        ]
        return program

    def checks(self, native: NativeCheck | None) -> Check:
        """Return the check that the static values are as they were."""
        self.guards.native = native
        return self.guards.hold


def read_instance(
    function: Callable[..., Any],
    parameters: Parameters,
    evaluation: InstanceTypes,
    options: Options,
    keywords: Parameters = (),
    static: dict[str, Any] | None = None,
) -> FunctionOfInstances:
    """Return the program of a function for one instance, and what it relies on. Raises
    CaptureError, and RequiresGrad."""
    try:
        found = capture_instance(function, parameters, evaluation, options, keywords, static)
        return FunctionOfInstances(found.lowered(), found.checks, found.tensors, found.content)
    except GradientsWanted as wanted:
        raise RequiresGrad(wanted.tensor) from None


def capture_instance(
    fn: Callable[..., Any],
    parameters: Parameters,
    evaluation: InstanceTypes,
    options: Options,
    keywords: Parameters = (),
    static: dict[str, Any] | None = None,
) -> CapturedInstance:
    """Capture a function for instances of these types.

    parameters: its positional arguments. keywords: keyword arguments that are data; `static` has
    the others. evaluation: classes and the types in cells; both grow. Raises CaptureError.
    """
    hints, keeps_apart, is_final = Hints(), False, False
    with capturing(), intercepted_output(), unbounded():
        for _ in range(_TRIES):
            evaluation.changed = False
            state = Tracer(options)
            state.hints, state.keeps_apart = hints, keeps_apart
            state.heap = PythonHeap(Outside())
            interpreter = PythonInterpreter(state.heap)
            state.data = data = InstanceData(evaluation, interpreter, is_final)
            try:
                with (
                    state.sizes.inferring(),
                    activate(state),
                    recording(),
                    interpreting(interpreter),
                ):
                    found = _captured(state, interpreter, fn, parameters, keywords, static or {})
                if not evaluation.changed and not data.lacks_types:
                    return found
                is_final = not evaluation.changed
            except UnknownResult as unknown:
                if is_final and not evaluation.changed:
                    raise unknown.abort.error from None
                is_final = not evaluation.changed
            except (Replan, TypesGrew):
                is_final = False
            except KeepApart:
                keeps_apart, is_final = True, False
            except (Abort, NeedsUnroll, NeedsPeel, NoAlternative) as signal:
                raise signal.abort.error from signal
    raise CaptureError(
        "the types of this function's values keep growing",
        remedy="annotate its data, or keep values of fewer types in one place",
    )


def _captured(
    state: Tracer,
    interpreter: PythonInterpreter,
    fn: Callable[..., Any],
    parameters: Parameters,
    keywords: Parameters,
    static: dict[str, Any],
) -> CapturedInstance:
    context, heap, data = FunctionContext("main"), interpreter.heap, state.data
    heap.changed_at = {}
    with state.region(context) as region:
        every = (*parameters, *keywords)
        now = data.evaluation.with_merged_cells
        every = [(name, now(type)) for name, type in every]
        values = [state.param(type_in_program(type), name) for name, type in every]
        with locations.at(_location(fn)):
            given = [data.wrap(value, type) for value, (_, type) in zip(values, every, strict=True)]
        named = {name: heap.adopt(value) for name, value in static.items()}
        named |= dict(zip((n for n, _ in keywords), given[len(parameters) :], strict=True))
        yields = list[Value]()
        try:
            result = interpreter.calls.call(heap.adopt(fn), tuple(given[: len(parameters)]), named)
        except Exception as error:
            if not raises(error):
                raise
            stop_at(region, error)
            result = None
        with locations.at(_location(fn)):
            interpreter.generators.check_dropped()
            _check_outside(heap)
            structure = _structure(heap, result, yields, {})
        block = region.scope.block
        block.params, block.yields = tuple(values), tuple(yields)
        state.close_function(context, block)
    functions = reachable_functions(Function("main", block), state.functions)
    constants = {c.key: c.tensor for c in state.constants.values()}
    guards = heap.outside.log.guards(Exempt())
    guards.settings |= dict(state.asked.values())
    return CapturedInstance(
        Program(functions, constants),
        data,
        structure,
        guards,
        (*constants.values(), *state.gradients.tensors.values()),
        tuple(state.read_values.values()),
        tuple(heap.outside.log.looked_up),
        _location(fn),
    )


def _location(function: Callable[..., Any]) -> SourceLocation | None:
    """Return the first line of a function, or of a module's `forward`; None without source."""
    found = inspect.unwrap(getattr(function, "forward", function))
    code = getattr(found, "__code__", None)
    return None if code is None else locations.definition(code)


def _check_outside(heap: PythonHeap) -> None:
    """Fail if the function changes what outlives the call, or prints."""
    if heap.journal.sites:
        fail("a function for one instance prints, warns or logs", "do it outside of the batch")
    places = heap.changed_at or {}
    for place, change in heap.changes(0).items():
        if not heap.is_born_after(change.table, 0) and change.new is not change.old:
            with locations.at(places.get(place)):
                fail(
                    f"'{change.key}' of an object that all instances share is changed",
                    "return the new value",
                )


def _structure(
    heap: PythonHeap, value: Any, yields: list[Value], seen: dict[int, ResultPart]
) -> ResultPart:
    """Return the structure of a result. yields: gets the values that the Program yields for it.
    seen: the structures of the objects in it, by id."""
    if id(value) in seen:
        return seen[id(value)]
    kind, data = kind_of(value), tracer().data

    def leaf(made: Value) -> YieldedResult:
        yields.append(made)
        return YieldedResult(len(yields) - 1)

    def made(kind: type, items: dict[Any, Any]) -> MadeResult:
        parts = {key: _structure(heap, item, yields, seen) for key, item in items.items()}
        return MadeResult(kind, parts)

    if kind is not None:
        return leaf(materialize(value, kind))
    if is_text(value):
        return leaf(data.text_value(value))
    if isinstance(value, Either):
        return leaf(data.value_at(value, data.type_at(value, "the result")))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named: Any = value
        return made(type(value), dict(zip(named._fields, value, strict=True)))
    if isinstance(value, tuple):
        return made(tuple, dict(enumerate(value)))
    if isinstance(value, Ref) and value.kind not in (list, tuple, dict):
        name = value.kind.__name__.lower()
        fail(f"a {name} is returned", "return list(x), dict(x) or sorted(x)")
    if isinstance(value, Ref):
        items = value.table[ITEMS]
        if isinstance(items, dict):
            found: ResultPart = made(value.kind, items)
        elif isinstance(items, tuple):
            found = made(value.kind, dict(enumerate(items)))
        else:
            found = _structure(heap, items, yields, seen)
    elif heap.is_own(value):
        found = made(type(value), heap.table_of(value))
    else:
        return SharedResult(value)
    seen[id(value)] = found
    return found

"""An interpreter of Python functions over a heap of its own.

Functions are read as syntax trees. Values are Python objects, traced tensors and numbers, and
references to containers (`heap.Ref`). A statement returns how it ends (`End`), or None if the
next one runs; after a branch on a traced value this can depend on a flag (`Perhaps`), and then the
rest of the block is a branch too.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Generator, Iterator
from typing import Any, NoReturn

from stretto.errors import CaptureError, SourceLocation
from stretto.frontends.python.interpreter import sourceless, tracebacks
from stretto.frontends.python.interpreter.attributes import Attributes
from stretto.frontends.python.interpreter.binding import bound
from stretto.frontends.python.interpreter.builtin_rules import BuiltinRules
from stretto.frontends.python.interpreter.callables import Callables
from stretto.frontends.python.interpreter.containers import Containers
from stretto.frontends.python.interpreter.contexts import Contexts
from stretto.frontends.python.interpreter.definitions import Definitions
from stretto.frontends.python.interpreter.expressions import ExpressionValues
from stretto.frontends.python.interpreter.frames import (
    RETURN,
    End,
    Perhaps,
    PythonFrame,
    Thrown,
    definition,
    stored_outside,
)
from stretto.frontends.python.interpreter.generators import Generators
from stretto.frontends.python.interpreter.heap import (
    CELL,
    MISSING,
    PythonHeap,
)
from stretto.frontends.python.interpreter.iteration import Iteration
from stretto.frontends.python.interpreter.membership import Membership
from stretto.frontends.python.interpreter.namespace_rules import namespace_rules
from stretto.frontends.python.interpreter.operators import Operators
from stretto.frontends.python.interpreter.output import output_rules
from stretto.frontends.python.interpreter.patterns import Patterns
from stretto.frontends.python.interpreter.regions import Regions
from stretto.frontends.python.interpreter.segment_results import segment_result
from stretto.frontends.python.interpreter.self_calls import Recursions
from stretto.frontends.python.interpreter.source_loops import SourceLoops
from stretto.frontends.python.interpreter.statements import Statements
from stretto.frontends.python.interpreter.strings import Strings
from stretto.frontends.python.interpreter.torch_functions import torch_rules
from stretto.frontends.python.tracing import locations
from stretto.frontends.python.tracing.locations import is_user_file
from stretto.frontends.python.tracing.signals import Abort, fail

_IS_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class PythonInterpreter:
    """An interpreter of Python functions over a heap of its own."""

    def __init__(self, heap: PythonHeap) -> None:
        self.heap = heap
        self.frames: list[PythonFrame] = []
        self.attributes = Attributes(self)
        self.calls = Callables(self)
        self.operators = Operators(self)
        self.membership = Membership(self)
        self.containers = Containers(self)
        self.iteration = Iteration(self)
        self.generators = Generators(self)
        self.patterns = Patterns(self)
        self.definitions = Definitions(self)
        self.contexts = Contexts(self)
        self.strings = Strings(self)
        self.expressions = ExpressionValues(self)
        self.statements = Statements(self)
        self.regions = Regions(self)
        self.source_loops = SourceLoops(self)
        self.recursion = Recursions(self.regions)
        self.rules = {
            **BuiltinRules(self).of_functions(),
            **namespace_rules(self),
            **output_rules(self),
            **torch_rules(self),
        }

    def run(
        self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Interpret a call of a Python function."""
        code = function.__code__
        if code.co_flags & _IS_ASYNC:
            message = f"'{code.co_name}' is an async function, which cannot be captured"
            place = locations.definition(code)
            raise Abort(CaptureError(message, location=place, remedy="use a plain function"))
        found = definition(code)
        tree = found.tree
        if is_user_file(code.co_filename) and id(function) not in self.heap.own:
            self.heap.outside.log.function(function)
        if tree is None:
            return sourceless.call(self, function, args, kwargs)
        frame = PythonFrame(function, code, self.heap.new_table())
        frame.cells = {name: self.heap.new_cell() for name in code.co_cellvars}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            frame.cells[name] = cell
            self.heap.outside.cells.setdefault(id(cell), name)
        frame.globals_named = found.global_names
        for name, value in bound(self.heap, function, args, kwargs).items():
            self.store_name(frame, name, value)
        if code.co_flags & 0x20:
            return self.generators.new(frame, tree.body)
        depth = len(self.frames)
        self.frames.append(frame)
        try:
            end = self.finish(self.statements.block(frame, tree.body))
            if found.segment is not None:
                return segment_result(self, frame, found.segment, end)
            return self.returned(end)
        except Thrown as stop:
            if depth:
                raise
            raise stop.error from None
        except Exception as error:
            tracebacks.check_interpreted(error, self.heap)
            tracebacks.leave(error, frame)
            raise
        finally:
            del self.frames[depth:]

    def handled_error(self) -> BaseException | None:
        """Return the exception that is handled."""
        return next((f.error for f in reversed(self.frames) if f.error is not None), None)

    def returned(self, end: Any) -> Any:
        """Return the value of a function whose body ends so."""
        match end:
            case End(value=value):
                return self.regions.present(value)
            case Perhaps(flags=flags, value=value):
                return self.regions.choose(flags[RETURN], self.regions.present(value), None)
            case _:
                return None

    def finish(self, steps: Generator[Any, Any, Any]) -> Any:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
        fail("a generator yields inside of a branch or loop on a tensor", "collect a list")

    def load(self, frame: PythonFrame, name: str) -> Any:
        scope: PythonFrame | None = frame
        while scope is not None:
            if scope.names is not None and name in scope.names:
                return scope.names[name]
            if name in scope.cells:
                is_own = scope is frame and name in frame.code.co_cellvars
                return self._of_cell(scope.cells[name], name, is_own)
            if name in scope.vars:
                value = scope.vars[name]
                if value is MISSING:
                    break
                return self.regions.bound(value, name)
            if name in scope.code.co_varnames and scope.parent is None and scope.names is None:
                break
            scope = scope.parent
        else:
            return self._global(frame, name)
        self._unbound(name)

    def _of_cell(self, cell: types.CellType, name: str, is_own: bool) -> Any:
        value = self.heap.field(cell, CELL)
        if value is MISSING and not is_own:
            raise NameError(
                f"cannot access free variable '{name}' where it is not associated with a value "
                "in enclosing scope",
                name=name,
            )
        return self._unbound(name) if value is MISSING else self.regions.bound(value, name)

    def _unbound(self, name: str) -> NoReturn:
        raise UnboundLocalError(
            f"cannot access local variable '{name}' where it is not associated with a value",
            name=name,
        )

    def _global(self, frame: PythonFrame, name: str) -> Any:
        space = self.heap.outside.namespace(frame.function.__globals__)
        value = self.heap.field(space, name)
        if value is MISSING:
            value = getattr(builtins, name, MISSING)
        if value is MISSING:
            raise NameError(f"name '{name}' is not defined", name=name)
        return self.regions.bound(value, name)

    def store_name(self, frame: PythonFrame, name: str, value: Any) -> None:
        outside = {} if frame.names is None else stored_outside(frame.code)
        if frame.names is not None and name not in outside:
            if value is MISSING:
                frame.names.pop(name)
            else:
                frame.names[name] = value
        elif frame.names is not None and not outside[name]:
            scope: PythonFrame | None = frame.parent
            while scope is not None and name not in scope.cells:
                scope = scope.parent
            assert scope is not None
            self.heap.assign(scope.cells[name], CELL, value)
        elif frame.names is not None or name in frame.globals_named:
            space = self.heap.outside.namespace(frame.function.__globals__)
            self.heap.assign(space, name, value)
        elif name in frame.cells:
            self.heap.assign(frame.cells[name], CELL, value)
        else:
            self.heap.set(frame.vars, name, value)

    def run_own(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Interpret a function of this package."""
        return self.recursion.run(function, args, kwargs)

    def values_in_use(self) -> Iterator[Any]:
        """Yield the values that the program can still reach."""
        heap = self.heap
        pending: list[Any] = [
            holder for holder, _ in heap.tables.values() if not heap.is_own(holder)
        ]
        pending += [ref for _, ref in heap.refs.values()]
        for frame in self.frames:
            pending += [*frame.vars.values(), *frame.cells.values(), frame.function]
            pending += (frame.names or {}).values()
        seen: set[int] = set()
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            pending += heap.referents(value)

    def place(self) -> SourceLocation | None:
        """Return the place that is executed in the innermost function whose lines errors name."""
        for frame in reversed(self.frames):
            if locations.is_shown(frame.code.co_filename) and getattr(frame.node, "lineno", 0):
                return location(frame)
        return None

    def lines(self) -> list[locations.InterpretedLine]:
        """Return the lines of all functions that are interpreted, the innermost first."""
        return [
            locations.InterpretedLine(
                frame.code,
                getattr(frame.node, "lineno", 0) or frame.code.co_firstlineno,
                frame.function.__globals__,
            )
            for frame in reversed(self.frames)
        ]


def location(frame: PythonFrame) -> SourceLocation:
    node: Any = frame.node
    known = locations.place_in_graph(frame.code, node.lineno)
    if known is not None:
        return known
    is_one_line = node.end_lineno == node.lineno
    return SourceLocation(
        frame.code.co_filename,
        node.lineno,
        node.col_offset,
        node.end_col_offset if is_one_line else None,
        locations.shown_function(frame.code.co_qualname),
    )

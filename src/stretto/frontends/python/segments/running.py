"""Execution of a function in Python outside of a capture, split into segments and statements.

Statements are grouped into segments, which a `SegmentRunner` may run as native programs. A
statement that the host refuses runs in Python; if it has blocks, these are split in the same
manner. The host also runs the calls made by statements in Python.
"""

# pyright: reportPrivateUsage=false
# hooks of modules are private tables

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from stretto.errors import SourceLocation, StrettoError
from stretto.frontends.python.guards.reading import is_structural
from stretto.frontends.python.guards.user_code import is_of_user
from stretto.frontends.python.interpreter.frames import BREAK, CONTINUE, RETURN
from stretto.frontends.python.segments.pieces import RUN_BLOCK, PieceBlock, PiecewiseBody, body_of
from stretto.frontends.python.source.definitions import is_user_function
from stretto.frontends.python.source.syntax_trees import STAGING
from stretto.frontends.python.tracing.frames import UNDEFINED, cells_of, read_cell, write_cell
from stretto.frontends.python.tracing.locations import definition
from stretto.frontends.python.values.number_methods import own_method

Jump = tuple[str, Any]
"""How a piece ends, if not at its end: by `return`, `break` or `continue`, and the value."""


class Refused(Exception):
    """A segment cannot be compiled because of `error`.

    at: numbers of the offending statements in the segment; None is the position after the last
    one. always: no statement of it can be compiled in calls such as this one.
    """

    def __init__(
        self, error: StrettoError, at: Collection[int | None], always: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error, self.at, self.always = error, at, always


class RunInPython(Exception):
    """A segment must run in Python this time because it raises an exception."""


class SegmentRunner(Protocol):
    """Runs the segments and calls of a function that runs in Python."""

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that a statement makes."""
        ...

    def segment(
        self, key: Any, make: Callable[[], types.FunctionType], args: tuple[Any, ...]
    ) -> dict[str, Any]:
        """Run a segment and return its results by variable name. Raises Refused or NotNative."""
        ...

    def is_cut(self, statement: ast.stmt) -> bool:
        """Return True if the statement was refused before."""
        ...

    def is_end(self, statement: ast.stmt) -> bool:
        """Return True if segments must end before the statement."""
        ...

    def end_before(self, statement: ast.stmt) -> None: ...

    def cut(self, statement: ast.stmt, place: SourceLocation, reason: str) -> None: ...

    def count(self, statement: ast.stmt, place: SourceLocation, reason: str) -> None:
        """Record that a statement runs in Python; reason: why, if it was not refused."""
        ...


def run_in_python(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], host: SegmentRunner
) -> Any:
    """Compute `function(*args, **kwargs)`, running segments natively and the rest in Python."""
    function = own_method(function, "__call__") or function
    if isinstance(function, nn.Module) and is_user_function(function_of(function.forward)):
        forward = functools.partial(_run, host, function.forward)
        return call_with_hooks(function, forward, host, args, kwargs)
    return _run(host, function, *args, **kwargs)


def call_with_hooks(
    module: nn.Module,
    forward: Callable[..., Any],
    host: SegmentRunner,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a module like `Module.__call__`; its hooks are called by the host."""
    with_kwargs = module._forward_pre_hooks_with_kwargs
    for key, hook in (*_GLOBAL_PRE_HOOKS.items(), *module._forward_pre_hooks.items()):
        named = (kwargs,) if key in with_kwargs else ()
        outcome = host.call(hook, (module, args, *named), {})
        if outcome is not None and key in with_kwargs:
            args, kwargs = outcome
        elif outcome is not None:
            args = outcome if isinstance(outcome, tuple) else (outcome,)
    result = forward(*args, **kwargs)
    with_kwargs = _modules._global_forward_hooks_with_kwargs | module._forward_hooks_with_kwargs
    for key, hook in (*_modules._global_forward_hooks.items(), *module._forward_hooks.items()):
        named = (kwargs,) if key in with_kwargs else ()
        outcome = host.call(hook, (module, args, *named, result), {})
        result = result if outcome is None else outcome
    return result


_modules = torch.nn.modules.module
_GLOBAL_PRE_HOOKS = _modules._global_forward_pre_hooks


class PieceRuntime:
    """Functions that the code of pieces calls."""

    def __init__(self, host: SegmentRunner) -> None:
        self.host = host

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Make a call that a statement makes."""
        return self.host.call(function, args, kwargs)

    def bound(self, name: str, read: Callable[[], Any]) -> Any:
        """Return the value of a variable; raise Python's UnboundLocalError if it has none."""
        try:
            return read()
        except NameError:
            raise UnboundLocalError(
                f"cannot access local variable '{name}' where it is not associated with a value"
            ) from None


def _run(host: SegmentRunner, function: Any, *args: Any, **kwargs: Any) -> Any:
    inner = function_of(function)
    body = body_of(inner.__code__) if can_be_split(inner) else None
    if body is None:
        return function(*args, **kwargs)
    if isinstance(function, types.MethodType):
        args = (function.__self__, *args)
    return PiecewiseCall.of(host, inner, body, args, kwargs).run()


@dataclass(eq=False, slots=True)
class PiecewiseCall:
    """One call of a function that is split into segments. cells: its variables."""

    host: SegmentRunner
    name: str
    namespace: dict[str, Any]
    body: PiecewiseBody
    cells: dict[str, types.CellType]

    @staticmethod
    def of(
        host: SegmentRunner, function: Any, body: PiecewiseBody, args: Any, kwargs: Any
    ) -> PiecewiseCall:
        outside = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        closure = tuple(outside[item] for item in body.entry.co_freevars)
        entry = types.FunctionType(
            body.entry, function.__globals__, function.__name__, function.__defaults__, closure
        )
        entry.__kwdefaults__ = function.__kwdefaults__
        entry.__qualname__ = function.__qualname__
        cells = {**outside, **cells_of(entry(*args, **kwargs))}
        cells[STAGING] = types.CellType(PieceRuntime(host))
        return PiecewiseCall(host, function.__name__, function.__globals__, body, cells)

    def run(self) -> Any:
        jump = self.block(self.body.root)
        return None if jump is None else jump[1]

    def block(self, block: PieceBlock) -> Jump | None:
        """Run a block's statements: segments as long as possible, refused statements in Python.
        Returns the jump by which it ends."""
        position = 0
        while position < len(block.statements):
            end = self._end_of_segment(block, position)
            if end == position:
                jump = self._in_python(block, position)
                position += 1
            else:
                position, jump = self._segment(block, position, end)
            if jump is not None:
                return jump
        return None

    # ---- segments ------------------------------------------------------------------------------

    def _end_of_segment(self, block: PieceBlock, start: int) -> int:
        """Return the end of the longest segment from `start` on; `start` if there is none."""
        end = start
        while end < len(block.statements) and not (
            self.host.is_cut(block.statements[end])
            or block.runs_in_python(end)
            or (end > start and self.host.is_end(block.statements[end]))
        ):
            end += 1
        if end == start:
            return start
        values = {item: read_cell(self.cells[item]) for item in block.needs(start, end)}
        foreign = [block.needs(start, end)[n] for n, v in values.items() if not is_admissible(v)]
        end = min([end, *foreign])
        if end == start or not block.computes(start, end):
            return start
        given = [v for n, v in values.items() if block.needs(start, end).get(n) is not None]
        return end if has_tensor(given) else start

    def _segment(self, block: PieceBlock, start: int, end: int) -> tuple[int, Jump | None]:
        """Run a segment; return the position after it, or `start` if it was refused, and the jump
        by which it ends."""
        values = {item: read_cell(self.cells[item]) for item in block.needs(start, end)}
        first, known = dict[int, str](), dict[str, str]()
        for item, value in values.items():
            if value is not UNDEFINED:
                known[item] = first.setdefault(id(value), item)
        segment = block.segment(start, end, known)

        def make() -> types.FunctionType:
            closure = tuple(self.cells[item] for item in segment.code.co_freevars)
            first, last = block.statements[start].lineno, block.statements[end - 1].end_lineno
            name = f"{self.name}, line {first} to {last}"
            made = types.FunctionType(segment.code, self.namespace, name, None, closure)
            made.__qualname__ = self.body.code.co_qualname
            return made

        key = (segment, id(self.cells.get("__class__")), id(self.namespace))
        found = None
        try:
            found = self.host.segment(key, make, tuple(values[item] for item in segment.given))
        except Refused as refused:
            self._refuse(block, start, end, refused)
            return start, None
        except RunInPython:
            pass
        if found is None:  # not in the `except`: the statements may raise what user code handles
            for index in range(start, end):
                jump = self._called(block.whole(index), None)()
                if jump is not None:
                    return end, jump
            return end, None
        for item in segment.results:
            has_value = item in found and found.get(f"<has {item}>", True)
            write_cell(self.cells[item], found[item] if has_value else UNDEFINED)
        ends = (jump for jump in (RETURN, BREAK, CONTINUE) if found.get(f"<{jump}>"))
        jump = next(ends, None)
        return end, None if jump is None else (jump, found.get("<value>"))

    def _refuse(self, block: PieceBlock, start: int, end: int, refused: Refused) -> None:
        """Cut out the statements that cannot be captured. If these are not known, halve the
        segment."""
        known = [start + at for at in refused.at if at is not None and at < end - start]
        if refused.always or end - start == 1:
            known = range(start, end)
        for index in known:
            place = self._place(block, index)
            self.host.cut(block.statements[index], place, refused.error.message)
        if not known:
            self.host.end_before(block.statements[(start + end) // 2])

    # ---- statements ----------------------------------------------------------------------------

    def _in_python(self, block: PieceBlock, index: int) -> Jump | None:
        code, blocks = block.opened(index)
        statement = block.statements[index]
        if block.computes(index, index + 1) or blocks:
            reason = "" if block.runs_in_python(index) else self._foreign(block, index)
            self.host.count(statement, self._place(block, index), reason)
        return self._called(code, lambda number: self.block(blocks[number]))()

    def _foreign(self, block: PieceBlock, index: int) -> str:
        """Return why a statement that was not refused cannot be in a segment; "" if there is no
        reason."""
        for item in block.needs(index, index + 1):
            value = read_cell(self.cells[item])
            if not is_admissible(value):
                return f"'{item}' is a {type(value).__name__}, which stays in Python"
        return ""

    def _called(
        self, code: types.CodeType, run_block: Callable[[int], Jump | None] | None
    ) -> types.FunctionType:
        cells = {**self.cells, RUN_BLOCK: types.CellType(run_block)}
        closure = tuple(cells[item] for item in code.co_freevars)
        return types.FunctionType(code, self.namespace, self.name, None, closure)

    def _place(self, block: PieceBlock, index: int) -> SourceLocation:
        statement = block.statements[index]
        known = definition(self.body.code)
        return SourceLocation(known.file, statement.lineno, function=known.function)


def is_separately_compilable(function: Any) -> bool:
    """Return True if a called function may be compiled separately: user code that exists before
    the call. A closure made during the call differs each time."""
    function = own_method(function, "__call__") or function
    if isinstance(function, torch.jit.ScriptModule):
        return False
    if isinstance(function, nn.Module):
        is_sequence = type(function).forward is nn.Sequential.forward
        return is_sequence or is_user_function(function_of(function.forward))
    inner = function_of(function)
    return can_be_split(inner) and inner.__closure__ is None


def can_be_split(function: Any) -> bool:
    """Return True for a user function that can be split: not a generator, not async."""
    inner = function_of(function)
    return (
        is_user_function(inner)
        and not inspect.isgeneratorfunction(inner)
        and not inspect.iscoroutinefunction(inner)
        and not inspect.isasyncgenfunction(inner)
    )


def function_of(function: Any) -> Any:
    return function.__func__ if isinstance(function, types.MethodType) else function


_ATOMS: frozenset[type] = frozenset(
    (
        type(None), bool, int, float, complex, str, bytes, range, slice, type(...), torch.Size,
        torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Tensor, nn.Parameter,
        types.ModuleType,
    )
)  # fmt: skip
_CONTAINERS: frozenset[type] = frozenset((list, tuple, dict, OrderedDict, defaultdict, deque))
_DEEPEST = 20


def is_admissible(value: Any, depth: int = 0) -> bool:
    """Return True if a value may be passed to a segment: the capture handles everything it can
    hold, and another call may pass an equal value."""
    kind = type(value)
    if kind in _ATOMS or value is UNDEFINED:
        return True
    if depth > _DEEPEST:
        return False
    if kind in _CONTAINERS or (isinstance(value, tuple) and pytree.is_namedtuple(value)):
        items: Any = (*value, *value.values()) if isinstance(value, dict) else value
        return all(is_admissible(item, depth + 1) for item in items)
    match value:
        case nn.Module() | type() | np.generic():
            return True
        case types.FunctionType():
            return value.__closure__ is None and "<locals>" not in value.__qualname__
        case types.MethodType():
            return is_admissible(value.__self__, depth + 1)
        case types.BuiltinFunctionType():
            return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
        case set():
            return False
        case _:
            return is_structural(value) and is_of_user(kind)


def has_tensor(arguments: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(arguments))

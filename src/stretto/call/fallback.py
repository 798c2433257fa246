"""`stretto.compile(f, fallback=True)`: statements that cannot be compiled run in Python, the rest
compiled.

If a call cannot be compiled, its function is cut: the refused statement runs in Python, the
statements before and after it are separate programs (`Segment`), and local variables are passed
between them. If a loop or branch has to be cut, its inner statements are cut in the same way. Each
function or module of the user's that such Python code calls is compiled by itself, with fallback.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from stretto.call.eager import warn
from stretto.call.signatures import Key
from stretto.errors import CaptureError, SourceLocation, StrettoError
from stretto.failures import is_compile_failure, is_reportable_bug
from stretto.frontends.python import (
    MARK,
    Refused,
    RunInPython,
    can_be_split,
    is_separately_compilable,
    run_in_python,
)
from stretto.frontends.python.tracing.admission import active_transformation
from stretto.ops.effects import restore, states_of
from stretto.progress import LOG
from stretto.text import TextSection, counted

MOST_SIGNATURES = 32
"""A segment with this many compiled signatures runs in Python from then on."""


class CompiledPart(Protocol):
    """A function, a module or a segment of one that is compiled by itself."""

    @property
    def signatures(self) -> Sequence[object]: ...
    @property
    def is_used(self) -> bool: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def run_segment(self, args: tuple[Any, ...]) -> Any: ...
    def explain(self) -> str: ...


class PartCompiler(Protocol):
    """Compiles a function or module that Python code calls, or a segment of one."""

    def __call__(self, function: Callable[..., Any], *, segment: bool) -> CompiledPart: ...


@dataclass(eq=False, slots=True)
class Cut:
    """A statement that runs in Python, with the reason. runs: number of times that it did."""

    place: SourceLocation
    reason: str
    runs: int = 0

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        source = self.place.source().strip()
        return f"{self.place}: {counted(self.runs, 'run')}{reason}\n    {source}"


@dataclass(eq=False, slots=True)
class CallSegments:
    """The parts of one compiled function and of all that it calls: functions and modules by
    identity, segments, and statements that run in Python. ends: statements before which
    segments end."""

    compiler: PartCompiler
    parts: dict[Hashable, CompiledPart] = field(default_factory=dict[Hashable, CompiledPart])
    segments: dict[Hashable, CompiledPart] = field(default_factory=dict[Hashable, CompiledPart])
    cuts: dict[ast.stmt, Cut] = field(default_factory=dict[ast.stmt, Cut])
    plain: dict[ast.stmt, Cut] = field(default_factory=dict[ast.stmt, Cut])
    """Statements that ran in Python although they were not refused."""
    ends: set[ast.stmt] = field(default_factory=set[ast.stmt])

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call for a statement that runs in Python, compiled if possible."""
        if not _has_tensor((args, kwargs)):
            return function(*args, **kwargs)
        if is_separately_compilable(function):
            return self.part(function)(*args, **kwargs)
        if can_be_split(function) and active_transformation() is None:
            return run_in_python(function, args, kwargs, self)
        return function(*args, **kwargs)

    def part(self, function: Any) -> CompiledPart:
        """Return the compiled form of a called function or module. It is stored, so that the id of
        the function stays unique."""
        key: Hashable = id(function)
        if isinstance(function, MethodType):
            key = (id(function.__func__), id(function.__self__))
        if key not in self.parts:
            self.parts[key] = self.compiler(function, segment=False)
        return self.parts[key]

    def segment(
        self, key: Hashable, make: Callable[[], FunctionType], args: tuple[Any, ...]
    ) -> dict[str, Any]:
        """Run a segment as a native program, and return the variables that it sets. Raises Refused
        if it cannot be compiled, NotNative if this call has to run in Python."""
        compiled = self.segments.get(key)
        if compiled is None:
            compiled = self.segments[key] = self.compiler(make(), segment=True)
        if len(compiled.signatures) >= MOST_SIGNATURES:
            reason = f"compiled {MOST_SIGNATURES} times, as its arguments always differ"
            raise Refused(CaptureError(reason), (), always=True)
        if active_transformation() is not None:
            raise RunInPython
        MARK.clear()
        drawn = states_of((None,))
        try:
            return compiled.run_segment(args)
        except StrettoError as error:
            if not is_compile_failure(error):
                raise
            restore(drawn)
            warn_of_defect(error)
            at = MARK.blamed or {MARK.statement}
            raise Refused(error, at if error.stage is None else ()) from None
        except RunInPython as error:
            LOG.info("statements run in Python once: %s", error)
            restore(drawn)
            raise

    def is_cut(self, statement: ast.stmt) -> bool:
        """Return True if the statement was refused."""
        return statement in self.cuts

    def cut(self, statement: ast.stmt, place: SourceLocation, reason: str) -> None:
        """Run the statement in Python from now on."""
        self.cuts[statement] = Cut(place, reason)

    def is_end(self, statement: ast.stmt) -> bool:
        """Return True if segments end before the statement."""
        return statement in self.ends

    def end_before(self, statement: ast.stmt) -> None:
        """End segments before the statement from now on."""
        self.ends.add(statement)

    def count(self, statement: ast.stmt, place: SourceLocation, reason: str) -> None:
        """Count a run of the statement in Python."""
        cut = self.cuts.get(statement)
        if cut is None:
            cut = self.plain.setdefault(statement, Cut(place, reason))
        cut.runs += 1

    def sections(self) -> list[TextSection]:
        """List the statements that ran in Python, and explain each part that is compiled."""
        cuts = [cut for cut in (*self.cuts.values(), *self.plain.values()) if cut.runs]
        cuts.sort(key=lambda cut: (cut.place.file, cut.place.line))
        runs = counted(sum(cut.runs for cut in cuts), "run")
        title = f"{counted(len(cuts), 'statement')} in Python, {runs}:"
        return [
            TextSection(title, parts=[str(cut) for cut in cuts]),
            *(
                TextSection(
                    f"a {kind} of it, compiled by itself:", parts=[piece.explain().rstrip()]
                )
                for kind, found in (("part", self.parts), ("segment", self.segments))
                for piece in found.values()
                if piece.is_used
            ),
        ]


@dataclass(eq=False, slots=True)
class Fallback:
    """The state of one function or module that runs with fallback.

    reasons: why calls could not be compiled, by key. calls: number of calls that ran in pieces.
    """

    pieces: CallSegments
    reasons: dict[Key, StrettoError] = field(default_factory=dict[Key, StrettoError])
    calls: int = 0

    def note(self, key: Key, error: StrettoError) -> None:
        """Run calls of this key in pieces from now on, because of `error`."""
        self.reasons[key] = error
        warn_of_defect(error)

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function in pieces."""
        self.calls += 1
        return run_in_python(function, args, kwargs, self.pieces)

    def section(self, *, is_whole: bool) -> TextSection:
        """Explain why calls ran in pieces and, if this is the whole function that was cut, which
        statements ran in Python."""
        reasons = dict.fromkeys(map(str, self.reasons.values()))
        parts = [*reasons, *(self.pieces.sections() if is_whole else ())]
        return TextSection(f"in Python: {counted(self.calls, 'call')}", parts=parts)


def warn_of_defect(error: StrettoError) -> None:
    """Warn of a compile failure that is a bug of stretto; the results are right all the same."""
    if is_reportable_bug(error):
        warn(f"a part of the program runs in Python, because it failed to compile: {error}")


def _has_tensor(arguments: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(arguments))

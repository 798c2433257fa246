"""Knowledge from earlier calls and unfinished attempts of a capture, for the next attempt."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import sympy
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from stretto.errors import SourceLocation
from stretto.frontends.python.tracing.signals import fail

# ---- Sizes of other calls, known while one call is captured.
#
# A condition on sizes that all calls seen so far answer alike becomes a guard. One that they
# answer differently may become a branch of the program (`interpreter/size_conditions.py`). Then
# each arm is traced for the calls that take it, with one of them as their representative. If torch
# decides anything by sizes inside an arm, the condition cannot be a branch: a guard would hold only
# for the calls that take the arm.


# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# torch.fx has no complete types


LocatedGuard = tuple[Any, SourceLocation | None]

_MOST_SEEN = 8
"""Maximum number of calls remembered: the latest ones."""
_MOST_BRANCHES = 16
"""Maximum number of branches on sizes in a program: each may double the work of tracing."""


@dataclass(slots=True, eq=False)
class SeenSizes:
    """The sizes of the calls of a family, by their sources, and the lines whose conditions on
    sizes must be guards, with the reason."""

    calls: list[Mapping[Any, int]] = field(default_factory=list[Mapping[Any, int]])
    guards: dict[SourceLocation, str] = field(default_factory=dict[SourceLocation, str])
    branches: set[SourceLocation] = field(default_factory=set[SourceLocation])
    """Lines that the last capture turned into branches of the program."""

    def add(self, call: Mapping[Any, int]) -> None:
        """Record a call; the last one added is the one that is captured."""
        if call in self.calls:
            self.calls.remove(call)
        self.calls.append(call)
        del self.calls[:-_MOST_SEEN]

    def keep_guards(self, reason: str, places: Iterable[SourceLocation] = ()) -> bool:
        """Make the conditions at these lines guards from now on, or all current branches if there
        are none. Return True if this changes any line, so that another capture may succeed."""
        found = set(places) - self.guards.keys() or set(self.branches)
        self.guards |= dict.fromkeys(found, reason)
        self.branches -= found
        return bool(found)


class SeenCalls:
    """The calls that the program of one capture may serve. Call 0 is the captured one."""

    def __init__(self, env: ShapeEnv, seen: SeenSizes, calls: Sequence[Mapping[int, int]]) -> None:
        """calls: the sizes of each call, by symbol number."""
        self.env, self.seen = env, seen
        self.calls = calls
        self.symbols: dict[int, Any] = {}
        self.left = set(range(len(calls)))
        """Calls that all guards so far allow."""
        self.here = frozenset(self.left)
        """Calls that take the arm being traced."""
        self.path: Any = sympy.true
        """Condition on sizes under which that arm runs."""
        self.stands = 0
        """The representative: the call whose sizes torch uses as hints."""
        self.has_moved = False
        self.branches: list[LocatedGuard] = []
        self.open: list[SourceLocation] = []
        self.blamed: SourceLocation | None = None
        self._values: dict[int, dict[Any, Any]] = {}
        seen.branches.clear()

    @property
    def is_outside(self) -> bool:
        """True outside of all arms of branches on sizes."""
        return self.path is sympy.true

    def enter(self, number: int, expression: Any) -> None:
        """Register the sympy symbol of a new symbol number."""
        self.symbols[number] = expression
        self._values.clear()

    def answer(self, call: int, expression: Any) -> Any:
        """Return the value of an expression in a call; None if unknown, as for a data-dependent
        size."""
        if call not in self._values:
            sizes = self.calls[call]
            self._values[call] = {
                symbol: sympy.Integer(sizes[number]) for number, symbol in self.symbols.items()
            }
        try:
            found = expression.xreplace(self._values[call])
        except (ArithmeticError, ValueError):
            return None
        return found if found.is_number or found in (sympy.true, sympy.false) else None

    def branch_on(self, condition: Any, place: SourceLocation) -> None:
        """Record that a condition is a branch of the program."""
        self.seen.branches.add(place)
        self.branches.append((condition, place))

    def divides(self, condition: Any) -> bool:
        """True if the calls that reach this point answer a condition differently."""
        if len(self.calls) < 2:
            return False
        answers = {self.answer(call, condition) for call in self.here & self.left}
        return {sympy.true, sympy.false} <= answers

    def why_guard(self, place: SourceLocation) -> str | None:
        """Return why a condition at this line must be a guard; None if it may be a branch."""
        if place in self.open:
            return "each of its arms comes to it again, and there would be ever more of them"
        if len(self.seen.branches) >= _MOST_BRANCHES and place not in self.seen.branches:
            return f"there are {_MOST_BRANCHES} branches on sizes already"
        return self.seen.guards.get(place)

    @contextmanager
    def branching(self, place: SourceLocation) -> Generator[None]:
        """Context for tracing both arms of a branch. An error that leaves it is blamed on the
        innermost branch."""
        self.open.append(place)
        try:
            yield
        except BaseException:
            self.blamed = self.blamed or place
            raise
        finally:
            self.open.pop()

    def keep_guards(self, reason: str) -> bool:
        """After a failed capture, turn branches into guards for the next one. Return True if any
        changed."""
        return self.seen.keep_guards(reason, () if self.blamed is None else (self.blamed,))

    @contextmanager
    def under(self, condition: Any) -> Generator[bool]:
        """Context for code that runs only for sizes where `condition` holds. Yields True if such a
        call was seen."""
        before = self.here, self.path, self.stands
        here = self.here & self.left
        self.here = frozenset(c for c in here if self.answer(c, condition) is sympy.true)
        self.path = sympy.And(self.path, condition)
        if self.here and self.stands not in self.here:
            self._stand_for(min(self.here))
        try:
            yield bool(self.here)
        finally:
            self.here, self.path, stands = before
            self._stand_for(stands)

    def _stand_for(self, call: int) -> None:
        """Let torch use the sizes of another call as hints."""
        if call != self.stands:
            self.stands, self.has_moved = call, True
            for number, symbol in self.symbols.items():
                self.env.backed_var_to_val[symbol] = sympy.Integer(self.calls[call][number])
            self.env._version_counter += 1
        forget_answers()

    def learn(self, guard: Any) -> None:
        """Drop the calls that a guard excludes."""
        excluded = {call for call in self.left if self.answer(call, guard) is sympy.false}
        self.left -= excluded

    def ask(self, guard: Any) -> bool:
        """Process a guard that torch asks for. Return False outside of all arms, where it is a
        guard of the program. Inside an arm, only the arm's own condition may be asked: a guard
        would hold for some calls only, so ShapeEnv must not learn it. Raises Abort for any
        other guard in an arm."""
        if self.path is sympy.true:
            self.learn(guard)
            return False
        is_known = guard in sympy.And.make_args(self.path) and not isinstance(guard, sympy.Eq)
        if not is_known:
            fail(
                f"an arm of a branch on sizes depends on another condition on sizes: {guard}",
                "decide it outside of the branch",
            )
        return True

    def hint(self, node: Any) -> Any:
        """Return the value of a size in the representative call."""
        known = node._hint
        if known is None or not self.has_moved:
            return known
        found = self.answer(self.stands, node.expr)
        return known if found is None else node.pytype(found)


def forget_answers() -> None:
    """Clear torch's cache of answers, which holds answers with and without guards."""
    asked: Any = getattr(ShapeEnv, "_inner_evaluate_expr", ShapeEnv.evaluate_expr)
    asked.cache_clear()


_SEEN = "stretto_seen"


@contextmanager
def standing_in(calls: SeenCalls) -> Generator[None]:
    """Context in which sizes have the values of the representative call as hints."""
    if len(calls.calls) < 2:
        yield
        return
    kind: Any = SymNode
    before = vars(kind)["hint"]
    setattr(calls.env, _SEEN, calls)
    kind.hint = property(_hint_of_calls(before.fget))
    try:
        yield
    finally:
        kind.hint = before


def _hint_of_calls(plain: Any) -> Any:
    """Return a `hint` property getter that is unchanged for nodes of other captures."""

    def hint(node: Any) -> Any:
        calls: SeenCalls | None = getattr(node.shape_env, _SEEN, None)
        return plain(node) if calls is None else calls.hint(node)

    return hint


# ---- Knowledge of earlier captures about the branches of a function.


Arm = tuple[SourceLocation, bool]
"""The place of a branch, and True for the arm taken when its condition holds."""


@dataclass(eq=False, slots=True)
class SettledBranches:
    """divided: branches of which a program has only the arm that its call takes. arms: arms that
    are left out of programs because they cannot be captured."""

    divided: set[SourceLocation] = field(default_factory=set[SourceLocation])
    arms: set[Arm] = field(default_factory=set[Arm])


# ---- Findings of an unfinished attempt of a capture, for a faster next attempt.
#
# Hints affect speed only: without them the same program is found in more attempts. The work of all
# attempts is counted here too, so that each capture ends.


MOST_WORK = 400_000
"""Maximum number of ops that one capture traces, those replaced by later rounds and attempts
included."""
REGION_WORK = 10
"""Number of ops that an arm of a branch, or a round of a loop, counts as."""
MOST_NESTED = 250
"""Maximum nesting depth of branches and loops."""


@dataclass(slots=True, eq=False)
class Hints:
    """Findings passed from one attempt of a capture to the next."""

    recursive: set[CodeType] = field(default_factory=set[CodeType])
    """Functions that were found to call themselves."""
    sized: set[CodeType] = field(default_factory=set[CodeType])
    """Functions that call themselves with tensors of other, data-dependent sizes."""
    varying: set[tuple[CodeType, int | str]] = field(
        default_factory=set[tuple[CodeType, "int | str"]]
    )
    """Arguments of recursive functions that are a different number on each level."""
    is_varying: bool = True
    """True if such arguments are numbers of the Program."""
    says_compiling: bool = True
    """The answer to `torch.compiler.is_compiling()`."""
    was_asked: bool = False
    """True once the function has called `is_compiling()`."""
    data_classes: set[type] = field(default_factory=set[type])
    """Classes whose objects are data of an instance from the start: lists or attributes of data
    hold them."""
    data_containers: set[Hashable] = field(default_factory=set[Hashable])
    """Places of the function that make containers which are data of an instance from the start."""
    data_results: set[CodeType] = field(default_factory=set[CodeType])
    """Recursive functions whose results are data of an instance."""
    resized: set[int] = field(default_factory=set[int])
    """Cells of lists of data to which the function adds items, or removes some."""
    stored: set[str] = field(default_factory=set[str])
    """Attributes of data that the function sets."""
    work: int = 0
    """Work traced in all attempts."""

    def is_compiling(self) -> bool:
        """Answer `torch.compiler.is_compiling()`, and record the question."""
        self.was_asked = True
        return self.says_compiling

    def deny_compiling(self) -> bool:
        """Answer False from the next attempt on. Return True if that makes a difference: eager
        PyTorch does not take the path on which the function raised an exception."""
        makes_difference = self.was_asked and self.says_compiling
        self.says_compiling = False
        return makes_difference

    def size(self) -> int:
        """Return the number of findings: an attempt that does not increase it found nothing new."""
        found = len(self.recursive) + len(self.sized) + len(self.varying)
        return found + (not self.is_varying) + (not self.says_compiling)

"""What earlier calls and unfinished tries of a capture have found out, for the next try."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import sympy
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from stretto.errors import SourceLocation
from stretto.frontends.python.tracing.signals import fail

# ---- What is known of the sizes of other calls while one call is captured.
#
# A condition on sizes that all calls seen so far answer alike becomes a guard. One that they
# answer differently may become a branch of the program (`control/branches.py`). Then each
# arm is traced for the calls that take it: one of them stands for all. An arm in which torch
# decides anything by its sizes cannot be one: a guard would hold for the calls that take the arm
# only.


# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# torch.fx has no complete types


LocatedGuard = tuple[Any, SourceLocation | None]

_MOST_SEEN = 8
"""How many calls are remembered, the latest ones."""
_MOST_BRANCHES = 16
"""How many branches on sizes a program has at most: each one may double what has to be traced."""


@dataclass(slots=True, eq=False)
class SeenSizes:
    """The sizes of the calls of a family, by where they are read, and the conditions on sizes that
    have to be guards, with the reason, by the line that asks."""

    calls: list[Mapping[Any, int]] = field(default_factory=list[Mapping[Any, int]])
    guards: dict[SourceLocation, str] = field(default_factory=dict[SourceLocation, str])
    branches: set[SourceLocation] = field(default_factory=set[SourceLocation])
    """Those that the last capture has made branches of the program."""

    def add(self, call: Mapping[Any, int]) -> None:
        """Remembers a call; the last one is the one that is captured."""
        if call in self.calls:
            self.calls.remove(call)
        self.calls.append(call)
        del self.calls[:-_MOST_SEEN]

    def keep_guards(self, reason: str, places: Iterable[SourceLocation] = ()) -> bool:
        """Lets these lines ask for guards from now on, or else all that are branches. Returns
        whether there are any, so that another capture may succeed."""
        found = set(places) - self.guards.keys() or set(self.branches)
        self.guards |= dict.fromkeys(found, reason)
        self.branches -= found
        return bool(found)


class SeenCalls:
    """The calls that the program of one capture may be for. Call 0 is the one that is captured."""

    def __init__(self, env: ShapeEnv, seen: SeenSizes, calls: Sequence[Mapping[int, int]]) -> None:
        """calls: for each, the sizes by the number of their symbol."""
        self.env, self.seen = env, seen
        self.calls = calls
        self.symbols: dict[int, Any] = {}
        self.left = set(range(len(calls)))
        """Those that all guards so far allow."""
        self.here = frozenset(self.left)
        """Those that take the arm which is traced now."""
        self.path: Any = sympy.true
        """What sizes have to be like for that arm."""
        self.stands = 0
        """The call whose sizes torch decides by."""
        self.has_moved = False
        self.is_trial = self.was_asked = False
        self.branches: list[LocatedGuard] = []
        self.open: list[SourceLocation] = []
        self.blamed: SourceLocation | None = None
        self._values: dict[int, dict[Any, Any]] = {}
        seen.branches.clear()

    @property
    def is_outside(self) -> bool:
        """True outside of all arms of branches on sizes."""
        return self.path is sympy.true and not self.is_trial

    def enter(self, number: int, expression: Any) -> None:
        """A symbol has been made."""
        self.symbols[number] = expression
        self._values.clear()

    def answer(self, call: int, expression: Any) -> Any:
        """What the expression is in a call; None where it is not known, as of a size that data
        decide."""
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
        """Notes that a condition is a branch of the program."""
        self.seen.branches.add(place)
        self.branches.append((condition, place))

    def divides(self, condition: Any) -> bool:
        """Whether the calls that come here answer a condition differently."""
        if len(self.calls) < 2:
            return False
        answers = {self.answer(call, condition) for call in self.here & self.left}
        return {sympy.true, sympy.false} <= answers

    def why_guard(self, place: SourceLocation) -> str | None:
        """Why a condition at this line has to be a guard; None where it may be a branch."""
        if place in self.open:
            return "each of its arms comes to it again, and there would be ever more of them"
        if len(self.seen.branches) >= _MOST_BRANCHES and place not in self.seen.branches:
            return f"there are {_MOST_BRANCHES} branches on sizes already"
        return self.seen.guards.get(place)

    @contextmanager
    def branching(self, place: SourceLocation) -> Generator[None]:
        """Around both arms of a branch. An error that leaves them is the fault of the innermost
        one."""
        self.open.append(place)
        try:
            yield
        except BaseException:
            self.blamed = self.blamed or place
            raise
        finally:
            self.open.pop()

    def keep_guards(self, reason: str) -> bool:
        """After a capture that failed: what of it are guards in the next one."""
        return self.seen.keep_guards(reason, () if self.blamed is None else (self.blamed,))

    @contextmanager
    def under(self, condition: Any) -> Generator[bool]:
        """What is traced inside runs only for sizes of which `condition` holds. Gives whether such
        a call was seen."""
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
        """Lets torch decide by the sizes of another call."""
        if call != self.stands:
            self.stands, self.has_moved = call, True
            for number, symbol in self.symbols.items():
                self.env.backed_var_to_val[symbol] = sympy.Integer(self.calls[call][number])
            self.env._version_counter += 1
        forget_answers()

    def learn(self, guard: Any) -> None:
        """Notes which calls a guard excludes."""
        excluded = {call for call in self.left if self.answer(call, guard) is sympy.false}
        self.left -= excluded

    def ask(self, guard: Any) -> bool:
        """Takes a guard that is asked for. Returns False outside of all arms, where it is one of
        the program. In an arm nothing may be asked but what the arm is about: a guard would hold
        for some calls only, and torch would rely on what it does not learn."""
        if self.path is sympy.true:
            self.learn(guard)
            return False
        is_known = guard in sympy.And.make_args(self.path) and not isinstance(guard, sympy.Eq)
        if self.is_trial:
            self.was_asked |= not is_known
        elif not is_known:
            fail(
                f"in an arm of a branch on sizes it matters whether {guard}",
                "decide it outside of the branch",
            )
        return True

    @contextmanager
    def trial(self) -> Generator[Callable[[], bool]]:
        """Around what is traced to see whether it asks anything of sizes."""
        before = self.is_trial, self.was_asked
        self.is_trial, self.was_asked = True, False
        try:
            yield lambda: self.was_asked
        finally:
            self.is_trial, self.was_asked = before

    def hint(self, node: Any) -> Any:
        """The value of a size in the call that torch decides by."""
        known = node._hint
        if known is None or not self.has_moved:
            return known
        found = self.answer(self.stands, node.expr)
        return known if found is None else node.pytype(found)


def forget_answers() -> None:
    """torch remembers what it answered, with or without a guard."""
    asked: Any = getattr(ShapeEnv, "_inner_evaluate_expr", ShapeEnv.evaluate_expr)
    asked.cache_clear()


_SEEN = "stretto_seen"


@contextmanager
def standing_in(calls: SeenCalls) -> Generator[None]:
    """Lets sizes have the values of the call that stands for the others."""
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
    """The `hint` of a node; that of another capture's is as torch has it."""

    def hint(node: Any) -> Any:
        calls: SeenCalls | None = getattr(node.shape_env, _SEEN, None)
        return plain(node) if calls is None else calls.hint(node)

    return hint


# ---- What captures of a function have found out about its branches.


Arm = tuple[SourceLocation, bool]
"""The place of a branch, and whether the arm is the one for conditions that hold."""


@dataclass(eq=False, slots=True)
class Settling:
    """divided: branches of which a program has the arm that its call takes. arms: those that are
    left out of programs where they cannot be captured."""

    divided: set[SourceLocation] = field(default_factory=set[SourceLocation])
    arms: set[Arm] = field(default_factory=set[Arm])


# ---- What an unfinished try of a capture has found, by which the next try comes further at once.
#
# Nothing is decided by a hint: without it the same program is found in more rounds. What all tries
# have traced is counted here as well, so that each capture ends.


_MOST_RESTARTS = 4

MOST_WORK = 400_000
"""Ops that one capture traces at most, those included that later rounds and tries replace."""
REGION_WORK = 10
"""Ops that count as much as an arm of a branch, or a round of a loop."""
MOST_NESTED = 250
"""Branches and loops inside of each other at most."""


@dataclass(slots=True, eq=False)
class Hints:
    """Kept from one try of a capture to the next."""

    recursive: set[CodeType] = field(default_factory=set[CodeType])
    """Functions that were found to call themselves."""
    splits: set[Hashable] = field(default_factory=set[Hashable])
    """Loops with variables that hold another kind of thing after a round."""
    sized: set[CodeType] = field(default_factory=set[CodeType])
    """Those that call themselves with tensors of other sizes, which data decide."""
    varying: set[tuple[CodeType, int | str]] = field(
        default_factory=set[tuple[CodeType, "int | str"]]
    )
    """Their arguments that are another number on each level."""
    is_varying: bool = True
    """Whether such arguments are numbers of the Program."""
    says_compiling: bool = True
    """The answer to `torch.compiler.is_compiling()`."""
    was_asked: bool = False
    """True once the function has asked that."""
    work: int = 0
    """How much has been traced in all tries."""
    restarts: int = 0
    """How many tries have ended as soon as it was known that they would."""

    def may_restart(self) -> bool:
        """Whether a try may end before all of the function has been traced. What it would have
        found in the rest is found by the next one, so there must not be many such ends."""
        return self.restarts < _MOST_RESTARTS

    def is_compiling(self) -> bool:
        """Answers a function that asks whether it is compiled."""
        self.was_asked = True
        return self.says_compiling

    def deny_compiling(self) -> bool:
        """Answers otherwise from the next try on. Returns whether that makes a difference: eager
        PyTorch does not take the way on which the function has raised an exception."""
        makes_difference = self.was_asked and self.says_compiling
        self.says_compiling = False
        return makes_difference

    def size(self) -> int:
        found = len(self.recursive) + len(self.sized) + len(self.varying)
        return found + self.restarts + (not self.is_varying) + (not self.says_compiling)

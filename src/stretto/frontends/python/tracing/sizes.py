"""Sizes that are known at the call: symbols while a function is captured, formulas in its Program.

A dim of an input that shall be symbolic is a `torch.SymInt` in the user's code, which torch's
ShapeEnv backs: it has the size of the capture's own inputs as its hint. What Python or torch
decides by the hint becomes a guard. Where a guard says that two symbols are equal, or that one is a
number, the function is captured again with fewer symbols (`merged`), so that no type has the old
one.
"""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# torch.fx has no complete types

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sympy
import torch
from torch.fx.experimental import _config
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter

from stretto.errors import SourceLocation, VerifyError
from stretto.frontends.python.tracing.fakes import Results
from stretto.frontends.python.tracing.history import (
    LocatedGuard,
    SeenCalls,
    SeenSizes,
    forget_answers,
    standing_in,
)
from stretto.frontends.python.tracing.locations import user_location
from stretto.ir.size_bounds import bounds, substitute_symbols
from stretto.ir.sizes import USUAL, Size, Symbol
from stretto.ir.types import Dim
from stretto.ops.symints import SizeEnv, backed_symint, from_sympy, to_symint

torch_config: Any = _config
_MOST_EXCLUDED = 1000
"""So many sizes are tried, from the smallest on, to find the first that the guards allow."""
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True, order=True)
class SizeSource:
    """Where a size is read at a call: dim `dim` of tensor `number` among the arguments, or, without
    a dim, int `number` among them. held: among the tensors that objects hold instead."""

    number: int
    dim: int | None = None
    held: bool = False

    @property
    def of_int(self) -> bool:
        return self.dim is None


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Which sizes a program is for, both ends included."""

    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class FixedSize:
    """What a size has to be, and the line of the user's code that needs it so."""

    value: int
    location: SourceLocation | None


@dataclass(frozen=True, slots=True)
class SizePlan:
    """Which sizes of the arguments are symbols. Several sources with one symbol have one size.

    symbols: by source, the number of its symbol. ranges: of the symbols, by number. fixed: sources
    that would have been symbols, if a guard did not say which number they are. seen: the sizes of
    other calls, by which conditions become branches.
    """

    symbols: Mapping[SizeSource, int] = field(default_factory=dict[SizeSource, int])
    ranges: Mapping[int, SizeRange] = field(default_factory=dict[int, SizeRange])
    fixed: Mapping[SizeSource, FixedSize] = field(default_factory=dict["SizeSource", "FixedSize"])
    seen: SeenSizes = field(default_factory=SeenSizes, compare=False)

    @staticmethod
    def of(
        sources: Mapping[SizeSource, SizeRange],
        alike: Mapping[SizeSource, SizeSource] | None = None,
        seen: SeenSizes | None = None,
    ) -> SizePlan:
        """Each source with a symbol of its own, or with that of one that it is alike."""
        same = alike or {}
        own = [source for source in sources if same.get(source, source) == source]
        numbers = {source: number for number, source in enumerate(own)}
        symbols = {source: numbers[same.get(source, source)] for source in sources}
        ranges = {numbers[source]: sources[source] for source in own}
        return SizePlan(symbols, ranges, seen=seen or SeenSizes())

    def calls(self) -> list[dict[int, int]]:
        """The sizes of the call that is captured, and of each other one that the program may be
        for, by the numbers of their symbols."""
        found = list[dict[int, int]]()
        here = self.seen.calls[-1] if self.seen.calls else {}
        for call in reversed(self.seen.calls):
            sizes = dict[int, int]()
            fits = all(sizes.setdefault(n, call[s]) == call[s] for s, n in self.symbols.items())
            fits = fits and all(
                call[s] == size for s, size in here.items() if s not in self.symbols
            )
            if fits and all(map(self._allows, sizes, sizes.values())):
                found.append(sizes)
        return found

    def _allows(self, number: int, size: int) -> bool:
        limits = self.ranges[number]
        return limits.low <= size and (limits.high is None or size <= limits.high)


@dataclass(frozen=True, slots=True)
class SizeCondition:
    """What must hold between the sizes of a call, as a Python expression over their symbols; the
    line of the user's code that asked."""

    text: str
    location: SourceLocation | None


@dataclass(frozen=True, slots=True)
class CallSizes:
    """The sizes that a program takes.

    shapes: of the tensors among the arguments, in order. ints: those among the arguments that are
    symbols, by number. Every symbol is one of these dims by itself. fixed: what could not be one.
    held: the shapes of the tensors that objects hold, in the order of the reading. branches: the
    conditions by which branches of the program decide.
    """

    shapes: tuple[tuple[Dim, ...], ...]
    ints: Mapping[int, Dim]
    symbols: tuple[Symbol, ...]
    conditions: tuple[SizeCondition, ...]
    fixed: Mapping[SizeSource, FixedSize]
    held: tuple[tuple[Dim, ...], ...] = ()
    branches: tuple[SizeCondition, ...] = ()


class _LocatedGuards(list[Any]):
    """The guards of a ShapeEnv, with the user's line where each came up.

    small: where guards go that only sizes of 0 and 1 can break, instead of being guards; None where
    they are like others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.locations: list[SourceLocation | None] = []
        self.small: list[LocatedGuard] | None = None
        self.is_apart = False

    def append(self, guard: Any) -> None:
        if not self.is_apart:
            self.locations.append(user_location())
            super().append(guard)

    def watch(self, env: Any, calls: SeenCalls) -> None:
        """Sees each guard before the ShapeEnv learns anything from it. Nothing is learned from one
        that is asked for in an arm of a branch on sizes."""
        log, relate, imply = env._log_guard, env._maybe_guard_rel, env.get_implications

        def logged(prefix: str, guard: Any, forcing_spec: bool) -> None:
            is_guard = prefix == "eval"
            self.is_apart = self.small is not None and is_guard and _needs_small(guard)
            if self.is_apart and self.small is not None:
                self.small.append((guard, user_location()))
                return
            self.is_apart = is_guard and calls.ask(guard)
            if not self.is_apart:
                log(prefix, guard, forcing_spec=forcing_spec)

        def related(guard: Any) -> None:
            if not self.is_apart:
                relate(guard)

        def implied(guard: Any) -> Any:
            if self.is_apart:  # it is the last thing that is done with a guard
                self.is_apart = False
                return ()
            return imply(guard)

        env._log_guard, env._maybe_guard_rel, env.get_implications = logged, related, implied


class Sizes:
    """The symbolic sizes of one capture."""

    def __init__(self, plan: SizePlan | None = None) -> None:
        self.plan = plan or SizePlan()
        self.env = SizeEnv(specialize_zero_one=not self.plan.symbols, duck_shape=False)
        self.guards = _LocatedGuards()
        self.env.guards = self.guards
        self.symints: dict[int, torch.SymInt] = {}
        self.known: dict[Any, Symbol] = {}
        self.values: dict[Symbol, torch.SymInt] = {}
        self.of_views: list[LocatedGuard] = []
        self.of_small: list[LocatedGuard] = []
        self.results: Results = {}
        self.calls = SeenCalls(self.env, self.plan.seen, self.plan.calls())
        self.guards.watch(self.env, self.calls)

    @property
    def are_symbolic(self) -> bool:
        return bool(self.plan.symbols)

    def facts(self) -> Any:
        """A key of all that torch knows of symbolic sizes, by which it infers shapes; None in an
        arm of a branch on sizes, where each guard is looked at."""
        if not self.are_symbolic or not self.calls.is_outside:
            return None
        return self.env._version_counter, len(self.guards)

    @contextmanager
    def inferring(self) -> Generator[None]:
        """Lets torch infer shapes for all sizes alike, as far as it can."""
        if not self.are_symbolic:
            yield
            return
        with (
            torch_config.patch(backed_size_oblivious=True),
            _numbers_for_users(),
            standing_in(self.calls),
        ):
            yield

    @contextmanager
    def deciding(self) -> Generator[None]:
        """Lets torch ask for what the shapes at hand are like, where formulas would be long."""
        if not self.are_symbolic:
            yield
            return
        with torch_config.patch(backed_size_oblivious=False):
            yield

    @contextmanager
    def without_small(self, *, is_view: bool = False) -> Generator[None]:
        """Takes what is asked meanwhile that only sizes of 0 and 1 answer otherwise for settled:
        shapes do not depend on it, as the verifier makes sure. is_view: whether a result is a view
        does; so a program that changes tensors is for the sizes that answer alike."""
        before, known = self.guards.small, len(self.of_small)
        self.guards.small = self.of_views if is_view else self.of_small
        try:
            yield
        finally:
            self.guards.small = before
            if len(self.of_small) + len(self.of_views) > known:
                forget_answers()

    def size(self, source: SizeSource, value: int) -> int | torch.SymInt:
        """What the user's code sees in the place of `value`."""
        number = self.plan.symbols.get(source)
        if number is None:
            return value
        if number not in self.symints:
            self.symints[number] = self._symint(number, value)
        return self.symints[number]

    def _symint(self, number: int, value: int) -> torch.SymInt:
        limits = self.plan.ranges[number]
        made = backed_symint(self.env, f"size{number}", value, limits.low, limits.high)
        symbol = Symbol(f"s{number}", limits.low, limits.high)
        self.known[made.node.expr] = symbol
        self.values[symbol] = made
        self.calls.enter(number, made.node.expr)
        return made

    def dim(self, expression: Any) -> Dim | None:
        """The size that an expression of sympy says; None for what sizes have no form for."""
        if not expression.free_symbols <= self.known.keys():
            return None
        try:
            return from_sympy(expression, self.known)
        except VerifyError:
            return None

    def least(self, size: Dim) -> int | None:
        """The least that a size is, by what the guards so far say of its symbols."""
        ranges = {symbol: self.env.var_to_range[item] for item, symbol in self.known.items()}
        narrowed = {
            symbol: Size.of(replace(symbol, low=max(symbol.low, int(limits.lower))))
            for symbol, limits in ranges.items()
        }
        return bounds(substitute_symbols(Size.of(size), narrowed))[0]

    def settle_ints(self, size: torch.SymInt) -> bool:
        """Settles the ints among the arguments that a size is computed from; whether there are
        any: sizes have no form for a division by one that may be 0."""
        numbers = {source.number for source in self.plan.symbols if source.of_int}
        ints = [self.symints[self.plan.symbols[SizeSource(number)]] for number in sorted(numbers)]
        found = [item for item in ints if item.node.expr in size.node.expr.free_symbols]
        for item in found:
            int(item)
        return bool(found)

    def symint(self, dim: Dim) -> int | torch.SymInt:
        """A size as shapes of fake tensors have it."""
        return to_symint(dim, self.values)

    def merged(self) -> SizePlan | None:
        """A plan with fewer symbols, where guards say that some are equal, or are numbers."""
        numbers = dict(zip(self.known, self.symints, strict=True))
        instead: dict[int, int | FixedSize] = {}
        for expression, number in numbers.items():
            now = self.env.replace(expression)
            if now.is_number:
                instead[number] = FixedSize(int(now), self._settled_at(expression))
            elif now in numbers and now != expression:
                instead[number] = numbers[now]
        instead = self._determined(numbers) | instead
        if not instead:
            return None
        symbols = dict[SizeSource, int]()
        ranges, fixed = dict(self.plan.ranges), dict(self.plan.fixed)
        for source, number in self.plan.symbols.items():
            other = instead.get(number, number)
            if isinstance(other, FixedSize):
                fixed[source] = other
            else:
                symbols[source] = other
                ranges[other] = _common(ranges[other], ranges[number])
        used = set(symbols.values())
        return SizePlan(symbols, {n: ranges[n] for n in used}, fixed, self.plan.seen)

    def _determined(self, numbers: Mapping[Any, int]) -> dict[int, int | FixedSize]:
        """The symbols of which alone an equation is, as `(n - 1) // 2 == 85`, or that have a range
        of one number: few sizes solve it, and types would have the formula in its place."""
        found: dict[int, int | FixedSize] = {}
        for expression, number in numbers.items():
            if self.env.replace(expression) == expression:
                final = self._final(number, expression)
                if final.low == final.high:
                    place = next(
                        (at for guard, at in self._asked() if expression in guard.free_symbols),
                        None,
                    )
                    found[number] = FixedSize(final.low, place)
        for guard, location in self._asked():
            now: Any = self.env.replace(guard)
            if not isinstance(now, sympy.Eq) or len(now.free_symbols) != 1:
                continue
            if any(type(part).__name__ in _REMAINDERS for part in sympy.preorder_traversal(now)):
                continue  # many sizes solve it
            (expression,) = now.free_symbols
            if expression in numbers:
                value = hint(self.values[self.known[expression]])
                found[numbers[expression]] = FixedSize(value, location)
        return found

    def without(self, symbol: Symbol) -> SizePlan:
        """A plan in which one of the final symbols is a number."""
        finals = ((old, Size.of(new).symbol) for old, new in self.final().items())
        (old,) = [old for old, new in finals if new == symbol]
        made = self.values[old]
        number = next(number for number, item in self.symints.items() if item is made)
        left = {s: n for s, n in self.plan.symbols.items() if n != number}
        gone = (source for source, n in self.plan.symbols.items() if n == number)
        fixed = {**self.plan.fixed, **{source: FixedSize(hint(made), None) for source in gone}}
        ranges = {n: self.plan.ranges[n] for n in set(left.values())}
        return SizePlan(left, ranges, fixed, self.plan.seen)

    def _settled_at(self, expression: Any) -> SourceLocation | None:
        """Where an equation came up that has the symbol in it, the last such place."""
        found = None
        for guard, location in self._asked():
            if type(guard).__name__ == "Equality" and expression in guard.free_symbols:
                found = location
        return found

    def final(self) -> dict[Symbol, Dim]:
        """The symbols as the guards leave them: with their ranges, numbered from 0. One that a
        guard defines by others is a formula."""
        kept = [item for item in self.known if self.env.replace(item) == item]
        symbols = {item: self._final(number, item) for number, item in enumerate(kept)}
        return {
            symbol: from_sympy(self.env.replace(item), symbols)
            for item, symbol in self.known.items()
        }

    def renaming(self) -> dict[Size, Dim]:
        """The same for whole sizes."""
        return {Size.of(old): new for old, new in self.final().items()}

    def _final(self, number: int, expression: Any) -> Symbol:
        limits, declared = self.env.var_to_range[expression], self.known[expression]
        high = declared.high if limits.upper in (int_oo, sympy.oo) else int(limits.upper)
        low = max(declared.low, int(limits.lower))
        asked = [part for guard, _ in self._asked() for part in sympy.And.make_args(guard)]
        alone = [guard for guard in asked if guard.free_symbols == {expression}]
        low += any(map(partial(_has_no_zero, expression), asked)) and low == 0
        most = low + _MOST_EXCLUDED
        while low < most and any(_is_false(guard, expression, low) for guard in alone):
            low += 1
        seen = hint(self.values[declared])
        return Symbol(f"s{number}", low, high, seen if seen > USUAL else None)

    def conditions(self, final: Mapping[Symbol, Dim], *, writes: bool) -> tuple[SizeCondition, ...]:
        """The guards, in the final symbols. writes: so it matters what is a view."""
        return self._printed([*self._asked(), *(self.of_views if writes else ())], final)

    def branches(self, final: Mapping[Symbol, Dim]) -> tuple[SizeCondition, ...]:
        """The conditions by which branches of the program decide, in the final symbols."""
        return self._printed(self.calls.branches, final)

    def _printed(
        self, asked: Iterable[LocatedGuard], final: Mapping[Symbol, Dim]
    ) -> tuple[SizeCondition, ...]:
        names = {
            expression: sympy.Symbol(str(final[symbol]), integer=True)
            for expression, symbol in self.known.items()
        }
        found = dict[str, SizeCondition]()
        for guard, location in asked:
            guard = self.env.replace(guard)
            if guard.free_symbols and guard.free_symbols <= names.keys():
                text = _GuardPrinter().doprint(guard.xreplace(names))
                found.setdefault(text, SizeCondition(text, location))
        return tuple(found.values())

    def _asked(self) -> Iterable[LocatedGuard]:
        for guard, location in zip(self.guards, self.guards.locations, strict=True):
            yield guard.expr, location
        for deferred in self.env.deferred_runtime_asserts.values():
            for one in deferred:
                yield one.expr, None


class _GuardPrinter(PythonPrinter):
    """Conditions on numbers, with Python's functions where torch's would take symbols too."""

    def _print_ToFloat(self, expr: Any) -> str:
        return f"float({self._print(expr.args[0])})"

    def _print_FloatPow(self, expr: Any) -> str:
        return f"math.pow({', '.join(map(self._print, expr.args))})"

    def _helper_sqrt(self, expr: Any) -> str:
        return f"math.sqrt({self._print(expr)})"


def _is_false(guard: Any, expression: Any, size: int) -> bool:
    """Whether a size is not one of this program: also where a guard divides by it and it is 0."""
    try:
        return guard.xreplace({expression: sympy.Integer(size)}) is sympy.false
    except ZeroDivisionError:
        return True


def _has_no_zero(expression: Any, guard: Any) -> bool:
    """Whether a guard says that a product is not 0 of which a symbol is a factor."""
    if not isinstance(guard, sympy.Ne):
        return False
    left: Any = guard.args[0]
    return guard.args[1] == 0 and left.is_Mul and expression in left.args


def _needs_small(guard: Any) -> bool:
    """Whether only sizes of 0 or 1 can break a guard."""
    if not isinstance(guard, sympy.Ne):
        return False
    large = {symbol: sympy.Dummy(integer=True, positive=True) + 1 for symbol in guard.free_symbols}
    left: Any
    right: Any
    left, right = (side.xreplace(large) for side in guard.args)
    difference: Any = sympy.expand(left - right)
    return bool(difference.is_positive or difference.is_negative)


_REMAINDERS = ("Mod", "PythonMod")


def _common(one: SizeRange, other: SizeRange) -> SizeRange:
    highs = [limits.high for limits in (one, other) if limits.high is not None]
    return SizeRange(max(one.low, other.low), min(highs, default=None))


@contextmanager
def _numbers_for_users() -> Generator[None]:
    """Where only a number serves, a size is one: torch refuses to hash a size, shows its symbol as
    text, and takes the remainder of floats for an integer. It is that number from then on."""
    before = [(kind, name, vars(kind).get(name)) for kind, name, _ in _AS_NUMBERS]
    try:
        for kind, name, method in _AS_NUMBERS:
            setattr(kind, name, method)
        yield
    finally:
        for kind, name, method in before:
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _shown(plain: type, name: str) -> Any:
    """A method that makes text. What torch itself prints settles nothing."""

    def method(self: Any, *args: Any) -> str:
        if sys._getframe(1).f_code.co_filename.startswith(_TORCH):
            return str(self.node)
        return getattr(plain(self), name)(*args)

    return method


_KINDS: tuple[tuple[Any, type], ...] = (
    (torch.SymInt, int),
    (torch.SymFloat, float),
    (torch.SymBool, bool),
)
_QUOTIENTS: dict[str, Any] = {
    "__truediv__": None,
    "__floordiv__": float.__floordiv__,
    "__mod__": float.__mod__,
}
"""By the names of divisions of sizes: what has to be computed of the numbers where one is a float,
because torch takes the results for integers."""


def _compared(compare: Any) -> Any:
    """To torch no integer equals a bool."""
    return lambda self, other: compare(self, int(other) if isinstance(other, bool) else other)


def _divided(kind: Any, name: str, is_swapped: bool) -> Any:
    """A division, which the user's code cannot do by a size of 0."""
    of_sizes, of_floats = getattr(kind, _swapped(name) if is_swapped else name), _QUOTIENTS[name]

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float | torch.SymInt | torch.SymFloat):
            return NotImplemented
        one, by = (other, self) if is_swapped else (self, other)
        is_known = isinstance(by, int | float) or by.node.has_hint()
        is_of_user = not sys._getframe(1).f_code.co_filename.startswith(_TORCH)
        if is_of_user and is_known and by == 0:
            raise ZeroDivisionError("division by zero")
        if of_floats and any(isinstance(item, float | torch.SymFloat) for item in (one, by)):
            return of_floats(float(one), float(by))
        return of_sizes(self, other)

    return method


def _swapped(name: str) -> str:
    return f"__r{name[2:]}"


def _of_number(plain: type, name: str) -> Any:
    """A method that torch's sizes lack."""

    def method(self: Any, *others: Any) -> Any:
        numbers = (int(x) if isinstance(x, torch.SymInt) else x for x in others)
        return getattr(plain, name)(plain(self), *numbers)

    return method


def _array(plain: type) -> Any:
    return lambda self, dtype=None, copy=None: np.array(plain(self), dtype)


_OPERATIONS = (
    "__invert__", "__pos__", "__abs__", "__and__", "__rand__", "__or__", "__ror__", "__xor__",
    "__rxor__", "__lshift__", "__rlshift__", "__rshift__", "__rrshift__", "__divmod__",
    "__rdivmod__", "__round__", "__trunc__", "__floor__", "__ceil__", "__int__", "__float__",
)  # fmt: skip
_AS_NUMBERS: tuple[tuple[Any, str, Any], ...] = (
    (torch.SymInt, "__hash__", lambda self: hash(int(self))),
    *(
        (torch.SymInt, name, _compared(getattr(torch.SymInt, name)))
        for name in ("__eq__", "__ne__")
    ),
    *(
        (kind, _swapped(name) if is_swapped else name, _divided(kind, name, is_swapped))
        for kind in (torch.SymInt, torch.SymFloat)
        for name in _QUOTIENTS
        for is_swapped in (False, True)
    ),
    *((kind, "__array__", _array(plain)) for kind, plain in _KINDS),
    *(
        (kind, name, _of_number(plain, name))
        for kind, plain in _KINDS[:2]
        for name in _OPERATIONS
        if hasattr(plain, name) and not hasattr(kind, name)
    ),
    *(
        (kind, name, _shown(plain, name))
        for kind, plain in _KINDS
        for name in ("__repr__", "__str__", "__format__")
    ),
)


def hint(size: int | torch.SymInt) -> int:
    """The size in this capture, without a guard; 2 for one that only a run knows."""
    if isinstance(size, int):
        return size
    found = size.node.hint if size.node.has_hint() else None
    return 2 if found is None else int(found)

"""Sizes known at the call: symbols while a function is captured, formulas in its Program.

An input dim that is to be symbolic is a `torch.SymInt` in the user's code, backed by torch's
ShapeEnv with the size in the captured call as its hint. Whatever Python or torch decides by the
hint becomes a guard. If a guard makes two symbols equal, or makes one a number, the function is
captured again with fewer symbols (`merged`), so that no type contains the old one.
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
from threading import get_ident
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
from stretto.ops.symints import SizeEnv, backed_symint, from_sympy

torch_config: Any = _config
_MOST_EXCLUDED = 1000
"""Number of sizes tried, from the smallest on, to find the first one that the guards allow."""
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True, order=True)
class SizeSource:
    """The place where a size is read at a call: dim `dim` of tensor `number` among the arguments,
    or, without a dim, int `number` among them. held: True if it counts the tensors that objects
    hold instead."""

    number: int
    dim: int | None = None
    held: bool = False

    @property
    def of_int(self) -> bool:
        return self.dim is None


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The sizes that a program accepts, both ends included."""

    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class FixedSize:
    """The required value of a size, and the line of the user's code that requires it."""

    value: int
    location: SourceLocation | None


@dataclass(frozen=True, slots=True)
class SizePlan:
    """The argument sizes that are symbols. Sources that share a symbol have the same size.

    symbols: the number of the symbol, by source. ranges: the range of each symbol, by number.
    fixed: sources that would be symbols if a guard did not make them a number. seen: the sizes
    of other calls, which turn conditions into branches.
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
        """Return a plan that gives each source its own symbol, or that of the source it is
        `alike`."""
        same = alike or {}
        own = [source for source in sources if same.get(source, source) == source]
        numbers = {source: number for number, source in enumerate(own)}
        symbols = {source: numbers[same.get(source, source)] for source in sources}
        ranges = {numbers[source]: sources[source] for source in own}
        return SizePlan(symbols, ranges, seen=seen or SeenSizes())

    def calls(self) -> list[dict[int, int]]:
        """Return the sizes, by symbol number, of the captured call and of each other call that the
        program may serve."""
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
    """A condition on the sizes of a call, as a Python expression over their symbols, and the line
    of the user's code that tested it."""

    text: str
    location: SourceLocation | None


@dataclass(frozen=True, slots=True)
class CallSizes:
    """The sizes that a program accepts.

    shapes: of the tensors among the arguments, in order. ints: the int arguments that are
    symbols, by number. Every symbol is by itself one of these dims. fixed: sources that could
    not be symbols. held: the shapes of the tensors that objects hold, in reading order.
    branches: the conditions of the program's branches on sizes.
    """

    shapes: tuple[tuple[Dim, ...], ...]
    ints: Mapping[int, Dim]
    symbols: tuple[Symbol, ...]
    conditions: tuple[SizeCondition, ...]
    fixed: Mapping[SizeSource, FixedSize]
    held: tuple[tuple[Dim, ...], ...] = ()
    branches: tuple[SizeCondition, ...] = ()


class _LocatedGuards(list[Any]):
    """The guards of a ShapeEnv, with the user's line that caused each.

    small: collects guards that only sizes of 0 and 1 can break, instead of making them guards;
    None if they are ordinary guards.
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
        """Intercept each guard before the ShapeEnv learns from it. It learns nothing from a guard
        asked for in an arm of a branch on sizes."""
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
            if self.is_apart:  # ShapeEnv calls this last for a guard
                self.is_apart = False
                return ()
            return imply(guard)

        env._log_guard, env._maybe_guard_rel, env.get_implications = logged, related, implied


class CaptureSizes:
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
        """Return a key of everything torch knows about symbolic sizes, from which it infers
        shapes; None in an arm of a branch on sizes, where each guard has to be seen."""
        if not self.are_symbolic or not self.calls.is_outside:
            return None
        return self.env._version_counter, len(self.guards)

    @contextmanager
    def inferring(self) -> Generator[None]:
        """Let torch infer shapes that hold for all sizes, as far as it can."""
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
        """Let torch decide by the sizes of this call, where formulas would be long."""
        if not self.are_symbolic:
            yield
            return
        with torch_config.patch(backed_size_oblivious=False):
            yield

    @contextmanager
    def without_small(self, *, is_view: bool = False) -> Generator[None]:
        """Ignore guards that only sizes of 0 and 1 can break: shapes do not depend on them, as the
        verifier checks. is_view: they decide if a result is a view, so a program that changes
        tensors requires them."""
        before, known = self.guards.small, len(self.of_small)
        self.guards.small = self.of_views if is_view else self.of_small
        try:
            yield
        finally:
            self.guards.small = before
            if len(self.of_small) + len(self.of_views) > known:
                forget_answers()

    def size(self, source: SizeSource, value: int) -> int | torch.SymInt:
        """Return the size that the user's code sees instead of `value`: its SymInt if the source
        is a symbol."""
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
        """Return a sympy expression as a size; None if sizes cannot express it."""
        if not expression.free_symbols <= self.known.keys():
            return None
        try:
            return from_sympy(expression, self.known)
        except VerifyError:
            return None

    def least(self, size: Dim) -> int | None:
        """Return the lower bound of a size under the guards so far; None if there is none."""
        ranges = {symbol: self.env.var_to_range[item] for item, symbol in self.known.items()}
        narrowed = {
            symbol: Size.of(replace(symbol, low=max(symbol.low, int(limits.lower))))
            for symbol, limits in ranges.items()
        }
        return bounds(substitute_symbols(Size.of(size), narrowed))[0]

    def settle_ints(self, size: torch.SymInt) -> bool:
        """Settle the int arguments that a size is computed from, and return True if there are any:
        sizes cannot express a division by an int that may be 0."""
        numbers = {source.number for source in self.plan.symbols if source.of_int}
        ints = [self.symints[self.plan.symbols[SizeSource(number)]] for number in sorted(numbers)]
        found = [item for item in ints if item.node.expr in size.node.expr.free_symbols]
        for item in found:
            int(item)
        return bool(found)

    def merged(self) -> SizePlan | None:
        """Return a plan with fewer symbols if guards make some equal or numbers; else None."""
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
        """Return the symbols that occur alone in an equation, as in `(n - 1) // 2 == 85`, or whose
        range is one number: few sizes solve it, and types would contain the formula instead of
        the number."""
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
                continue  # many sizes solve an equation of remainders
            (expression,) = now.free_symbols
            if expression in numbers:
                value = hint(self.values[self.known[expression]])
                found[numbers[expression]] = FixedSize(value, location)
        return found

    def without(self, symbol: Symbol) -> SizePlan:
        """Return a plan in which one of the final symbols is a number."""
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
        """Return the last user line that caused an equation containing the symbol."""
        found = None
        for guard, location in self._asked():
            if type(guard).__name__ == "Equality" and expression in guard.free_symbols:
                found = location
        return found

    def final(self) -> dict[Symbol, Dim]:
        """Map each symbol to its final form under the guards: a symbol with its narrowed range,
        numbered from 0, or a formula if a guard defines it by others."""
        kept = [item for item in self.known if self.env.replace(item) == item]
        symbols = {item: self._final(number, item) for number, item in enumerate(kept)}
        return {
            symbol: from_sympy(self.env.replace(item), symbols)
            for item, symbol in self.known.items()
        }

    def renaming(self) -> dict[Size, Dim]:
        """Return `final` as a map of whole sizes."""
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
        """Return the guards over the final symbols. writes: True if the program changes tensors,
        so that guards that decide what is a view are included."""
        return self._printed([*self._asked(), *(self.of_views if writes else ())], final)

    def branches(self, final: Mapping[Symbol, Dim]) -> tuple[SizeCondition, ...]:
        """Return the conditions of the program's branches, over the final symbols."""
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
    """Prints conditions on numbers, with Python's functions instead of torch's symbolic ones."""

    def _print_ToFloat(self, expr: Any) -> str:
        return f"float({self._print(expr.args[0])})"

    def _print_FloatPow(self, expr: Any) -> str:
        return f"math.pow({', '.join(map(self._print, expr.args))})"

    def _helper_sqrt(self, expr: Any) -> str:
        return f"math.sqrt({self._print(expr)})"


def _is_false(guard: Any, expression: Any, size: int) -> bool:
    """True if a guard excludes a size, or has no value for it: it divides by 0, or has a negative
    exponent."""
    try:
        return guard.xreplace({expression: sympy.Integer(size)}) is sympy.false
    except (ArithmeticError, ValueError):
        return True


def _has_no_zero(expression: Any, guard: Any) -> bool:
    """True if a guard requires a product to be nonzero of which the symbol is a factor."""
    if not isinstance(guard, sympy.Ne):
        return False
    left: Any = guard.args[0]
    return guard.args[1] == 0 and left.is_Mul and expression in left.args


def _needs_small(guard: Any) -> bool:
    """True if only sizes of 0 or 1 can break a guard."""
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
    """Let SymInts act as plain numbers where only a number works: torch refuses to hash a size,
    prints its symbol as text, and treats remainders of floats as integers. The size is settled
    as that number from then on. Sizes of other threads stay as they are."""
    before = [(kind, name, vars(kind).get(name)) for kind, name, _ in _AS_NUMBERS]
    thread = get_ident()
    try:
        for kind, name, method in _AS_NUMBERS:
            setattr(kind, name, _in_thread(thread, method, getattr(kind, name, None)))
        yield
    finally:
        for kind, name, method in before:
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _in_thread(thread: int, method: Any, usual: Any) -> Any:
    """Return `method` for one thread and torch's `usual` method, which may be None, for others."""

    def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        if get_ident() == thread:
            return method(self, *args, **kwargs)
        return NotImplemented if usual is None else usual(self, *args, **kwargs)

    return chosen


def _shown(plain: type, name: str) -> Any:
    """Return a method that converts to text. Text that torch itself prints settles nothing."""

    def method(self: Any, *args: Any) -> str:
        if sys._getframe(2).f_code.co_filename.startswith(_TORCH):
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
"""Divisions of sizes, by name, with the float operation to use if an operand is a float, since
torch treats the results as integers."""


def _compared(compare: Any) -> Any:
    """Return a comparison that converts bools to ints, since torch treats no integer as equal to a
    bool."""
    return lambda self, other: compare(self, int(other) if isinstance(other, bool) else other)


def _divided(kind: Any, name: str, is_swapped: bool) -> Any:
    """Return a division that raises ZeroDivisionError in user code for a size of 0."""
    of_sizes, of_floats = getattr(kind, _swapped(name) if is_swapped else name), _QUOTIENTS[name]

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float | torch.SymInt | torch.SymFloat):
            return NotImplemented
        one, by = (other, self) if is_swapped else (self, other)
        is_known = isinstance(by, int | float) or by.node.has_hint()
        is_of_user = not sys._getframe(2).f_code.co_filename.startswith(_TORCH)
        if is_of_user and is_known and by == 0:
            raise ZeroDivisionError("division by zero")
        if of_floats and any(isinstance(item, float | torch.SymFloat) for item in (one, by)):
            return of_floats(float(one), float(by))
        return of_sizes(self, other)

    return method


def _swapped(name: str) -> str:
    return f"__r{name[2:]}"


def _of_number(plain: type, name: str) -> Any:
    """Return a method of numbers that torch's sizes lack."""

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
    """Return the size in this capture without adding a guard; 2 for a size known only at
    run time."""
    if isinstance(size, int):
        return size
    found = size.node.hint if size.node.has_hint() else None
    return 2 if found is None else int(found)

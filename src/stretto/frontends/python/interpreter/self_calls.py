"""Calls of functions that may call themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.forms import is_tensor, list_kind
from stretto.frontends.python.interpreter.heap import ITEMS, HeapObject, Ref
from stretto.frontends.python.interpreter.summaries import (
    FunctionSummary,
    ReadContent,
    containers_in,
)
from stretto.frontends.python.source.syntax_trees import names_read
from stretto.frontends.python.tracing.signals import (
    RecursionFound,
    Replan,
    UnknownResult,
    about_definition,
    fail,
)
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either, first_either
from stretto.frontends.python.values.leaves import kind_of
from stretto.frontends.python.values.scalars import LeafKind, decided_rows, python_dtype
from stretto.frontends.python.values.texts import is_text, pieces_of, values_of
from stretto.ir.symbols import dims_of

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.regions import Regions

_ATTEMPTS = 20
_MOST_LEVELS = 500
"""The largest number of levels of recursion on Python values."""
_MOST_BRANCHED_LEVELS = 100
"""The same if every level is inside another branch, so that there might be no end."""
_MOST_EXPANSIONS = 256
"""The largest number of such calls of one function, over all levels."""
_VARYING = 12
"""Number of such calls after which the numbers that differ become numbers of the Program."""
_MOST_SIZES = 4
"""The largest number of levels if tensors on each differ in several sizes that data decide."""
_PLAIN = (int, float, str, type(None))
_MOST_NESTED = 8
"""The largest number of functions that are made from one at the same time."""


def signature(value: Any, seen: dict[int, int]) -> Hashable:
    """Return a key of the form of an argument. seen: numbers of the containers of the call, so that
    the key tells which ones are the same."""
    if type(value) is TracedTensor:
        return kind_of(value)
    if is_text(value) and kind_of(value) is None:
        return pieces_of(value), tuple(signature(item, seen) for item in values_of(value))
    if issubclass(type(value), _PLAIN):
        return type(value), repr(value)
    kind = kind_of(value)
    if kind is not None:
        return kind
    if isinstance(value, tuple):
        return type(value), tuple(signature(item, seen) for item in value)
    if isinstance(value, Either):
        return Either, tuple(signature(item, seen) for item in value.stretto_options)
    if isinstance(value, HeapObject):
        if id(value) in seen:
            return "again", seen[id(value)]
        seen[id(value)] = len(seen)
        held = tuple((repr(k), content(v, seen)) for k, v in value.table.items())
        return value.kind, value.origin is not None and id(value), held
    return id(value)


def content(value: Any, seen: dict[int, int]) -> Hashable:
    if isinstance(value, dict):
        return tuple((repr(k), signature(v, seen)) for k, v in value.items())
    return signature(value, seen)


def blurred(value: Any, seen: dict[int, int]) -> Hashable:
    """Return the same key without the lengths of lists whose items are of one kind."""
    if isinstance(value, tuple):
        return type(value), tuple(blurred(item, seen) for item in value)
    if isinstance(value, Ref) and value.kind is list and id(value) not in seen:
        items = value.table[ITEMS]
        kind = list_kind(items) if items != () else "empty"
        if not containers_in((items,)):
            seen[id(value)] = len(seen)
            return list, kind, value.origin is not None and id(value)
    return signature(value, seen)


def _sized(key: Hashable) -> Hashable:
    """Return the key of an argument with tensors of data-dependent size as lists of slices."""
    if isinstance(key, LeafKind):
        return decided_rows(key)
    return tuple(map(_sized, key)) if isinstance(key, tuple) else key


def _without_sizes(key: Hashable) -> Hashable:
    """Return the key with one name for all sizes that data decide."""
    if isinstance(key, LeafKind):
        decided = tracer().symbol_dims.keys()
        dims = (
            dim if isinstance(dim, int) or decided.isdisjoint(dim.symbols) else "decided"
            for dim in dims_of(key.type)
        )
        return type(key.type), key.number, tuple(dims)
    return tuple(map(_without_sizes, key)) if isinstance(key, tuple) else key


def _differ_in_sizes(call: CallInProgress, other: CallInProgress) -> bool:
    """True if the tensors of two calls differ only in sizes that data decide."""
    return call.key != other.key and _without_sizes(call.key) == _without_sizes(other.key)


@dataclass(eq=False)
class CallInProgress:
    """A call that is being interpreted. regions: the number of branches and loops around it.
    numbers: its arguments that are Python numbers."""

    key: Hashable
    code: Any
    loose: Hashable
    regions: int
    numbers: dict[int, int | float]


class Recursions:
    """Calls of functions that may call themselves."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.active: list[CallInProgress] = []
        self.known: dict[Hashable, FunctionSummary] = {}
        self.open: list[FunctionSummary] = []
        """The functions that are being made, the innermost last."""
        self.kept: list[Any] = []

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        interpreter, code = self.regions.interpreter, function.__code__
        if code.co_flags & 0x20:
            return interpreter.run(function, args, kwargs)
        keeps_order = code.co_flags & inspect.CO_VARKEYWORDS
        names = tuple(kwargs if keeps_order else sorted(kwargs))
        given = (*args, *(kwargs[name] for name in names))
        given = self.with_varying(code, tuple(map(self.regions.narrowed, given)))
        entry = self.entry(function, len(args), names, given)
        for known in (entry.key, entry.loose):
            summary = self.known.get(known)
            if summary is not None and summary.is_usable(function, given):
                self.note_dependence(summary)
                return summary.call(given)
        self.check(function, entry, given)
        run = self.runner(function, len(args), names)
        return self.inline(function, entry, given, run)

    def note_dependence(self, called: FunctionSummary) -> None:
        """Note that the function that is being made calls another one. What it knows of one that is
        not finished changes with each attempt of that one, and it has to be made again then."""
        depends = called.depends if called.is_finished else {called.key}
        maker = self.open[-1] if self.open else None
        if maker is not None:
            maker.depends |= depends - {maker.key}
        for key in called.depends if called.is_finished else ():
            if key in self.known:
                self.known[key].dependents.add(called.key)

    def forget(self, keys: set[Hashable]) -> None:
        """Forget functions that have to be made again, and those that call them."""
        pending = set(keys)
        keys.clear()
        while pending:
            found = self.known.pop(pending.pop(), None)
            if found is not None:
                pending |= found.dependents

    def runner(self, function: Any, count: int, names: tuple[str, ...]) -> Callable[..., Any]:
        def run(given: tuple[Any, ...]) -> Any:
            named = dict(zip(names, given[count:], strict=True))
            return self.regions.interpreter.run(function, given[:count], named)

        return run

    def entry(
        self, function: Any, count: int, names: tuple[str, ...], given: tuple[Any, ...]
    ) -> CallInProgress:
        self.kept.append((function, given))
        is_sized = function.__code__ in tracer().hints.sized
        closure = tuple(id(cell) for cell in function.__closure__ or ())
        held = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        same = (
            id(function.__code__),
            id(function.__globals__),
            closure,
            tuple(map(id, held)),
            count,
            names,
        )
        exact = signature(given, containers := dict[int, int]())
        loose = blurred(given, {}) if containers else exact
        return CallInProgress(
            (*same, _sized(exact) if is_sized else exact),
            function.__code__,
            (*same, "any length", loose),
            sum(not region.is_transaction for region in tracer().regions),
            {n: value for n, value in enumerate(given) if type(value) in (int, float)},
        )

    def check(self, function: Any, entry: CallInProgress, given: tuple[Any, ...]) -> None:
        """Check a call before it is interpreted: go back to the same one, or refuse one that may
        come to no end."""
        state, name = tracer(), function.__name__
        others = [active for active in self.active if active.code is entry.code]
        if not others:
            return
        if any(active.key == entry.key for active in others):
            raise RecursionFound(entry.key)
        is_loose = entry.loose[-1] != entry.key[-1]  # type: ignore[index]
        if is_loose and sum(active.loose == entry.loose for active in others) > 1:
            raise RecursionFound(entry.loose)
        if state.symbols and any(_differ_in_sizes(entry, other) for other in others):
            if entry.code not in state.hints.sized:
                state.hints.sized.add(entry.code)
                raise Replan
            if len(others) >= _MOST_SIZES:
                fail(
                    f"'{name}' calls itself with tensors whose sizes depend on the content of a "
                    f"tensor and differ on each of more than {_MOST_SIZES} levels",
                    "pass the whole tensor and a mask, or compile with fallback=True",
                )
        either = first_either(given)
        if either is not None and kind_of(either) is None:
            fail(
                f"'{name}' calls itself with a value whose kind depends on the run",
                "pass it values of one structure, shape and dtype",
            )
        levels = [call.regions for call in (entry, *others)]
        in_branches = len(set(levels)) == len(levels)
        state.expansions[entry.code] += in_branches
        expanded = state.expansions[entry.code]
        if expanded > _VARYING and state.hints.is_varying:
            found = {
                (entry.code, place)
                for other in others
                for place, value in entry.numbers.items()
                if other.numbers.get(place, value) != value
            }
            if not found <= state.hints.varying:
                state.hints.varying |= found
                raise Replan
        limit = _MOST_BRANCHED_LEVELS if in_branches else _MOST_LEVELS
        if len(others) >= limit or expanded > _MOST_EXPANSIONS:
            fail(
                f"'{name}' calls itself more than {limit} levels deep, or {_MOST_EXPANSIONS} times,"
                " with Python values that differ on each level",
                "pass what differs (a depth, an index) as a tensor, use a loop, or compile with "
                "fallback=True",
            )

    def with_varying(self, code: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace numbers that differ on each level by numbers of the Program."""
        state = tracer()
        known = state.hints.varying
        if not known or not state.hints.is_varying:
            return given
        if not any(call.code is code for call in self.active):
            return given
        return tuple(
            state.number(state.literal(value, python_dtype(type(value))))
            if (code, place) in known and type(value) in (int, float)
            else value
            for place, value in enumerate(given)
        )

    def inline(
        self, function: Any, entry: CallInProgress, given: tuple[Any, ...], run: Callable[..., Any]
    ) -> Any:
        """Interpret a call. If one inside of it repeats it, make it a function of the Program."""
        state, heap, interpreter = tracer(), self.regions.heap, self.regions.interpreter
        depth = len(self.active)
        self.active.append(entry)
        try:
            if not _may_recurse(entry.code):
                try:
                    return run(given)
                except RecursionFound as found:
                    if found.key not in (entry.key, entry.loose):
                        raise
                    state.hints.recursive.add(entry.code)
                    raise Replan from None
            mark, frames, regions = heap.mark(), list(interpreter.frames), self.regions.depth
            with state.transaction() as rollback:
                try:
                    return run(given)
                except RecursionFound as found:
                    if found.key not in (entry.key, entry.loose):
                        raise
                    key = found.key
                rollback()
            heap.undo(mark)
            interpreter.frames[:], self.regions.depth = frames, regions
        finally:
            del self.active[depth:]
        return self.outline(key, function, given, run)

    def outline(
        self, key: Hashable, function: Any, given: tuple[Any, ...], run: Callable[..., Any]
    ) -> Any:
        state, code = tracer(), function.__code__
        nested = [s for s in self.known.values() if s.code is code and not s.is_finished]
        if len(nested) >= _MOST_NESTED:
            fail(
                f"'{code.co_name}' calls itself with another list or dict each time, of a "
                "different length, or one that it changes",
                "pass the same list through all calls; or append to it, and pop() after the call",
            )
        base = code.co_name.strip("<>")
        name, number = base, 1
        while name in state.functions or name == "main":
            number += 1
            name = f"{base}_{number}"
        state.functions[name] = None  # type: ignore[assignment]
        made = FunctionSummary(self.regions, exact=False, name=name, code=code, key=key)
        made.take(given, is_loose="any length" in key)  # type: ignore[operator]
        self.known[key] = made
        self.open.append(made)
        made.refresh()
        made.aliased = made.alias_pairs(
            {slot: leaf.init for slot, leaf in made.order if is_tensor(leaf.init)}
        )
        try:
            for _ in range(_ATTEMPTS):
                self.forget(made.dependents)
                if made.attempt(run):
                    break
            else:
                with about_definition(code):
                    if made.has_other_result:
                        if tracer().data is not None:
                            tracer().data.let_result_be_data(code)
                        made.fail_result()
                    fail(
                        "the types in a recursive function keep changing",
                        "give its results and variables one type",
                    )
        except UnknownResult as unknown:
            self.known.pop(key, None)
            raise (unknown if unknown.key != key else unknown.abort) from None
        except BaseException:
            self.known.pop(key, None)
            raise
        finally:
            self.open.remove(made)
        made.is_finished = True
        self.note_dependence(made)
        state.note(f"recursive function '{name}' outlined")
        result = made.call(given, is_first=True)
        made.surroundings = ReadContent.of(self.regions.heap, [function, *given], made.captures)
        return result


def _may_recurse(code: Any) -> bool:
    """True if the state before a call must be saved: interpretation may have to return to it.

    It is saved if an earlier attempt found that the function calls itself, or if its code
    contains its own name.
    """
    names = names_read(code)
    return (
        code in tracer().hints.recursive
        or code.co_name in names.globals
        or code.co_name in names.attributes
        or code.co_name in code.co_freevars
    )

"""Calls of user functions: traced inline, or outlined as IR functions if they recurse.

A call whose abstract arguments equal those of a call being traced would never end. Tracing
unwinds to that earlier call, which is then traced as a separate Function (`outline.py`). Lists
and dicts among the arguments are compared by contents and, failing that, by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from stretto.frontends.python.calls.outline import ActiveCall, ByIdentity, Outline, passed_kind
from stretto.frontends.python.source.redirected import code_of
from stretto.frontends.python.source.syntax_trees import names_read
from stretto.frontends.python.tracing.signals import RecursionFound, Replan, fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.arithmetic import with_tensors
from stretto.frontends.python.values.data_dependent_sizes import plain
from stretto.frontends.python.values.either import first_either
from stretto.frontends.python.values.leaves import ValueWalk, is_traced_leaf, kind_of
from stretto.frontends.python.values.scalars import LeafKind, python_dtype
from stretto.frontends.python.values.state import Snapshot, TracedList
from stretto.ir.symbols import dims_of
from stretto.ir.types import Dim

DEPTH_LIMIT = 500
"""The largest number of levels of recursion on Python values that are traced inline."""

SIZES_LIMIT = 4
"""The same limit if tensors on each level differ in several sizes that data decide."""

TRACED_DEPTH_LIMIT = 100
"""The same limit if every level is inside another traced branch, so that tracing might
never end."""


EXPANSIONS_LIMIT = 256
"""The largest number of such calls of one function, over all levels."""

VARYING_LIMIT = 12
"""Number of such calls after which the arguments that differ become numbers of the Program."""


def call_user(
    function: FunctionType,
    staged: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Trace a call of a user function inline, or as a CallOp if it recurses."""
    state = tracer()
    code = code_of(function)
    if any(other.code is code for other in state.calls):
        args, kwargs = with_tensors((args, kwargs))
        args, kwargs = _with_varying(code, args, kwargs)
    entry = _entry(function, args, kwargs)
    for key in (entry.by_content, entry.by_identity):
        outline = state.outlines.get(key)
        if outline is not None and outline.is_usable():
            return outline.call(args, kwargs)
    for other in reversed(state.calls):
        if other.code is entry.code:
            if other.by_content == entry.by_content:
                raise RecursionFound(other.by_content)
            if other.by_identity == entry.by_identity:
                raise RecursionFound(other.by_identity)
    others = [other for other in state.calls if other.code is entry.code]
    if others:
        _check_recursion(function, entry, others, (args, kwargs))
    return _inline(entry, staged, args, kwargs)


def _check_recursion(
    function: FunctionType, entry: ActiveCall, others: list[ActiveCall], given: Any
) -> None:
    """Check a function that calls itself before it is traced inline once more. others: the calls
    of it being traced. Raises Replan to trace again with other hints, or fails at a limit."""
    state, name = tracer(), function.__name__
    if state.symbols and any(_differ_in_sizes(entry, other) for other in others):
        if entry.code not in state.hints.sized:
            state.hints.sized.add(entry.code)
            raise Replan
        if len(others) >= SIZES_LIMIT:
            fail(
                f"'{name}' calls itself with tensors whose sizes depend on the content of a tensor "
                f"and differ on each of more than {SIZES_LIMIT} levels",
                "pass the whole tensor and a mask, or compile with fallback=True",
            )
    if first_either(given) is not None:
        fail(
            f"'{name}' calls itself with a value whose kind depends on the run",
            "pass it values of one structure, shape and dtype",
        )
    levels = [call.regions for call in (entry, *others)]
    in_branches = len(set(levels)) == len(levels)
    state.expansions[entry.code] += in_branches
    expanded = state.expansions[entry.code]
    if expanded > VARYING_LIMIT and state.hints.is_varying:
        found = {(entry.code, place) for place in _varying(entry, others)}
        if not found <= state.hints.varying:
            state.hints.varying |= found
            raise Replan
    limit = TRACED_DEPTH_LIMIT if in_branches else DEPTH_LIMIT
    if len(others) >= limit or expanded > EXPANSIONS_LIMIT:
        fail(
            f"'{name}' calls itself more than {limit} levels deep, or {EXPANSIONS_LIMIT} times, "
            "with Python values that differ on each level",
            "pass what differs (a depth, an index) as a tensor, use a loop, or compile with "
            "fallback=True",
        )


def _varying(entry: ActiveCall, others: list[ActiveCall]) -> set[int | str]:
    """Return the arguments that are a different number in this call than in an enclosing one."""
    found = set[int | str]()
    for other in others:
        for place in entry.numbers.keys() & other.numbers.keys():
            if entry.numbers[place] != other.numbers[place]:
                found.add(place)
    return found


def _with_varying(code: CodeType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replace sizes that data decide, and numbers that differ on each level, by numbers of the
    Program."""
    state = tracer()
    known = state.hints.varying if state.hints.is_varying else ()

    def passed(place: int | str, value: Any) -> Any:
        if (code, place) not in known or type(value) not in (int, float):
            return plain(value)
        return state.number(state.literal(value, python_dtype(type(value))))

    given = tuple(passed(place, value) for place, value in enumerate(args))
    return given, {name: passed(name, value) for name, value in kwargs.items()}


def _inline(
    entry: ActiveCall, staged: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Trace a call inline. If a call inside of it repeats it, outline the function as an IR
    function."""
    state = tracer()
    if not _may_recurse(entry.code):
        try:
            return _call(entry, staged, args, kwargs)
        except RecursionFound as found:
            if found.key not in (entry.by_content, entry.by_identity):
                raise
            state.hints.recursive.add(entry.code)
            raise Replan from None
    with state.transaction() as rollback:
        before = Snapshot.take((args, kwargs))
        try:
            return _call(entry, staged, args, kwargs)
        except RecursionFound as found:
            if found.key not in (entry.by_content, entry.by_identity):
                raise
            key = found.key
        rollback()
        before.restore()
    if key == entry.by_content:
        try:
            return Outline(key, entry, staged, ValueWalk(is_traced_leaf, True)).trace(args, kwargs)
        except ByIdentity:
            before.restore()
    outline = Outline(entry.by_identity, entry, staged, ValueWalk(is_traced_leaf, False))
    return outline.trace(args, kwargs)


def _call(
    entry: ActiveCall, staged: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    calls = tracer().calls
    depth = len(calls)
    calls.append(entry)
    try:
        return staged(*args, **kwargs)
    finally:
        del calls[depth:]


def _may_recurse(code: CodeType) -> bool:
    """Return True if the state before a call must be saved: tracing may have to return to it.

    It is saved if an earlier attempt found that the function calls itself, or if its code
    contains its own name. Saving it for every call would take a third of the time of a capture.
    """
    names = names_read(code)
    return (
        code in tracer().hints.recursive
        or code.co_name in names.globals
        or code.co_name in names.attributes
        or code.co_name in code.co_freevars
    )


def _entry(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActiveCall:
    given = (args, tuple(sorted(kwargs.items())))
    same = _identity(function)
    return ActiveCall(
        code_of(function),
        (same, _abstract(code_of(function), given, by_identity=False)),
        (same, "identity", _abstract(code_of(function), given, by_identity=True)),
        function.__closure__ or (),
        sum(not region.is_transaction for region in tracer().regions),
        _kinds(given),
        {k: v for k, v in (*enumerate(args), *kwargs.items()) if type(v) in (int, float)},
    )


def _identity(function: FunctionType) -> Hashable:
    """Return a key shared by functions that do the same for equal arguments.

    The code alone is not enough: code objects of equal texts are equal in whatever namespace
    they run, and one code object may have several namespaces and defaults.
    """
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    held = (code_of(function), function.__globals__, *(function.__closure__ or ()), *defaults)
    return tuple(map(_Same, held))


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A key that compares an object by identity, and keeps it alive: its id is not reused."""

    item: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.item is self.item

    def __hash__(self) -> int:
        return id(self.item)


def _kinds(given: Any) -> tuple[LeafKind | None, ...]:
    """Return the kinds of the traced values among the arguments; empty if the Program has no
    symbols."""
    leaves = list[TracedTensor]()
    ValueWalk(is_traced_leaf, True).flatten(given, leaves, {})
    return tuple(map(kind_of, leaves)) if tracer().symbols else ()


def _differ_in_sizes(call: ActiveCall, other: ActiveCall) -> bool:
    """Return True if the tensors of two calls differ only in sizes that data decide."""
    return call.kinds != other.kinds and _without_sizes(call) == _without_sizes(other)


def _without_sizes(call: ActiveCall) -> Hashable:
    """Return the types of the arguments, with one name for all sizes that data decide."""
    decided = tracer().symbol_dims.keys()

    def blurred(dim: Dim) -> Hashable:
        return dim if isinstance(dim, int) or decided.isdisjoint(dim.symbols) else "decided"

    types = [kind.type for kind in call.kinds if kind is not None]
    return tuple((type(t), tuple(map(blurred, dims_of(t)))) for t in types)


def _abstract(code: CodeType, given: Any, *, by_identity: bool) -> Hashable:
    """Return the key that two calls share if one IR function can serve both."""
    leaves, walk = list[TracedTensor](), ValueWalk(is_traced_leaf, not by_identity)
    origins = tracer().list_origins
    lists = (x for x in walk.containers(given) if by_identity or isinstance(x, TracedList))
    shape = walk.flatten(given, leaves, {id(x): ("list", origins.get(id(x), id(x))) for x in lists})
    return shape, tuple(passed_kind(code, leaf) for leaf in leaves)

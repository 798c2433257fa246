"""Calls of user functions: traced inline, and outlined as IR functions where they recurse.

A call whose abstract arguments equal those of a call being traced would never end. Tracing unwinds
to that call, which is then traced into a Function of its own: its traced arguments become params,
the Python state that it changes is carried as in a loop (`carry`), traced values of outer functions
become further params. A recursive call inside is a CallOp; its result type comes from the arm that
does not recurse, which is traced first by leaving the other arm out (`UnknownResult`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any

from stretto.capture.aliases import link, overlapping, storages_of
from stretto.capture.carry import Carry
from stretto.capture.either import first_either
from stretto.capture.leaves import device_of, kind_of, materialize, wrap
from stretto.capture.poison import poisons
from stretto.capture.scalars import Kind
from stretto.capture.signals import (
    RecursionFound,
    Signal,
    UnknownResult,
    abort,
    about_definition,
    fail,
)
from stretto.capture.state import Snapshot, TracedList, describe
from stretto.capture.surroundings import Surroundings
from stretto.capture.templates import RESULT, Fixed, Template, Walk, is_traced_leaf, merge
from stretto.capture.tensor import FunctionContext, Storage, TracedTensor
from stretto.capture.tracer import Region, tracer
from stretto.ir.core import Function, Value
from stretto.ir.ops import CallOp

DEPTH_LIMIT = 500
"""Levels of recursion on Python values that are traced inline."""

TRACED_DEPTH_LIMIT = 100
"""The same, where every level lies inside a traced branch, so that tracing may never end."""

_ATTEMPTS = 20


class _Retrace(Signal):
    """More state has to be carried than was known when the function was entered."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A call being traced. `by_identity` names lists by object instead of by content."""

    code: CodeType
    by_content: Hashable
    by_identity: Hashable
    cells: tuple[CellType, ...]
    regions: int = 0


def call_user(
    function: FunctionType,
    staged: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Trace a call of a user function inline, or as a CallOp if it recurses."""
    state = tracer()
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
    same = [other.regions for other in state.calls if other.code is entry.code]
    if same and first_either((args, kwargs)) is not None:
        fail(
            f"'{function.__name__}' calls itself with a value that is one of several things of "
            "different kinds",
            "pass it values of one structure, shape and dtype",
        )
    in_branches = len(set(same)) == len(same)
    limit = TRACED_DEPTH_LIMIT if in_branches else DEPTH_LIMIT
    if len(same) >= limit:
        fail(
            f"'{function.__name__}' calls itself more than {limit} levels deep, with Python "
            "values that differ on each level",
            "pass what differs (a depth, an index) as a tensor, or use a loop",
        )
    return _inline(entry, staged, args, kwargs)


def _inline(
    entry: Entry, staged: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    state = tracer()
    with state.transaction() as rollback:
        before = Snapshot.take((args, kwargs))
        depth = len(state.calls)
        state.calls.append(entry)
        try:
            return staged(*args, **kwargs)
        except RecursionFound as found:
            if found.key not in (entry.by_content, entry.by_identity):
                raise
            key = found.key
        finally:
            del state.calls[depth:]
        rollback()
        before.restore()
    outline = Outline(key, entry, staged, Walk(is_traced_leaf, key == entry.by_content))
    return outline.trace(args, kwargs)


def _entry(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
    cells = tuple(id(cell) for cell in function.__closure__ or ())
    given = (args, tuple(sorted(kwargs.items())))
    code = function.__code__
    return Entry(
        code,
        (code, cells, _abstract(given, by_identity=False)),
        (code, cells, "identity", _abstract(given, by_identity=True)),
        function.__closure__ or (),
        sum(not region.is_transaction for region in tracer().regions),
    )


def _abstract(value: Any, *, by_identity: bool) -> Hashable:
    match value:
        case TracedTensor():
            return ("traced", tracer().type_of(value), value.number is not None)
        case None | bool() | int() | float() | str():
            return (type(value), value)
        case TracedList():
            return ("list", tracer().list_origins.get(id(value), id(value)))
        case list() | dict() if by_identity:
            return ("list", id(value))
        case tuple():
            return (type(value), *(_abstract(item, by_identity=by_identity) for item in value))
        case list():
            return (list, *(_abstract(item, by_identity=by_identity) for item in value))
        case dict():
            parts = ((k, _abstract(v, by_identity=by_identity)) for k, v in value.items())
            return (dict, *parts)
        case _:
            return ("object", id(value))


@dataclass(eq=False)
class Outline:
    """A user function being traced (or traced) as an IR function."""

    key: Hashable
    entry: Entry
    staged: Callable[..., Any]
    arguments: Walk
    name: str = ""
    params: list[Kind] = field(default_factory=list[Kind])
    template: Template | None = None
    mutated: list[int] = field(default_factory=list[int])
    captures: list[Value] = field(default_factory=list[Value])
    shared: list[Any] = field(default_factory=list[Any])
    """What results may share memory with: positions of arguments, and storages of outer tensors."""
    returned: dict[int, int] = field(default_factory=dict[int, int])
    """Results that are an argument itself: positions of both."""
    depth: int = 0
    surroundings: Surroundings | None = None
    differing: set[int] = field(default_factory=set[int])
    aliased: set[tuple[int, Any]] = field(default_factory=set[tuple[int, Any]])
    """Arguments that may share memory with another one, or with a storage of an outer tensor."""
    carry: Carry | None = None
    region: Region | None = None
    finished: bool = False

    def is_usable(self) -> bool:
        """Whether a call may use the function as it was traced: it would read the same state."""
        if not self.finished:
            return True
        state = tracer()
        carry = self.carry
        stateless = carry is not None and not carry.kinds()
        known = all(state.is_known(value) for value in self.captures)
        return stateless and known and self.surroundings is not None and self.surroundings.hold()

    # -- tracing --------------------------------------------------------------------------------

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace the function until types, captures and state are known; then call it."""
        state = tracer()
        self.name = _function_name(self.entry.code)
        self.carry = Carry(Snapshot.take((args, kwargs)), None, frozenset(), runs_once=False)
        state.functions[self.name] = None  # type: ignore[assignment]
        state.outlines[self.key] = self
        leaves = list[Any]()
        self.arguments.flatten((args, kwargs), leaves)
        self.depth = state.scope.depth
        self.aliased = self._aliases(leaves)
        try:
            for _ in range(_ATTEMPTS):
                if self._attempt(args, kwargs, leaves):
                    break
            else:
                with about_definition(self.entry.code):
                    fail(
                        "the types in a recursive function keep changing",
                        "give its results and variables one type",
                    )
        except UnknownResult as unknown:
            del state.outlines[self.key]
            raise (unknown if unknown.key != self.key else unknown.abort) from None
        except BaseException:
            state.outlines.pop(self.key, None)
            raise
        self.finished = True
        self.carry.base.restore()
        state.note(f"recursive function '{self.name}' outlined")
        result = self.call(args, kwargs, outermost=True)
        self.surroundings = Surroundings.of(self.entry.cells, (args, kwargs), self.captures)
        return result

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> bool:
        state, carry = tracer(), self.carry
        assert carry is not None
        self.params = [kind for leaf in leaves if (kind := kind_of(leaf)) is not None]
        context = FunctionContext(self.name)
        known = (len(self.captures), tuple(self.mutated))
        carry.base.restore()
        try:
            with state.region(context) as region:
                self.region = region
                params = [state.param(kind.type) for kind in self.params]
                placed = carry.begin()
                for value in self.captures:
                    context.captures[value] = state.param(value.type, value.hint)
                tensors = [
                    wrap(value, kind, device=device_of(leaf))
                    for value, kind, leaf in zip(params, self.params, leaves, strict=True)
                ]
                for position, other in self.aliased:
                    link(tensors[position], [tensors[other] if isinstance(other, int) else other])
                supply = list(tensors)
                given_args, given_kwargs = self.arguments.rebuild(
                    (args, kwargs), supply, carry.made
                )
                result = self.staged(*given_args, **given_kwargs)
                with about_definition(self.entry.code):
                    settled = self._settle(result)
                    settled &= carry.end(region, is_last=False)
                self._find_mutated(tensors, params)
                settled &= self._find_shared(result, tensors)
                self.captures = list(context.captures)
                settled &= known == (len(self.captures), tuple(self.mutated))
                if settled:
                    self._complete(context, region, [*params, *placed], result, tensors)
        except _Retrace:
            self.captures = list(context.captures)
            return False
        return settled

    def _settle(self, result: Any) -> bool:
        """Learn the structure of the result; True when it was known already."""
        poison = poisons(result)
        if poison is not None:
            poison.fail_at_origin()
        leaves = list[Any]()
        shape = RESULT.flatten(result, leaves)
        known = self.template
        found: list[Kind | Fixed | None] = [
            Fixed(leaf) if isinstance(leaf, bool | int | float) else kind_of(leaf)
            for leaf in leaves
        ]
        if known is not None:
            if known.shape != shape:
                fail(
                    f"the recursive function '{self.name}' returns values of different structure "
                    f"({describe(result)})",
                    "return the same structure in all cases",
                )
            found = [merge(a, b) for a, b in zip(known.leaves, leaves, strict=True)]
        merged = [leaf for leaf in found if leaf is not None]
        if len(merged) != len(found):
            fail(
                f"the recursive function '{self.name}' returns tensors of different types",
                "return the same shapes and dtypes in all cases",
            )

        def build(values: list[Any]) -> Any:
            supply = list(values)
            every = [x.value if isinstance(x, Fixed) else supply.pop(0) for x in merged]
            return RESULT.rebuild(result, every, {})

        self.template = Template(merged, build, shape)
        return known is not None and known.leaves == merged

    def _find_mutated(self, tensors: list[Any], params: list[Value]) -> None:
        for position, (tensor, param) in enumerate(zip(tensors, params, strict=True)):
            if tensor.memory.state.base is not param and position not in self.mutated:
                self.mutated.append(position)

    def _find_shared(self, result: Any, tensors: list[Any]) -> bool:
        """Learn which memory the results may be; True if the same ones are arguments as before."""
        leaves = list[Any]()
        RESULT.flatten(result, leaves)
        reached = set[Storage]().union(*map(overlapping, storages_of(leaves)))
        positions = [n for n, tensor in enumerate(tensors) if tensor.memory in reached]
        root = self.region.scope if self.region else None
        outer = (s for s in reached if s.scope.open and s.scope.here is not root)
        self.shared = [*positions, *outer]
        returned = {
            number: position
            for number, leaf in enumerate(leaves)
            for position, tensor in enumerate(tensors)
            if number not in self.differing and _is_same(leaf, tensor)
        }
        self.differing |= self.returned.keys() - returned.keys()
        known, self.returned = self.returned, returned
        return known == returned

    def _aliases(self, leaves: list[Any]) -> set[tuple[int, Any]]:
        """Which arguments may share memory with one another, or with tensors of outer functions."""
        found = set[tuple[int, Any]]()
        for position, leaf in enumerate(leaves):
            others = set[Storage]().union(*map(overlapping, storages_of(leaf)))
            for number, other in enumerate(leaves[:position]):
                if not others.isdisjoint(storages_of(other)):
                    found.add((position, number))
            outer = (s for s in others if s.scope.open and s.scope.here.depth <= self.depth)
            found.update((position, storage) for storage in outer)
        return found

    def _learn_aliases(self, leaves: list[Any]) -> None:
        """Arguments may share memory in a way that those of the first call do not."""
        found = self._aliases(leaves)
        if found <= self.aliased:
            return
        if not self.finished:
            self.aliased |= found
            raise _Retrace
        assert self.carry is not None
        pairs = {pair for pair in found - self.aliased if isinstance(pair[1], int)}
        if pairs and (self.mutated or self.carry.storages):
            fail(
                f"'{self.name}' changes a tensor in place, and its arguments may share memory",
                "pass a clone() of one of them",
            )

    def _complete(
        self,
        context: FunctionContext,
        region: Region,
        params: list[Value],
        result: Any,
        tensors: list[Any],
    ) -> None:
        assert self.template is not None and self.carry is not None
        leaves = list[Any]()
        RESULT.flatten(result, leaves)
        pairs = zip(leaves, self.template.leaves, strict=True)
        yields = [materialize(leaf, kind) for leaf, kind in pairs if isinstance(kind, Kind)]
        yields += [tracer().read(tensors[position]) for position in self.mutated]
        yields += self.carry.yields()
        block = region.scope.block
        block.params = (*params, *context.captures.values())
        block.yields = tuple(yields)
        tracer().close_function(context, block)
        tracer().functions[self.name] = Function(self.name, block)

    # -- calling --------------------------------------------------------------------------------

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, outermost: bool = False
    ) -> Any:
        """A CallOp with these arguments; the rebuilt result."""
        state, carry = tracer(), self.carry
        assert carry is not None
        if self.template is None:
            raise UnknownResult(
                self.key,
                abort(
                    f"the recursive function '{self.name}' has no base case: "
                    "each path calls it again",
                    "add a branch that returns without recursion",
                ),
            )
        leaves = list[Any]()
        self.arguments.flatten((args, kwargs), leaves)
        if not outermost:
            self._learn_aliases(leaves)
        values = [materialize(leaf, kind) for leaf, kind in zip(leaves, self.params, strict=True)]
        values += carry.inits() if outermost else self._carried_here()
        values += [state.use(value) for value in self.captures]
        template = self.template
        kinds = [*template.kinds, *(self.params[i] for i in self.mutated), *carry.kinds()]
        results = state.emit(CallOp(self.name, tuple(values)), [kind.type for kind in kinds])
        count = len(template.kinds)
        made = [wrap(v, k) for v, k in zip(results[:count], template.kinds, strict=True)]
        rest = results[count + len(self.mutated) :]
        if outermost:
            carry.finish(rest)
        elif not self.finished:
            carry.update(rest)
        for position, value in zip(self.mutated, results[count:], strict=False):
            state.assign(leaves[position], value)
        kept = [n for n, leaf in enumerate(template.leaves) if isinstance(leaf, Kind)]
        sources = [leaves[item] if isinstance(item, int) else item for item in self.shared]
        for place, number in enumerate(kept):
            if number in self.returned:
                made[place] = leaves[self.returned[number]]
            else:
                link(made[place], sources)
        return template.build(made)

    def _carried_here(self) -> list[Value]:
        """The carried state at a recursive call."""
        assert self.carry is not None and self.region is not None
        if self.finished:
            return []
        if not self.carry.end(self.region, is_last=False):
            raise _Retrace
        return list(self.carry.yields())


def _is_same(first: Any, second: Any) -> bool:
    """Whether two traced tensors are the same memory, as a whole."""
    if not isinstance(first, TracedTensor) or first.number is not None or first.steps:
        return False
    return first.memory is second.memory and first.dtype == second.dtype


def _function_name(code: CodeType) -> str:
    wanted = code.co_name.strip("<>")
    taken = tracer().functions
    name, number = wanted, 1
    while name in taken or name == "main":
        number += 1
        name = f"{wanted}_{number}"
    return name

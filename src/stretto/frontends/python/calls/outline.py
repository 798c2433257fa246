"""Tracing of user functions that call themselves as IR functions.

Traced arguments become params. Python state that the function changes is carried as in a loop
(`carry`). Traced values of outer functions become further params. Values that the function
stores in lists and dicts of its arguments are returned and stored in the caller's. A recursive
call is a CallOp. Its result type comes from the arm that does not recurse: that arm is traced
first, with the other arm left out (`UnknownResult`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

from stretto.frontends.python.aliasing.aliases import link, overlapping, storages_of, visible
from stretto.frontends.python.control.loop_state import LoopState
from stretto.frontends.python.objects.copies import note_copy
from stretto.frontends.python.tracing.frames import read_cell
from stretto.frontends.python.tracing.signals import (
    CaptureSignal,
    UnknownResult,
    abort,
    about_definition,
    fail,
    poisons,
)
from stretto.frontends.python.tracing.tensor import FunctionContext, Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.leaves import (
    RESULT,
    Fixed,
    ResultTemplate,
    ValueWalk,
    device_of,
    is_mixed_number,
    kind_of,
    materialize,
    merge,
    wrap,
)
from stretto.frontends.python.values.scalars import LeafKind, decided_rows, kind_after_call, unify
from stretto.frontends.python.values.state import Snapshot, contents, describe, equal_leaves, is_box
from stretto.ir.core import Function, Value
from stretto.ir.ops import CallOp

# ---- State that a traced function may have read besides its arguments, recorded to detect changes.


@dataclass(frozen=True, slots=True, eq=False)
class ReadState:
    """Variables of outer functions, contents of containers, tensors, and the number of writes to
    globals."""

    cells: tuple[tuple[CellType, Any], ...]
    boxes: tuple[tuple[Any, dict[Any, Any]], ...]
    storages: tuple[tuple[Storage, Value], ...]
    globals: int

    @staticmethod
    def of(cells: tuple[CellType, ...], arguments: Any, captures: list[Value]) -> ReadState:
        """Collect the outer variables reachable from `cells` and `arguments` through functions and
        containers."""
        found, boxes = dict[int, tuple[CellType, Any]](), dict[int, tuple[Any, dict[Any, Any]]]()
        pending: list[Any] = [arguments, *cells]
        while pending:
            value = pending.pop()
            if isinstance(value, CellType):
                if id(value) not in found:
                    found[id(value)] = value, read_cell(value)
                    pending.append(read_cell(value))
            elif isinstance(value, FunctionType):
                pending += value.__closure__ or ()
            elif isinstance(value, tuple):
                pending += value
            elif (is_box(value) or isinstance(value, nn.Module)) and id(value) not in boxes:
                boxes[id(value)] = value, contents(value)
                pending += contents(value).values()
        bases = set(captures)
        storages = ((s, s.state.base) for s in visible() if isinstance(s.state.base, Value))
        return ReadState(
            tuple(found.values()),
            tuple(boxes.values()),
            tuple((storage, base) for storage, base in storages if base in bases),
            tracer().global_writes,
        )

    def hold(self) -> bool:
        """Return True if nothing has changed since."""
        return (
            all(equal_leaves(read_cell(cell), value) for cell, value in self.cells)
            and all(_same_items(contents(box), items) for box, items in self.boxes)
            and all(storage.state.base is base for storage, base in self.storages)
            and tracer().global_writes == self.globals
        )


def _same_items(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    return first.keys() == second.keys() and all(equal_leaves(first[k], second[k]) for k in first)


OUTLINE_LIMIT = 8
"""The largest number of nested IR functions made from one user function at the same time."""

_ATTEMPTS = 20


class _Retrace(CaptureSignal):
    """More state must be carried than was known when the function was entered, so it is traced
    again."""


class ByIdentity(CaptureSignal):
    """A list among the arguments changes its length or structure, so it must be identified as an
    object instead of by its contents."""


@dataclass(frozen=True, slots=True)
class ActiveCall:
    """A call being traced. `by_content` is its key with lists named by content, `by_identity` by
    object."""

    code: CodeType
    by_content: Hashable
    by_identity: Hashable
    cells: tuple[CellType, ...]
    regions: int = 0
    kinds: tuple[LeafKind | None, ...] = ()
    numbers: dict[int | str, int | float] = field(default_factory=dict[int | str, "int | float"])
    """Arguments that are Python numbers, by position or name."""


@dataclass(eq=False)
class Outline:
    """A user function that is, or has been, traced as an IR function."""

    key: Hashable
    entry: ActiveCall
    staged: Callable[..., Any]
    arguments: ValueWalk
    name: str = ""
    params: list[LeafKind] = field(default_factory=list[LeafKind])
    """Kinds of the traced arguments."""
    template: ResultTemplate | None = None
    mutated: list[int] = field(default_factory=list[int])
    """Positions of the arguments that are changed in place."""
    replaced: list[int] = field(default_factory=list[int])
    """Positions of the arguments in lists and dicts that the function replaces."""
    captures: list[Value] = field(default_factory=list[Value])
    """Values of outer functions that it reads; they become params."""
    shared: list[Any] = field(default_factory=list[Any])
    """Memory that results may share: positions of arguments, and storages of outer tensors."""
    returned: dict[int, int] = field(default_factory=dict[int, int])
    """Results that are an argument itself: position of the result -> position of the argument."""
    depth: int = 0
    opens_results: bool = False
    """True if a returned list or dict of the arguments becomes a separate result, because not
    every path returns the same argument."""
    surroundings: ReadState | None = None
    differing: set[int] = field(default_factory=set[int])
    """Results that are an argument on some paths only."""
    aliased: set[tuple[int, Any]] = field(default_factory=set[tuple[int, Any]])
    """Arguments that may share memory, each with the position of another argument or a storage of
    an outer tensor."""
    carry: LoopState | None = None
    region: TracedRegion | None = None
    finished: bool = False

    def is_usable(self) -> bool:
        """Return True if a call may use the function as traced, because it would read the same
        state."""
        if not self.finished:
            return True
        state = tracer()
        carry = self.carry
        stateless = carry is not None and not carry.kinds()
        known = all(state.is_known(value) for value in self.captures)
        return stateless and known and self.surroundings is not None and self.surroundings.hold()

    # -- tracing --------------------------------------------------------------------------------

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace the function until types, captures and state are known, then call it."""
        state = tracer()
        self._check_depth()
        self.name = _function_name(self.entry.code)
        self.carry = LoopState(Snapshot.take((args, kwargs)), None, frozenset(), runs_once=False)
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
        self.surroundings = ReadState.of(self.entry.cells, (args, kwargs), self.captures)
        return result

    def _check_depth(self) -> None:
        code = self.entry.code
        same = [o for o in tracer().outlines.values() if o.entry.code is code and not o.finished]
        if len(same) >= OUTLINE_LIMIT:
            fail(
                f"'{code.co_name}' calls itself with another list or dict each time, of a "
                "different length, or one that it changes",
                "pass the same list through all calls; or append to it, and pop() after the call",
            )

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> bool:
        """Trace the function once. Returns True if nothing new was learned, so that it is
        complete."""
        state, carry = tracer(), self.carry
        assert carry is not None
        self.params = [passed_kind(self.entry.code, leaf) for leaf in leaves]
        context = FunctionContext(self.name)
        known = self._size()
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
                given = [tensor.memory.state.base for tensor in tensors]
                supply = list(tensors)
                given_args, given_kwargs = self.arguments.rebuild(
                    (args, kwargs), supply, carry.made
                )
                shape = self.arguments.flatten((given_args, given_kwargs), [])
                result = self.staged(*given_args, **given_kwargs)
                with about_definition(self.entry.code):
                    found = list[Any]()
                    settled = self._settle(result, (given_args, given_kwargs), found)
                    settled &= carry.end(region, is_last=False)
                after = self._left((given_args, given_kwargs), shape)
                for position, (tensor, base) in enumerate(zip(tensors, given, strict=True)):
                    if tensor.memory.state.base is not base and position not in self.mutated:
                        self._check_size(position)
                        self.mutated.append(position)
                self._find_replaced(tensors, after)
                if self.replaced and self._gives_twice((args, kwargs)):
                    raise ByIdentity
                settled &= self._find_shared(found, tensors, after)
                self.captures = list(context.captures)
                settled &= known == self._size() and len(placed) == len(carry.kinds())
                if settled:
                    self._complete(context, region, [*params, *placed], found, tensors, after)
        except _Retrace:
            self.captures = list(context.captures)
            return False
        return settled

    def _check_size(self, position: int) -> None:
        if self.params[position].rows is not None:
            with about_definition(self.entry.code):
                fail(
                    f"'{self.name}' calls itself with tensors whose size data decide, another one "
                    "on each level, and changes one of them in place",
                    "return the changed tensor, or compile with fallback=True",
                )

    def _size(self) -> tuple[int, ...]:
        return len(self.captures), len(self.mutated), len(self.replaced)

    def _settle(self, result: Any, given: Any, leaves: list[Any]) -> bool:
        """Learn the structure of the result. Returns True if it was already known."""
        poison = poisons(result)
        if poison is not None:
            poison.fail_at_origin()
        boxes = [] if self.opens_results else list(self.arguments.containers(given))
        names = {id(box): ("argument", number) for number, box in enumerate(boxes)}
        shape = RESULT.flatten(result, leaves, names)
        known = self.template
        found: list[LeafKind | Fixed | None] = [
            Fixed(leaf) if isinstance(leaf, bool | int | float) else _left_kind(leaf)
            for leaf in leaves
        ]
        if known is not None and is_mixed_number(result) and len(leaves) > len(known.leaves):
            known = None  # so far the number had one kind only
        if known is not None:
            if known.shape != shape:
                if not self.opens_results:
                    self.opens_results, self.template = True, None
                    raise _Retrace
                fail(
                    f"the recursive function '{self.name}' returns values of different structure "
                    f"({describe(result)})",
                    "return the same structure in all cases; where the length of a list differs, "
                    "pass a list as an argument and append to it",
                )
            found = [merge(a, b) for a, b in zip(known.leaves, leaves, strict=True)]
        merged = [leaf for leaf in found if leaf is not None]
        if len(merged) != len(found):
            fail(
                f"the recursive function '{self.name}' returns tensors of different types",
                "return the same shapes and dtypes in all cases",
            )

        def build(values: list[Any], theirs: list[Any]) -> Any:
            supply = list(values)
            every = [x.value if isinstance(x, Fixed) else supply.pop(0) for x in merged]
            ours = {id(box): other for box, other in zip(boxes, theirs, strict=False)}
            return RESULT.rebuild(result, every, ours)

        self.template = ResultTemplate(merged, build, shape)
        return known is not None and known.leaves == merged

    def _left(self, given: Any, shape: Hashable) -> list[Any]:
        """Return the leaves of the arguments at the end of the function. Raises ByIdentity if a
        list or dict has changed its structure."""
        after = list[Any]()
        boxes = self.arguments.containers(given) if self.arguments.by_content else ()
        if any(id(box) in tracer().replaced_lists for box in boxes):
            raise ByIdentity
        if self.arguments.flatten(given, after) != shape:
            raise ByIdentity
        return after

    def _find_replaced(self, tensors: list[Any], after: list[Any]) -> None:
        """Record the arguments in lists and dicts that the function has replaced by other
        values."""
        for position, (tensor, item) in enumerate(zip(tensors, after, strict=True)):
            kind = kind_of(item)
            if item is tensor or position in self.replaced:
                continue
            if kind is None or unify(self.params[position], kind) is None:
                with about_definition(self.entry.code):
                    fail(
                        f"'{self.name}' is given {describe(tensor)} in a list or dict, and leaves "
                        f"{describe(item)} there",
                        "give the items one shape and dtype",
                    )
            self.replaced.append(position)

    def _find_shared(self, leaves: list[Any], tensors: list[Any], after: list[Any]) -> bool:
        """Learn which memory the results may share. Returns True if the same results are arguments
        as before."""
        left = [after[position] for position in self.replaced]
        reached = set[Storage]().union(*map(overlapping, storages_of([leaves, left])))
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
        """Return the pairs of arguments, and of an argument and an outer storage, that may share
        memory."""
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
        """Learn how the arguments of this call may share memory where those of the first call do
        not."""
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
        region: TracedRegion,
        params: list[Value],
        leaves: list[Any],
        tensors: list[Any],
        after: list[Any],
    ) -> None:
        """Make the IR function: its yields are the results, changed and replaced arguments, and
        carried state."""
        assert self.template is not None and self.carry is not None
        pairs = zip(leaves, self.template.leaves, strict=True)
        yields = [materialize(leaf, kind) for leaf, kind in pairs if isinstance(kind, LeafKind)]
        yields += [tracer().read(tensors[position]) for position in self.mutated]
        yields += [
            materialize(after[position], self.params[position]) for position in self.replaced
        ]
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
        """Emit a CallOp with these arguments and return the rebuilt result. outermost: it is the
        call from outside of the function."""
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
        changed = [self.params[i] for i in (*self.mutated, *self.replaced)]
        kinds = [*template.kinds, *changed, *carry.kinds()]
        results = state.emit(CallOp(self.name, tuple(values)), [kind.type for kind in kinds])
        count = len(template.kinds)
        made = [wrap(v, k) for v, k in zip(results[:count], template.kinds, strict=True)]
        rest = results[count + len(changed) :]
        if outermost:
            carry.finish(rest)
        elif not self.finished:
            carry.update(rest)
        for position, value in zip(self.mutated, results[count:], strict=False):
            state.assign(leaves[position], value)
        kept = [n for n, leaf in enumerate(template.leaves) if isinstance(leaf, LeafKind)]
        sources = [leaves[item] if isinstance(item, int) else item for item in self.shared]
        for place, number in enumerate(kept):
            if number in self.returned:
                made[place] = leaves[self.returned[number]]
            else:
                link(made[place], sources)
        if self.replaced:
            first = count + len(self.mutated)
            self._put_back((args, kwargs), leaves, results[first:], sources)
        boxes = self.arguments.containers((args, kwargs))
        given = [carry.made.get(id(box), box) for box in boxes]
        built = template.build(made, given)
        if self.opens_results:
            self._note_copies(built, given)
        return built

    def _note_copies(self, built: Any, given: list[Any]) -> None:
        """Record that a returned list or dict may or may not be an argument; a later change of it
        would matter."""
        copies = list(RESULT.containers(built))
        if copies and tracer().keeps_apart:
            fail(
                f"'{self.name}' returns a list or dict that may be one of its arguments",
                "return a copy of it in all cases",
            )
        for copy in copies:
            note_copy(copy, given)

    def _gives_twice(self, given: Any) -> bool:
        """Return True if a list or dict that is flattened occurs twice among the arguments."""
        if not self.arguments.by_content:
            return False
        found = [id(box) for box in self.arguments.containers(given)]
        return len(set(found)) < len(found)

    def _put_back(
        self, given: Any, leaves: list[Any], values: tuple[Value, ...], sources: list[Any]
    ) -> None:
        """Store the values that the function leaves in lists and dicts of its arguments in those
        of the caller."""
        if self._gives_twice(given):
            fail(
                f"'{self.name}' changes a list or dict that it is given twice",
                "pass a copy of one of them",
            )
        for position, value in zip(self.replaced, values, strict=False):
            kind = self.params[position]
            made = wrap(value, kind, device=device_of(leaves[position]))
            link(made, sources)
            leaves[position] = made
        self.arguments.update(given, leaves)

    def _carried_here(self) -> list[Value]:
        """Return the carried state at a recursive call."""
        assert self.carry is not None and self.region is not None
        if self.finished:
            return []
        if not self.carry.end(self.region, is_last=False):
            raise _Retrace
        return list(self.carry.yields())


def passed_kind(code: CodeType, leaf: Any) -> LeafKind:
    """Return the kind in the Program of an argument of a function that calls itself."""
    kind = kind_of(leaf)
    assert kind is not None
    return decided_rows(kind) if code in tracer().hints.sized else kind


def _left_kind(leaf: Any) -> LeafKind | None:
    kind = kind_of(leaf)
    return None if kind is None else kind_after_call(kind)


def _is_same(first: Any, second: Any) -> bool:
    """Return True if two traced tensors are the same whole memory."""
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

"""Calls of functions that call themselves: functions of the Program.

A call whose arguments have the same form as those of a call that is being interpreted would never
end. Interpretation goes back to that call, which becomes a function: its params are the leaves of
the arguments and of the places that it changes, as for a loop; its results those of its value and
of these places.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from experiments.reader.heap import ITEMS, Change, Place, Ref
from experiments.reader.regions import (
    Leaf,
    Loop,
    NotOneForm,
    Regions,
    _list_kind,
    accepts,
    form_of,
    leaves,
)
from stretto.frontends.python.calls.recursion import _may_recurse
from stretto.frontends.python.tracing.signals import RecursionFound, Replan, UnknownResult, abort, fail
from stretto.frontends.python.tracing.tensor import FunctionContext, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.leaves import kind_of
from stretto.frontends.python.values.scalars import LeafKind
from stretto.ir.core import Function, Value
from stretto.ir.ops import CallOp


def signature(value: Any) -> Hashable:
    """Return a key of the form of an argument."""
    if isinstance(value, bool | int | float | str | None):
        return type(value), repr(value)
    kind = kind_of(value)
    if kind is not None:
        return kind
    if isinstance(value, tuple):
        return type(value), tuple(map(signature, value))
    if isinstance(value, Ref):
        return value.kind, tuple((repr(k), content(v)) for k, v in value.table.items())
    return id(value)


def blurred(value: Any) -> Hashable:
    """Return the same key without the lengths of lists whose items are of one kind."""
    if isinstance(value, tuple):
        return type(value), tuple(map(blurred, value))
    if isinstance(value, Ref) and value.kind is list:
        items = value.table[ITEMS]
        kind = _list_kind(items) if items != () else "empty"
        return list, "empty" if kind == "empty" else kind
    return signature(value)


def content(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple((repr(k), signature(v)) for k, v in value.items())
    return signature(value)


@dataclass(eq=False)
class Active:
    key: Hashable
    code: Any
    loose: Hashable


@dataclass(eq=False)
class Recursion(Loop):
    """A function of the Program that is found by interpreting it until its forms stay."""

    name: str = ""
    args: list[Any] = field(default_factory=list)
    result: Any = None
    captures: list[Value] = field(default_factory=list)
    is_done: bool = False

    def inputs(self, given: tuple[Any, ...]) -> list[Value]:
        found: list[Value] = []
        for form, value in zip(self.args, given, strict=True):
            self._flatten(form, value, found)
        now = {place: c.table.get(c.key) for place, c in self.changes.items()}
        return found + self.values(now) + [tracer().use(value) for value in self.captures]

    def call(self, given: tuple[Any, ...]) -> Any:
        """Emit a call of the function."""
        state = tracer()
        if self.result is None:
            raise UnknownResult(
                self.name,
                abort("the result of a recursion is not known", "return a value in some case"),
            )
        kinds = [leaf.kind for leaf in leaves(self.result)] + self.kinds()
        results = iter(
            state.emit(CallOp(self.name, tuple(self.inputs(given))), [k.type for k in kinds])
        )
        made = self._built(self.result, results, frozenset())
        self.place(results, frozenset())
        return made


class Calls:
    """Calls of functions that may call themselves."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.active: list[Active] = []
        self.known: dict[Hashable, Recursion] = {}

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        interpreter, heap = self.regions.interpreter, self.regions.heap
        code = function.__code__
        if code.co_flags & 0x20:
            return interpreter.run(function, args, kwargs)
        given = (*args, *(kwargs[name] for name in sorted(kwargs)))
        same = (
            id(code),
            tuple(id(c) for c in function.__closure__ or ()),
            len(args),
            tuple(sorted(kwargs)),
        )
        key = (*same, tuple(map(signature, given)))
        loose = (*same, "any length", tuple(map(blurred, given)))
        for known in (key, loose):
            if known in self.known:
                return self.known[known].call(given)
        if any(active.key == key for active in self.active):
            raise RecursionFound(key)
        if loose[-1] != key[-1] and sum(active.loose == loose for active in self.active) > 1:
            raise RecursionFound(loose)
        if sum(active.code is code for active in self.active) > 100:
            fail(
                f"{code.co_name} calls itself more than 100 levels deep",
                "pass what differs as a tensor",
            )
        self.active.append(Active(key, code, loose))
        depth = len(self.active)
        if not _may_recurse(code):
            try:
                return interpreter.run(function, args, kwargs)
            except RecursionFound as found:
                if found.key not in (key, loose):
                    raise
                tracer().hints.recursive.add(code)
                raise Replan from None
            finally:
                del self.active[depth - 1 :]
        mark, frames = heap.mark(), list(interpreter.frames)
        try:
            with tracer().transaction() as rollback:
                try:
                    return interpreter.run(function, args, kwargs)
                except RecursionFound as found:
                    if found.key not in (key, loose):
                        raise
                    key = found.key
                rollback()
            heap.undo(mark)
            interpreter.frames[:] = frames
        finally:
            del self.active[depth - 1 :]
        return self.outline(key, function, len(args), tuple(sorted(kwargs)), given)

    def outline(
        self, key: Hashable, function: Any, count: int, names: Any, given: tuple[Any, ...]
    ) -> Any:
        state, interpreter, heap = tracer(), self.regions.interpreter, self.regions.heap
        base = function.__code__.co_name.strip("<>")
        name, number = base, 1
        while name in state.functions or name == "main":
            number += 1
            name = f"{base}_{number}"
        state.functions[name] = None
        made = Recursion(self.regions, None, None, name=name)
        made.args = [form_of(value, heap.count + 1) for value in given]
        self.known[key] = made
        for value in given:
            self.add_content(made, value, "any length" in key)
        frames = list(interpreter.frames)
        try:
            for _ in range(12):
                if self.attempt(made, function, count, names, given):
                    break
            else:
                fail("the types in a recursive function keep changing", "give them one type")
        except BaseException:
            self.known.pop(key)
            raise
        finally:
            interpreter.frames[:] = frames
        return made.call(given)

    def add_content(self, made: Recursion, value: Any, is_loose: bool) -> None:
        """Pass the content of containers among the arguments, too."""
        if isinstance(value, tuple):
            for item in value:
                self.add_content(made, item, is_loose)
        if isinstance(value, Ref):
            for key, item in value.table.items():
                form = form_of(item, self.regions.heap.count + 1)
                if is_loose and key is ITEMS and isinstance(item, tuple) and item and _list_kind(item):
                    form = Leaf(_list_kind(item))
                if any(True for _ in leaves(form)):
                    place = id(value.table), key
                    made.forms[place] = form
                    made.changes[place] = Change(value.table, key, item, item)
                for inner in item if isinstance(item, tuple) else ():
                    self.add_content(made, inner, is_loose)

    def attempt(self, made: Recursion, function: Any, count: int, names: Any, given: Any) -> bool:
        state, interpreter, heap = tracer(), self.regions.interpreter, self.regions.heap
        context = FunctionContext(made.name)
        mark = heap.mark()
        made.unbound = {}
        known = made.result, len(made.captures)
        self.regions.depth += 1
        try:
            with state.region(context) as region:
                kinds = [leaf.kind for form in made.args for leaf in leaves(form)]
                params = [state.param(kind.type) for kind in kinds]
                carried = [state.param(kind.type) for kind in made.kinds()]
                for value in made.captures:
                    context.captures[value] = state.param(value.type, value.hint)
                supply = iter(params)
                args = [made._built(form, supply, frozenset()) for form in made.args]
                made.place(iter(carried), frozenset())
                made.born = heap.count
                result = interpreter.run(
                    function, tuple(args[:count]), dict(zip(names, args[count:], strict=True))
                )
                settled = made.learn(region, mark)
                before = made.result
                if before is None:
                    made.result = form_of(result, made.born)
                else:
                    made.result = made.wider(before, result, result, "the result")
                settled &= made.result is before
                made.captures = list(context.captures)
                settled &= known[1] == len(made.captures)
                if settled:
                    found: list[Value] = []
                    made._flatten(made.result, result, found)
                    block = region.scope.block
                    block.yields = (*found, *made.values(made.ends()))
                    inner = tuple(context.captures[value] for value in made.captures)
                    block.params = (*params, *carried, *inner)
                    state.close_function(context, block)
                    state.functions[made.name] = Function(made.name, block)
                return settled
        finally:
            self.regions.depth -= 1
            heap.undo(mark)

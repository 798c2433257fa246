"""Forms of values that a loop carries, or that a function of the Program gets.

A form is a tree. Its leaves are values of the Program (`Carried`), its other nodes say what is the
same in every iteration: a value, the shape of a tuple, the class of an object that each iteration
makes anew. A value that is one of several has a form for each, with a flag.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from stretto.frontends.python.interpreter.frames import BoundMethod
from stretto.frontends.python.interpreter.growing import known_sizes, rows_of
from stretto.frontends.python.interpreter.heap import CELL, ITEMS, MISSING, HeapObject
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import (
    NeedsPeel,
    NeedsUnroll,
    Poison,
    abort,
)
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.arithmetic import is_counter
from stretto.frontends.python.values.data import DataObject, DataUnion
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import (
    Carried,
    items_kind,
    kind_beside,
    kind_of,
    layout_of,
)
from stretto.frontends.python.values.scalars import LeafKind, number_kind, unify
from stretto.frontends.python.values.state import (
    TracedList,
    are_of_one_form,
    describe,
    equal_leaves,
    parts_of,
)
from stretto.ir.types import FLAG, TensorListType

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.regions import Regions

_PLACES = {ITEMS: "the content of a container", CELL: "a variable of an outer function"}
_MOST_OPTIONS = 6
"""The largest number of kinds of a carried value."""


def is_empty(side: Any) -> bool:
    """True for the content of an empty list, which can hold items of any kind."""
    return isinstance(side, tuple) and not side


def list_kind(side: Any) -> LeafKind | None:
    """Return the kind of the list of the Program that can hold a content; None if none can."""
    if isinstance(side, TracedList):
        return kind_of(side)
    kind = items_kind(side)
    if kind is None or isinstance(kind.type, TensorListType):
        return None
    return LeafKind(TensorListType(kind.type), kind.number)


@dataclass(eq=False)
class SameForm:
    """A value that is the same in every iteration."""

    value: Any


@dataclass(eq=False)
class PartsForm:
    """A tuple or a text, or the content of a container."""

    like: Any
    parts: dict[Any, Any]


@dataclass(eq=False)
class MadeForm:
    """A container or an object that each iteration makes anew. like: one of them."""

    kind: type
    table: dict[Any, Any]
    like: Any
    init: Any = None
    end: Any = None


@dataclass(eq=False)
class OneOfForm:
    """One of several forms; the flags tell which one."""

    options: list[Any] = field(default_factory=list[Any])
    flags: list[Carried] = field(default_factory=list[Carried])


def new_flag() -> Carried:
    return Carried(LeafKind(FLAG, True), UNDEFINED)


def pairs_of(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Either) and not isinstance(value, DataUnion):
        pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
        return [(flag, option) for flag, option in pairs if flag is not False]
    return [] if value is UNDEFINED else [(True, value)]


def equal(first: Any, second: Any) -> bool:
    """True if two values are interchangeable."""
    if first is second or equal_leaves(first, second):
        return True
    match first, second:
        case types.MethodType(), types.MethodType():
            return first.__self__ is second.__self__ and first.__func__ is second.__func__
        case types.FunctionType(), types.FunctionType():
            return _are_one_function(first, second)
        case BoundMethod(), BoundMethod():
            return first.holder is second.holder and first.name == second.name
        case Poison(), Poison():
            return True
        case _:
            return False


def _are_one_function(first: types.FunctionType, second: types.FunctionType) -> bool:
    """True for functions that a loop makes anew, with the same variables around them."""
    heap = tracer().heap
    if not heap.is_own(first) or not heap.is_own(second) or first.__code__ is not second.__code__:
        return False
    cells = first.__closure__ or (), second.__closure__ or ()
    defaults = first.__defaults__ or (), second.__defaults__ or ()
    kept = heap.table_of(first), heap.table_of(second)
    held = tuple(kept[0].values()), tuple(kept[1].values())
    return kept[0].keys() == kept[1].keys() and all(
        len(one) == len(other) and all(map(operator.is_, one, other))
        for one, other in (cells, defaults, held)
    )


def described(value: Any) -> str:
    """Return a description of a value for error messages."""
    if isinstance(value, HeapObject):
        items = value.table.get(ITEMS)
        length = f" of {len(items)}" if isinstance(items, tuple | dict) else ""
        return f"a {value.kind.__name__}{length}"
    if isinstance(value, Either):
        return " or ".join(map(described, value.stretto_options))
    return "undefined" if value is MISSING else describe(value)


@dataclass(eq=False)
class FormLearning:
    """Finds the forms that values at the start and the end of an iteration have in common.

    start: the number of tables at the start of the loop. splits: True if a value may be one of
    several, where it is none yet; otherwise the first iteration has to run before the loop.
    loops: those that can be unrolled if there is no form.
    """

    regions: Regions
    start: int
    splits: bool
    loops: frozenset[int] = frozenset()
    where: str = "a traced loop"
    tables: tuple[dict[Any, Any], ...] = ()
    """The tables of the containers whose contents are compared."""

    def is_made(self, value: Any) -> bool:
        """True for a container or an object that was made in the loop."""
        heap = self.regions.heap
        if isinstance(value, types.FunctionType | type):
            return False
        if not isinstance(value, HeapObject) and not heap.is_own(value):
            return False
        return heap.is_born_after(heap.table_of(value), self.start)

    def table(self, value: Any) -> dict[Any, Any]:
        return self.regions.heap.table_of(value)

    def of_one_class(self, first: Any, second: Any) -> bool:
        """True if two objects have the same class and attributes."""
        type_of = self.regions.interpreter.attributes.type_of
        return (
            type_of(first) is type_of(second)
            and self.table(first).keys() == self.table(second).keys()
        )

    def become_one(self, before: Any, after: Any) -> bool:
        """True if an object that an iteration makes can be carried in place of one before it."""
        return (
            self.is_made(after) and self.is_replaceable(before) and self.of_one_class(before, after)
        )

    def is_replaceable(self, value: Any) -> bool:
        if isinstance(value, types.FunctionType | type | DataObject):
            return False
        heap = self.regions.heap
        is_inside = value.origin is None if isinstance(value, HeapObject) else heap.is_own(value)
        return is_inside and (self.is_made(value) or not tracer().keeps_apart)

    # -- new forms ------------------------------------------------------------------------------

    def alone(self, value: Any) -> Any:
        """Return the form of a value alone."""
        kind = None if isinstance(value, torch.SymInt) else kind_of(value)
        if kind is not None:
            return Carried(kind, UNDEFINED, value, layout_of(value))
        parts = None if isinstance(value, Either) else parts_of(value)
        if parts is not None:
            return PartsForm(value, {n: self.alone(item) for n, item in enumerate(parts)})
        if isinstance(value, Either):
            return self.more(OneOfForm(), value)
        if self.is_made(value):
            items = self.table(value).items()
            return MadeForm(
                self.regions.interpreter.attributes.type_of(value),
                {k: self.of_content(v) if k is ITEMS else self.alone(v) for k, v in items},
                value,
            )
        return SameForm(self.stable(value))

    def of_content(self, items: Any) -> Any:
        if isinstance(items, dict):
            return PartsForm({}, {key: self.alone(item) for key, item in items.items()})
        if isinstance(items, tuple):
            return PartsForm((), {n: self.alone(item) for n, item in enumerate(items)})
        return self.alone(items)

    def stable(self, value: Any) -> Any:
        """Return a value, or a poison for one that each iteration makes anew and whose content no
        table has."""
        is_function = isinstance(value, types.FunctionType) and self.regions.heap.is_own(value)
        if is_function and any(
            self.regions.heap.is_born_after(self.table(cell), self.start)
            for cell in value.__closure__ or ()
        ):
            return Poison(
                "a function that a traced loop makes is used after an iteration",
                "make it in the iteration that uses it",
            )
        return value

    def joint(self, before: Any, after: Any, name: Any) -> Any:
        """Return the form that two values have in common."""
        if isinstance(before, Poison) or isinstance(after, Poison):
            return SameForm(before if isinstance(before, Poison) else after)
        if equal(before, after):
            return SameForm(before)
        if before is UNDEFINED:
            return self.alone(after)
        if name is ITEMS:
            return self.joint_content(before, after)
        rows = rows_of(None, before, after, promote=self.splits)
        dim = None if rows is None else rows.rows
        # a size of 1 may change in the first iteration alone
        if (
            rows is not None
            and dim is not None
            and (isinstance(before, Either) or 1 not in known_sizes(before, dim))
        ):
            return Carried(rows, before, after)
        other = kind_beside(after, kind_of(before))
        kinds = kind_beside(before, other), other
        kind = None if None in kinds else unify(*kinds)  # type: ignore[arg-type]
        if kind is not None:
            return Carried(kind, before, after, layout_of(before, after))
        if not isinstance(before, Either) and are_of_one_form(before, after):
            pairs = zip(parts_of(before) or (), parts_of(after) or (), strict=True)
            return PartsForm(
                before, {n: self.joint(a, b, f"{name}[{n}]") for n, (a, b) in enumerate(pairs)}
            )
        if tracer().data is not None:
            kind = tracer().data.open_kind(before, after)
            if kind is not None:
                return Carried(kind, before, after)
        if self.become_one(before, after):
            first, second = self.tables = self.table(before), self.table(after)
            return MadeForm(
                self.regions.interpreter.attributes.type_of(after),
                {key: self.joint(first[key], second[key], key) for key in second},
                after,
            )
        return self.several(before, after, name)

    def joint_content(self, before: Any, after: Any) -> Any:
        if isinstance(before, dict) and isinstance(after, dict):
            return PartsForm({}, self.entries(before, after, {}))
        if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
            pairs = enumerate(zip(before, after, strict=True))
            return PartsForm((), {n: self.joint(a, b, f"[{n}]") for n, (a, b) in pairs})
        if tracer().data is not None:
            tracer().data.become_data(*self.tables)
        sides = [side for side in (before, after) if not is_empty(side)]
        kinds = [list_kind(side) for side in sides]
        kind = kinds[0]
        for other in kinds[1:]:
            kind = unify(kind, other) if kind and other else None
        if kind is None:
            self.fail_items(sides[-1])
        return Carried(kind, before, after)

    def entries(self, before: Any, after: dict[Any, Any], known: dict[Any, Any]) -> dict[Any, Any]:
        """Return the forms of the entries of a dict: an entry may be missing in some runs."""
        olds: dict[Any, Any] = {} if before is UNDEFINED else before
        keys = [*olds, *(key for key in after if key not in olds)]
        if [key for key in keys if key in after] != list(after):
            raise self.unroll_or(
                "the keys of a dict have another order after an iteration of a traced loop",
                "change the order outside of the loop, or use a list",
            )
        found: dict[Any, Any] = {}
        for key in [*known, *(key for key in keys if key not in known)]:
            one, other = olds.get(key, MISSING), after.get(key, MISSING)
            one = UNDEFINED if before is UNDEFINED else one
            form = known.get(key)
            wider = self.joint(one, other, f"[{key!r}]") if form is None else None
            found[key] = self.wider(form, one, other, f"[{key!r}]") if wider is None else wider
        return found

    # -- values that are one of several ---------------------------------------------------------

    def several(self, before: Any, after: Any, name: Any) -> OneOfForm:
        """Return the form of a value that is one of several."""
        are_numbers = number_kind(before) is not None and number_kind(after) is not None
        is_one_of = isinstance(before, Either) or isinstance(after, Either)
        is_unbound = before is MISSING or after is MISSING
        if not self.splits and not are_numbers and not is_one_of and not is_unbound:
            raise self.peel(name, before, after)
        return self.more(self.more(OneOfForm(), before), after, name)

    def more(self, form: OneOfForm, value: Any, name: Any = "a value") -> OneOfForm:
        """Return the form with the options that a value needs."""
        options, flags = list(form.options), list(form.flags)
        for _, option in pairs_of(value):
            for number, known in enumerate(options):
                found = self.alike(known, option)
                if found is not None:
                    options[number] = found
                    break
            else:
                options.append(self.alone(option))
                flags.append(new_flag())
        if len(options) > _MOST_OPTIONS:
            raise self.peel(
                name, *(getattr(o, "end", getattr(o, "value", o)) for o in options[-2:])
            )
        same = len(options) == len(form.options) and all(
            a is b for a, b in zip(options, form.options, strict=True)
        )
        return form if same else OneOfForm(options, flags)

    def alike(self, form: Any, value: Any) -> Any:
        """Return the form of one option with what a value needs; None if it is of another kind."""
        match form:
            case SameForm(value=known):
                return form if equal(known, value) else None
            case Carried(kind=kind):
                found = None if isinstance(value, torch.SymInt) else kind_beside(value, kind)
                is_alike = found is not None and unify(kind, found) is not None
                if not is_alike and rows_of(kind, value, promote=False) is None:
                    return None
                return self.wider(form, UNDEFINED, value, "a value")
            case PartsForm(like=like):
                if isinstance(value, Either) or not are_of_one_form(like, value):
                    return None
                return self.wider(form, UNDEFINED, value, "a value")
            case MadeForm(kind=kind, table=table):
                if not self.is_made(value) or self.table(value).keys() != table.keys():
                    return None
                if self.regions.interpreter.attributes.type_of(value) is not kind:
                    return None
                return self.wider(form, UNDEFINED, value, "a value")
            case _:
                return None

    # -- wider forms ----------------------------------------------------------------------------

    def wider(self, form: Any, before: Any, after: Any, name: Any) -> Any:
        """Return the form with what the end of another iteration needs."""
        match form:
            case SameForm(value=value):
                if isinstance(value, Poison) or equal(value, after):
                    return form
                return self.joint(value, after, name)
            case _ if isinstance(after, Poison):
                return SameForm(after)
            case Carried():
                return self.wider_leaf(form, before, after, name)
            case OneOfForm():
                rows = rows_of(None, before, after, promote=self.splits)
                if rows is not None and rows.rows is not None:
                    return Carried(rows, before, after)
                return self.more(form, after, name)
            case PartsForm(like=like, parts=parts) if isinstance(after, dict):
                new = self.entries(before, after, parts)
                same = new.keys() == parts.keys() and all(new[k] is parts[k] for k in parts)
                return form if same else PartsForm(like, new)
            case PartsForm(like=like, parts=parts):
                items = self.parts(after, name)
                if items is None or len(items) != len(parts):
                    return self.another(before, after, name)
                olds = [UNDEFINED] * len(parts)
                olds = olds if before is UNDEFINED else list(self.parts(before, name) or olds)
                inner = "" if name is ITEMS else name
                new = {
                    n: self.wider(f, olds[n], items[n], f"{inner}[{n}]") for n, f in parts.items()
                }
                return form if all(new[k] is parts[k] for k in parts) else PartsForm(like, new)
            case MadeForm(kind=kind, table=table):
                if self.alike_class(form, after) is False:
                    return self.another(before, after, name)
                olds = {} if before is UNDEFINED else self.table(before)
                ends = self.table(after)
                self.tables = olds, ends
                new = {
                    k: self.wider(f, olds.get(k, UNDEFINED), ends[k], k) for k, f in table.items()
                }
                same = all(new[k] is table[k] for k in table)
                return form if same else MadeForm(kind, new, form.like)
            case _:
                raise AssertionError(form)

    def parts(self, value: Any, name: Any) -> Any:
        if name is ITEMS:
            return value if isinstance(value, tuple) else None
        return None if isinstance(value, Either) else parts_of(value)

    def alike_class(self, form: MadeForm, value: Any) -> bool:
        if not self.is_made(value) and value is not form.init:
            return False
        return (
            self.regions.interpreter.attributes.type_of(value) is form.kind
            and self.table(value).keys() == form.table.keys()
        )

    def another(self, before: Any, after: Any, name: Any) -> Any:
        """Return the form of a value that is of another kind than it was so far."""
        if before is UNDEFINED:
            raise self.peel(name, before, after)
        return self.joint(before, after, name)

    def wider_leaf(self, leaf: Carried, before: Any, after: Any, name: Any) -> Any:
        if isinstance(leaf.kind.type, TensorListType) and leaf.kind.rows is None:
            if is_empty(after):
                found = leaf.kind
            else:
                found = list_kind(after) if isinstance(after, tuple | TracedList) else None
            if found is None or unify(leaf.kind, found) is None:
                self.fail_items(after)
            leaf.end = after
            return leaf
        rows = rows_of(leaf.kind, after, promote=self.splits)
        if rows is not None and rows.rows is not None:
            leaf.end = after
            return leaf if rows == leaf.kind else Carried(rows, before, after)
        found = None if isinstance(after, torch.SymInt) else kind_beside(after, leaf.kind)
        joint = None if found is None else unify(leaf.kind, found)
        if joint is None:
            if before is UNDEFINED:
                return self.more(self.more(OneOfForm(), leaf.end), after, name)
            return self.several(before, after, name)
        layout = layout_of(before, after)
        counts = leaf.counts and is_counter(before, after)
        if joint == leaf.kind and layout == leaf.layout and counts == leaf.counts:
            leaf.end = after
            return leaf
        return Carried(joint, before, after, layout, counts=counts)

    # -- forms of earlier runs ------------------------------------------------------------------

    def again(self, form: Any, before: Any) -> Any:
        """Return a form that a loop had when it was run before, for what the place holds now; None
        if that has no such form. UNDEFINED: it holds nothing of that form."""
        match form:
            case SameForm(value=value):
                return form if before is UNDEFINED or equal(value, before) else None
            case Carried():
                return self.leaf_again(form, before)
            case PartsForm(like=like, parts=parts):
                new = self.all_again(parts, self.parts_before(form, before))
                return None if new is None else PartsForm(like, new)
            case MadeForm(kind=kind, table=table, like=like):
                held = {}
                if before is not UNDEFINED:
                    type_of = self.regions.interpreter.attributes.type_of
                    if not self.is_replaceable(before) or type_of(before) is not kind:
                        return None
                    held = self.table(before)
                    if held.keys() != table.keys():
                        return None
                new = self.all_again(table, held)
                return None if new is None else MadeForm(kind, new, like)
            case OneOfForm(options=options):
                made = [self.again(option, UNDEFINED) for option in options]
                if None in made or not all(self.is_option(made, v) for _, v in pairs_of(before)):
                    return None
                return self.more(OneOfForm(made, [new_flag() for _ in made]), before)
            case _:
                raise AssertionError(form)

    def is_option(self, forms: list[Any], value: Any) -> bool:
        return any(self.alike(form, value) is not None for form in forms)

    def all_again(self, forms: dict[Any, Any], held: dict[Any, Any] | None) -> Any:
        """Return `again` of each form; None if there is none for one of them."""
        if held is None:
            return None
        found = {key: self.again(form, held.get(key, UNDEFINED)) for key, form in forms.items()}
        return None if None in found.values() else found

    def parts_before(self, form: PartsForm, before: Any) -> dict[Any, Any] | None:
        """Return what a place holds for each part of a form; None if that has other parts."""
        like, parts = form.like, form.parts
        if before is UNDEFINED:
            return {}
        if isinstance(like, dict):
            if not isinstance(before, dict) or [*before] != [*parts][: len(before)]:
                return None
            return dict.fromkeys(parts, MISSING) | before
        if like == ():
            items = before if isinstance(before, tuple) else None
        else:
            items = parts_of(before) if are_of_one_form(like, before) else None
        return dict(enumerate(items)) if items is not None and len(items) == len(parts) else None

    def leaf_again(self, leaf: Carried, before: Any) -> Carried | None:
        if leaf.kind.rows is not None:
            return None
        if before is UNDEFINED or (is_list(leaf) and is_empty(before)):
            found = leaf.kind
        elif is_list(leaf):
            found = list_kind(before) if isinstance(before, tuple | TracedList) else None
        else:
            found = None if isinstance(before, Either | Poison) else kind_of(before)
        if found is None or unify(leaf.kind, found) != leaf.kind:
            return None
        same = before is UNDEFINED or layout_of(before) == leaf.layout
        layout = leaf.layout if same else None
        return Carried(leaf.kind, before, before, layout)

    # -- refusals -------------------------------------------------------------------------------

    def peel(self, name: Any, before: Any, after: Any) -> NeedsPeel:
        """Return the signal that the first iteration must run before the loop."""
        what = ("a traced loop", "one round", "before the loop")
        if self.where != what[0]:
            what = (self.where, "the call", "before the call and behind it")
        around, one, place = what
        shown = _PLACES.get(name) or f"'{name}'"
        shown = "the returned value" if str(name).startswith("<") else shown
        before, after = (x.value if isinstance(x, SameForm) else x for x in (before, after))
        return NeedsPeel(
            abort(
                f"{shown} is {described(before)} before {around} and {described(after)} after "
                f"{one}",
                f"give {shown} the same structure, shape and dtype {place}",
            )
        )

    def unroll_or(self, message: str, remedy: str) -> BaseException:
        stop = abort(message, remedy)
        return NeedsUnroll(self.loops, stop) if self.loops else stop

    def fail_items(self, content: Any) -> NoReturn:
        """Fail for a list that grows or shrinks and whose items no list of the Program can hold."""
        if self.loops:
            raise self.unroll_or(
                "a list grows or shrinks in a traced loop whose items are not of one kind",
                "append tensors of one shape and dtype",
            )
        item = content[-1] if isinstance(content, tuple) and content else content
        where = "a traced loop" if self.where == "a traced loop" else "a recursive function"
        raise NeedsPeel(
            abort(
                f"a list grows or shrinks in {where} whose items are not tensors or numbers of one "
                f"shape and dtype, but {described(item)}",
                "append tensors of one shape and dtype; for items of several parts, keep one list "
                "for each part; or compile with fallback=True",
            )
        )


def is_list(leaf: Carried) -> bool:
    """True for a leaf that is a list of the Program, not a tensor made of its items."""
    return isinstance(leaf.kind.type, TensorListType) and leaf.kind.rows is None


def walk(form: Any) -> Iterator[Any]:
    """Yield a form and everything inside of it."""
    yield form
    match form:
        case OneOfForm(options=options):
            for option in options:
                yield from walk(option)
        case PartsForm(parts=parts):
            for inner in parts.values():
                yield from walk(inner)
        case MadeForm(table=table):
            for inner in table.values():
                yield from walk(inner)
        case _:
            pass


def is_tensor(value: Any) -> bool:
    return isinstance(value, TracedTensor) and value.number is None

"""Values of the data dialect, while a function is captured for one instance.

An argument of the function is a value of the Program. Here it becomes a value of the interpreter: a
number is a traced number, an object has a table whose reads and writes are ops, a value of several
types is one of several. The other way round, values that the program makes become data where an
attribute or a list of data gets them.
"""

from __future__ import annotations

import dataclasses
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, EnumMeta
from typing import Any, NoReturn

from stretto.batching.capture import instance_errors, instance_numbers
from stretto.batching.capture.instance_texts import InstanceTexts
from stretto.batching.instances.types import InstanceTypes, joined, tensor_as_data
from stretto.errors import CaptureError
from stretto.frontends.python.interpreter.data_dicts import DataDict, FixedItems
from stretto.frontends.python.interpreter.heap import ITEMS, MISSING, DataRef, HeapObject, Ref
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.locations import is_user_file
from stretto.frontends.python.tracing.signals import (
    Replan,
    UnknownResult,
    abort,
    fail,
)
from stretto.frontends.python.tracing.tensor import Hooks, Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataObject, DataTable, DataUnion, is_here
from stretto.frontends.python.values.either import Either, options_of
from stretto.frontends.python.values.leaves import kind_of, materialize, wrap
from stretto.frontends.python.values.scalars import LeafKind, is_number
from stretto.frontends.python.values.texts import is_text
from stretto.ir.core import Literal, Op, Value
from stretto.ir.data import AssignOp, ReadOp
from stretto.ir.types import (
    NEVER,
    DataType,
    DictType,
    DType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorListType,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
    union,
)

OF_NUMBERS = {DType.I64: Scalar.INT, DType.F64: Scalar.FLOAT, DType.BOOL: Scalar.BOOL}
NUMBERS = {Scalar.INT: DType.I64, Scalar.FLOAT: DType.F64, Scalar.BOOL: DType.BOOL}


def emit(op: Op, *types: Any) -> Value:
    """Emit an op with a result of a type of data."""
    return tracer().emit(op, types)[0]


def operation(op: str, args: tuple[Any, ...], detail: Any = None) -> AssignOp:
    """Return a primitive on values of the Program."""
    return AssignOp(op, args, detail)


def leaf(type: Any, *, number: bool = False) -> LeafKind:
    """Return the kind of a leaf that is data."""
    return LeafKind(type, number)


def type_in_program(type: DataType) -> Any:
    """Return the type of a value in a Program: a number is a tensor without dims."""
    return TensorType(NUMBERS[type]) if type in NUMBERS else type


_POSITION = ("lineno", "col_offset", "end_lineno", "end_col_offset")
_KINDS = (list, dict, set, deque, defaultdict, OrderedDict, Counter)
"""Classes whose objects can be data of an instance."""


def _initial_fields(python: type) -> frozenset[str]:
    """Return the fields that objects of a class have from the start."""
    if dataclasses.is_dataclass(python):
        return frozenset(item.name for item in dataclasses.fields(python) if item.init)
    return frozenset(getattr(python, "_fields", ()))


def is_rows(type: DataType) -> bool:
    return isinstance(type, RowsType)


def type_as_data(type: TensorType) -> TensorType | RowsType:
    """Return the type of a tensor as data: one whose first size data decide is rows."""
    try:
        return tensor_as_data(type)
    except CaptureError as error:
        fail(error.message, error.remedy or "")


@dataclass(eq=False)
class InstanceData(InstanceTexts):
    """The state of a capture for instances: their types, and which values are numbers.

    evaluation: classes, and the types in cells.
    """

    evaluation: InstanceTypes
    interpreter: Any
    is_final: bool = False
    """True if types do not grow any more: a place where a value has no type raises an error."""
    numbers: set[Value] = field(default_factory=set[Value])
    """Values that are Python numbers, not tensors."""
    casts: set[Value] = field(default_factory=set[Value])
    """Values of several types, each as the one that it is in some runs."""
    read: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """For a tensor of which the number was read, that number."""
    known: dict[tuple[Value, str], tuple[Any, Value]] = field(
        default_factory=dict[tuple[Value, str], tuple[Any, Value]]
    )
    """Attributes that have been read, of those that are never set, with the value read."""
    kept_as_it_is: set[Storage] = field(default_factory=set[Storage])
    """Memory of tensors that may be an instance's: nothing is written to it."""
    sites: dict[int, Hashable] = field(default_factory=dict[int, Hashable])
    """The places that make containers, by the ids of their tables."""
    lacks_types: bool = False
    """True if a place was left out, as there are no values of a type yet."""
    kept: list[Any] = field(default_factory=list[Any])
    """Objects that are kept alive, as they are known by their ids."""

    def number_in(self, value: Value) -> Value:
        """Return the number in a tensor of one element: the instance waits for it."""
        known = self.read.get(value)
        if known is None or not is_here(known):
            tensor: Any = value
            known = emit(ReadOp(tensor), value.type)
            self.numbers.add(known)
            self.read[value] = known
        return known

    def is_harmless(self, op: AssignOp) -> bool:
        """True for an op that may run where the program would skip it. An attribute may be read
        of an object that is surely one of its class, and so may a number."""
        if op.op in ("get", "has") or op.op in instance_numbers.HARMLESS:
            return self.casts.isdisjoint(x for x in op.args if isinstance(x, Value))
        return op.op in ("has_type", "cast", "is", "not", "item")

    # -- values ---------------------------------------------------------------------------------

    def wrap(self, value: Value, type: DataType) -> Any:
        """Return the value of the interpreter for one of the Program."""
        state = tracer()
        match type:
            case Scalar.NONE:
                return None
            case Scalar.STR:
                return self.text_of(value)
            case Scalar():
                return state.number(value)
            case TensorType():
                return wrap(value, LeafKind(type, False))
            case RowsType(row):
                return self.rows(value, row)
            case RecordType() if self.evaluation.info(type).kind == "dict":
                return self.fixed_dict(value, type)
            case RecordType() if issubclass(self.evaluation.info(type).python, Enum):
                return self.one_of(value, [type])
            case RecordType() if self.evaluation.info(type).kind == "namedtuple":
                held = self.record(value, type)
                return tuple.__new__(
                    held.kind, map(held.table.get, self.evaluation.info(type).fields)
                )
            case RecordType():
                return self.record(value, type)
            case DictType():
                return self.container(dict, DataDict(value))
            case TupleType(items):
                return tuple(
                    self.made("item", (value,), item, number) for number, item in enumerate(items)
                )
            case ListType():
                return self.container(tuple if type.is_tuple else list, DataList(value))
            case UnionType(items):
                return self.one_of(value, sorted(items, key=str))
            case _:
                fail(f"data of type {type} in an instance", "pass data of another type")

    def rows(self, value: Value, row: TensorType, flag: Any = True) -> Any:
        """Return a tensor whose first size the instance has. flag: whether it is one at all."""
        state, branch = tracer(), self.interpreter.regions.branch
        held = branch(flag, lambda: self.made("len", (value,), Scalar.INT), lambda: 0)
        number = state.read(held)
        size = state.dim(state.new_symbol(number, low=0))
        type = TensorType(row.dtype, (size, *row.shape))
        return wrap(emit(operation("copy", (value,)), type), LeafKind(type, False))

    def made(self, op: str, args: tuple[Any, ...], type: DataType, detail: Any = None) -> Any:
        """Emit an op on data, and return its result."""
        return self.wrap(emit(operation(op, args, detail), type_in_program(type)), type)

    def one_of(self, value: Value, types: list[DataType]) -> DataUnion:
        """Return a value of several types, or a member of an enumeration, as one of several
        values."""

        def split() -> tuple[Any, Any, Value]:
            held, flags, options = tracer().use(value), list[Any](), list[Any]()
            for type in types:
                flag: Any = True
                if len(types) > 1:
                    flag = self.made("has_type", (held,), Scalar.BOOL, (type,))
                members = self.members(type)
                if members:
                    name = self.name_of_member(held, type, flag)
                    flags += [self.compared("eq", name, member.name) for member in members]
                    options += members
                else:
                    flags.append(flag)
                    options.append(self.option(held, type, flag))
            self.kept += [*flags, *options]
            return flags, options, flags[0].memory.state.base

        return DataUnion(value, split)

    def members(self, type: DataType) -> list[Any]:
        """Return the members of an enumeration; none for other types."""
        python: Any = self.evaluation.info(type).python if isinstance(type, RecordType) else None
        return list(python) if isinstance(python, EnumMeta) else []

    def name_of_member(self, value: Value, type: Any, flag: Any) -> Any:
        """Return the name of a member of an enumeration. flag: whether the value is one; an empty
        text if not."""

        def name() -> Any:
            held = value if flag is True else self.emit("cast", (value,), type, type)
            return self.record(held, type).table.get("_name_")

        return name() if flag is True else self.interpreter.regions.branch(flag, name, lambda: "")

    def option(self, value: Value, type: DataType, flag: Any) -> Any:
        """Return a value of several types as the one of one type. flag: whether it is of that."""
        if type is Scalar.NONE:
            return None
        is_named = isinstance(type, RecordType) and self.evaluation.info(type).kind == "namedtuple"
        if is_named or isinstance(type, TupleType):  # only such a value has these items
            branch = self.interpreter.regions.branch
            found = branch(flag, lambda: self.made("cast", (value,), type, type), lambda: MISSING)
            return next(x for x in found.stretto_options if x is not MISSING)
        if isinstance(type, RowsType):
            return self.rows(self.emit("cast", (value,), type, type), type.row, flag)
        found = self.made("cast", (value,), type, type)
        if isinstance(found, DataObject):
            self.casts.add(found.stored)
        elif is_number(found):
            self.casts.add(tracer().read(found))
        return found

    def record(self, value: Value, type: RecordType) -> DataObject:
        evaluation, hints = self.evaluation, tracer().hints

        def load(name: str) -> Any:
            if name in always_has or not tracer().tries.catch(AttributeError):
                return read_field(name)
            attributes, branch = self.interpreter.attributes, self.interpreter.regions.branch
            return branch(
                has(name), lambda: read_field(name), lambda: attributes.no_attribute(made, name)
            )

        def read_field(name: str) -> Any:
            current, info = made.value, evaluation.info(type)
            key = (current, name)
            found, read = self.known.get(key, (None, None))
            if read is None or not is_here(read):
                number = info.cells[info.fields.index(name)]
                problem = evaluation.foreign_in(number)
                if problem is not None:
                    fail(problem.message, problem.remedy or "")
                cell = evaluation.cells[number]
                read = emit(operation("get", (current,), name), type_in_program(cell))
                found = self.wrap(read, cell)
                if name not in hints.stored:
                    self.known[key] = found, read
            return found

        def store(name: str, item: Any) -> None:
            if name not in hints.stored:
                hints.stored.add(name)
                raise Replan
            info = evaluation.info(type)
            evaluation.class_number(info.python, info.kind, (*info.fields, name))
            cell = evaluation.field_cell(type, name)
            assert cell is not None
            kind = self.type_at(item, ("field", type.number, name))
            evaluation.grow(cell, kind)
            held = self.value_at(item, kind)
            tracer().emit(operation("set", (made.value, held), name), ())

        def has(name: str) -> Any:
            if name in always_has:
                return True
            return self.made("has", (made.value,), Scalar.BOOL, name)

        python = evaluation.info(type).python
        always_has = _initial_fields(python)
        table = DataTable(lambda: evaluation.info(type).fields, load, store, has)
        made = DataObject(python, table, value)
        return made

    def new_record(self, kind: type) -> DataObject:
        """Return a new object of a class."""
        number = self.evaluation.class_number(kind, "object", ())
        value = emit(operation("record", (), (number, ())), RecordType(number))
        return self.record(value, RecordType(number))

    # -- containers -----------------------------------------------------------------------------

    def container(self, kind: Any, content: DataList | DataDict) -> DataRef:
        """Return a container of an instance with a content."""
        known: dict[Any, Any] = {ITEMS: content}

        def store(key: Any, items: Any) -> None:
            if key in ("default_factory", "maxlen"):
                known[key] = items
            elif key is not ITEMS:
                fail(f"the attribute '{key}' of a {kind.__name__} is set", "use an object")
            elif isinstance(content, DataList):
                content.fill(items)
            elif items is not content:
                fail(f"all items of a {kind.__name__} of an instance are replaced", "use a loop")

        table = DataTable(lambda: tuple(known), known.__getitem__, store)
        return DataRef(kind, table, content.stored)

    def place(self) -> Hashable:
        """Return the place in the source that the function is at: in code of libraries, together
        with the places of the calls that lead there."""
        found = list[Hashable]()
        for frame in reversed(self.interpreter.frames):
            found.append((frame.code, *(getattr(frame.node, name, None) for name in _POSITION)))
            if is_user_file(frame.code.co_filename):
                break
        return tuple(found)

    def is_data_here(self, kind: Any, items: Any = None) -> bool:
        """True for a container that is data from the start, as it is made at a known place."""
        return isinstance(items, DataList) or (
            kind in _KINDS and (self.place(), kind) in tracer().hints.data_containers
        )

    def note_site(self, table: Any, kind: Any, like: Any = None) -> None:
        """Record where a container is made. like: the table of one that it represents."""
        self.kept.append(table)
        site = (self.place(), kind) if like is None else self.sites.get(id(like))
        self.sites[id(table)] = site

    def become_data(self, *tables: Any) -> NoReturn:
        """Start again, with containers that are data from the start."""
        known, found = tracer().hints.data_containers, {self.sites.get(id(t)) for t in tables}
        if found <= {None, *known}:
            fail("a container of this kind is joined with data of an instance", "use a list")
        known |= found - {None}
        raise Replan

    def let_be_data(self, *values: Any) -> None:
        """Start again with the objects in some values, which have no other form, as data. Does
        nothing if there are none."""
        hints, heap = tracer().hints, tracer().heap
        before = len(hints.data_classes) + len(hints.data_containers)
        pending, seen = [*values], set[int]()
        while pending:
            value = pending.pop()
            if id(value) in seen or isinstance(value, DataObject | types.FunctionType | type):
                continue
            seen.add(id(value))
            if isinstance(value, Ref):
                hints.data_containers |= {self.sites.get(id(value.table))} - {None}
            elif heap.is_own(value):
                hints.data_classes.add(type(value))
            if isinstance(value, HeapObject | Either | tuple | dict) or heap.is_own(value):
                pending += heap.referents(value)
        if len(hints.data_classes) + len(hints.data_containers) > before:
            raise Replan

    def new_container(self, kind: Any, items: Any) -> DataRef:
        """Return a new container. items: a tuple, or the content of a new list."""
        if isinstance(items, DataList):
            return self.container(kind, items)
        if not isinstance(items, dict):
            return self.container(kind, self.new_content(items))
        type = self.evaluation.dict_type(self.evaluation.cell((self.place(), "entries")))
        content = DataDict(self.emit("dict", (), type))
        for key, item in items.items():
            content.store(key, item)
        return self.container(kind, content)

    # -- keys of dicts --------------------------------------------------------------------------

    def check_key(self, key: Any, holder: Any) -> None:
        """Let a container be data whose key only the run knows. holder: the container, or the class
        of one that is made here."""
        if holder is None:
            return
        if isinstance(key, TracedTensor | DataObject | Either) or is_text(key):
            known = tracer().hints.data_containers
            is_kind = isinstance(holder, type)
            found = (self.place(), holder) if is_kind else self.sites.get(id(holder.table))
            if found is not None and found not in known:
                known.add(found)
                raise Replan

    def key_of(self, type: DictType, key: Any) -> Any:
        """Return a key to look up as a value of the Program; None if no key equals it."""
        kind = self.type_at(key, "keys")
        known = self.evaluation.keys.get(self.evaluation.merged_cell(type.cell))
        if isinstance(kind, UnionType) or kind is Scalar.FLOAT:
            fail("a key of a dict is of one of several types", "use keys of one type")
        if kind is Scalar.BOOL and known is Scalar.INT:
            return self.value_at(self.interpreter.calls.call(int, (key,), {}), Scalar.INT)
        return self.value_at(key, kind) if kind is known else None

    def new_key(self, type: DictType, key: Any) -> Any:
        """Return a key to store as a value of the Program."""
        kind = self.type_at(key, "keys")
        if kind not in (Scalar.INT, Scalar.STR):
            fail("a key of a dict of an instance is neither an int nor a str", "use ints or strs")
        self.evaluation.has_keys(type.cell, kind)
        return self.value_at(key, kind)

    def value_type(self, type: DictType, error: Exception) -> DataType:
        return self.known_type(self.evaluation.cells[self.evaluation.merged_cell(type.cell)], error)

    def keys(self, value: Value) -> DataList:
        """Return the keys of a dict as the content of a list."""
        dict_type: Any = value.type
        type = ListType(self.evaluation.cell(("keys", dict_type.cell)))
        kind = self.evaluation.keys.get(self.evaluation.merged_cell(dict_type.cell))
        if kind is not None:
            self.evaluation.grow(type.cell, kind)
        return DataList(self.emit("keys", (value,), type))

    def fixed_dict(self, value: Value, type: RecordType) -> DataRef:
        """Return a dict whose keys are the same in all instances."""
        held = self.record(value, type)

        def store(key: Any, items: Any) -> None:
            if key is not ITEMS:
                fail(f"the attribute '{key}' of a dict is set", "use an object")
            if items.keys() != made.keys():
                fail("a dict of an instance gets or loses a key", "use dict(x), or another dict")
            for name, item in items.items():
                made.store(name, item)

        table: Any = held.table
        made = FixedItems(self.evaluation.info(type).fields, table)
        return DataRef(dict, DataTable(lambda: (ITEMS,), lambda _: made, store), value)

    def new_content(self, items: Any) -> DataList:
        """Return the content of a new list with some items."""
        type = ListType(self.evaluation.cell((self.place(), "items")))
        held = tuple(self.stored_in(type, item) for item in items)
        return DataList(self.emit("list", held, type, False))

    def item_type(self, type: ListType) -> DataType:
        """Return the type of the items of a list."""
        found = self.evaluation.item_type(type)
        return self.known_type(found, IndexError("list index out of range"))

    def known_type(self, type: DataType, error: Exception) -> DataType:
        """Return a type. If there are no values of it, this place is not reached yet, or raises the
        error in all runs."""
        if type != NEVER:
            return type
        if self.is_final:
            raise error
        self.lacks_types = True
        raise UnknownResult(
            self,
            abort(f"a {error.__class__.__name__} is raised here", "check that there are values"),
        )

    def stored_in(self, type: ListType, item: Any) -> Value:
        """Return an item that a list of a type gets."""
        kind = self.type_at(item, ("items", type.cell))
        self.evaluation.grow(type.cell, kind)
        return self.value_at(item, kind)

    def concatenated(self, first: Any, second: Any) -> DataList:
        """Return the content of the sum of two tuples."""
        known = next(x for x in (first, second) if isinstance(x, DataList))
        type: Any = known.stored.type
        values = list[Value]()
        for part in (first, second):
            if isinstance(part, DataList):
                other: Any = part.stored.type
                self.merge(type, other)
                values.append(part.value)
            else:
                held = tuple(self.stored_in(type, item) for item in part)
                values.append(self.emit("list", held, type, True))
        return DataList(self.emit("concat", tuple(values), type, True))

    def note_resized(self, type: ListType) -> None:
        """Record that a list gets another number of items, while it may be gone through."""
        resized = tracer().hints.resized
        if type.cell not in resized:
            resized.add(type.cell)
            self.evaluation.changed = True

    def is_resized(self, type: ListType) -> bool:
        merged = self.evaluation.merged_cell
        return merged(type.cell) in map(merged, tracer().hints.resized)

    def merge(self, *types: DataType) -> None:
        """Let types be those of one value."""
        self.evaluation.settle(union(types))

    def emit(self, op: str, args: tuple[Any, ...], type: Any, detail: Any = None) -> Value:
        return emit(operation(op, args, detail), type)

    def change(self, op: str, *args: Any) -> None:
        """Emit an op that has no result."""
        tracer().emit(operation(op, args), ())

    # -- values of the program as data ------------------------------------------------------------

    def type_at(self, value: Any, place: Any) -> DataType:
        """Return the type of a value as data. place: identifies what holds it."""
        kind = kind_of(value)
        if isinstance(value, DataRef) and not value.is_leaf:
            name = value.kind.__name__.lower()
            fail(f"a {name} is stored in data of an instance", "store list(x) or dict(x)")
        match value:
            case DataObject() | DataUnion():
                held: Any = value.stored.type
                return held
            case _ if kind is not None and not isinstance(kind.type, TensorListType):
                return self.data_type(kind)
            case None:
                return Scalar.NONE
            case str():
                return Scalar.STR
            case tuple() if hasattr(value, "_fields"):
                return self.named_type(value)
            case tuple():
                items = enumerate(value)
                return TupleType(tuple(self.type_at(x, (place, "item", n)) for n, x in items))
            case Either():
                return union(self.type_at(option, place) for option in value.stretto_options)
            case Ref():
                self.become_data(value.table)
            case HeapObject():
                fail("an iterator is stored in the data of an instance", "use a list")
            case _ if tracer().heap.is_own(value):
                tracer().hints.data_classes.add(type(value))
                raise Replan
            case _:
                fail(
                    f"an object of class {type(value).__name__} is stored in the data of an "
                    "instance",
                    "store numbers, strings, tensors, and objects of classes of data",
                )

    def named_type(self, value: Any) -> RecordType:
        """Return the type of a named tuple."""
        evaluation, names = self.evaluation, value._fields
        type = RecordType(evaluation.class_number(value.__class__, "namedtuple", names))
        for name, item in zip(names, value, strict=True):
            cell = evaluation.field_cell(type, name)
            assert cell is not None
            evaluation.grow(cell, self.type_at(item, ("field", type.number, name)))
        return type

    def open_type(self, value: Any, place: Any) -> DataType:
        """Return the type of a value as data, in which tuples have any length and depth."""
        if isinstance(value, Either) and not isinstance(value, DataUnion):
            return union(self.open_type(option, place) for option in value.stretto_options)
        if not isinstance(value, tuple) or hasattr(value, "_fields"):
            return self.type_at(value, place)
        cell = self.evaluation.cell((place, "tuples"))
        for item in value:
            self.evaluation.grow(cell, self.open_type(item, place))
        return ListType(self.evaluation.merged_cell(cell), is_tuple=True)

    def open_kind(self, *values: Any) -> LeafKind | None:
        """Return the kind of tuples of different lengths, or of different texts; None for other
        values."""
        if all(isinstance(option, str) for value in values for option in options_of(value)):
            return leaf(Scalar.STR)
        if not all(isinstance(value, tuple) and self.can_be_data(value) for value in values):
            return None
        return leaf(union(self.open_type(value, self.place()) for value in values))

    def kind_of_result(self, code: Any, result: Any) -> LeafKind | None:
        """Return the kind of the results of a recursive function that have no other form; None if
        that is not known of it."""
        if code not in tracer().hints.data_results:
            return None
        found = self.open_type(result, ("result", code))
        cell = self.evaluation.cell(("result", code))
        self.evaluation.grow(cell, found)
        return leaf(self.evaluation.cells[self.evaluation.merged_cell(cell)])

    def let_result_be_data(self, code: Any) -> None:
        """Start again, with the results of a function as data."""
        if code not in tracer().hints.data_results:
            tracer().hints.data_results.add(code)
            raise Replan

    def data_type(self, kind: LeafKind) -> DataType:
        """Return the type of data that a leaf has."""
        type: Any = kind.type
        if kind.number:
            return OF_NUMBERS[type.dtype]
        return type_as_data(type) if isinstance(type, TensorType) else type

    def kind_in_data(self, value: Any) -> LeafKind | None:
        """Return the kind of a value that is joined with data; None if it cannot be data."""
        return leaf(self.type_at(value, "joined")) if self.can_be_data(value) else None

    def can_be_data(self, value: Any) -> bool:
        """True for a value that can be stored in data."""
        if isinstance(value, tuple | Either) and not isinstance(value, DataUnion):
            parts = value if isinstance(value, tuple) else value.stretto_options
            return all(map(self.can_be_data, parts))
        if value is None or isinstance(value, str | Ref) or kind_of(value) is not None:
            return True
        return tracer().heap.is_own(value) and not isinstance(value, types.FunctionType | type)

    def leaf_kind(self, type: DataType) -> LeafKind:
        """Return the kind of leaf that data of a type are."""
        return leaf(type_in_program(type), number=type in NUMBERS)

    def unified(self, first: LeafKind, second: LeafKind) -> LeafKind:
        found = joined((self.data_type(first), self.data_type(second)))
        self.evaluation.settle(found)
        return leaf(found)

    def unified_rows(self, first: TensorType, second: TensorType) -> LeafKind | None:
        """Return the kind of tensors whose first sizes differ, and data decide one of them."""
        if first.is_static and second.is_static:
            return None
        found = joined(map(type_as_data, (first, second)))
        return leaf(found) if isinstance(found, RowsType) else None

    def kind_after_branch(self, kind: LeafKind) -> LeafKind:
        """Return the kind, after a branch, of a tensor that only one arm has."""
        return leaf(self.data_type(kind)) if is_rows(self.data_type(kind)) else kind

    def value_at(self, value: Any, type: DataType) -> Value:
        """Return a value of the interpreter as one of the Program, of a type that `type_at` has
        found."""
        match value:
            case DataObject() | DataUnion():
                return value.value
            case _ if is_text(value):
                return self.text_value(value)
            case None | str():
                kind = Scalar.NONE if value is None else Scalar.STR
                return emit(operation("copy", (Literal(value),)), kind)
            case tuple() if hasattr(value, "_fields"):
                return self.named_value(value)
            case tuple():
                found = [x for x in alternatives(type) if isinstance(x, TupleType)]
                kinds = next((x.items for x in found if len(x.items) == len(value)), None)
                if kinds is None:
                    kind = next(x for x in alternatives(type) if isinstance(x, ListType))
                    inner = self.evaluation.item_type(kind)
                    held = tuple(self.value_at(item, inner) for item in value)
                    return self.emit("list", held, kind, True)
                items = tuple(map(self.value_at, value, kinds))
                return emit(operation("tuple", items), TupleType(kinds))
            case Either():

                def option(held: Any) -> Any:
                    given = self.value_at(held, type)
                    if type in NUMBERS or isinstance(type, TensorType):
                        return self.wrap(given, type)
                    made = emit(operation("copy", (given,)), type_in_program(type))
                    return self.one_of(made, [])

                return self.value_at(Hooks.use(value, option), type)
            case _:
                kind = kind_of(value)
                assert kind is not None
                made, given = materialize(value, kind), self.data_type(kind)
                if isinstance(given, TensorType) and given not in alternatives(type):
                    given = joined((given, type))
                return emit(operation("copy", (made,)), given) if is_rows(given) else made

    def named_value(self, value: Any) -> Value:
        """Return a named tuple as a value of the Program."""
        type = self.named_type(value)
        info = self.evaluation.info(type)
        kinds = [self.evaluation.cells[self.evaluation.merged_cell(cell)] for cell in info.cells]
        held = tuple(map(self.value_at, value, kinds))
        return self.emit("record", held, type, (type.number, info.fields))

    def learn_result(self, result: Any) -> None:
        """Learn that a function of the Program returns objects of some classes: a tree that a
        recursion makes has no other form than that of data."""
        hints, heap = tracer().hints, tracer().heap
        for part in result if isinstance(result, tuple) else (result,):
            kind = type(part)
            is_object = heap.is_own(part) and not isinstance(part, types.FunctionType | type)
            if is_object and kind not in hints.data_classes:
                hints.data_classes.add(kind)
                raise Replan

    # -- operators --------------------------------------------------------------------------------

    raise_op = staticmethod(instance_errors.raise_op)
    as_tensor = staticmethod(instance_numbers.as_tensor)
    computed = staticmethod(instance_numbers.computed)
    operated = staticmethod(instance_numbers.operated)
    converted = staticmethod(instance_numbers.converted)

    def are_same(self, first: Any, second: Any) -> Any:
        """Return `first is second`, where one is an object of an instance."""
        kinds = [self.interpreter.attributes.type_of(x) for x in (first, second)]
        if kinds[0] is not kinds[1]:
            return False
        if isinstance(first, DataObject) and isinstance(second, DataObject):
            return self.made("is", (first.value, second.value), Scalar.BOOL)
        other = second if isinstance(first, DataObject) else first
        is_new = tracer().heap.is_own(other) or getattr(other, "origin", other) is None
        if not is_new:
            fail(
                f"`is` compares a {kinds[0].__name__} of an instance with one that all instances "
                "share",
                "compare an attribute of theirs",
            )
        return False

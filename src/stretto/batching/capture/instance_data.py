"""Values of the data dialect, while a function is captured for one instance.

An argument of the function is a value of the Program. Here it becomes a value of the interpreter: a
number is a traced number, an object has a table whose reads and writes are ops, a value of several
types is one of several. The other way round, values that the program makes become data where an
attribute or a list of data gets them.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from stretto.batching.instances.types import InstanceTypes
from stretto.frontends.python.interpreter.heap import ITEMS, HeapObject, Ref
from stretto.frontends.python.lists.operations import element_kind
from stretto.frontends.python.tracing.signals import (
    Abort,
    Replan,
    fail,
)
from stretto.frontends.python.tracing.tensor import Hooks, Storage
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataObject, DataTable, DataUnion, is_here
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import kind_of, materialize, wrap
from stretto.frontends.python.values.scalars import LeafKind
from stretto.frontends.python.values.state import TracedList
from stretto.ir.core import Literal, Op, Value
from stretto.ir.data import AssignOp, ReadOp
from stretto.ir.types import (
    DataType,
    DType,
    ListType,
    RecordType,
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


def list_of(item: Any, *, number: bool = False) -> LeafKind:
    """Return the kind of a list of the Program with such items."""
    return LeafKind(TensorListType(item), number)


def type_in_program(type: DataType) -> Any:
    """Return the type of a value in a Program: a number is a tensor without dims."""
    return TensorType(NUMBERS[type]) if type in NUMBERS else type


def _no_attribute(name: str, *new: Any) -> NoReturn:
    fail(f"the attribute '{name}' of a text of an instance is used", "compare the text only")


@dataclass(eq=False)
class InstanceData:
    """The state of a capture for instances: their types, and which values are numbers.

    evaluation: classes, and the types in cells.
    """

    evaluation: InstanceTypes
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
        of an object that is surely one of its class."""
        if op.op == "get":
            return op.args[0] not in self.casts
        return op.op in ("has_type", "cast", "is", "not", "item")

    # -- values ---------------------------------------------------------------------------------

    def wrap(self, value: Value, type: DataType) -> Any:
        """Return the value of the interpreter for one of the Program."""
        state = tracer()
        match type:
            case Scalar.NONE:
                return None
            case Scalar.STR:
                return DataObject(str, DataTable(tuple, _no_attribute, _no_attribute), value)
            case Scalar():
                self.numbers.add(value)
                return state.number(value)
            case TensorType():
                return wrap(value, LeafKind(type, False))
            case RecordType():
                return self.record(value, type)
            case TupleType(items):
                return tuple(
                    self.made("item", (value,), item, number) for number, item in enumerate(items)
                )
            case ListType():
                return self.list(value, type)
            case UnionType(items):
                return self.one_of(value, sorted(items, key=str))
            case _:
                fail(f"data of type {type} in an instance", "pass data of another type")

    def made(self, op: str, args: tuple[Any, ...], type: DataType, detail: Any = None) -> Any:
        """Emit an op on data, and return its result."""
        return self.wrap(emit(operation(op, args, detail), type_in_program(type)), type)

    def one_of(self, value: Value, types: list[DataType]) -> DataUnion:
        """Return a value of several types as one of several values."""

        def split() -> tuple[Any, Any, Value]:
            held = tracer().use(value)
            flags = [self.made("has_type", (held,), Scalar.BOOL, (type,)) for type in types]
            options = [self.option(held, type) for type in types]
            self.kept += [*flags, *options]
            return flags, options, flags[0].memory.state.base

        return DataUnion(value, split)

    def option(self, value: Value, type: DataType) -> Any:
        """Return a value of several types as the one of one type."""
        if type is Scalar.NONE:
            return None
        found = self.made("cast", (value,), type, type)
        if isinstance(found, DataObject):
            self.casts.add(found.stored)
        return found

    def record(self, value: Value, type: RecordType) -> DataObject:
        evaluation, hints = self.evaluation, tracer().hints

        def load(name: str) -> Any:
            current, info = made.value, evaluation.info(type)
            key = (current, name)
            found, read = self.known.get(key, (None, None))
            if read is None or not is_here(read):
                cell = evaluation.cells[info.cells[info.fields.index(name)]]
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

        python = evaluation.info(type).python
        table = DataTable(lambda: evaluation.info(type).fields, load, store)
        made = DataObject(python, table, value)
        return made

    def new_record(self, kind: type) -> DataObject:
        """Return a new object of a class."""
        number = self.evaluation.class_number(kind, "object", ())
        value = emit(operation("record", (), (number, ())), RecordType(number))
        return self.record(value, RecordType(number))

    def list(self, value: Value, type: ListType) -> Ref:
        item = self.evaluation.item_type(type)
        kind = list_of(type_in_program(item), number=item in NUMBERS)
        items = emit(operation("copy", (value,)), kind.type)
        return tracer().heap.list_of(wrap(items, kind))

    # -- values of the program as data ------------------------------------------------------------

    def type_at(self, value: Any, place: Any) -> DataType:
        """Return the type of a value as data. place: identifies what holds it."""
        kind = kind_of(value)
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
            case tuple():
                items = enumerate(value)
                return TupleType(tuple(self.type_at(x, (place, "item", n)) for n, x in items))
            case Either():
                return union(self.type_at(option, place) for option in value.stretto_options)
            case Ref() if value.kind is list:
                return self.type_of_list(value.table[ITEMS], place)
            case HeapObject():
                fail("a container is stored in the data of an instance", "use a list")
            case _ if tracer().heap.is_own(value):
                tracer().hints.data_classes.add(type(value))
                raise Replan
            case _:
                fail(
                    f"an object of class {type(value).__name__} is stored in the data of an "
                    "instance",
                    "store numbers, strings, tensors, and objects of classes of data",
                )

    def type_of_list(self, items: Any, place: Any) -> ListType:
        cell = self.evaluation.cell((place, "items"))
        if isinstance(items, TracedList):
            found = [self.data_type(element_kind(items))]
        else:
            found = [self.type_at(item, (place, "items")) for item in items]
        for kind in found:
            self.evaluation.grow(cell, kind)
        return ListType(cell)

    def data_type(self, kind: LeafKind) -> DataType:
        """Return the type of data that a leaf has."""
        type: Any = kind.type
        return OF_NUMBERS[type.dtype] if kind.number else type

    def unified(self, first: LeafKind, second: LeafKind) -> LeafKind:
        return leaf(union((self.data_type(first), self.data_type(second))))

    def unified_lists(self, first: LeafKind, second: LeafKind) -> LeafKind | None:
        """Return the kind of list that can hold the items of both; None if one is no list."""
        kinds = list[LeafKind]()
        for kind in (first, second):
            if isinstance(kind.type, TensorListType):
                kinds.append(leaf(kind.type.element, number=kind.number))
        return list_of(union(map(self.data_type, kinds))) if len(kinds) == 2 else None

    def kind_of_items(self, items: Sequence[Any]) -> LeafKind | None:
        """Return the kind of the items of a list that holds data; None if some are no data."""
        try:
            found = union(self.type_at(item, "items of lists") for item in items)
        except Abort:
            return None
        return leaf(found)

    def kind_with(self, items: LeafKind, item: Any) -> LeafKind:
        """Return the kind of the items of a list to which an item is added."""
        known, place = kind_of(item), "items of lists"
        if known == items:
            return items
        return leaf(union((self.data_type(items), self.type_at(item, place))))

    def value_at(self, value: Any, type: DataType) -> Value:
        """Return a value of the interpreter as one of the Program, of a type that `type_at` has
        found."""
        match value:
            case DataObject() | DataUnion():
                return value.value
            case None | str():
                kind = Scalar.NONE if value is None else Scalar.STR
                return emit(operation("copy", (Literal(value),)), kind)
            case tuple():
                kinds = next(
                    x.items
                    for x in alternatives(type)
                    if isinstance(x, TupleType) and len(x.items) == len(value)
                )
                items = tuple(map(self.value_at, value, kinds))
                return emit(operation("tuple", items), TupleType(kinds))
            case Either():

                def option(held: Any) -> Any:
                    given = self.value_at(held, type)
                    made = emit(operation("copy", (given,)), type_in_program(type))
                    return self.one_of(made, [])

                return Hooks.use(value, option).value
            case Ref():
                kind = next(x for x in alternatives(type) if isinstance(x, ListType))
                item = self.evaluation.item_type(kind)
                items = value.table[ITEMS]
                element = list_of(type_in_program(item), number=item in NUMBERS)
                held = materialize(list(items) if isinstance(items, tuple) else items, element)
                return emit(operation("copy", (held,)), kind)
            case _:
                kind = kind_of(value)
                assert kind is not None
                return materialize(value, kind)

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

    def compared(self, name: str, first: Any, second: Any) -> Any:
        """Return a comparison of texts."""
        are_texts = all(
            isinstance(x, str) or (isinstance(x, DataObject) and x.kind is str)
            for x in (first, second)
        )
        if not are_texts:
            return NotImplemented
        args = tuple(x.value if isinstance(x, DataObject) else Literal(x) for x in (first, second))
        return self.made(name, args, Scalar.BOOL)

"""Capture of a function for one instance of a batch: its arguments are Python data of known types.

The arguments become values of the data dialect (`values/data.py`). All else is as in any capture:
what is the same for all instances is computed at once, and branches, loops and recursions on data
are those of the Program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.batching.frontend.evaluation import RestartRound
from stretto.errors import CaptureError
from stretto.frontends.python.calls.output_journal import intercepted_output
from stretto.frontends.python.interpreter.capture import capturing, interpreting, unbounded
from stretto.frontends.python.interpreter.execution import PythonInterpreter
from stretto.frontends.python.interpreter.heap import ITEMS, MISSING, HeapObject, PythonHeap, Ref
from stretto.frontends.python.interpreter.outside import Outside
from stretto.frontends.python.operators.dispatch import recording
from stretto.frontends.python.results.programs import reachable_functions
from stretto.frontends.python.tracing.history import Hints
from stretto.frontends.python.tracing.signals import (
    Abort,
    KeepApart,
    NeedsPeel,
    NeedsUnroll,
    NoAlternative,
    Replan,
    UnknownResult,
    fail,
)
from stretto.frontends.python.tracing.tensor import FunctionContext, Hooks
from stretto.frontends.python.tracing.tracer import Tracer, activate, tracer
from stretto.frontends.python.values.data import DataObject, DataTable, DataUnion, is_here
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import kind_of, materialize, wrap
from stretto.frontends.python.values.scalars import LeafKind
from stretto.frontends.python.values.state import TracedList
from stretto.ir.core import Function, Literal, Program, Value
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
from stretto.options import Options

OF_NUMBERS = {DType.I64: Scalar.INT, DType.F64: Scalar.FLOAT, DType.BOOL: Scalar.BOOL}
NUMBERS = {Scalar.INT: DType.I64, Scalar.FLOAT: DType.F64, Scalar.BOOL: DType.BOOL}


def type_in_program(type: DataType) -> Any:
    """Return the type of a value in a Program: a number is a tensor without dims."""
    return TensorType(NUMBERS[type]) if type in NUMBERS else type


@dataclass(eq=False)
class InstanceData:
    """What is known of the data of instances while a function is captured for them.

    evaluation: classes, and the types in cells.
    """

    evaluation: Any
    numbers: set[Value] = field(default_factory=set[Value])
    """Values that are Python numbers, not tensors."""
    casts: set[Value] = field(default_factory=set[Value])
    """Values of several types, each as the one that it is in some runs."""
    read: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """For a tensor of which the number was read, that number."""
    known: dict[tuple[Value, str], Any] = field(default_factory=dict[tuple[Value, str], Any])
    """Attributes that have been read, until something is changed."""

    def number_in(self, value: Value) -> Value:
        """Return the number in a tensor of one element: the instance waits for it."""
        state = tracer()
        known = self.read.get(value)
        if known is None or not is_here(known):
            (known,) = state.emit(ReadOp(value), (value.type,))
            self.numbers.add(known)
            self.read[value] = known
        return known

    def is_number(self, value: Value) -> bool:
        return value in self.numbers

    def is_harmless(self, op: AssignOp) -> bool:
        """True for an op that may run where the program would skip it. An attribute may be read
        of an object that is surely one of its class."""
        if op.op == "get":
            return op.args[0] not in self.casts
        return op.op in ("has_type", "cast", "is", "not", "item")

    kept: list[Any] = field(default_factory=list[Any])
    """Objects that are kept alive, as they are known by their ids."""

    # -- values ---------------------------------------------------------------------------------

    def wrap(self, value: Value, type: DataType) -> Any:
        """Return the value of the interpreter for one of the Program."""
        state = tracer()
        match type:
            case Scalar.NONE:
                return None
            case Scalar.STR:
                return DataObject(str, DataTable(tuple, MISSING, MISSING), value)  # type: ignore[arg-type]
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
        (value,) = tracer().emit(AssignOp(op, args, detail), (type_in_program(type),))
        return self.wrap(value, type)

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
                op = AssignOp("get", (current,), name)
                (read,) = tracer().emit(op, (type_in_program(cell),))
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
            kind = self.type_at(item, ("field", type.number, name))
            evaluation.grow(cell, kind)
            held = self.value_at(item, kind)
            tracer().emit(AssignOp("set", (made.value, held), name), ())

        python = evaluation.info(type).python
        table = DataTable(lambda: evaluation.info(type).fields, load, store)
        made = DataObject(python, table, value)
        return made

    def new_record(self, kind: type) -> DataObject:
        """Return a new object of a class."""
        number = self.evaluation.class_number(kind, "object", ())
        (value,) = tracer().emit(AssignOp("record", (), (number, ())), (RecordType(number),))
        return self.record(value, RecordType(number))

    def list(self, value: Value, type: ListType) -> Ref:
        item = self.evaluation.item_type(type)
        is_number = item in NUMBERS
        kind = LeafKind(TensorListType(type_in_program(item)), is_number)
        (items,) = tracer().emit(AssignOp("copy", (value,)), (kind.type,))
        return tracer().heap.list_of(wrap(items, kind))

    # -- values of the program as data ------------------------------------------------------------

    def type_at(self, value: Any, place: Any) -> DataType:
        """Return the type of a value as data. place: identifies what holds it."""
        kind = kind_of(value)
        match value:
            case DataObject() | DataUnion():
                return value.stored.type
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
            element = LeafKind(items.memory.state.base.list.element, items.numbers)
            found = [self.data_type(element)]
        else:
            found = [self.type_at(item, (place, "items")) for item in items]
        for kind in found:
            self.evaluation.grow(cell, kind)
        return ListType(cell)

    def data_type(self, kind: LeafKind) -> DataType:
        """Return the type of data that a leaf has."""
        if kind.number:
            return OF_NUMBERS[kind.type.dtype]
        return kind.type

    def unified(self, first: LeafKind, second: LeafKind) -> LeafKind:
        return LeafKind(union((self.data_type(first), self.data_type(second))), False)

    def unified_lists(self, first: LeafKind, second: LeafKind) -> LeafKind | None:
        if not isinstance(first.type, TensorListType) or not isinstance(second.type, TensorListType):
            return None
        items = (LeafKind(kind.type.element, kind.number) for kind in (first, second))
        return LeafKind(TensorListType(union(map(self.data_type, items))), False)

    def kind_of_items(self, items: Sequence[Any]) -> LeafKind | None:
        """Return the kind of the items of a list that holds data; None if some are no data."""
        try:
            found = union(self.type_at(item, "items of lists") for item in items)
        except Abort:
            return None
        return LeafKind(found, False)

    def kind_with(self, items: LeafKind, item: Any) -> LeafKind:
        """Return the kind of the items of a list to which an item is added."""
        known, place = kind_of(item), "items of lists"
        if known == items:
            return items
        return LeafKind(union((self.data_type(items), self.type_at(item, place))), False)

    def value_at(self, value: Any, type: DataType) -> Value:
        """Return a value of the interpreter as one of the Program, of a type that `type_at` has
        found."""
        state = tracer()
        match value:
            case DataObject() | DataUnion():
                return value.value
            case None | str():
                kind = Scalar.NONE if value is None else Scalar.STR
                return state.emit(AssignOp("copy", (Literal(value),)), (kind,))[0]
            case tuple():
                kinds = next(
                    x.items
                    for x in alternatives(type)
                    if isinstance(x, TupleType) and len(x.items) == len(value)
                )
                items = tuple(map(self.value_at, value, kinds))
                made = TupleType(kinds)
                return state.emit(AssignOp("tuple", items), (made,))[0]
            case Either():

                def option(held: Any) -> Any:
                    given = self.value_at(held, type)
                    (made,) = state.emit(AssignOp("copy", (given,)), (type_in_program(type),))
                    return self.one_of(made, [])

                return Hooks.use(value, option).value
            case Ref():
                kind = next(x for x in alternatives(type) if isinstance(x, ListType))
                item = self.evaluation.item_type(kind)
                items = value.table[ITEMS]
                element = LeafKind(TensorListType(type_in_program(item)), item in NUMBERS)
                held = materialize(list(items) if isinstance(items, tuple) else items, element)
                return state.emit(AssignOp("copy", (held,)), (kind,))[0]
            case _:
                kind = kind_of(value)
                assert kind is not None
                return materialize(value, kind)

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


def capture_instance(
    fn: Callable[..., Any],
    parameters: Sequence[tuple[str, DataType]],
    evaluation: Any,
    options: Options,
) -> tuple[Program, InstanceData, Any]:
    """Return the Program of a function for an instance, and the structure of its result."""
    hints = Hints()
    keeps_apart = False
    with capturing(), intercepted_output(), unbounded():
        for _ in range(40):
            evaluation.changed = False
            state = Tracer(options)
            state.hints, state.keeps_apart = hints, keeps_apart
            state.data = InstanceData(evaluation)
            state.heap = PythonHeap(Outside())
            interpreter = PythonInterpreter(state.heap)
            try:
                with state.sizes.inferring(), activate(state), recording(), interpreting(interpreter):
                    found = _captured(state, interpreter, fn, parameters)
                if not evaluation.changed:
                    return found
            except (Replan, RestartRound):
                continue
            except KeepApart:
                keeps_apart = True
            except (Abort, NeedsUnroll, NeedsPeel, UnknownResult, NoAlternative) as signal:
                raise signal.abort.error from None
    raise CaptureError(
        "the types of this function's values keep growing",
        remedy="annotate its data, or keep values of fewer types in one place",
    )


def _captured(
    state: Tracer,
    interpreter: PythonInterpreter,
    fn: Callable[..., Any],
    parameters: Sequence[tuple[str, DataType]],
) -> tuple[Program, InstanceData, Any]:
    context = FunctionContext("main")
    with state.region(context) as region:
        values = [state.param(type_in_program(type), name) for name, type in parameters]
        given = [
            state.data.wrap(value, type)
            for value, (_, type) in zip(values, parameters, strict=True)
        ]
        result = interpreter.calls.call(state.heap.adopt(fn), tuple(given), {})
        yields = list[Value]()
        spec = _flattened(state.heap, result, yields)
        block = region.scope.block
        block.params, block.yields = tuple(values), tuple(yields)
        state.close_function(context, block)
        functions = reachable_functions(Function("main", block), state.functions)
    constants = {c.key: c.tensor for c in state.constants.values()}
    return Program(functions, constants), state.data, spec


def _flattened(heap: PythonHeap, value: Any, yields: list[Value]) -> Any:
    """Return the structure of a result, with numbers of the values that the Program yields."""
    kind = kind_of(value)
    if kind is not None:
        yields.append(materialize(value, kind))
        return ("leaf", len(yields) - 1)
    if isinstance(value, Ref):
        items = value.table[ITEMS]
        if isinstance(items, dict):
            return (value.kind, {k: _flattened(heap, v, yields) for k, v in items.items()})
        if isinstance(items, tuple):
            return (list, [_flattened(heap, item, yields) for item in items])
        return _flattened(heap, items, yields)
    if isinstance(value, tuple):
        return (tuple, [_flattened(heap, item, yields) for item in value])
    if heap.is_own(value):
        table = heap.table_of(value)
        return (type(value), {k: _flattened(heap, v, yields) for k, v in table.items()})
    if isinstance(value, Either):
        data = tracer().data
        yields.append(data.value_at(value, data.type_at(value, "the result")))
        return ("leaf", len(yields) - 1)
    return ("static", value)

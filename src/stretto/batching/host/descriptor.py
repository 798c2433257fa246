"""Print a program's types, classes, pools and blocks as C++ tables for the runtime (include/run.h:
ProgramInfo)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from math import prod

from stretto.batching.host.cpp_expressions import form_of
from stretto.batching.host.places import is_stored
from stretto.batching.host.tables import BlockLayout, ProgramLayout
from stretto.batching.instance_program import ClassInfo, InstanceProgram
from stretto.ir.data import AssignOp
from stretto.ir.types import (
    DataType,
    DictType,
    DType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
)

# ---- Objects of instances that cannot change, so that they are read once, not in each batch.


class Frozen:
    """Types whose objects cannot change: frozen dataclasses, named tuples and tuples with only
    frozen parts, numbers, strings and None. Tensors are not frozen, since each batch numbers
    its own.

    classes: the numbers of frozen classes. tuples: True if all types of tuples are frozen; if
    some are not, none is treated as frozen, since one tuple might be read as several types.
    """

    def __init__(self, program: InstanceProgram) -> None:
        self._program = program
        self.classes = {n for n, info in enumerate(program.classes) if _is_fixed(info)}
        self.tuples = True
        self._cells = set(range(len(program.cells)))
        while True:  # types are recursive: remove what is not frozen until a fixpoint
            known = len(self.classes), self.tuples, len(self._cells)
            self._cells = {n for n in self._cells if self._is_frozen(program.cells[n])}
            self.tuples = self.tuples and all(map(self._is_one_frozen, self._tuple_types()))
            self.classes = {
                n for n in self.classes if self._cells.issuperset(program.classes[n].cells)
            }
            if (len(self.classes), self.tuples, len(self._cells)) == known:
                return

    def _is_frozen(self, type_: DataType) -> bool:
        return all(map(self._is_one_frozen, alternatives(type_)))

    def _is_one_frozen(self, type_: DataType) -> bool:
        match type_:
            case Scalar():
                return True
            case RecordType(number):
                return number in self.classes
            case TupleType(items):
                return self.tuples and all(map(self._is_frozen, items))
            case ListType(cell, True):
                return self.tuples and cell in self._cells
            case _:
                return False

    def _tuple_types(self) -> Iterable[DataType]:
        """Yield all types of tuples that instances may have."""
        pending = [parameter.type for parameter in self._program.main.parameters]
        pending += self._program.cells
        while pending:
            for type_ in alternatives(pending.pop()):
                if isinstance(type_, TupleType):
                    pending += type_.items
                if isinstance(type_, TupleType) or (isinstance(type_, ListType) and type_.is_tuple):
                    yield type_


def _is_fixed(info: ClassInfo) -> bool:
    """Return True if the fields of an object always hold the same objects."""
    if info.kind == "namedtuple":
        return True
    params = vars(info.python).get("__dataclass_params__")
    if info.kind != "object" or not params or not params.frozen:
        return False
    names = {field.name for field in dataclasses.fields(info.python)}
    return all(name in names and is_stored(info.python, name) for name in info.fields)


# ---- Fields of instances that a program never reads: they may hold anything, or be missing.


UNREAD = -1
"""DataType number in the tables of a field that is not read."""

_COMPARING = frozenset(("eq", "ne", "contains", "index"))


def unread_fields(program: InstanceProgram) -> list[frozenset[str]]:
    """Return for each class the fields that no statement gets, sets, tests or compares. Named
    tuples have none, since they are tuples, whose items may be read by position."""
    statements = list(program.walk())
    assigned = [item for item in statements if isinstance(item, AssignOp)]
    read = program.tested | {item.detail for item in assigned if item.op in ("get", "has", "set")}
    compares = any(item.op in _COMPARING for item in assigned)
    return [
        frozenset()
        if info.kind == "namedtuple" or (compares and is_by_value(info))
        else frozenset(info.fields) - read
        for info in program.classes
    ]


def is_by_value(info: ClassInfo) -> bool:
    """Return True if == of two objects compares all their fields: named tuples, dicts, and
    dataclasses with a generated == over all fields."""
    if info.kind != "object":
        return True
    if not dataclasses.is_dataclass(info.python):
        return False
    params = getattr(info.python, "__dataclass_params__", None)
    fields = dataclasses.fields(info.python)
    return bool(params and params.eq) and tuple(x.name for x in fields if x.compare) == info.fields


def may_lack(info: ClassInfo, name: str) -> bool:
    """Return True if an object of a class may be without a field that other objects of it have.
    Fields that a dataclass assigns in its `__init__` are always present."""
    if info.kind != "object":
        return False
    own = dataclasses.fields(info.python) if dataclasses.is_dataclass(info.python) else ()
    return name not in {item.name for item in own if item.init}


SCALARS = (Scalar.NONE, Scalar.BOOL, Scalar.INT, Scalar.FLOAT, Scalar.STR)
"""In the order of Kind in include/values.h."""
_CLASS_KINDS = {"object": 0, "namedtuple": 1, "dict": 2}
_INPUT_KINDS = {Scalar.FLOAT: 3, Scalar.INT: 2, Scalar.BOOL: 2}

# torch's numbers of dtypes (c10::ScalarType), part of its stable interface.
_DTYPES = {
    DType.U8: 0,
    DType.I8: 1,
    DType.I16: 2,
    DType.I32: 3,
    DType.I64: 4,
    DType.F16: 5,
    DType.F32: 6,
    DType.F64: 7,
    DType.BOOL: 11,
    DType.BF16: 15,
}


def descriptor(program: InstanceProgram, layout: ProgramLayout, reads: bool) -> str:
    """Return the text of the tables, and of `info`, which refers to all of them. reads: True if
    the program has a Read. `f0` is the program's first function."""
    types = _Types(program, layout)
    parameters = [types.number(x.type) for x in program.main.parameters]
    unread = unread_fields(program)
    classes = [
        [
            UNREAD if name in unread[number] else types.number(program.cells[cell])
            for name, cell in zip(info.fields, info.cells, strict=True)
        ]
        for number, info in enumerate(program.classes)
    ]
    frozen = Frozen(program)
    shown_types = types.text()
    lines = [*shown_types]
    for number, (info, cells) in enumerate(zip(program.classes, classes, strict=True)):
        lines.append(_array("int32_t", f"cells{number}", cells, f"{info.kind} {len(cells)}"))
        lacks = [str(may_lack(info, name)).lower() for name in info.fields]
        lines.append(_array("bool", f"may_lack{number}", lacks or ["false"]))
    lines.append(
        _array(
            "ClassInfo",
            "classes",
            [
                f"{{{_CLASS_KINDS[info.kind]}, {len(info.fields)}, {int(is_by_value(info))}, "
                f"{int(number in frozen.classes)}, cells{number}, may_lack{number}}}"
                for number, info in enumerate(program.classes)
            ],
        )
    )
    lines += _pools(layout)
    for number, block in enumerate(layout.blocks):
        lines += _block(number, block)
    blocks = [_block_info(number, block) for number, block in enumerate(layout.blocks)]
    lines.append(_array("BlockInfo", "blocks", blocks))
    lines.append(_array("int32_t", "parameters", parameters))
    lines.append(_array("int32_t", "shared", [item.pool for item in layout.shared]))
    lines.append(_array("int32_t", "permanent", layout.permanent))
    given = [f"unbox_{form}(a[{n}])" for n, form in enumerate(_forms(program))]
    lines.append(
        "bool unbox_b(Value v) { return v.i != 0; } int64_t unbox_i(Value v) { return v.i; } "
        "double unbox_f(Value v) { return v.f; } Tensor unbox_t(Value v) { return as_tensor(v); } "
        "Value unbox_v(Value v) { return v; }"
    )
    lines.append(
        "Value invoke(Run& run, const Value* a) { return box(f0("
        + ", ".join(("run", *given))
        + ")); }"
    )
    counts = (
        len(parameters),
        types.count,
        len(program.classes),
        len(layout.pools),
        len(layout.blocks),
        len(layout.shared),
        layout.max_outputs,
        layout.max_rows,
        int(reads),
        int(frozen.tuples),
    )
    lines.append(
        f"const ProgramInfo info = {{{', '.join(map(str, counts))}, parameters, types, classes, "
        "pools, blocks, shared, permanent, invoke};"
    )
    return "\n".join(lines)


def _forms(program: InstanceProgram) -> list[str]:
    return [form_of(parameter.type) for parameter in program.main.parameters]


def _array(type_: str, name: str, items: Sequence[object], comment: str = "") -> str:
    """Return a C++ array; an empty one gets a dummy item, since C++ has no empty arrays."""
    shown = ", ".join(map(str, items)) if items else ("{}" if type_ != "int32_t" else "0")
    return f"const {type_} {name}[] = {{{shown}}};" + (f"  // {comment}" if comment else "")


def _pools(layout: ProgramLayout) -> list[str]:
    lines = list[str]()
    infos = list[str]()
    for number, type_ in enumerate(layout.pools):
        lines.append(_array("int64_t", f"shape{number}", type_.shape or (0,), str(type_)))
        size = prod(type_.shape) * type_.dtype.itemsize
        infos.append(f"{{{_DTYPES[type_.dtype]}, {size}, {len(type_.shape)}, shape{number}}}")
    return [*lines, _array("PoolInfo", "pools", infos)]


def _block(number: int, block: BlockLayout) -> list[str]:
    inputs = list[str]()
    for type_ in block.inputs:
        match type_:
            case TensorType():
                kind = 0
            case RowsType():
                kind = 1
            case _:
                kind = _INPUT_KINDS[type_]
        inputs.append(f"{{{kind}}}")
    outputs = [
        f"{{{item.pool}, {-1 if item.length_of is None else item.length_of}}}"
        for item in block.outputs
    ]
    return [
        _array("BlockInput", f"inputs{number}", inputs),
        _array("BlockOutput", f"outputs{number}", outputs),
    ]


def _block_info(number: int, block: BlockLayout) -> str:
    floats = sum(type_ is Scalar.FLOAT for type_ in block.inputs)
    counts = (len(block.inputs), len(block.outputs), len(block.rows), floats)
    return f"{{{', '.join(map(str, counts))}, inputs{number}, outputs{number}}}"


class _Types:
    """Numbering of the types of values in instances, with their tables."""

    def __init__(self, program: InstanceProgram, layout: ProgramLayout) -> None:
        self._program = program
        self._layout = layout
        self._numbers: dict[DataType, int] = {}
        self._lines: list[str] = []
        self._infos: dict[int, str] = {}

    @property
    def count(self) -> int:
        return len(self._numbers)

    def number(self, type_: DataType) -> int:
        if type_ in self._numbers:
            return self._numbers[type_]
        number = self._numbers[type_] = len(self._numbers)
        several = sorted(alternatives(type_), key=str)
        scalars = sum(1 << SCALARS.index(x) for x in several if isinstance(x, Scalar))
        items = [
            self._alternative(x, f"items{number}_{n}")
            for n, x in enumerate(several)
            if not isinstance(x, Scalar)
        ]
        self._lines.append(_array("Alternative", f"alternatives{number}", items, str(type_)))
        self._infos[number] = f"{{{scalars}, {len(items)}, alternatives{number}}}"
        return number

    def _alternative(self, type_: DataType, name: str) -> str:
        match type_:
            case TensorType():
                return f"{{kTensor, {self._pool(type_)}, 0, nullptr}}"
            case RowsType(row):
                return f"{{kRows, {self._pool(row)}, 0, nullptr}}"
            case RecordType(number):
                return f"{{kRecord, {number}, 0, nullptr}}"
            case TupleType(items):
                numbers = [self.number(item) for item in items]
                self._lines.append(_array("int32_t", name, numbers))
                return f"{{kTuple, {len(items)}, 0, {name}}}"
            case ListType(cell, is_tuple):
                item = self.number(self._program.cells[cell])
                return f"{{{'kTuple' if is_tuple else 'kList'}, -1, {item}, nullptr}}"
            case DictType(key, cell):
                value = self.number(self._program.cells[cell])
                return f"{{kDict, {1 << SCALARS.index(key)}, {value}, nullptr}}"
            case _:
                raise AssertionError("scalars and unions are not alternatives of a union")

    def _pool(self, type_: TensorType) -> int:
        pool = self._layout.pool(type_)
        assert pool is not None, "the layout has the types of all tensors in instances"
        return pool

    def text(self) -> list[str]:
        infos = [self._infos[number] for number in sorted(self._infos)]
        return [*self._lines, _array("TypeInfo", "types", infos)]

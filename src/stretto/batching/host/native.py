"""The native functions of a built host program, and the addresses of Python and torch that it
needs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stretto.batching.host.descriptor import may_lack, unread_fields
from stretto.batching.host.places import (
    class_at,
    hidden_names,
    implementation_at,
    places_of,
    version_at,
)
from stretto.batching.host.tables import tensor_type
from stretto.batching.instance_program import ClassInfo, InstanceProgram
from stretto.batching.primitives import has_type
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    Scalar,
    TupleType,
    alternatives,
)
from stretto.runtime.compiler import load_library

# ---- The functions of Python and torch that the host runtime calls (include/python.h).


# In the order of PythonApi in include/python.h.
_CALLBACKS = (
    "PyObject_GetAttr",
    "PyDict_GetItemWithError",
    "PyDict_Next",
    "PyDict_Size",
    "PyDict_New",
    "PyDict_SetItem",
    "PyList_Size",
    "PyList_GetItem",
    "PyList_New",
    "PyList_SetItem",
    "PyTuple_Size",
    "PyTuple_GetItem",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyLong_AsLongLongAndOverflow",
    "PyLong_FromLongLong",
    "PyFloat_AsDouble",
    "PyFloat_FromDouble",
    "PyUnicode_AsUTF8AndSize",
    "PyUnicode_FromStringAndSize",
    "PyObject_GenericSetAttr",
    "PyObject_CallOneArg",
    "PyObject_Type",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
    "PyLong_AsVoidPtr",
    "_PyUnicode_IsPrintable",
)
_OBJECTS = (
    None,
    True,
    False,
    bool,
    int,
    float,
    str,
    list,
    tuple,
    dict,
    torch.Tensor,
    torch.nn.Parameter,
    "_cdata",
    "__dict__",
)
# The C interface of libtorch that is stable for programs compiled ahead of time.
_TORCH_FUNCTIONS = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_layout",
    "aoti_torch_empty_strided",
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch_delete_tensor_object",
)
# THPVariable_Wrap of libtorch_python: some versions take `TensorBase&&`, others `TensorBase`.
_TENSOR_OBJECTS = (
    "_Z16THPVariable_WrapON2at10TensorBaseE",
    "_Z16THPVariable_WrapN2at10TensorBaseE",
)


@cache
def python_api() -> ctypes.Array[ctypes.c_void_p]:
    """Return the table `PythonApi` of include/python.h."""
    library = _torch_library("torch_cpu")
    functions = [getattr(ctypes.pythonapi, name) for name in _CALLBACKS]
    torch_functions = [getattr(library, name) for name in _TORCH_FUNCTIONS]
    words = [
        *(ctypes.cast(function, ctypes.c_void_p).value for function in functions),
        *map(id, _OBJECTS),
        *(ctypes.cast(function, ctypes.c_void_p).value for function in torch_functions),
        tensor_object(),
        class_at(),
        version_at(),
        *implementation_at(),
    ]
    return (ctypes.c_void_p * len(words))(*words)


@cache
def tensor_object() -> int | None:
    """Return the address of torch's function that creates the Python object of a tensor; None if
    this version of torch does not export it."""
    library = _torch_library("torch_python")
    for name in _TENSOR_OBJECTS:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return None


def _torch_library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.so"))


class PythonClasses:
    """The table of a program's classes for the runtime (include/python.h: PythonClass). It keeps
    the objects alive whose addresses are in the table."""

    def __init__(self, classes: Sequence[ClassInfo]) -> None:
        self._kept: list[object] = []
        words = list[int]()
        for info in classes:
            python: type = info.python
            create = getattr(python, "_make" if info.kind == "namedtuple" else "__new__")
            fields = (ctypes.c_void_p * max(1, len(info.fields)))(*map(id, info.fields))
            found = places_of(python, info.fields if info.kind == "object" else ())
            numbers = [number for place in found.fields for number in place]
            places = (ctypes.c_int32 * max(1, len(numbers)))(*numbers)
            hidden = hidden_names(info)
            absent = (ctypes.c_void_p * max(1, len(hidden)))(*map(id, hidden))
            self._kept += [info, create, fields, places, hidden, absent]
            words += [id(python), id(create), ctypes.addressof(fields), ctypes.addressof(places)]
            words += [found.values_at, found.values_tag, found.valid_at]
            words += [found.dict_at, found.keys, found.version]
            words += [ctypes.addressof(absent), len(hidden)]
        self.table = (ctypes.c_ssize_t * max(1, len(words)))(*words)


_POINTER = ctypes.c_void_p
_OBJECT = ctypes.py_object
_INT64 = ctypes.c_int64


class TableView(ctypes.Structure):
    """The struct TableView of results.cpp."""

    _fields_ = (
        ("steps", _POINTER),
        ("step_words", _INT64),
        ("indices", _POINTER),
        ("index_count", _INT64),
        ("numbers", _POINTER),
        ("number_count", _INT64),
        ("rows", _POINTER),
        ("largest", _INT64),
        ("longest", _INT64),
    )


# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "program": (_POINTER, ()),
    "configure": (None, (_POINTER,)),
    "share_stacks": (_POINTER, (_POINTER,)),
    "kept_new": (_POINTER, ()),
    "kept_count": (_INT64, (_POINTER,)),
    "kept_delete": (None, (_POINTER,)),
    "flatten": (_POINTER, (_POINTER, _POINTER, _POINTER, _OBJECT, _INT64, _POINTER, _POINTER)),
    "copy": (_INT64, (_POINTER, _POINTER, _POINTER)),
    "copy_shared": (_INT64, (_POINTER, _OBJECT, _POINTER, _POINTER)),
    "copy_count": (_INT64, (_POINTER,)),
    "copy_at": (_OBJECT, (_POINTER, _INT64, _POINTER)),
    "flat_delete": (None, (_POINTER,)),
    "start": (_POINTER, (_POINTER,)),
    "advance": (ctypes.c_int32, (_POINTER, _POINTER, _POINTER, _OBJECT)),
    "collect": (None, (_POINTER, _POINTER)),
    "wanted": (None, (_POINTER, _INT64, _POINTER)),
    "take": (ctypes.c_int32, (_POINTER, _INT64, _POINTER, _OBJECT)),
    "results": (ctypes.c_int32, (_POINTER, _OBJECT, _OBJECT, _OBJECT, _POINTER)),
    "times": (None, (_POINTER, _POINTER)),
    "delete": (None, (_POINTER,)),
}


_stacks: int | None = None
"""Address of the unused fiber stacks, shared by all programs of this process (fibers.cpp)."""


def library_of(path: Path) -> Any:
    """Load a shared object with functions `stretto_host_*`, ready to be called, and its
    `TableView`."""
    library = load_library(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"stretto_host_{name}")
        function.restype, function.argtypes = result, arguments
    library.stretto_host_configure(python_api())
    global _stacks
    _stacks = library.stretto_host_share_stacks(_stacks)
    library.TableView = TableView  # pyright: ignore
    return library


# ---- Messages that name the part of an instance that does not have the program's type.


_Part = tuple[str, Any, DataType]


def mismatch(program: InstanceProgram, columns: list[Any], instance: int) -> str:
    """Return e.g. `trees[3].left.word: expected int, found str`; empty if the instance fits the
    program.

    columns: a sequence per parameter of the program. Data may be deep or cyclic.
    """
    parameters = program.main.parameters
    parts: list[_Part] = [
        (f"{parameter.name}[{instance}]", column[instance], parameter.type)
        for parameter, column in zip(parameters, columns, strict=True)
    ]
    parts.reverse()
    seen = set[tuple[int, DataType]]()
    while parts:
        path, value, type_ = parts.pop()
        if (id(value), type_) in seen:
            continue
        seen.add((id(value), type_))
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"{path}: expected an int of 64 bits, found {value}"
        fitting = [item for item in alternatives(type_) if has_type(program, value, item)]
        if not fitting or (isinstance(value, torch.Tensor) and not _is_plain(value)):
            return f"{path}: expected {_shown(program, type_)}, found {_found(value)}"
        try:
            parts += reversed(list(_inner(program, path, value, fitting[0])))
        except AttributeError as error:
            return f"{path}: {error}, which others have; set it to None where there is none"
        except _Other as error:
            return str(error)
    return ""


_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return True for a dense tensor in main memory that is not of a subclass."""
    in_memory = tensor.is_cpu and tensor.layout == torch.strided
    return in_memory and type(tensor) in _TENSORS


class _Other(Exception):
    """A part of an unexpected kind; the message describes it."""


def _inner(program: InstanceProgram, path: str, value: Any, type_: DataType) -> Iterator[_Part]:
    """Yield the parts of a value, with their paths and types. Raises _Other for a part of another
    kind."""
    match type_:
        case RecordType(number):
            info = program.classes[number]
            for name in hidden_names(info):
                if name in vars(value):
                    of_class = f"that of {info.python.__name__}, or had none"
                    raise _Other(f"{path}.{name}: expected {of_class}, found one of the object")
            unread = unread_fields(program)[number]
            for name, cell in zip(info.fields, info.cells, strict=True):
                if name in unread or (may_lack(info, name) and not hasattr(value, name)):
                    continue
                if info.kind == "dict":
                    yield f"{path}[{name!r}]", value[name], program.cells[cell]
                else:
                    yield f"{path}.{name}", getattr(value, name), program.cells[cell]
        case TupleType(items):
            for n, (item, item_type) in enumerate(zip(value, items, strict=True)):
                yield f"{path}[{n}]", item, item_type
        case ListType(cell, _):
            for n, item in enumerate(value):
                yield f"{path}[{n}]", item, program.cells[cell]
        case DictType(key_type, cell):
            for key, item in value.items():
                if not has_type(program, key, key_type):
                    wanted, found = _shown(program, key_type), _found(key)
                    raise _Other(f"a key of {path}: expected {wanted}, found {found}")
                yield f"{path}[{key!r}]", item, program.cells[cell]
        case _:
            pass


def _found(value: Any) -> str:
    if isinstance(value, torch.Tensor) and type(value) in _TENSORS:
        device = "" if value.is_cpu else f" on {value.device}"
        device += "" if value.layout == torch.strided else f" of layout {value.layout}"
        try:
            return f"{tensor_type(value)}{device}"
        except KeyError:
            return f"a tensor of {value.dtype}"
    if type(value) is tuple:
        return f"tuple of {len(value)}"
    if type(value) is dict:
        return f"dict with keys {sorted(map(str, value))}" if len(value) < 10 else "dict"
    return type(value).__name__


def _shown(program: InstanceProgram, type_: DataType) -> str:
    """Return a type in the user's terms."""
    return " or ".join(sorted(_one(program, item) for item in alternatives(type_))) or "nothing"


def _one(program: InstanceProgram, type_: DataType) -> str:
    match type_:
        case Scalar():
            return type_.value
        case RecordType(number):
            info = program.classes[number]
            return (
                f"dict with keys {sorted(info.fields)}"
                if info.kind == "dict"
                else (info.python.__name__)
            )
        case TupleType(items):
            return f"tuple of {len(items)}"
        case ListType(_, is_tuple):
            return "tuple" if is_tuple else "list"
        case DictType():
            return "dict"
        case _:
            return str(type_)

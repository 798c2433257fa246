"""The functions of Python and torch that the host runtime calls (include/python.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from stretto.batching.host.places import (
    class_at,
    hidden_names,
    implementation_at,
    places_of,
    version_at,
)
from stretto.batching.program import ClassInfo

# include/python.h: PythonApi, in its order.
_FUNCTIONS = (
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
# The C interface of libtorch that is kept stable for programs compiled ahead of time.
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
# THPVariable_Wrap of libtorch_python, as its versions declare it: with `TensorBase&&`, or by value.
_TENSOR_OBJECTS = (
    "_Z16THPVariable_WrapON2at10TensorBaseE",
    "_Z16THPVariable_WrapN2at10TensorBaseE",
)


@cache
def python_api() -> ctypes.Array[ctypes.c_void_p]:
    """The table `PythonApi`."""
    library = _torch_library("torch_cpu")
    functions = [getattr(ctypes.pythonapi, name) for name in _FUNCTIONS]
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
    """The address of torch's function that makes the Python object of a tensor; None where this
    version of torch does not export it."""
    library = _torch_library("torch_python")
    for name in _TENSOR_OBJECTS:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return None


def _torch_library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.so"))


class PythonClasses:
    """The classes of a program, as the runtime sees them (include/python.h: PythonClass). Keeps the
    objects alive whose addresses are in the table."""

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

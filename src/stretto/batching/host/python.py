"""The functions of Python and torch that the host runtime calls (include/python.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

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
    "PyCapsule_GetPointer",
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
    "aoti_torch_delete_tensor_object",
)


@cache
def python_api() -> ctypes.Array[ctypes.c_void_p]:
    """The table `PythonApi`."""
    folder = Path(torch.__file__).parent / "lib"
    library = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
    functions = [getattr(ctypes.pythonapi, name) for name in _FUNCTIONS]
    torch_functions = [getattr(library, name) for name in _TORCH_FUNCTIONS]
    words = [
        *(ctypes.cast(function, ctypes.c_void_p).value for function in functions),
        *map(id, _OBJECTS),
        *(ctypes.cast(function, ctypes.c_void_p).value for function in torch_functions),
    ]
    return (ctypes.c_void_p * len(words))(*words)


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
            self._kept += [info, create, fields]
            words += [id(python), id(create), ctypes.addressof(fields)]
        self.table = (ctypes.c_void_p * max(1, len(words)))(*words)

"""Functions of the user whose source is not found. They run natively if their code shows that they
depend on their arguments, constants and libraries alone, and change nothing."""

from __future__ import annotations

import array
import builtins
import dis
import itertools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter import native_code
from stretto.frontends.python.interpreter.frames import BoundMethod
from stretto.frontends.python.interpreter.heap import MISSING, IteratorRef, Ref
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter
    from stretto.frontends.python.interpreter.native_calls import GivenValues

_CHANGING = frozenset(
    ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "DELETE_SUBSCR", "IMPORT_NAME")
)
_REFUSED = frozenset(
    (
        "globals", "locals", "vars", "dir", "exec", "eval", "setattr", "delattr", "open", "input",
        "compile", "breakpoint", "id", "super", "__import__", "__build_class__",
    )
)  # fmt: skip
"""Built-in functions that depend on more than their arguments, or change them."""
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_LIBRARIES = frozenset(
    ("torch", "torch.nn.functional", "math", "cmath", "operator", "numpy", "array")
)
_ACTING = frozenset(
    (
        "save", "load", "manual_seed", "seed", "initial_seed", "get_rng_state", "backward",
        "compile", "random", "seterr", "seterrcall", "savez", "savez_compressed", "savetxt",
        "loadtxt", "genfromtxt", "fromfile", "tofile", "memmap", "setbufsize",
    )
)  # fmt: skip
_READING = frozenset(
    (
        "__float__", "__int__", "__index__", "__bool__", "__complex__", "__array__", "__format__",
        "__str__", "__repr__", "__len__", "__getitem__", "__contains__", "__abs__", "__neg__",
        "__round__", "__trunc__", "__floor__", "__ceil__", "__add__", "__radd__", "__sub__",
        "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__floordiv__",
        "__mod__", "__pow__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
        "__class__", "__name__", "_buffers", "_parameters", "_modules",
    )
)  # fmt: skip
"""Special methods that change nothing, and tables of a module."""
_IS_GENERATOR = 0x20


def call(
    interpreter: PythonInterpreter, function: types.FunctionType, args: Any, kwargs: Any
) -> Any:
    """Call a function without a source."""
    name = function.__qualname__
    reason = _reason(interpreter, function, (*args, *kwargs.values()))
    if reason:
        fail(
            f"the source of '{name}' is not found, and it {reason}",
            "define it in a file that does not change after it is imported",
        )
    tracer().sourceless.append(name)
    tracer().note(f"'{name}' has no source that can be read: its control flow runs natively")
    return interpreter.calls.natives.run(function, args, kwargs, view_of)


def _reason(interpreter: PythonInterpreter, function: types.FunctionType, given: Any) -> str:
    """Return why a function cannot run natively; an empty text if it can."""
    if not all(interpreter.calls.is_plain(item) or _has_attributes(item) for item in given):
        return "gets objects that only the interpreter knows"
    code = function.__code__
    if code.co_flags & _IS_GENERATOR:
        return "is a generator function"
    for inner in _codes(code):
        for step in dis.get_instructions(inner):
            if step.opname in _CHANGING:
                return "changes more than its variables"
            if step.opname == "IS_OP" and not _is_of_none(inner):
                return "compares identities"
            if step.opname in _ATTRIBUTES and not _is_pure(step.argval):
                return f"uses '{step.argval}'"
            is_global = step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            if is_global and not _is_fixed(interpreter, function, step.argval):
                return f"uses '{step.argval}'"
    for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if not native_code.is_immutable(cell.cell_contents):
            return f"uses '{free}'"
    return ""


def _is_of_none(code: types.CodeType) -> bool:
    """True if the code compares the identity of nothing but `None`."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    return all(
        before.opname == "LOAD_CONST" and before.argval is None
        for before, step in itertools.pairwise(steps)
        if step.opname == "IS_OP"
    )


def _has_attributes(value: Any) -> bool:
    """True for an object that a view can stand for."""
    kinds = (Ref, IteratorRef, BoundMethod, tuple, type, *_FUNCTIONS)
    return not isinstance(value, kinds)


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def view_of(given: GivenValues, value: Any) -> Any:
    """Return what stands for an object of the user in code that runs natively: its attributes are
    read as the program reads them, and nothing else can be done with it."""
    attributes = given.interpreter.attributes
    kind = attributes.type_of(value)

    def read(view: Any, name: str) -> Any:
        if name == "__class__":
            return kind
        found = attributes.getattr(value, name)
        if isinstance(found, (BoundMethod, *_FUNCTIONS)):
            return given.interpreter.calls.as_host_function(found)
        return given.real(found)

    def refuse(view: Any, *args: Any) -> Any:
        fail(
            f"an object of class {kind.__name__} is used in a function whose source is not found",
            "use its attributes, or define the function in a file",
        )

    def is_true(view: Any) -> bool:
        if any(attributes.method(value, name) is not MISSING for name in ("__bool__", "__len__")):
            refuse(view)
        return True

    methods = dict.fromkeys(_SPECIAL, refuse)
    return type("View", (), {**methods, "__getattribute__": read, "__bool__": is_true})()


_SPECIAL = (
    "__setattr__", "__delattr__", "__eq__", "__hash__", "__len__", "__iter__", "__contains__",
    "__getitem__", "__setitem__", "__delitem__", "__call__", "__str__", "__repr__", "__format__",
    "__lt__", "__le__", "__gt__", "__ge__", "__int__", "__float__", "__index__", "__neg__",
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__",
    "__rtruediv__", "__matmul__", "__rmatmul__", "__enter__", "__exit__", "__torch_function__",
)  # fmt: skip


def _is_fixed(interpreter: PythonInterpreter, function: types.FunctionType, name: str) -> bool:
    heap, space = interpreter.heap, function.__globals__
    found = heap.field(heap.outside.namespace(space), name)
    if found is MISSING:
        return hasattr(builtins, name) and name not in _REFUSED
    if isinstance(found, types.ModuleType):
        return found.__name__ in _LIBRARIES and found is space.get(name)
    if found is array.array or native_code.is_known(found, None):
        return found is space.get(name)
    return native_code.is_immutable(found) and found is space.get(name)


def _is_pure(attribute: str) -> bool:
    """True for an attribute of a library that does not act, as far as names tell."""
    if attribute.startswith("_"):
        return attribute in _READING
    return not attribute.startswith("set_") and attribute not in _ACTING


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from _codes(item)

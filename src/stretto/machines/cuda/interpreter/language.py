"""Triton's language in Python: runs the text of a printed program without a compiler.

Built on Triton's own interpreter (operators on numpy arrays), but not on its `triton.jit`, which
works only if TRITON_INTERPRET was set before the first import, searches for names to replace at
every call of a function, and leaves some of them replaced. Here the whole text is compiled once, as
plain Python functions, and the language is replaced only while a launch runs, so that compilation
in the same process is not affected.

Import only inside functions: it imports triton.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import triton.language
import triton.runtime.interpreter
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import ReduceOps, TensorHandle
from triton.runtime.jit import JITFunction

from stretto.machines.cuda.interpreter.memory import Array, InterpretedBuffer
from stretto.machines.cuda.interpreter.numpy_builder import (
    BF16,
    NumpyBuilder,
    narrow,
    numpy_type,
    wide,
)
from stretto.machines.cuda.printer.triton_module import library_text
from stretto.machines.cuda.toolchain import TRITON_LOCK, file_name

# ---- Triton's typing rules with caches, so that interpretation is fast enough.
#
# An interpreted operator spends most of its time on the types of its operands, of which there are
# few. Results that depend only on a shape or a constant are cached here.


tl: Any = triton.language

Ints = tuple[int, ...]


class Semantic(TritonSemantic[Any]):
    """Triton's semantics with cached conversions of numbers; results equal the base class's."""

    def __init__(self, builder: NumpyBuilder) -> None:
        super().__init__(builder)
        self._constants: dict[tuple[type, Any, str], Any] = {}
        self._operands: dict[tuple[Any, ...], Any] = {}

    def binary_op_type_checking_impl(
        self,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        """Operands of one type need no conversion, except in divisions and for pointers; a number
        next to a tensor is converted once for each type of the tensor."""
        rules = (allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
        if type(lhs) is not tl.tensor:
            return super().binary_op_type_checking_impl(lhs, rhs, *rules)
        kind = lhs.type.name
        if type(rhs) is tl.tensor:
            if kind == rhs.type.name and not div_or_mod and not lhs.dtype.is_ptr():
                return lhs, rhs
            return super().binary_op_type_checking_impl(lhs, rhs, *rules)
        if type(rhs) is not int and type(rhs) is not float:
            return super().binary_op_type_checking_impl(lhs, rhs, *rules)
        key = (kind, type(rhs), _distinct(rhs), *rules)
        found = self._operands.get(key)
        if found is not None:
            return lhs, found
        left, right = super().binary_op_type_checking_impl(lhs, rhs, *rules)
        if left is lhs:
            self._operands[key] = right
        return left, right

    def scalar_constant(self, value: Any, dtype: Any) -> Any:
        key = (type(value), _distinct(value), dtype.name)
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = super().scalar_constant(value, dtype)
        return found


def _distinct(number: Any) -> Any:
    """Return a key that distinguishes 0.0 from -0.0 and makes NaN equal to itself."""
    return number if number == number and number != 0 else repr(number)


_SHAPES: dict[Ints, tuple[Any, int, str]] = {}
_TENSOR_SHAPES: dict[Ints, tuple[Any, Any]] = {}


def block_type_init(self: Any, element_ty: Any, shape: Any) -> None:
    """Replace `block_type.__init__`: facts that depend only on the shape are computed once."""
    key = tuple([_int(size) for size in shape])
    found = _SHAPES.get(key)
    if found is None:
        _ORIGINAL_INIT(self, element_ty, shape)
        found = _SHAPES[key] = (self.shape, self.numel, f"<{self.shape}, ")
    self.element_ty = element_ty
    self.shape, self.numel, prefix = found
    self.name = f"{prefix}{element_ty.name}>"


def tensor_init(self: Any, handle: Any, type: Any) -> None:
    """Replace `tensor.__init__`, likewise."""
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    key = tuple(type.shape.values) if type.is_block() else ()
    found = _TENSOR_SHAPES.get(key)
    if found is None:
        _ORIGINAL_TENSOR_INIT(self, handle, type)
        found = _TENSOR_SHAPES[key] = (self.shape, self.numel)
    self.shape, self.numel = found


def _int(size: Any) -> int:
    return size if type(size) is int else int(getattr(size, "value", size))


_ORIGINAL_INIT: Any = tl.block_type.__init__
_ORIGINAL_TENSOR_INIT: Any = tl.tensor.__init__


# ---- `tl.reduce` of the interpreted Triton language, whole blocks at a time.


def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
    """As `tl.reduce`, for a tensor or a tuple of them. In minimum and maximum NaN loses to a
    number, as in the instructions of a device."""
    axis, keep_dims = getattr(axis, "value", axis), bool(getattr(keep_dims, "value", keep_dims))
    standard = tl.standard
    if combine_fn in (
        standard._argmin_combine_tie_break_left,
        standard._argmax_combine_tie_break_left,
    ):
        return ReduceOps(axis, combine_fn, keep_dims).apply(input)
    operands = (input,) if isinstance(input, tl.tensor) else tuple(input)
    known: dict[Any, Callable[..., Array]] = {
        standard._sum_combine: _sum,
        standard._elementwise_max: _with(np.fmax),
        standard._elementwise_min: _with(np.fmin),
    }
    if combine_fn in known:
        handle = wide(operands[0].handle)
        data = known[combine_fn](handle.data, axis, keep_dims)
        return _tensor(data, operands[0].dtype)
    results = _fold(operands, axis, keep_dims, combine_fn)
    return results[0] if operands[0] is input else results


def _with(function: np.ufunc) -> Callable[..., Array]:
    def apply(data: Array, axis: int | None, keep: bool) -> Array:
        return np.asarray(function.reduce(data, axis=axis, keepdims=keep))

    return apply


def _sum(data: Array, axis: int | None, keep: bool) -> Array:
    """Sum: halves in single precision, integers in their own width."""
    wanted = np.dtype(np.float32) if data.dtype == np.float16 else data.dtype
    return np.asarray(np.sum(data, axis=axis, keepdims=keep, dtype=wanted)).astype(data.dtype)


def _fold(operands: Any, axis: int | None, keep: bool, combine: Callable[..., Any]) -> Any:
    """Combine halves until one slice is left; Triton does not define the order either."""
    arrays = [operand.handle.data for operand in operands]
    shape = arrays[0].shape
    if axis is None:
        arrays = [array.reshape(-1) for array in arrays]
    arrays = [np.moveaxis(array, 0 if axis is None else axis, 0) for array in arrays]
    kinds = [operand.dtype for operand in operands]
    while (size := len(arrays[0])) > 1:
        halves = [
            _tensor(array[part], kind)
            for part in (slice(0, size // 2), slice(size // 2, None))
            for array, kind in zip(arrays, kinds, strict=True)
        ]
        combined = combine(*halves)
        combined = combined if isinstance(combined, tuple | tl.tuple) else (combined,)
        arrays = [part.handle.data for part in combined]
    if not keep:
        arrays = [array[0] for array in arrays]
    elif axis is None:
        arrays = [array.reshape((1,) * len(shape)) for array in arrays]
    else:
        arrays = [np.moveaxis(array, 0, axis) for array in arrays]
    return tuple(_tensor(array, kind) for array, kind in zip(arrays, kinds, strict=True))


def _tensor(data: Array, dtype: Any) -> Any:
    if dtype.name == BF16 and data.dtype == np.float32:
        data = narrow(data).data
    if not data.shape:
        return tl.tensor(TensorHandle(data.reshape(1), dtype), dtype)
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


# Parts of triton without annotations are typed Any.

interpreter: Any = triton.runtime.interpreter

Namespace = dict[str, Any]

BUILDER = NumpyBuilder()
_SEMANTIC: Any = Semantic(BUILDER)
_MODULES: tuple[ModuleType, ...] = (tl, tl.core, tl.math, tl.standard, tl.random)


@lru_cache(maxsize=256)
def _code(text: str) -> tuple[CodeType, ...]:
    """Compile the module in parts, to be executed in order. The library, half of every program, is
    compiled once."""
    file, library = file_name(text), library_text()
    before, found, after = text.partition(library)
    if not found:
        return (_compiled(text, file, 0),)
    first = before.count("\n")
    rest = _compiled(after, file, first + library.count("\n"))
    return _compiled(before, file, 0), _renamed(_library_code(first), file), rest


@cache
def _library_code(first: int) -> CodeType:
    return _compiled(library_text(), "<library>", first)


def _compiled(text: str, file: str, lines: int) -> CodeType:
    """Compile a text that begins after `lines` lines of its file."""
    return compile(_plain(ast.parse("\n" * lines + text)), file, "exec")


def _renamed(code: CodeType, file: str) -> CodeType:
    """Return the same code as part of another file."""
    values = code.co_consts
    inner = (_renamed(value, file) if isinstance(value, CodeType) else value for value in values)
    return code.replace(co_filename=file, co_consts=tuple(inner))


def load_module(text: str) -> Namespace:
    """Return a fresh namespace of the module `text` whose jit functions are plain functions.

    They may be called only inside `interpreted()`.
    """
    namespace: Namespace = {"__name__": "triton_program", "range": _range, "_tensor": _to_tensor}
    for code in _code(text):
        exec(code, namespace)
    for name, value in namespace.items():
        if isinstance(value, FunctionType):
            _as_combining(value)
        elif isinstance(value, tl.constexpr):
            namespace[name] = value.value
    namespace["PORTABLE"] = True  # there is no PTX
    return namespace


@contextmanager
def interpreted() -> Generator[None]:
    """Replace triton's language by functions on numpy arrays inside a `with`."""
    with TRITON_LOCK:
        undo: list[tuple[Any, str, Any]] = []
        try:
            for owner, name, value in _replacements():
                undo.append((owner, name, vars(owner).get(name, _ABSENT)))
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in reversed(undo):
                if value is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)


def argument(value: float, kind: str, buffer: InterpretedBuffer | None = None) -> Any:
    """Return a parameter of the kernel: `value` is a number, or the address for a type like
    `*fp32`."""
    dtype = tl.str_to_ty(kind, None)
    attributes = {} if buffer is None else {"buffer": buffer}
    handle = TensorHandle(np.array([value], numpy_type(dtype)), dtype, attributes)
    return tl.tensor(handle, dtype)


# ---- the text as plain functions -----------------------------------------------------------------
def _plain(tree: ast.Module) -> ast.Module:
    """Remove decorators of functions, and convert every assigned number to a tensor, as a compiled
    program does; annotated constexprs and assignments of the module are unchanged."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            _make_plain(statement)
    return tree


def _make_plain(statement: ast.stmt) -> None:
    if isinstance(statement, ast.FunctionDef):
        statement.decorator_list = []
    if isinstance(statement, ast.Assign):
        place = statement.value
        function = ast.copy_location(ast.Name("_tensor", ast.Load()), place)
        statement.value = ast.copy_location(ast.Call(function, [place], []), place)
    for part in ("body", "orelse"):
        for inner in getattr(statement, part, ()):
            _make_plain(inner)


def _to_tensor(value: Any) -> Any:
    """Convert an assigned number to a tensor, in tuples too; types, strings and None are
    unchanged."""
    if isinstance(value, tl.tensor):
        return value
    if isinstance(value, tuple):
        items = map(_to_tensor, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, tl.dtype | tl.tuple | str | None):
        return value
    return _SEMANTIC.to_tensor(value, False)


def _range(first: Any, last: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """`range` and `tl.range` of a kernel: the index is a tensor."""
    if last is None:
        first, last = 0, first
    bounds = [_to_tensor(value) for value in (first, last, step)]
    kind = tl.int64 if any(bound.dtype.primitive_bitwidth == 64 for bound in bounds) else tl.int32
    scalar = numpy_type(kind).type
    for index in range(*(int(bound.handle.data.item()) for bound in bounds)):
        yield tl.tensor(TensorHandle(np.array([scalar(index)]), kind), kind)


# ---- replacements of the language ----------------------------------------------------------------
_ABSENT: Any = object()


@cache
def _replacements() -> tuple[tuple[Any, str, Any], ...]:
    """Return (module or class, attribute, replacement while a launch runs)."""
    found: dict[tuple[int, str], tuple[Any, str, Any]] = {}

    def put(owner: Any, name: str, value: Any) -> None:
        found[id(owner), name] = (owner, name, value)

    # Besides builtins, triton itself replaces conversions of scalars, `dtype.to_ir` and hints.
    scope: Any = interpreter._LangPatchScope()
    try:
        for lang in (tl, tl.core):
            interpreter._patch_lang_core(lang, scope)
        interpreter._patch_lang_tensor(tl.tensor, scope)
        for owner, name, _ in scope._changes:
            put(owner, name, vars(owner)[name])
    finally:
        scope.restore()
    twins = _twins()
    for owner in (*_MODULES, tl.tensor):
        for name, value in list(vars(owner).items()):
            if id(value) in twins:
                put(owner, name, twins[id(value)])
    for owner in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
        for name, value in inspect.getmembers(owner):
            if tl.core.is_builtin(value) and (id(owner), name) not in found:
                put(owner, name, _bound(value, method=inspect.isclass(owner)))
    for lang in (tl, tl.core):
        put(lang, "range", _range)
        put(lang, "reduce", reduce)
    put(interpreter, "_get_np_dtype", numpy_type)
    put(tl.block_type, "__init__", block_type_init)
    put(tl.tensor, "__init__", tensor_init)
    put(tl.tensor, "__index__", lambda self: int(self.handle.data.item()))
    put(tl.tensor, "__bool__", _truth)
    return tuple(found.values())


def _bound(builtin: Any, *, method: bool) -> Callable[..., Any]:
    """Return a builtin with the semantics bound, without the check for it on every call."""
    function = getattr(builtin, "__wrapped__", builtin)
    if not method:
        return partial(function, _semantic=_SEMANTIC)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = _SEMANTIC
        return function(*args, **kwargs)

    return call


def _truth(tensor: Any) -> bool:
    """True for a block: Triton's semantics test `if other` for arguments that may be None."""
    data = tensor.handle.data
    return bool(data.item()) if data.size == 1 else True


@cache
def _twins() -> dict[int, Callable[..., Any]]:
    """Return plain functions for triton's own jit functions (`tl.sum`, `tl.zeros`, ...) by their
    id.

    Those of one module call each other through a separate namespace.
    """
    twins: dict[int, Callable[..., Any]] = {}
    kinds = (JITFunction, interpreter.InterpretedFunction)
    for module in (tl.core, tl.math, tl.standard, tl.random):
        namespace: Namespace = {**vars(module), "_tensor": _to_tensor}
        own = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, kinds) and value.fn.__module__ == module.__name__
        }
        for name, value in own.items():
            twins[id(value)] = namespace[name] = _twin(value.fn, namespace)
        for name, value in vars(module).items():
            if isinstance(value, kinds) and id(value) in twins:
                namespace[name] = twins[id(value)]
    return twins


def _twin(function: FunctionType, namespace: Namespace) -> Callable[..., Any]:
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(inspect.cleandoc("".join(lines)) if lines[0][:1].isspace() else "".join(lines))
    ast.increment_lineno(tree, first - 1)
    local: Namespace = {}
    exec(compile(_plain(tree), inspect.getfile(function), "exec"), namespace, local)
    return _as_combining(local[function.__name__])


def _as_combining(function: Any) -> Any:
    """Set `fn`, which Triton's interpreter reads from the combining function of a scan."""
    function.fn = function
    return function

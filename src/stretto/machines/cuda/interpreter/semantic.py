"""Triton's typing rules, as its compiler applies them, made quick enough to be interpreted.

Most of the time of an interpreted operator goes into the types of its operands, which are the same
few all along. What is computed again and again for one shape or one constant is kept here.

Import only inside functions: it imports triton.
"""

from __future__ import annotations

from typing import Any

import triton.language
from triton.language.semantic import TritonSemantic

from stretto.machines.cuda.interpreter.builder import Builder

tl: Any = triton.language

Ints = tuple[int, ...]


class Semantic(TritonSemantic[Any]):
    """Gives what its base class gives."""

    def __init__(self, builder: Builder) -> None:
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
        """Operands of one type need no conversion, but for a division of halves and pointers; a
        number next to a tensor is converted once for each type of the tensor."""
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
    """As a key: 0.0 equals -0.0, and NaN not even itself."""
    return number if number == number and number != 0 else repr(number)


_SHAPES: dict[Ints, tuple[Any, int, str]] = {}
_TENSOR_SHAPES: dict[Ints, tuple[Any, Any]] = {}


def block_type_init(self: Any, element_ty: Any, shape: Any) -> None:
    """In place of `block_type.__init__`: what only depends on the shape is made once."""
    key = tuple([_int(size) for size in shape])
    found = _SHAPES.get(key)
    if found is None:
        _ORIGINAL_INIT(self, element_ty, shape)
        found = _SHAPES[key] = (self.shape, self.numel, f"<{self.shape}, ")
    self.element_ty = element_ty
    self.shape, self.numel, prefix = found
    self.name = f"{prefix}{element_ty.name}>"


def tensor_init(self: Any, handle: Any, type: Any) -> None:
    """In place of `tensor.__init__`, likewise."""
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

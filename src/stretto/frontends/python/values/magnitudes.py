"""How many bits the absolute value of an int of Python needs, as far as it is known.

An int that depends on a tensor has 64 bits in a Program. Where the bits of the operands leave no
doubt, an operator needs no check that its result can be held. A value that a loop carries counts as
one of `COUNTER_BITS` if a round only adds or subtracts what has `SMALL_BITS`: no run lasts long
enough for it to leave this range.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.tracing.tensor import SIZE_BITS, UNKNOWN_BITS, TracedTensor

aten = torch.ops.aten

MOST_BITS = 63
"""The bits of an absolute value that surely fits."""
COUNTER_BITS = 62
SMALL_BITS = 32
_OF_DTYPES = {torch.bool: 1, torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32}


def bits_of(number: Any) -> int:
    """The bits of an int, a bool or a size, traced or not."""
    if isinstance(number, torch.SymInt):
        return SIZE_BITS
    if not isinstance(number, TracedTensor):
        return int(number).bit_length()
    own = UNKNOWN_BITS if number.number is None else number.number.bits
    return min(own, _OF_DTYPES.get(number.dtype, own))


def bits_of_items(tensor: torch.Tensor) -> int:
    """The bits of what `item()` gives."""
    return _OF_DTYPES.get(tensor.dtype, UNKNOWN_BITS)


def bits_of_result(func: Any, args: Any, kwargs: Any) -> int:
    """The bits of what an operator of torch makes of numbers."""
    name = _OPERATORS.get(func.overloadpacket)
    is_copy = func.overloadpacket is aten._to_copy
    has_float = any(isinstance(item, float | torch.SymFloat) for item in args)
    if name is None or has_float or (kwargs and not is_copy):
        return UNKNOWN_BITS
    first, *others = args[:2]
    return result_bits(name, first, others[0] if others else None)


_OPERATORS = {
    aten.add: "add",
    aten.sub: "sub",
    aten.rsub: "sub",
    aten.mul: "mul",
    aten.neg: "neg",
    aten.abs: "abs",
    aten.floor_divide: "floordiv",
    aten.remainder: "mod",
    aten.bitwise_and: "and",
    aten.bitwise_or: "or",
    aten.bitwise_xor: "xor",
    aten.minimum: "or",
    aten.maximum: "or",
    aten._to_copy: "pos",
    aten.__rshift__: "rshift",
}


def result_bits(name: str, first: Any, second: Any) -> int:
    """The bits of the result of a Python operator on ints."""
    one, other = bits_of(first), 0 if second is None else bits_of(second)
    most, least = max(one, other), min(one, other)
    match name:
        case "neg" | "abs" | "pos" | "invert" | "floordiv":
            return one if one <= MOST_BITS else UNKNOWN_BITS
        case "add" | "sub":
            counts = most == COUNTER_BITS and least <= SMALL_BITS
            return most if counts else _bounded(most + 1)
        case "mul":
            return _bounded(one + other)
        case "pow":
            if isinstance(second, int) and second >= 0:
                return _bounded(one * second)
            return UNKNOWN_BITS
        case "lshift":
            return _bounded(one + second) if isinstance(second, int) else UNKNOWN_BITS
        case "mod":
            return other
        case "rshift":
            return one
        case _:
            return most


def _bounded(bits: int) -> int:
    return min(bits, UNKNOWN_BITS)

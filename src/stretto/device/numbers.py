"""Python numbers as elements of a dtype: conversions and wrap-around as torch has them."""

from __future__ import annotations

import torch

from stretto.ir.types import DType


def wrapped(value: int, dtype: DType) -> int:
    """The number of an integer dtype that `value` is modulo 2 to the power of its bits."""
    bits = 8 * dtype.itemsize
    low = 0 if dtype is DType.U8 else -(1 << (bits - 1))
    return (value - low) % (1 << bits) + low


def convert_number(value: bool | int | float, source: DType, target: DType) -> bool | int | float:
    """An element of `source` as one of `target`, by torch's `.to`.

    Python's floats are constants of f32 that keep all their digits for a conversion to f64.
    """
    exact = torch.float64 if source.is_float else source.torch
    return torch.tensor(value, dtype=exact).to(target.torch).item()

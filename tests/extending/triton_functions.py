"""The kernels of `operators.py` in Triton, which the tests of this folder share."""

import math

import torch
import triton
import triton.language as tl
from triton.language import exp as exponential

import stretto
from tests.extending import triton_helpers
from tests.extending.operators import fast_gelu, row_sums, smooth

CHUNK = tl.constexpr(32)
"""Columns that are loaded at once."""


@triton.jit
def fast_gelu_tile(i, x, out):
    at = i.begin + tl.arange(0, i.block)
    inside = at < i.end
    v = tl.load(x.data + at * x.stride[0], mask=inside)
    u = (2 / math.pi) ** 0.5 * (v + 0.044715 * v * v * v)
    value = v * triton_helpers.logistic(2 * u)
    tl.store(out.data + at * out.stride[0], value, mask=inside)


@triton.jit
def rotary_tile(s, x, cos, sin, out):
    half = x.size[1] // 2
    row = (s.begin + tl.arange(0, s.block))[:, None]
    for start in range(0, half, CHUNK):
        at = start + tl.arange(0, CHUNK)[None, :]
        inside = (row < s.end) & (at < half)
        c = tl.load(cos.data + row * cos.stride[0] + at * cos.stride[1], mask=inside)
        n = tl.load(sin.data + row * sin.stride[0] + at * sin.stride[1], mask=inside)
        place = x.data + row * x.stride[0] + at * x.stride[1]
        first = tl.load(place, mask=inside)
        second = tl.load(place + half * x.stride[1], mask=inside)
        to = out.data + row * out.stride[0] + at * out.stride[1]
        tl.store(to, first * c - second * n, mask=inside)
        tl.store(to + half * out.stride[1], second * c + first * n, mask=inside)


@triton.jit
def smooth_tile(i, x, weight, shift, sharp, out):
    at = i.begin + tl.arange(0, i.block)
    inside = at < i.end
    place = x.data + at * x.stride[0]
    left = tl.load(place, mask=inside)
    middle = tl.load(place + x.stride[0], mask=inside)
    right = tl.load(place + 2 * x.stride[0], mask=inside)
    side = weight * (left + right)
    if sharp:
        side = -side
    tl.store(out.data + at * out.stride[0], side + middle + shift, mask=inside)


@triton.jit
def row_sums_tile(i, x, out):
    row = i.begin + tl.arange(0, i.block)
    total = tl.zeros((i.block,), tl.int64)
    for start in range(0, x.size[1], CHUNK):
        at = start + tl.arange(0, CHUNK)
        inside = (row < i.end)[:, None] & (at < x.size[1])[None, :]
        place = x.data + row[:, None] * x.stride[0] + at[None, :] * x.stride[1]
        total += tl.sum(tl.load(place, mask=inside, other=0).to(tl.int64), 1)
    tl.store(out.data + row * out.stride[0], total, mask=row < i.end)


@triton.jit
def exponential_tile(i, x, out):
    at = i.begin + tl.arange(0, i.block)
    value = exponential(tl.load(x.data + at * x.stride[0], mask=at < i.end))
    tl.store(out.data + at * out.stride[0], value, mask=at < i.end)


@triton.jit
def pairs_tile(i, j, x, y, out):
    row, column = i.begin + tl.arange(0, i.block), j.begin + tl.arange(0, j.block)
    total = tl.zeros((i.block, j.block), tl.float32)
    for start in range(0, x.size[1], CHUNK):
        at = start + tl.arange(0, CHUNK)
        deep = at < x.size[1]
        left = x.data + row[:, None] * x.stride[0] + at[None, :] * x.stride[1]
        right = y.data + column[None, :] * y.stride[0] + at[:, None] * y.stride[1]
        a = tl.load(left, mask=(row < i.end)[:, None] & deep[None, :], other=0.0)
        b = tl.load(right, mask=deep[:, None] & (column < j.end)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    place = out.data + row[:, None] * out.stride[0] + column[None, :] * out.stride[1]
    tl.store(place, total, mask=(row < i.end)[:, None] & (column < j.end)[None, :])


def register_triton() -> None:
    """The kernels, in Triton alone."""
    floats = (torch.float32, torch.float64)
    stretto.kernel(
        fast_gelu, "x[..., i] -> [..., i]", triton=fast_gelu_tile, operations=12, dtypes=floats
    )
    stretto.kernel(
        "stretto_test::rotary",
        "x[..., s, :], cos[s, :], sin[s, :] -> [..., s, :]",
        triton=rotary_tile,
        operations=4,
    )
    stretto.kernel(smooth, "x[..., i : i + 3] -> [..., i]", triton=smooth_tile, operations=4)
    stretto.kernel(row_sums, "x[i, :] -> [i]", triton=row_sums_tile, operations=8)

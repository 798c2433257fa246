"""The C++ templates that sort (sort.h) against NumPy, at every size where they change their method.

One driver per instruction set takes run-time sizes.
"""

import ctypes

import numpy as np
import pytest

from tests.machines.cpu.drivers import COMPILER, X86, driver
from tests.machines.cpu.test_contract_header import TARGETS

DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "int64_t": np.int64,
    "int32_t": np.int32,
    "int16_t": np.int16,
    "int8_t": np.int8,
    "uint8_t": np.uint8,
    "bool": np.bool_,
}
SIZES = (0, 1, 2, 15, 16, 17, 31, 64, 127, 128, 129, 200, 255, 256, 257, 258, 500, 1000, 5000)
ORDERS = ("random", "near", "rising", "falling", "equal", "few")

DRIVER = """
#include "sort.h"
using namespace stretto;
template <bool falling, class T>
static bool order(const T* x, int64_t n, int64_t keep, int64_t* out) {
  using Key = decltype(sort_key<falling>(T()));
  alignas(64) char small[2048];
  Sorter<Key> sorter(n, keep, small, sizeof small);
  if (sorter.failed) return false;
  for (int64_t i = 0; i < n; ++i) sorter.keys[i] = sort_key<falling>(x[i]);
  sorter.sort();
  for (int64_t i = 0; i < keep; ++i) out[i] = sorter.order[i];
  return true;
}
"""
ENTRY = """
extern "C" bool order_{0}(bool falling, const {0}* x, int64_t n, int64_t keep, int64_t* out) {{
  return falling ? order<true>(x, n, keep, out) : order<false>(x, n, keep, out);
}}
"""


@pytest.fixture(scope="module", params=list(TARGETS))
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("needs g++")
    if not X86 and request.param != "native":
        pytest.skip("an x86 instruction set")
    flags = ["-O2", "-Wno-psabi", "-fopenmp-simd", *TARGETS[request.param]]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover"]
    return driver(DRIVER + "".join(ENTRY.format(name) for name in DTYPES), *flags)


def elements(kind: str, size: int, dtype: type[np.generic]) -> np.ndarray:
    rng = np.random.default_rng(size)
    x = rng.integers(-(2**62), 2**62, size)
    if issubclass(dtype, np.floating):
        x = rng.normal(size=size).astype(dtype)
        special = rng.random(size) < 0.1
        x[special] = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], special.sum())
    if kind == "near":  # around 0, so that all bytes of the integers differ
        x = x // 2.0**44
    if kind == "few":
        x = np.where(np.isfinite(x), x, 0) // 2 % 5
    if kind == "equal":
        x = np.full(size, 3)
    with np.errstate(invalid="ignore"):
        x = x.astype(dtype)
    if kind in ("rising", "falling"):
        x = x[wanted(x, kind == "falling")]
    return np.ascontiguousarray(x)


def wanted(x: np.ndarray, falling: bool) -> np.ndarray:
    """Stable, NaN as the largest."""
    if not falling:
        return np.argsort(x, kind="stable")
    return len(x) - 1 - np.argsort(x[::-1], kind="stable")[::-1]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_positions(library: ctypes.CDLL, dtype: str, kind: str) -> None:
    order = library[f"order_{dtype}"]
    order.restype = ctypes.c_bool
    address = ctypes.c_void_p
    order.argtypes = [ctypes.c_bool, address, ctypes.c_int64, ctypes.c_int64, address]
    for size in SIZES:
        x = elements(kind, size, DTYPES[dtype])
        for falling in (False, True):
            expected = wanted(x, falling)
            for keep in sorted({0, 1, 3, 33, size // 9, size // 8, size // 2, size}):
                if keep > size:
                    continue
                out = np.full(keep, -1)
                assert order(falling, x.ctypes.data, size, keep, out.ctypes.data)
                assert np.array_equal(out, expected[:keep]), (size, keep, falling)


def test_no_memory_is_told(library: ctypes.CDLL) -> None:
    x, out = np.zeros(1, np.float32), np.zeros(1, np.int64)
    order = library.order_float
    order.restype = ctypes.c_bool
    address = ctypes.c_void_p
    order.argtypes = [ctypes.c_bool, address, ctypes.c_int64, ctypes.c_int64, address]
    assert not order(False, x.ctypes.data, 1 << 58, 1 << 57, out.ctypes.data)

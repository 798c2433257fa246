"""The C++ templates under the printed kernels (contract.h, conv.h) against float64 references.

One driver is built per instruction set and takes run-time sizes, so a single build covers every
odd shape; for those that are not this machine's own it has each case in one dtype. Each input ends
right before a page that must not be touched: a read past it crashes.
"""

import ctypes
import itertools
import mmap
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.machines.cpu.drivers import COMPILER, X86, driver

TARGETS = {
    "native": ["-march=native"],
    "no-avx512": ["-march=native", "-mno-avx512f"],
    "baseline": [],
}
DTYPES = {"f": np.float32, "d": np.float64}
TILES = [(3, 4), (6, 2), (1, 8)]  # MR, vectors per panel; all fit 16 registers but the last (M = 1)

DRIVER = """
#include "conv.h"
using namespace stretto;
extern "C" int lanes_f() { return kLanes<float>; }
extern "C" int lanes_d() { return kLanes<double>; }
#define ENTRY(NAME, T, MR, NV) \\
  extern "C" void packed_##NAME(const T* a, int64_t am, int64_t ak, const T* b, T* c, \\
                                int64_t ldc, int m, int n, int k, bool accumulate) { \\
    contract_packed_many<T, MR, NV * kLanes<T>>(a, am, ak, b, c, ldc, m, k, n, accumulate); \\
  } \\
  extern "C" void packed_ab_##NAME(const T* a, const T* b, T* c, int64_t ldc, int m, int n, \\
                                   int k, bool accumulate) { \\
    constexpr int width = NV * kLanes<T>; \\
    contract_packed_ab<T, MR, width>(a, int64_t(k) * MR, b, c, ldc, m, k, accumulate, n); \\
  } \\
  extern "C" void rows_##NAME(const T* a, int64_t am, int64_t ak, const T* b, int64_t ldb, T* c, \\
                              int64_t ldc, int m, int n, int k, bool accumulate) { \\
    contract_rows<T, MR, NV * kLanes<T>>(a, am, ak, b, ldb, c, ldc, m, n, k, accumulate); \\
  } \\
  extern "C" void dots_##NAME(const T* a, int64_t am, const T* b, int64_t bn, T* c, int64_t ldc, \\
                              int m, int n, int k, bool accumulate) { \\
    contract_dots<T, (MR < 3 ? MR : 2), NV>(a, am, b, bn, c, ldc, m, n, k, accumulate); \\
  }
"""

CONV_DRIVER = """
template <class T, class S, int MR, int NR>
static void whole_conv(const T* x, const T* w, T* out, int oc, bool accumulate) {
  alignas(64) static T scratch[conv_scratch<T, S, NR> + 1];
  for (int p = 0; p < S::pixels; p += NR)
    conv_tile<T, S, MR, NR>(x, w, scratch, out + p, S::pixels, oc, p, S::pixels, accumulate);
}
"""


@dataclass(frozen=True)
class ConvCase:
    channels: int
    out_channels: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def template(self, channels: int | None = None) -> str:
        dims = (self.channels if channels is None else channels, *self.size, *self.kernel)
        args = (*dims, *self.stride, *self.padding, *self.dilation)
        return f"Conv<{', '.join(map(str, args))}>"

    @property
    def output(self) -> tuple[int, int]:
        extents = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        rows, columns = ((h + 2 * p - d * (k - 1) - 1) // s + 1 for h, k, s, p, d in extents)
        return rows, columns

    def patches(self, x: np.ndarray) -> np.ndarray:
        """[C, KH*KW, OH*OW] of an image [C, H, W], in float64."""
        (ph, pw), (oh, ow) = self.padding, self.output
        padded = np.pad(x.astype(np.float64), ((0, 0), (ph, ph), (pw, pw)))
        taps = itertools.product(range(self.kernel[0]), range(self.kernel[1]))
        picked = []
        for ky, kx in taps:
            top, left = ky * self.dilation[0], kx * self.dilation[1]
            rows = slice(top, top + (oh - 1) * self.stride[0] + 1, self.stride[0])
            columns = slice(left, left + (ow - 1) * self.stride[1] + 1, self.stride[1])
            picked.append(padded[:, rows, columns].reshape(len(x), -1))
        return np.stack(picked, axis=1)


CONVS = [
    ConvCase(16, 16, (32, 32), (3, 3), padding=(1, 1)),
    ConvCase(64, 13, (8, 8), (3, 3), padding=(1, 1)),
    ConvCase(5, 7, (13, 11), (3, 3), padding=(1, 1)),
    ConvCase(3, 8, (17, 19), (5, 3), stride=(2, 2), padding=(2, 1)),
    ConvCase(3, 8, (16, 16), (3, 3), stride=(2, 3), padding=(1, 1)),
    ConvCase(4, 6, (20, 9), (3, 3), padding=(2, 2), dilation=(2, 2)),
    ConvCase(2, 5, (7, 40), (2, 7), stride=(1, 1), padding=(3, 5), dilation=(2, 3)),
    ConvCase(1, 1, (1, 1), (3, 3), padding=(1, 1)),
    ConvCase(2, 3, (2, 3), (3, 7), stride=(1, 2), padding=(2, 6)),
    ConvCase(9, 10, (6, 64), (1, 1)),
    ConvCase(9, 10, (3, 3), (1, 1)),
    ConvCase(8, 4, (15, 15), (1, 1), stride=(2, 2)),
]


def half(target: str, code: str, number: int) -> int:
    """Which of its target's two drivers has case `number` of a list. The first drivers together
    have each case for each dtype; only `make whole` builds the second ones."""
    return (number + list(TARGETS).index(target) + list(DTYPES).index(code)) % 2


def driver_source(target: str, which: int) -> str:
    entries = [DRIVER, CONV_DRIVER]
    ctypes_of = (("f", "float"), ("d", "double"))
    for (code, ctype), (i, (mr, nv)) in itertools.product(ctypes_of, enumerate(TILES)):
        if half(target, code, i) == which:
            entries.append(f"ENTRY({code}_{mr}_{nv}, {ctype}, {mr}, {nv})")
    for (code, ctype), (i, case) in itertools.product(ctypes_of, enumerate(CONVS)):
        if half(target, code, i) != which:
            continue
        entries.append(
            textwrap.dedent(f"""
            extern "C" void conv_{code}_{i}(const {ctype}* x, const {ctype}* w, {ctype}* out,
                                            int oc, bool accumulate) {{
              using S = {case.template()};
              whole_conv<{ctype}, S, 3, 4 * kLanes<{ctype}>>(x, w, out, oc, accumulate);
            }}
            extern "C" void depthwise_{code}_{i}(const {ctype}* x, const {ctype}* w, {ctype}* out,
                                                 int row, int rows, bool accumulate) {{
              conv_depthwise<{ctype}, {case.template(1)}>(x, w, out, row, rows, accumulate);
            }}""")
        )
    return "\n".join(entries)


@dataclass(frozen=True)
class Kernels:
    library: ctypes.CDLL
    code: str  # of the element type: f or d

    @property
    def dtype(self) -> type[np.floating]:
        return DTYPES[self.code]

    @property
    def lanes(self) -> int:
        return self.library[f"lanes_{self.code}"]()

    def entry(self, name: str) -> Callable[..., None]:
        function = self.library[name]

        def call(*args: np.ndarray | int | bool) -> None:
            function(*(convert(arg) for arg in args))

        return call


def convert(
    arg: np.ndarray | int | bool,
) -> ctypes.c_void_p | ctypes.c_bool | ctypes.c_int64:
    if isinstance(arg, np.ndarray):
        return ctypes.c_void_p(arg.ctypes.data)
    return ctypes.c_bool(arg) if isinstance(arg, bool) else ctypes.c_int64(arg)


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Those of a target, a dtype and one half of the cases, which `of_every` gives."""
    target, code, which = request.param
    if COMPILER is None:
        pytest.skip("needs g++")
    if not X86 and target != "native":
        pytest.skip("an x86 instruction set")
    return Kernels(driver(driver_source(target, which), "-O2", *TARGETS[target]), code)


def of_every(name: str, cases: Sequence[object]) -> pytest.MarkDecorator:
    """Parameters: `kernels`, and as `name` each case that they are built for."""
    built = [
        pytest.param(
            (target, code, which := half(target, code, number)),
            case,
            id=f"{target}-{code}-{number}",
            marks=pytest.mark.whole if which else (),
        )
        for target, code, (number, case) in itertools.product(TARGETS, DTYPES, enumerate(cases))
    ]
    return pytest.mark.parametrize(("kernels", name), built, indirect=["kernels"])


_libc = ctypes.CDLL(None, use_errno=True)


def guarded(values: np.ndarray) -> np.ndarray:
    """A copy that ends where the next page may not be touched."""
    page = mmap.PAGESIZE
    size = -(-max(values.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0) == 0
    offset = size - values.nbytes
    copy = np.frombuffer(memory, values.dtype, values.size, offset).reshape(values.shape)
    copy[...] = values
    return copy


def random(rng: np.random.Generator, dtype: type[np.floating], *shape: int) -> np.ndarray:
    return guarded(rng.uniform(-1, 1, shape).astype(dtype))


def pack(matrix: np.ndarray, width: int) -> np.ndarray:
    """[K, N] as panels [N/width][K][width], zero-padded."""
    k, n = matrix.shape
    panels = -(-n // width)
    padded = np.zeros((k, panels * width), matrix.dtype)
    padded[:, :n] = matrix
    return guarded(np.ascontiguousarray(padded.reshape(k, panels, width).swapaxes(0, 1)))


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In a precision that leaves only the rounding of the kernel to be seen."""
    if a.dtype == np.float32:
        return a.astype(np.float64) @ b
    return (a.astype(np.longdouble) @ b).astype(np.float64)


def check(actual: np.ndarray, before: np.ndarray, expected: np.ndarray, accumulate: bool, k: int):
    """`actual` and `before` may have more columns than are computed; those must not change."""
    n = expected.shape[1]
    want = expected + before[:, :n] if accumulate else expected
    roundings = 2 * (k + 8)  # a product and a sum per term, where the machine has no fused ones
    tolerance = 4 * roundings**0.5 * np.finfo(actual.dtype).eps
    np.testing.assert_allclose(actual[:, :n], want, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(actual[:, n:], before[:, n:])


SIZES = [
    *itertools.product(range(1, 18), [37], [7]),
    *itertools.product([1, 2, 5, 17], [1, 3, 8, 15, 16, 17, 64, 97, 191], [1, 9]),
    *itertools.product([1, 4, 7, 13], [64, 75], [0, 1, 256, 513]),
    (300, 40, 300),
]
EDGES = pytest.mark.parametrize("accumulate", [False, True])
EVERY_TILE = of_every("tile", TILES)


@pytest.mark.whole
@EVERY_TILE
@EDGES
def test_packed_panels(kernels: Kernels, tile: tuple[int, int], accumulate: bool) -> None:
    mr, nv = tile
    call = kernels.entry(f"packed_{kernels.code}_{mr}_{nv}")
    rng = np.random.default_rng(0)
    for m, n, k in SIZES:
        a, b = random(rng, kernels.dtype, m, k), random(rng, kernels.dtype, k, n)
        panels, c = pack(b, nv * kernels.lanes), random(rng, kernels.dtype, m, n + 3)
        expected, before = product(a, b), c.copy()
        call(a, k, 1, panels, c, n + 3, m, n, k, accumulate)
        check(c, before, expected, accumulate, k)


@pytest.mark.whole
@EVERY_TILE
@EDGES
def test_both_sides_packed(kernels: Kernels, tile: tuple[int, int], accumulate: bool) -> None:
    mr, nv = tile
    width = nv * kernels.lanes
    call = kernels.entry(f"packed_ab_{kernels.code}_{mr}_{nv}")
    rng = np.random.default_rng(1)
    for m, n, k in SIZES:
        n = min(n, width)
        a, b = random(rng, kernels.dtype, m, k), random(rng, kernels.dtype, k, n)
        c = random(rng, kernels.dtype, m, n + 3)
        expected, before = product(a, b), c.copy()
        call(pack(a.T, mr), pack(b, width), c, n + 3, m, n, k, accumulate)
        check(c, before, expected, accumulate, k)


@EVERY_TILE
@EDGES
@pytest.mark.parametrize("transposed", [False, True])
def test_rows(kernels: Kernels, tile: tuple[int, int], accumulate: bool, transposed: bool) -> None:
    call = kernels.entry(f"rows_{kernels.code}_{tile[0]}_{tile[1]}")
    rng = np.random.default_rng(2)
    for m, n, k in SIZES:
        a = random(rng, kernels.dtype, *((k, m) if transposed else (m, k)))
        b, c = random(rng, kernels.dtype, k, n), random(rng, kernels.dtype, m, n + 3)
        expected, before = product(a.T if transposed else a, b), c.copy()
        call(a, *((1, m) if transposed else (k, 1)), b, n, c, n + 3, m, n, k, accumulate)
        check(c, before, expected, accumulate, k)


@pytest.mark.whole
@EVERY_TILE
@EDGES
def test_dots(kernels: Kernels, tile: tuple[int, int], accumulate: bool) -> None:
    call = kernels.entry(f"dots_{kernels.code}_{tile[0]}_{tile[1]}")
    rng = np.random.default_rng(3)
    for m, n, k in SIZES:
        a, b = random(rng, kernels.dtype, m, k), random(rng, kernels.dtype, n, k)
        c = random(rng, kernels.dtype, m, n + 3)
        expected, before = product(a, b.T), c.copy()
        call(a, k, b, k, c, n + 3, m, n, k, accumulate)
        check(c, before, expected, accumulate, k)


@EDGES
@of_every("index", range(len(CONVS)))
def test_conv(kernels: Kernels, index: int, accumulate: bool) -> None:
    case = CONVS[index]
    call = kernels.entry(f"conv_{kernels.code}_{index}")
    rng = np.random.default_rng(4)
    x = random(rng, kernels.dtype, case.channels, *case.size)
    k = case.channels * case.kernel[0] * case.kernel[1]
    weights = random(rng, kernels.dtype, case.out_channels, k)
    out = random(rng, kernels.dtype, case.out_channels, case.output[0] * case.output[1])
    expected, before = weights.astype(np.float64) @ case.patches(x).reshape(k, -1), out.copy()
    call(x, pack(weights.T, 3), out, case.out_channels, accumulate)
    check(out, before, expected, accumulate, k)


@EDGES
@of_every("index", range(len(CONVS)))
def test_depthwise_conv(kernels: Kernels, index: int, accumulate: bool) -> None:
    case = CONVS[index]
    call = kernels.entry(f"depthwise_{kernels.code}_{index}")
    rng = np.random.default_rng(5)
    x = random(rng, kernels.dtype, 1, *case.size)
    taps = case.kernel[0] * case.kernel[1]
    weights = random(rng, kernels.dtype, 1, taps)
    out = random(rng, kernels.dtype, *case.output)
    expected = (weights.astype(np.float64) @ case.patches(x)[0]).reshape(case.output)
    before, split = out.copy(), case.output[0] // 2
    call(x, weights, out, 0, split, accumulate)
    call(x, weights, out[split:], split, case.output[0] - split, accumulate)
    check(out, before, expected, accumulate, taps)

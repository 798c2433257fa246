"""Products of numbers of 16 bits (narrow.h) against float64, on several instruction sets.

Each input ends right before a page that must not be touched: a read past it crashes.
"""

import ctypes
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from tests.machines.cpu.drivers import COMPILER, X86, driver
from tests.machines.cpu.test_contract_header import convert, guarded

TARGETS = {
    "native": ["-march=native"],
    "widened": ["-march=native", "-DSTRETTO_WIDEN"],
    "no-avx512": ["-march=native", "-mno-avx512f"],
    "baseline": [],
}
"""`native` has the instructions for 16 bits, where the machine has them."""
DTYPES = {"bf16": torch.bfloat16, "half": torch.float16}
GROUPS = {"bf16": 2, "half": 1}
WIDTHS = (64, 16)
SIZES = [
    *product((1, 2, 3, 5, 6, 7, 13), (1, 17, 64, 70), (1, 2, 7, 33)),
    *product((1, 4, 49), (1, 16, 130), (0, 257, 300)),
    (2, 5, 2050),
    (1, 5, 2049),
]

DRIVER = """
#include "narrow.h"
using namespace stretto;
#define ENTRY(H, MR, NR) \\
  extern "C" void packed_##H##_##NR(const H* a, int64_t am, int64_t ak, const H* b, float* c, \\
                                    int64_t ldc, int m, int k, int n, bool accumulate) { \\
    narrow_packed<H, MR, NR>(a, am, ak, b, c, ldc, m, k, n, accumulate); \\
  } \\
  extern "C" void rows_##H##_##NR(const H* a, int64_t am, int64_t ak, const H* b, int64_t ldb, \\
                                  float* c, int64_t ldc, int m, int k, int n, bool accumulate) { \\
    narrow_rows<H, MR, NR>(a, am, ak, b, ldb, c, ldc, m, k, n, accumulate); \\
  } \\
  extern "C" void dots_##H##_##NR(const H* a, int64_t am, const H* b, int64_t bn, float* c, \\
                                  int64_t ldc, int m, int k, int n, bool accumulate) { \\
    narrow_dots<H, 2, 8>(a, am, b, bn, c, ldc, m, k, n, accumulate); \\
  }
"""

Call = Callable[..., None]


def built(text: str, target: str) -> ctypes.CDLL:
    return driver(text, "-O1", "-fopenmp-simd", *TARGETS[target])


USUAL = {
    *(("native", "bf16", 64), ("native", "half", 64)),
    *(("widened", "bf16", 16), ("no-avx512", "half", 16)),
}
"""What is built in each run; the others are for `make whole`."""
CASES = [
    pytest.param(one, id="-".join(map(str, one)), marks=() if one in USUAL else pytest.mark.whole)
    for one in product(TARGETS, DTYPES, WIDTHS)
]


@pytest.fixture
def case(
    request: pytest.FixtureRequest,
) -> tuple[Callable[[str], Call], torch.dtype, int, int]:
    """An entry by its name, the dtype, its group and the width of panels."""
    target, dtype, width = request.param
    if COMPILER is None:
        pytest.skip("needs g++")
    if not X86 and target != "native":
        pytest.skip("an x86 instruction set")
    library = built(DRIVER + f"ENTRY({dtype}, 6, {width})", target)

    def entry(name: str) -> Call:
        function = library[f"{name}_{dtype}_{width}"]
        return lambda *args: function(*(convert(arg) for arg in args))

    return entry, DTYPES[dtype], GROUPS[dtype], width


def memory(tensor: torch.Tensor) -> np.ndarray:
    """A guarded copy of the bits."""
    return guarded(tensor.contiguous().view(torch.int16).numpy())


def packed(right: torch.Tensor, width: int, group: int) -> torch.Tensor:
    """[K, N] as panels [N / width][K / group][width][group], zero-padded."""
    k, n = right.shape
    steps, panels = -(-k // group), -(-n // width)
    padded = torch.zeros(steps * group, panels * width, dtype=right.dtype)
    padded[:k, :n] = right
    return padded.view(steps, group, panels, width).permute(2, 0, 3, 1)


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_products_of_numbers_of_16_bits(
    case: tuple[Callable[[str], Call], torch.dtype, int, int],
) -> None:
    entry, dtype, group, width = case
    generator = torch.Generator().manual_seed(0)
    for number, (m, n, k) in enumerate(SIZES):
        accumulate, turned = number % 2 == 1, number % 3 == 1
        left = torch.rand(m, k, generator=generator).sub(0.5).to(dtype)
        right = torch.rand(k, n, generator=generator).sub(0.5).to(dtype)
        before = torch.rand(m, n + 3, generator=generator)
        want = left.double() @ right.double() + (before[:, :n] if accumulate else 0)
        a, strides = (memory(left.t()), (1, m)) if turned else (memory(left), (k, 1))
        calls = {
            "packed": (a, *strides, memory(packed(right, width, group))),
            "rows": (a, *strides, memory(right), n),
            "dots": (memory(left), k, memory(right.t()), k),
        }
        for name, operands in calls.items():
            out = guarded(before.numpy())
            entry(name)(*operands, out, n + 3, m, k, n, accumulate)
            message = f"{name} {m} x {k} x {n}"
            np.testing.assert_allclose(
                out[:, :n], want.numpy(), rtol=1e-6, atol=2e-7 * max(k, 4) ** 0.5, err_msg=message
            )
            np.testing.assert_array_equal(out[:, n:], before[:, n:].numpy(), err_msg=message)


BYTES = """
#include "narrow.h"
extern "C" void packed(const uint8_t* a, int64_t am, int64_t ak, const int8_t* b, int32_t* c,
                       int64_t ldc, int m, int k, int n, bool accumulate) {
  stretto::narrow_packed<int8_t, 6, 64>(a, am, ak, b, c, ldc, m, k, n, accumulate);
}
"""


@pytest.mark.whole
@pytest.mark.parametrize(
    "target",
    [
        one if one in ("native", "widened") else pytest.param(one, marks=pytest.mark.whole)
        for one in TARGETS
    ],
)
def test_products_of_bytes_are_exact(target: str) -> None:
    if COMPILER is None or (not X86 and target != "native"):
        pytest.skip("needs g++, and an x86 instruction set")
    call = built(BYTES, target)["packed"]
    generator = torch.Generator().manual_seed(0)
    for number, (m, n, k) in enumerate(SIZES):
        accumulate, turned = number % 2 == 1, number % 3 == 1
        left = torch.randint(0, 256, (m, k), generator=generator, dtype=torch.uint8)
        right = torch.randint(-128, 128, (k, n), generator=generator, dtype=torch.int8)
        if number % 5 == 0:  # the largest sums
            left, right = torch.full_like(left, 255), torch.full_like(right, -128)
        out = guarded(torch.randint(-9, 9, (m, n + 3), dtype=torch.int32).numpy())
        want = left.int() @ right.int() + (torch.from_numpy(out[:, :n]) if accumulate else 0)
        a, strides = (left.t(), (1, m)) if turned else (left, (k, 1))
        operands = guarded(a.contiguous().numpy()), *strides, guarded(packed(right, 64, 4).numpy())
        call(*(convert(one) for one in (*operands, out, n + 3, m, k, n, accumulate)))
        np.testing.assert_array_equal(out[:, :n], want.numpy(), err_msg=f"{m} x {k} x {n}")


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_numbers_that_are_infinite_or_none(
    case: tuple[Callable[[str], Call], torch.dtype, int, int],
) -> None:
    entry, dtype, group, width = case
    for m in (1, 4):
        left = torch.ones(m, 35, dtype=dtype)
        left[0, 34], left[-1, 3] = float("inf"), float("nan")
        right = torch.ones(35, 20, dtype=dtype)
        right[34, 1], right[3, 2], right[:, 4] = 0, -float("inf"), 300
        want = (left.float() @ right.float()).numpy()
        out = np.zeros((m, 20), np.float32)
        tail = out, 20, m, 35, 20, False
        entry("packed")(memory(left), 35, 1, memory(packed(right, width, group)), *tail)
        np.testing.assert_array_equal(out, want)
        entry("rows")(memory(left), 35, 1, memory(right), 20, *tail)
        np.testing.assert_array_equal(out, want)
        entry("dots")(memory(left), 35, memory(right.t()), 35, *tail)
        np.testing.assert_array_equal(out, want)

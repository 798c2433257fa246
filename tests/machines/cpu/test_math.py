"""math.h: errors in units of the last place, special values, vectorisation."""

import ctypes
import re
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stretto.machines.cpu.pool import HEADERS
from stretto.options import Options
from stretto.runtime.compiler import build_flags, compile_shared, find_compiler

# Comparing special values is what these tests are for.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")

Floats = NDArray[np.float32]

# Bounds stated in math.h.
ULPS = {
    "exp": 1.0,
    "exp2": 1.0,
    "expm1": 1.5,
    "log": 0.9,
    "log2": 1.9,
    "log1p": 1.1,
    "tanh": 1.5,
    "sigmoid": 2.3,
    "erf": 1.1,
    "sqrt": 0.5,
    "rsqrt": 1.5,
    "sin": 1.5,
    "cos": 1.5,
}
ELEMENTWISE = [*ULPS, "gelu", "gelu_tanh", "floor", "ceil", "trunc", "round", "sign", "abs"]
BINARY = ["pow", "maximum", "minimum", "remainder", "floor_div", "fmod"]
INTEGER = ["floor_div", "remainder", "trunc_div", "trunc_mod"]
CONVERSIONS = {
    "to_bf16": ("float", "stretto::bf16"),
    "to_half": ("float", "stretto::half"),
    "from_bf16": ("stretto::bf16", "float"),
    "from_half": ("stretto::half", "float"),
}
STRIDE = 997
"""Of all bit patterns of float32, every 997th is tried."""


def loop(name: str, operands: str, result: str, expression: str) -> str:
    arguments = ", ".join(
        f"const {kind}* __restrict {letter}"
        for kind, letter in zip(operands.split(), "ab", strict=False)
    )
    return (
        f'extern "C" void {name}({arguments}, {result}* __restrict out, int64_t n) {{\n'
        f"#pragma omp simd\nfor (int64_t i = 0; i < n; ++i) out[i] = {expression};\n}}\n"
    )


def source() -> str:
    loops = [loop(f"f_{n}", "float", "float", f"stretto::{n}(a[i])") for n in ELEMENTWISE]
    loops += [loop(f"f_{n}", "float float", "float", f"stretto::{n}(a[i], b[i])") for n in BINARY]
    for kind in ("int64_t", "int32_t", "uint8_t"):
        loops += [
            loop(f"{kind}_{n}", f"{kind} {kind}", kind, f"stretto::{n}(a[i], b[i])")
            for n in INTEGER
        ]
    loops += [
        loop(f"f_{n}", a, b, f"stretto::{n if n.startswith('to') else 'to_float'}(a[i])")
        for n, (a, b) in CONVERSIONS.items()
    ]
    loops.append(
        'extern "C" void f_max(const float* a, float* out, int64_t n) {\n'
        "float largest = -1;\n#pragma omp simd reduction(stretto::nan_max : largest)\n"
        "for (int64_t i = 0; i < n; ++i) largest = stretto::maximum(largest, a[i]);\n"
        "*out = largest;\n}\n"
    )
    return '#include "math.h"\n' + "".join(loops)


Call = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def call(options: Options) -> Call:
    """`call(name, operands...)`: the loop of that name over the operands."""
    library = ctypes.CDLL(str(compile_shared(source(), options, HEADERS).path))

    def run(name: str, *operands: np.ndarray, dtype: type = np.float32) -> np.ndarray:
        out = np.empty(operands[0].size, dtype)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*operands, out)]
        getattr(library, name)(*pointers, ctypes.c_int64(out.size))
        return out

    return run


@pytest.fixture(scope="module")
def samples() -> Floats:
    return np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)


def ulps(got: Floats, expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors in units of the last place of the right result; infinite where one is special and
    the other is not the same."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = expected.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        error = np.abs(got.astype(np.float64) - expected) / unit
    special = ~(np.isfinite(rounded) & np.isfinite(got))
    same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    error[special] = np.where(same[special], 0.0, np.inf)
    return error


def eager(name: str, *operands: np.ndarray) -> np.ndarray:
    return getattr(torch, name)(*(torch.from_numpy(array) for array in operands)).numpy()


@pytest.mark.parametrize("name", ULPS)
def test_error_in_ulps(call: Call, samples: Floats, name: str):
    expected = eager(name, samples.astype(np.float64))
    got = call(f"f_{name}", samples)
    error = ulps(got, expected)
    worst = error.argmax()
    assert error[worst] <= ULPS[name], f"at {samples[worst]!r}: {got[worst]!r}"
    zeros = got == 0
    assert (np.signbit(got[zeros]) == np.signbit(expected[zeros])).all()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu(call: Call, samples: Floats, name: str):
    x = samples[np.abs(samples) < 1e4]
    approximate = "tanh" if name == "gelu_tanh" else "none"
    exact = torch.from_numpy(x.astype(np.float64))
    expected = torch.nn.functional.gelu(exact, approximate=approximate).numpy()
    scale = np.maximum(np.abs(x), 1e-30)
    assert (np.abs(call(f"f_{name}", x) - expected) / scale).max() < 3e-7


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "sign", "abs"])
def test_exact_functions(call: Call, samples: Floats, name: str):
    np.testing.assert_array_equal(call(f"f_{name}", samples), eager(name, samples))


def pairs() -> tuple[Floats, Floats]:
    values = [0.0, 1, 2, 3, 0.5, 2.5, 1e38, 1e-45, 16777217, 1e10, 3e9, np.inf]
    row = np.array([*values, *(-x for x in values), np.nan], np.float32)
    random = np.random.default_rng(0)
    count = 200_000
    scale = 10.0 ** random.uniform(-6, 6, (2, count))
    normal = random.standard_normal((2, count)) * scale
    bits = random.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32)
    left, right = np.meshgrid(row, row)
    grid = np.stack([left.ravel(), right.ravel()])
    both = np.concatenate([grid, normal.astype(np.float32), bits.view(np.float32)], axis=1)
    return np.ascontiguousarray(both[0]), np.ascontiguousarray(both[1])


@pytest.mark.parametrize("whole", [False, True])
def test_pow(call: Call, whole: bool):
    x, y = pairs()
    y = np.rint(y) if whole else y
    got = call("f_pow", x, y)
    error = ulps(got, eager("pow", x.astype(np.float64), y.astype(np.float64)))
    worst = error.argmax()
    assert error[worst] <= 0.6, f"pow({x[worst]!r}, {y[worst]!r}) = {got[worst]!r}"


@pytest.mark.parametrize(
    ("name", "torch_name"),
    [
        ("maximum", "maximum"),
        ("minimum", "minimum"),
        ("remainder", "remainder"),
        ("floor_div", "floor_divide"),
    ],
)
def test_binary_functions_are_eagers(call: Call, name: str, torch_name: str):
    x, y = pairs()
    if name == "remainder":  # eager's vector code for it loses all digits of large quotients
        with np.errstate(all="ignore"):
            fine = (np.abs(x / y) < 1e6) & (np.abs(y) > 1e-37) | ~np.isfinite(x)
        x, y = x[fine], y[fine]
    got, expected = call(f"f_{name}", x, y), eager(torch_name, x, y)
    np.testing.assert_array_equal(got, expected)


def test_fmod_is_exact(call: Call):
    x, y = pairs()
    np.testing.assert_array_equal(call("f_fmod", x, y), np.fmod(x, y))


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_integer_division(call: Call, name: str, dtype: type):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    row = np.array([low, low + 1, 0, 1, 2, 7, 100, high - 1, high], dtype)
    if low < 0:
        row = np.concatenate([row, np.array([-1, -2, -7, -100], dtype)])
    x, y = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(row, row))
    got = call(f"{np.dtype(dtype).name}_t_{name}", x, y, dtype=dtype)
    zero = y == 0
    assert (got[zero] == 0).all()  # and no SIGFPE
    fine = ~zero & ~((x == low) & (y.astype(np.int64) == -1))
    kind = name.split("_")[0]
    if name in ("floor_div", "trunc_div"):
        left, right = torch.from_numpy(x[fine]), torch.from_numpy(y[fine])
        expected = torch.div(left, right, rounding_mode=kind).numpy()
    else:
        expected = eager("fmod" if kind == "trunc" else "remainder", x[fine], y[fine])
    np.testing.assert_array_equal(got[fine], expected)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("half", torch.float16)])
def test_16_bit_floats(call: Call, samples: Floats, name: str, dtype: torch.dtype):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    expected = torch.from_numpy(patterns).view(dtype).float().numpy()
    np.testing.assert_array_equal(call(f"f_from_{name}", patterns), expected)
    ties = (expected[:-1] + expected[1:]) / 2
    x = np.concatenate([samples, expected, ties[np.isfinite(ties)], np.float32([65519.9, 65520])])
    got = torch.from_numpy(call(f"f_to_{name}", x, dtype=np.uint16)).view(dtype).float()
    np.testing.assert_array_equal(got.numpy(), torch.from_numpy(x).to(dtype).float().numpy())


def test_reduction_keeps_nan(call: Call):
    x = np.random.default_rng(0).random(1000, np.float32)
    assert call("f_max", x)[0] == x.max()
    x[777] = np.nan
    assert np.isnan(call("f_max", x)[0])


VECTORISED = [
    *(f"f_{name}" for name in (*ULPS, "gelu", "gelu_tanh", "sign", "abs", "round")),
    *("f_pow", "f_maximum", "f_minimum", "f_max", *(f"f_{name}" for name in CONVERSIONS)),
]


def test_every_loop_is_vectorised(options: Options, tmp_path):
    compiler = find_compiler()
    if "clang" in compiler.version:
        pytest.skip("reads the report of g++")
    text = source()
    file = tmp_path / "loops.cpp"
    file.write_text(text)
    result = subprocess.run(
        [
            *(*compiler.command, *build_flags(trace=False), "-fopt-info-vec-optimized"),
            *(f"-I{HEADERS}", str(file), "-o", str(tmp_path / "loops.so")),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    vectorised = {
        int(line)
        for line in re.findall(r"loops\.cpp:(\d+):\d+: optimized: loop vectorized", result.stderr)
    }
    lines = text.splitlines()
    for name in VECTORISED:
        start = next(i for i, line in enumerate(lines, 1) if f" {name}(" in line)
        assert vectorised & set(range(start, start + 5)), f"{name} is not vectorised"

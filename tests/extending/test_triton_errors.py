"""What is refused of kernels in Triton, what the messages say, and what a change changes."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import stretto
from stretto import Options
from stretto.call.compiler import build
from stretto.device.user_kernels import UserKernel, kernel_for
from stretto.errors import BuildError, RunError
from stretto.extending.triton_source import definitions
from stretto.frontends.python import capture
from stretto.machines.cuda.compile import CompiledTriton
from stretto.machines.cuda.machine import CUDA, gpu_program
from tests.extending import operators
from tests.extending.operators import fast_gelu, smooth
from tests.extending.test_programs import alone, library_calls

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

from tests.extending import triton_functions

HEAD = """
import triton
import triton.language as tl
from triton.language import exp as exponential, float32
import triton.language as other

SCALE = tl.constexpr(1.0)
PLAIN = 3

@triton.jit
def helper(v):
    return v * SCALE

@triton.jit
def tile(i, x, out):
    at = i.begin + tl.arange(0, i.block)
    inside = at < i.end
    v = tl.load(x.data + at * x.stride[0], mask=inside)
"""
TAIL = "    tl.store(out.data + at * out.stride[0], v, mask=inside)\n"
COUNT = [0]


@pytest.fixture(autouse=True)
def _kernels() -> Generator[None]:
    yield
    operators.register()


def function_of(folder: Path, text: str, name: str = "tile") -> Any:
    """A function of a new module."""
    COUNT[0] += 1
    file = folder / f"kernels_{COUNT[0]}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def kernel_of(folder: Path, text: str, name: str = "tile") -> UserKernel:
    function = function_of(folder, text, name)
    return stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", triton=function)


def body(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines) + TAIL


# ---- declarations --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (body("v = v * PLAIN"), r"line 19\): Triton reads a global such as `PLAIN` only as"),
        (body("v = v * missing"), "`missing` is not defined"),
        ("from pathlib import Path\n" + body("v = Path(v)"), "`Path` is nothing that"),
        (body().replace("i, x, out", "x, out"), r"called with \(i, x, out\)"),
        (body().replace("i, x, out", "i, x, out, n=1"), r"called with \(i, x, out\)"),
        (body().replace("i, x, out", "i, x, *out"), r"called with \(i, x, out\)"),
        (body().replace("i, x, out", "i: tl.constexpr, x, out"), "`i` is no number"),
        (body("v = again(v)") + "\n@triton.jit\ndef again(v):\n    return again(v)\n",
         "calls itself"),
        (body("tl = 3", "v = other.exp(v)"), "a variable must not be called tl"),
        (body("v = v + tl.program_id(0)"), r"line 19\): `program_id` is that of the whole program"),
        (body("v = v + ours(0)") + "\nfrom triton.language import num_programs as ours\n",
         "`ours` is that of the whole program"),
    ],
)  # fmt: skip
def test_declarations(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_of(tmp_path, text)


@pytest.mark.parametrize("given", ["def tile(): ...", 3, lambda x: x])
def test_what_is_no_function_of_triton(given: Any) -> None:
    with pytest.raises(ValueError, match=r"a function of triton\.jit, and not"):
        stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", triton=given)


def test_names_of_triton(tmp_path: Path) -> None:
    """Whatever the user's module calls them; annotations go."""
    text = body(
        "u = other.where(v > 0, exponential(v), 0.0).to(float32)",
        "w: other.constexpr = triton.next_power_of_2(3) + int(SCALE)",
        "v = u + helper(v) * w",
    )
    text = text.replace("def helper(v)", "def helper(v: other.tensor) -> PLAIN")
    kernel = kernel_of(tmp_path, text)
    assert kernel.triton is not None
    *_, helper, tile = definitions([kernel])
    suffix = kernel.triton.entry.removeprefix("tile")
    assert f"def helper{suffix}(v: None) -> None:" in helper
    assert "tl.where(v > 0, tl.exp(v), 0.0).to(tl.float32)" in tile
    assert f"triton.next_power_of_2(3) + int(SCALE{suffix})" in tile
    x = torch.randn(9)
    compiled = stretto.compile(alone, backend="cuda-emulated", options=Options(units=1))
    wanted = torch.where(x > 0, x.exp(), 0) + x * 5
    torch.testing.assert_close(compiled(x), wanted)
    assert compile_for_hopper(tmp_path).binary


# ---- lines of the user ---------------------------------------------------------------------------
def compile_for_hopper(folder: Path) -> CompiledTriton:
    options = Options(cache_dir=folder / "cache")
    program = capture(alone, (torch.randn(9),), {}, options).program
    stages = build(program, CUDA.for_target("sm_90", 132), options)
    return gpu_program(stages).compiled[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (body("v = tl.no_such_function(v)"), 19),
        (body("v = tl.arange(0, 3)"), 19),
        (body("v = helper(v)").replace("return v * SCALE", "return v.no_such_field"), 12),
    ],
)
def test_source_that_does_not_compile(text: str, line: int, tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, text)
    with pytest.raises(
        BuildError, match="the Triton of the kernel of stretto_test::fast_gelu"
    ) as error:
        compile_for_hopper(tmp_path)
    place = error.value.location
    assert place is not None and place.line == line and place.file.startswith(str(tmp_path))
    assert place.source().strip() in str(error.value)
    assert kernel.triton is not None


def test_an_access_outside_of_a_tensor(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, body("v += tl.load(x.data + at + x.size[0], mask=inside)"))
    compiled = stretto.compile(alone, backend="cuda-emulated", options=Options(units=1))
    for run in (
        lambda: compiled(torch.randn(9)),
        lambda: stretto.kernel.check(kernel, [torch.randn(9)]),
    ):
        with pytest.raises(RunError, match="an access of 4 bytes at byte") as error:
            run()
        place = error.value.location
        assert place is not None and place.line == 19 and "x.size[0]" in place.source()


# ---- the check -----------------------------------------------------------------------------------
LIARS = {
    "writes outside": "tl.store(out.data + i.end, 1.0, mask=i.end < out.size[0])",
    "unwritten": "inside = inside & (at > i.begin)",
    "no region declares": "v = v + 0 * tl.load(x.data)",
    "differs": "v = v + 1",
    "an access of 4 bytes": "tl.store(out.data + out.size[0], 1.0)",
}


@pytest.mark.parametrize("message", LIARS)
def test_check_finds(message: str, tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, body(LIARS[message]))
    with pytest.raises(RunError, match=f"in Triton, task.*{message}"):
        stretto.kernel.check(kernel, [torch.randn(2, 9) + 9])


def test_check_passes() -> None:
    triton_functions.register_triton()
    calls: dict[str, list[list[Any]]] = {
        "fast_gelu": [[torch.randn(s)] for s in ((9,), (2, 3, 4), (0,), (1,))]
        + [[torch.randn(7, dtype=torch.float64)]],
        "rotary": [[torch.randn(2, 1, 5, 6), torch.randn(5, 3), torch.randn(5, 3)]],
        "smooth": [[torch.randn(2, 9), 0.5, 2, True], [torch.randn(3), 0.5]],
        "row_sums": [[torch.randint(9, (4, 3), dtype=torch.int32)]],
    }
    for name, given in calls.items():
        kernel = kernel_for(f"stretto_test.{name}.default")
        assert kernel is not None
        stretto.kernel.check(kernel, *given)


# ---- numbers that are compiled in ----------------------------------------------------------------
def test_a_number_that_a_run_decides(tmp_path: Path) -> None:
    text = body("v = v * weight + shift").replace(
        "i, x, out", "i, x, weight, shift: tl.constexpr, sharp, out"
    )
    stretto.kernel(smooth, "x[..., i : i + 3] -> [..., i]", triton=function_of(tmp_path, text))

    def program(x: torch.Tensor) -> torch.Tensor:
        return smooth(x, 0.5, x.size(0))

    def known(x: torch.Tensor) -> torch.Tensor:
        return smooth(x, 0.5, 3)

    options = Options(units=1)
    x = torch.randn(9)
    compiled = stretto.compile(program, backend="cuda-emulated", dynamic=True, options=options)
    torch.testing.assert_close(compiled(x), program(x))
    assert "needs `shift` at compile time" in library_calls(compiled)[0]
    compiled = stretto.compile(known, backend="cuda-emulated", options=options)
    torch.testing.assert_close(compiled(x), x[:7] * 0.5 + 3)
    assert not library_calls(compiled)


# ---- changes -------------------------------------------------------------------------------------
def test_a_change_of_a_helper_is_compiled_anew(tmp_path: Path) -> None:
    text = body("v = helper(v)")
    first = kernel_of(tmp_path, text)
    assert not compile_for_hopper(tmp_path).from_cache
    same = kernel_of(tmp_path, "\n\n" + text)
    assert same.digest == first.digest and same.triton == first.triton
    assert compile_for_hopper(tmp_path).from_cache
    changed = [
        text.replace("return v * SCALE", "return v * SCALE + 0"),
        text.replace("constexpr(1.0)", "constexpr(2.0)"),
        text.replace("at < i.end", "at <= i.end - 1"),
    ]
    for other in changed:
        kernel = kernel_of(tmp_path, other)
        assert kernel.digest != first.digest
        assert not compile_for_hopper(tmp_path).from_cache


def test_a_later_kernel_counts_from_then_on(tmp_path: Path) -> None:
    x = torch.randn(9)
    kernel_of(tmp_path, body())
    options = Options(units=1)
    first = stretto.compile(alone, backend="cuda-emulated", options=options)
    assert torch.equal(first(x), x)
    kernel_of(tmp_path, body("v = v * 2"))
    assert torch.equal(first(x), x)
    assert torch.equal(stretto.compile(alone, backend="cuda-emulated", options=options)(x), 2 * x)


def test_a_name_in_a_text(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, body('tl.static_assert(SCALE == 1.0, f"scaled {SCALE}")'))
    assert kernel.triton is not None
    suffix = kernel.triton.entry.removeprefix("tile")
    assert f'f"scaled {{SCALE{suffix}}}"' in definitions([kernel])[-1]

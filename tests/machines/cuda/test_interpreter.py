"""Triton's language interpreted: types, memory, errors. Waits are in test_triton_waits.py."""

import re

import pytest
import torch
from torch import Tensor

from stretto.errors import BuildError, RunError
from stretto.machines.cuda import toolchain as triton_toolchain
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.source import KernelParameter, TritonSource
from tests.machines.cuda.triton_text import control_block, number, pointer, program

triton = pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

POLLS = 1 << 40


def run(source: TritonSource, *arguments: Tensor | int) -> None:
    InterpretedKernel(source).launch([control_block(source.units), *arguments, POLLS])


def unary(expression: str, x: Tensor, out: Tensor, functions: str = "") -> Tensor:
    """`expression` of `x`, a vector of 16."""
    names = {
        torch.float32: "fp32",
        torch.bfloat16: "bf16",
        torch.float16: "fp16",
        torch.int32: "i32",
        torch.int64: "i64",
        torch.float64: "fp64",
    }
    body = f"""
        at = tl.arange(0, 16)
        x = tl.load(p + at)
        tl.store(q + at, {expression})
    """
    parameters = pointer("p", names[x.dtype]), pointer("q", names[out.dtype])
    run(program(body, *parameters, functions=functions), x, out)
    return out


# ---- values --------------------------------------------------------------------------------------
VALUES = torch.linspace(-3, 3, 16)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x * 2 + 1", VALUES * 2 + 1),
        ("tl.exp(x)", VALUES.exp()),
        ("tl.math.erf(x)", VALUES.erf()),
        ("tl.abs(x)", VALUES.abs()),
        ("tl.floor(x)", VALUES.floor()),
        ("tl.where(x > 0, x, 0.0)", VALUES.relu()),
        ("x - tl.sum(x, axis=0)", VALUES - VALUES.sum()),
        ("tl.max(x, axis=0) + x * 0", torch.full((16,), 3.0)),
        ("tl.argmin(x, axis=0) + x * 0", torch.zeros(16)),
        ("tl.cumsum(x, axis=0)", VALUES.cumsum(0)),
        ("tl.fma(x, x, x)", VALUES * VALUES + VALUES),
        ("x + tl.reshape(tl.trans(tl.reshape(x, (4, 4))), (16,))",
         VALUES + VALUES.view(4, 4).T.flatten()),
        ("tl.reshape(tl.sum(x.reshape(4, 4), 1, keep_dims=True) + x.reshape(4, 4) * 0, (16,))",
         VALUES.view(4, 4).sum(1).repeat_interleave(4)),
    ],
)  # fmt: skip
def test_operators(expression: str, expected: Tensor) -> None:
    assert torch.allclose(unary(expression, VALUES, torch.empty(16)), expected, atol=1e-6)


def test_integers_divide_towards_zero_and_wrap() -> None:
    x = torch.arange(-8, 8, dtype=torch.int32)
    quotient = unary("x // 3", x, torch.empty_like(x))
    assert torch.equal(quotient, torch.div(x, 3, rounding_mode="trunc"))
    assert torch.equal(unary("x % 3", x, torch.empty_like(x)), torch.fmod(x, 3))
    big = torch.full((16,), 2**31 - 1, dtype=torch.int32)
    assert torch.equal(unary("x + x", big, torch.empty_like(big)), torch.full_like(big, -2))


def test_nan_loses_in_maximum_unless_it_is_asked_for() -> None:
    x = torch.tensor([float("nan"), 1.0] * 8)
    assert torch.equal(unary("tl.maximum(x, 0.5)", x, torch.empty(16)), torch.tensor([0.5, 1] * 8))
    assert torch.equal(
        unary("tl.max(x, axis=0) + tl.zeros((16,), x.dtype)", x, torch.empty(16)), torch.ones(16)
    )
    kept = unary("tl.maximum(x, 0.5, propagate_nan=tl.PropagateNan.ALL)", x, torch.empty(16))
    assert torch.equal(kept.isnan(), x.isnan())


@pytest.mark.parametrize(
    "expression", ["x + 1.0", "x * x", "-x", "tl.sum(x, axis=0) + x", "tl.where(x < 1, x, 2.0)"]
)
def test_bfloat16_is_rounded_to_nearest_even(expression: str) -> None:
    x = torch.randn(16, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = {
        "x + 1.0": x + 1.0,
        "x * x": x * x,
        "-x": -x,
        "tl.sum(x, axis=0) + x": x.float().sum().bfloat16() + x,
        "tl.where(x < 1, x, 2.0)": torch.where(x < 1, x, 2.0),
    }[expression]
    assert torch.equal(unary(expression, x, torch.empty_like(x)), expected)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64, torch.int32, torch.float16])
def test_bfloat16_converts(wide: torch.dtype) -> None:
    exact = torch.tensor([1, 257, 258, 259, 260, -300, 0, 65280] * 2)
    x = exact.to(wide)
    narrow = unary("x.to(tl.bfloat16)", x, torch.empty(16, dtype=torch.bfloat16))
    assert torch.equal(narrow, x.bfloat16())
    back = {torch.float32: "float32", torch.float64: "float64", torch.int32: "int32"}
    name = back.get(wide, "float16")
    assert torch.equal(unary(f"x.to(tl.{name})", narrow, torch.empty_like(x)), narrow.to(wide))


def test_infinities_and_nan_in_bfloat16() -> None:
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 3.4e38] * 4)
    narrow = unary("x.to(tl.bfloat16)", x, torch.empty(16, dtype=torch.bfloat16))
    assert torch.allclose(narrow.float(), x.bfloat16().float(), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dot_accumulates_in_float32(dtype: torch.dtype) -> None:
    body = """
        r = tl.arange(0, 16)
        at = r[:, None] * 16 + r[None, :]
        acc = tl.full((16, 16), 1.0, tl.float32)
        tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), acc, input_precision="ieee"))
    """
    element = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    source = program(body, pointer("a", element), pointer("b", element), pointer("c"))
    a, b = torch.randn(2, 16, 16).to(dtype)
    c = torch.empty(16, 16)
    run(source, a, b, c)
    assert torch.allclose(c, a.float() @ b.float() + 1, atol=1e-5)


def test_a_reduction_with_a_function_of_the_program() -> None:
    functions = """
        @triton.jit
        def longest(a, a_at, b, b_at):
            take = tl.abs(b) > tl.abs(a)
            return tl.where(take, b, a), tl.where(take, b_at, a_at)

        @triton.jit(noinline=True)
        def find(x, at, AXIS: tl.constexpr):
            value, place = tl.reduce((x, at), AXIS, longest)
            return value, place
    """
    body = """
        at = tl.arange(0, 8)
        found = find(tl.load(p + at), at, 0)
        tl.store(q, found[0])
        tl.store(q + 1, found[1].to(tl.float32))
    """
    x, out = torch.tensor([1.0, 2, -9, 3, 4, 8, 0, 1]), torch.zeros(2)
    run(program(body, pointer("p"), pointer("q"), functions=functions), x, out)
    assert out.tolist() == [-9, 2]


def test_an_index_of_a_loop_is_a_tensor() -> None:
    body = """
        total = tl.cast(0, tl.int64)
        for i in range(2, n, 3):
            total += i.to(tl.int64) * tl.cast(i, tl.int64)
        for i in tl.range(3):
            total += i.to(tl.int64)
        for i in tl.static_range(4):
            total += i
        tl.store(out, total)
    """
    out = torch.zeros(1, dtype=torch.int64)
    run(program(body, number("n"), pointer("out", "i64")), 9, out)
    assert out.item() == 4 + 25 + 64 + 3 + 6


# ---- memory --------------------------------------------------------------------------------------
def test_parameters_may_share_memory() -> None:
    body = """
        at = tl.arange(0, 4)
        tl.store(floats + at, (at + 1).to(tl.float32))
        tl.debug_barrier()
        bits = tl.load(words + at)
        tl.store(words + 4 + at, bits)
        tl.store(bytes + 32, tl.cast(7, tl.int8))
    """
    source = program(body, pointer("floats"), pointer("words", "i32"), pointer("bytes", "i8"))
    arena = torch.zeros(48, dtype=torch.int8)
    run(source, arena.view(torch.float32), arena.view(torch.int32), arena)
    assert arena.view(torch.float32)[:8].tolist() == [1, 2, 3, 4] * 2
    assert arena[32] == 7


def test_booleans_lie_in_bytes() -> None:
    body = """
        at = tl.arange(0, 4)
        tl.store(p + at, tl.load(p + at) == 0)
    """
    flags = torch.tensor([True, False, False, True])
    run(program(body, pointer("p", "i8")), flags.view(torch.int8))
    assert flags.tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tl.load(p + 64)", "an access of 4 bytes at byte 256 of p, which has 256 bytes"),
        ("tl.load(p - 1)", "an access of 4 bytes, 4 bytes before the start of p"),
        ("tl.store(p + at + 57, 0.0)", "an access of 4 bytes at byte 256 of p"),
        ("tl.store(p + at * 100, 0.0, mask=at < 2)", "an access of 4 bytes at byte 400 of p"),
        ("tl.atomic_add(p + 80, 1.0)", "an access of 4 bytes at byte 320 of p"),
        ("tl.load((p.to(tl.int64) + 2).to(tl.pointer_type(tl.float32)))", "is not aligned"),
    ],
)
def test_an_access_outside_of_its_buffer_names_the_line(line: str, message: str) -> None:
    source = program(f"at = tl.arange(0, 8)\n{line}", pointer("p"))
    number = source.text.splitlines().index(f"    {line}") + 1
    # The memory after p is there, and is another parameter's: still it is an error.
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        run(source, torch.zeros(128)[:64])
    assert caught.value.location is not None
    assert caught.value.location.line == number
    assert line in str(caught.value)


def test_what_is_masked_may_point_anywhere_and_is_undefined() -> None:
    body = """
        at = tl.arange(0, 8)
        tl.store(q + at, tl.load(p + at * 1000, mask=at == 0))
        tl.store(q + 8 + at, tl.load(p + at * 1000, mask=at == 0, other=3.0))
        tl.store(q + at * 1000, 0.0, mask=at < 0)
    """
    out = torch.zeros(16)
    run(program(body, pointer("p"), pointer("q")), torch.ones(1), out)
    assert out[0] == 1 and out[1:8].isnan().all()
    assert out[8:].tolist() == [1] + [3] * 7


# ---- errors and surroundings ---------------------------------------------------------------------
def test_an_error_names_the_innermost_printed_line() -> None:
    functions = """
        @triton.jit
        def wrong(x):
            return tl.sum(x, axis=3)
    """
    source = program("wrong(tl.arange(0, 8))", functions=functions)
    with pytest.raises(RunError, match=r"in wrong: unit 0: .*\n.*return tl.sum\(x, axis=3\)"):
        run(source)


def test_arguments_must_be_what_the_parameters_say() -> None:
    source = program("tl.store(p, 1.0)", pointer("p"))
    with pytest.raises(ValueError, match=r"p is \*fp32, not <class 'int'>"):
        run(source, 5)
    with pytest.raises(ValueError, match="p must be contiguous memory on the CPU"):
        run(source, torch.zeros(4, 4).T)
    with pytest.raises(ValueError, match="zip"):
        InterpretedKernel(source).launch([control_block(1)])


def test_the_language_is_as_before_after_a_launch() -> None:
    tl = triton.language
    before = dict(vars(tl))
    tensor = dict(vars(tl.tensor))
    run(program("tl.store(p, tl.sum(tl.arange(0, 8), axis=0))", pointer("p", "i32")),
        torch.zeros(1, dtype=torch.int32))  # fmt: skip
    with pytest.raises(RunError):
        run(program("tl.no_such_thing(1)"))
    assert dict(vars(tl)) == before
    assert dict(vars(tl.tensor)) == tensor


def test_without_triton_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    triton_toolchain.require_triton.cache_clear()
    with pytest.raises(BuildError, match=r"pip install 'stretto\[cuda\]'"):
        InterpretedKernel(program("tl.store(p, 1.0)", KernelParameter("p", "*fp32", "buffer")))


def test_without_greenlet_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "greenlet", None)
    with pytest.raises(BuildError, match=r"pip install 'stretto\[emulated\]'"):
        InterpretedKernel(program(""))


@pytest.mark.parametrize("version", ["3.5.1", "4.0.0", "unknown"])
def test_another_version_of_triton_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    triton_toolchain.require_triton.cache_clear()
    with pytest.raises(BuildError, match=rf"Triton {version} is not supported, only >=3.6,<3.8"):
        triton_toolchain.require_triton()
    triton_toolchain.require_triton.cache_clear()

"""Long reductions in two steps: what they mean, and which ones the estimates of a GPU split."""

from __future__ import annotations

import pytest
import torch

from stretto.device.evaluate import TensorMemory, run_operator
from stretto.device.expr import Access, Apply, Buffer, Expr, Index, Load, Reg, Var
from stretto.device.operator import Kernel, Operator
from stretto.device.tree import leaves
from stretto.ir.types import DType
from stretto.kernels.contraction import product_of
from stretto.kernels.split_reductions import SPLIT, may_split, slices_of, split
from stretto.machines.cuda.select import select
from tests.lowering.programs import lowered


def load(name: str, dtype: DType, shape: tuple[int, ...], *numbers: int) -> Load:
    index = tuple(Index.of(Var(number)) for number in numbers)
    return Load(Access(Buffer(name, dtype, shape), shape, index))


def reduction(
    combine: str, value: Expr, dims: tuple[int, ...], reduce: tuple[int, ...]
) -> Operator:
    dtype = DType.F32 if value.dtype in (DType.F16, DType.BF16) else value.dtype
    out = Buffer("out", dtype, dims)
    access = Access(out, dims, tuple(Index.of(Var(n)) for n in range(len(dims))))
    return Operator(combine, dims, reduce, combine, value, access)


def run(operator: Operator, tensors: dict[str, torch.Tensor]) -> None:
    out = operator.out.buffer
    tensors.setdefault(out.name, torch.zeros(out.elements, dtype=out.dtype.torch))
    box = tuple((0, extent) for extent in operator.dims if isinstance(extent, int))
    run_operator(operator, box, {}, TensorMemory(tensors))


def data(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=generator).to(dtype)


# ---- the meaning -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", [2, 3, 7, 30])
@pytest.mark.parametrize("combine", SPLIT)
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL], ids=str)
def test_both_steps_give_what_one_gives(combine: str, dtype: DType, target: int) -> None:
    dtype = DType.BOOL if combine in ("any", "all") else dtype
    value = load("x", dtype, (3, 5, 19), 1, 0, 2)
    operator = reduction(combine, value, (5,), (3, 19))
    x = data(dtype.torch, 3, 5, 19)
    if combine in ("max", "min"):
        x = -x if combine == "max" and dtype is not DType.U8 else x + 1
    expected, found = {"x": x}, {"x": x}
    run(operator, expected)
    for step in split(operator, slices_of((3, 19), target), "parts"):
        run(step, found)
    torch.testing.assert_close(found["out"], expected["out"], rtol=1e-4, atol=1e-4)


def test_sums_of_halves_are_kept_in_f32() -> None:
    operator = reduction("sum", load("x", DType.BF16, (4096,), 0), (), (4096,))
    first, second = split(operator, slices_of((4096,), 16), "parts")
    assert first.out.buffer.dtype is DType.F32 and second.value.dtype is DType.F32
    operator = reduction("sum", load("x", DType.F64, (4096,), 0), (), (4096,))
    assert split(operator, slices_of((4096,), 16), "parts")[0].out.buffer.dtype is DType.F64


@pytest.mark.parametrize("depth", [4096, 4099])
def test_a_product_stays_one(depth: int) -> None:
    left, right = load("x", DType.F32, (8, depth), 0, 2), load("w", DType.F32, (64, depth), 1, 2)
    value = Apply("mul", (left, right), DType.F32)
    operator = reduction("sum", value, (8, 64), (depth,))
    slices = slices_of((depth,), 16)
    assert (slices[0][0] * slices[0][1] > depth) == (depth == 4099)
    found = product_of(split(operator, slices, "parts")[0])
    assert found is not None
    assert (found.batch, found.rows, found.columns) == ((0,), (1,), (2,))


def test_slices_are_even_where_that_is_possible() -> None:
    assert slices_of((16384,), 132) == ((128, 128),)
    assert slices_of((100000,), 132) == ((125, 800),)
    assert slices_of((4, 1000, 7), 16) == ((4, 1), (4, 250), (1, 7))
    assert slices_of((10007,), 16) == ((16, 640),)
    assert slices_of((5, 3), 132) == ((5, 1), (3, 1))


def test_what_may_be_split() -> None:
    value = load("x", DType.F32, (4096,), 0)
    assert may_split(reduction("sum", value, (), (4096,)))
    for combine in ("argmax", "argmin", "cumsum", "cumprod", ""):
        assert not may_split(reduction(combine, value, (), (4096,)))
    whole = reduction("sum", value, (), (4096,))
    dynamic = Operator("sum", (), (Reg("n"),), "sum", value, whole.out)
    assert not may_split(dynamic)
    rows = Operator("sum", (Reg("n"),), (4096,), "sum", value, whole.out)
    assert not may_split(rows)


# ---- the choice ------------------------------------------------------------------------------


def linear(m: int, n: int, k: int, dtype: str = "f32") -> str:
    return f"""
        func @main(%x: {dtype}[{m}, {k}]) -> ({dtype}[{m}, {n}]) {{
          %w = constant "w" : {dtype}[{n}, {k}]
          %y = aten.linear.default(%x, %w) : {dtype}[{m}, {n}]
          return %y
        }}
        """


def total(shape: str, result: str, dims: str, name: str = "sum.dim_IntList") -> str:
    return f"""
        func @main(%x: f32[{shape}]) -> ({result}) {{
          %y = aten.{name}(%x, {dims}) : {result}
          return %y
        }}
        """


def kernels(text: str, units: int) -> list[Kernel]:
    tree = select(lowered(text), units).tree
    found = [item for leaf in leaves(tree.main.body) for item in leaf if isinstance(item, Kernel)]
    parts = [buffer for buffer in tree.main.locals if ".part" in buffer.name]
    written = {stage.operator.out.buffer for kernel in found for stage in kernel.stages}
    assert written.issuperset(parts)
    assert len(parts) == len(found) - 1
    return found


@pytest.mark.parametrize(
    "text",
    [
        linear(1, 10, 100_000),
        linear(16, 128, 16384),
        linear(8, 64, 50_000, "bf16"),
        total("1024, 1024", "f32[]", "(0, 1)"),
        total("1, 100003", "f32[1]", "(1,)", "amax.default"),
        total("9999, 40", "f32[40]", "(0,)"),
    ],
)
def test_few_results_of_long_reductions_are_split(text: str) -> None:
    first, second = kernels(text, 132)
    assert first.tasks >= 16 and first.tasks > second.tasks
    assert len(kernels(text, 1)) == 1


@pytest.mark.parametrize(
    "text",
    [
        linear(1, 512, 512),
        linear(1, 4096, 4096),
        linear(512, 512, 512),
        linear(4096, 4096, 4096),
        total("64, 4096", "f32[64]", "(1,)"),
        total("4096", "f32[]", "(0,)"),
        total("100000", "i64[]", "0", "argmax.default"),
    ],
)
def test_others_are_not(text: str) -> None:
    assert len(kernels(text, 132)) == 1


def test_parts_are_buffers_of_the_function_that_uses_them() -> None:
    tree = select(
        lowered("""
            func @main(%x: f32[1, 100000]) -> (f32[1, 10]) {
              %y = call @f(%x) : f32[1, 10]
              return %y
            }

            func @f(%x: f32[1, 100000]) -> (f32[1, 10]) {
              %w = constant "w" : f32[10, 100000]
              %y = aten.linear.default(%x, %w) : f32[1, 10]
              return %y
            }
            """),
        132,
    ).tree
    assert [b.name for b in tree.function("f").locals] == ["f.part0"]
    assert not any(".part" in b.name for b in tree.main.locals)

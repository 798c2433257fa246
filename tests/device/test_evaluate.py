"""The meaning of operators against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stretto.device.evaluate import CheckFailed, TensorMemory, evaluate, run_operator, run_task
from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Const,
    Expr,
    Index,
    Load,
    Position,
    Reg,
    Var,
)
from stretto.device.functions import FUNCTIONS, ResultDtype
from stretto.device.operator import Kernel, Operator, Span, Stage, TileDim
from stretto.errors import RunError
from stretto.ir.types import DType

TORCH_NAMES = {"not": "logical_not", "and": "logical_and", "or": "logical_or", "xor": "logical_xor"}


def buffer(name: str, *shape: int, dtype: DType = DType.F32) -> Buffer:
    return Buffer(name, dtype, shape)


def access(source: Buffer, *index: int | Var | Reg | Index | ComputedPosition) -> Access:
    return Access(source, source.shape, tuple(Index.of(i) for i in index))


def load(source: Buffer, *index: int | Var | Reg | Index | ComputedPosition) -> Expr:
    return Load(access(source, *index))


def compute(operator: Operator, **tensors: Tensor) -> None:
    box = tuple((0, extent) for extent in operator.dims if isinstance(extent, int))
    run_operator(operator, box, {}, TensorMemory(tensors))


def reduction(combine: str, value: Expr, out: Buffer, rows: int, depth: int) -> Operator:
    return Operator("r", (rows,), (depth,), combine, value, access(out, Var(0)))


def sample(function: str, rows: int) -> list[Tensor]:
    wanted = FUNCTIONS[function].result
    if wanted is ResultDtype.LOGICAL:
        return [torch.randn(rows) > 0, torch.randn(rows) > 0]
    if wanted in (ResultDtype.BITS, ResultDtype.INTEGER):
        return [torch.randint(-50, 50, (rows,)), torch.randint(0, 9, (rows,))]
    return [torch.rand(rows) * 0.9, torch.rand(rows) * 3 + 0.1]


@pytest.mark.parametrize("name", sorted(n for n, f in FUNCTIONS.items() if f.evaluate is not None))
def test_each_function_is_evaluated_by_torch(name: str) -> None:
    function = FUNCTIONS[name]
    inputs = sample(name, 7)[: function.arity]
    expected = function.evaluate(*inputs)  # pyright: ignore[reportOptionalCall]
    kinds = [DType.from_torch(t.dtype) for t in inputs]
    buffers = [buffer(f"x{n}", 7, dtype=kind) for n, kind in enumerate(kinds)]
    out = buffer("out", 7, dtype=DType.from_torch(expected.dtype))
    result = torch.empty(7, dtype=expected.dtype)
    value = Apply(name, tuple(load(b, Var(0)) for b in buffers), out.dtype)
    tensors = {b.name: t for b, t in zip(buffers, inputs, strict=True)}
    compute(Operator("o", (7,), (), "", value, access(out, Var(0))), out=result, **tensors)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("combine", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"])
def test_reductions(combine: str) -> None:
    x = torch.randn(5, 9)
    dtype = DType.F32
    if combine in ("any", "all"):
        x, dtype = x > 0, DType.BOOL
    names = {"max": "amax", "min": "amin"}
    expected = getattr(torch, names.get(combine, combine))(x, 1)
    out = torch.empty(5, dtype=expected.dtype)
    value = load(buffer("x", 5, 9, dtype=dtype), Var(0), Var(1))
    result = buffer("out", 5, dtype=DType.from_torch(expected.dtype))
    compute(reduction(combine, value, result, 5, 9), x=x, out=out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    ("row", "largest", "smallest"),
    [([1.0, 3.0, 3.0, 1.0], 1, 0), ([2.0, float("nan"), 9.0, float("nan")], 1, 1)],
)
def test_first_extreme_wins_and_nan_wins(row: list[float], largest: int, smallest: int) -> None:
    x = torch.tensor([row])
    for combine, expected in (("argmax", largest), ("argmin", smallest)):
        out = torch.empty(1, dtype=torch.int64)
        value = load(buffer("x", 1, 4), Var(0), Var(1))
        operator = reduction(combine, value, buffer("out", 1, dtype=DType.I64), 1, 4)
        compute(operator, x=x, out=out)
        assert out.item() == expected


@pytest.mark.parametrize("combine", ["cumsum", "cumprod"])
def test_scans_store_at_every_step(combine: str) -> None:
    x = torch.randn(3, 6)
    out = torch.empty(3, 6)
    value = load(buffer("x", 3, 6), Var(0), Var(1))
    target = access(buffer("out", 3, 6), Var(0), Var(1))
    compute(Operator("s", (3,), (6,), combine, value, target), x=x, out=out)
    torch.testing.assert_close(out, getattr(torch, combine)(x, 1))


def test_half_precision_is_computed_in_single() -> None:
    x = torch.full((1, 4096), 1.0, dtype=torch.float16)
    x[0, 0] = 2048.0
    out = torch.empty(1, dtype=torch.float16)
    value = load(buffer("x", 1, 4096, dtype=DType.F16), Var(0), Var(1))
    operator = reduction("sum", value, buffer("out", 1, dtype=DType.F16), 1, 4096)
    compute(operator, x=x, out=out)
    assert out.item() == 6144.0  # 2048 + 4095 in f32, rounded once


def test_where_reads_one_arm_only() -> None:
    source = buffer("x", 4)
    inside = Apply("lt", (Position(Index.of(Var(0))), Const(4, DType.I64)), DType.BOOL)
    value = Apply("where", (inside, load(source, Var(0)), Const(0.0, DType.F32)), DType.F32)
    x, out = torch.randn(4), torch.empty(6)
    compute(Operator("pad", (6,), (), "", value, access(buffer("out", 6), Var(0))), x=x, out=out)
    torch.testing.assert_close(out, torch.cat([x, torch.zeros(2)]))


def test_an_index_out_of_range_is_an_error() -> None:
    operator = Operator(
        "o", (5,), (), "", load(buffer("x", 4), Var(0)), access(buffer("out", 5), Var(0))
    )
    with pytest.raises(RunError, match="index 4 of dim 0 is out of range"):
        compute(operator, x=torch.zeros(4), out=torch.zeros(5))


AFFINE = {
    "before the first": Index.of(Var(0)) + -1,
    "behind the last": Index.of(Var(0)) + 1,
    "strided": Index.of(Var(0)) * 2,
    "reversed": Index.of(Var(0)) * -1 + 2,
    "a constant": Index.of(4),
    "a register": Index.of(Reg("n")),
    "a quotient": (Index.of(Var(0)) * 3 + 4) // 2,
    "a remainder": (Index.of(Var(0)) + 5) % 9,
    "computed": Index.of(ComputedPosition(Position(Index.of(Var(0)) + 1))),
}


@pytest.mark.parametrize("index", AFFINE.values(), ids=AFFINE)
def test_every_index_is_looked_at_where_an_arm_is_taken(index: Index) -> None:
    """An arm that no point takes may be out of range."""
    x, out = buffer("x", 4), buffer("out", 4)
    memory = TensorMemory({"x": torch.arange(4.0), "out": torch.empty(4)})
    registers = {"n": 2**63 - 1}

    def run(value: Expr) -> Tensor:
        operator = Operator("o", (4,), (), "", value, access(out, Var(0)))
        run_operator(operator, ((0, 4),), registers, memory)
        return memory.read(out, torch.arange(4))

    with pytest.raises(RunError, match="out of range"):
        run(load(x, index))
    position = Position(Index.of(Var(0)))
    for below, other in ((0, False), (4, True)):
        all_or_none = Apply("lt", (position, Const(below, DType.I64)), DType.BOOL)
        for condition in (all_or_none, Const(other, DType.BOOL)):
            arms = (load(x, Var(0)), load(x, index))[:: 1 if other else -1]
            never = Apply("where", (condition, *arms), DType.F32)
            assert torch.equal(run(never), torch.arange(4.0))
            with pytest.raises(RunError, match="out of range"):
                run(Apply("where", (condition, *arms[::-1]), DType.F32))


def test_dynamic_stores_happen_in_order() -> None:
    places = buffer("p", 4, dtype=DType.I64)
    target = access(buffer("out", 3), ComputedPosition(load(places, Var(0))))
    operator = Operator("scatter", (4,), (), "", load(buffer("x", 4), Var(0)), target)
    x, p = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 2, 0, 2])
    out = torch.zeros(3)
    compute(operator, x=x, p=p, out=out)
    assert out.tolist() == [3.0, 0.0, 4.0]
    added = Operator("add", (4,), (), "", operator.value, target, accumulate=True)
    compute(added, x=x, p=p, out=out)
    assert out.tolist() == [7.0, 0.0, 10.0]


def test_checked_positions_stop_the_run() -> None:
    index = Apply(
        "checked", (Const(5, DType.I64), Const(4, DType.I64), Const(3, DType.I64)), DType.I64
    )
    with pytest.raises(CheckFailed, match="index 5 is out of range") as caught:
        evaluate(index, {}, TensorMemory({}))
    assert (caught.value.number, caught.value.index) == (3, 5)


def test_registers_and_index_arithmetic() -> None:
    n = Reg("n")
    index = (Index.of(n) * 3 + 7) // 4 + (Index.of(n) % 4) * 10
    assert evaluate(Position(index), {"n": 6}, TensorMemory({})) == (6 * 3 + 7) // 4 + 20


def test_a_large_box_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.device.evaluate.LARGEST_GRID", 10)
    x, out = torch.randn(7, 5), torch.empty(7)
    value = load(buffer("x", 7, 5), Var(0), Var(1))
    compute(reduction("sum", value, buffer("out", 7), 7, 5), x=x, out=out)
    torch.testing.assert_close(out, x.sum(1))


def test_tasks_of_a_dynamic_grid_cover_it() -> None:
    n = Reg("n")
    source, target = buffer("x", 10), buffer("out", 10)
    operator = Operator("copy", (n,), (), "", load(source, Var(0)), access(target, Var(0)))
    kernel = Kernel("copy", (TileDim(n, 4),), (Stage(operator, (Span(n, grid=0),)),))
    x, out = torch.randn(10), torch.zeros(10)
    for task in range(2):
        run_task(kernel, task, {"n": 7}, TensorMemory({"x": x, "out": out}))
    torch.testing.assert_close(out, torch.cat([x[:7], torch.zeros(3)]))

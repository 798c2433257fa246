"""Products of bf16 and f16 in whole programs: as near to float64 as eager PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.backends import built
from tests.machines.operators import Operators
from tests.sampling import every, sampled

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def templates(ops: Operators, units: int = 2) -> list[str]:
    kernels = built(ops.program(), units).device.kernels
    return sorted({stage.template.name for kernel in kernels for stage in kernel.stages})


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.whole
@DTYPES
@pytest.mark.parametrize("units", every(2, [1, 2, 3, 7]))
def test_products_of_all_kinds(dtype: torch.dtype, units: int) -> None:
    ops = Operators()
    for m, k, n in ((1, 64, 130), (3, 33, 64), (8, 1, 17), (20, 70, 48)):
        size, x = f"{m}x{k}x{n}", ops.x(m, k, dtype=dtype)
        ops.keep(f"constant {size}", ops("mm.default", x, ops.w(k, n, dtype=dtype)))
        ops.keep(
            f"constant left {size}",
            ops("mm.default", ops.w(m, k, dtype=dtype), ops.x(k, n, dtype=dtype)),
        )
        linear = ops("linear.default", x, ops.w(n, k, dtype=dtype), ops.w(n, dtype=dtype))
        ops.keep(f"linear {size}", ops("relu.default", linear))
        turned = ops("t.default", ops.x(n, k, dtype=dtype))
        ops.keep(f"right turned {size}", ops("mm.default", x, turned))
        lefts = ops("t.default", ops.x(k, m, dtype=dtype))
        ops.keep(f"both turned {size}", ops("mm.default", lefts, turned))
        batch = ops.x(3, m, k, dtype=dtype)
        ops.keep(f"batch {size}", ops("bmm.default", batch, ops.x(3, k, n, dtype=dtype)))
        ops.keep(
            f"batch of constants {size}", ops("bmm.default", batch, ops.w(3, k, n, dtype=dtype))
        )
    ops.check(units, scale=2)


@DTYPES
def test_products_without_a_term_and_without_an_element(dtype: torch.dtype) -> None:
    ops = Operators()
    for m, k, n in ((3, 0, 70), (0, 4, 3), (3, 4, 0)):
        x = ops.x(m, k, dtype=dtype)
        ops.keep(f"mm {m}x{k}x{n}", ops("mm.default", x, ops.x(k, n, dtype=dtype)))
        linear = ops("linear.default", x, ops.w(n, k, dtype=dtype), ops.w(n, dtype=dtype))
        ops.keep(f"linear {m}x{k}x{n}", linear)
    ops.check(scale=2)


@DTYPES
def test_each_kind_of_operand_has_its_template(dtype: torch.dtype) -> None:
    for right, wanted in (
        (lambda ops: ops.w(64, 80, dtype=dtype), "narrow_packed"),
        (lambda ops: ops.x(64, 80, dtype=dtype), "narrow_rows"),
        (lambda ops: ops("t.default", ops.x(80, 64, dtype=dtype)), "narrow_dots"),
    ):
        ops = Operators()
        ops.keep("product", ops("mm.default", ops.x(5, 64, dtype=dtype), right(ops)))
        assert wanted in templates(ops)


@DTYPES
@pytest.mark.parametrize("rows", sampled([1, 2, 7, 49], [1]))
def test_as_near_to_float64_as_eager(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    model = nn.Sequential(nn.Linear(300, 130), nn.GELU()).to(dtype).eval()
    wide = nn.Sequential(nn.Linear(300, 130), nn.GELU()).double().eval()
    wide.load_state_dict(model.state_dict())
    x = random(rows, 300, dtype=dtype)
    compiled = stretto.compile(model, options=stretto.Options(threads=2))
    with torch.no_grad():
        exact, eager, found = wide(x.double()), model(x), compiled(x)
    mine, theirs = ((y.double() - exact).abs() for y in (found, eager))
    assert mine.max() <= theirs.max() * 1.1 and mine.mean() <= theirs.mean() * 1.02


@pytest.mark.whole
@DTYPES
def test_a_number_of_rows_that_calls_decide(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(48, 100).to(dtype).eval()
    compiled = stretto.compile(model, dynamic=True)
    with torch.no_grad():
        for rows in (3, 2, 50, 1, 0):
            x = random(rows, 48, dtype=dtype)
            torch.testing.assert_close(compiled(x), model(x), rtol=0.02, atol=0.01)


def test_a_recurrence_of_bf16() -> None:
    torch.manual_seed(0)
    cell = nn.RNNCell(40, 70).bfloat16().eval()

    def run(xs: Tensor) -> Tensor:
        state = torch.zeros(1, 70, dtype=torch.bfloat16)
        for x in xs:
            state = cell(x[None], state)
        return state

    compiled = stretto.compile(run, options=stretto.Options(threads=2))
    for steps in (0, 1, 9):
        xs = random(steps, 40, dtype=torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(compiled(xs), run(xs), rtol=0.02, atol=0.02)


def test_a_single_row_keeps_denormal_numbers() -> None:
    """Eager's product of one row does, and its products of more rows take them for 0."""
    weight = torch.full((64, 64), 1e30, dtype=torch.bfloat16)
    row = torch.full((1, 64), 1e-39, dtype=torch.bfloat16)
    with torch.no_grad():
        found = stretto.compile(lambda x: x @ weight)(row)
    assert found.float()[0, 0] > 6e-8


def test_weights_that_change_are_packed_again() -> None:
    model = nn.Linear(33, 64).bfloat16().eval()
    compiled = stretto.compile(model)
    x = random(4, 33, dtype=torch.bfloat16)
    with torch.no_grad():
        compiled(x)
        model.weight.mul_(-2)
        torch.testing.assert_close(compiled(x), model(x), rtol=0.02, atol=0.01)

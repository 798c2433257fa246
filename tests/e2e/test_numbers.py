"""Number arguments that do not fit the dtype: eager's kernels refuse some, shape rules do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.torch_version import TorchVersion

import stretto

NUMBERS: tuple[float, ...] = (
    *(300, -1, -300, 1 << 40, 2.7, -2.7, 1e30, float("nan"), float("inf"), True),
)

OPERATORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "add": lambda x, n: x + n,
    "rsub": lambda x, n: n - x,
    "pow": lambda x, n: x**n,
    "eq": lambda x, n: x == n,
    "add with alpha": lambda x, n: torch.add(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "clamp": lambda x, n: x.clamp(max=n),
    "hardtanh": lambda x, n: F.hardtanh(x, -1, n),
    "threshold": lambda x, n: F.threshold(x, 1, n),
    "where": lambda x, n: torch.where(x > 1, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0]), n),
    "fill_": lambda x, n: x.clone().fill_(n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype),
    "new_full": lambda x, n: x.new_full((2,), n),
    "linspace": lambda x, n: torch.linspace(0, n, 3, dtype=x.dtype),
}

DTYPES = (*(torch.uint8, torch.int16, torch.int64, torch.bool, torch.float16, torch.float32),)


def outcome(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | type[Exception]:
    try:
        return function(x.clone())
    except Exception as error:
        kinds = (RuntimeError, OverflowError, TypeError, ValueError)
        return next(kind for kind in kinds if isinstance(error, kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3]).to(dtype)
    operator = OPERATORS[name]
    for number in NUMBERS:
        if name == "clamp" and number != number and TorchVersion(torch.__version__) < "2.12":
            continue  # torch then ignored a bound that is not a number; here it is as later

        def function(x: Tensor, number: float = number) -> Tensor:
            return operator(x, number)

        expected = outcome(function, x)
        found = outcome(stretto.compile(function, backend="emulator"), x)
        if isinstance(expected, Tensor) and isinstance(found, Tensor):
            torch.testing.assert_close(found, expected, equal_nan=True)
        else:
            assert found is expected, (number, found, expected)


@pytest.mark.parametrize("exponent", [True, False])
def test_flags_to_a_power(exponent: bool) -> None:
    flags = torch.tensor([True, False])
    fast = stretto.compile(lambda x: x**exponent, backend="emulator")
    torch.testing.assert_close(fast(flags), flags**exponent)

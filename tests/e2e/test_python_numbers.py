"""Python's numbers raise where tensors do not: divisions by zero, powers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stretto

Function = Callable[[Tensor, int], object]

PROGRAMS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "int / int": lambda x, i: x + 1 / int(i),
    "int // int": lambda x, i: x + int(x[1]) // int(i),
    "int % int": lambda x, i: x + 5 % int(i),
    "divmod": lambda x, i: x + divmod(5, int(i))[1],
    "float / float": lambda x, i: x + 1.0 / float(i),
    "float // int": lambda x, i: x + x[1].item() // i.item(),
    "float % float": lambda x, i: x + 3.5 % float(i),
    "unused": lambda x, i: (7 // int(i), x)[1],
    "negative power": lambda x, i: x + int(i) ** -1,
    "negative power of a float": lambda x, i: x + float(i) ** -2.0,
    "power of zero": lambda x, i: x + 0.0 ** -float(i) if i > 1 else x + 1 / int(i),
    "in place": lambda x, i: x + _divided(x[1].item(), int(i)),
}


def _divided(total: float, count: int) -> float:
    total /= count
    return total


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_zero_divisions(name: str, backend: str) -> None:
    function = PROGRAMS[name]
    compiled = stretto.compile(function, backend=backend)
    x = torch.tensor([1.0, 5.0])
    for number in (2, -3, 0):
        i = torch.tensor(number)
        try:
            wanted = function(x, i)
        except ZeroDivisionError as error:
            with pytest.raises(ZeroDivisionError) as found:
                compiled(x, i)
            assert str(error) in str(found.value)
            assert isinstance(found.value, stretto.RunError)
        else:
            torch.testing.assert_close(compiled(x, i), wanted)


def test_divisions_of_tensors_do_not_raise() -> None:
    def f(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return x / int(i), x // i, 1 / x, x % float(i), x / i.float(), 2**x

    x, zero = torch.tensor([1.0, 0.0]), torch.tensor(0)
    torch.testing.assert_close(stretto.compile(f)(x, zero), f(x, zero), equal_nan=True)


def test_an_int_to_a_negative_power_is_a_float() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        return x + 2 ** int(i)

    compiled = stretto.compile(f)
    x = torch.ones(2)
    for power in (3, -2, 0):
        assert torch.equal(compiled(x, torch.tensor(power)), f(x, torch.tensor(power)))


def test_a_division_by_zero_while_capturing() -> None:
    def f(x: Tensor) -> Tensor:
        return x + int(x.sum()) // 0

    with pytest.raises(ZeroDivisionError, match="by zero"):
        stretto.compile(f)(torch.ones(2))

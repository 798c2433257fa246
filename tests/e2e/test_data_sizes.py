"""Programs with sizes that data decide, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from stretto.errors import NotCaptured
from tests.sampling import sampled

Make = Callable[[int], Tensor]


def rows(seed: int) -> Tensor:
    """Rows of which, depending on the seed, some, all or none begin with a positive number."""
    return torch.randn(9, 4, generator=torch.Generator().manual_seed(seed)) - seed / 2 + 1


def weights(seed: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))


def integers(seed: int) -> Tensor:
    return torch.randint(0, 4, (12,), generator=torch.Generator().manual_seed(seed))


def pairs(seed: int) -> Tensor:
    return integers(seed).reshape(6, 2)


def repeats(seed: int) -> Tensor:
    return integers(seed)[:9]


def count(seed: int) -> Tensor:
    """A number that may be negative, in a tensor of nine elements, or beyond its end."""
    return torch.tensor(seed * 3 - 1)


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    makes: tuple[Make, ...]

    def __str__(self) -> str:
        return self.function.__name__


CASES: list[Case] = []


def case(*makes: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(function, makes))
        return function

    return add


@case(rows)
def nonzero(x: Tensor) -> Any:
    return x.nonzero()


@case(rows)
def where_positions(x: Tensor) -> Any:
    return torch.where(x > 0)


@case(rows)
def mask_rows(x: Tensor) -> Any:
    return x[x[:, 0] > 0], x[:, (x > 0).any(0)]


@case(rows)
def mask_set(x: Tensor) -> Any:
    y = x.clone()
    y[y > 0] = 0
    z = x.clone()
    z[z[:, 0] > 0] = torch.arange(4.0)
    w = x.clone()
    w[w < 0] = w[w < 0] * 2
    return y, z, w


@case(rows)
def masked_select(x: Tensor) -> Any:
    return x.masked_select(x > 0.5), x.masked_select(x[:, :1] > 0)


@case(integers)
def unique(i: Tensor) -> Any:
    return torch.unique(i, return_inverse=True, return_counts=True)


@case(integers)
def unique_consecutive(i: Tensor) -> Any:
    return torch.unique_consecutive(i, return_inverse=True, return_counts=True)


@case(pairs)
def unique_rows(i: Tensor) -> Any:
    return torch.unique(i, dim=0, return_inverse=True, return_counts=True)


@case(integers)
def unique_of_nothing(i: Tensor) -> Any:
    none, rows = i[:0], torch.zeros(0, 3)
    return (
        torch.unique(none, return_inverse=True, return_counts=True),
        torch.unique(rows, return_inverse=True),
        torch.unique(torch.zeros(2, 0), return_inverse=True),
        torch.unique(rows, dim=0, return_inverse=True),
        torch.unique_consecutive(rows, return_inverse=True, return_counts=True),
        torch.unique_consecutive(rows, dim=0, return_counts=True),
    )


@case(rows)
def unique_of_what_may_be_nothing(x: Tensor) -> Any:
    chosen = x[x[:, 0] > 0].round()
    return (
        torch.unique(chosen, return_inverse=True, return_counts=True),
        torch.unique(chosen, dim=0, return_inverse=True, return_counts=True),
        torch.unique_consecutive(chosen[:, 0], return_counts=True),
    )


@case(rows)
def sizes_of_one_arm(x: Tensor) -> Any:
    rest = x[1:]
    count = (rest > 0).nonzero().numel() if x.sum() < 3 else 7
    is_empty, rows = False, 0
    if x.sum() < 3:
        is_empty, rows = (rest > 0).nonzero().numel() == 0, rest[rest > 0].shape[0] + 1
    if x.sum() < 9 or (rest > 0).nonzero().numel() == 0:
        rest = rest + 1
    return count, is_empty, rows, rest


@case(rows, repeats)
def repeat_interleave(x: Tensor, r: Tensor) -> Any:
    return torch.repeat_interleave(x, r, dim=0), torch.repeat_interleave(r)


@case(rows, count)
def slices(x: Tensor, n: Tensor) -> Any:
    if n < 2:
        n = n * 0 + 2
    k = n.item()
    return x[:k], x[k:], x[:, :k], x[1:k], x[-3:k], x[k::2]


@case(count)
def created(n: Tensor) -> Any:
    k = int(n) + 1
    return (
        torch.arange(k),
        torch.zeros(k, 3),
        torch.ones(3, k).sum(0),
        torch.full((k,), 2.5),
        torch.arange(2, k + 4, 2),
    )


@case(count)
def ranges_to_a_float(n: Tensor) -> Any:
    end = (n / 2 + 0.3).item()
    return torch.arange(0, end), torch.arange(1, end + 3, 0.5), torch.arange(end, -1, -0.25).sum()


@case(rows, count)
def pieces(x: Tensor, n: Tensor) -> Any:
    k = (n % 9).item()
    a, b = torch.split(x, [k, 9 - k])
    return a * 2, b.sum(0), x.narrow(0, 0, k)


@case(rows)
def condition_on_a_size(x: Tensor) -> Any:
    idx = (x[:, 0] > 0).nonzero().squeeze(1)
    n = idx.shape[0]
    if n == 0:
        return x.sum()
    if n > 6:
        y = x * 2
    else:
        y = x * 3
    return y.sum() + n


@case(rows)
def loops_over_a_size(x: Tensor) -> Any:
    idx = (x[:, 0] > 0).nonzero().squeeze(1)
    h = torch.zeros(4)
    for i in range(idx.shape[0]):
        h = torch.tanh(h + x[idx[i]])
    for j in idx:
        h = h + x[j]
    for row in x[idx]:
        h = h * 0.5 + row
    return h, len(idx)


@case(rows, weights)
def computed_with(x: Tensor, w: Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return (
        y.mean(0),
        y.sum(),
        y @ w,
        torch.softmax(y, 1),
        torch.softmax(y, 0),
        torch.cat([y, x]),
        torch.cat([y, y * 2]),
        y.t() @ y,
    )


@case(rows)
def made_of_a_size(x: Tensor) -> Any:
    idx = (x[:, 0] > 0).nonzero().squeeze(1)
    n = idx.shape[0]
    a = x.new_zeros(n, 5)
    b = torch.ones(n)
    c = torch.arange(n)
    return (
        a + 1,
        b * c,
        n,
        n * 2 + 1,
        n / 2,
        x.sum() / max(n, 1),
        torch.zeros(9).scatter(0, idx, 1.0),
        torch.zeros(9, 4).index_add(0, idx, x[idx]),
    )


@case(rows)
def items_of_what_is_long_enough(x: Tensor) -> Any:
    few = x[x > 1.5]
    second = few[1] if len(few) > 1 else few.sum()
    if len(few) > 0:
        first, last = few[0], few[-1].item()
    else:
        first, last = x[0, 0], 0.5
    return second, first, last


@case(rows)
def two_sizes(x: Tensor) -> Any:
    a = x[x[:, 0] > 0]
    b = x[x[:, 1] > 0]
    return torch.cat([a, b]), a.shape[0] - b.shape[0]


@case(rows)
def moe(x: Tensor) -> Any:
    choice = (x[:, 0] * 3).long() % 3
    out = torch.zeros_like(x)
    for e in range(3):
        idx = (choice == e).nonzero().squeeze(1)
        out.index_add_(0, idx, torch.tanh(x[idx] * (e + 1)))
    return out


@case(integers)
def ctc(i: Tensor) -> Any:
    u = torch.unique_consecutive(i)
    return u[u != 0]


@case(integers)
def bins(i: Tensor) -> Any:
    return torch.bincount(i), torch.nn.functional.one_hot(i)


@case(rows, count)
def topk(x: Tensor, n: Tensor) -> Any:
    return x[:, 0].topk((n % 9).item()).values


@case(rows, count)
def slices_that_are_set(x: Tensor, n: Tensor) -> Any:
    y = x.clone()
    k = n.item()
    y[:k] = 0
    y[k:, 1] = 5
    y[:k] += x[:k]
    return y


@case(rows)
def sizes_added_up(x: Tensor) -> Any:
    tot = 0
    for e in range(3):
        idx = (x[:, e] > 0).nonzero()
        tot += idx.shape[0]
    return tot


@case(rows)
def masks_in_branches(x: Tensor) -> Any:
    if x.sum() > 0:
        y = x[x > 0].sum()
    else:
        y = x[x < 0].sum()
    return y


@case(rows)
def while_below_a_size(x: Tensor) -> Any:
    idx = (x[:, 0] > 0).nonzero().squeeze(1)
    i = 0
    while i < idx.shape[0] and x[idx[i], 1] > -1:
        i += 1
    return i, x[:i]


@case(rows)
def carried_by_a_loop(x: Tensor) -> Any:
    y = x
    for _ in range(5):
        y = y[y[:, 0] > 0.1] * 0.9 - 0.05
    return y


@case(rows)
def carried_by_a_while(x: Tensor) -> Any:
    y = x
    n = 0
    while y.shape[0] > 2:
        y = y[y[:, 0] < y[:, 0].max()]
        n += 1
    return y, n


@case(rows)
def from_both_arms(x: Tensor) -> Any:
    if x.sum() > 0:
        y = x[x[:, 0] > 0]
    else:
        y = x[x[:, 1] > 0] * 2
    return y.sum(0), y, y.shape[0]


@case(rows)
def from_one_arm(x: Tensor) -> Any:
    y = x
    if (x > 0).any():
        y = x[x[:, 0] > 0]
    return y + 1


@case(rows)
def grown_by_cat(x: Tensor) -> Any:
    y = x[:1]
    i = 0
    while y.sum() < 20 and i < 6:
        y = torch.cat([y, x[i : i + 1].abs()])
        i += 1
    return y


@case(rows)
def columns_that_go(x: Tensor) -> Any:
    y = x
    while y.shape[1] > 2 and y.sum() > -3:
        y = y[:, y.sum(0) > y.sum(0).min()]
    return y


@case(integers)
def a_queue(i: Tensor) -> Any:
    q = i
    tot = 0
    while q.numel() > 0:
        tot = tot + q[0] * q.numel()
        q = q[1:]
        q = q[q != 1]
    return tot


@case(rows, count)
def padded(x: Tensor, n: Tensor) -> Any:
    k = int(n % 6) - 2
    return (
        F.pad(x, (0, k)),
        F.pad(x, (k, 1), value=3),
        F.pad(x, (-k, 2 * k + 1), value=-1.5),
        F.pad(x, (0, 0, k, -k)),
        F.pad(x[x[:, 0] > 0], (1, 0, 3 + k, 0)),
        F.pad(n.long().repeat(3), (k + 2, k), "constant", 2),
    )


BOTH = {str(item): item for item in CASES}
ON_THE_CPU = [
    BOTH[name] for name in ("computed_with", "made_of_a_size", "moe", "slices_that_are_set")
]


def check(case: Case, backend: str) -> None:
    compiled = stretto.compile(case.function, backend=backend)
    for seed in (0, 1, 2, 3, 6, -8):
        arguments = [make(seed) for make in case.makes]
        try:
            expected = case.function(*(item.clone() for item in arguments))
        except RuntimeError as error:
            with pytest.raises(type(error), match=str(error)) as caught:
                compiled(*arguments)
            assert __file__ in str(caught.value)
            continue
        found = compiled(*(item.clone() for item in arguments))
        for one, other in zip(_flat(found), _flat(expected), strict=True):
            assert type(one) is type(other)
            torch.testing.assert_close(one, other, equal_nan=True)


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_interpreter(case: Case) -> None:
    check(case, "interpreter")


@pytest.mark.parametrize("case", sampled(CASES, CASES[::4]), ids=str)
def test_emulator(case: Case) -> None:
    check(case, "emulator")


@pytest.mark.parametrize("case", sampled(CASES, ON_THE_CPU), ids=str)
def test_cpu(case: Case) -> None:
    check(case, "cpu")


def zeros_of(n: Tensor) -> Tensor:
    return torch.zeros(int(n), 1000)


def masked(x: Tensor, k: Tensor) -> Tensor:
    return x[k]


def repeated(x: Tensor, r: Tensor) -> Tensor:
    return torch.repeat_interleave(x, r)


BAD = [
    (zeros_of, (torch.tensor(-3),), RuntimeError, "negative dimension -3"),
    (zeros_of, (torch.tensor(10**13),), RuntimeError, "a size of 10000000000000 is too large"),
    (masked, (torch.ones(5), torch.ones(4) > 0), IndexError, r"shape of the mask \[4\] at index 0"),
    (repeated, (torch.ones(2), torch.tensor([1, -1])), RuntimeError, "repeats can not be negative"),
]


@pytest.mark.parametrize(("function", "arguments", "error", "text"), BAD)
def test_bad_sizes(
    function: Callable[..., Any], arguments: tuple[Tensor, ...], error: type[Exception], text: str
) -> None:
    for backend in ("interpreter", "emulator"):
        with pytest.raises(error, match=text):
            stretto.compile(function, backend=backend)(*arguments)


def test_memory_that_cannot_be_had_is_not_tried() -> None:
    with pytest.raises(stretto.RunError, match="with 1000000000 rows, .* need 3725.3 GiB"):
        stretto.compile(zeros_of, backend="cpu")(torch.tensor(10**9))


@pytest.mark.whole
def test_with_sizes_of_the_call() -> None:
    """Sizes that are known at the call and sizes that data decide in one program."""

    def function(x: Tensor) -> Any:
        chosen = x[x[:, 0] > 0]
        return chosen @ chosen.t().mean(1), chosen.shape[0], x[:, (x > 0).any(0)]

    for backend in ("interpreter", "cpu"):
        compiled = stretto.compile(function, backend=backend, dynamic=True)
        for seed, rows_given in ((0, 9), (1, 5), (2, 17), (3, 2)):
            x = torch.randn(rows_given, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


def halves(x: Tensor, depth: int) -> Tensor:
    if x.shape[0] < 2:
        return x.sum()
    return halves(x[x > x.mean()], depth + 1) + halves(x[x <= x.mean()], depth + 1)


def test_recursion_over_sizes_is_refused() -> None:
    with pytest.raises(stretto.CaptureError, match="the capture comes to no end"):
        stretto.compile(halves, backend="interpreter")(torch.randn(9), 0)


def test_an_item_that_nobody_reads() -> None:
    def second_positive(x: Tensor) -> Tensor:
        x[x > 0][1]
        return x * 2

    fast = stretto.compile(second_positive, backend="interpreter")
    x = torch.tensor([1.0, 2.0, -1.0])
    assert torch.equal(fast(x), x * 2)
    with pytest.raises(IndexError, match="index 1 is out of bounds for dimension 0 with size 0"):
        fast(-x.abs())


def test_a_missing_item_that_is_handled() -> None:
    def second_positive(x: Tensor) -> Tensor:
        try:
            y = x[x > 0][1]
        except IndexError:
            y = x[0]
        return y + 1

    x = torch.tensor([1.0, 2.0, -1.0])
    with pytest.raises(stretto.CaptureError, match="whether IndexError is raised here"):
        stretto.compile(second_positive, backend="interpreter")(x)
    fast = stretto.compile(second_positive, backend="interpreter", fallback=True)
    for call in (x, -x, x):
        assert torch.equal(fast(call), second_positive(call))


def test_a_size_that_one_arm_needs_is_not_known_in_others() -> None:
    """An operator of an arm wants a size to be that of another tensor, which the run checks."""

    def met_in_an_arm(x: Tensor) -> Any:
        found, out = x[x > 0], x[:2]
        if x.sum() > 0:
            out = out + found
        return out, found.shape[0], found * 2

    def met_by_each_arm(x: Tensor) -> Tensor:
        found = x[x > 0]
        if x.sum() > 0:
            out = found + x[:2]
        else:
            out = found + x[:3]
        return out.sum()

    two, three = torch.tensor([1.0, 2.0, -1.0, -1.0]), torch.tensor([1.0, 2.0, 1.0, -9.0])
    for function in (met_in_an_arm, met_by_each_arm):
        fast = stretto.compile(function, backend="interpreter", dynamic=False)
        for x in (two, three, two):
            torch.testing.assert_close(fast(x), function(x))
        with pytest.raises(RuntimeError):
            fast(three + 10)


def test_out_of_a_size_that_data_decide() -> None:
    """Eager PyTorch resizes an `out` of another size, which a program cannot."""

    def sums_behind_a_zero(x: Tensor) -> Tensor:
        found = x[x > 0]
        out = found.new_empty((found.size(0) + 1,))
        out.narrow(0, 0, 1).zero_()
        torch.cumsum(found, 0, out=out.narrow(0, 1, found.size(0)))
        return out

    def sums_of_two(x: Tensor) -> Tensor:
        out = torch.zeros(2)
        torch.cumsum(x[x > 0], 0, out=out)
        return out

    two, three = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, 2.0, 3.0])
    for function in (sums_behind_a_zero, sums_of_two):
        fast = stretto.compile(function, backend="interpreter", fallback=True)
        for x in (two, three, two):
            assert torch.equal(fast(x), function(x))
    assert torch.equal(
        stretto.compile(sums_behind_a_zero, backend="emulator")(three), sums_behind_a_zero(three)
    )
    fast = stretto.compile(sums_of_two, backend="interpreter")
    assert torch.equal(fast(two), sums_of_two(two))
    with pytest.raises(NotCaptured, match="returns size 3"):
        fast(three)


def test_an_assertion_on_a_size_that_data_decide() -> None:
    def last_three(x: Tensor, most: int) -> Tensor:
        found = x[x > 0][-3:]
        count = found.shape[0]
        assert count <= most, f"{count} are too many"
        return found * count

    two, three = torch.tensor([1.0, 2.0, -1.0, 0.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    for most in (2, 3):
        fast = stretto.compile(last_three, backend="interpreter", dynamic=False)
        assert torch.equal(fast(two, most), last_three(two, most))
        if most == 3:
            assert torch.equal(fast(three, most), last_three(three, most))
        else:
            with pytest.raises(AssertionError, match="3 are too many"):
                fast(three, most)

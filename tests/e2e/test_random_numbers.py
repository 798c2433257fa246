"""Random numbers: with one seed a compiled program draws what eager PyTorch draws, bit for bit, and
leaves the generators in the same state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stretto
from stretto.options import Options
from tests.e2e.machines import spread
from tests.frontends.python.checks import assert_same

X = torch.linspace(-1, 1, 12).reshape(3, 4)
MATRIX = torch.linspace(-1, 1, 16).reshape(4, 4)


def fills(x: Tensor) -> Any:
    new = torch.rand(3, 4), torch.randn(5), torch.rand_like(x), torch.randn_like(x)
    integers = torch.randint(9, (7,)), torch.randint(-3, 5, (2, 2)), torch.randint_like(x, 5)
    empty = torch.empty(3, 4)
    in_place = [
        empty.clone().uniform_(-1, 2), empty.clone().normal_(1.0, 2.0), x.clone().exponential_(2.0),
        empty.clone().log_normal_(), empty.clone().cauchy_(), empty.clone().geometric_(0.3),
        torch.empty(5, dtype=torch.int64).random_(9), torch.zeros(3).bernoulli_(0.4),
        torch.empty(40, dtype=torch.float64).normal_(), torch.empty(5).random_(),
    ]  # fmt: skip
    return x + 1, new, integers, in_place, torch.normal(0.0, 1.0, (3,)), torch.randperm(6)


def samples(x: Tensor) -> Any:
    shares = x.softmax(-1)
    return (
        torch.multinomial(shares, 2), torch.multinomial(shares, 7, replacement=True),
        torch.bernoulli(x.abs()), x.bernoulli(0.3), torch.normal(x, 0.5),
        torch.normal(0.0, x.abs()),
        torch.normal(x, x.abs()), torch.poisson(x.abs()), x.clone().bernoulli_(x.abs()),
        F.gumbel_softmax(x, tau=0.7), F.gumbel_softmax(x, hard=True),
    )  # fmt: skip


def dropouts(x: Tensor) -> Any:
    image = x[None, :, :, None]
    return (
        F.dropout(x, 0.3), F.dropout(x, 0.3, training=False), F.dropout(x, 1.0), F.dropout(x, 0.0),
        F.alpha_dropout(x, 0.2, True), F.dropout2d(image, 0.5), F.dropout1d(x, 0.5),
        F.feature_alpha_dropout(image, 0.4, True), F.dropout(x.clone(), 0.3, True, True),
        F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.4),
    )  # fmt: skip


def strides(x: Tensor) -> Any:
    """Which element gets which number depends on strides, and on gaps in memory."""
    wide = x.repeat(4, 5)
    return (
        torch.randn_like(wide.T), F.dropout(wide.T, 0.3), torch.empty_like(wide.T).uniform_(),
        torch.zeros_like(wide.T).bernoulli_(0.3), torch.randn_like(wide[:, ::2]),
        wide.clone()[:, ::2].normal_(), wide.clone().T[1:].exponential_(),
        torch.rand_like(wide.T, memory_format=torch.contiguous_format),
    )  # fmt: skip


def writes(x: Tensor) -> Tensor:
    x[:, 1:3].uniform_()
    x.T[0].normal_()
    return x * 2


def branches(x: Tensor) -> Any:
    if x.sum() > 0:
        y = torch.rand(4)
    else:
        y = torch.randn(4) + torch.randn(4)
    if x.sum() > 1:
        torch.rand(2)  # nobody reads it, and yet it is drawn
    return x + y, torch.rand(2)


def loops(x: Tensor, count: Tensor) -> Any:
    steps = []
    for _ in range(count):
        noise = torch.randn(3, 4)
        torch.rand(1)
        x = torch.tanh(x + noise @ MATRIX) + torch.rand(3, 4)
        steps.append(noise)
    while x.abs().max() < 6:
        x = x * 1.5 + torch.rand(1)
    return x, torch.stack(steps), torch.rand(1)


def two_loops(x: Tensor) -> Any:
    """Two products that could be computed for all rows at once, or one after the other."""
    h = torch.zeros(4)
    k = torch.zeros(4)
    for row in x:
        h = torch.tanh(h @ MATRIX + torch.rand(4) @ MATRIX)
        k = k + F.dropout(row @ MATRIX, 0.5) + torch.rand(4)
    return h, k


def unrelated(x: Tensor) -> Any:
    """Draws that no value connects: only their order does."""
    return tuple(torch.rand(2) for _ in range(8)), x + 1


def walk(x: Tensor, depth: Tensor) -> Tensor:
    if depth <= 0:
        return x
    noise = torch.randn(3, 4)
    left = walk(x + noise, depth - 1)
    return left + walk(x * torch.rand(1), depth - 2)


def recursive(x: Tensor, depth: Tensor) -> Any:
    return walk(x, depth), torch.rand(1)


def growing(x: Tensor, count: Tensor) -> Any:
    """A list for which there was too little memory at first: the program runs again."""
    rows = []
    for i in range(count):
        rows.append(torch.rand(4) + i)
    return torch.stack(rows), x


def seeded(x: Tensor) -> Any:
    first = torch.rand(2)
    torch.manual_seed(5)
    return first, x + torch.rand(3, 4)


def distributions(x: Tensor) -> Any:
    chosen = torch.distributions.Categorical(logits=x).sample()
    return chosen, torch.distributions.Normal(x, 1.0).rsample()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, 0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[None])


COUNT = torch.tensor(3)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "fills": (fills, (X,)),
    "samples": (samples, (X,)),
    "dropouts": (dropouts, (X,)),
    "strides": (strides, (X,)),
    "writes": (writes, (X,)),
    "branches": (branches, (X,)),
    "other arm": (branches, (X + 1,)),
    "loops": (loops, (X, COUNT)),
    "no trips": (loops, (X, torch.tensor(1))),
    "two loops": (two_loops, (X,)),
    "unrelated": (unrelated, (X,)),
    "recursive": (recursive, (X, COUNT)),
    "seeded": (seeded, (X,)),
    "distributions": (distributions, (X,)),
    "module": (Net().requires_grad_(False).train(), (X,)),
}


def compare(
    fn: Callable[..., Any], args: tuple[Any, ...], backend: str, options: Options | None = None
) -> None:
    """Two seeds, so that also the second run draws what eager draws."""
    fast = stretto.compile(fn, backend=backend, options=options)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            wanted = fn(*(item.clone() for item in args))
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        with torch.no_grad():
            found = fast(*(item.clone() for item in args))
        assert torch.equal(torch.get_rng_state(), state)
        assert_same(found, wanted)


@pytest.mark.parametrize("name", CASES)
def test_draws_are_those_of_eager(name: str) -> None:
    with spread():
        compare(*CASES[name], "emulator")


@pytest.mark.whole
@pytest.mark.parametrize("name", ["loops", "recursive", "unrelated"])
def test_on_the_cpu(name: str) -> None:
    with spread():
        compare(*CASES[name], "cpu")


def test_a_run_that_is_repeated_draws_once() -> None:
    compare(growing, (X, torch.tensor(200)), "cpu")


def test_the_check_by_the_interpreter_draws_the_same() -> None:
    compare(loops, (X, COUNT), "emulator", Options(check=True))


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: torch.randn(n, 3, generator=None), lambda n: torch.rand((n,), generator=None),
        lambda n: torch.randint(2, 9, (n,), generator=None), lambda n: torch.randint(n, (4,)),
        lambda n: torch.randperm(n, generator=None),
    ],
)  # fmt: skip
def test_as_many_as_a_size_says(draw: Callable[[int], Tensor]) -> None:
    fast = stretto.compile(draw, backend="emulator")
    for n in (4, 7, 9, 1):
        torch.manual_seed(1)
        wanted = draw(n)
        torch.manual_seed(1)
        assert_same(fast(n), wanted)
    assert len(fast.signatures) == 2


def test_a_generator_of_ones_own() -> None:
    def f(x: Tensor, generator: torch.Generator) -> Any:
        both = torch.rand(3, 4, generator=generator) + torch.rand(3, 4)
        return x + both, torch.multinomial(x.softmax(-1), 2, generator=generator)

    mine, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    fast = stretto.compile(f, backend="emulator")
    for _ in range(2):
        torch.manual_seed(1)
        wanted = f(X, other)
        torch.manual_seed(1)
        assert_same(fast(X, mine), wanted)
        assert torch.equal(mine.get_state(), other.get_state())


def test_the_order_of_draws_follows_the_strides_of_a_later_input() -> None:
    fast = stretto.compile(lambda x: torch.randn_like(x), backend="interpreter")
    for x in (torch.zeros(4, 20), torch.zeros(20, 4).T, torch.zeros(4, 20)):
        torch.manual_seed(1)
        wanted = torch.randn_like(x)
        torch.manual_seed(1)
        assert torch.equal(fast(x), wanted)


def test_a_run_that_fails_has_drawn_nothing() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.rand(3)
        if x.sum() < 0:
            raise ValueError("negative")
        return x + y

    fast = stretto.compile(f, backend="cpu")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="negative"):
        fast(-torch.ones(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_capture_draws_nothing() -> None:
    before = torch.get_rng_state()
    stretto.compile(fills, (X,), backend="interpreter")
    assert torch.equal(torch.get_rng_state(), before)


def new_generator(x: Tensor) -> Tensor:
    return x + torch.rand(3, 4, generator=torch.Generator().manual_seed(1))


def state_of_generator(x: Tensor) -> Tensor:
    torch.set_rng_state(torch.get_rng_state())
    return x


def order_of_operands(x: Tensor) -> Tensor:
    return torch.multinomial(x.softmax(0).T, 2)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (new_generator, "made in the compiled function"),
        (state_of_generator, "state of a generator"),
        (order_of_operands, "call contiguous"),
    ],
)
def test_what_is_refused(fn: Callable[..., Any], reason: str) -> None:
    with pytest.raises(stretto.CaptureError, match=reason) as caught:
        stretto.compile(fn, (X,), backend="interpreter")
    assert caught.value.location is not None
    assert caught.value.location.file == __file__

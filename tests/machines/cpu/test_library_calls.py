"""Library calls side by side: random graphs of them against eager, threads of torch, errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import stretto
from stretto.options import Options

WIDTH = 24
WAYS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: a @ b.T / WIDTH,
    lambda a, b: torch.relu(a) + b,
    lambda a, b: torch.cat([a[:, :12], b[:, 12:]], dim=1),
    lambda a, b: torch.softmax(a, dim=1) * b,
    lambda a, b: torch.nn.functional.max_pool2d(a[None, None], 3, 1, 1)[0, 0] - b,
    lambda a, b: a.clone().mul_(b.sum(dim=1, keepdim=True)).tanh(),
)


def options(threads: int, cache: Path, **others: object) -> Options:
    return Options(library=("*",), threads=threads, cache_dir=cache, **others)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def graph(seed: int, size: int = 14) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Operators on values that are drawn among the latest ones; some change memory in place."""
    draws = random.Random(seed)
    steps = [(draws.choice(WAYS), draws.random(), draws.random()) for _ in range(size)]
    changed = draws.randrange(2, size)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        values = [x, x.T.contiguous()]
        for number, (way, first, second) in enumerate(steps):
            latest = values[-5:]
            a, b = latest[int(first * len(latest))], latest[int(second * len(latest))]
            values.append(way(a, b))
            if number == changed:
                values[-2][:4] = values[-1][4:8]
        return tuple(values[-4:])

    return run


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_random_graphs(seed: int, threads: int, cache: Path):
    function, x = graph(seed), torch.randn(WIDTH, WIDTH)
    compiled = stretto.compile(function, options=options(threads, cache))
    for _ in range(3):
        for found, wanted in zip(compiled(x.clone()), function(x.clone()), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", [2, 3])
def test_random_graphs_on_the_emulator(seed: int):
    """Whose interleavings are drawn, and which finds what no wait orders."""
    function, x = graph(seed, 8), torch.randn(WIDTH, WIDTH)
    compiled = stretto.compile(
        function, backend="emulator", options=Options(library=("*",), units=3)
    )
    for found, wanted in zip(compiled(x.clone()), function(x.clone()), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def branches(x: Tensor) -> Tensor:
    return torch.cat([torch.relu(x @ x) @ x, torch.tanh(x @ x.T) @ x])


def test_the_threads_of_torch_are_as_before(cache: Path):
    before, x = torch.get_num_threads(), torch.randn(64, 64)
    compiled = stretto.compile(branches, options=options(2, cache))
    compiled(x)
    assert torch.get_num_threads() == before
    found: list[int] = []
    fresh = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    assert found == [before]


def test_several_python_threads_call_at_once(cache: Path):
    compiled, x = stretto.compile(branches, options=options(2, cache)), torch.randn(64, 64)
    wanted = branches(x)
    compiled(x)
    found: list[bool] = []

    def call() -> None:
        for _ in range(5):
            found.append(torch.allclose(compiled(x), wanted, rtol=1e-3, atol=1e-3))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 15


def test_draws_keep_their_order(cache: Path):
    def function(x: Tensor) -> Tensor:
        return torch.cat([torch.rand(8, 8) @ x, torch.rand(8, 8) + x, torch.randn(8, 8) * x])

    compiled, x = stretto.compile(function, options=options(2, cache)), torch.randn(8, 8)
    for seed in range(3):
        torch.manual_seed(seed)
        wanted = function(x), torch.rand(1)
        torch.manual_seed(seed)
        found = compiled(x), torch.rand(1)
        torch.testing.assert_close(found, wanted)


def test_the_first_failing_call_raises(cache: Path):
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.linalg.cholesky(x), torch.linalg.inv(y), torch.relu(x @ y)

    compiled = stretto.compile(function, options=options(2, cache))
    good, x, y = torch.eye(4), -torch.eye(4), torch.zeros(4, 4)
    for arguments in ((x, y), (x, good), (good, y)):
        with pytest.raises(RuntimeError) as wanted:
            function(*arguments)
        with pytest.raises(RuntimeError) as found:
            compiled(*arguments)
        assert str(wanted.value).split(":")[0] in str(found.value)
    torch.testing.assert_close(compiled(good, good), function(good, good))


def test_operators_that_are_left_to_torch(cache: Path):
    x = torch.randn(16, 16)
    some = stretto.compile(branches, options=Options(library=("aten.relu",), cache_dir=cache))
    assert torch.allclose(some(x), branches(x), atol=1e-4)
    text = str(some.explain())
    assert "left to torch by Options.library" in text
    assert "aten.tanh" not in text

"""Tensors that grow by `cat` from one iteration to the next: caches, beams, what CTC keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stretto
from stretto.frontends.python import capture
from stretto.ir.ops import ListExtendOp, TensorOp
from stretto.options import Options
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline


def check(function: Callable[..., Any], *calls: tuple[Any, ...], backend: str = "emulator") -> None:
    compiled = stretto.compile(function, backend=backend)
    with torch.no_grad():
        for args in calls:
            torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-4, atol=1e-5)


def cache(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> Any:
    """A query over a cache of keys and values, which begins empty."""
    k, v = torch.zeros(2, 0, 4), torch.zeros(2, 0, 4)
    h = x
    for _ in range(int(t)):
        q = (h @ w).view(2, 1, 4)
        k = torch.cat([k, q], 1)
        v = torch.cat([v, h.view(2, 1, 4)], dim=1)
        p = torch.softmax((q @ k.transpose(1, 2)) / 2, -1)
        h = (p @ v).view(2, 4) + x
    return h, k, v


CACHE = [(torch.randn(2, 4), torch.randn(4, 4), torch.tensor(t)) for t in (7, 0, 1, 12)]


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
def test_a_cache_of_keys_and_values(backend: str) -> None:
    check(cache, *CACHE, backend=backend)


def test_it_grows_in_place() -> None:
    """Each iteration puts one row to the end of each list; nothing is concatenated."""
    program = run_passes(capture(cache, CACHE[0], {}, Options()).program, pipeline())
    (loop,) = [op for op in program.main.body.ops if op.name == "for"]
    inside = [op for block in loop.blocks for op in block.walk()]
    assert not [op for op in inside if isinstance(op, TensorOp) and "cat" in op.target]
    rows = [op.rows.tensor.shape for op in inside if isinstance(op, ListExtendOp)]
    assert rows == [(1, 2, 4), (1, 2, 4)]


def collapse(x: torch.Tensor) -> torch.Tensor:
    """What differs from the item before it, as CTC keeps it."""
    kept, last = x[:0], torch.tensor(-1)
    for i in range(x.shape[0]):
        if x[i] != last:
            kept = torch.cat([kept, x[i : i + 1]])
        last = x[i]
    return kept


def beams(scores: torch.Tensor, t: torch.Tensor) -> Any:
    found = torch.zeros(3, 1, dtype=torch.int64)
    total = torch.zeros(3)
    for i in range(int(t)):
        best = (total[:, None] + scores[i]).reshape(-1).topk(3)
        total = best.values
        found = torch.cat([found[best.indices // 5], (best.indices % 5)[:, None]], 1)
    return found, total


def doubled(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 20:
        x = torch.cat([x, x])
    return x


def test_growth_under_a_condition() -> None:
    check(collapse, *((torch.tensor(([2, 2, 0, 1, 1] * 5)[:25]),), (torch.zeros(25).long(),)))


def test_beams_are_chosen_and_grow() -> None:
    check(beams, *((torch.randn(9, 3, 5), torch.tensor(t)) for t in (9, 0, 1)))


def test_a_tensor_that_doubles() -> None:
    check(doubled, (torch.ones(1),), (torch.ones(3),), (torch.ones(30),))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, past: Any) -> Any:
        q, k, v = self.w(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), (k, v)


class Decoder(torch.nn.Module):
    """Caches that are None before the first step, as decoders of libraries have them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Attention(), Attention()])

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> Any:
        past: list[Any] = [None, None]
        found: list[torch.Tensor] = []
        for _ in range(int(steps)):
            for number, layer in enumerate(self.layers):
                x, past[number] = layer(x, past[number])
            found.append(x)
        return torch.cat(found, 1), past


def test_caches_that_are_none_at_first() -> None:
    torch.manual_seed(0)
    check(Decoder().eval(), *((torch.randn(2, 1, 8), torch.tensor(t)) for t in (4, 1, 9)))


def test_a_write_behind_a_branch_is_not_lost() -> None:
    """The tensor that a branch leaves may be one from before it, or a longer one."""

    def written(x: torch.Tensor, t: torch.Tensor) -> Any:
        y = x[x > 0]
        z = torch.cat([y, x]) if t > 0 else y
        z += 1
        return z

    for t in (0, 1):
        check(written, (torch.randn(6), torch.tensor(t)))


def test_the_size_after_the_loop_is_known_at_the_call() -> None:
    def appended(x: torch.Tensor) -> Any:
        k = x[:2]
        for i in range(x.shape[0]):
            k = torch.cat([k, x[i : i + 1] * 2, x[i : i + 1]])
        return k, k.sum(1)

    compiled = stretto.compile(appended, backend="emulator", dynamic=True)
    for n in (6, 3, 20):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), appended(x))
    assert len(compiled.signatures) == 1


def test_what_only_grows_stays_as_long_as_before_the_loop() -> None:
    """So its last column is one column, as transformers' decoding takes it in each round."""

    def decoded(ids: torch.Tensor, keys: torch.Tensor) -> Any:
        finished = False
        while not finished:
            last = ids[:, -1:]
            keys = torch.cat([keys, last[..., None].expand(1, last.shape[1], 2)], -2)
            ids = torch.cat([ids, last + 1], -1)
            finished = (last > 6).all()
        return ids, keys

    keys = torch.zeros(1, 5, 2, dtype=torch.long)
    check(decoded, *((torch.tensor([[3, 1, first]]), keys) for first in (2, 9, 6)))


@pytest.mark.whole
def test_the_last_elements_of_what_only_grows_are_as_many_as_python_says() -> None:
    """So a condition on their number is one of Python, and an argument of torch that takes flags
    of Python only."""

    def decoded(ids: torch.Tensor, keys: torch.Tensor) -> Any:
        finished = False
        while not finished:
            last = ids[:, -1:]
            query = last[:, None, :, None].expand(1, 1, last.shape[1], 4) / 9.0
            keys = torch.cat([keys, query], -2)
            is_causal = query.shape[2] > 1
            out = torch.nn.functional.scaled_dot_product_attention(
                query, keys, keys, is_causal=is_causal and keys.shape[2] != query.shape[2]
            )
            chosen = (out.sum() > 0).long() + last
            ids = torch.cat([ids, chosen if ids[:, -2:].shape[1] == 2 else last], -1)
            finished = (last > 6).all()
        return ids, keys

    compiled = stretto.compile(decoded, backend="emulator")
    for first, n in ((2, 5), (9, 5), (6, 3), (2, 8)):
        args = (torch.tensor([[3, 1, first]]), torch.zeros(1, 1, n, 4))
        torch.testing.assert_close(compiled(*args), decoded(*args), rtol=1e-4, atol=1e-5)
    assert len(compiled.signatures) == 2, compiled.explain()


def test_a_condition_on_sizes_where_torch_takes_bools() -> None:
    def attends(x: torch.Tensor) -> torch.Tensor:
        q = x[None, None]
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=x.shape[0] > 3)

    compiled = stretto.compile(attends, backend="interpreter", dynamic=True)
    for n in (5, 7, 2, 3):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), attends(x), rtol=1e-4, atol=1e-5)
    assert len(compiled.signatures) == 2


def test_what_may_become_shorter_than_before_the_loop() -> None:
    def shortened(x: torch.Tensor, t: torch.Tensor) -> Any:
        y, few = torch.cat([x, x]), torch.tensor(0)
        while t > 0:
            y = y[y > 0] if t % 2 == 0 else torch.cat([y, y[-1:] - 2])
            if y.shape[0] < 3:
                few = few + 1
            t = t - 1
        return y, few

    x = torch.tensor([1.0, -1.0, -2.0])
    check(shortened, *((x, torch.tensor(t)) for t in (0, 1, 2, 3, 8)))


@pytest.mark.whole
def test_tensors_that_grow_by_the_same_amount_keep_their_distance() -> None:
    """A mask that is one element longer than a cache stays so, and Python knows it."""

    def decoded(mask: torch.Tensor, keys: torch.Tensor, other: torch.Tensor) -> Any:
        finished, total = False, torch.zeros(())
        while not finished:
            if mask.shape[0] - keys.shape[0] != 1 or other.shape[0] < keys.shape[0] - 1:
                raise ValueError("not as before the loop")
            total = total + (keys.sum(1) * mask[1:]).sum() + other.sum()
            mask = torch.cat([mask, mask.new_ones(1)])
            keys = torch.cat([keys, keys[-1:] + 1])
            other = torch.cat([other, other[:1]])
            finished = keys.sum() > 60
        return mask, keys, other, total

    compiled = stretto.compile(decoded, backend="emulator")
    for n in (3, 5, 1, 2):
        args = (torch.ones(n + 1), torch.ones(n, 2), torch.ones(n + 4))
        torch.testing.assert_close(compiled(*args), decoded(*args))
    assert "raise ValueError" not in compiled.explain()


def test_tensors_that_grow_by_other_amounts_part() -> None:
    def grown(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, t: torch.Tensor) -> Any:
        while t > 0:
            a, b = torch.cat([a, a[:1]]), torch.cat([b, b[:2]])
            c = torch.cat([c, c[c > 0]]) if t > 2 else torch.cat([c, c[:1]])
            t = t - 1
        return a, b, c, a.sum() + b.sum() + c.sum()

    x = torch.tensor([1.0, -1.0, 2.0])
    check(grown, *((x, x[:2], x, torch.tensor(t)) for t in (0, 1, 2, 4)))


class KeptKeys:
    """Keys of one layer, which are there from its first use on, as in caches of transformers."""

    def __init__(self) -> None:
        self.keys: Any = None

    def update(self, k: torch.Tensor) -> torch.Tensor:
        self.keys = k if self.keys is None else torch.cat([self.keys, k], -2)
        return self.keys


class Cache:
    def __init__(self) -> None:
        self.layers: list[KeptKeys] = []

    def update(self, k: torch.Tensor, layer: int) -> torch.Tensor:
        while len(self.layers) <= layer:
            self.layers.append(KeptKeys())
        return self.layers[layer].update(k)


TABLE = torch.linspace(-1, 1, 36).reshape(6, 6).sin()


def decoded(x: torch.Tensor, limit: int, stop: int) -> torch.Tensor:
    """Greedy decoding: the first token makes the cache, and one of the tokens ends the loop."""
    tokens, kept = x, None
    for _ in range(limit):
        kept = Cache() if kept is None else kept
        h = TABLE[tokens[:, -1:]]
        h = h + kept.update(h, 0).mean(1, keepdim=True)
        h = h + kept.update(h @ TABLE, 1).sum(1, keepdim=True)
        token = (h[:, -1] * 7).sin().argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, token], 1)
        if (token == stop).all():
            break
    return tokens


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
def test_a_loop_that_may_stop_is_kept_behind_its_first_round(backend: str) -> None:
    """The rounds behind the first one are one loop, although the first may end it."""
    compiled = stretto.compile(decoded, backend=backend)
    for limit, stop in ((9, 9), (12, 9), (2, 9), (17, 9)):
        x = torch.tensor([[limit % 6]])
        assert torch.equal(compiled(x, limit, stop), decoded(x, limit, stop))
    x = torch.tensor([[3]])
    ends = int(decoded(x, 9, 9)[0, 3])
    assert torch.equal(compiled(x, 9, ends), decoded(x, 9, ends))
    program = capture(decoded, (x, 9, 9), {}, Options()).program
    assert [op.name for op in program.main.body.walk()].count("while") == 1


def chain_until(x: torch.Tensor, n: int, limit: float) -> torch.Tensor:
    """Grows behind the condition under which it stops, which may hold at once."""
    kept = torch.cat([x, x[:, :0]], 1)
    for _ in range(n):
        last = kept.sum(1, keepdim=True)
        if (last > limit).all():
            break
        kept = torch.cat([kept, last], 1)
    return kept


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
def test_what_grows_behind_the_condition_under_which_it_stops(backend: str) -> None:
    x = torch.rand(1, 4)
    calls = [(x, n, limit) for n, limit in ((9, 50.0), (7, 0.0), (0, 50.0), (1, 50.0), (9, 4.0))]
    check(chain_until, *calls, backend=backend)


def by_class(x: torch.Tensor, classes: torch.Tensor) -> Any:
    """Each round has another size, and the first one makes the variable."""
    for i, c in enumerate(torch.unique(classes)):
        rows = x[classes == c]
        if i == 0:
            out = rows
        else:
            out = torch.cat((out, rows * 2))
    return out


def last_found(x: torch.Tensor, classes: torch.Tensor) -> Any:
    """The rows of some round, if there is one, in one of two types."""
    found, other, twice = None, None, None
    for c in classes:
        rows = x[x > c]
        if rows.sum() > 4:
            found = rows
        elif c > 2:
            found = rows.long()
        other, twice = twice, rows if other is None else torch.cat((other, rows))
    return found, other, twice


def with_fixed(x: torch.Tensor, classes: torch.Tensor) -> Any:
    """The size is a number in the first round only."""
    kept: Any = None
    i = 0
    while i < classes.sum():
        if i == 0:
            kept = x[:2]
        else:
            kept = torch.cat((kept, x[x > i])) if i > 1 else x[x > 1]
        i += 1
    return x if kept is None else kept


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("f", [by_class, last_found, with_fixed])
def test_places_that_hold_nothing_before_a_loop(f: Callable[..., Any], backend: str) -> None:
    x = torch.arange(6.0)
    classes = [[1, 2, 1, 1, 2, 5], [3, 3, 3, 3, 3, 3], [0, 4, 0, 1, 4, 0]]
    check(f, *((x, torch.tensor(each)) for each in classes), backend=backend)
    with pytest.raises(UnboundLocalError):
        stretto.compile(by_class, backend=backend)(x[:0], torch.tensor([]))

"""The Python constructs of `language.py`, and what a drop-in must keep, on the emulated GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import stretto
from stretto.options import Options
from tests.e2e.machines import CUDA, check, on_cuda
from tests.e2e.test_language import FUNCTIONS
from tests.e2e.test_semantics import A, B, Counter, countdown, in_threads, structured
from tests.frontends.python.checks import assert_same
from tests.sampling import every, sampled


@pytest.mark.whole
@pytest.mark.parametrize("name", every(2, list(FUNCTIONS)))
def test_language(name: str) -> None:
    function, found = FUNCTIONS[name]
    program = on_cuda(check(function, *found, backend=CUDA, units=5))
    assert program.is_single


@pytest.mark.whole
@pytest.mark.parametrize("units", sampled([1, 2], [2]))
@pytest.mark.parametrize("name", ["return_from_nested_loops", "recursion_in_loops_in_recursion"])
def test_few_units(name: str, units: int) -> None:
    function, found = FUNCTIONS[name]
    check(function, *found, backend=CUDA, units=units)


# ---- a drop-in -------------------------------------------------------------------------------


def test_structures_of_results() -> None:
    check(structured, (A,), (B,), backend=CUDA)


def test_changed_inputs_are_written_back() -> None:
    def f(x: Tensor, cache: Tensor) -> Tensor:
        x.add_(1)
        cache[1] = x
        return x * cache

    check(f, (A, torch.zeros(2, 3)), (B, torch.ones(2, 3)), backend=CUDA)


@torch.no_grad()
def test_changed_buffers_are_written_back() -> None:
    model, expected = Counter(), Counter()
    fast = stretto.compile(model, backend=CUDA)
    for x in (A, B, A):
        assert_same(fast(x), expected(x))
        assert_same(dict(model.named_buffers()), dict(expected.named_buffers()))


@torch.no_grad()
def test_inputs_that_are_views() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return y + 1, x

    fast = stretto.compile(f, backend=CUDA)
    for make in (
        lambda a, b: (a[0], b[:, 0]),
        lambda a, b: (a.t()[1], b[1]),
        lambda a, b: (a.view(-1)[1:4], b[2]),  # where no vector begins
    ):
        ours = torch.arange(9.0).view(3, 3), torch.ones(3, 3)
        theirs = copy.deepcopy(ours)
        assert_same(fast(*make(*ours)), f(*make(*theirs)))
        assert_same(ours, theirs)


@torch.no_grad()
def test_results_are_fresh_memory_in_each_call() -> None:
    fast = stretto.compile(countdown, backend=CUDA, options=Options(units=2))
    n = torch.tensor(3)
    first, second = fast(A, n), fast(A, n)
    for part in torch.utils._pytree.tree_leaves(first):
        part.fill_(-7)
    assert_same(second, countdown(A, n))
    assert_same(fast(B, n), countdown(B, n))


@torch.no_grad()
def test_a_changed_constant_is_used_where_it_is() -> None:
    weight = torch.ones(3)
    model = torch.nn.Linear(3, 3)
    fast = stretto.compile(lambda x: model(x) * weight, backend=CUDA)
    for _ in range(2):
        assert_same(fast(A), model(A) * weight)
        model.weight.mul_(-2)
        weight.add_(1)


@torch.no_grad()
def test_called_from_many_threads_at_once() -> None:
    fast = stretto.compile(countdown, backend=CUDA, options=Options(units=3))

    def work(number: int) -> None:
        for step in range(3):
            n, x = torch.tensor((number * 3 + step * 5) % 9), torch.full((3,), float(number))
            assert_same(fast(x, n), countdown(x, n))

    in_threads(work, 3)
    assert len(fast.signatures) == 1

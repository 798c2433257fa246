"""Programs with library calls on the emulated GPU: launches, calls and control on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import stretto
from stretto.machines.cuda.host import PlanExecutable
from stretto.options import Options
from stretto.schedule.plan import make_plan
from tests.e2e.machines import CUDA, check, on_cuda, spread
from tests.e2e.test_zoo import assert_close, made, tensors
from tests.sampling import sampled

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
W = torch.randn(7, 7, generator=torch.Generator().manual_seed(1)) / 3


def number(value: int) -> Tensor:
    return torch.tensor(value)


def library(x: Tensor) -> Tensor:
    """The largest so far in each row: no kernel is generated for it."""
    return x.cummax(1)[0]


# ---- where calls may be ------------------------------------------------------------------------


def at_top_level(x: Tensor) -> tuple[Tensor, ...]:
    values, places = torch.cummax(x * 2, 1)
    image = functional.conv_transpose2d(x.view(1, 1, 5, 7), W[:3, :3].reshape(1, 1, 3, 3))
    return values + 1, places * 2, image.relu(), library(image[0, 0])


def only_library(x: Tensor) -> Tensor:
    return library(x)


def of_a_parameter(x: Tensor) -> Tensor:
    return torch.linalg.solve(W, x.t()) + torch.special.bessel_j0(W[:, :5] * x[0, 0])


def in_a_loop(x: Tensor) -> Tensor:
    for i in range(5):
        x = library(torch.tanh(x @ W)) + x * i
    return x


def in_a_loop_of_unknown_length(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Both carried tensors trade places, an odd number of times for an odd n."""
    y = x * 0
    for i in range(n):
        x, y = library(x + i) * 0.5, x - y
    return x, y


def in_a_while_loop(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    while x.abs().sum() < 300:
        x = library(x) * 1.5 + 1
        steps += 1
    return x, steps


def in_a_branch(x: Tensor) -> Tensor:
    y = x @ W
    if y.sum() > 0:
        y = library(y) + 1
    elif x[0, 0] > 0:
        y = y - 2
    else:
        y = library(-y)
    return y * 2


def in_a_branch_of_a_loop(x: Tensor, n: Tensor) -> Tensor:
    total = x
    for i in range(n):
        total = total * 0.5 + i
        if i % 3 == 1:
            total = library(total)
        if total[0, 0] > 3:
            break
    return total


def helper(x: Tensor, n: Tensor) -> Tensor:
    if n > 0:
        y = helper(library(x) * 0.5, n - 1)
        return y + helper(x + 1, n - 2)
    return x * 2


def in_a_recursion(x: Tensor, n: Tensor) -> Tensor:
    return helper(x, n) + 1


def descend(x: Tensor, n: Tensor) -> Tensor:
    if n > 0:
        for _ in range(3):
            x = torch.tanh(x + 0.5)
        return descend(x, n - 1) + x
    return x


def beside_a_recursion(x: Tensor, n: Tensor) -> Tensor:
    """The recursion stays on the device."""
    return library(descend(x, n)) + descend(library(x), n)


def rotating_before_and_after(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """A loop of the device lets two buffers trade places; so does the host's around it."""
    h, c = x, x * 2
    for _ in range(3):
        for i in range(n):
            h, c = torch.tanh(c @ W) + i, h * 0.5
        h = library(h) + c
        for i in range(n):
            h, c = c - i, h * 0.25
    return h, c


def growing(x: Tensor, n: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    rows = [x[0]]
    for i in range(n):
        x = library(x) * 0.5 + i
        rows.append(x[1])
    stacked = torch.stack(rows)
    return stacked.sort(0)[0] + 1, rows, stacked.sum(0)


def cache_between_calls(x: Tensor, n: Tensor) -> Tensor:
    cache = torch.zeros(8, 7)
    for i in range(n):
        cache[i] = library(cache)[7] + x[0] * i
    return cache


CASES: dict[Callable[..., Any], tuple[tuple[Any, ...], ...]] = {
    at_top_level: ((X,), (-X,)),
    only_library: ((X,), (-X,)),
    of_a_parameter: ((X,), (-X,)),
    in_a_loop: ((X,), (-X,)),
    in_a_loop_of_unknown_length: ((X, number(3)), (X, number(0)), (X, number(4)), (X, number(1))),
    in_a_while_loop: ((X,), (X * 100,), (-X,)),
    in_a_branch: ((X,), (-X,), (X + 1,), (X - 1,)),
    in_a_branch_of_a_loop: ((X, number(5)), (X, number(0)), (X + 9, number(3))),
    in_a_recursion: ((X, number(3)), (X, number(0)), (X, number(1))),
    beside_a_recursion: ((X, number(2)), (X, number(0)), (X, number(7))),
    rotating_before_and_after: ((X, number(1)), (X, number(0)), (X, number(2)), (X, number(3))),
    growing: ((X, number(2)), (X, number(0)), (X, number(9))),
    cache_between_calls: ((X, number(3)), (X, number(0)), (X, number(8))),
}


ALL = [(function, units) for function in CASES for units in (5, 1)]
FEW = [case for number, case in enumerate(ALL) if case[1] == 5 or number % 3 == 0]


@pytest.mark.parametrize(
    ("function", "units"), sampled(ALL, FEW), ids=lambda value: getattr(value, "__name__", None)
)
def test_library_calls(function: Callable[..., Any], units: int) -> None:
    program = on_cuda(check(function, *CASES[function], backend=CUDA, units=units))
    assert not program.is_single
    assert program.library_runs > 0


# ---- what is counted ---------------------------------------------------------------------------


def counted(function: Callable[..., Any], *arguments: Tensor) -> tuple[PlanExecutable, list[int]]:
    """One more call of a compiled function: its launches, library calls and reads."""
    compiled = check(function, arguments, backend=CUDA, units=2)
    program = on_cuda(compiled)
    before = program.launches, program.library_runs, program.reads
    with torch.no_grad():
        compiled(*arguments)
    after = program.launches, program.library_runs, program.reads
    return program, [b - a for a, b in zip(before, after, strict=True)]


def test_counts_of_straight_code() -> None:
    program, counts = counted(lambda x: library(torch.tanh(x)) + 1, X)
    assert counts == [2, 1, 0]
    assert not program.plan.decides_on_host
    assert len(program.sources) == 2


def test_counts_of_a_call_alone() -> None:
    program, counts = counted(only_library, X)
    assert program.sources == ()
    assert counts[1:] == [1, 0]


def test_a_loop_of_known_length_needs_no_reads() -> None:
    _, (launches, runs, reads) = counted(in_a_loop, X)
    assert (runs, reads) == (5, 0)
    assert launches <= 12


def test_a_loop_of_unknown_length_reads_its_bounds() -> None:
    _, (_, runs, reads) = counted(in_a_loop_of_unknown_length, X, number(6))
    assert runs == 6
    assert 1 <= reads <= 2


def test_a_while_loop_reads_its_condition_in_every_trip() -> None:
    _, (_, runs, reads) = counted(in_a_while_loop, X)
    assert reads == runs + 1


def test_only_what_has_a_call_inside_leaves_the_device() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        for _ in range(n):
            while x.sum() < 10:
                x = x + 1
        return library(x).sum(1)

    _, counts = counted(f, X, number(20))
    assert counts == [2, 1, 1]  # asks where the loops have left x


# ---- large programs ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lstm", "seq2seq", "attention", "blockdrop"])
def test_a_program_that_is_too_large_for_one_launch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stretto.schedule.plan_search.make_plan", functools.partial(make_plan, most_kernels=2)
    )
    model, inputs, wanted = made(name)
    compiled = stretto.compile(model, backend=CUDA, options=Options(units=3))
    with spread(), torch.no_grad():
        for _ in range(4):
            assert_close(tensors(compiled(*inputs)), wanted)
    program = on_cuda(compiled)
    assert not program.is_single
    assert len(program.sources) > 2
    assert program.launches > 4
    assert program.library_runs == 0

"""`stretto.concurrent` and `stretto.phase`: forks and phases in a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import stretto
from stretto.batching.batched import Batched
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.levels.tables import BLOCK, ROWS
from stretto.batching.passes.concurrent import Concurrent
from stretto.batching.passes.phases import FindPhases
from stretto.batching.passes.pipeline import BatchPasses, passes
from stretto.errors import CaptureError
from stretto.ir.data import ForkLoopOp, ForkOp, PhaseOp
from tests.batching.passes.checking import check

ALL = tuple(passes(BatchPasses()))


def inputs(count: int = 3) -> list[Tensor]:
    torch.manual_seed(count)
    return list(torch.randn(count, 4).unbind())


def decide(x: Tensor, seen: list[int]) -> Tensor:
    """Nobody can prove of two calls with one list that they are independent."""
    if x.sum() > 0.0:
        seen[0] = 1  # any order gives the same
        return decide(x - 1.0, seen)
    return x


def forks(program: InstanceProgram) -> int:
    return sum(isinstance(s, ForkOp) for s in program.walk())


def loops(program: InstanceProgram) -> int:
    return sum(isinstance(s, ForkLoopOp) for s in program.walk())


def phases(program: InstanceProgram) -> list[int]:
    return [s.number for s in program.walk() if isinstance(s, PhaseOp)]


def test_eager() -> None:
    assert stretto.concurrent(1, "a") == (1, "a")
    assert stretto.concurrent() == ()
    assert stretto.phase() is None


def test_calls_that_are_said_to_be_independent() -> None:
    def said(x: Tensor) -> tuple[Tensor, Tensor, int]:
        seen = [0]
        a, b = stretto.concurrent(decide(x, seen), decide(x + 1, seen))
        return a, b, seen[0]

    def not_said(x: Tensor) -> tuple[Tensor, Tensor, int]:
        seen = [0]
        a, b = decide(x, seen), decide(x + 1, seen)
        return a, b, seen[0]

    assert forks(check(said, (inputs(),), *ALL)) == 1
    assert forks(check(not_said, (inputs(),), *ALL)) == 0
    assert forks(check(said, (inputs(),), Concurrent(finds=False))) == 0


def test_what_does_not_wait_is_no_fork() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    def plain(x: Tensor) -> Tensor:
        a, b, n = stretto.concurrent(double(x), double(x + 1), 3)
        return a + b * n

    program = check(plain, (inputs(),), *ALL)
    assert forks(program) == 0
    assert len(program.blocks) == 1  # bodies of a fork would be blocks of their own


def test_arguments_that_need_each_other_are_a_sequence() -> None:
    def needs(x: Tensor) -> Tensor:
        a, b = stretto.concurrent((y := decide(x, [0])), decide(y + 1, [0]))
        return a + b

    assert forks(check(needs, (inputs(),), *ALL)) == 0


def test_an_argument_that_always_raises() -> None:
    def wrong(x: Tensor) -> Tensor:
        raise ValueError("wrong")

    def raises(x: Tensor) -> tuple[Tensor, Tensor]:
        return stretto.concurrent(decide(x, [0]), wrong(x))

    check(raises, (inputs(),), *ALL)


def test_a_list_of_arguments() -> None:
    def listed(xs: list[Tensor]) -> tuple[Tensor, ...]:
        return stretto.concurrent(*[decide(x, [0]) for x in xs])

    def generated(xs: list[Tensor]) -> tuple[Tensor, ...]:
        return stretto.concurrent(*(decide(x, [0]) for x in xs if x.dim() == 1))

    def known(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return stretto.concurrent(*[decide(item, [0]) for item in (x, y)], x + y)

    def kept(xs: list[Tensor]) -> tuple[Tensor, ...]:
        return stretto.concurrent(*xs, *xs)

    lists = [inputs(), [], inputs()[:1]]
    for function in (listed, generated):
        assert loops(check(function, (lists,), *ALL)) == 1
    assert forks(check(known, (inputs(), inputs()), *ALL)) == 1
    check(kept, (lists,), *ALL)


def test_keywords_are_refused() -> None:
    def named(x: Tensor) -> tuple[Tensor, ...]:
        return stretto.concurrent(values=x)  # pyright: ignore[reportCallIssue]

    with pytest.raises(CaptureError, match="takes no keywords"):
        Batched(named)(inputs())


def test_phases_are_those_of_the_user() -> None:
    def staged(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = torch.tanh(x)
        stretto.phase()
        y = torch.sigmoid(x)
        stretto.phase()
        return y * 2

    def found(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = torch.tanh(x)
        return torch.sigmoid(x)

    columns = (inputs(), [0, 3, 1])
    assert phases(check(staged, columns, FindPhases())) == [1, 2]
    assert phases(check(staged, columns, FindPhases(finds=False))) == []
    assert phases(check(found, columns, FindPhases())) == [1]


def test_operators_stay_before_the_phase_that_follows_them() -> None:
    def staged(x: Tensor, n: int) -> Tensor:
        y = torch.tanh(x)
        stretto.phase()
        if n > 1:
            return torch.sigmoid(y) + 1
        return torch.exp(y)

    program = check(staged, (inputs(), [0, 3, 1]), *ALL)
    assert phases(program) == [1] and len(program.blocks) == 3


def test_phases_of_branches_and_functions() -> None:
    def inner(x: Tensor, n: int) -> Tensor:
        if n == 0:
            return x
        stretto.phase()
        return inner(torch.tanh(x), n - 1)

    def staged(x: Tensor, n: int) -> Tensor:
        if n > 1:
            stretto.phase()
        y = inner(x, n)
        stretto.phase()
        return y + 1

    program = check(staged, (inputs(), [0, 3, 1]), FindPhases())
    assert phases(program) == [
        1,
        3,
        2,
    ]  # functions in the order of the text


def test_a_phase_runs_after_the_one_before_it_for_all_instances() -> None:
    def staged(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = torch.tanh(x)
        stretto.phase()
        return torch.sigmoid(x)

    columns = [inputs(7), [5, 0, 1, 3, 2, 2, 4]]
    many = Batched(staged)
    results = many(*columns)
    for x, n, found in zip(*columns, results, strict=True):
        assert torch.allclose(staged(x, n), found, rtol=1e-4, atol=1e-5)
    assert many._last is not None and many._last.compiled is not None  # pyright: ignore[reportPrivateUsage]
    (steps,) = many._last.compiled.steps  # pyright: ignore[reportPrivateUsage]
    *before, last = steps.tolist()
    assert last[ROWS] == 7
    assert all(step[BLOCK] != last[BLOCK] for step in before)
    assert [step[ROWS] for step in before] == [6, 5, 3, 2, 1]


def test_phases_that_are_found_do_not_keep_calls_apart() -> None:
    def between(x: Tensor) -> tuple[Tensor, Tensor]:
        a = decide(x, [0])
        y = torch.tanh(a)
        b = decide(x + 1, [0])
        return y, b

    assert forks(check(between, (inputs(),), *ALL)) == 1


def test_concurrent_end_to_end() -> None:
    def said(x: Tensor) -> tuple[Tensor, Tensor, int]:
        seen = [0]
        a, b = stretto.concurrent(decide(x, seen), decide(x + 1, seen))
        return decide(a + b, [0]), b, seen[0]

    many = Batched(said)
    for count in (0, 1, 7):
        xs = inputs(count) if count else []
        for x, found in zip(xs, many(xs), strict=True):
            a, b, seen = said(x)
            assert torch.allclose(a, found[0], atol=1e-5) and torch.allclose(b, found[1], atol=1e-5)
            assert found[2] == seen
    text = many.explain()
    assert "fork {" in text
    assert "left as it is" in text and "the second needs" in text

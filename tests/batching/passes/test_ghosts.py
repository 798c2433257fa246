"""Ghost operators: what follows a branch is one step, whichever arm an instance has taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stretto.batching.batched import Batched
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.passes.pipeline import BatchPasses, passes
from stretto.ir.data import RecordOp
from tests.batching.passes.checking import check

A, B, C = (nn.Linear(4, 4) for _ in range(3))
X = [torch.linspace(-1, 1, 4) * n for n in range(1, 7)]
KINDS = [0, 1, 2, 3, 1, 0]
ALL = tuple(passes(BatchPasses()))


def finish(items: list[Tensor]) -> Tensor:
    """A loop behind the branch keeps what stands there out of its arms."""
    total = torch.zeros(4)
    for item in items:
        total = total + item
    return total


def skipped(x: Tensor, n: int) -> Tensor:
    if n > 1:
        x = torch.tanh(A(x))
    y = B(x)
    return finish([y, y])


def nested(x: Tensor, n: int) -> Tensor:
    if n > 0:
        x = torch.tanh(A(x))
        if n > 1:
            x = torch.tanh(C(x))
            if n > 2:
                x = torch.tanh(A(x))
    y = B(x)
    return finish([y, y])


def by_match(x: Tensor, n: int) -> Tensor:
    match n:
        case 0:
            pass
        case 1:
            x = A(x)
        case 2:
            x = C(x)
        case _:
            x = x + 1
    y = B(x)
    return finish([y, y])


def two_values(x: Tensor, n: int) -> Tensor:
    y = x
    if n > 1:
        x = torch.tanh(A(x))
    else:
        y = torch.tanh(C(y))
    z = B(x) + y
    return finish([z, z])


def in_a_loop(x: Tensor, n: int) -> Tensor:
    for i in range(4):
        if i % (n + 1) == 0:
            x = torch.tanh(A(x))
        y = B(x)
        x = finish([y, y])
    return x


def in_concurrent_iterations(x: Tensor, n: int) -> list[Tensor]:
    found = []
    for i in range(4):
        y = x * i
        if i % (n + 1) == 0:
            y = torch.tanh(A(y))
        z = B(y)
        if z.sum() > 0:
            z = finish([z, z])
        found.append(z)
    return found


def with_a_decision(x: Tensor, n: int) -> Tensor:
    if n > 1:
        x = torch.tanh(A(x))
        if x.sum() > 0:
            x = C(x)
    y = B(x)
    return finish([y, y])


def early(x: Tensor, n: int) -> Tensor:
    if n == 0:
        return x
    x = torch.tanh(A(x))
    if n == 1:
        return x
    if n > 5:
        raise ValueError("five")
    return torch.tanh(C(x)) if n > 2 else A(x)


def inlined(x: Tensor, n: int) -> Tensor:
    y = B(early(x, n))
    return finish([y, y])


def with_a_return(x: Tensor, n: int) -> Tensor:
    if n == 1:
        return x
    if n > 1:
        x = torch.tanh(A(x))
    y = B(x)
    return finish([y, y])


def with_an_exception(x: Tensor, n: int) -> Tensor:
    if n > 1:
        x = torch.tanh(A(x))
    elif n == 1:
        raise ValueError("one")
    y = B(x)
    return finish([y, y])


def with_a_loop(x: Tensor, n: int) -> Tensor:
    if n > 1:
        for _ in range(n):
            x = torch.tanh(A(x))
    y = B(x)
    return finish([y, y])


def recursive(x: Tensor, n: int) -> Tensor:
    if n > 1:
        x = recursive(torch.tanh(A(x)), n - 1)
    y = B(x)
    return finish([y, y])


FUNCTIONS = [
    skipped, nested, by_match, two_values, in_a_loop, in_concurrent_iterations, with_a_decision,
    with_a_return, with_an_exception, with_a_loop, recursive, inlined,
]  # fmt: skip
ALIGNED = [
    skipped,
    nested,
    by_match,
    two_values,
    in_a_loop,
    with_a_return,
    with_an_exception,
    inlined,
]
LEFT_ALONE = [with_a_decision, with_a_loop, recursive]


def waiting(program: InstanceProgram) -> int:
    statements = (item for item in program.walk())
    return sum(isinstance(item, RecordOp) and bool(item.after) for item in statements)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_oracle_agrees(function: Callable[..., Any]) -> None:
    program = check(function, [X, KINDS], *ALL)
    if function in ALIGNED:
        assert waiting(program) > 0
    if function in LEFT_ALONE:
        assert waiting(program) == 0


@pytest.mark.whole
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_batch_agrees(function: Callable[..., Any]) -> None:
    pairs = [(x, n) for x, n in zip(X, KINDS, strict=True)]
    if function is with_an_exception:
        pairs = [(x, n) for x, n in pairs if n != 1]
    with torch.no_grad():
        wanted = [function(x, n) for x, n in pairs]
        found = Batched(function)([x for x, _ in pairs], [n for _, n in pairs])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def steps(function: Callable[..., Any], switches: BatchPasses) -> int:
    many = Batched(function, passes=switches)
    with torch.no_grad():
        many(X, KINDS)
    last = many._last  # pyright: ignore[reportPrivateUsage]
    assert last is not None and last.compiled is not None
    return sum(len(table) for table in last.compiled.steps)


@pytest.mark.whole
@pytest.mark.parametrize("function", [skipped, nested, by_match, inlined])
def test_the_continuation_is_one_step(function: Callable[..., Any]) -> None:
    assert steps(function, BatchPasses()) < steps(function, BatchPasses(ghosts=False))

"""Calls and iterations that do not depend on each other wait at the same time, and no others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stretto.batching.batched import Batched
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.passes.concurrent import Concurrent
from stretto.batching.passes.effects import OTHER, AllEffects
from stretto.batching.passes.pipeline import BatchPasses
from stretto.ir.core import Variable
from stretto.ir.data import ForkLoopOp, ForkOp, InvokeOp
from tests.batching.passes.checking import check, program_of, same

W = torch.linspace(-1, 1, 16).reshape(4, 4)


@dataclass
class Grown:
    value: Tensor
    children: list[Grown] = field(default_factory=list)


def grow(x: Tensor, depth: int) -> Tensor:
    """A number of recursive calls that the tensor decides."""
    if depth == 0 or x.sum() > 1.0:
        return x
    return torch.tanh(grow(x @ W, depth - 1)) + grow(x * 0.5, depth - 1)


def slow(x: Tensor, out: list[Tensor]) -> Tensor:
    """Decides, and stores in its argument."""
    if x.sum() > 0.0:
        out.append(x)
        return slow(x - 1.0, out)
    return x


def inputs(count: int = 3) -> list[Tensor]:
    torch.manual_seed(count)
    return list(torch.randn(count, 4).unbind())


def forks(program: InstanceProgram) -> list[int]:
    """How many bodies each fork has; 0 for a concurrent loop; in the order of the text."""
    statements = (s for s in program.walk())
    return [
        len(s.bodies) if isinstance(s, ForkOp) else 0
        for s in statements
        if isinstance(s, ForkOp | ForkLoopOp)
    ]


def made(function: Callable[..., Any], *columns: list[Any]) -> InstanceProgram:
    return check(function, columns, Concurrent())


# ---- calls


def test_two_calls() -> None:
    assert forks(made(grow, inputs(), [3, 2, 0])) == [2]


def test_what_stands_between_moves() -> None:
    def between(x: Tensor) -> tuple[Tensor, int, int]:
        a = grow(x, 2)
        twice = a * 2  # behind the fork, or into the first body
        n = 3  # before the fork
        b = grow(x + n, n)
        return a + b + twice, n, n

    assert forks(made(between, inputs())) == [2, 2]


def test_a_chain_stays_in_one_body() -> None:
    def chain(x: Tensor) -> Tensor:
        a = grow(x, 2)
        b = grow(x + 1, 2)
        c = grow(a, 2)  # needs the first alone
        return b + c + grow(b + c, 1)  # needs both

    assert forks(made(chain, inputs())) == [2, 2]


def test_a_call_that_needs_the_other_waits() -> None:
    def chain(x: Tensor) -> Tensor:
        return grow(grow(x, 2), 2)

    program = made(chain, inputs())
    assert forks(program) == [2]  # within grow
    assert any("the second needs" in remark.reason for remark in program.notes)


def test_calls_within_branches_and_after_decisions() -> None:
    def arms(x: Tensor) -> Tensor:
        p = torch.sigmoid(x)
        a = grow(x, 2) if p[0] > 0.5 else x
        b = grow(x - 1, 2) if p[1] > 0.5 else x
        return a + b

    assert forks(made(arms, inputs(7))) == [2, 2]


@pytest.mark.parametrize("shared", [True, False])
def test_calls_that_change_one_list(shared: bool) -> None:
    def both(x: Tensor) -> list[Tensor]:
        out: list[Tensor] = []
        other = out if shared else []
        slow(x + 1, out)
        slow(x + 2, other)
        return out + other

    assert forks(made(both, inputs())) == ([] if shared else [2])


def test_a_call_that_reads_what_the_other_changes() -> None:
    def reads(x: Tensor) -> tuple[Tensor, Tensor]:
        out = [x]
        slow(x + 3, out)
        return grow(x * len(out), 2), out[-1]

    program = made(reads, inputs())
    assert forks(program) == [2]
    assert any("changes a list" in remark.reason for remark in program.notes)


def test_objects_that_a_call_makes_are_its_own() -> None:
    def tree(x: Tensor, depth: int) -> Grown:
        node = Grown(torch.tanh(x @ W))
        if depth > 0 and node.value.sum() > -1.0:
            node.children.append(tree(x + 0.1, depth - 1))
            node.children.append(tree(x - 0.1, depth - 1))
        return node

    # What is appended has to be made by then: here the calls come before both appends.
    def apart(x: Tensor, depth: int) -> Grown:
        node = Grown(torch.tanh(x @ W))
        kept: list[Tensor] = []
        if depth > 0 and node.value.sum() > -1.0:
            left, right = apart(x + 0.1, depth - 1), apart(x - 0.1, depth - 1)
            kept.append(left.value)
            node.children = [left, right]
        return node

    assert forks(made(tree, inputs(), [2, 3, 0])) == []
    assert forks(made(apart, inputs(), [2, 3, 0])) == [2]


def test_calls_that_change_what_they_are_given() -> None:
    def mark(node: Grown, x: Tensor) -> Tensor:
        if x.sum() > 0:
            node.value = node.value + x
            return mark(node, x - 1.0)
        return node.value

    def same_node(x: Tensor) -> tuple[Tensor, Tensor]:
        node = Grown(x)
        return mark(node, x), mark(node, x + 1)

    def other_nodes(x: Tensor) -> tuple[Tensor, Tensor]:
        return mark(Grown(x), x), mark(Grown(x), x + 1)

    assert forks(made(same_node, inputs())) == []
    assert forks(made(other_nodes, inputs())) == [2]


def test_the_first_exception_in_the_order_of_the_program() -> None:
    def fails(x: Tensor, name: str, depth: int) -> Tensor:
        if x.sum() > 0 and depth > 0:
            return fails(x - 1, name, depth - 1)
        if x.sum() < 0:
            raise ValueError(name)
        return x

    def both(x: Tensor, items: list[int]) -> tuple[Tensor, Tensor, int]:
        a = fails(x, "first", 3)
        n = items[2]  # may raise, too
        b = fails(x - 1, "second", 1)
        return a, b, n

    columns = ([torch.ones(4), torch.zeros(4), -torch.ones(4)] * 2, [[1]] * 3 + [[1, 2, 3]] * 3)
    program = check(both, columns, Concurrent())
    assert forks(program) == [2]
    assert forks(check(both, columns, Concurrent(finds=False))) == []


def test_a_return_between_calls() -> None:
    def early(x: Tensor) -> Tensor:
        a = grow(x, 2)
        if a.sum() > 0:
            return a
        return grow(x + 1, 2)

    assert forks(made(early, inputs(7))) == [2]


def test_decisions_without_calls_are_left_alone() -> None:
    def decide(x: Tensor) -> int:
        p = torch.sigmoid(x)
        return int(p[0] > 0.5) + int(p[1] > 0.5)

    assert forks(made(decide, inputs())) == []


# ---- loops


def refine(x: Tensor) -> Tensor:
    """A while loop that a tensor decides; it is inlined."""
    while x.sum() < 1.0:
        x = x + torch.sigmoid(x)
    return x


def rows(x: Tensor, count: int) -> list[Tensor]:
    return [x - n for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_comprehension(count: int) -> None:
    def each(x: Tensor, n: int) -> list[Tensor]:
        return [refine(x - i) for i in range(n)]

    assert forks(made(each, inputs(), [count] * 3)) == [0]


def test_loop_with_an_accumulator() -> None:
    def total(x: Tensor, n: int) -> tuple[Tensor, list[Tensor], int]:
        found: list[Tensor] = []
        acc = x
        last = 0
        for i in range(n):
            y = refine(x - i)
            acc = acc * 0.5 + y  # in order, one after the other
            found.append(acc)
            last = i
        return acc, found, last

    assert forks(made(total, inputs(), [0, 1, 4])) == [0]


def test_iterations_that_need_each_other() -> None:
    def scan(x: Tensor, n: int) -> Tensor:
        for i in range(n):
            x = refine(x - i)
        return x

    program = made(scan, inputs(), [0, 1, 4])
    assert forks(program) == []
    assert any("one before it has made" in remark.reason for remark in program.notes)


def test_loops_in_loops_and_lists_of_an_iteration() -> None:
    def table(x: Tensor, n: int) -> list[list[Tensor]]:
        return [[refine(x - i - j) for j in range(i + 1)] for i in range(n)]

    assert forks(made(table, inputs(), [0, 1, 3])) == [0, 0]


def test_zip_enumerate_and_reversed() -> None:
    def several(x: Tensor, ns: list[int]) -> list[Tensor]:
        found = [refine(x - i + n) for i, n in enumerate(ns)]
        found += [refine(a - n) for a, n in zip(found, reversed(ns))]  # noqa: B905
        return found

    assert forks(made(several, inputs(), [[], [1], [3, 1, 2]])) == [0, 0]


def test_a_variable_that_is_used_after_its_loop() -> None:
    def last(x: Tensor, n: int) -> Tensor:
        y = x
        for i in range(n):
            y = refine(x - i)
        return y

    assert forks(made(last, inputs(), [0, 1, 4])) == [0]


def test_iterations_that_share_an_object() -> None:
    def shared(x: Tensor, n: int) -> tuple[list[Tensor], list[Tensor]]:
        out: list[Tensor] = []
        return [slow(x + i, out) for i in range(n)], out

    def own(x: Tensor, n: int) -> list[list[Tensor]]:
        found: list[list[Tensor]] = []
        for i in range(n):
            out: list[Tensor] = []
            slow(x + i, out)
            found.append(out)
        return found

    def longer(x: Tensor, n: int) -> list[Tensor]:
        found = [x]
        for i in range(n):
            found.append(refine(x - len(found) - i))
        return found

    assert forks(made(shared, inputs(), [0, 1, 4])) == []
    assert forks(made(own, inputs(), [0, 1, 4])) == [0]
    assert forks(made(longer, inputs(), [0, 1, 4])) == []


def test_break_continue_and_return_in_a_loop() -> None:
    def until(x: Tensor, n: int) -> list[Tensor]:
        found: list[Tensor] = []
        for i in range(n):
            if i == 2:
                break
            found.append(refine(x - i))
        return found

    def skip(x: Tensor, n: int) -> list[Tensor]:
        found: list[Tensor] = []
        for i in range(n):
            if i == 1:
                continue
            found.append(refine(x - i))
        return found

    def find(x: Tensor, n: int) -> Tensor:
        for i in range(n):
            y = refine(x - i)
            if y.sum() > 2.0:
                return y
        return x

    assert forks(made(until, inputs(), [0, 1, 4])) == [0]
    made(skip, inputs(), [0, 1, 4])
    assert forks(made(find, inputs(), [0, 1, 4])) == []


def test_exceptions_of_iterations() -> None:
    def fails(x: Tensor, limit: int) -> Tensor:
        while x.sum() < 1.0:
            x = x + torch.sigmoid(x)
            limit -= 1
            if limit == 0:
                raise ValueError(f"after {limit} of {x.shape[0]}")
        return x

    def each(x: Tensor, limits: list[int]) -> list[Tensor]:
        return [fails(x, limit) for limit in limits]

    columns = ([-torch.ones(4)] * 4, [[], [9, 2, 1], [1, 9], [9, 9]])
    assert forks(check(each, columns, Concurrent())) == [0]


def slowed(x: Tensor, limit: int) -> int:
    """The number of steps until a tensor is large; raises where that takes too long."""
    steps = 0
    while x.sum() < 1.0:
        x = x + torch.sigmoid(x)
        steps += 1
        if steps == limit:
            raise ValueError(f"more than {limit}")
    return steps


def histogram(x: Tensor, limits: list[int], counts: list[int]) -> list[int]:
    """Counts that iterations change one after the other; the list may be too short."""
    counts = counts[:]
    for n, limit in enumerate(limits):
        counts[slowed(x - n, limit)] += 1
    return counts


HISTOGRAMS = (
    [torch.ones(4), -torch.ones(4), torch.ones(4), torch.ones(4), -torch.ones(4), torch.ones(4)],
    [[9, 9, 9], [9, 9], [], [9, 9, 1, 1], [9, 1, 9], [1, 9, 9, 9]],
    [[0] * 9, [0] * 9, [], [0, 0], [0, 0], [5]],
)
"""Right ones, none, and such where a body or a count of an earlier or a later iteration fails."""


def test_counts_that_iterations_change() -> None:
    assert forks(check(histogram, HISTOGRAMS, Concurrent())) == [0]

    def until_full(x: Tensor, n: int) -> int:
        used = 0
        for i in range(n):
            used += slowed(x - i - used, 20)
        return used

    assert forks(made(until_full, inputs(), [0, 1, 4])) == []

    def guarded(x: Tensor, n: int) -> list[int]:
        used, found = 0, [0]
        for i in range(n):
            used += found[-1]
            if used > 3:
                raise ValueError(f"{used} in {i} rounds")
            found.append(slowed(x - i, 20))
        return found

    assert forks(made(guarded, inputs(), [0, 1, 4])) == []


def test_a_guard_that_is_carried_stays_before_what_it_guards() -> None:
    def budget(x: Tensor, costs: list[int]) -> list[int]:
        left, found = [6], [0]
        for n, cost in enumerate(costs):
            left[0] -= cost
            if left[0] < 0:
                raise ValueError(f"nothing left for {n}")
            found.append(slowed(x - n, 4))
        return found

    columns = ([torch.ones(4)] * 3 + [-torch.ones(4)], [[1, 2], [4, 4, 1], [], [9]])
    assert forks(check(budget, columns, Concurrent())) == []


# ---- effects


def test_effects_of_calls() -> None:
    def both(x: Tensor) -> list[Tensor]:
        out: list[Tensor] = []
        slow(x, out)
        return out

    program = program_of(both, (inputs(),))
    main, callee = program.functions.values()
    effects = AllEffects(program)
    inner = effects.of(callee.body.ops, (), effects.objects(callee))
    assert [root for root, _ in inner.writes] == [OTHER]
    assert inner.waits and not inner.fails and not inner.phases
    assert not effects.of(main.body.ops, (), effects.objects(main)).writes
    (call,) = (s for s in main.body.ops if isinstance(s, InvokeOp))
    ((root, _),) = effects.of((call,), (), effects.objects(main)).writes
    assert isinstance(root, Variable)


# ---- end to end


class TopDown(nn.Module):
    """Grows a tree: each node decides by itself whether it has children."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.decide = nn.Linear(8, 2)

    def grow(self, x: Tensor, depth: int) -> Grown:
        p = torch.sigmoid(self.decide(x))
        children: list[Grown] = []
        if depth < 4 and p[0].item() > 0.45:
            sides = [torch.tanh(self.left(x)), torch.tanh(self.right(x))]
            children = [self.grow(side, depth + 1) for side in sides]
        if depth < 3 and p[1] > 0.6:
            children.append(self.grow(x * 0.5, depth + 2))
        return Grown(x * p[0], children)

    def forward(self, x: Tensor) -> Grown:
        return self.grow(x, 0)


@pytest.mark.whole
def test_end_to_end() -> None:
    torch.manual_seed(0)
    model = TopDown().eval()
    trees = list(torch.randn(7, 8).unbind())
    launches: list[int] = []
    with torch.no_grad():
        wanted = [model(x) for x in trees]
    for passes in (BatchPasses(), BatchPasses(concurrent=False)):
        many = Batched(model, passes=passes)
        for count in (0, 1, 7):
            order = random.Random(count).sample(range(7), count)
            results = many([trees[n] for n in order])
            assert all(_close(wanted[n], found) for n, found in zip(order, results, strict=True))
        assert many._last is not None and many._last.compiled is not None  # pyright: ignore[reportPrivateUsage]
        launches.append(many._last.compiled.times.launches)  # pyright: ignore[reportPrivateUsage]
    assert launches[1] > 2 * launches[0]


def _close(a: Grown, b: Grown) -> bool:
    if not torch.allclose(a.value, b.value, rtol=1e-4, atol=1e-5):
        return False
    return len(a.children) == len(b.children) and all(map(_close, a.children, b.children))


@pytest.mark.whole
def test_failures_end_to_end() -> None:
    def fails(x: Tensor, name: str, depth: int) -> Tensor:
        if x.sum() > 0 and depth > 0:
            return fails(x - 1, name, depth - 1)
        if x.sum() < 0:
            raise ValueError(name)
        return x

    def several(x: Tensor, ns: list[int]) -> list[Tensor]:
        a = fails(x, "first", 3)
        b = fails(x - 1, "second", 1)
        return [a, b, *(fails(x, "one of several", n) for n in ns)]

    columns = (
        [torch.zeros(4), torch.ones(4), torch.full((4,), 0.5), torch.zeros(4)],
        [[0], [5], [], [0, 1]],
    )
    for function, several_args in ((several, columns), (histogram, HISTOGRAMS)):
        many = Batched(function)
        for args in zip(*several_args, strict=True):
            wanted = _outcome(lambda f=function, args=args: f(*args))
            found = _outcome(lambda many=many, args=args: many(*([item] for item in args))[0])
            assert same(wanted, found), (wanted, found)


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except (ValueError, IndexError) as error:
        return str(error)

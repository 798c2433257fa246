"""Programs of instances that the interpreter of `stretto.compile` captures (`batching.capture`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from benchmarks.models.instances import INSTANCE_ZOO, build
from stretto.batching import compiled
from stretto.batching.capture import capture_instance, read_instance
from stretto.batching.frontend import Evaluation, Observer
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.verifier import verify
from stretto.errors import CaptureError
from stretto.ir.types import DataType
from stretto.options import Options
from tests.batching.agree import compare
from tests.batching.corners import CASES
from tests.batching.random_programs import instances
from tests.batching.test_models import assert_close
from tests.batching.test_random_programs import module_of
from tests.batching.texts import assert_reads_back
from tests.sampling import sampled


def evaluate(
    function: Callable[..., Any],
    parameters: Sequence[tuple[str, DataType]],
    evaluation: Evaluation,
    keywords: Sequence[tuple[str, DataType]] = (),
    static: dict[str, Any] | None = None,
) -> InstanceProgram:
    """What `batching.frontend.evaluate` does, by capture."""
    options = Options()
    found = capture_instance(function, parameters, evaluation, options, keywords, static)
    return found.lowered()


def captured(function: Callable[..., Any], *columns: Sequence[Any]) -> InstanceProgram:
    """The program of a function for instances like these."""
    evaluation = Evaluation()
    observer = Observer(evaluation)
    parameters = [
        (f"p{number}", observer.observe(column, number, f"argument {number}"))
        for number, column in enumerate(columns)
    ]
    with torch.no_grad():
        program = evaluate(function, parameters, evaluation)
    verify(assert_reads_back(program))
    return program


def check(function: Callable[..., Any], *columns: Sequence[Any]) -> InstanceProgram:
    """Asserts that the program gives what the function gives for each instance."""
    program = captured(function, *columns)
    for args in zip(*columns, strict=True):
        compare(program, function, args)
    return program


@pytest.mark.parametrize("name", sampled(list(INSTANCE_ZOO), ["mvrnn", "stackrnn", "drnn"]))
def test_models(name: str) -> None:
    model, instances = build(name, "small", count=6)
    check(model, instances)


REFUSED = frozenset(
    (
        "assigned_slice",
        "in_place_alias",
        "order_of_a_set",
        "rows_of_several_lengths",
        "rows_that_do_not_fit",
        "set_returned",
        "try_except",
    )
)
"""The corner programs that the capture refuses."""


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(CASES))
def test_corners(name: str) -> None:
    if name not in REFUSED:
        check(*CASES[name])
        return
    with pytest.raises(CaptureError) as caught:
        check(*CASES[name])
    assert caught.value.location is not None


@pytest.mark.whole
@pytest.mark.parametrize("first", [2000, 2020])
def test_random_programs(first: int, tmp_path: Path) -> None:
    refused: list[str] = []
    for seed in range(first, first + 20):
        module = module_of(seed, tmp_path)
        try:
            check(module.main, *instances(seed, vars(module), 8))
        except CaptureError as error:
            refused.append(error.message)
    assert len(refused) <= 2, refused


@pytest.mark.parametrize("name", sampled(["mvrnn", "treelstm", "experts"], ["mvrnn"]))
def test_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the passes and as native code: equal to eager, with as many launches as by the front
    end."""
    model, instances = build(name, "small", count=9)
    launches = list[int]()
    for capturing in (False, True):
        if capturing:
            monkeypatch.setattr(compiled, "read_instance", read_instance)
        many = stretto.batch(model)
        with torch.no_grad():
            wanted = [model(item) for item in instances]
            for number, (found, expected) in enumerate(zip(many(instances), wanted, strict=True)):
                assert_close(found, expected, 1e-5, f"result {number}")
        assert many._last is not None and many._last.compiled is not None
        launches.append(many._last.compiled.times.launches)
    assert launches[1] <= launches[0]


@dataclass
class Tree:
    left: Tree | None
    right: Tree | None
    x: Tensor
    count: int = 1


def tree(depth: int, seed: int = 1) -> Tree:
    x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
    if not depth:
        return Tree(None, None, x, seed)
    return Tree(tree(depth - 1, 2 * seed), tree(depth - 1, 2 * seed + 1), x, seed)


TREES = [tree(0), tree(1), tree(3), Tree(tree(2), None, torch.ones(3))]


def optional_nodes(t: Tree | None) -> Tensor:
    """A node that may be missing is an argument of the recursion."""
    if t is None:
        return torch.zeros(3)
    return torch.tanh(t.x + optional_nodes(t.left) - optional_nodes(t.right))


def counted(t: Tree) -> int:
    total = t.count
    if t.left is not None:
        total += counted(t.left)
    if t.right is not None and t.right.count > 2:
        total += counted(t.right)
    return total


def leaves(t: Tree) -> list[Tensor]:
    """A stack of objects of the instance, and a list of what they hold."""
    pending, found = [t], [t.x]
    while pending:
        node = pending.pop()
        if node.left is None and node.right is None:
            found.append(node.x)
        if node.left is not None:
            pending.append(node.left)
        if node.right is not None:
            pending.append(node.right)
    return found


def grown(t: Tree) -> Tree:
    """A new tree."""
    if t.left is None or t.right is None:
        return Tree(None, None, t.x * 2, t.count)
    return Tree(grown(t.left), grown(t.right), t.x + 1, t.count + 1)


def by_the_value_of_a_tensor(t: Tree) -> Tensor:
    if t.x.sum() > 0 and t.left is not None:
        return by_the_value_of_a_tensor(t.left)
    return t.x


@pytest.mark.parametrize(
    "function", [optional_nodes, counted, leaves, grown, by_the_value_of_a_tensor]
)
def test_trees(function: Callable[[Tree], Any]) -> None:
    check(function, TREES)


def test_numbers_and_lists() -> None:
    def f(xs: list[Tensor], n: int, flag: bool) -> Any:
        total, kept = torch.zeros(2), [n]
        for i, x in enumerate(xs):
            if i % 2 == 0 or flag:
                total = total + x * (n / 2)
            kept.append(n * i - 1)
        return total, kept, len(xs) > n

    xs = [torch.ones(2), -torch.ones(2), torch.arange(2.0)]
    check(f, [xs, xs[:1], []], [2, 0, -3], [True, False, True])


def test_pairs_in_a_list() -> None:
    def f(n: int) -> list[tuple[int, int]]:
        pairs = [(0, n)]
        for i in range(n):
            pairs.append((i, n - i))
        return pairs

    check(f, [0, 1, 4])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.weight


def in_place(x: Tensor) -> Tensor:
    return x.add_(1)


def printed(x: Tensor) -> Tensor:
    print(x)
    return x


def shared_in_place(x: Tensor) -> Tensor:
    SHARED.mul_(2)
    return x * SHARED


SHARED = torch.ones(3)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (in_place, "changed in place"),
        (shared_in_place, "changed in place"),
        (Scaled(), "that all instances share is changed"),
        (printed, "prints"),
    ],
)
def test_what_would_outlive_the_call_is_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(CaptureError, match=reason):
        check(function, [torch.ones(3), torch.zeros(3)])


def entry_of_a_dict(a: int, x: Tensor) -> Any:
    """The entry at a key of the instance: tensors, or a value of several types."""
    d = {0: x, 1: x + 1}
    return d[a % 2], [d[a % 2]], {0: 5, 1: 6}[a % 2], ({0: x, 1: 2}[a % 2],)


def test_entry_of_a_dict() -> None:
    check(entry_of_a_dict, [0, 1, 3], [torch.ones(2), torch.zeros(2), torch.ones(2)])

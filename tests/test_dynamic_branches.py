"""Conditions on sizes that become branches of one program, once calls have gone both ways."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stretto
from tests.frontends.python.checks import assert_same
from tests.sampling import sampled
from tests.test_dynamic import BACKENDS, check, rows

PAIRS = ((5, 5), (3, 4), (4, 3), (0, 0), (0, 1), (1, 1), (1, 0), (9, 9), (2, 7))
Function = Callable[..., Any]


def pairs(*sizes: tuple[int, int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(n, 4), torch.randn(m, 4)) for n, m in sizes]


def numbered(*numbers: int) -> list[tuple[torch.Tensor, int]]:
    return [(torch.randn(3, 4), number) for number in numbers]


def assigned(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 8:
        y = x * 2
    else:
        y = x - 1
    return y + 1


def returns_early(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] % 2 == 0:
        return x + 1
    return x * 3


def of_other_ranks(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) if len(x) > 8 else x


def is_true_of_a_size(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0]:
        return x.amax(0)
    return x.new_zeros(4)


def one_size(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 8:
        return x.mean()
    return x.sum()


def views(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    if n % 2 == 0:
        return x.view(n // 2, 2, 4).sum((0, 1))
    return x.sum(0)


def sums_of_slices(x: torch.Tensor) -> Any:
    if x.shape[0] > 8:
        first, last = x[:8].sum(0), x[8:].sum(0)
    else:
        first, last = x.sum(0), x[:1].sum(0)
    return first, last


def none_or_tensor(x: torch.Tensor) -> torch.Tensor:
    mean = None if x.shape[0] % 3 == 2 else x.mean(0)
    if mean is not None:
        x = x + mean
    return x


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(x.shape[0]):
        if x.shape[0] > 5 and i > 0:
            total = total * 0.5 + x[i]
        else:
            total = torch.tanh(total + x[i])
    return total


def loop_in_an_arm(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    if x.shape[0] > 5:
        for row in x:
            total = torch.tanh(total + row)
    return total


def with_a_tensor(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 8 and x.sum() > 0:
        return x * 2
    if x.shape[0] < 2 or not x.mean() > 0:
        return x - 1
    return x


def raises(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 8:
        raise ValueError("too many rows")
    return x * 2


def nested(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    if n > 2:
        y = x * 2 if n < 9 else x * 3
        if n % 2:
            y = y + n
    else:
        y = x - 1
    return y


def writes(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 8:
        x[0] = 5.0
    else:
        x += 1
    return x * 2


def compared(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > y.shape[0]:
        return x.sum(0) - y.sum(0)
    return x.sum(0) + y.sum(0)


def equal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == y.shape[0]:
        return (x + y).sum(0)
    return x.sum(0) - y.sum(0)


def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n, m = x.shape[0], len(y)
    if (0 < n < 5 and m > 3) or not (n == m and m != 7):
        return x.sum(0) + y.sum(0)
    return x.sum(0) - y.sum(0)


def divided_by_a_size(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n, m = x.shape[0], y.shape[0]
    return x.sum(0) if n > 0 and m % n == 0 else y.sum(0)


def of_an_int(x: torch.Tensor, n: int) -> torch.Tensor:
    if n > 3:
        return x * n
    return x - n


def of_items(x: torch.Tensor, n: int) -> torch.Tensor:
    items = [row * 2 for row in x.repeat(n, 1)]
    return torch.stack(items).sum(0) if len(items) > 7 else torch.zeros(4)


def recursive(x: torch.Tensor, n: int) -> torch.Tensor:
    if n <= 1:
        return x.sum()
    return recursive(x * 2, n // 2) + 1


SIZES = (5, 12, 0, 1, 8, 9, 2, 30, 4, 11)
CASES: list[tuple[Function, Sequence[Any], int | None]] = [
    (assigned, rows(*SIZES), 2),
    (returns_early, rows(*SIZES), 2),
    (of_other_ranks, rows(*SIZES), 2),
    (is_true_of_a_size, rows(3, 0, 1, 9), None),  # torch checks in the arm if there are rows
    (one_size, rows(5, 8, 0, 1, 9, 8), 2),
    (views, rows(*SIZES), None),  # the view requires an even size
    (sums_of_slices, rows(*SIZES), 2),
    (none_or_tensor, rows(5, 12, 1, 8, 9, 2, 30), None),
    (in_a_loop, rows(*SIZES), None),
    (loop_in_an_arm, rows(*SIZES), None),
    (with_a_tensor, rows(*SIZES), None),
    (raises, rows(5, 8, 0, 1), None),
    (nested, rows(*SIZES), None),
    (writes, rows(*SIZES[:2], 1, 8, 9, 2), None),
    (compared, pairs(*PAIRS), None),
    (equal, pairs(*PAIRS), None),
    (joined, pairs(*PAIRS), None),
    (divided_by_a_size, pairs((3, 6), (4, 6), (0, 2), (2, 0), (1, 5), (7, 21)), None),
    (of_an_int, numbered(5, 2, 0, 1, 4, 9), 2),
    (of_items, numbered(1, 4, 2, 0, 3, 7), None),
    (recursive, numbered(5, 1, 2, 4, 8, 0, 5), None),
]
IDS = [function.__name__ for function, _, _ in CASES]


@pytest.mark.parametrize(("function", "calls", "programs"), CASES, ids=IDS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_branches_on_sizes(
    function: Function, calls: Any, programs: int | None, dynamic: bool | None
) -> None:
    check(function, calls, programs=programs, dynamic=dynamic)


BY_NAME = dict(zip(IDS, CASES, strict=True))


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("name", sampled(IDS, ["returns_early", "sums_of_slices", "equal"]))
def test_branches_on_all_machines(name: str, backend: str) -> None:
    function, calls, programs = BY_NAME[name]
    check(function, list(calls[:5]), programs=programs, backend=backend)


def test_the_other_way_raises_as_eager_does() -> None:
    compiled = check(raises, rows(5, 8, 0))
    for size in (9, 12, 5, 30, 2):
        x = torch.randn(size, 4)
        if size <= 8:
            assert_same(compiled(x), raises(x))
            continue
        with pytest.raises(ValueError, match="too many rows"):
            compiled(x)


def test_explain_lists_the_branch_with_its_line() -> None:
    text = check(assigned, rows(5, 12, 3)).explain()
    assert "a branch decides: s0 > 8" in text
    assert "if x.shape[0] > 8:" in text


def test_two_compilations_for_calls_that_alternate() -> None:
    check(assigned, rows(12, 5, 12, 5, 30, 1), programs=2)
    check(assigned, rows(12, 5, 12, 5, 30, 1), programs=2, dynamic=True)


def test_a_way_that_is_seen_late_makes_one_more_program_for_both() -> None:
    check(nested, rows(3, 4, 20, 1, 2, 5, 6, 8, 9, 10, 0, 77), dynamic=True)
    check(assigned, rows(9, 10, 11, 3, 2, 50), programs=3)


def test_arms_that_leave_different_kinds_of_things_need_a_guard() -> None:
    def several(x: torch.Tensor) -> torch.Tensor:
        mask = None if x.shape[0] > 8 else torch.ones(x.shape[0], 1)
        return F.scaled_dot_product_attention(x, x, x, None if mask is None else mask.bool())

    compiled = check(several, rows(*SIZES))
    assert len(compiled.signatures) <= 3
    text = compiled.explain()
    assert "is no branch of the program" in text or "a branch decides" in text


def test_a_while_loop_over_sizes_has_a_program_for_each_number_of_rounds() -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        while x.shape[0] > 1:
            x = x[: x.shape[0] // 2] * 2
        return x

    check(halved, rows(5, 12, 1, 2, 3, 0, 8, 13))


@pytest.mark.whole
def test_a_program_with_branches_on_sizes_is_saved(tmp_path: Path) -> None:
    for function, calls, _ in CASES:
        if function in (equal, views, joined):
            compiled = check(function, list(calls), backend="cpu")
            compiled.save(tmp_path / "saved.stretto")
            loaded = stretto.load(tmp_path / "saved.stretto")
            for args in calls:
                assert_same(loaded(*args), function(*args))


# ---- random conditions -----------------------------------------------------------------------


def _condition(dice: random.Random, depth: int = 0) -> str:
    kinds = ["compare", "compare", "multiple", "and", "or", "not"]
    match dice.choice(kinds[: 3 if depth > 1 else None]):
        case "compare":
            sign = dice.choice(("<", "<=", ">", ">=", "==", "!="))
            left, right = dice.choice("nm"), dice.choice(("m", "n", "1", "3", "6", "m - 2"))
            return f"{left} {sign} {right}"
        case "multiple":
            return f"{dice.choice('nm')} % {dice.choice('23')} == {dice.choice('01')}"
        case "not":
            return f"not ({_condition(dice, depth + 1)})"
        case word:
            parts = (_condition(dice, depth + 1) for _ in range(2))
            return "(" + f" {word} ".join(parts) + ")"


_STATEMENTS = (
    "x = x * 2",
    "x = x + n",
    "y = y - x.sum(0)",
    "total = total + x[:3].sum(0)",
    "total = total + y[1:].sum(0) * m",
    "total = torch.tanh(total)",
    "total = total + torch.cat([x, y]).sum(0)",
    "total = total + torch.arange(m).sum()",
    "k = n - 1",
    "for row in y: total = total * 0.5 + row",
    "if total.sum() > 0: total = -total",
    "return total",
    "if n == m: total = total + (x * y).sum(0)",
    "x[:1] = 1.0",
)


def _source(seed: int) -> str:
    dice = random.Random(seed)
    lines = ["def f(x, y, n, m):", "    total, k = torch.zeros(4), 0"]
    for _ in range(dice.choice((1, 2))):
        lines.append(f"    if {_condition(dice)}:")
        lines += [f"        {dice.choice(_STATEMENTS)}" for _ in range(dice.choice((1, 2)))]
        if dice.random() < 0.7:
            lines += ["    else:", f"        {dice.choice(_STATEMENTS)}"]
    return "\n".join([*lines, "    return total + x.sum(0) * k, y * 1, x + 0", ""])


@pytest.mark.parametrize("seed", sampled(range(200), sample=range(12)))
def test_random_conditions(seed: int) -> None:
    text, name = _source(seed), f"<random conditions {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(text, name, "exec"), space)
    dice = random.Random(seed)
    sizes = [(dice.randrange(9), dice.randrange(9)) for _ in range(7)] + [(0, 0), (1, 1), (0, 7)]

    def called(x: torch.Tensor, y: torch.Tensor) -> Any:
        return space["f"](x, y, x.shape[0], y.shape[0])

    check(called, pairs(*sizes), dynamic=dice.choice((None, True)))


def divides_in_an_arm(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    y = x[:2].sum(0)
    if n > 0:
        if 10 % n == 0:
            return y + 2
        return y * 3 + 7
    return y - 1


def divides_behind_and(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x + 1 if n > 0 and 10 % n == 0 else x - 1


def divides_by_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n, m = x.shape[0], y.shape[0]
    if n > 0 and m > 0:
        if n % m == 0:
            return x.sum(0) + 1
        return x.sum(0) * y.sum(0)
    return x.sum(0) - y.sum(0)


def joined_in_an_arm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 1:
        return torch.broadcast_tensors(x, y[:3])[0].sum(0)
    return x.sum(0)


SQUEEZES: list[Function] = [
    lambda x: x.squeeze(0),
    lambda x: x.squeeze(),
    lambda x: x.squeeze((0, 1)),
    lambda x: x.unsqueeze(0).squeeze(1),
    lambda x: x.t().contiguous().squeeze(),
    lambda x: torch.bmm(x[None], torch.ones(1, 4, 4)).squeeze(1),
    lambda x: x.reshape(-1, 2, 2).squeeze(0),
    lambda x: x.expand(3, -1),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [divides_in_an_arm, divides_behind_and])
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_arm_that_divides_by_a_size(function: Function, backend: str, dynamic: Any) -> None:
    for sizes in ((4, 0, 5, 3, 0, 10), (0, 4, 1, 20, 0), (3, 5, 0, 0, 7)):
        check(function, rows(*sizes), backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("function", [divides_by_another, joined_in_an_arm])
def test_an_arm_that_asks_about_two_sizes(function: Function) -> None:
    check(function, pairs((3, 3), (0, 2), (2, 0), (1, 5), (4, 2), (1, 3), (5, 4), (0, 0), (1, 9)))
    check(function, pairs((1, 4), (2, 0), (1, 3), (4, 2), (3, 5)), dynamic=True)


@pytest.mark.parametrize("use", SQUEEZES)
def test_an_arm_that_relies_on_what_it_is_about(use: Function) -> None:
    def equal(x: torch.Tensor) -> torch.Tensor:
        return use(x) * 2 if x.shape[0] == 1 else x.sum()

    def between(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return use(x) * 2 if n < 2 and n > 0 else x.sum()

    for function in (equal, between):
        check(function, rows(3, 1, 2, 1, 0, 5, 1))
        check(function, rows(1, 3, 1, 0), dynamic=True)

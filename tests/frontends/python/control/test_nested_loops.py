"""What a loop has learnt is known when a loop around it is traced again.

Without that, each level of loops in loops would multiply the number of traces.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python import capture
from stretto.frontends.python.interpreter.fixpoints import Loop
from stretto.ir.text import print_program
from stretto.options import Debug, Options
from tests.frontends.python.checks import assert_same, check, run_captured

# What stands before each loop, at the start of its body, its condition, and after it.
STYLES: dict[str, tuple[str, str, str, str]] = {
    "one variable": ("", "x = x * 0.5 + 0.1", "x.sum() < {d}", ""),
    "variables": (
        "v{d} = x + {d}",
        "v{d} = v{d} * 0.5",
        "v{d}.sum() < {d}",
        "x = x + v{d} / 9",
    ),
    "item of an outer list": ("", "items[0] = items[0] * 0.5", "items[0].sum() < {d}", ""),
    "own list": ("b = [x * {d}]", "b[0] = b[0] * 0.5", "b[0].sum() < {d}", "x = x + b[0] * 0.1"),
    "in place": (
        "t{d} = x * {d}",
        "t{d}.mul_(0.5)",
        "t{d}.sum() < {d}",
        "x = x + t{d} / 9",
    ),
    "appended to": ("l{d} = [x]", "l{d}.append(l{d}[-1] * 0.5)", "l{d}[-1].sum() < {d}", ""),
    "bound inside": (
        "x = x + 1",
        "y{d} = x * 0.5; x = y{d}",
        "y{d}.sum() < {d}",
        "x = x + y{d} / 9",
    ),
    "counter": (
        "n{d} = 0",
        "n{d} += 1; x = x * 0.5",
        "n{d} > 2 or x[0] < 0",
        "x = x + n{d} / 9",
    ),
    "tuple": (
        "p{d} = x, 1.0",
        "p{d} = p{d}[0] / 2, p{d}[1]",
        "p{d}[0].sum() < {d}",
        "x = x + p{d}[0] / 9",
    ),
    "returns": ("", "x = x * 0.5", "x.sum() < {d}", "if x[0] > {d}9: return x * {d}, x"),
    "object": (
        "o = Thing(); o.value = x; o.count = 0",
        "o.value = o.value * 0.5; o.count += 1",
        "o.value.sum() < {d}",
        "x = x + o.value / 9 + o.count",
    ),
}


def nest(path: Path, style: str, depth: int, head: str = "while True:") -> Callable[..., Any]:
    before, start, condition, after = STYLES[style]
    lines = ["import torch", "class Thing: pass", "def f(x):", "    items = [x]"]
    for d in range(1, depth + 1):
        pad = "    " * d
        lines += [pad + (before.format(d=d) or "pass"), pad + head]
    for d in range(depth, 0, -1):
        inner, outer = "    " * (d + 1), "    " * d
        lines += [inner + start.format(d=d), inner + f"if {condition.format(d=d)}: break"]
        lines += [outer + (after.format(d=d) or "pass")]
    lines += ["    return x, items[0]", ""]
    path.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


def rounds(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a body or a condition of a loop is traced."""
    count = 0
    inside = Loop.inside

    def counted(self: Loop, run: Callable[..., Any]) -> Any:
        nonlocal count
        count += 1
        return inside(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "inside", counted)
        capture(function, (torch.ones(3),), {}, Options(debug=Debug(unroll=0)))
    return count


@pytest.mark.parametrize("style", STYLES)
def test_the_number_of_traces_is_no_exponential_of_the_depth(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [rounds(nest(tmp_path / f"n{d}.py", style, d), monkeypatch) for d in (1, 3, 4)]
    assert counts[2] <= 2 * counts[1] <= 25 * counts[0], counts


@pytest.mark.parametrize("style", STYLES)
def test_for_loops_as_well(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = "for _ in range(40):"
    counts = [rounds(nest(tmp_path / f"n{d}.py", style, d, heads), monkeypatch) for d in (1, 3, 4)]
    assert counts[2] <= 2 * counts[1] <= 25 * counts[0], counts


@pytest.mark.parametrize("head", ["while True:", "for _ in range(40):"])
@pytest.mark.parametrize("style", STYLES)
def test_the_program_is_the_same_and_right(
    style: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = nest(tmp_path / "n.py", style, 3, head)
    assert_memory_is_harmless(function, torch.tensor([3.0, 2.0, 4.0]), monkeypatch)


def test_an_inner_loop_is_another_one_in_each_unrolled_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        out: list[Tensor] = []
        for by in (2, 1):
            n, pair, made = 1, (x, 3), [x]
            while x.sum() > 3:
                x = x * 0.5
                n = n * by
                pair = pair[0] + 1, pair[1] * by
                if by == 2:
                    made.append(x)
                else:
                    made[0] = made[0] * 2
            out.append(x.new_ones(n) * pair[0][:1] * pair[1] + len(made))
        return x, *out

    assert_memory_is_harmless(f, torch.ones(3) * 5, monkeypatch)


def test_a_loop_that_takes_another_path_at_last_carries_no_more_than_that_path_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        kind, n, y = 0, 1, x
        while x.sum() > 3:
            count, total, pair = 0, 0, (x, 1)
            while count < int(x.abs().sum()) % 4:
                count += 1
                total = total + (2 if kind == 0 else 1)
                pair = pair[0] * 0.5, pair[1] + (kind == 0)
            x = pair[0] * 0.9
            y = y + total + pair[1]
            kind = kind + n
        return x, y

    assert_memory_is_harmless(f, torch.ones(3) * 5, monkeypatch)


def assert_memory_is_harmless(
    function: Callable[..., Any], x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = stretto.compile(function, backend="interpreter", options=Options(debug=Debug(unroll=0)))
    torch.testing.assert_close(fast(x), function(x))
    with_memory = capture(function, (x,), {}, Options(debug=Debug(unroll=0))).program
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "remember", lambda self: None)
        without = capture(function, (x,), {}, Options(debug=Debug(unroll=0))).program
    assert print_program(with_memory) == print_program(without)


def test_names_that_trade_places_in_an_inner_loop_are_followed_when_it_is_traced_again() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b, c, d, count = x, y, x[:], x * 0.5, 0
        if b[0] < d[1]:
            c = b = b.clone()
            while count < 3 and b[0] > 0.1:
                count += 1
                for _ in range(int(x.abs().sum()) % 3):
                    a, b = b, a
                    c = d
            c.add_(0.125)
        a += 0.5
        return a, b, c, d

    draw = torch.Generator().manual_seed(0)
    cases = [tuple(torch.randn(4, generator=draw) * 1.5 for _ in range(2)) for _ in range(60)]
    check(f, *cases, options=Options(debug=Debug(unroll=0)))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda w: w[1],
    "column": lambda w: w[:, 1],
    "rows": lambda w: w[1:3],
    "transposed": lambda w: w.t(),
    "row of a column": lambda w: w[1:, 1],
    "reshaped": lambda w: w.view(-1)[1:],
    "row at a traced position": lambda w: w[w.argmax() % 3],
}


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_swapped_in_an_inner_loop(
    view: Callable[[Tensor], Tensor], is_constant: bool
) -> None:
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(51))

    def f(x: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        v = view(weight if is_constant else given)
        k = 0
        while v.sum() > -3 and k < 4:
            k += 1
            j = 0
            while j < 3 and v.sum() < 3:
                j += 1
                v, x = x, v
            v = v * 0.5
        x.add_(-0.5)
        return v, x, given + 0, weight + 0

    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(view(weight).shape, generator=generator) + 1
        given = torch.randn(3, 3, generator=generator)
        before = weight.clone()
        captured = capture(f, (x.clone(), given.clone()), {}, Options())
        actual_args = x.clone(), given.clone()
        actual = run_captured(captured, actual_args, {})
        actual_weight = weight.clone()
        weight.copy_(before)
        expected_args = x.clone(), given.clone()
        assert_same(actual, f(*expected_args))
        assert_same(actual_args, expected_args)
        assert_same(actual_weight, weight)
        weight.copy_(before)

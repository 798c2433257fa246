"""`stretto.compile(dynamic=...)`: one program for many sizes, found by its guards."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic

import stretto
from stretto import BuildError, CaptureError
from stretto.call.compiler import begin
from stretto.errors import VerifyError
from stretto.frontends.python import capture
from stretto.ir.core import Program
from stretto.machines.interpreter.machine import InterpreterMachine
from tests.frontends.python.checks import assert_same

BACKENDS = ("interpreter", "emulator", "cpu", "cuda-emulated")
_WEIGHT = torch.linspace(-1, 1, 12).reshape(4, 3)


def check(
    function: Callable[..., Any],
    calls: list[tuple[Any, ...]],
    *,
    programs: int | None = None,
    backend: str = "interpreter",
    dynamic: bool | None = None,
) -> Any:
    """Compare each call with eager; `programs`: the number of programs afterwards."""
    compiled = stretto.compile(function, backend=backend, dynamic=dynamic)
    for args in calls:
        assert_same(compiled(*copy.deepcopy(args)), function(*copy.deepcopy(args)))
    if programs is not None:
        assert len(compiled.signatures) == programs, compiled.explain()
    return compiled


def rows(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(size, 4),) for size in sizes]


def layer(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ _WEIGHT).sum(0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_second_size_compiles_once_more_and_further_ones_never(backend: str) -> None:
    check(layer, rows(5, 7, 0, 1, 2, 9, 64), programs=2, backend=backend)


def test_all_sizes_are_symbols_from_the_start() -> None:
    check(layer, rows(5, 1, 0, 9), programs=1, dynamic=True)


def test_each_size_has_a_program_of_its_own() -> None:
    check(layer, rows(5, 7, 5, 9), programs=3, dynamic=False)


def test_a_size_in_arithmetic_and_results() -> None:
    def mean(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x.sum(0) / n, x * n, x / math.sqrt(n), n, n / 2, x.shape, len(x), x.numel()

    check(mean, rows(5, 3, 1, 8), programs=2)


def test_sizes_of_what_is_computed() -> None:
    def several(x: torch.Tensor) -> Any:
        n = x.shape[0]
        parts = torch.cat([x, x[1:], x.reshape(-1, 2).repeat(1, 2)[:n]])
        grid = torch.arange(n)[:, None] + torch.arange(n)[None, :]
        return parts.mean(1), grid, x.new_zeros(n, 2), x.T @ x, x.flatten().view(n, 2, 2), x[:3]

    check(several, rows(5, 3, 7, 9), programs=2)


@pytest.mark.whole
def test_slices_that_begin_at_a_size_from_the_end() -> None:
    def windows(k: torch.Tensor, q: torch.Tensor, window: int) -> Any:
        n, both = k.shape[0], torch.cat([k, q])
        return both[-n:], both[n:], both[-window:], both[n - 1 :], both[-2 * n - 3 :]

    calls = [(torch.randn(n, 4), torch.randn(1, 4), n - 1) for n in (5, 3, 2, 19, 8, 33)]
    check(windows, calls, programs=2)
    check(windows, [*calls, (torch.randn(0, 4), torch.randn(1, 4), 3)], dynamic=True)
    check(windows, [(torch.randn(n, 4), torch.randn(1, 4), 3) for n in (5, 1, 2, 7)])


def test_two_symbols_that_must_be_equal_are_one() -> None:
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y

    calls = [(torch.randn(n, 4), torch.randn(n, 4)) for n in (5, 3, 1, 9)]
    compiled = check(added, calls, programs=2)
    with pytest.raises(RuntimeError, match="must match"):
        compiled(torch.randn(5, 4), torch.randn(6, 4))


def test_broadcasting_makes_another_program() -> None:
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    calls = [(torch.randn(n, 4), torch.randn(m, 4)) for n, m in ((5, 5), (3, 3), (6, 1), (9, 1))]
    compiled = check(added, calls)
    count = len(compiled.signatures)
    compiled(torch.randn(2, 4), torch.randn(1, 4))
    assert len(compiled.signatures) == count


def test_a_condition_on_a_size_is_a_guard_with_its_line() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 6:
            return x.exp()
        return -x

    compiled = check(chosen, rows(7, 8, 9, 100), programs=2)
    text = compiled.explain()
    assert "s0 > 6" in text
    assert "if x.shape[0] > 6:" in text
    assert "test_dynamic.py" in text


def test_a_size_that_only_a_number_can_be_is_settled() -> None:
    table = {5: 1.0, 7: 2.0}

    def looked_up(x: torch.Tensor) -> torch.Tensor:
        return x * table[x.shape[0]]

    compiled = check(looked_up, rows(5, 7, 5), programs=2)
    with pytest.raises(KeyError):
        compiled(torch.randn(6, 4))


def test_a_size_in_a_text_is_settled() -> None:
    def shown(x: torch.Tensor, n: int) -> Any:
        return x * len(f"{n}{x.shape}"), str(n), repr(x.shape[0]), f"{n:03}", type(n), {n: n}

    check(shown, [(torch.randn(m, 4), n) for m, n in ((5, 3), (5, 4), (15, 4), (5, 14))])


def test_ints_among_the_arguments() -> None:
    def padded(x: torch.Tensor, n: int, scale: int) -> torch.Tensor:
        return torch.cat([x * scale, torch.zeros(n, 4)])

    calls = [(torch.randn(m, 4), n, k) for m, n, k in ((2, 3, 2), (2, 4, 2), (2, 0, 2), (2, 9, 2))]
    check(padded, calls, programs=2)
    check(padded, [*calls, (torch.randn(5, 4), 1, 7), (torch.randn(6, 4), 2, 0)], dynamic=True)


def test_an_int_that_is_a_dim_is_settled() -> None:
    def summed(x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.sum(dim)

    check(summed, [(torch.randn(3, 4), dim) for dim in (0, 1, -1, 0)], programs=3)


IN_FLOATS: tuple[Callable[[int], bool], ...] = (
    lambda n: math.sqrt(n) > 2,
    lambda n: n**0.5 > 2,
    lambda n: float(n) * 1.5 > 6,
    lambda n: n / 3 > 1.5,
    lambda n: int(n * 0.3) > 1,
    lambda n: math.ceil(n / 2 + 0.5) > 2,
)


@pytest.mark.parametrize("condition", IN_FLOATS)
def test_conditions_on_floats_that_sizes_make(
    condition: Callable[[int], bool], tmp_path: Path
) -> None:
    """They are evaluated at each call, with Python's own functions, also in a saved program."""

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if condition(x.shape[0]) else x + 1

    fast = check(chosen, rows(2, 3, 4, 5, 6, 9, 0, 1), dynamic=True)
    assert len(fast.signatures) <= 3, fast.explain()
    fast.save(tmp_path / "chosen")
    again = stretto.load(tmp_path / "chosen")
    for (x,) in rows(3, 8, 17):
        assert_same(again(x), chosen(x))


def test_sizes_that_must_fit_each_other() -> None:
    def convolved(x: torch.Tensor, w: torch.Tensor, stride: int) -> torch.Tensor:
        return torch.conv1d(x, w, stride=stride)

    shapes = ((1, 9, 3, 1), (2, 8, 3, 2), (1, 12, 4, 1), (3, 15, 4, 2))
    calls = [(torch.randn(b, 2, n), torch.randn(3, 2, k), s) for b, n, k, s in shapes]
    check(convolved, calls, dynamic=True)


def test_slices_whose_ends_are_sizes() -> None:
    def sliced(x: torch.Tensor, n: int) -> Any:
        return x[1:n], x[:, -n:], torch.cat([x, x])[n:], x[: len(x) // 2], x[n // 2 :]

    calls = [(torch.randn(m, 9), n) for m, n in ((8, 3), (7, 4), (9, 5), (6, 2))]
    check(sliced, calls, programs=2)
    check(sliced, [*calls, (torch.randn(6, 9), 1), (torch.randn(2, 9), 7)])


def test_views_of_sizes_of_0_and_1() -> None:
    def attended(x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        heads = x.view(b, n, 2, d // 2).transpose(1, 2)
        scores = torch.softmax(heads @ heads.mT / math.sqrt(d), -1)
        return (scores @ heads).transpose(1, 2).reshape(b, n, d)

    sizes = ((2, 5), (3, 7), (1, 1), (1, 4), (0, 3))
    check(attended, [(torch.randn(b, n, 4),) for b, n in sizes], programs=2)


def test_declared_sizes() -> None:
    x = torch.randn(5, 4)
    mark_dynamic(x, 0, min=2, max=64)
    mark_static(x, 1)
    compiled = check(layer, [(x,), *rows(7, 2, 64)], programs=1)
    with pytest.raises(CaptureError, match="declared to be at least 2 and at most 64"):
        compiled(torch.randn(65, 4))
    with pytest.raises(CaptureError, match="has 3 dims, and sizes were declared for one with 2"):
        compiled(torch.randn(2, 5, 4))


def test_a_declared_size_may_not_be_settled() -> None:
    def settled(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(5, 4)

    x = torch.randn(5, 4)
    mark_dynamic(x, 0)
    with pytest.raises(CaptureError, match="marked as dynamic") as caught:
        stretto.compile(settled, backend="interpreter")(x)
    assert "torch.ones(5, 4)" in str(caught.value)
    y = torch.randn(5, 4)
    maybe_mark_dynamic(y, 0)
    stretto.compile(settled, backend="interpreter")(y)


def test_static_dims_stay_static() -> None:
    x, y = torch.randn(5, 4), torch.randn(7, 4)
    mark_static(x)
    mark_static(y)
    compiled = stretto.compile(layer, backend="interpreter", dynamic=True)
    compiled(x)
    compiled(y)
    assert all(entry.captured.sizes is None for entry in compiled.signatures)


def test_changes_in_place() -> None:
    def added(x: torch.Tensor) -> torch.Tensor:
        x[1:] += 1.0
        x.mul_(2)
        return x.sum()

    compiled = stretto.compile(added, backend="interpreter")
    for size in (5, 7, 3, 2):
        for make in (torch.randn(size, 4), torch.randn(4, size).T, torch.randn(size, 9)[:, :4]):
            mine, theirs = make.clone(memory_format=torch.preserve_format), make.clone()
            torch.testing.assert_close(compiled(mine), added(theirs))
            torch.testing.assert_close(mine, theirs)


def test_copies_know_what_is_dynamic() -> None:
    compiled = stretto.compile(layer, backend="interpreter", dynamic=True)
    twin = copy.copy(compiled)
    for args in rows(3, 5):
        twin(*args)
    assert len(twin.signatures) == 1


def test_a_machine_without_symbols_makes_a_program_for_each_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(InterpreterMachine, "takes_symbols", False)
    compiled = check(layer, rows(3, 4, 6), programs=3)
    assert "each size has its own program: the machine" in compiled.explain()
    with pytest.raises(BuildError, match="fixed sizes only"):
        check(layer, rows(3), dynamic=True)


def test_dynamic_is_none_or_a_bool() -> None:
    with pytest.raises(TypeError, match="dynamic must be"):
        stretto.compile(layer, dynamic="yes")  # type: ignore[arg-type]


def test_attention_of_any_size() -> None:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    calls = [
        (torch.randn(b, 3, rows, 8), torch.randn(b, 3, keys, 8), torch.randn(b, 3, keys, 5))
        for b, rows, keys in ((2, 40, 50), (4, 64, 33), (2, 100, 100))
    ]
    check(attend, calls, programs=1, dynamic=True)


def test_an_error_without_a_text_leaves_a_program_for_each_size(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*arguments: object) -> None:
        raise VerifyError("")

    def broken(*arguments: object) -> None:
        raise AssertionError("a defect")

    with caplog.at_level("INFO", "stretto"), monkeypatch.context() as patched:
        patched.setattr("stretto.call.compiler.begin", _only_for_sizes(refused))
        compiled = check(layer, rows(5, 7, 9), programs=3)
    assert "VerifyError" in compiled.explain()
    assert "layer has a program for each size: VerifyError" in caplog.text
    monkeypatch.setattr("stretto.call.compiler.begin", _only_for_sizes(broken))
    with pytest.raises(AssertionError, match="a defect"):
        check(layer, rows(5, 7))


def _only_for_sizes(broken: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `begin` of builds that fails if sizes are symbols."""

    def begins(program: Program, *arguments: Any) -> Any:
        dims = [dim for param in program.main.params for dim in param.tensor.shape]
        return begin(program, *arguments) if {*map(type, dims)} <= _NUMBERS else broken()

    return begins


_NUMBERS = {int}


def test_a_function_that_cannot_be_captured_is_tried_once_with_symbols(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_symbols: list[bool] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        with_symbols.append(kwargs["sizes"] is not None)
        return capture(*args, **kwargs)

    def refused(x: torch.Tensor) -> Any:
        return x * 2 if x.shape[0] == 5 else iter(x)

    monkeypatch.setattr("stretto.call.compiler.capture", counted)
    compiled = stretto.compile(refused, backend="interpreter")
    compiled(torch.ones(5))
    for size in (6, 7, 8):
        with pytest.raises(CaptureError):
            compiled(torch.ones(size))
    assert with_symbols == [False, True, False, False, False]


def test_an_error_of_the_function_leaves_later_sizes_a_program() -> None:
    def checked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0) @ y

    compiled = check(checked, [(torch.randn(5, 4), torch.randn(4, 3))])
    for _ in range(2):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(6, 4), torch.randn(5, 3))
    for size in (7, 8, 9):
        x, y = torch.randn(size, 4), torch.randn(4, 3)
        assert_same(compiled(x, y), checked(x, y))
    assert len(compiled.signatures) == 2


@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
def test_slices_that_count_a_size_from_the_end(backend: str) -> None:
    """Such as a prompt that is cut to the part that a cache does not have yet."""

    def function(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x[-n:], x[-n:n], x[:-n], x[-n - 1 :], x[: -n - 1]

    check(function, rows(5, 3, 0, 1, 17), dynamic=True, backend=backend, programs=1)


@pytest.mark.parametrize(
    "neighbours",
    [lambda x: x[1:] - x[:-1], lambda x: x[2:] + x[:-2] - x[1:-1], lambda x: x[3:] * x[:-3]],
)
def test_neighbours_of_any_number(neighbours: Callable[[torch.Tensor], torch.Tensor]) -> None:
    sizes = [(torch.randn(size),) for size in (9, 4, 30, 3)]
    check(neighbours, [*sizes, (torch.zeros(1),), (torch.zeros(0),)], programs=1, dynamic=True)


def test_runs_of_equal_elements_of_any_number() -> None:
    rows = [(torch.arange(size) // 3 % 2,) for size in (9, 4, 30, 1)]
    check(torch.unique_consecutive, rows, programs=2, backend="emulator")
    check(torch.unique, rows, programs=2)

"""Fake tensors made directly, and results of operators that are remembered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import stretto
from stretto.frontends.python.operators import checks
from stretto.frontends.python.tracing import fakes
from stretto.frontends.python.tracing.fakes import (
    call_key,
    contiguous_strides,
    fake_like,
    known_result,
    remember,
)

aten = torch.ops.aten


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> FakeTensorMode:
    monkeypatch.setattr(fakes, "_results", {})
    return FakeTensorMode(allow_non_fake_inputs=True)


def layout(item: torch.Tensor) -> tuple[Any, ...]:
    memory = item.untyped_storage().nbytes()
    return item.shape, item.stride(), item.storage_offset(), item.dtype, item.device, memory


REAL = {
    "contiguous": torch.rand(3, 4),
    "scalar": torch.tensor(3),
    "empty": torch.rand(0, 4),
    "transposed": torch.rand(3, 4).t(),
    "offset": torch.rand(6, 4)[2:],
    "row": torch.rand(6, 4)[1],
    "column": torch.rand(6, 4)[:, 1],
    "expanded": torch.rand(3, 1).expand(3, 4),
    "parameter": torch.nn.Parameter(torch.rand(3)),
    "half": torch.rand(3).half(),
}


@pytest.mark.parametrize("name", REAL)
def test_a_fake_has_the_layout_of_the_real_tensor(mode: FakeTensorMode, name: str) -> None:
    real = REAL[name]
    made = fake_like(mode, real)
    assert layout(made) == layout(real)
    assert layout(made) == layout(mode.from_tensor(real.detach(), static_shapes=True))
    assert not made.requires_grad


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.add.Tensor, (REAL["contiguous"], 1)),
        (aten.mm.default, (REAL["contiguous"], REAL["transposed"])),
        (aten.select.int, (REAL["offset"], 0, 1)),
        (aten.permute.default, (REAL["contiguous"], [1, 0])),
        (aten.split.Tensor, (REAL["offset"], 2)),
        (aten.max.dim, (REAL["contiguous"], 1)),
        (aten.cat.default, ([REAL["contiguous"], REAL["contiguous"]], 1)),
        (aten._to_copy.default, (REAL["half"],)),
        (aten.expand.default, (REAL["row"], [3, 4])),
    ],
)
def test_a_remembered_result_is_that_of_the_operator(
    mode: FakeTensorMode, func: Any, args: Any
) -> None:
    key = call_key(func, args, {})
    assert known_result(mode, key) is None
    with mode:
        given = fakes.mapped(
            lambda item: fake_like(mode, item) if isinstance(item, torch.Tensor) else item, args
        )
        outputs = func(*given)
    remember(key, outputs)
    known = known_result(mode, key)
    assert type(known) is type(outputs)
    pairs = (
        zip(known, outputs, strict=True) if isinstance(known, tuple | list) else [(known, outputs)]
    )
    for first, second in pairs:
        assert first is not second
        assert layout(first) == layout(second)


def test_numbers_of_other_types_and_other_settings_are_other_calls(mode: FakeTensorMode) -> None:
    x = REAL["contiguous"]
    keys = {call_key(aten.add.Tensor, (x, number), {}) for number in (1, 1.0, True)}
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    keys.add(call_key(aten.add.Tensor, (x, 1), {}))
    torch.set_default_dtype(previous)
    keys.add(call_key(aten.add.Tensor, (x, 1), {"alpha": 2}))
    keys.add(call_key(aten.add.Tensor, (x.t(), 1), {}))
    assert len(keys) == 6


def test_what_changes_tensors_or_is_not_known_is_not_remembered() -> None:
    x = REAL["contiguous"]
    assert call_key(aten.add_.Tensor, (x, 1), {}) is None
    assert call_key(aten.add.Tensor, (x, object()), {}) is None
    assert call_key(torch.ops.prims.add.default, (x, x), {}) is None


def test_no_active_mode_sees_a_fake_being_made(mode: FakeTensorMode) -> None:
    with FakeTensorMode():
        made = fake_like(mode, REAL["contiguous"])
    assert made.device == torch.device("cpu")
    assert made.fake_mode is mode  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (2, 0, 4)])
def test_contiguous_strides(shape: tuple[int, ...]) -> None:
    assert contiguous_strides(shape) == torch.empty(shape).stride()


def count_of_shapes(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often torch infers a shape while a chain of layers is captured for any size."""
    count = 0

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return on_fakes(*args)

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = torch.relu(x @ WEIGHT) + x.sum(0) if x.shape[0] > 2 else x - 1
        return x

    on_fakes = checks.on_fakes
    with monkeypatch.context() as patched:
        patched.setattr(checks, "on_fakes", counted)
        fast = stretto.compile(chain, dynamic=True, backend="interpreter")
        for rows in (3, 7, 2, 5):
            x = torch.rand(rows, 4)
            torch.testing.assert_close(fast(x), chain(x))
    return count


WEIGHT = torch.rand(4, 4)


def test_results_of_symbolic_sizes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (count_of_shapes(layers, monkeypatch) for layers in (3, 9))
    assert 0 < many <= few + 2

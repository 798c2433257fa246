"""Rules that decline when they have stored operands: the op becomes a library call, no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo import mark_dynamic

import stretto
from stretto.device.forms import LeafItem
from stretto.device.operator import LibraryCall, Operator
from stretto.device.tree import leaves
from stretto.lowering.lazy import whole_buffer
from stretto.lowering.rules import RULES, Body, Decline, TensorOpCall, rule
from tests.lowering.straight_line import lowered_of_costly


def costly(x: Tensor) -> Tensor:
    return torch.erf(torch.exp(torch.sin(x))) / (2 + torch.tanh(x))


CASES: list[tuple[Any, tuple[int, ...]]] = [
    (lambda x: F.interpolate(costly(x), scale_factor=2, mode="linear"), (2, 3, 8)),
    (lambda x: F.interpolate(costly(x), scale_factor=2, mode="trilinear"), (2, 3, 4, 4, 2)),
]


@pytest.mark.parametrize(("function", "shape"), CASES)
def test_costly_images_of_halves(function: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).bfloat16()
    torch.testing.assert_close(stretto.compile(function)(x), function(x), rtol=2e-2, atol=2e-2)


def test_a_norm_over_groups_of_channels_of_which_the_call_decides_the_number() -> None:
    def function(x: Tensor) -> Tensor:
        return F.group_norm(costly(x), 1)

    compiled = stretto.compile(function)
    for channels in (6, 8):
        x = torch.randn(2, channels, 5)
        mark_dynamic(x, 1, min=2, max=64)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)


@pytest.fixture
def declining(monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], list[LeafItem]]:
    """What remains of `flip` where this is its rule."""

    def lowered(body: Body) -> list[LeafItem]:
        monkeypatch.delitem(RULES, "aten.flip.default")
        rule("aten.flip.default")(body)
        tree = lowered_of_costly("aten.flip.default", torch.randn(3, 4), [0]).tree
        return [item for items in leaves(tree.main.body) for item in items]

    return lowered


def test_what_a_rule_has_stored_when_it_declines_remains(
    declining: Callable[[Body], list[LeafItem]],
) -> None:
    def body(call: TensorOpCall) -> None:
        call.stored("self")
        raise Decline("this comes late")

    assert [type(item) for item in declining(body)] == [Operator, LibraryCall]


def test_a_rule_that_declines_has_changed_nothing(
    declining: Callable[[Body], list[LeafItem]],
) -> None:
    def body(call: TensorOpCall) -> None:
        (param,) = call.low.function.params
        buffer = whole_buffer(call.low.tensor(param))
        assert buffer is not None
        call.low.store(call.tensor("self"), buffer)
        raise Decline("this comes too late")

    with pytest.raises(AssertionError, match="declines after it has changed something"):
        declining(body)

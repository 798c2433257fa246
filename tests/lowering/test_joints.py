"""Tensors that are put together into others are stored where these have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stretto
from stretto.call.entry import Entry
from stretto.lowering.lazy import joints
from tests.support import program_of

Pair = tuple[torch.Tensor, torch.Tensor]


def stacked(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k, v = torch.cat([a, b], 1), torch.cat([2 * a, b], 1)
    return torch.stack([k, v]), torch.softmax(k, -1) @ v.T


def changed(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k = torch.cat([a, b], 1)
    s = torch.stack([k, k + 1])
    k.add_(1)
    s[0, 0] = 5
    return s, k


def changed_whole(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k, v = torch.cat([a, b], 1), torch.cat([b, a], 1)
    return torch.stack([k, v]).relu_(), torch.stack([k, v, k])


def returned(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k, v = torch.cat([a, b], 1), torch.cat([b, a], 1)
    return torch.stack([k, v]), k


def deep(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    one = torch.stack([torch.cat([a, b], 1), torch.cat([-a, b], 1)])
    two = torch.stack([torch.cat([a, -b], 1), torch.cat([b, a], 1)])
    return torch.cat([one, two])


def other_dim(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.cat([a, b], 1), torch.cat([b, a], 1)], 1)


def in_loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    s = torch.stack([torch.cat([a, b], 1), torch.cat([b, a], 1)])
    for _ in range(3):
        s = torch.stack([torch.cat([s[1, :, :1] + 1, s[0, :, 1:]], 1), s[1].tanh()])
    return s


def widened(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    whole = torch.cat([a, b], 1).to(torch.float64)
    return torch.stack([torch.cat([a, b], 1), torch.cat([b, a], 1)]).double() + whole


FUNCTIONS = (stacked, changed, changed_whole, returned, deep, other_dim, in_loop, widened)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["cpu", "emulator"])
def test_eager_gives_the_same(function: Callable[..., object], backend: str) -> None:
    fast = stretto.compile(function, backend=backend)
    for size in (3, 5, 2, 0, 8):
        a, b = torch.randn(2, size), torch.randn(2, 1)
        torch.testing.assert_close(fast(a.clone(), b.clone()), function(a.clone(), b.clone()))


def kernels(entry: Entry) -> int:
    assert entry.stages.device is not None
    return len(entry.stages.device.kernels)


def test_a_cache_is_written_once() -> None:
    """Four parts, each stored once; without their places there would be two more copies."""

    def grown(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.cat([a, b], 1), torch.cat([b, a], 1)])

    fast = stretto.compile(
        grown, backend="emulator", options=stretto.Options(debug=stretto.Debug(fuse=False))
    )
    for size in (3, 5):
        fast(torch.randn(2, size), torch.randn(2, 1))
    assert [kernels(entry) for entry in fast.signatures] == [4, 4]


TEXT = """
func @main(%a: f32[2, 3], %b: f32[2, 1]) -> (f32[2, 2, 4], f32[4, 4]) {
  %k = aten.cat.default((%a, %b), 1) : f32[2, 4]
  %v = aten.cat.default((%b, %a), 1) : f32[2, 4]
  %s = aten.stack.default((%k, %k)) : f32[2, 2, 4]
  %t = aten.cat.default((%v, %k)) : f32[4, 4]
  return %s, %t
}
"""


def test_what_is_a_part_twice_is_stored_by_itself() -> None:
    body = program_of(TEXT).main.body
    k, v, _, t = [op.results[0] for op in body.ops]
    found = joints(body)
    assert {value: (joint.whole, joint.number) for value, joint in found.items()} == {
        v: (t, 0),
        k: (t, 1),
    }

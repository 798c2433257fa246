"""How often inputs and results lie where they lay, and that nobody's results are written again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.machines.cuda.graphs.graph_executable import GraphExecutable
from stretto.machines.cuda.launcher import KEPT_CALLS, ReusedBlocks
from tests.machines.cuda.graphs.programs import APART, arguments, side_by_side, with_library

CUDA = "cuda-emulated"


def compiled(function: Any, **more: Any) -> stretto.Compiled:
    return stretto.compile(function, backend=CUDA, options=APART, **more)


def executable(fast: stretto.Compiled) -> GraphExecutable:
    found = fast.signatures[0].stages.executable
    assert isinstance(found, GraphExecutable)
    return found


@pytest.mark.parametrize("function", [side_by_side, with_library])
def test_equal_inputs_and_results_that_are_dropped(function: Any) -> None:
    """Nothing changes after the first call."""
    fast, inputs = compiled(function), arguments(0)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)
    counts = executable(fast).counts
    assert counts.inputs.rate == counts.results.rate == 1
    assert counts.results.seen == 4 * 2 and counts.patched == 0
    assert counts.made == 1 and counts.as_they_were == counts.replayed - 1 == 4
    text = fast.explain()
    assert "100 % of the inputs where they were, 100 % of the results where they were" in text


def test_other_inputs_do_not_count_as_results() -> None:
    fast, kept = compiled(side_by_side), [arguments(seed) for seed in range(4)]
    with torch.no_grad():
        for inputs in kept:
            fast(*inputs)
    counts = executable(fast).counts
    assert counts.inputs.rate == 0 and counts.results.rate == 1 and counts.patched > 0


def test_results_that_are_kept_are_never_written_again() -> None:
    fast = compiled(side_by_side)
    kept: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    with torch.no_grad():
        for seed in range(6):
            inputs = arguments(seed)
            found = fast(*inputs)
            kept.append((found, tuple(one.clone() for one in found)))
    for found, copies in kept:
        for one, copy in zip(found, copies, strict=True):
            assert torch.equal(one, copy)
    assert executable(fast).counts.results.rate == 0


KEEP: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda result: result[1],
    "storage": lambda result: result.untyped_storage(),
    "numpy": lambda result: result.numpy()[1],
    "alias": lambda result: result.view(-1).view(result.shape)[1],
    "detached": lambda result: result.detach()[1],
}


@pytest.mark.parametrize("keep", KEEP)
def test_whatever_is_kept_of_a_result_keeps_it(keep: str) -> None:
    fast, inputs = compiled(side_by_side), arguments(0)
    with torch.no_grad():
        first, _ = fast(*inputs)
        wanted = first[1].clone()
        kept = KEEP[keep](first)
        place = first.data_ptr()
        del first
        for seed in range(1, 4):
            again, _ = fast(*arguments(seed))
            assert again.data_ptr() != place
    if keep == "storage":
        kept = torch.empty(0).set_(kept, 0, (6, 6))[1]
    assert torch.equal(torch.as_tensor(kept), wanted)


def test_a_result_that_is_the_next_input() -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w) + x.amax(1, keepdim=True)

    fast, (x, w) = compiled(step), arguments(0)
    y = x
    with torch.no_grad():
        for _ in range(6):
            x, y = fast(x, w), step(y, w)
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_results_without_elements_and_of_changing_sizes() -> None:
    fast = compiled(side_by_side, dynamic=True)
    with torch.no_grad():
        for rows in (4, 0, 4, 9, 0, 1, 9):
            inputs = arguments(rows, rows)
            if rows == 0:
                inputs = (torch.empty(0, 8), inputs[1])
                if _refuses(inputs):
                    continue
            torch.testing.assert_close(fast(*inputs), side_by_side(*inputs), rtol=1e-4, atol=1e-4)


def _refuses(inputs: tuple[Tensor, Tensor]) -> bool:
    try:
        side_by_side(*inputs)
    except (RuntimeError, IndexError):
        return True
    return False


def test_blocks_of_one_call_are_apart_and_old_ones_are_forgotten() -> None:
    blocks = ReusedBlocks()
    blocks.begin()
    a, b = blocks.take((2, 3), torch.float32), blocks.take((3, 2), torch.int32)
    assert a.data_ptr() != b.data_ptr()
    given = blocks.hand_out(a)
    assert given.data_ptr() == a.data_ptr() and given.shape == (2, 3)
    assert blocks.hand_out(a) is given  # a result twice
    assert blocks.hand_out(torch.ones(3)).equal(torch.ones(3))  # not of a block
    blocks.begin()
    c = blocks.take((6,), torch.float32)
    assert c.data_ptr() == b.data_ptr()  # which was not handed out; `a` was, and is still there
    assert blocks.take((0, 4), torch.float32).shape == (0, 4)
    del given
    blocks.begin()
    assert blocks.take((6,), torch.float32).data_ptr() == a.data_ptr()
    for _ in range(KEPT_CALLS + 1):
        blocks.begin()
    assert not blocks._blocks  # pyright: ignore[reportPrivateUsage]

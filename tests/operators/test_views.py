"""Rules of views and moves: only indices change, and no element is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.device.tree import leaves
from stretto.lowering.lower_program import lower
from tests.lowering.straight_line import Number, RunStopped, build, check, run


def counted(*shape: int) -> Tensor:
    """Distinct elements, so that a wrong index shows."""
    size = torch.Size(shape).numel()
    return torch.arange(size, dtype=torch.float32).reshape(shape)


def operators(target: str, *args: Any, **kwargs: Any) -> int:
    """The number of operators that the op takes (storing the result included)."""
    program, _ = build(target, *args, **kwargs)
    return sum(len(items) for items in leaves(lower(program).tree.main.body))


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((4, 6), (24,)),
    ((4, 6), (2, 2, 6)),
    ((4, 6), (2, 12)),
    ((4, 6), (3, 8)),
    ((4, 6), (8, 3)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 12)),
    ((2, 1, 3), (3, 2, 1, 1)),
    ((), (1, 1)),
    ((1,), ()),
    ((0, 3), (3, 0)),
]


@pytest.mark.parametrize(("old", "new"), SHAPES)
def test_reshape(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = counted(*old)
    check("aten.view.default", x, list(new))
    check("aten.reshape.default", x, list(new))
    check("aten._unsafe_view.default", x, list(new))


@pytest.mark.parametrize(
    ("target", "args"),
    [
        ("aten.permute.default", [[2, 0, 1]]),
        ("aten.permute.default", [[-1, 1, 0]]),
        ("aten.transpose.int", [0, -1]),
        ("aten.movedim.intlist", [[0, 1], [-1, 0]]),
        ("aten.unsqueeze.default", [0]),
        ("aten.unsqueeze.default", [-1]),
        ("aten.flatten.using_ints", [0, 1]),
        ("aten.unflatten.int", [2, [2, -1]]),
        ("aten.select.int", [1, -1]),
        ("aten.select.int", [0, 1]),
        ("aten.slice.Tensor", [1, 1, 3]),
        ("aten.slice.Tensor", [2, 0, None, 2]),
        ("aten.slice.Tensor", [2, -3, -1]),
        ("aten.slice.Tensor", [0, 5, 9]),
        ("aten.slice.Tensor", [1, None, 100, 2]),
        ("aten.narrow.default", [2, -3, 2]),
        ("aten.flip.default", [[0, 2]]),
        ("aten.flip.default", [[-2]]),
        ("aten.roll.default", [[1], [0]]),
        ("aten.roll.default", [[-1, 2], [1, 2]]),
        ("aten.roll.default", [[5], []]),
        ("aten.repeat.default", [[2, 1, 3]]),
        ("aten.repeat.default", [[2, 1, 1, 2]]),
        ("aten.repeat_interleave.self_int", [2, 1]),
        ("aten.diagonal.default", [0, 0, 2]),
        ("aten.diagonal.default", [1, 1, 2]),
        ("aten.diagonal.default", [-1, 2, 0]),
        ("aten.unfold.default", [2, 2, 1]),
        ("aten.split.Tensor", [2, 1]),
        ("aten.split_with_sizes.default", [[1, 3], 2]),
        ("aten.chunk.default", [2, -1]),
        ("aten.unbind.int", [1]),
        ("aten.tril.default", [1]),
        ("aten.triu.default", [-1]),
        ("aten.clone.default", []),
        ("aten.detach.default", []),
    ],
)
def test_views(target: str, args: list[Any]) -> None:
    check(target, counted(2, 3, 4), *args)


def test_squeeze() -> None:
    x = counted(1, 3, 1, 2)
    check("aten.squeeze.default", x)
    check("aten.squeeze.dim", x, 2)
    check("aten.squeeze.dim", x, 1)
    check("aten.squeeze.dims", x, [0, 2])


def test_expand() -> None:
    check("aten.expand.default", counted(3, 1), [2, 3, 4])
    check("aten.expand.default", counted(3, 1), [-1, 4])
    check("aten.expand.default", counted(), [2, 2])
    check("aten.t.default", counted(3, 2))
    check("aten.t.default", counted(3))


def test_a_view_is_one_operator() -> None:
    """Storing the result, and no copy before."""
    assert operators("aten.permute.default", counted(2, 3, 4), [2, 0, 1]) == 1
    assert operators("aten.constant_pad_nd.default", counted(2, 3), [1, 1]) == 1
    assert operators("aten.cat.default", [counted(2, 3), counted(2, 4)], 1) == 2


@pytest.mark.parametrize("position", (0, 2, -1, -3))
def test_select_at_a_number_of_the_run(position: int) -> None:
    x = counted(3, 4)
    check("aten.select.int", x, 0, Number(position))
    found = run("stretto.narrow", x, 0, Number(-abs(position) % 2), 2)[0]
    assert found.equal(x.narrow(0, abs(position) % 2, 2))


@pytest.mark.parametrize("position", (3, -4, 100))
def test_select_out_of_range_stops_the_run(position: int) -> None:
    with pytest.raises(RunStopped, match="index"):
        run("aten.select.int", counted(3, 4), 0, Number(position))


@pytest.mark.parametrize("position", (2, -1))
def test_a_window_past_the_end_stops_the_run(position: int) -> None:
    with pytest.raises(RunStopped, match="index"):
        run("stretto.narrow", counted(3, 4), 0, Number(position), 2)


@pytest.mark.parametrize("pad", ([1, 2], [0, 1, 2, 0], [-1, 2], [-1, -1, 1, 1], [0, 0]))
def test_constant_pad(pad: list[int]) -> None:
    check("aten.constant_pad_nd.default", counted(3, 4), pad, 7.5)
    check("aten.constant_pad_nd.default", counted(3, 4).bfloat16(), pad)
    check("aten.pad.default", counted(3, 4), pad, "constant", 2.0)


def test_pads_that_repeat() -> None:
    x = counted(2, 3, 4, 5)
    check("aten.reflection_pad2d.default", x, [2, 1, 3, 0])
    check("aten.replication_pad2d.default", x, [2, 1, 0, 4])
    check("aten.reflection_pad1d.default", x[0], [4, 3])
    check("aten.pad.default", x, [1, 2, 3, 1], "circular")
    check("aten.pad.default", x[0], [1, 2, 0, 1], "replicate")


@pytest.mark.parametrize("dim", (0, 1, -1))
def test_cat(dim: int) -> None:
    shapes = [[2, 3, 4] for _ in range(3)]
    shapes[1][dim], shapes[2][dim] = 0, 5
    check("aten.cat.default", [counted(*shape) for shape in shapes], dim)
    check("aten.stack.default", [counted(2, 3), counted(2, 3) + 50], dim)


def test_cat_promotes_and_skips_empty_ones() -> None:
    check("aten.cat.default", [counted(2, 3), torch.ones(1, 3, dtype=torch.int64)])
    check("aten.cat.default", [torch.ones(0), counted(2, 3)])
    check("aten.cat.default", [counted(2), torch.ones(0), counted(1)])


def test_images() -> None:
    check("aten.pixel_shuffle.default", counted(2, 8, 3, 3), 2)
    check("aten.upsample_nearest2d.default", counted(1, 2, 3, 4), [6, 12])
    check("aten.upsample_nearest2d.vec", counted(1, 2, 3, 4), None, [2.0, 3.0])


def test_creation() -> None:
    check("aten.full.default", [2, 3], 1.5)
    check("aten.full.default", [2, 3], Number(4), dtype=torch.float32)
    check("aten.full_like.default", counted(2, 3), 3)
    check("aten.zeros.default", [2], dtype=torch.int64)
    check("aten.ones_like.default", counted(0, 2), dtype=torch.bool)
    check("aten.scalar_tensor.default", 2.5)
    check("aten.arange.default", 5)
    check("aten.arange.start", 2, 7, dtype=torch.float32)
    check("aten.arange.start_step", 7, -3, -2)
    check("aten.arange.start_step", 0.5, 2.0, 0.1)
    check("aten.arange.start_step", 0.5, 4.0, 1, dtype=torch.int64)
    check("aten.linspace.default", -1.0, 2.0, 7)
    check("aten.eye.default", 3)
    check("aten.eye.m", 2, 4)
    check("aten.one_hot.default", torch.tensor([[0, 2], [1, 1]]), 4)


@pytest.mark.parametrize("corners", (False, True))
@pytest.mark.parametrize("size", ([6, 12], [5, 3], [1, 1], [3, 7]))
def test_bilinear(size: list[int], corners: bool) -> None:
    target = "aten.upsample_bilinear2d"
    check(f"{target}.default", counted(1, 2, 3, 4), size, corners)
    check(f"{target}.vec", counted(1, 2, 3, 4), size, corners, None)
    check(f"{target}.vec", counted(1, 2, 3, 4), None, corners, [1.7, 2.0])
    check(f"{target}.default", counted(1, 2, 3, 4).bfloat16(), size, corners)

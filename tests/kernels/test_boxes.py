"""Boxes that are equal slices become one dim more, and the results stay the same."""

from __future__ import annotations

import pytest
import torch

from stretto.ir.types import DType
from stretto.kernels.boxes import merge_boxes
from stretto.kernels.expr import Access, Apply, Buffer, Index, Load, Var
from stretto.kernels.groups import Group, Member
from stretto.kernels.operator import Operator, Span

GATES, WIDTH, DEPTH = 4, 6, 5
W = Buffer("w", DType.F32, (GATES * WIDTH, DEPTH), "input", 0)
H = Buffer("h", DType.F32, (DEPTH,), "input", 1)
OUT = Buffer("out", DType.F32, (GATES * WIDTH,), "output", 2)


def at(buffer: Buffer, *dims: int) -> Access:
    return Access(buffer, buffer.shape, tuple(Index.of(Var(n)) for n in dims))


PRODUCT = Operator(
    "contraction",
    (GATES * WIDTH,),
    (DEPTH,),
    "sum",
    Apply("mul", (Load(at(W, 0, 1)), Load(at(H, 1))), DType.F32),
    at(OUT, 0),
)


def test_gates_become_a_dim() -> None:
    boxes = tuple((Span(GATES * WIDTH, 0, gate * WIDTH),) for gate in range(GATES))
    (member,) = merge_boxes(Group((WIDTH,), (Member(PRODUCT, boxes),))).members
    assert member.boxes == ((Span(GATES), Span(WIDTH, 0)),)
    assert member.operator.dims == (GATES, WIDTH)
    offset = member.operator.out.offset
    assert (offset.coefficient(Var(0)), offset.coefficient(Var(1))) == (WIDTH, 1)
    weights = next(x for x in member.operator.reads() if x.access.buffer == W).access.offset
    assert [weights.coefficient(Var(n)) for n in range(3)] == [WIDTH * DEPTH, DEPTH, 1]


@pytest.mark.parametrize(
    "offsets", [(0,), (0, WIDTH, 3 * WIDTH), (0, 2)], ids=["one", "uneven", "overlapping"]
)
def test_other_boxes_stay(offsets: tuple[int, ...]) -> None:
    boxes = tuple((Span(GATES * WIDTH, 0, offset),) for offset in offsets)
    group = Group((WIDTH,), (Member(PRODUCT, boxes),))
    assert merge_boxes(group) == group


def test_a_merged_kernel_computes_the_same() -> None:
    from stretto.kernels.evaluate import run_task
    from stretto.kernels.operator import Kernel, Stage, TileDim

    boxes = tuple((Span(GATES * WIDTH, 0, gate * WIDTH),) for gate in range(1, GATES))
    results: list[torch.Tensor] = []
    for group in (
        Group((WIDTH,), (Member(PRODUCT, boxes),)),
        merge_boxes(Group((WIDTH,), (Member(PRODUCT, boxes),))),
    ):
        (member,) = group.members
        stages = tuple(Stage(member.operator, box) for box in member.boxes)
        kernel = Kernel("k", (TileDim(WIDTH, 4),), stages)
        memory = _Memory()
        for task in range(kernel.tasks):
            run_task(kernel, task, {}, memory)
        results.append(memory.data["out"])
    assert torch.equal(results[0].isnan(), results[1].isnan())
    torch.testing.assert_close(results[0], results[1], equal_nan=True)
    wanted = _Memory().data["w"].view(-1, DEPTH) @ _Memory().data["h"]
    torch.testing.assert_close(results[1][WIDTH:], wanted[WIDTH:])


class _Memory:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.data = {
            "w": torch.randn(GATES * WIDTH * DEPTH, generator=generator),
            "h": torch.randn(DEPTH, generator=generator),
            "out": torch.full((GATES * WIDTH,), float("nan")),
        }

    def elements(self, buffer: Buffer) -> int:
        return self.data[buffer.name].numel()

    def read(self, buffer: Buffer, offsets: torch.Tensor) -> torch.Tensor:
        return self.data[buffer.name][offsets]

    def write(self, buffer: Buffer, offsets: torch.Tensor, values: torch.Tensor) -> None:
        self.data[buffer.name][offsets] = values

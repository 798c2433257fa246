"""Pointwise stages that the blocks of a product can compute while they hold its results.

Bias, activation, a residual: a stage directly behind a product, over the same box, which reads of
what the stages before it made only the element that it is at itself.
"""

from __future__ import annotations

from stretto.device.operator import Operator, Stage
from stretto.kernels.groups import divisible
from stretto.machines.cuda.template import CudaTemplate


def epilogue(stages: tuple[Stage, ...], place: int) -> tuple[Stage, ...]:
    """The stages behind the product at `place` that are part of it."""
    first = stages[place]
    if first.operator.accumulate or not _takes_epilogue(first):
        return ()
    found: list[Stage] = []
    for stage in stages[place + 1 :]:
        if not follows(stage, [first, *found]):
            break
        found.append(stage)
    return tuple(found)


def _takes_epilogue(stage: Stage) -> bool:
    return isinstance(stage.template, CudaTemplate) and stage.template.has_epilogue


def follows(stage: Stage, before: list[Stage]) -> bool:
    """Can a stage take what it wants of those before it element by element?"""
    operator, first = stage.operator, before[0]
    if operator.combine or operator.accumulate or not divisible(operator):
        return False
    if stage.box != first.box or operator.dims != first.operator.dims:
        return False
    made = {item.operator.out.buffer: item.operator for item in before}
    if operator.out.buffer in made or any(_reads(op, operator) for op in made.values()):
        return False
    if not _in_place(operator):
        return False
    same = [
        load.access.offset == made[load.access.buffer].out.offset
        for load in operator.reads()
        if load.access.buffer in made
    ]
    return bool(same) and all(same)


def _reads(reader: Operator, writer: Operator) -> bool:
    return any(load.access.buffer == writer.out.buffer for load in reader.reads())


def _in_place(operator: Operator) -> bool:
    """What it reads of the buffer it writes is the element itself."""
    out = operator.out
    return all(
        load.access.offset == out.offset
        for load in operator.reads()
        if load.access.buffer == out.buffer
    )

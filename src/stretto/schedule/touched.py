"""What the items of a DeviceProgram touch, for the verifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stretto.kernels.operator import Kernel
from stretto.kernels.regions import (
    Region,
    block_regions,
    kernel_regions,
    stage_regions,
    statement_regions,
)
from stretto.kernels.tree import Check, Let
from stretto.schedule.boxes import MOST_TASKS
from stretto.schedule.program import Item, Run


class Touched:
    """Looks at every run once: regions of many tasks are most of the verifier's time."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self._kernels = kernels
        self._steps: dict[Run, tuple[tuple[Region, ...], ...]] = {}

    def regions(self, item: Item) -> tuple[Region, ...]:
        """All that an item touches."""
        match item:
            case Run(name, first, count, stride):
                kernel = self._kernels[name]
                if kernel.is_static and stride != 1 and kernel.tasks > MOST_TASKS:
                    return kernel_regions(kernel)
                if count != 1 and stride == 1:
                    return block_regions(kernel, first, count or 1)
                return tuple(region for step in self.steps(item) for region in step)
            case Let() | Check():
                return statement_regions(item)
            case _:
                return ()

    def steps(self, item: Item) -> tuple[tuple[Region, ...], ...]:
        """What an item touches, one stage of one task after the other."""
        match item:
            case Run():
                if item not in self._steps:
                    self._steps[item] = tuple(self._run(item))
                return self._steps[item]
            case Let() | Check():
                return (statement_regions(item),)
            case _:
                return ()

    def _run(self, run: Run) -> Iterator[tuple[Region, ...]]:
        kernel = self._kernels[run.kernel]
        if run.count is None or kernel.call is not None:
            yield kernel_regions(kernel)
        elif len(kernel.stages) == 1 and run.stride == 1:
            yield block_regions(kernel, run.first, run.count)
        else:
            for task in range(run.first, kernel.tasks, run.stride)[: run.count]:
                yield from stage_regions(kernel, task)

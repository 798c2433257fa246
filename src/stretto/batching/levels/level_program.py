"""A level program that is built for a machine, ready to be called with tables."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller

import torch

from stretto.batching.levels.program import LevelCode, level_code
from stretto.batching.levels.tables import Layout, Tables
from stretto.batching.program import Block
from stretto.batching.types import TensorType
from stretto.build import build
from stretto.errors import LibraryLayoutError
from stretto.ir.sizes import Size
from stretto.lowering.updates import Updates
from stretto.machines.machine import HOST, Stages
from stretto.machines.registry import default_machine, find_machine
from stretto.options import Options
from stretto.runtime.constants import Weights
from stretto.runtime.results import Result


class LevelProgram:
    """All blocks of an instance program as one program of a machine.

    It changes pools where they lie. A run that begins again makes the same of the same tables, for
    no step writes rows that it, or a step before it, reads.

    code: its Program, and which operators run once per row. stages: what the machine made of it.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        pools: Sequence[TensorType] = (),
        options: Options | None = None,
        backend: str | None = None,
        device: torch.device = HOST,
        rows: Sequence[int] = (),
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        """backend: the machine's name; None is the default one. pools: the types of pools that come
        first, in this order; types that are only in blocks follow. rows, skipped: as for
        `level_code`.
        Raises CaptureError, with the user's line, for a block that cannot be captured, and the
        error of the stage that fails."""
        options = options or Options()
        machine = default_machine() if backend is None else find_machine(backend)
        machine.require_ready()
        machine.prepare(options)
        by_row = set[str]()
        while True:
            self.code: LevelCode = level_code(blocks, options, pools, by_row, rows, skipped)
            try:
                self.stages: Stages = build(
                    self.code.program, machine, options, device, _updates(self.code)
                )
                break
            except LibraryLayoutError as error:
                if error.target in by_row:
                    raise
                by_row.add(error.target)
        assert self.stages.executable is not None
        self._executable = self.stages.executable
        if machine.is_native:
            self._places = _places(self.code, self.stages)
        self._call = self._run_native if machine.is_native else self._run_sized
        folded = self.stages.program.folded.sources | self.code.program.folded.sources
        self.weights = Weights(
            [
                source.tensor
                for source in self.code.sources
                if source.tensor.is_cpu
                and (source.key is None or source.tensor.untyped_storage().data_ptr() in folded)
            ],
            self._executable.copies,
            native=machine.is_native,
        )

    @property
    def layout(self) -> Layout:
        return self.code.layout

    def is_current(self) -> bool:
        """Whether the program is still right for what modules and parameters hold. Copies of
        parameters that have changed are made anew."""
        return all(watch.is_current() for watch in self.code.watches) and self.weights.is_current()

    def expect(self) -> None:
        """Tells that a run is about to come, so that threads wake up while tables are made."""
        self._executable.expect()

    def run(self, tables: Tables, pools: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the steps; the pools with the results, in the same order.

        pools: contiguous tensors [capacity, *shape], one for each of `layout.pools`. They are
        changed in place; a run that stops has written some of the results.
        """
        results = list(pools)
        if not _rows(tables.steps):
            return results
        made = self._call(tables, results)
        for number, pool in zip(self.layout.written, made, strict=True):
            assert isinstance(pool, torch.Tensor)
            results[number] = pool
        return results

    def _limits(self, tables: Tables) -> tuple[int, int]:
        rows, length = self.code.least
        return max(rows, tables.largest), max(length, tables.longest)

    def _run_sized(self, tables: Tables, pools: list[torch.Tensor]) -> list[Result]:
        """Reads the sizes of the launch from its tensors."""
        limits = [
            torch.empty((limit, 0), dtype=torch.uint8, device=tables.steps.device)
            for limit in self._limits(tables)
        ]
        return self._executable([tables.steps, tables.indices, tables.numbers, *limits, *pools])

    def _run_native(self, tables: Tables, pools: list[torch.Tensor]) -> list[Result]:
        """Tells the sizes, so that nobody compares shapes: a launch may take microseconds."""
        steps, indices, numbers = tables.steps, tables.indices, tables.numbers
        known = [
            *map(_rows, (steps, indices, numbers)),
            *self._limits(tables),
            *map(_rows, pools),
        ]
        sizes = [known[place] for place in self._places]
        return self._executable([steps, indices, numbers, _NOTHING, _NOTHING, *pools], sizes)


_NOTHING = torch.empty((1, 0), dtype=torch.uint8)
"""What stands for a limit: nobody reads it."""


_rows = methodcaller("size", 0)
"""What `len` of a tensor is, which takes ten times as long."""


def _updates(code: LevelCode) -> Updates:
    """Which parameters are changed in place: the pools that blocks write."""
    first = len(code.program.main.params) - len(code.layout.pools)
    pairs = tuple((first + pool, n) for n, pool in enumerate(code.layout.written))
    return Updates(pairs, repeatable=True)


def _places(code: LevelCode, stages: Stages) -> list[int]:
    """For each symbol of the executable, which parameter has it as its first dim."""
    leads = [Size.of(param.tensor.shape[0]).symbol for param in code.program.main.params]
    _, interface = stages.runnable()
    return [leads.index(symbol) for symbol in interface.symbols]

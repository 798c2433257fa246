"""`Batched.tune()`: kernels chosen for the numbers of rows that occur (ACRoBat, D.1 and E.5).

A batch shows how many rows each block runs with. Kernels are then selected for these by the costs
of the machine, the resulting programs are measured, and the fastest is kept in the build cache for
all processes. Each of them is right for any number of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stretto.batching.instance_program import InstanceProgram
from stretto.batching.levels.tables import BLOCK, ROWS
from stretto.batching.printer import print_program
from stretto.errors import BuildError
from stretto.machines.registry import find_machine
from stretto.options import Options
from stretto.runtime.cache import DiskCache, content_key
from stretto.runtime.compiler import cpu
from stretto.text import table

AS_USUAL = "as usual"
FOR_THESE_ROWS = "for these rows"
ON_ONE_UNIT = "for these rows, on one unit"
GAIN = 0.97
"""Another choice than the usual one must take at most this fraction of its time."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The choice of kernels of a level program.

    name: of the choice, one of the constants above. rows: the usual number of rows of each
    block; 0 where none was seen, empty where nothing is known. units: number of units, or None
    for that of the options. instances: size of the batch that was measured. milliseconds: the
    least time of the tensor operators of this batch, by choice.
    """

    name: str = AS_USUAL
    rows: tuple[int, ...] = ()
    units: int | None = None
    instances: int = 0
    milliseconds: tuple[tuple[str, float], ...] = ()

    def options(self, given: Options) -> Options:
        """Return the options to build the level program with."""
        return given if self.units is None else replace(given, threads=self.units)

    def __str__(self) -> str:
        if not self.milliseconds:
            return "kernels are chosen as usual: nothing was measured\n"
        found = [
            (name, f"{value:.3f}", "taken" if name == self.name else "")
            for name, value in self.milliseconds
        ]
        head = f"kernels are chosen {self.name}, by a batch of {self.instances} instances\n"
        return head + table(found, ("kernels", "ms of tensor operators", ""))


def usual_rows(steps: Sequence[torch.Tensor], blocks: int) -> tuple[int, ...]:
    """Return for each block the median number of rows, weighted by rows: half of its rows are in
    steps of at most that many. steps: i64 [S, width], a table per launch."""
    found: list[list[int]] = [[] for _ in range(blocks)]
    for launch in steps:
        for row in launch.tolist():
            found[row[BLOCK]].append(row[ROWS])
    return tuple(_middle(sorted(counts)) for counts in found)


def _middle(counts: list[int]) -> int:
    half, before = sum(counts) / 2, 0
    for count in counts:
        before += count
        if before >= half:
            return count
    return 0


def ways(rows: tuple[int, ...], options: Options, backend: str) -> list[Tuning]:
    """Return the choices to measure, the usual kernels first."""
    found = [Tuning(), Tuning(FOR_THESE_ROWS, rows)]
    if find_machine(backend).is_native and options.unit_count() > 1:
        found.append(Tuning(ON_ONE_UNIT, rows, 1))
    return found


def fastest(
    found: Sequence[Tuning], seconds: Callable[[Tuning], float], instances: int, runs: int
) -> Tuning:
    """Return the choice that takes least time, with the times of all. seconds: runs a choice once
    and returns its time; the choices take turns."""
    times: list[list[float]] = [[] for _ in found]
    for _ in range(runs + 1):  # the first run of each is not counted
        for way, spent in zip(found, times, strict=True):
            spent.append(seconds(way))
    least = [min(spent[1:]) for spent in times]  # the minimum excludes time of other processes
    best = min(range(len(found)), key=least.__getitem__)
    if least[best] > GAIN * least[0]:
        best = 0
    named = tuple((way.name, each * 1e3) for way, each in zip(found, least, strict=True))
    return replace(found[best], instances=instances, milliseconds=named)


# ---- storage in the build cache --------------------------------------------------------------


def keep(tuning: Tuning, program: InstanceProgram, options: Options, backend: str) -> None:
    """Store the choice for later compilations of this program on such a machine. If the cache
    cannot be written, the choice holds for this batcher only."""
    cache, key = DiskCache(options.cache_path()), _key(program, options, backend)
    measured = tuning.instances, tuning.milliseconds
    text = json.dumps((tuning.name, tuning.rows, tuning.units, *measured))

    def write(path: Path) -> None:
        path.write_text(text)

    with suppress(BuildError, OSError):
        if (old := cache.get(key, _SUFFIX)) is not None:
            old.unlink(missing_ok=True)
        cache.put(key, _SUFFIX, write)


def kept(program: InstanceProgram, options: Options, backend: str) -> Tuning:
    """Return the stored choice for this program; the usual one if there is none."""
    path = DiskCache(options.cache_path()).get(_key(program, options, backend), _SUFFIX)
    if path is None:
        return Tuning()
    try:
        name, rows, units, instances, milliseconds = json.loads(path.read_text())
        pairs = tuple((str(way), float(value)) for way, value in milliseconds)
        found = Tuning(name, tuple(map(int, rows)), units, int(instances), pairs)
    except (OSError, ValueError, TypeError):
        return Tuning()
    return found if len(found.rows) in (0, len(program.blocks)) else Tuning()


def _key(program: InstanceProgram, options: Options, backend: str) -> str:
    units = f"{options.unit_count()} {options.units}"
    return content_key("tuning", print_program(program), backend, units, cpu())

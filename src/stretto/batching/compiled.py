"""A compiled batch: the host program and the level program of one signature, and their pools."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import string_at
from dataclasses import dataclass, field
from operator import gt
from time import perf_counter
from typing import Any

import torch

from stretto.batching.frontend import Evaluation, read_instance
from stretto.batching.host.host_program import Flat, HostProgram
from stretto.batching.host.tables import layout
from stretto.batching.instance_guards import Check, TensorGuards
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.levels.level_program import LevelProgram
from stretto.batching.passes.pipeline import BatchPasses, run_passes
from stretto.batching.serving import InstanceFailure, InstanceResult, Outcome
from stretto.batching.tuning import Tuning, fastest, keep, kept, usual_rows, ways
from stretto.call.compiler import AUTO
from stretto.call.eager import check_gradients
from stretto.errors import BuildError
from stretto.ir.types import DataType
from stretto.locks import ForkSafeLock
from stretto.machines.machine import HOST, Machine
from stretto.machines.registry import default_machine, find_machine
from stretto.ops.infer import quiet
from stretto.options import Options
from stretto.passes.horizontal import Horizontal
from stretto.runtime.probes import native_check

# ---- No garbage collection while a program is made.
#
# Nearly all objects made then stay alive. Python would search them, and all of torch's, again and
# again for cycles that do not exist: a fifth of the time.


_lock = ForkSafeLock()
_blocks = 0
"""Number of threads inside an `uncollected` block."""


@contextmanager
def uncollected() -> Generator[None]:
    """Turn off the collection of reference cycles inside the block, in all threads."""
    global _blocks
    with _lock:
        if not _blocks and not gc.isenabled():
            is_counted = False  # the user has turned it off
        else:
            is_counted = True
            _blocks += 1
            gc.disable()
    try:
        yield
    finally:
        if is_counted:
            _leave()


def _leave() -> None:
    global _blocks
    with _lock:
        _blocks = max(_blocks - 1, 0)  # `_after_fork` may have reset it to 0
        if not _blocks:
            _move_to_oldest_generation()
            gc.enable()


def _move_to_oldest_generation() -> None:
    """Move all objects to the oldest generation: new ones would be searched at once, old ones are
    not."""
    if not gc.get_freeze_count():  # else objects that the user has frozen would be unfrozen
        gc.freeze()
        gc.unfreeze()


def _after_fork() -> None:
    """Reset the counter in a child process, which has none of the parent's other threads."""
    global _blocks
    if _blocks:
        _blocks = 0
        gc.enable()


os.register_at_fork(after_in_child=_after_fork)

# ---- Instances that are flattened once and run many times.


class Flattened:
    """Columns of instances whose native form each batcher stores. Created by `stretto.flatten`.

    The instances are read when a batcher sees them for the first time, and must not be changed
    after that; the contents of their tensors may be.
    """

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = tuple(tuple(column) for column in columns)
        self._known: weakref.WeakKeyDictionary[HostProgram, Flat] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.columns[0])

    def of(self, host: HostProgram) -> Flat:
        """Return the native form for a host program. Raises OtherInstance."""
        found = self._known.get(host)
        if found is None:
            found = self._known[host] = host.flatten(self.columns)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Flattened, (self.columns,)


def flatten(instances: Sequence[Any], *more: Sequence[Any]) -> Flattened:
    """Return instances that a batcher reads only once: `many(stretto.flatten(trees))`.

    instances, more: a sequence for each positional parameter, all of one length. Meant for data
    that is run more than once, as in an evaluation after each epoch. Raises ValueError for
    columns of different lengths.
    """
    columns = (instances, *more)
    if len({len(column) for column in columns}) > 1:
        raise ValueError("flatten: all sequences must have the same length")
    return Flattened(columns)


FIRST_ROWS = 256
"""Initial number of rows of a pool."""
MOST_KEPT = 64
"""Number of launches of a call whose steps are stored for `explain`."""


@dataclass(slots=True)
class Times:
    """Seconds of a call by activity, as in ACRoBat's Table 5, and the number of launches.

    flatten: instances to native values. copy: their tensors to the pools. record: walking them.
    schedule: sorting the recorded blocks into tables. execute: the level program. results:
    building Python's objects.
    """

    flatten: float = 0.0
    copy: float = 0.0
    record: float = 0.0
    schedule: float = 0.0
    execute: float = 0.0
    results: float = 0.0
    launches: int = 0


class LaunchStopped(Exception):
    """A launch ended with an error that one of its instances would raise alone; which one is not
    known."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class CompiledBatch:
    """The program of a signature, ready to run."""

    program: InstanceProgram
    evaluation: Evaluation
    host: HostProgram
    levels: LevelProgram | None
    tuning: Tuning
    """The choice of kernels that `levels` was built with."""
    device: torch.device
    values_hold: Check
    """Checks that the static values that the program relies on are unchanged."""
    tensors: TensorGuards
    seconds: dict[str, float]
    """Seconds that each part of the compilation took."""
    pools: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    times: Times = field(default_factory=Times)
    """Times of the last call."""
    _steps: list[bytes] = field(default_factory=list[bytes])
    _capacities: list[int] = field(default_factory=list[int])
    """The rows of each pool, cached since `len` of a tensor takes a microsecond."""

    def __post_init__(self) -> None:
        for type_, permanent in zip(
            self.host.layout.pools, self.host.layout.permanent, strict=True
        ):
            rows = max(FIRST_ROWS, permanent)
            self.pools.append(_pool(rows, type_.static_shape(), type_.dtype.torch, self.device))
        self._capacities = [len(pool) for pool in self.pools]
        self.host.write_shared(self.pools)

    @property
    def steps(self) -> list[torch.Tensor]:
        """The steps of the last call, an i64 table [S, width] per launch, for the first
        `MOST_KEPT` launches."""
        tables = [torch.frombuffer(bytearray(words), dtype=torch.int64) for words in self._steps]
        return [table.view(-1, self.host.layout.width) for table in tables]

    def is_current(self) -> bool:
        """Return True if all static values and parameters are those that the program was built
        for."""
        if not self.values_hold() or not self.tensors.hold():
            return False
        return self.levels is None or self.levels.is_current()

    def run(
        self, columns: Sequence[Sequence[Any]], flattened: Flattened | None = None
    ) -> list[Outcome]:
        """Return the outcomes of all instances. flattened: the same columns with their native
        form. Raises OtherInstance for an instance with data of a kind that the program does not
        cover, and RequiresGrad for a tensor that requires grad while grad mode is on."""
        begin = perf_counter()
        flat = self.host.flatten(columns) if flattened is None else flattened.of(self.host)
        self.times = Times(flatten=perf_counter() - begin)
        if torch.is_grad_enabled():
            check_gradients(self.tensors.tensors)
            check_gradients(flat.tensors())
        try:
            return self.run_flat(flat)
        except LaunchStopped as stopped:
            error = stopped.error
        return self._bisect_failures(columns, 0, error)

    def _bisect_failures(
        self, columns: Sequence[Sequence[Any]], first: int, error: Exception
    ) -> list[Outcome]:
        """Find the failing instances of a launch that a check stopped without naming one: run both
        halves separately, and so on, until each failing instance is alone. This is safe since
        programs are pure. first: the number of the first instance."""
        count = len(columns[0])
        if count == 1:
            error.add_note(f"in instance {first}")
            return [InstanceFailure(error)]
        outcomes: list[Outcome] = []
        for low, high in ((0, count // 2), (count // 2, count)):
            half = [column[low:high] for column in columns]
            try:
                outcomes += self.run_flat(self.host.flatten(half), first + low)
                continue
            except LaunchStopped as stopped:
                error = stopped.error
            # Outside `except`, else the errors of the halves would have this one as context.
            outcomes += self._bisect_failures(half, first + low, error)
        return outcomes

    def run_flat(self, flat: Flat, first: int = 0) -> list[Outcome]:
        """Return the outcomes of instances that are already flattened. first: the number of the
        first instance in messages. Raises LaunchStopped."""
        times = self.times
        begin = perf_counter()
        if self.levels is not None:
            self.levels.expect()
        self._grow(flat.rows)
        self.host.write_shared(self.pools)
        flat.copy_into(self.pools)
        times.copy += perf_counter() - begin
        run = self.host.start(flat)
        self._steps = []
        while (tables := run.advance(self.pools)) is not None:
            self._grow(run.needed_rows())
            begin = perf_counter()
            assert self.levels is not None
            try:
                self.pools = self.levels.run(tables, self.pools)
            except Exception as error:
                raise LaunchStopped(error) from None
            times.execute += perf_counter() - begin
            times.launches += 1
            if len(self._steps) < MOST_KEPT:
                self._steps.append(string_at(tables.steps.data_ptr(), tables.steps.nbytes))
        begin = perf_counter()
        results = run.results(self.pools, first)
        times.results += perf_counter() - begin
        spent = run.times()
        times.record, times.schedule = spent.record, spent.schedule
        return [
            InstanceFailure(item) if isinstance(item, BaseException) else InstanceResult(item)
            for item in results
        ]

    def _grow(self, rows: Sequence[int]) -> None:
        """Enlarge the pools that have fewer than `rows` rows; existing rows keep their contents."""
        if not any(map(gt, rows, self._capacities)):
            return
        for number, (pool, needed) in enumerate(zip(self.pools, rows, strict=True)):
            if needed > len(pool):
                larger = _pool(max(needed, 2 * len(pool)), pool.shape[1:], pool.dtype, pool.device)
                with torch.no_grad():
                    larger[: len(pool)].copy_(pool)
                self.pools[number] = larger
        self._capacities = [len(pool) for pool in self.pools]


def _pool(
    rows: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.zeros((rows, *shape), dtype=dtype, device=device)


def compile_batch(
    function: Callable[..., Any],
    parameters: Sequence[tuple[str, DataType]],
    keywords: Sequence[tuple[str, DataType]],
    static: dict[str, Any],
    evaluation: Evaluation,
    backend: str,
    options: Options,
    passes: BatchPasses | None = None,
) -> CompiledBatch:
    """Build the program of a function for instances of these types. Raises CaptureError for what
    cannot be batched, and the errors of the build stages."""
    with uncollected(), quiet():
        return _compiled(
            function, parameters, keywords, static, evaluation, backend, options, passes
        )


def _compiled(
    function: Callable[..., Any],
    parameters: Sequence[tuple[str, DataType]],
    keywords: Sequence[tuple[str, DataType]],
    static: dict[str, Any],
    evaluation: Evaluation,
    backend: str,
    options: Options,
    passes: BatchPasses | None,
) -> CompiledBatch:
    seconds: dict[str, float] = {}
    begin = perf_counter()
    read = read_instance(function, parameters, evaluation, options, keywords, static)
    program = read.program
    seconds["evaluate"] = perf_counter() - begin
    begin = perf_counter()
    run_passes(program, passes)
    seconds["passes"] = perf_counter() - begin
    machine = default_machine() if backend == AUTO else find_machine(backend)
    if torch.is_grad_enabled():
        check_gradients(read.tensors)
    _require_main_memory(machine, read.tensors)
    is_tuned = (passes or BatchPasses()).tuned
    tuning = kept(program, options, machine.name) if is_tuned else Tuning()
    with ThreadPoolExecutor(1) as beside:
        begin = perf_counter()
        building = beside.submit(HostProgram, program, options)
        levels = _level_program(program, options, machine.name, tuning) if program.blocks else None
        seconds["levels"] = perf_counter() - begin
        host = building.result()
        seconds["host"] = host.seconds_to_build
    sources = () if levels is None else levels.code.sources
    places = TensorGuards(
        [*read.tensors, *host.shared, *(source.tensor for source in sources)],
        read.content,
        native=machine.is_native,
    )
    values = read.values(native_check(options) if machine.is_native else None)
    return CompiledBatch(program, evaluation, host, levels, tuning, HOST, values, places, seconds)


def _require_main_memory(machine: Machine, shared: Sequence[torch.Tensor]) -> None:
    """Raise BuildError for a machine, or a tensor of the function, on a device other than the CPU:
    instances are walked, and decisions on values made, in main memory."""
    remedy = 'move the model and the instances to the CPU; backend "cuda-emulated" runs there'
    if machine.device_type != HOST.type:
        raise BuildError(
            f"a batch of instances cannot run on {machine.device_type} (backend {machine.name!r})",
            remedy=remedy,
        )
    for tensor in shared:
        if tensor.device.type != HOST.type:
            raise BuildError(
                f"the function has a tensor on {tensor.device}, but batches run on {HOST}",
                remedy=remedy,
            )


def _level_program(
    program: InstanceProgram, options: Options, machine: str, tuning: Tuning
) -> LevelProgram:
    pools = layout(program).pools
    given = tuning.options(options)
    skipped = frozenset[str]() if program.joins else frozenset((Horizontal.name,))
    return LevelProgram(program.blocks, pools, given, machine, rows=tuning.rows, skipped=skipped)


def tune_batch(
    compiled: CompiledBatch,
    columns: Sequence[Sequence[Any]],
    options: Options,
    backend: str,
    runs: int,
) -> Tuning:
    """Choose the kernels that are fastest for these instances, and store the choice in the build
    cache."""
    if runs < 1:
        raise ValueError(f"tune: runs must be at least 1, not {runs}")
    compiled.run(columns)
    if compiled.levels is None:
        return compiled.tuning
    machine = default_machine().name if backend == AUTO else backend
    program, before = compiled.program, compiled.levels
    rows = usual_rows(compiled.steps, len(program.blocks))
    found = ways(rows, options, machine)
    built = {way.name: _level_program(program, options, machine, way) for way in found}

    def seconds(way: Tuning) -> float:
        compiled.levels = built[way.name]
        compiled.run(columns)
        return compiled.times.execute

    try:
        best = fastest(found, seconds, len(columns[0]), runs)
    except BaseException:
        compiled.levels = before
        raise
    compiled.levels, compiled.tuning = built[best.name], best
    keep(best, program, options, machine)
    return best

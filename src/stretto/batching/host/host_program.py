"""The host program: an InstanceProgram, built as native code, that runs batches of instances.

    host = HostProgram(program)
    flat = host.flatten([trees])                 # a sequence per parameter
    run = host.start(flat)
    flat.copy_into(pools)                        # pools: tensors [capacity, *shape]
    while (tables := run.advance(pools)) is not None:
        ...                                      # run the tables; pools have run.needed_rows() rows
    results = run.results(pools)                 # values, and exceptions of instances that failed

All native functions run with the GIL held, so several threads may use one program. A BatchRun
belongs to one thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import is_
from pathlib import Path
from typing import Any, cast

import torch

from stretto.batching.host.native import PythonClasses, library_of, mismatch, tensor_object
from stretto.batching.host.printer import print_program
from stretto.batching.host.tables import layout
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.levels.tables import Tables
from stretto.batching.primitives import OVERFLOW, apply
from stretto.errors import RunError, SourceLocation
from stretto.ir.core import Op
from stretto.ir.data import AssignOp, RaiseOp, ReadOp
from stretto.ir.types import Scalar
from stretto.options import Options
from stretto.runtime.cache import content_key
from stretto.runtime.compiler import compile_shared

# ---- The exceptions of instances that failed, from the codes that the host program reports.


# The enum Code of include/run.h.
_PYTHON, _OVERFLOW, _RECURSION, _INPUT, _COMPLEX, _MEMORY = range(6)
_READ: dict[Any, type] = {Scalar.BOOL: bool, Scalar.INT: int, Scalar.FLOAT: float}


def exception(
    program: InstanceProgram,
    statement: Op | None,
    code: int,
    arguments: tuple[Any, ...],
    instance: int,
) -> BaseException:
    """Return the exception that running the instance alone would raise; a note names the instance
    and the line.

    code: the reason, an enum Code. arguments: the operands of the statement that failed.
    """
    location = getattr(statement, "location", None)
    match code:
        case 0:
            assert statement is not None
            found = _raised(program, statement, arguments, location)
        case 1:
            found = OverflowError(OVERFLOW)
        case 2:
            found = RecursionError("maximum recursion depth exceeded")
        case 3:
            found = RunError(
                "an object that came in with the instance is changed",
                location=location,
                remedy="copy it first (`list(x)`, `dict(x)`, `copy.copy(x)`), and change the copy",
            )
        case 4:
            found = RunError(
                "a negative number to a power that is not an integer would be a complex number",
                location=location,
                remedy="take the power of a number that is not negative",
            )
        case _:
            found = MemoryError("an instance needs more memory than there is")
    place = f", at {location}" if location and not isinstance(found, RunError) else ""
    found.add_note(f"in instance {instance}{place}")
    return found


def _raised(
    program: InstanceProgram,
    statement: Op,
    arguments: tuple[Any, ...],
    location: SourceLocation | None,
) -> BaseException:
    """Return the exception that the statement raises in Python; a RunError if it raises none."""
    if isinstance(statement, RaiseOp):
        return _own(statement, arguments)
    try:
        if isinstance(statement, ReadOp):
            _READ[statement.target.type](*arguments)
        elif isinstance(statement, AssignOp):
            if len(arguments) == len(statement.args):
                apply(program, statement.op, statement.detail, list(arguments))
            else:
                raise TypeError(f"a number is needed, not {type(arguments[0]).__name__}")
    except Exception as error:
        return error.with_traceback(None)
    what = statement.op if isinstance(statement, AssignOp) else type(statement).__name__
    return RunError(
        f"`{what}` cannot be computed per instance for values of these types: "
        + ", ".join(type(argument).__name__ for argument in arguments),
        location=location,
    )


def _own(statement: RaiseOp, arguments: tuple[Any, ...]) -> BaseException:
    """Return the exception of a `raise` in the user's code."""
    if not statement.message:
        return statement.exception()
    values = iter(arguments)
    try:
        texts = [part if isinstance(part, str) else str(next(values)) for part in statement.message]
        return statement.exception("".join(texts))
    except Exception as error:
        return error.with_traceback(None)


_FOLDER = Path(__file__).parent
_HEADERS = _FOLDER / "include"
_SOURCES = (
    "values",
    "numbers",
    "containers",
    "fibers",
    "flush",
    "flatten",
    "tensors",
    "results",
)


class OtherInstance(RunError):
    """Instance number `instance` has a part of a type that the program does not cover."""

    def __init__(self, message: str, instance: int) -> None:
        super().__init__(message)
        self.instance = instance


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Seconds of a run by activity."""

    flatten: float
    record: float
    schedule: float
    results: float


class HostProgram:
    """An InstanceProgram as native code.

    Creating it raises CodegenError for what cannot be printed, BuildError if the compiler fails.
    """

    _kept: int = 0

    def __init__(self, program: InstanceProgram, options: Options | None = None) -> None:
        self.program = program
        self.layout = layout(program)
        source = print_program(program, self.layout)
        runtime = _runtime()
        self.source = f"// runtime: {content_key(*runtime)[:24]}\n{source.text}"
        self.sites = source.sites
        built = compile_shared(self.source, options or Options(), _HEADERS, linked=runtime)
        self.seconds_to_build = built.seconds
        self.native = library_of(built.path)
        self.info: int = self.native.stretto_host_program()
        self.classes = PythonClasses(program.classes)
        self.shared = [item.tensor for item in self.layout.shared]
        self._kept: int = self.native.stretto_host_kept_new()
        self._addresses = ctypes.c_void_p * max(1, len(self.layout.pools))
        self._last: tuple[tuple[torch.Tensor, ...], Any] = (), self._addresses()
        self.rows = ctypes.c_int64 * len(self.layout.pools)
        """ctypes type of an array with one number per pool."""

    def __del__(self) -> None:
        if self._kept:
            self.native.stretto_host_kept_delete(self._kept)

    @property
    def frozen_count(self) -> int:
        """Number of frozen objects that are stored and not read again (descriptor.py). The runtime
        drops all of them when they are too many, or when none of many was seen again."""
        return self.native.stretto_host_kept_count(self._kept)

    def addresses(self, pools: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
        """Return the addresses of the pools, cached since the pools are mostly the same as last
        time."""
        known, addresses = self._last
        if len(known) != len(pools) or not all(map(is_, known, pools)):
            addresses = self._addresses(*[pool.data_ptr() for pool in pools])
            self._last = tuple(pools), addresses
        return addresses

    def write_shared(self, pools: Sequence[torch.Tensor]) -> None:
        """Copy the tensors that all instances share to their permanent rows. pools: as for
        `Flat.copy_into`."""
        if not self.shared:
            return
        if all(pool.is_cpu for pool in pools):
            left = (ctypes.c_int64 * len(self.shared))()
            count = self.native.stretto_host_copy_shared(
                self.info, self.shared, self.addresses(pools), left
            )
            remaining = [self.layout.shared[number] for number in left[:count]]
        else:
            remaining = list(self.layout.shared)
        for item in remaining:
            pools[item.pool][item.row].copy_(item.tensor.detach())

    def flatten(self, columns: Sequence[Sequence[Any]]) -> Flat:
        """Read the instances once. columns: for each parameter of the program, a value for each
        instance; all have one length. Raises OtherInstance."""
        return Flat(self, [list(column) for column in columns], self._kept)

    def start(self, flat: Flat) -> BatchRun:
        """Return a run of these instances. Nothing runs before `advance`."""
        return BatchRun(self, flat)


@cache
def _runtime() -> tuple[str, ...]:
    """Return the sources of the runtime, which every program is linked with."""
    return tuple((_FOLDER / f"{name}.cpp").read_text() for name in _SOURCES)


class Flat:
    """Instances as native values. They are read once, may run many times, and are kept alive.

    rows: the rows of each pool that the shared tensors and those of the instances need.
    """

    handle: int = 0

    def __init__(self, host: HostProgram, columns: list[list[Any]], kept: int) -> None:
        if len(columns) != len(host.program.main.parameters):
            raise ValueError("flatten: there must be a column for each parameter")
        if len({len(column) for column in columns}) > 1:
            raise ValueError("flatten: all columns must have the same length")
        self.host = host
        self.instances = len(columns[0]) if columns else 0
        failed = ctypes.c_int64()
        rows = host.rows()
        handle = host.native.stretto_host_flatten(
            host.info,
            host.classes.table,
            kept,
            columns,
            self.instances,
            rows,
            ctypes.byref(failed),
        )
        if not handle:
            raise self._other(columns, failed.value)
        self.handle = handle
        self.rows = tuple(rows)

    def __del__(self) -> None:
        if self.handle:
            self.host.native.stretto_host_flat_delete(self.handle)

    def _other(self, columns: list[list[Any]], instance: int) -> Exception:
        if instance < 0:
            return MemoryError("there is not enough memory for the instances")
        text = mismatch(self.host.program, columns, instance)
        return OtherInstance(text or f"instance {instance} cannot be read", instance)

    def copy_into(self, pools: Sequence[torch.Tensor]) -> None:
        """Copy the tensors of the instances to their rows. pools: contiguous tensors [capacity,
        *shape] with at least `rows` rows. Permanent rows are not changed."""
        native = self.host.native
        count = native.stretto_host_copy_count(self.handle)
        if not count:
            return
        left = (ctypes.c_int64 * count)()
        if all(pool.is_cpu for pool in pools):
            found = native.stretto_host_copy(self.handle, self.host.addresses(pools), left)
            if found == -2:
                raise RunError(
                    "a tensor of an instance got another shape or dtype since it was flattened",
                    remedy="flatten the instances again",
                )
            numbers = left[:found]
        else:
            numbers = range(count)
        for number in numbers:
            self._copy(number, pools)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors of the instances."""
        native, place = self.host.native, (ctypes.c_int64 * 3)()
        for number in range(native.stretto_host_copy_count(self.handle)):
            yield native.stretto_host_copy_at(self.handle, number, place)

    def _copy(self, number: int, pools: Sequence[torch.Tensor]) -> None:
        place = (ctypes.c_int64 * 3)()
        given: torch.Tensor = self.host.native.stretto_host_copy_at(self.handle, number, place)
        pool, row, rows = place
        with torch.no_grad():
            target = pools[pool][row : row + rows]
            target.copy_(given.reshape(target.shape))


class BatchRun:
    """A run of a batch. Only one thread at a time may use it."""

    _handle: int = 0

    def __init__(self, host: HostProgram, flat: Flat) -> None:
        self._host = host
        self._flat = flat  # keeps its native values alive
        self._native = host.native
        self._handle = host.native.stretto_host_start(flat.handle)
        self._view = host.native.TableView()

    def __del__(self) -> None:
        if self._handle:
            self._native.stretto_host_delete(self._handle)

    def advance(self, pools: Sequence[torch.Tensor]) -> Tables | None:
        """Run all instances until each has ended or waits for a value. Return the tables to run
        before they can continue, in memory that is valid until the next `advance`; None if all
        have ended.

        pools: as for `copy_into`; pools of tensors whose values are read are on the CPU.
        """
        view, tensors = self._view, [None] * 3
        code = self._native.stretto_host_advance(
            self._handle, self._host.addresses(pools), ctypes.byref(view), tensors
        )
        if code < 0:
            raise MemoryError("there is not enough memory for the batch")
        if not code:
            return None
        if tensor_object() is None:
            return self._tables(view)
        steps, indices, numbers = cast(list[torch.Tensor], tensors)
        return Tables(steps, indices, numbers, view.largest, view.longest)

    def _tables(self, view: Any) -> Tables:
        width = self._host.layout.width
        return Tables(
            _tensor(view.steps, view.step_words, torch.int64).view(-1, width),
            _tensor(view.indices, view.index_count, torch.int64),
            _tensor(view.numbers, view.number_count, torch.float64),
            view.largest,
            view.longest,
        )

    def needed_rows(self) -> tuple[int, ...]:
        """Return the number of rows each pool must have for the tables of the last `advance`."""
        return tuple(self._host.rows.from_address(self._view.rows))

    def results(self, pools: Sequence[torch.Tensor], first_instance: int = 0) -> list[Any]:
        """Return for each instance its result, or the exception that ended it. Call it once, after
        `advance` has returned None. Result tensors are copies of rows; objects that came in
        with an instance are returned unchanged. first_instance: the number of the first
        instance in messages."""
        native, count = self._native, len(pools)
        counts = (ctypes.c_int64 * (2 * count))()
        native.stretto_host_collect(self._handle, counts)
        tensors: list[Any] = [None] * sum(counts)
        first = 0
        for pool, memory in enumerate(pools):
            singles, several = counts[2 * pool], counts[2 * pool + 1]
            if not singles and not several:
                continue
            if memory.is_cpu and tensor_object():
                if native.stretto_host_take(self._handle, pool, memory.data_ptr(), tensors):
                    raise MemoryError("there is not enough memory for the results")
            else:
                tensors[first : first + singles + several] = self._taken(memory, pool, several)
            first += singles + several
        results: list[Any] = [None] * self._flat.instances
        failures = (ctypes.c_int32 * (2 * len(results)))()
        native.stretto_host_results(self._handle, self._host.shared, tensors, results, failures)
        for instance, code in enumerate(failures[1::2]):
            if code >= 0:
                site = failures[2 * instance]
                statement = self._host.sites[site] if site >= 0 else None
                given = results[instance] or ()
                number = first_instance + instance
                results[instance] = exception(self._host.program, statement, code, given, number)
        return results

    def _taken(self, memory: torch.Tensor, pool: int, several: int) -> list[torch.Tensor]:
        """Return the rows of a pool that the results need, each as a tensor, followed by the
        tensors of several rows."""
        view = self._view
        self._native.stretto_host_wanted(self._handle, pool, ctypes.byref(view))
        with torch.no_grad():
            singles = _tensor(view.steps, view.step_words, torch.int64).to(memory.device)
            taken = list(memory.index_select(0, singles).unbind())
            if several:
                rows = _tensor(view.indices, view.index_count, torch.int64).to(memory.device)
                lengths = list((ctypes.c_int64 * several).from_address(view.rows))
                taken += memory.index_select(0, rows).split(lengths)
        return taken

    def times(self) -> HostTimes:
        """Return the time spent so far."""
        nanoseconds = (ctypes.c_int64 * 4)()
        self._native.stretto_host_times(self._handle, nanoseconds)
        return HostTimes(*(time * 1e-9 for time in nanoseconds))


def _tensor(address: int | None, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a view of memory of the runtime: `count` elements of 8 bytes."""
    if not count or address is None:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_char * (8 * count)).from_address(address), dtype=dtype)

"""Results of a run as tensors, from the memory that a program wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from math import prod

import torch

from stretto.deadline import TIMED_OUT, TIMED_OUT_REMEDY
from stretto.device.evaluate import resolve
from stretto.device.expr import Buffer, Reg, is_known
from stretto.device.forms import OutputList, OutputTensor
from stretto.errors import RunError
from stretto.ir.failure import Stop, unpacked_detail
from stretto.lowering.lazy import memory_order

FIRST_CAPACITY = 64
"""First capacity, in items, of a list of unknown length."""

GROWTH = 4
"""Factor by which the capacity of a list that was full grows."""

SMALL_ELEMENTS = 1 << 9
"""Largest number of elements of memory that a result keeps alive even if it is much smaller."""

Result = torch.Tensor | list[torch.Tensor]


NO_SIZES: Mapping[str, int] = {}
"""The sizes of a program without symbols."""


def item_shape(buffer: Buffer, sizes: Mapping[str, int] = NO_SIZES) -> tuple[int, ...]:
    """Return the dims of a buffer that are known at the call; for a list that grows, those of an
    item.

    sizes: the values of symbols, by the names of their registers.
    """
    return tuple(resolve(dim, sizes) for dim in buffer.shape if is_known(dim))


def grows(buffer: Buffer) -> bool:
    """True for a buffer whose leading dim the runtime chooses."""
    return not all(map(is_known, buffer.shape))


def first_capacities(buffers: Iterable[tuple[int, Buffer]]) -> dict[int, int]:
    """Return the first capacity, in items, of each list among numbered buffers, by number."""
    return {
        number: buffer.shape[0] if isinstance(buffer.shape[0], int) else FIRST_CAPACITY
        for number, buffer in buffers
        if buffer.kind == "list"
    }


def result(
    output: OutputTensor | OutputList,
    memory: torch.Tensor,
    scalars: Sequence[int],
    places: Mapping[Reg, int],
    sizes: Mapping[str, int] = NO_SIZES,
) -> Result:
    """Return one result. `memory` is that of its buffer; the value of register r is
    scalars[places[r]], that of a symbol is in `sizes`, by the name of its register.

    Dynamic results are copies, so that memory beyond them is not kept alive.
    """
    match output:
        case OutputList(buffer, length):
            shape = item_shape(buffer, sizes)[0 if grows(buffer) else 1 :]
            count, size = scalars[places[length]], prod(shape)
            items = memory.view(-1)[: count * size].view(count, *shape)
            return [item.clone() for item in items]
        case OutputTensor(buffer, shape):
            if not any(isinstance(dim, Reg) for dim in shape):
                return memory
            dims = [
                scalars[places[dim]] if isinstance(dim, Reg) else resolve(dim, sizes)
                for dim in shape
            ]
            order = memory_order(shape)
            rows = item_shape(buffer, sizes)[0 if grows(buffer) else 1 :]
            steps = [prod(rows[place:]) for place in range(len(dims))]
            stored = memory.view(-1).as_strided([dims[dim] for dim in order], steps)
            ordered = stored.permute([order.index(dim) for dim in range(len(order))])
            return ordered.clone(memory_format=torch.contiguous_format)


def first_rows(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the first rows of memory that nothing else uses: the memory itself, resized, unless
    it is much larger than the result."""
    if is_kept(memory.shape[0], shape[0], shape[1:]):
        return memory.resize_(shape)
    return memory.view(-1)[: prod(shape)].clone().view(shape)


def is_kept(room: int, rows: int, row: tuple[int, ...]) -> bool:
    """True if a result of `rows` rows may keep memory for `room` rows alive."""
    return 2 * rows >= room or room * prod(row) <= SMALL_ELEMENTS


# ---- Status codes of runs, which printed programs write and the runtime reads.
#
# The C++ side is enum Status of abi.h.


class Status(IntEnum):
    """The end of a run; the `detail` of a stop adds a number: of the list, of bytes, ..."""

    OK = 0
    LIST_FULL = 1
    ARENA_FULL = 2
    INTERRUPTED = 3
    LIBRARY_FAILED = 4
    ASSERTION = 5
    STACK_FULL = 6
    STUCK = 7
    TOO_DEEP = 8
    NO_THREADS = 9
    INDEX = 10
    TIMEOUT = 11
    CROWDED = 12
    NO_MEMORY = 13


DECIDED_BY_ORDER = frozenset({Status.ASSERTION, Status.INDEX, Status.TOO_DEEP, Status.STACK_FULL})
"""Failures whose order depends on timing: in a parallel loop a later iteration may fail before the
one that would fail first in eager."""


# ---- Errors of runs that end early.


class ProgramStopped(RunError):
    """A program ended early. `detail` is as in abi.h for the status: the number of the list, ..."""

    def __init__(self, status: Status, detail: int, message: str, remedy: str | None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.status, self.detail, self.message, self.remedy)


class DeadlockError(RunError):
    """Every unit that is not done waits for a step that is never published."""


def stopped(status: Status, detail: int, max_depth: int, arena_bytes: int) -> ProgramStopped:
    """Return the error for a status, with its message and remedy."""
    message, remedy = _explain(status, detail, max_depth, arena_bytes)
    return ProgramStopped(status, detail, message, remedy)


def too_large(what: str, nbytes: int, limit: int, sizes: str) -> RunError:
    """Return the error for a call whose sizes need more memory than is available; nothing was
    allocated."""
    gib = 2**30
    needed = "more than 2**63 bytes" if nbytes >= 2**63 - 1 else f"{nbytes / gib:.1f} GiB"
    return RunError(
        f"with {sizes}, {what} of the program need {needed}; a call may have {limit / gib:.1f} GiB",
        remedy="call it with smaller sizes, a part of the data at a time",
    )


def explained(stop: ProgramStopped, stops: Sequence[Stop]) -> Exception:
    """Return the exception for a run that ended early: for a check that failed, its own error."""
    if stop.status not in (Status.ASSERTION, Status.INDEX):
        return stop
    number, detail = unpacked_detail(stop.detail)
    return stops[number].exception(detail) if number < len(stops) else stop


def _explain(
    status: Status, detail: int, max_depth: int, arena_bytes: int
) -> tuple[str, str | None]:
    recursion = "check that the recursion reaches its base case"
    match status:
        case Status.LIST_FULL:
            return f"list {detail} is longer than its capacity", None
        case Status.ARENA_FULL:
            room = f"{arena_bytes / 2**20:.0f} MiB"
            return f"the intermediate values of the program need more than {room}", recursion
        case Status.LIBRARY_FAILED:
            return f"library call {detail} failed", None
        case Status.ASSERTION:
            return f"assertion {detail} of the program does not hold", None
        case Status.STACK_FULL:
            return "the recursion has used up the stack of an execution unit", recursion
        case Status.TOO_DEEP:
            return f"the recursion is deeper than {max_depth} calls", (
                f"{recursion}, or raise Options(max_depth=...)"
            )
        case Status.STUCK:
            unit, step = divmod(detail, 1 << 40)
            return f"a wait for unit {unit} to reach step {step} took too long", (
                "check that nothing else keeps the machine busy; if nothing does, please report it"
            )
        case Status.NO_THREADS:
            return f"the system allows only {detail} worker threads", (
                "use fewer units: Options(threads=...)"
            )
        case Status.NO_MEMORY:
            return "the system allows no more memory", "free some, or raise the limit (ulimit -v)"
        case Status.INDEX:
            return "an index is out of range", "check the values of index tensors"
        case Status.TIMEOUT:
            return TIMED_OUT, TIMED_OUT_REMEDY
        case Status.OK | Status.INTERRUPTED | Status.CROWDED:
            return f"the program ended with status {status.name}", None

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
"""Items that a list of unknown length has room for at first."""

GROWTH = 4
"""A list that was full gets so many times the room."""

SMALL_ELEMENTS = 1 << 9
"""Elements that a result may keep alive beyond its own."""

Result = torch.Tensor | list[torch.Tensor]


NO_SIZES: Mapping[str, int] = {}
"""The sizes of a program without symbols."""


def item_shape(buffer: Buffer, sizes: Mapping[str, int] = NO_SIZES) -> tuple[int, ...]:
    """The dims of a buffer that are known at the call; of a list that grows those of an item.

    sizes: the values of symbols, by the names of their registers.
    """
    return tuple(resolve(dim, sizes) for dim in buffer.shape if is_known(dim))


def grows(buffer: Buffer) -> bool:
    """True for a buffer whose leading dim the runtime chooses."""
    return not all(map(is_known, buffer.shape))


def first_capacities(buffers: Iterable[tuple[int, Buffer]]) -> dict[int, int]:
    """How many items the lists among numbered buffers have room for at first, by number."""
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
    """One result. `memory` holds its buffer; the value of register r is scalars[places[r]], that of
    a symbol in `sizes`, by the name of its register.

    What the memory has room for beyond the result is not kept alive: dynamic results are copies.
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
    """The first rows of memory that nothing else uses: the memory itself, unless it is much larger
    than the result."""
    if is_kept(memory.shape[0], shape[0], shape[1:]):
        return memory.resize_(shape)
    return memory.view(-1)[: prod(shape)].clone().view(shape)


def is_kept(room: int, rows: int, row: tuple[int, ...]) -> bool:
    """Whether a result of so many rows may keep memory for `room` alive."""
    return 2 * rows >= room or room * prod(row) <= SMALL_ELEMENTS


# ---- How a run can end: the numbers that printed programs use and the runtime reads.
#
# The C++ side is enum Status of abi.h.


class Status(IntEnum):
    """`detail` of a stop says more: which list, how many bytes, ..."""

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
"""Of iterations that run on units of their own, another one may stop the run so than the first one
that would in eager."""


# ---- What is raised when a run ends early.


class ProgramStopped(RunError):
    """A program ended early. `detail` is what abi.h says for the status: which list, ..."""

    def __init__(self, status: Status, detail: int, message: str, remedy: str | None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.status, self.detail, self.message, self.remedy)


class DeadlockError(RunError):
    """Every unit that is not done waits for a step that will not come."""


def stopped(status: Status, detail: int, max_depth: int, arena_bytes: int) -> ProgramStopped:
    """The error for a status, with its message and remedy."""
    message, remedy = _explain(status, detail, max_depth, arena_bytes)
    return ProgramStopped(status, detail, message, remedy)


def too_large(what: str, nbytes: int, limit: int, sizes: str) -> RunError:
    """The error for a call with sizes that need more memory than there is; nothing of it was
    taken."""
    gib = 2**30
    needed = "more than 2**63 bytes" if nbytes >= 2**63 - 1 else f"{nbytes / gib:.1f} GiB"
    return RunError(
        f"with {sizes}, {what} of the program need {needed}; a call may have {limit / gib:.1f} GiB",
        remedy="call it with smaller sizes, a part of the data at a time",
    )


def explained(stop: ProgramStopped, stops: Sequence[Stop]) -> Exception:
    """What a run raises that ended early: for a check that does not hold, its own error."""
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
            return f"list {detail} is longer than the room made for it", None
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
                "see that nothing else keeps the machine busy; if so, please report this"
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

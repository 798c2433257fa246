"""What is raised when a run ends early."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.deadline import TIMED_OUT, TIMED_OUT_REMEDY
from stretto.errors import RunError
from stretto.ir.failure import Stop, unpacked_detail
from stretto.runtime.status import Status


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

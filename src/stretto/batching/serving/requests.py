"""One request, the future that its caller holds, and how that is completed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from stretto.batching.serving.calls import Call, Modes, Outcome, Run, Value
from stretto.errors import RunError, StreamClosed, StreamFull

_log = logging.getLogger("stretto.stream")


class Reply(Future[Any]):
    """The future of one request. Cancelling it takes the request out of the stream, unless its
    batch has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.withdraw: Callable[[], object] | None = None
        self._process = os.getpid()

    def cancel(self) -> bool:
        # Done-callbacks run in here. One that raises must not leave the request in the stream.
        cancelled = False
        try:
            cancelled = super().cancel()
        finally:
            withdraw = self.withdraw
            if withdraw is not None and self.cancelled():
                withdraw()
        return cancelled

    def result(self, timeout: float | None = None) -> Any:
        self._require_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._require_process()
        return super().exception(timeout)

    def _require_process(self) -> None:
        """In a child of `fork` nobody would ever complete the future."""
        if os.getpid() != self._process and not self.done():
            raise RunError(
                f"this request was submitted in process {self._process}, before it was forked, "
                "and is answered there",
                remedy="submit it again in this process",
            )


@dataclass(eq=False, slots=True)
class Request:
    """A call that waits for its batch.

    key: equal for requests that one batch may have.
    caller: requests of one caller are answered in the order in which they were submitted.
    entered: seconds, when it was submitted.
    run: the batcher. Requests hold it rather than the stream, so that it lives as long as there is
        something to do, and no longer.
    admitted: completes when the stream has room for the request; None where it had it at once.
    """

    call: Call
    key: Hashable
    caller: Hashable
    modes: Modes
    run: Run
    entered: float
    reply: Reply
    number: int = -1
    admitted: Future[None] | None = None


# Futures are completed outside of all locks, since their callbacks are the user's.


def begins(request: Request) -> bool:
    """Whether a request is to run; not if it was cancelled since its batch was taken, or somebody
    else has completed its future."""
    reply = request.reply
    reply.withdraw = None
    if reply.done() and not reply.cancelled():
        return False
    try:
        return reply.set_running_or_notify_cancel()
    except RuntimeError:  # completed in this moment
        return False


def complete(request: Request, outcome: Outcome) -> None:
    try:
        if isinstance(outcome, Value):
            request.reply.set_result(outcome.value)
        else:
            request.reply.set_exception(outcome.error)
    except InvalidStateError:
        pass  # somebody else completed it
    except BaseException:  # Future catches what derives from Exception, but a callback may exit
        _log.exception("a done-callback of a request raised")


def cancel(requests: Iterable[Request]) -> None:
    """Cancels requests that this thread has taken out, and tells those who wait for them."""
    for request in requests:
        request.reply.withdraw = None
        try:
            if request.reply.cancel():
                request.reply.set_running_or_notify_cancel()
        except BaseException:
            _log.exception("a done-callback of a cancelled request raised")


def admit(requests: Iterable[Request]) -> None:
    for request in requests:
        assert request.admitted is not None
        request.admitted.set_result(None)


def refuse(requests: Iterable[Request], reason: str) -> None:
    for request in requests:
        assert request.admitted is not None
        request.admitted.set_exception(closed_error(reason))


# ---- errors --------------------------------------------------------------------------------------


def closed_error(reason: str) -> StreamClosed:
    return StreamClosed(
        f"the stream takes no more requests: {reason}",
        remedy="submit before it is closed, or make another one with `stream()`",
    )


def full_error(max_waiting: int, waited_s: float | None) -> StreamFull:
    waited = "" if waited_s is None else f", and none of them began within {waited_s:g} s"
    return StreamFull(
        f"{max_waiting} requests wait, as many as `max_waiting` allows{waited}",
        remedy="submit more slowly, try again later, or raise `max_waiting`",
    )

"""Requests: the calls that a batcher runs, their futures, and the choice of the next batch."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from stretto.errors import RunError, StreamClosed, StreamFull

# ---- The interface of a stream to a batcher, and the calls that may share a batch.


_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class InstanceCall:
    """One instance: a value per positional parameter, and the keywords, which all calls of a run
    share."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """The value that the function returns for one instance."""

    value: Any


@dataclass(frozen=True, slots=True)
class InstanceFailure:
    """The exception that the function raises for one instance."""

    error: BaseException


Outcome = InstanceResult | InstanceFailure

BatchRunner = Callable[[Sequence[InstanceCall]], Sequence[Outcome]]
"""Run calls with equal keywords as one batch; return an outcome per call, in order. If one
instance raises, its outcome is a InstanceFailure. If the run itself raises, it could not tell which
instances are at fault; they are then run again in smaller batches."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Torch's per-thread settings. A request runs under those of the thread that submitted it,
    although another thread runs it."""

    grad: bool
    inference: bool
    autocast: tuple[torch.dtype | None, ...]

    @staticmethod
    def current() -> Modes:
        """Return the settings of this thread."""
        autocast = tuple(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in _DEVICE_TYPES
        )
        return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextmanager
    def applied(self) -> Generator[None]:
        """Set them for this thread inside the `with` block."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype in zip(_DEVICE_TYPES, self.autocast, strict=True):
                if dtype is not None:
                    stack.enter_context(torch.autocast(kind, dtype))
            yield


def shared_key(kwargs: Mapping[str, Any]) -> Hashable:
    """Return a key that is equal for keywords that one batch can share: the same names, with
    values that are the same object or indistinguishable numbers, texts or tuples of these.
    Other values are compared by identity, so the key is valid only while `kwargs` is alive."""
    return tuple(sorted((name, _value_key(value)) for name, value in kwargs.items()))


def _value_key(value: Any) -> Hashable:
    kind = type(value)  # a subclass may redefine equality
    if kind in (bool, int, str, bytes):
        return kind, value
    if kind is float:
        return kind, value.hex()  # distinguishes 0.0 from -0.0
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is tuple:
        return kind, tuple(_value_key(item) for item in value)
    return "object", id(value)


_log = logging.getLogger("stretto.stream")


class Reply(Future[Any]):
    """The future of one request. Cancelling it removes the request from the stream, unless its
    batch has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.withdraw: Callable[[], object] | None = None
        self._process = os.getpid()

    def cancel(self) -> bool:
        # Done-callbacks run in cancel(). Even if one raises, the request must leave the stream.
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
        """Raise RunError in a child of `fork`, where the future would never complete."""
        if os.getpid() != self._process and not self.done():
            raise RunError(
                f"this request was submitted in process {self._process}, before it was forked, "
                "and is answered there",
                remedy="submit it again in this process",
            )


@dataclass(eq=False, slots=True)
class Request:
    """A call that waits for its batch.

    key: equal for requests that may share a batch.
    caller: requests of one caller are answered in the order in which they were submitted.
    entered: time of submission in seconds.
    run: the batcher. Requests refer to it rather than to the stream, so that it lives only as
        long as there are requests.
    admitted: completes when the stream has room for the request; None if it had room at once.
    """

    call: InstanceCall
    key: Hashable
    caller: Hashable
    modes: Modes
    run: BatchRunner
    entered: float
    reply: Reply
    number: int = -1
    admitted: Future[None] | None = None


# Futures are completed outside of all locks, since their callbacks are user code.


def begins(request: Request) -> bool:
    """Return True if a request is to run; False if it was cancelled since its batch was taken, or
    its future was completed elsewhere."""
    reply = request.reply
    reply.withdraw = None
    if reply.done() and not reply.cancelled():
        return False
    try:
        return reply.set_running_or_notify_cancel()
    except RuntimeError:  # completed concurrently
        return False


def complete(request: Request, outcome: Outcome) -> None:
    try:
        if isinstance(outcome, InstanceResult):
            request.reply.set_result(outcome.value)
        else:
            request.reply.set_exception(outcome.error)
    except InvalidStateError:
        pass  # completed elsewhere
    except BaseException:  # Future catches Exception only, but a callback may raise SystemExit
        _log.exception("a done-callback of a request raised")


def cancel(requests: Iterable[Request]) -> None:
    """Cancel requests that this thread has removed from the stream, and notify those waiting for
    them."""
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


# ---- The choice of the next batch and its time, made without threads and clocks.


_KEPT = 7 / 8  # weight of the old estimate of a batch's time when another batch has run


class Waiting:
    """Requests in order of arrival. Those for which there is no room are in `blocked`, after the
    others, and move up when there is room.

    A batch is due when `max_batch` requests wait, or the oldest has waited for `wait_s`: that is
    `max_wait_s` less the time of recent batches, and at least half of it. So where batches are
    short and the stream is not busy, a request is answered about `max_wait_s` after it came; where
    batches are long, requests still gather. A batch has the oldest request and those after it that
    may share it. If a request may not, it and all later ones of its caller are passed over, so that
    the requests of a caller are not reordered.

    The garbage collector may run at any allocation, also inside these methods, and the finalizers
    that it runs may withdraw requests. So no method iterates over a container that it then changes.
    """

    def __init__(self, max_batch: int, max_wait_s: float, max_waiting: int) -> None:
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        self.max_waiting = max_waiting
        self.admitted: OrderedDict[int, Request] = OrderedDict()
        self.blocked: OrderedDict[int, Request] = OrderedDict()
        self._numbers = count()
        self._batch_s = 0.0  # mean of recent batches, each capped at half of max_wait_s

    @property
    def wait_s(self) -> float:
        """Seconds that a request waits for others."""
        return self.max_wait_s - self._batch_s

    def took(self, seconds: float) -> None:
        """Record the run time of a batch."""
        counted = min(seconds, self.max_wait_s / 2)
        self._batch_s = _KEPT * self._batch_s + (1 - _KEPT) * counted

    @property
    def is_full(self) -> bool:
        return len(self.admitted) >= self.max_waiting

    def admit(self, request: Request) -> None:
        """Add a request at the end, even if there is no room."""
        request.number = next(self._numbers)
        self.admitted[request.number] = request

    def block(self, request: Request) -> None:
        """Add a request that waits for room."""
        request.number = next(self._numbers)
        self.blocked[request.number] = request

    def seconds_until_due(self, now: float) -> float | None:
        """Return the seconds until a batch is due: 0 if one is, None if no request waits."""
        if not self.admitted:
            return None
        if len(self.admitted) >= self.max_batch:
            return 0.0
        oldest = self.admitted[next(iter(self.admitted))]
        return max(0.0, oldest.entered + self.wait_s - now)

    def take(self) -> list[Request]:
        """Remove and return the next batch, the oldest request first; empty if no request waits."""
        batch = list[Request]()
        passed = set[Hashable]()
        for request in list(self.admitted.values()):
            if len(batch) == self.max_batch:
                break
            fits = not batch or request.key == batch[0].key
            if fits and request.caller not in passed:
                batch.append(request)
            else:
                passed.add(request.caller)
        return [request for request in batch if self.admitted.pop(request.number, None)]

    def withdraw(self, request: Request) -> bool:
        """Remove a request; return False if it no longer waits."""
        places = (self.admitted, self.blocked)
        return any(place.pop(request.number, None) is not None for place in places)

    def move_up(self) -> list[Request]:
        """Admit blocked requests for which there is room now, and return them."""
        moved = list[Request]()
        while self.blocked and not self.is_full:
            number, request = self.blocked.popitem(last=False)
            self.admitted[number] = request
            moved.append(request)
        return moved

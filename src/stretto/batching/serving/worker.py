"""The thread that runs batches, and the state that it shares with the threads that submit."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import Protocol

from stretto.batching.serving.metrics import Metrics, RequestCounts
from stretto.batching.serving.requests import (
    BatchRunner,
    InstanceCall,
    InstanceFailure,
    InstanceResult,
    Outcome,
    Request,
    Waiting,
    admit,
    begins,
    cancel,
    closed_error,
    complete,
    full_error,
    refuse,
)
from stretto.errors import RunError
from stretto.text import counted

# ---- Isolation of requests that fail.


def outcomes_of(run: BatchRunner, calls: Sequence[InstanceCall]) -> Sequence[Outcome]:
    """Return an outcome per call; never raises.

    If the whole run raises, both halves run again separately, and so on. In the end each
    failure is that of a run of one call, and each other call has been in a run that succeeded.
    For one bad call among `n` that is about `2 log2(n)` more runs.
    """
    try:
        outcomes = run(calls)
        if len(outcomes) == len(calls):
            return outcomes
    except BaseException as error:  # the user's function may raise even SystemExit
        if len(calls) == 1:
            return [InstanceFailure(error)]
    else:
        wrong = f"{counted(len(outcomes), 'outcome')} for {counted(len(calls), 'call')}"
        return [InstanceFailure(RunError(f"the batcher gave {wrong}")) for _ in calls]
    # Outside `except`, else the errors of the halves would have this one as context.
    middle = len(calls) // 2
    return [*outcomes_of(run, calls[:middle]), *outcomes_of(run, calls[middle:])]


_LONGEST_PAUSE_S = 3600.0  # the system limits a pause, while `max_wait_ms` is unlimited
_NEVER = sys.maxsize

_numbers = itertools.count(1)


class Clock(Protocol):
    """The clock of a worker; tests replace it."""

    def now(self) -> float:
        """Return the seconds since an arbitrary moment."""
        ...

    def pause(self, bell: SimpleQueue[None], seconds: float | None) -> None:
        """Return when `bell` has an item, which is taken, or after `seconds` at the latest (None:
        no limit)."""
        ...


class SystemClock:
    """The system's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def pause(self, bell: SimpleQueue[None], seconds: float | None) -> None:
        limit = None if seconds is None else min(seconds, _LONGEST_PAUSE_S)
        with suppress(Empty):
            bell.get(timeout=limit)


class Worker:
    """The requests of one stream, and the thread that answers them.

    - One reentrant lock guards all fields. No user code runs under it, except finalizers run by
      the garbage collector, which may withdraw requests: hence reentrant.
    - The thread sleeps on `_bell`, a queue that a finalizer may put into as well. `_ring_at` is
      the number of waiting requests that wakes it; it is set under the lock before the thread
      sleeps, and the bell stores what is put into it, so no request is missed.
    - Futures are completed outside of the lock, each by the one thread that removed its request
      from `_waiting`.
    """

    def __init__(self, waiting: Waiting, clock: Clock) -> None:
        self._waiting = waiting
        self._clock = clock
        self._closed: str | None = None
        self._begin()
        _workers.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._bell = SimpleQueue[None]()
        self._ring_at = _NEVER
        self._thread: threading.Thread | None = None
        self._batch = list[Request]()
        self._running = 0
        self._counts = RequestCounts()

    def after_fork(self) -> None:
        """Become an empty stream in the child; its first request starts its thread. Earlier
        requests are answered by the parent."""
        old = self._waiting
        self._waiting = Waiting(old.max_batch, old.max_wait_s, old.max_waiting)
        self._begin()

    # ---- called by submitting threads --------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def now(self) -> float:
        return self._clock.now()

    def enter(self, request: Request, *, may_block: bool) -> None:
        """Accept a request. If there is no room, and `may_block`, set `request.admitted`, which
        completes when there is: the caller has to wait for that.

        The worker's own thread, in a done-callback, would wait for itself, so its requests are
        accepted beyond the bound. Raises StreamClosed, and StreamFull if it may not block.
        """
        with self._lock:
            if self._closed is not None:
                self._counts.refused += 1
                raise closed_error(self._closed)
            on_thread = self._started() is threading.current_thread()
            request.reply.withdraw = lambda: self.withdraw(request)
            # The bell rings first, so that an interruption in between loses no request.
            if not self._waiting.is_full or on_thread:
                self._ring(1)
                self._counts.submitted += 1
                self._waiting.admit(request)
            elif may_block:
                request.admitted = Future()
                self._waiting.block(request)
            else:
                self._counts.refused += 1
                raise full_error(self._waiting.max_waiting, None)

    def withdraw(self, request: Request) -> bool:
        """Remove a request and cancel its future; return False if it does not wait."""
        with self._lock:
            blocked = request.number in self._waiting.blocked
            if not self._waiting.withdraw(request):
                return False
            self._counts.refused += blocked
            self._counts.cancelled += not blocked
            moved = self._move_up()
        cancel([request])
        admit(moved)
        return True

    def metrics(self) -> Metrics:
        with self._lock:
            return self._counts.metrics(
                waiting=len(self._waiting.admitted),
                running=self._running,
                blocked=len(self._waiting.blocked),
            )

    # ---- shutdown ----------------------------------------------------------------------------

    def abandon(self) -> None:
        """Refuse new requests; the thread answers those that wait, and ends. Called when the stream
        is garbage collected, which may happen at any point of any thread, so it takes no lock."""
        self._closed = self._closed or "it was deleted"
        self._bell.put(None)

    def close(self, reason: str, *, cancel_waiting: bool) -> None:
        """Refuse new requests; return when those that wait are answered or cancelled and the
        thread has ended. In a done-callback, which runs on that thread, it does not wait."""
        with self._lock:
            self._closed = self._closed or reason
            blocked = self._turn_away()
            cancelled = self._drop_waiting() if cancel_waiting else []
            self._counts.cancelled += len(cancelled)
            thread = self._thread
            self._bell.put(None)
        refuse(blocked, self._closed)
        cancel(cancelled)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _turn_away(self) -> list[Request]:
        """Remove and return the requests that wait for room."""
        blocked = list(self._waiting.blocked.values())
        self._waiting.blocked.clear()
        self._counts.refused += len(blocked)
        return blocked

    def _drop_waiting(self) -> list[Request]:
        """Remove and return the requests that wait for their batch."""
        waiting = list(self._waiting.admitted.values())
        self._waiting.admitted.clear()
        return waiting

    # ---- the thread --------------------------------------------------------------------------

    def _started(self) -> threading.Thread:
        """Return the thread; start it if need be."""
        if self._thread is not None:
            return self._thread
        # A daemon: Python joins other threads before it runs `atexit` functions, one of which
        # closes the stream.
        name = f"stretto-stream-{next(_numbers)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread = thread
        try:
            thread.start()
        except BaseException:  # if it runs anyway, it ends, since it is not `_thread`
            self._thread = None
            raise
        _live.add(self)
        _finish_at_exit()
        return thread

    def _ring(self, coming: int = 0) -> None:
        """Wake the thread if enough requests wait, counting `coming` that are about to be added."""
        if len(self._waiting.admitted) + coming >= self._ring_at:
            self._bell.put(None)
            self._ring_at = _NEVER

    def _move_up(self) -> list[Request]:
        moved = self._waiting.move_up()
        self._counts.submitted += len(moved)
        self._ring()
        return moved

    def _serve(self) -> None:
        """Run batches until the stream is closed and no request waits."""
        more = True
        while more:
            try:
                more = self._step()
            except BaseException as error:  # raised in this thread asynchronously, or a bug
                if not self._fail_batch(error):
                    self._give_up(error)
                    more = False
        if self._thread is threading.current_thread():
            _live.discard(self)

    def _step(self) -> bool:
        """Run a batch, or wait for one; return False at the end. No local of a batch survives the
        call, so a waiting stream keeps neither requests nor the batcher alive."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return False
            now = self._clock.now()
            pause = self._waiting.seconds_until_due(now)
            due = pause is not None and (pause == 0.0 or self.is_closed)
            moved = list[Request]()
            if due:
                self._batch = self._waiting.take()
                self._running = len(self._batch)
                moved = self._move_up()
            elif pause is None and self.is_closed:
                return False
            else:
                self._ring_at = 1 if pause is None else self._waiting.max_batch
        admit(moved)
        if due:
            self._answer(now)
        else:
            self._clock.pause(self._bell, pause)
        return True

    def _answer(self, now: float) -> None:
        """Run the batch that was taken at the time `now`, and complete its futures in order."""
        batch = [request for request in self._batch if begins(request)]
        with self._lock:
            self._counts.cancelled += self._running - len(batch)
            self._running = len(batch)
            if batch:
                self._counts.batch_sizes[len(batch)] += 1
            for request in batch:
                self._counts.waits.add(now - request.entered)
        if batch:
            first = batch[0]
            with first.modes.applied():
                outcomes = outcomes_of(first.run, [request.call for request in batch])
            with self._lock:
                took = self._clock.now() - now
                self._counts.batches.add(took)
                self._waiting.took(took)
            for request, outcome in zip(batch, outcomes, strict=True):
                self._finish(request, outcome)
        self._batch = []

    def _finish(self, request: Request, outcome: Outcome) -> None:
        """Count a request, then complete it, so that a caller with the result finds it in the
        metrics."""
        with self._lock:
            self._running -= 1
            self._counts.latencies.add(self._clock.now() - request.entered)
            self._counts.finished += isinstance(outcome, InstanceResult)
            self._counts.failed += isinstance(outcome, InstanceFailure)
        complete(request, outcome)

    def _fail_batch(self, error: BaseException) -> bool:
        """Fail the open requests of the current batch; return False if there is no batch. Waiting
        requests are not affected."""
        batch, self._batch = self._batch, []
        with self._lock:
            self._counts.failed += self._running
            self._running = 0
        for request in batch:
            if not request.reply.done():
                complete(request, InstanceFailure(_ended(error)))
        return bool(batch)

    def _give_up(self, error: BaseException) -> None:
        """Close the stream after an error outside of any batch, failing all open futures."""
        with self._lock:
            self._closed = str(_ended(error))
            blocked = self._turn_away()
            self._batch = self._drop_waiting()
            self._running = len(self._batch)
        refuse(blocked, self._closed)
        self._fail_batch(error)


def _ended(error: BaseException) -> RunError:
    name = threading.current_thread().name
    ended = RunError(f"the thread {name!r}, which runs the batches, was stopped by {error!r}")
    ended.__cause__ = error
    return ended


# ---- processes -----------------------------------------------------------------------------------

_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_live = set[Worker]()
"""Workers with a thread. The worker of a deleted stream stays here until all requests are
answered."""


def _finish_all() -> None:
    for worker in list(_live):
        worker.close("the interpreter exits", cancel_waiting=False)


def _finish_at_exit() -> None:
    """Register the shutdown at exit. Each worker registers it again, so that it runs before
    functions that were registered earlier, such as the removal of folders that a batch may need."""
    if multiprocessing.parent_process() is None:
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)
    else:  # children of multiprocessing do not run `atexit` functions
        Finalize(None, _finish_all, exitpriority=100)


def _after_fork() -> None:
    _live.clear()
    for worker in list(_workers):
        worker.after_fork()


os.register_at_fork(after_in_child=_after_fork)

"""Streams, as users hold them, and the mixin that gives a batcher its `submit`."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from stretto.batching.serving.metrics import Metrics
from stretto.batching.serving.requests import (
    Call,
    Modes,
    Outcome,
    Reply,
    Request,
    Run,
    Waiting,
    closed_error,
    full_error,
    shared_key,
)
from stretto.batching.serving.worker import Clock, SystemClock, Worker
from stretto.locks import ForkSafeLock

_CLOSED = "it was closed by close()"
_SYSTEM_CLOCK = SystemClock()


def _require_count(name: str, value: Any, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} is an integer of at least {minimum}, got {value!r}")


def _require_duration(name: str, value: Any) -> None:
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is a finite number of at least 0, got {value!r}")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How requests become batches.

    max_batch: requests in one batch at most.
    max_wait_ms: a request waits no longer than this for others to share its batch, in
        milliseconds, unless the batch before it still runs. The time that batches took lately is
        taken from the wait, up to half of it, so that where batches are short a request is answered
        about this long after it came. 0 begins a batch whenever the one before has ended; batches
        then form while others run.
    max_waiting: requests that may wait for their batch, at least `max_batch`.
    when_full: what `submit` does when so many wait: "wait" until there is room, or "raise"
        StreamFull.
    full_timeout_s: seconds that it waits for room at most, then it raises StreamFull; None waits.
    """

    max_batch: int = 64
    max_wait_ms: float = 5.0
    max_waiting: int = 1024
    when_full: Literal["wait", "raise"] = "wait"
    full_timeout_s: float | None = None

    def __post_init__(self) -> None:
        _require_count("max_batch", self.max_batch, 1)
        _require_count("max_waiting", self.max_waiting, self.max_batch)
        _require_duration("max_wait_ms", self.max_wait_ms)
        if self.when_full not in ("wait", "raise"):
            raise ValueError(f"when_full is 'wait' or 'raise', got {self.when_full!r}")
        if self.full_timeout_s is not None:
            _require_duration("full_timeout_s", self.full_timeout_s)


_DEFAULT = StreamOptions()


class Stream:
    """Answers requests in batches, as they come. Safe from many threads.

    - The requests of one thread are answered in the order in which it submitted them.
    - A request that fails does so alone: its future has the exception, its neighbours their
      results. Where a whole run raises, smaller ones find out which requests fail, so the function
      may be called for an instance more than once.
    - Done-callbacks run on the thread of the stream, as those of an executor do: while one runs,
      no batch does. A callback may submit; its requests are taken beyond `max_waiting`. It must
      not wait for another request of the same stream.
    - Instances must not be changed until their request is done.
    - A stream that is closed, deleted, or open at the exit of the interpreter answers all requests
      that it has taken. In a child of `fork` it is empty, and a future from before raises RunError.

    `run` runs a batch, see `calls.Run`. It is called on one thread at a time.
    """

    def __init__(
        self, run: Run, options: StreamOptions | None = None, clock: Clock = _SYSTEM_CLOCK
    ) -> None:
        self._run = run
        self._options = o = options or _DEFAULT
        self._worker = Worker(Waiting(o.max_batch, o.max_wait_ms / 1e3, o.max_waiting), clock)
        # The worker knows neither this object nor `run`, so it does not keep them alive.
        weakref.finalize(self, self._worker.abandon).atexit = False

    def submit(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of one instance: `args` has a value for each parameter of the function.

        Keywords are shared by a batch, so requests whose keywords are not the same form different
        batches. Same are equal numbers, texts and tuples of these, and what is the same object.
        Requests with more or fewer instances than others, too, form other batches.

        Raises StreamFull, see `StreamOptions.when_full`; StreamClosed, also while it waits.
        """
        request = self._request(args, kwargs, threading.current_thread())
        self._enter(request)
        if request.admitted is not None:
            try:
                self._wait_for_room(request, request.admitted)
            except BaseException:  # of a signal, too: nobody will have the future
                request.reply.cancel()
                raise
        return request.reply

    async def asubmit(self, /, *args: Any, **kwargs: Any) -> Any:
        """The result for one instance, for `asyncio`: `await stream.asubmit(instance)`.

        Does not block the event loop, also where it waits for room. A task that is cancelled takes
        its request along, unless its batch has begun. Each task is a caller of its own: which of
        two tasks has its result first is not said.
        """
        request = self._request(args, kwargs, asyncio.current_task() or object())
        self._enter(request)
        try:
            if request.admitted is not None:
                await self._await_room(request, request.admitted)
            await _done(request.reply)
        except BaseException:  # the task is cancelled, or its coroutine deleted
            request.reply.cancel()
            raise
        try:
            return request.reply.result()
        except CancelledError:
            if request.reply.cancelled():
                raise closed_error("it was closed by close(cancel_waiting=True)") from None
            raise  # the function of the user raised it

    def metrics(self) -> Metrics:
        """What the stream has counted until now; print it for a table."""
        return self._worker.metrics()

    @property
    def options(self) -> StreamOptions:
        return self._options

    @property
    def closed(self) -> bool:
        """Whether requests are refused; those taken before may still be running."""
        return self._worker.is_closed

    def close(self, *, cancel_waiting: bool = False) -> None:
        """Takes no more requests, and returns when all that were taken are answered. Callers that
        wait for room get StreamClosed. May be called again, and by several threads.

        cancel_waiting: cancels the requests whose batch has not begun.
        """
        self._worker.close(_CLOSED, cancel_waiting=cancel_waiting)

    async def aclose(self, *, cancel_waiting: bool = False) -> None:
        """`close`, while the event loop goes on."""
        await asyncio.to_thread(self.close, cancel_waiting=cancel_waiting)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Callable[..., Stream], tuple[Run, StreamOptions]]:
        """A copy, as in another process, is an open stream of its own, without any request."""
        return Stream, (self._run, self._options)

    def _request(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], caller: Hashable
    ) -> Request:
        modes = Modes.current()
        key = (modes, len(args), shared_key(kwargs))
        call = Call(args, kwargs)
        return Request(call, key, caller, modes, self._run, self._worker.now(), Reply())

    def _enter(self, request: Request) -> None:
        self._worker.enter(request, may_block=self._options.when_full == "wait")

    def _wait_for_room(self, request: Request, admitted: Future[None]) -> None:
        try:
            admitted.result(self._options.full_timeout_s)
        except TimeoutError:
            self._give_up(request)
            admitted.result()  # has just been admitted, or refused

    async def _await_room(self, request: Request, admitted: Future[None]) -> None:
        try:
            async with asyncio.timeout(self._options.full_timeout_s):
                await _done(admitted)
        except TimeoutError:
            self._give_up(request)
            await _done(admitted)
        admitted.result()

    def _give_up(self, request: Request) -> None:
        """Raises StreamFull, unless the request has left the line in this moment."""
        if self._worker.withdraw(request):
            raise full_error(self._options.max_waiting, self._options.full_timeout_s)


class Streaming:
    """Mixin of a batcher: `submit` and what belongs to it, by a stream that its first use opens.

    The batcher gives `run_calls`, of the type `Run`, and may set `stream_options`. What it pickles
    must not have `_own_stream`.
    """

    stream_options: StreamOptions = _DEFAULT
    _own_stream: Stream | None = None

    def run_calls(self, calls: Sequence[Call]) -> Sequence[Outcome]:
        """Runs calls with equal keywords as one batch; see `calls.Run`."""
        raise NotImplementedError

    def stream(
        self,
        *,
        max_batch: int = _DEFAULT.max_batch,
        max_wait_ms: float = _DEFAULT.max_wait_ms,
        max_waiting: int = _DEFAULT.max_waiting,
        when_full: Literal["wait", "raise"] = _DEFAULT.when_full,
        full_timeout_s: float | None = _DEFAULT.full_timeout_s,
    ) -> Stream:
        """A further stream with settings of its own; see StreamOptions. Use it in `with`."""
        options = StreamOptions(max_batch, max_wait_ms, max_waiting, when_full, full_timeout_s)
        return Stream(self.run_calls, options)

    def submit(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """`Stream.submit` of the batcher's own stream."""
        return self._opened().submit(*args, **kwargs)

    async def asubmit(self, /, *args: Any, **kwargs: Any) -> Any:
        """`Stream.asubmit` of the batcher's own stream."""
        return await self._opened().asubmit(*args, **kwargs)

    def metrics(self) -> Metrics:
        """`Stream.metrics` of the batcher's own stream."""
        return self._opened().metrics()

    def close(self, *, cancel_waiting: bool = False) -> None:
        """`Stream.close` of the batcher's own stream. The batcher itself can still be called."""
        self._opened().close(cancel_waiting=cancel_waiting)

    def __enter__(self) -> Streaming:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> Stream:
        stream = self._own_stream
        if stream is None:
            with _opening:
                stream = self._own_stream = self._own_stream or Stream(
                    self.run_calls, self.stream_options
                )
        return stream


_opening = ForkSafeLock()


async def _done(future: Future[Any]) -> None:
    """Returns when a future is done, however. `asyncio.wrap_future` would never return where it
    holds a StopIteration, which no future of asyncio may have."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop was closed, so nobody waits
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(tell)
    await woken

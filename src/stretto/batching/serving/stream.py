"""Streams: the user's interface to batched requests, and the mixin that gives a batcher its
`submit`."""

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
    BatchRunner,
    InstanceCall,
    Modes,
    Outcome,
    Reply,
    Request,
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
    """Settings for how requests become batches.

    max_batch: largest number of requests in a batch.
    max_wait_ms: longest time in milliseconds that a request waits for others to share its
        batch, unless the batch before it still runs. The time of recent batches is subtracted
        from the wait, up to half of it, so that where batches are short a request is answered
        about this long after it came. 0 begins a batch whenever the one before has ended;
        batches then form while others run.
    max_waiting: number of requests that may wait for their batch, at least `max_batch`.
    when_full: what `submit` does when that many wait: "wait" until there is room, or "raise"
        StreamFull.
    full_timeout_s: seconds to wait for room before raising StreamFull; None waits without
        limit.
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
    """Answer requests in batches, as they come. Safe to use from many threads.

    - The requests of one thread are answered in the order in which it submitted them.
    - A request that fails does so alone: its future has the exception, the others have their
      results. If a whole run raises, smaller runs find the requests that fail, so the function
      may be called for an instance more than once.
    - Done-callbacks run on the thread of the stream, as those of an executor do: while one
      runs, no batch does. A callback may submit; its requests are accepted beyond
      `max_waiting`. It must not wait for another request of the same stream.
    - Instances must not be changed until their request is done.
    - A stream that is closed, deleted, or open at the exit of the interpreter answers all
      requests that it has accepted. In a child of `fork` it is empty, and a future from before
      raises RunError.

    `run` runs a batch, see `requests.Run`. It is called on one thread at a time.
    """

    def __init__(
        self, run: BatchRunner, options: StreamOptions | None = None, clock: Clock = _SYSTEM_CLOCK
    ) -> None:
        self._run = run
        self._options = o = options or _DEFAULT
        self._worker = Worker(Waiting(o.max_batch, o.max_wait_ms / 1e3, o.max_waiting), clock)
        # The worker refers neither to this object nor to `run`, so it does not keep them alive.
        weakref.finalize(self, self._worker.abandon).atexit = False

    def submit(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future of one instance: `args` has a value for each parameter of the function.

        A batch shares its keywords, so requests whose keywords differ are in different batches.
        Values are the same if they are equal numbers, texts or tuples of these, or the same object.
        Requests with different numbers of positional arguments are in different batches, too.
        Raises StreamFull, see `StreamOptions.when_full`, and StreamClosed, even while waiting for
        room.
        """
        request = self._request(args, kwargs, threading.current_thread())
        self._enter(request)
        if request.admitted is not None:
            try:
                self._wait_for_room(request, request.admitted)
            except BaseException:  # including signals: the caller will never get the future
                request.reply.cancel()
                raise
        return request.reply

    async def asubmit(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the result for one instance, for `asyncio`: `await stream.asubmit(instance)`.

        Does not block the event loop, even while it waits for room. Cancelling the task cancels
        its request, unless its batch has begun. Each task is a separate caller: the order of
        the results of two tasks is unspecified.
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
            raise  # the user's function raised it

    def metrics(self) -> Metrics:
        """Return what the stream has counted so far; print it for a table."""
        return self._worker.metrics()

    @property
    def options(self) -> StreamOptions:
        return self._options

    @property
    def closed(self) -> bool:
        """True if new requests are refused; accepted ones may still be running."""
        return self._worker.is_closed

    def close(self, *, cancel_waiting: bool = False) -> None:
        """Refuse new requests, and return when all accepted ones are answered. Callers that wait
        for room get StreamClosed. May be called repeatedly, and by several threads.

        cancel_waiting: cancel the requests whose batch has not begun.
        """
        self._worker.close(_CLOSED, cancel_waiting=cancel_waiting)

    async def aclose(self, *, cancel_waiting: bool = False) -> None:
        """Run `close` without blocking the event loop."""
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

    def __reduce__(self) -> tuple[Callable[..., Stream], tuple[BatchRunner, StreamOptions]]:
        """A copy, as in another process, is a separate open stream without requests."""
        return Stream, (self._run, self._options)

    def _request(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], caller: Hashable
    ) -> Request:
        modes = Modes.current()
        key = (modes, len(args), shared_key(kwargs))
        call = InstanceCall(args, kwargs)
        return Request(call, key, caller, modes, self._run, self._worker.now(), Reply())

    def _enter(self, request: Request) -> None:
        self._worker.enter(request, may_block=self._options.when_full == "wait")

    def _wait_for_room(self, request: Request, admitted: Future[None]) -> None:
        try:
            admitted.result(self._options.full_timeout_s)
        except TimeoutError:
            self._give_up(request)
            admitted.result()  # admitted or refused in the meantime

    async def _await_room(self, request: Request, admitted: Future[None]) -> None:
        try:
            async with asyncio.timeout(self._options.full_timeout_s):
                await _done(admitted)
        except TimeoutError:
            self._give_up(request)
            await _done(admitted)
        admitted.result()

    def _give_up(self, request: Request) -> None:
        """Raise StreamFull, unless the request has been admitted or refused in the meantime."""
        if self._worker.withdraw(request):
            raise full_error(self._options.max_waiting, self._options.full_timeout_s)


class Streaming:
    """Mixin of a batcher: `submit` and related methods, on a stream that is opened at first use.

    The batcher implements `run_calls`, of the type `BatchRunner`, and may set `stream_options`. Its
    pickled state must not include `_own_stream`.
    """

    stream_options: StreamOptions = _DEFAULT
    _own_stream: Stream | None = None

    def run_calls(self, calls: Sequence[InstanceCall]) -> Sequence[Outcome]:
        """Run calls with equal keywords as one batch; see `requests.Run`."""
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
        """Return a further stream with its own settings; see StreamOptions. Use it in a `with`
        statement."""
        options = StreamOptions(max_batch, max_wait_ms, max_waiting, when_full, full_timeout_s)
        return Stream(self.run_calls, options)

    def submit(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `Stream.submit` of the batcher's own stream."""
        return self._opened().submit(*args, **kwargs)

    async def asubmit(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run `Stream.asubmit` of the batcher's own stream."""
        return await self._opened().asubmit(*args, **kwargs)

    def metrics(self) -> Metrics:
        """Return `Stream.metrics` of the batcher's own stream."""
        return self._opened().metrics()

    def close(self, *, cancel_waiting: bool = False) -> None:
        """Run `Stream.close` of the batcher's own stream. The batcher can still be called."""
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
    """Return when a future is done, however it ends. `asyncio.wrap_future` would never return for
    a future that holds a StopIteration, which asyncio futures cannot hold."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop was closed, so nothing waits
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(tell)
    await woken

"""Batchers and clocks that tests control: nothing here depends on time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from stretto.batching.serving import InstanceCall, InstanceFailure, InstanceResult, Outcome

LIMIT_S = 120.0
"""How long a test waits for what has to happen, before it fails."""


class Recorded:
    """Runs a function per instance, and keeps the batches. An exception of the function is the
    outcome of its instance; `whole` makes the run raise it instead."""

    def __init__(self, function: Callable[..., Any], *, whole: bool = False) -> None:
        self.function = function
        self.whole = whole
        self.batches: list[list[Any]] = []

    def __call__(self, calls: Sequence[InstanceCall]) -> Sequence[Outcome]:
        self.batches.append([call.args[0] for call in calls])
        return [self._outcome(call) for call in calls]

    def _outcome(self, call: InstanceCall) -> Outcome:
        try:
            return InstanceResult(self.function(*call.args, **call.kwargs))
        except BaseException as error:
            if self.whole:
                raise
            return InstanceFailure(error)


class Gated(Recorded):
    """Each run says that it has begun, and then waits until the test lets it go on."""

    def __init__(self, function: Callable[..., Any] = lambda x: x, **known: Any) -> None:
        super().__init__(function, **known)
        self.begun: SimpleQueue[list[Any]] = SimpleQueue()
        self._may_go_on = threading.Semaphore(0)

    def __call__(self, calls: Sequence[InstanceCall]) -> Sequence[Outcome]:
        self.begun.put([call.args[0] for call in calls])
        assert self._may_go_on.acquire(timeout=LIMIT_S)
        return super().__call__(calls)

    def next_batch(self) -> list[Any]:
        """Waits until the next run has begun; its instances."""
        return self.begun.get(timeout=LIMIT_S)

    def let_go(self, runs: int = 1) -> None:
        self._may_go_on.release(runs)


class ManualClock:
    """Time passes when the test says so. `sleeps` has an item whenever the worker goes to sleep:
    for how long."""

    def __init__(self) -> None:
        self.sleeps: SimpleQueue[float | None] = SimpleQueue()
        self._time = 100.0
        self._bell: SimpleQueue[None] | None = None

    def now(self) -> float:
        return self._time

    def pause(self, bell: SimpleQueue[None], seconds: float | None) -> None:
        self._bell = bell
        self.sleeps.put(seconds)
        bell.get(timeout=LIMIT_S)

    def asleep(self) -> float | None:
        """Waits until the worker sleeps; for how many seconds."""
        return self.sleeps.get(timeout=LIMIT_S)

    def advance(self, seconds: float) -> None:
        self._time += seconds
        assert self._bell is not None
        self._bell.put(None)


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def joined(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()

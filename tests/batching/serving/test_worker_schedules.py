"""Any schedule of a worker, step by step on one thread: counts, answers, and when it wakes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import stretto
from stretto.batching.serving import InstanceCall, InstanceFailure, InstanceResult, Outcome
from stretto.batching.serving.requests import Modes, Reply, Request, Waiting
from stretto.batching.serving.worker import Worker

MODES = Modes(grad=False, inference=False, autocast=(None, None))
MAX_WAIT_S = 1.0


class SteppedClock:
    """`asleep` is whether the worker's last step was to go to sleep, until when if not forever."""

    def __init__(self) -> None:
        self.time = 0.0
        self.asleep = False
        self.until: float | None = None
        self.bell: SimpleQueue[None] | None = None

    def now(self) -> float:
        return self.time

    def pause(self, bell: SimpleQueue[None], seconds: float | None) -> None:
        self.asleep, self.bell = True, bell
        self.until = None if seconds is None else self.time + seconds

    def wakes(self) -> bool:
        """Whether a worker that really slept would be awake now."""
        rung = self.bell is not None and not self.bell.empty()
        return rung or (self.until is not None and self.time >= self.until)


class Schedules(RuleBasedStateMachine):
    """Requests are numbers: odd ones fail by themselves, multiples of 7 make a whole run raise."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SteppedClock()
        self.worker = Worker(Waiting(max_batch=3, max_wait_s=MAX_WAIT_S, max_waiting=4), self.clock)
        self.thread = threading.Thread(name="stepped")
        self.worker._thread = self.thread
        self.requests: list[Request] = []
        self.refused = 0
        self.more = True

    def run_batch(self, calls: Sequence[InstanceCall]) -> list[Outcome]:
        numbers: list[int] = [call.args[0] for call in calls]
        if any(number % 7 == 0 for number in numbers):
            raise LookupError(numbers[0])
        return [InstanceFailure(ValueError(n)) if n % 2 else InstanceResult(2 * n) for n in numbers]

    def request(self, key: int, caller: str) -> Request:
        call = InstanceCall((len(self.requests),), {})
        return Request(call, key, caller, MODES, self.run_batch, self.clock.time, Reply())

    @rule(key=st.sampled_from([0, 0, 1]), caller=st.sampled_from("ab"), may_block=st.booleans())
    def submit(self, key: int, caller: str, may_block: bool) -> None:
        request = self.request(key, caller)
        closed, full = self.worker.is_closed, self.worker._waiting.is_full
        if closed or (full and not may_block):
            with pytest.raises(stretto.StreamClosed if closed else stretto.StreamFull):
                self.worker.enter(request, may_block=may_block)
            self.refused += 1
            return
        self.worker.enter(request, may_block=may_block)
        assert (request.admitted is not None) == full
        self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        before = request.reply.done() and not request.reply.cancelled()
        assert request.reply.cancel() == (not before)

    @rule(seconds=st.sampled_from([0.25, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.time += seconds

    @precondition(lambda self: self.more and (not self.clock.asleep or self.clock.wakes()))
    @rule()
    def step(self) -> None:
        if self.clock.bell is not None and not self.clock.bell.empty():
            self.clock.bell.get()
        self.clock.asleep = False
        with mock.patch.object(threading, "current_thread", lambda: self.thread):
            self.more = self.worker._step()

    @precondition(lambda self: not self.worker.is_closed)
    @rule(cancel_waiting=st.booleans(), abandon=st.sampled_from([False, False, True]))
    def close(self, cancel_waiting: bool, abandon: bool) -> None:
        if abandon:
            self.worker.abandon()
            return
        with mock.patch.object(self.thread, "join"):
            self.worker.close("closed", cancel_waiting=cancel_waiting)

    @invariant()
    def counts_add_up(self) -> None:
        m = self.worker.metrics()
        assert m.submitted == m.finished + m.failed + m.cancelled + m.waiting + m.running
        assert m.running == 0 and m.waiting <= 4
        assert len(self.requests) + self.refused == m.submitted + m.refused + m.blocked
        assert m.finished + m.failed == m.latencies.count == m.waits.count

    @invariant()
    def answers_are_right(self) -> None:
        for request in self.requests:
            reply, number = request.reply, request.call.args[0]
            if not reply.done() or reply.cancelled():
                continue
            if number % 7 == 0:
                assert isinstance(reply.exception(), LookupError)
            elif number % 2:
                assert isinstance(reply.exception(), ValueError)
            else:
                assert reply.result() == 2 * number

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """What is open waits, or waits for room; and who is admitted, refused or neither knows."""
        waiting = self.worker._waiting
        assert not waiting.blocked or waiting.is_full
        for request in self.requests:
            waits = request.number in waiting.admitted
            blocked = request.number in waiting.blocked
            refused = request.admitted is not None and (
                request.admitted.done() and request.admitted.exception() is not None
            )
            assert waits + blocked + (request.reply.done() or refused) == 1
            if request.admitted is not None and not request.reply.cancelled():
                assert request.admitted.done() == (not blocked)

    @invariant()
    def sleep_ends_in_time(self) -> None:
        """A worker that sleeps is woken for a full batch, for the oldest request, and to end."""
        if not self.more or not self.clock.asleep or self.clock.wakes():
            return
        waiting = self.worker._waiting
        assert not self.worker.is_closed
        assert len(waiting.admitted) < 3
        for request in waiting.admitted.values():
            assert self.clock.time < request.entered + MAX_WAIT_S

    def teardown(self) -> None:
        """Closed, a worker comes to its end, and nothing is open."""
        self.worker.abandon()
        for _ in range(100):
            if self.more:
                self.step()
        assert not self.more
        metrics = self.worker.metrics()
        assert (metrics.waiting, metrics.running, metrics.blocked) == (0, 0, 0)


TestWorkerSchedules = Schedules.TestCase
TestWorkerSchedules.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)

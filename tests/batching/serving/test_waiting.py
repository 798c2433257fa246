"""Which requests make a batch: examples, and any schedule of what may happen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stretto.batching.serving.requests import InstanceCall, Modes, Reply, Request, Waiting


def request(caller: str = "a", key: Any = 0, entered: float = 0.0) -> Request:
    modes = Modes(grad=False, inference=False, autocast=(None, None))
    return Request(InstanceCall((), {}), key, caller, modes, lambda calls: [], entered, Reply())


def admitted(waiting: Waiting, *requests: Request) -> None:
    for each in requests:
        waiting.admit(each)


def test_a_batch_is_due_when_it_is_full_or_the_oldest_has_waited() -> None:
    waiting = Waiting(max_batch=3, max_wait_s=2.0, max_waiting=8)
    assert waiting.seconds_until_due(0.0) is None
    admitted(waiting, request(entered=1.0), request(entered=2.5))
    assert waiting.seconds_until_due(2.5) == 0.5
    assert waiting.seconds_until_due(3.0) == 0.0
    assert waiting.seconds_until_due(9.0) == 0.0
    admitted(waiting, request(entered=2.5))
    assert waiting.seconds_until_due(2.5) == 0.0


def test_the_time_of_batches_is_taken_from_the_wait_up_to_half_of_it() -> None:
    waiting = Waiting(max_batch=3, max_wait_s=2.0, max_waiting=8)
    admitted(waiting, request(entered=1.0))
    waiting.took(0.4)
    assert 2.8 < 1.0 + waiting.wait_s < 3.0
    for _ in range(100):
        waiting.took(0.4)
    assert waiting.seconds_until_due(1.0) == pytest.approx(1.6)
    waiting.took(1e9)  # as of a batch that compiles
    assert waiting.wait_s > 1.5
    for _ in range(100):
        waiting.took(10.0)
    assert waiting.seconds_until_due(1.0) == pytest.approx(1.0)
    assert waiting.seconds_until_due(9.0) == 0.0


def test_without_a_wait_no_time_is_taken_from_it() -> None:
    waiting = Waiting(max_batch=3, max_wait_s=0.0, max_waiting=8)
    admitted(waiting, request(entered=1.0))
    waiting.took(5.0)
    assert waiting.wait_s == 0.0 and waiting.seconds_until_due(1.0) == 0.0


def test_requests_with_other_keywords_form_another_batch() -> None:
    waiting = Waiting(max_batch=8, max_wait_s=0.0, max_waiting=8)
    first, second, third = request("a", 0), request("b", 1), request("c", 0)
    admitted(waiting, first, second, third)
    assert waiting.take() == [first, third]
    assert waiting.take() == [second]
    assert waiting.take() == []


def test_a_caller_is_not_reordered_for_a_fuller_batch() -> None:
    waiting = Waiting(max_batch=8, max_wait_s=0.0, max_waiting=8)
    a, b0, b1, c = request("a", 0), request("b", 1), request("b", 0), request("c", 0)
    admitted(waiting, a, b0, b1, c)
    assert waiting.take() == [a, c]
    assert waiting.take() == [b0]
    assert waiting.take() == [b1]


def test_a_batch_has_at_most_max_batch() -> None:
    waiting = Waiting(max_batch=2, max_wait_s=0.0, max_waiting=8)
    five = [request() for _ in range(5)]
    admitted(waiting, *five)
    assert [waiting.take() for _ in range(3)] == [five[:2], five[2:4], five[4:]]


def test_a_withdrawn_request_makes_room() -> None:
    waiting = Waiting(max_batch=1, max_wait_s=0.0, max_waiting=1)
    first, second, third = request(), request(), request()
    admitted(waiting, first)
    assert waiting.is_full
    waiting.block(second)
    waiting.block(third)
    assert waiting.move_up() == []
    assert waiting.withdraw(first) and not waiting.withdraw(first)
    assert waiting.move_up() == [second]
    assert waiting.withdraw(third)
    assert waiting.take() == [second] and waiting.move_up() == []


@pytest.mark.parametrize("max_waiting", [1, 5])
def test_what_is_admitted_beyond_the_bound_leaves_no_room(max_waiting: int) -> None:
    waiting = Waiting(max_batch=1, max_wait_s=0.0, max_waiting=max_waiting)
    admitted(waiting, *(request() for _ in range(max_waiting + 2)))
    late = request()
    waiting.block(late)
    for _ in range(2):
        waiting.take()
        assert waiting.move_up() == []
    waiting.take()
    assert waiting.move_up() == [late]


class Schedules(RuleBasedStateMachine):
    """Whatever comes in which order: nothing is lost or taken twice, the bound holds, callers are
    answered in order, batches share their keywords, and the oldest request is in the next batch."""

    MAX_BATCH, MAX_WAITING = 3, 5

    def __init__(self) -> None:
        super().__init__()
        self.waiting = Waiting(self.MAX_BATCH, 1.0, self.MAX_WAITING)
        self.order: list[Request] = []
        self.open: list[Request] = []
        self.taken: list[Request] = []

    @rule(caller=st.sampled_from("abc"), key=st.sampled_from([0, 0, 1]))
    def submit(self, caller: str, key: int) -> None:
        new = request(caller, key)
        if self.waiting.is_full:
            self.waiting.block(new)
        else:
            self.waiting.admit(new)
        self.order.append(new)
        self.open.append(new)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.open))
        assert self.waiting.withdraw(gone)
        self.open.remove(gone)
        self.waiting.move_up()

    @rule()
    def take(self) -> None:
        oldest = self.open[:1]
        batch = self.waiting.take()
        assert batch[:1] == oldest
        assert len(batch) <= self.MAX_BATCH
        assert len({each.key for each in batch}) <= 1
        for each in batch:
            self.open.remove(each)
        self.taken += batch
        self.waiting.move_up()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def withdraw_too_late(self, data: st.DataObject) -> None:
        assert not self.waiting.withdraw(data.draw(st.sampled_from(self.taken)))

    @invariant()
    def nothing_is_lost(self) -> None:
        here = [*self.waiting.admitted.values(), *self.waiting.blocked.values()]
        assert here == self.open

    @invariant()
    def the_bound_holds(self) -> None:
        assert len(self.waiting.admitted) <= self.MAX_WAITING
        assert not self.waiting.blocked or self.waiting.is_full

    @invariant()
    def callers_are_in_order(self) -> None:
        for caller in "abc":
            mine = [each for each in self.taken if each.caller == caller]
            assert mine == [each for each in self.order if each in mine]


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

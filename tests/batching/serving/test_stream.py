"""Streams and threads: order, bounds, failures, cancelling, closing."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import gc
import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import stretto
from stretto.batching.serving import InstanceCall, Outcome, Stream, Streaming, StreamOptions
from stretto.batching.serving import worker as worker_module
from tests.batching.serving.fakes import (
    LIMIT_S,
    Gated,
    ManualClock,
    Recorded,
    in_thread,
    joined,
)

AT_ONCE = StreamOptions(max_batch=4, max_wait_ms=0)


def identity(x: Any) -> Any:
    return x


# ---- batches ----------------------------------------------------------------------------------


def test_a_full_batch_does_not_wait() -> None:
    clock, run = ManualClock(), Recorded(identity)
    with Stream(run, StreamOptions(max_batch=3, max_wait_ms=50), clock) as stream:
        futures = [stream.submit(i) for i in range(3)]
        assert [future.result(LIMIT_S) for future in futures] == [0, 1, 2]
    assert run.batches == [[0, 1, 2]]


def test_a_batch_that_is_not_full_waits_for_the_oldest_request() -> None:
    clock, run = ManualClock(), Recorded(identity)
    with Stream(run, StreamOptions(max_batch=3, max_wait_ms=500), clock) as stream:
        first = stream.submit(1)
        while clock.asleep() != 0.5:  # without a request it sleeps as long as it takes
            pass
        clock.advance(0.25)
        assert clock.asleep() == 0.25
        second = stream.submit(2)
        assert run.batches == []
        clock.advance(0.25)
        assert (first.result(LIMIT_S), second.result(LIMIT_S)) == (1, 2)
    assert run.batches == [[1, 2]]


def test_batches_form_while_another_one_runs() -> None:
    run = Gated()
    with Stream(run, AT_ONCE) as stream:
        stream.submit(0)
        assert run.next_batch() == [0]
        for number in range(1, 7):
            stream.submit(number)
        run.let_go(3)
        assert run.next_batch() == [1, 2, 3, 4]
        assert run.next_batch() == [5, 6]


def test_keywords_reach_the_function_and_part_batches() -> None:
    run = Gated(lambda x, scale=1: x * scale)
    with Stream(run, AT_ONCE) as stream:
        stream.submit(0)
        run.next_batch()
        futures: list[Any] = []
        threads = [
            in_thread(lambda k=k: futures.append(stream.submit(10 + k, scale=1 + k % 2)))  # type: ignore[misc]
            for k in range(4)
        ]
        joined(*threads)
        run.let_go(3)
        assert {len(run.next_batch()) for _ in range(2)} == {2}
        assert sorted(future.result(LIMIT_S) for future in futures) == [10, 12, 22, 26]


def test_requests_for_other_parameters_have_other_batches() -> None:
    run = Gated(lambda *values: sum(values))
    with Stream(run, AT_ONCE) as stream:
        stream.submit(0)
        run.next_batch()
        futures = [stream.submit(1), stream.submit(2, 3), stream.submit(4, 5), stream.submit()]
        run.let_go(4)
        assert [future.result(LIMIT_S) for future in futures[:3]] == [1, 5, 9]
        with pytest.raises(IndexError):  # as this batcher says
            futures[3].result(LIMIT_S)
    assert run.batches == [[0], [1], [2, 4]]


# ---- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_a_request_that_fails_does_so_alone(whole: bool) -> None:
    def third(x: int) -> int:
        if x == 3:
            raise LookupError("three")
        return x

    run = Recorded(third, whole=whole)
    with Stream(run, StreamOptions(max_batch=5, max_wait_ms=1e6)) as stream:
        futures = [stream.submit(i) for i in range(5)]
        with pytest.raises(LookupError, match="three"):
            futures[3].result(LIMIT_S)
        assert [futures[i].result(LIMIT_S) for i in (0, 1, 2, 4)] == [0, 1, 2, 4]
        assert stream.submit(7) is not None  # goes on
    metrics = stream.metrics()
    assert (metrics.finished, metrics.failed) == (5, 1)


def test_a_callback_that_raises_or_exits_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def leave(_: object) -> None:
        raise SystemExit

    def stumble(_: object) -> None:
        raise ValueError

    run = Gated()
    with Stream(run, AT_ONCE) as stream:
        futures = [stream.submit(0)]
        run.next_batch()
        futures += [stream.submit(i) for i in range(1, 4)]
        futures[0].add_done_callback(leave)
        futures[1].add_done_callback(stumble)
        run.let_go(2)
        assert [future.result(LIMIT_S) for future in futures] == [0, 1, 2, 3]
    assert "a done-callback of a request raised" in caplog.text


def test_a_future_that_others_complete_harms_nobody() -> None:
    run = Gated()
    with Stream(run, AT_ONCE) as stream:
        running = stream.submit(0)
        run.next_batch()
        waiting, last = stream.submit(1), stream.submit(2)
        running.set_result("mine")
        waiting.set_result("mine, too")
        run.let_go(2)
        assert (running.result(LIMIT_S), waiting.result(LIMIT_S)) == ("mine", "mine, too")
        assert last.result(LIMIT_S) == 2


class Stopped(BaseException):
    pass


class Stopping(Gated):
    """Outcomes of the batch that begins with 1 stop the thread that reads them."""

    def __call__(self, calls: Sequence[InstanceCall]) -> Sequence[Outcome]:
        outcomes = super().__call__(calls)
        return StopsReader(outcomes) if calls[0].args[0] == 1 else outcomes


class StopsReader(list[Outcome]):
    def __iter__(self) -> Iterator[Outcome]:
        yield self[0]
        raise Stopped


def test_a_thread_that_is_stopped_is_named_and_the_rest_finish() -> None:
    run = Stopping()
    with Stream(run, StreamOptions(max_batch=2, max_wait_ms=0)) as stream:
        first = stream.submit(0)
        run.next_batch()
        futures = [stream.submit(i) for i in range(1, 6)]
        run.let_go(4)
        assert (first.result(LIMIT_S), futures[0].result(LIMIT_S)) == (0, 1)
        with pytest.raises(stretto.RunError, match=r"'stretto-stream-\d+'.*stopped by Stopped"):
            futures[1].result(LIMIT_S)
        assert [future.result(LIMIT_S) for future in futures[2:]] == [3, 4, 5]
    metrics = stream.metrics()
    assert (metrics.submitted, metrics.finished, metrics.failed) == (6, 5, 1)


def test_an_exception_thrown_into_the_thread_fails_its_batch_only() -> None:
    """As debuggers and some libraries do, which stop threads by PyThreadState_SetAsyncExc."""
    idents = list[int]()

    def remember(x: int) -> int:
        idents.append(threading.get_ident())
        return x

    run = Gated(remember)
    with Stream(run, AT_ONCE) as stream:
        run.let_go()
        stream.submit(0).result(LIMIT_S)
        thread = ctypes.c_ulong(idents[0])
        stopped = stream.submit(1)
        run.next_batch(), run.next_batch()
        waiting = stream.submit(2)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(MemoryError))
        run.let_go(3)
        with pytest.raises((MemoryError, stretto.RunError)):
            # Where it hits the run, the run is at fault; one call is not run again.
            stopped.result(LIMIT_S)
        assert waiting.result(LIMIT_S) == 2


def test_a_thread_that_cannot_go_on_leaves_no_future_open() -> None:
    class Broken(ManualClock):
        def now(self) -> float:
            if threading.current_thread().name.startswith("stretto-stream"):
                raise OSError("no time")
            return 0.0

    stream = Stream(Recorded(identity), StreamOptions(max_batch=1), Broken())
    future = stream.submit(1)
    with pytest.raises(stretto.RunError, match="stopped by OSError"):
        future.result(LIMIT_S)
    with pytest.raises(stretto.StreamClosed, match="stopped by OSError"):
        stream.submit(2)
    stream.close()


# ---- order and many threads ---------------------------------------------------------------------


class Caller:
    """Submits 60 requests, some of which fail, with other keywords, or cancelled, and checks the
    answers as they come."""

    def __init__(self, stream: Stream, number: int, seed: int) -> None:
        self.stream, self.number = stream, number
        self.choose = random.Random(seed)
        self.answered: list[int] = []
        self.cancelled: list[int] = []
        self.wrong: list[str] = []

    @staticmethod
    def work(instance: tuple[int, int], scale: int = 1) -> tuple[int, int, int]:
        if instance[1] % 11 == 5:
            raise ValueError(str(instance))
        return (*instance, scale)

    def call(self) -> None:
        for step in range(60):
            scale = self.choose.choice([1, 1, 1, 2])
            future = self.stream.submit((self.number, step), scale=scale)
            future.add_done_callback(functools.partial(self.check, step, scale))
            if self.choose.random() < 0.1 and future.cancel():
                self.cancelled.append(step)

    def check(self, step: int, scale: int, future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled():
            return
        self.answered.append(step)
        instance = (self.number, step)
        if step % 11 == 5:
            right = str(future.exception()) == str(instance)
        else:
            right = future.result() == (*instance, scale)
        if not right:
            self.wrong.append(f"{instance}: {future}")


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_callers_keep_their_order(seed: int) -> None:
    options = StreamOptions(max_batch=5, max_wait_ms=seed / 10, max_waiting=7)
    with Stream(Recorded(Caller.work, whole=seed % 2 == 1), options) as stream:
        callers = [Caller(stream, number, 10 * seed + number) for number in range(6)]
        joined(*(in_thread(caller.call) for caller in callers))
    for caller in callers:
        left = [step for step in range(60) if step not in caller.cancelled]
        assert caller.answered == left and caller.wrong == []
    metrics = stream.metrics()
    assert metrics.submitted == 360 == metrics.finished + metrics.failed + metrics.cancelled
    assert metrics.cancelled == sum(len(caller.cancelled) for caller in callers)
    assert max(metrics.batch_sizes) <= 5 and not metrics.running + metrics.waiting


# ---- cancelling ---------------------------------------------------------------------------------


def test_what_has_not_begun_can_be_cancelled_and_makes_room() -> None:
    run = Gated()
    options = StreamOptions(max_batch=1, max_wait_ms=0, max_waiting=1, when_full="raise")
    with Stream(run, options) as stream:
        running = stream.submit(0)
        run.next_batch()
        assert not running.cancel()
        waiting = stream.submit(1)
        with pytest.raises(stretto.StreamFull, match="1 requests wait, as many as `max_waiting`"):
            stream.submit(2)
        assert waiting.cancel() and waiting.cancel() and waiting.cancelled()
        done, _ = concurrent.futures.wait([waiting], LIMIT_S)
        assert done == {waiting}
        last = stream.submit(3)
        run.let_go(2)
        assert last.result(LIMIT_S) == 3
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result()
    assert run.batches == [[0], [3]]
    metrics = stream.metrics()
    assert (metrics.submitted, metrics.cancelled, metrics.refused) == (3, 1, 1)


def test_a_cancel_callback_that_raises_leaves_no_request_behind() -> None:
    def leave(_: object) -> None:
        raise SystemExit

    run = Gated()
    with Stream(run, AT_ONCE) as stream:
        stream.submit(0)
        run.next_batch()
        waiting = stream.submit(1)
        waiting.add_done_callback(leave)
        with pytest.raises(SystemExit):
            waiting.cancel()
        assert stream.metrics().waiting == 0 and stream.metrics().cancelled == 1
        run.let_go()
    assert run.batches == [[0]]


# ---- the bound ----------------------------------------------------------------------------------


def full(run: Gated, **options: Any) -> Stream:
    """A stream with one request that runs and one that waits, which is all it takes."""
    settings = StreamOptions(max_batch=1, max_wait_ms=0, max_waiting=1, **options)
    stream = Stream(run, settings)
    stream.submit("runs")
    run.next_batch()
    stream.submit("waits")
    return stream


def blocked(stream: Stream, number: int) -> None:
    """Returns when so many callers wait for room."""
    waited = threading.Event()
    for _ in range(int(LIMIT_S * 1000)):
        if stream.metrics().blocked == number:
            return
        waited.wait(0.001)
    raise AssertionError(f"{stream.metrics()}")


def test_submit_waits_for_room_and_callers_get_it_in_order() -> None:
    run = Gated()
    stream = full(run)
    threads = list[threading.Thread]()
    for number in range(3):
        threads.append(in_thread(lambda n=number: stream.submit(n)))  # type: ignore[misc]
        blocked(stream, number + 1)
    assert stream.metrics().waiting == 1
    run.let_go(5)
    joined(*threads)
    stream.close()
    assert run.batches == [["runs"], ["waits"], [0], [1], [2]]


def test_submit_waits_for_room_as_long_as_it_may() -> None:
    run = Gated()
    stream = full(run, full_timeout_s=0.01)
    with pytest.raises(stretto.StreamFull, match=r"none of them began within 0.01 s") as found:
        stream.submit(1)
    assert "max_waiting" in str(found.value.remedy)
    assert stream.metrics().refused == 1 and stream.metrics().blocked == 0
    run.let_go(2)
    stream.close()
    assert run.batches == [["runs"], ["waits"]]


def test_a_callback_may_submit_to_a_full_stream() -> None:
    run = Gated()
    options = StreamOptions(max_batch=1, max_wait_ms=0, max_waiting=1)
    chained = list[Any]()
    with Stream(run, options) as stream:
        first = stream.submit(0)
        run.next_batch()
        first.add_done_callback(lambda _: chained.extend(stream.submit(i) for i in (10, 11, 12)))
        stream.submit(1)
        run.let_go(5)
        for expected in (1, 10, 11, 12):
            assert run.next_batch() == [expected]
        assert [future.result(LIMIT_S) for future in chained] == [10, 11, 12]


def test_an_interrupted_submit_leaves_no_request_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Gated()
    stream = full(run)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Stream, "_wait_for_room", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.submit(1)
    metrics = stream.metrics()
    assert (metrics.blocked, metrics.waiting, metrics.refused) == (0, 1, 1)
    run.let_go(2)
    stream.close()


# ---- the end ------------------------------------------------------------------------------------


def test_close_answers_all_that_was_taken_and_refuses_the_rest() -> None:
    run = Gated()
    stream = full(run)
    errors = list[BaseException]()

    def late() -> None:
        try:
            stream.submit("late")
        except stretto.StreamClosed as error:
            errors.append(error)

    caller = in_thread(late)
    blocked(stream, 1)
    closers = [in_thread(stream.close) for _ in range(2)]
    joined(caller)
    assert "takes no more requests: it was closed by close()" in str(errors[0])
    assert stream.closed and all(thread.is_alive() for thread in closers)
    run.let_go(2)
    joined(*closers)
    assert run.batches == [["runs"], ["waits"]]
    with pytest.raises(stretto.StreamClosed, match="make another one"):
        stream.submit(1)
    stream.close()
    metrics = stream.metrics()
    assert (metrics.submitted, metrics.finished, metrics.refused) == (2, 2, 2)


def test_close_can_cancel_what_waits() -> None:
    run = Gated()
    stream = full(run)
    callbacks = list[bool]()
    waiting = next(iter(stream._worker._waiting.admitted.values())).reply
    waiting.add_done_callback(lambda future: callbacks.append(future.cancelled()))
    run.let_go()
    stream.close(cancel_waiting=True)
    assert callbacks == [True] and concurrent.futures.wait([waiting], LIMIT_S).done == {waiting}
    metrics = stream.metrics()
    assert (metrics.submitted, metrics.finished, metrics.cancelled) == (2, 1, 1)


def test_a_stream_that_was_never_used_closes() -> None:
    with Stream(Recorded(identity)) as stream:
        pass
    assert stream.closed


def test_a_callback_may_close() -> None:
    run = Gated()
    stream = Stream(run, AT_ONCE)
    first = stream.submit(0)
    run.next_batch()
    first.add_done_callback(lambda _: stream.close())
    second = stream.submit(1)
    run.let_go(2)
    assert second.result(LIMIT_S) == 1
    stream.close()


def test_an_error_inside_with_still_answers_all() -> None:
    run = Recorded(identity)
    with pytest.raises(KeyError), Stream(run, StreamOptions(max_wait_ms=1e6)) as stream:
        future = stream.submit(1)
        raise KeyError
    assert future.result(0) == 1


def test_a_deleted_stream_answers_what_waits_and_its_thread_ends() -> None:
    run = Gated()
    stream = Stream(run, AT_ONCE)
    futures = [stream.submit(0)]
    run.next_batch()
    futures += [stream.submit(i) for i in range(1, 9)]
    worker = stream._worker
    thread = worker._thread
    assert thread is not None and worker in worker_module._live
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None
    run.let_go(3)
    assert [future.result(LIMIT_S) for future in futures] == list(range(9))
    joined(thread)
    assert worker not in worker_module._live


class Batcher(Streaming):
    """What `stretto.batch` returns, as far as streams are concerned."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def run_calls(self, calls: Sequence[InstanceCall]) -> Sequence[Outcome]:
        return self.run(calls)


def test_a_deleted_batcher_lives_until_its_requests_are_answered() -> None:
    run = Gated()
    many = Batcher(run)
    future = many.submit(0)
    run.next_batch()
    later = many.submit(1)
    thread = many._opened()._worker._thread
    gone = weakref.ref(many)
    del many
    gc.collect()
    assert gone() is not None
    run.let_go(2)
    assert (future.result(LIMIT_S), later.result(LIMIT_S)) == (0, 1)
    while gone() is not None:  # the worker lets go of the batch a moment after its last result
        gc.collect()
    assert thread is not None
    joined(thread)


def test_an_idle_stream_keeps_nothing_alive() -> None:
    class Data:
        pass

    clock = ManualClock()
    stream = Stream(Recorded(lambda x: 1), StreamOptions(max_batch=1), clock)
    stream._run.batches = Forgetful()  # type: ignore[attr-defined]
    data = Data()
    gone = weakref.ref(data)
    assert stream.submit(data).result(LIMIT_S) == 1
    del data
    while gone() is not None:
        gc.collect()
    stream.close()


class Forgetful(list[Any]):
    def append(self, item: Any) -> None:
        pass


def test_a_batcher_has_one_stream_of_its_own_and_more_on_demand() -> None:
    many = Batcher(Recorded(lambda x, scale=1: x * scale))
    many.stream_options = StreamOptions(max_wait_ms=0)
    with many:
        assert many.submit(3, scale=2).result(LIMIT_S) == 6
        with many.stream(max_batch=2, max_wait_ms=1) as other:
            assert other.options.max_batch == 2 and other.options.max_waiting == 1024
            assert other.submit(4).result(LIMIT_S) == 4
        assert many.metrics().submitted == 1 == other.metrics().submitted
    with pytest.raises(stretto.StreamClosed):
        many.submit(1)


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_batch": 0}, "max_batch is an integer of at least 1, got 0"),
        ({"max_batch": True}, "max_batch is an integer of at least 1, got True"),
        ({"max_batch": 2.0}, "max_batch is an integer"),
        ({"max_batch": 64, "max_waiting": 63}, "max_waiting is an integer of at least 64, got 63"),
        ({"max_wait_ms": -1}, "max_wait_ms is a finite number of at least 0, got -1"),
        ({"max_wait_ms": float("inf")}, "max_wait_ms is a finite number"),
        ({"max_wait_ms": "5"}, "max_wait_ms is a finite number"),
        ({"when_full": "block"}, "when_full is 'wait' or 'raise', got 'block'"),
        ({"full_timeout_s": float("nan")}, "full_timeout_s is a finite number"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Batcher(None).stream(**options)


def test_a_wait_longer_than_the_system_has_pauses() -> None:
    with Stream(Recorded(identity), StreamOptions(max_batch=2, max_wait_ms=1e300)) as stream:
        futures = stream.submit(1), stream.submit(2)
        assert [future.result(LIMIT_S) for future in futures] == [1, 2]

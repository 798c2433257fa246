"""Streams and processes: forks, the exit of the interpreter, pickling."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest

import stretto
from stretto.batching.serving import Stream, StreamOptions
from tests.batching.serving.fakes import LIMIT_S, Gated, Recorded, in_thread

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
AT_ONCE = StreamOptions(max_batch=4, max_wait_ms=0)


def in_child(function: Callable[[], None]) -> int | None:
    """Exit code of a forked process that runs `function`."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join(LIMIT_S)
    child.kill()
    return child.exitcode


def test_a_forked_child_has_an_empty_stream_that_works() -> None:
    run = Gated()
    stream = Stream(run, AT_ONCE)
    finished = stream.submit(0)
    run.next_batch()
    run.let_go()
    assert finished.result(LIMIT_S) == 0
    running = stream.submit(1)
    run.next_batch()
    waiting = stream.submit(2)

    def child() -> None:
        assert stream.metrics().submitted == 0
        assert finished.result(LIMIT_S) == 0
        for future in (running, waiting):
            with pytest.raises(stretto.RunError, match="before it was forked"):
                future.result()
            with pytest.raises(stretto.RunError, match="submit it again"):
                future.exception()
        again = stream.submit(2)
        run.let_go()
        assert again.result(LIMIT_S) == 2
        stream.close()

    assert in_child(child) == 0
    run.let_go(2)
    assert (running.result(LIMIT_S), waiting.result(LIMIT_S)) == (1, 2)
    stream.close()


def test_a_fork_while_another_thread_holds_the_lock() -> None:
    stream = Stream(Recorded(lambda x: x), AT_ONCE)
    held, done = multiprocessing.Event(), multiprocessing.Event()

    def hold() -> None:
        with stream._worker._lock:
            held.set()
            done.wait(LIMIT_S)

    thread = in_thread(hold)
    held.wait(LIMIT_S)
    try:
        assert in_child(lambda: stream.submit(1).result(LIMIT_S)) == 0
    finally:
        done.set()
        thread.join()
    stream.close()


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


_PROGRAM = """
import threading
from stretto.batching.serving import InstanceResult, Stream, StreamOptions
go_on = threading.Event()
def run(calls):
    go_on.wait(20)
    for call in calls:
        print("answered", call.args[0], flush=True)
    return [InstanceResult(None) for _ in calls]
stream = Stream(run, StreamOptions(max_batch=2, max_wait_ms=1e6))
"""


@pytest.mark.whole
@pytest.mark.parametrize("deleted", ["", "del stream\n"])
def test_the_exit_of_the_interpreter_loses_nothing(deleted: str) -> None:
    submit = "for i in range(5): stream.submit(i)\n"
    done = python(f"{_PROGRAM}{submit}{deleted}go_on.set()")
    assert done.stdout.splitlines() == [f"answered {i}" for i in range(5)]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.whole
def test_a_thread_that_outlives_the_main_one_can_still_submit() -> None:
    # The stream has its thread by then: Python 3.12 does not start one at its exit.
    late = """
stream.submit("early")
def late():
    threading.main_thread().join()
    stream.submit("late")
    go_on.set()
threading.Thread(target=late).start()
"""
    done = python(_PROGRAM + late)
    assert (done.stdout, done.stderr, done.returncode) == ("answered early\nanswered late\n", "", 0)


def test_a_child_of_multiprocessing_loses_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    stream = Stream(Recorded(lambda x: print("answered", x, flush=True)), StreamOptions(4, 1e6))

    def child() -> None:
        for number in range(6):
            stream.submit(number)

    assert in_child(child) == 0
    assert capfd.readouterr().out.splitlines() == [f"answered {i}" for i in range(6)]


class Doubling:
    def run_calls(self, calls: object) -> object:
        return Recorded(lambda x: 2 * x)(calls)  # type: ignore[arg-type]


def test_a_pickled_stream_is_a_new_one() -> None:
    with Stream(Doubling().run_calls, StreamOptions(max_batch=3, max_wait_ms=0)) as stream:  # type: ignore[arg-type]
        assert stream.submit(1).result(LIMIT_S) == 2
        data = pickle.dumps(stream)
    with pickle.loads(data) as copy:
        assert copy.options == stream.options and not copy.closed
        assert copy.submit(4).result(LIMIT_S) == 8
        assert copy.metrics().submitted == 1

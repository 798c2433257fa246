"""Locks and forks."""

import multiprocessing
import threading

import pytest

from stretto.locks import ForkSafeLock

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def in_child(function: object) -> int | None:
    """Return the exit code of a forked process that runs `function`."""
    child = multiprocessing.get_context("fork").Process(target=function)  # type: ignore[arg-type]
    child.start()
    child.join(20)
    child.kill()
    return child.exitcode


def take(lock: ForkSafeLock) -> None:
    with lock, lock:
        pass


def test_a_lock_that_another_thread_held_is_free_in_the_child():
    lock, held, done = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        assert in_child(lambda: take(lock)) == 0
    finally:
        done.set()
        thread.join()
    take(lock)


def test_a_lock_that_the_forking_thread_holds_stays_held():
    lock = ForkSafeLock()
    with lock:
        assert in_child(lambda: take(lock)) == 0
    take(lock)


def test_a_lock_excludes_other_threads():
    lock, order = ForkSafeLock(), list[str]()

    def second() -> None:
        with lock:
            order.append("second")

    thread = threading.Thread(target=second)
    with lock:
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]

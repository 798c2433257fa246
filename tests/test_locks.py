"""Locks and forks."""

import multiprocessing
import threading
import time
from typing import Any

import pytest

from stretto.locks import ForkSafeLock, single
from stretto.machines.cuda import launch

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


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_that_ask_at_once_get_one_object(threads: int) -> None:
    made: list[object] = []
    asked = threading.Barrier(threads)

    @single
    def shared(name: str) -> object:
        made.append(object())
        time.sleep(0.05)  # the others ask meanwhile
        return made[-1]

    found: list[object] = []

    def ask() -> None:
        asked.wait()
        found.append(shared("a"))

    workers = [threading.Thread(target=ask) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(made) == len(set(found)) == 1
    assert shared("b") is not shared("a") is found[0]


def test_programs_that_are_loaded_at_once_have_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that wait for each other's blocks need one order on a device."""
    usual = launch.LaunchOrder.__init__

    def slow(self: launch.LaunchOrder, driver: Any) -> None:
        time.sleep(0.05)
        usual(self, driver)

    monkeypatch.setattr(launch.LaunchOrder, "__init__", slow)
    driver: Any = object()
    found: list[launch.LaunchOrder] = []
    workers = [
        threading.Thread(target=lambda: found.append(launch.order_of(7, driver))) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(set(map(id, found))) == 1

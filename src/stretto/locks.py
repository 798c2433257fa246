"""Locks that a forked child can take, whatever the other threads of its parent were doing."""

import os
import threading
import weakref
from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ForkSafeLock:
    """A reentrant lock for `with`. In a child of `fork`, which has only the thread that forked, a
    lock held by another thread of the parent is free; one held by the forking thread stays held."""

    __slots__ = ("__weakref__", "_depth", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._depth = 0
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = 0
        self._lock.release()

    def after_fork(self) -> None:
        """Free the lock in the child, unless the thread that forked holds it."""
        if self._owner != threading.get_ident():
            self._lock = threading.RLock()
            self._owner = 0
            self._depth = 0


_locks: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_locks):
        lock.after_fork()


os.register_at_fork(after_in_child=_free_all)


class single(Generic[P, R]):
    """A `functools.cache` for objects of which there must be only one: a thread that needs one
    while another thread creates it waits."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._lock = ForkSafeLock()
        self._known = cache(function)
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return self._known(*args, **kwargs)

    def cache_clear(self) -> None:
        """Forget all objects."""
        self._known.cache_clear()

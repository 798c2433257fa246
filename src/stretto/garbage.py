"""No search for garbage while a program is made.

Nearly all objects that are made then are kept. Python looks through them again and again, and
through all of torch's, for cycles that are not there: a fifth of the time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

from stretto.locks import ForkSafeLock

_lock = ForkSafeLock()
_blocks = 0
"""How many threads are inside."""


@contextmanager
def uncollected() -> Generator[None]:
    """Python collects no cycles of objects inside the block, in any thread."""
    global _blocks
    with _lock:
        if not _blocks and not gc.isenabled():
            is_counted = False  # the user has turned it off
        else:
            is_counted = True
            _blocks += 1
            gc.disable()
    try:
        yield
    finally:
        if is_counted:
            _leave()


def _leave() -> None:
    global _blocks
    with _lock:
        _blocks = max(_blocks - 1, 0)  # in a child of `fork` it may have begun again
        if not _blocks:
            _all_are_old()
            gc.enable()


def _all_are_old() -> None:
    """What was made is looked through with all that is old, not at once as what is new would be."""
    if not gc.get_freeze_count():  # else others have frozen objects, which are to stay so
        gc.freeze()
        gc.unfreeze()


def _after_fork() -> None:
    """The other threads of the parent are not in the child."""
    global _blocks
    if _blocks:
        _blocks = 0
        gc.enable()


os.register_at_fork(after_in_child=_after_fork)

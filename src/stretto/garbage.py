"""No garbage collection while a program is made.

Nearly all objects made then stay alive. Python would search them, and all of torch's, again and
again for cycles that do not exist: a fifth of the time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

from stretto.locks import ForkSafeLock

_lock = ForkSafeLock()
_blocks = 0
"""Number of threads inside an `uncollected` block."""


@contextmanager
def uncollected() -> Generator[None]:
    """Turn off the collection of reference cycles inside the block, in all threads."""
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
        _blocks = max(_blocks - 1, 0)  # `_after_fork` may have reset it to 0
        if not _blocks:
            _move_to_oldest_generation()
            gc.enable()


def _move_to_oldest_generation() -> None:
    """Move all objects to the oldest generation: new ones would be searched at once, old ones are
    not."""
    if not gc.get_freeze_count():  # else objects that the user has frozen would be unfrozen
        gc.freeze()
        gc.unfreeze()


def _after_fork() -> None:
    """Reset the counter in a child process, which has none of the parent's other threads."""
    global _blocks
    if _blocks:
        _blocks = 0
        gc.enable()


os.register_at_fork(after_in_child=_after_fork)

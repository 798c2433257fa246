"""What stretto says while it compiles: a log, and a line on the terminal where that takes long.

The log is that of Python's `logging`, under the name "stretto": information for each program that
is compiled, and for debugging each stage. `STRETTO_LOG=info` or `debug` prints it to standard
error. The line shows what a compile is doing once it has taken two seconds. It is shown on a
terminal only, and not beside a printed log.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

LOG = logging.getLogger("stretto")
_VARIABLE = "STRETTO_LOG"
_LEVELS = {"info": logging.INFO, "debug": logging.DEBUG}
SILENT_SECONDS = 2.0
"""A compile that takes no longer shows nothing."""


class Progress:
    """One compile of the program `name`, and the stage that it is at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stage = "starting"
        self._start = time.perf_counter()
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._ended = False
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        LOG.info("compiling %s", self.name)
        if sys.stderr.isatty() and not LOG.isEnabledFor(logging.INFO):
            self._timer = threading.Timer(SILENT_SECONDS, self._show)
            self._timer.daemon = True
            self._timer.start()

    def end(self, error: BaseException | None) -> None:
        seconds = time.perf_counter() - self._start
        if error is None:
            LOG.info("compiled %s in %.2f s", self.name, seconds)
        else:
            LOG.info(
                "%s was not compiled: %s after %.2f s", self.name, type(error).__name__, seconds
            )
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._status is not None:
                self._status.stop()

    def enter(self, stage: str) -> None:
        with self._lock:
            self._stage = stage
            if self._status is not None:
                self._status.update(self._text())

    def _text(self) -> str:
        return f"stretto is compiling {self.name}: {self._stage}"

    def _show(self) -> None:
        from rich.console import Console
        from rich.markup import escape

        with self._lock:
            if not self._ended:
                console = Console(stderr=True, highlight=False, markup=False)
                self._status = console.status(escape(self._text()))
                self._status.start()


_current: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def compiling(name: str) -> Generator[None]:
    """Around one compile. A compile inside another one is part of it."""
    if _current.get() is not None:
        yield
        return
    progress = Progress(name)
    token = _current.set(progress)
    error: BaseException | None = None
    progress.begin()
    try:
        yield
    except BaseException as problem:
        error = problem
        raise
    finally:
        _current.reset(token)
        progress.end(error)


@contextmanager
def stage(name: str) -> Generator[None]:
    """Around one stage of the compile at hand."""
    progress = _current.get()
    if progress is not None:
        progress.enter(name)
    start = time.perf_counter()
    yield
    LOG.debug("%s took %.3f s", name, time.perf_counter() - start)


def print_log() -> None:
    """Prints the log as `STRETTO_LOG` asks. Warns of a value that it does not know."""
    wanted = os.environ.get(_VARIABLE, "")
    if not wanted:
        return
    level = _LEVELS.get(wanted.lower())
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    LOG.addHandler(handler)
    LOG.propagate = False
    if level is None:
        LOG.warning("%s=%s is neither `info` nor `debug`: nothing is logged", _VARIABLE, wanted)
    else:
        LOG.setLevel(level)

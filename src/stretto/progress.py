"""Progress of a compile: a log, and a line on the terminal if the compile takes long.

The log is that of Python's `logging`, under the name "stretto": level INFO for each compiled
program, DEBUG for each stage. `STRETTO_LOG=info` or `debug` prints it to standard error. The line
shows the current stage of a compile once it has taken two seconds. It is shown on a terminal only,
and not together with a printed log.
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
"""A compile shows no line before it has taken this long."""


class Progress:
    """One compile of the program `name`, and its current stage."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stage = "starting"
        self._start = time.perf_counter()
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._ended = False
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Log the beginning, and show the line after `SILENT_SECONDS` on a terminal."""
        LOG.info("compiling %s", self.name)
        if sys.stderr.isatty() and not LOG.isEnabledFor(logging.INFO):
            self._timer = threading.Timer(SILENT_SECONDS, self._show)
            self._timer.daemon = True
            self._timer.start()

    def end(self, error: BaseException | None) -> None:
        """Log the end or the error, and remove the line."""
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
        """Set the current stage."""
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
    """Log one compile and show its progress. A compile inside another one counts as part of it."""
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
def logged_stage(name: str) -> Generator[None]:
    """Log one stage of the current compile and show its name."""
    progress = _current.get()
    if progress is not None:
        progress.enter(name)
    start = time.perf_counter()
    yield
    LOG.debug("%s took %.3f s", name, time.perf_counter() - start)


def print_log() -> None:
    """Print the log as the variable `STRETTO_LOG` requests. Warns of an unknown value."""
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

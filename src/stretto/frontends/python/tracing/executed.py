"""Which Python code runs while a function is captured.

The tracer sees the calls that rewritten code makes. Getters of properties, special methods and
whatever code without source calls run unseen; the interpreter says that they did.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from cProfile import Profile
from types import CodeType
from typing import Any


class ExecutedCode:
    """The code objects that ran. Where the interpreter could not be asked, any may have."""

    def __init__(self) -> None:
        self._found: set[CodeType] = set()
        self._is_known = True
        self._profiler: Profile | None = None

    def may_have_run(self, code: CodeType) -> bool:
        return not self._is_known or code in self._found

    @contextmanager
    def collect(self) -> Generator[None]:
        """Adds what runs meanwhile. A tool that already watches the interpreter is left alone."""
        watch = self._monitored if sys.version_info >= (3, 12) else self._profiled
        with watch():
            yield

    @contextmanager
    def paused(self) -> Generator[None]:
        """Does not watch what is known to run no code of the user, where watching takes time."""
        profiler = self._profiler
        if profiler is None:
            yield
            return
        profiler.disable()
        try:
            yield
        finally:
            profiler.enable()

    @contextmanager
    def _profiled(self) -> Generator[None]:
        """The interpreter's own profiler lists what it has met. A function in Python that is called
        at each call and return would take half of the time of a capture."""
        if sys.getprofile() is not None:
            self._is_known = False
            yield
            return
        profiler = self._profiler = Profile(subcalls=False, builtins=False)
        profiler.enable()
        try:
            yield
        finally:
            profiler.disable()
            self._profiler = None
            met: list[Any] = [entry.code for entry in profiler.getstats()]
            self._found.update(code for code in met if isinstance(code, CodeType))

    @contextmanager
    def _monitored(self) -> Generator[None]:
        """Each code object calls back once only, so this takes no time."""
        monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

        def note(code: CodeType, offset: int) -> object:
            self._found.add(code)
            return monitoring.DISABLE

        free = [tool for tool in _TOOLS if monitoring.get_tool(tool) is None]
        if not free:
            self._is_known = False
            yield
            return
        tool, start = free[0], monitoring.events.PY_START
        monitoring.use_tool_id(tool, "stretto")
        try:
            monitoring.register_callback(tool, start, note)
            monitoring.set_events(tool, start)
            monitoring.restart_events()
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, start, None)
            monitoring.free_tool_id(tool)


_TOOLS = (4, 3, 5, 2)
"""Numbers of tools of `sys.monitoring`: those without a meaning first."""

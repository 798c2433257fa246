"""The tests that are marked `gpu` as rows, where pytest and the source tree are there."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Any

from ..peers.base import Skipped
from .engine import ROOT
from .results import Row
from .worker import Reporter

TEST_LIMIT_S = 100.0
NEEDED = ("pytest", "hypothesis")
"""The tests' own settings need both."""


class Rows:
    """A pytest plugin that tells the parent of each test, and leaves out those that were done."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.begin = 0.0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if _name(item.nodeid) not in self.reporter.skip]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begin = time.perf_counter()
        self.reporter.start(_name(nodeid), TEST_LIMIT_S)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One row a test: of its call, or of what kept it from one."""
        if report.when != "call" and report.passed:
            return
        seconds = time.perf_counter() - self.begin
        name = _name(report.nodeid)
        if report.when == "teardown":
            name += " (teardown)"
        if report.passed:
            row = Row(name, "ok", "", seconds)
        elif report.skipped:
            where = report.longrepr
            reason = where[-1] if isinstance(where, tuple) else str(where)
            row = Row(name, "skipped", reason.removeprefix("Skipped: "), seconds)
        else:
            text = str(report.longrepr)
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash is not None else text
            row = Row(name, "failed", " ".join(reason.split())[:500], seconds)
            row.values = {"traceback": text[-3000:]}
        self.reporter.finish(row)


def _name(nodeid: str) -> str:
    return f"pytest {nodeid.rpartition('::')[2]}"


def gpu_tests() -> list[str]:
    """The files that have such tests; none where the source tree has no tests."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if "pytest.mark.gpu" in file.read_text()]


def why_not() -> str:
    """Empty where the tests can run."""
    if not gpu_tests():
        return "the source tree has no tests that are marked gpu"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"{missing[0]} is not installed" if missing else ""


def run(reporter: Reporter) -> None:
    if reason := why_not():

        def skip() -> dict[str, Any]:
            raise Skipped(reason)

        reporter.row("pytest", 10.0, skip)
        return
    import pytest

    os.environ["STRETTO_CACHE"] = str(reporter.scratch / "programs")
    without = [f"-pno:{plugin}" for plugin in ("xdist", "timeout", "cacheprovider")]
    arguments = [f"--rootdir={ROOT}", "-q", "--disable-warnings", "--whole", "-m", "gpu", *without]
    code = pytest.main([*gpu_tests(), *arguments], plugins=[Rows(reporter)])
    # 5: nothing was left to do after a restart.
    if code not in (0, 1, 5):
        reporter.finish(Row("pytest: collection", "failed", f"pytest ended with code {code}"))

"""Lists, after the tests, the compilations that took long, with their longest stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stretto.call.compiler import EntryCompiler

LONG_SECONDS = 15.0
_PROPERTY = "long compilation"


@pytest.fixture(autouse=True)
def note_long_compilations(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    build = EntryCompiler.build

    def timed(self: EntryCompiler, *args: Any) -> Any:
        entry = build(self, *args)
        if entry.seconds > LONG_SECONDS:
            spent = entry.stages.seconds.items()
            longest = sorted(spent, key=lambda item: item[1], reverse=True)[:4]
            stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in longest)
            record_property(_PROPERTY, f"{entry.seconds:.1f} s: {stages}")
        return entry

    monkeypatch.setattr(EntryCompiler, "build", timed)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found = [
        f"{report.nodeid}: {text}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == _PROPERTY
    ]
    if found:
        terminalreporter.section(f"compilations of more than {LONG_SECONDS:.0f} s")
        for line in found:
            terminalreporter.write_line(line)

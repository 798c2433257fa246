"""Makes texts comparable that hold times."""

from __future__ import annotations

import pytest

from stretto.tools import explain, profile


def mask_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time that `explain()` writes is TIME."""
    for module in (explain, profile):
        monkeypatch.setattr(module, "seconds_text", lambda seconds: "TIME")

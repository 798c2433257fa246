"""Settings of the tests of front ends."""

import pytest

from tests.frontends.python.state.watch import watch


@pytest.fixture(autouse=True)
def _watched_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a snapshot does not hold may change in a region unnoticed."""
    watch(monkeypatch)

"""What all tests of the benchmarks need."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from stretto.machines.registry import registered


@pytest.fixture(autouse=True)
def _no_machine_stays() -> Generator[None]:
    """A rehearsal of the GPU suite makes its own machine known, for the test alone."""
    with registered():
        yield

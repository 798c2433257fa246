"""Corners of Python in functions for one instance: right, or refused with the line."""

from __future__ import annotations

import pytest

from stretto.errors import CaptureError
from tests.batching.agree import check
from tests.batching.corners import CASES, REFUSED


@pytest.mark.parametrize("name", sorted(CASES))
def test_agrees_with_python(name: str) -> None:
    function, column = CASES[name]
    if name not in REFUSED:
        check(function, column)
        return
    with pytest.raises(CaptureError) as caught:
        check(function, column)
    location = caught.value.location
    assert location is not None
    first = function.__code__.co_firstlineno
    assert first <= location.line <= first + 20

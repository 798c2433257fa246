"""The whole text of `explain()` for a loop with a branch, on each backend, without its times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import stretto
from tests.backends import avx512_figures
from tests.tools.masks import mask_times
from tests.tools.programs import DECAY, decay


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["cpu", "emulator", "interpreter"])
def test_explain(
    backend: str,
    golden: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask_times(monkeypatch)
    avx512_figures(monkeypatch)  # the same text on every host
    options = stretto.Options(threads=2, cache_dir=tmp_path)
    fast = stretto.compile(decay, DECAY, backend=backend, options=options)
    golden(fast.explain(), f"explain-{backend}.txt")

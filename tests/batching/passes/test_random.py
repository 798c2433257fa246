"""Random functions for one instance give after all passes, and without each, what Python gives."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stretto.batching.passes.coarsen import Coarsen
from stretto.batching.passes.concurrent import Concurrent
from stretto.batching.passes.pipeline import BatchPasses, run_passes
from stretto.batching.passes.tidy import Tidy
from stretto.batching.verifier import verify
from stretto.errors import CaptureError
from tests.batching.agree import compare, program_of
from tests.batching.passes.checking import backwards
from tests.batching.random_programs import instances
from tests.batching.test_random_programs import module_of
from tests.sampling import sampled

_SWITCHES = [None, *(item.name for item in fields(BatchPasses))]


@pytest.mark.parametrize("first", sampled([2000 + 6 * i for i in range(10)], [2000, 2006]))
def test_random_programs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 6):
        options: dict[str, Any] = {}
        off = _SWITCHES[seed % len(_SWITCHES)]
        if off is not None:
            options[off] = False
        module = module_of(seed, tmp_path)
        columns = instances(seed, vars(module), 8)
        try:
            program = program_of(module.main, *columns)
        except CaptureError:
            continue
        run_passes(program, BatchPasses(**options))
        for args in zip(*columns, strict=True):
            compare(program, module.main, args)


@pytest.mark.parametrize("first", sampled([4000 + 6 * i for i in range(10)], [4000, 4006]))
def test_concurrent_parts_run_in_any_order(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 6):
        module = module_of(seed, tmp_path)
        columns = instances(seed, vars(module), 8)
        try:
            program = program_of(module.main, *columns)
        except CaptureError:
            continue
        for item in (Tidy(), Concurrent(always=True), Coarsen()):
            item.apply(program)
            verify(program)
        for args in zip(*columns, strict=True):
            compare(program, module.main, args, backwards)

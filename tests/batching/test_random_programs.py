"""Random functions for one instance: their programs give what Python gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stretto.errors import CaptureError
from tests.batching.agree import check
from tests.batching.random_programs import instances, program
from tests.sampling import sampled

_MANY = 20


def module_of(seed: int, folder: Path) -> ModuleType:
    """The module of a random program; in a file, since its source is read."""
    name = f"random_program_{seed}"
    path = folder / f"{name}.py"
    path.write_text(program(seed))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.whole
@pytest.mark.parametrize("first", sampled([1000 + _MANY * i for i in range(10)], [1000]))
def test_random_programs(first: int, tmp_path: Path) -> None:
    refused: list[str] = []
    for seed in range(first, first + _MANY):
        module = module_of(seed, tmp_path)
        try:
            check(module.main, *instances(seed, vars(module), 8))
        except CaptureError as error:
            assert error.location is not None
            refused.append(error.message)
        finally:
            del sys.modules[module.__name__]
    assert len(refused) <= _MANY // 5, refused

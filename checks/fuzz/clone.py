"""What parts take from the tests, where this is a clone of the repository."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from checks.fuzz.sanitizers import ROOT


def has_tests(name: str) -> bool:
    """Whether there is a module of the tests, as `tests.schedule.specimens`."""
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").exists()


def from_tests(name: str) -> ModuleType:
    """A module of the tests."""
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT))

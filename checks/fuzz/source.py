"""Programs that are Python text: a function or module `f`, and `calls()` with its arguments."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from checks.fuzz.machines import STANDARD
from checks.fuzz.trial import CASE, Made, Program

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Source:
    """A case as text."""

    name: str
    text: str
    seed: int = 0
    machines: tuple[str, ...] = STANDARD
    dynamic: bool | None = None
    goes_on: bool = False

    def program(self) -> Program:
        return Program(
            self.name, self.make, self.seed, self.machines, self.dynamic, goes_on=self.goes_on
        )

    def make(self, folder: Path) -> Made:
        module = load(self.text, folder)
        calls = ((args, {}) for args in module.calls())
        return Made(module.f, calls, vars(module))


def load(text: str, folder: Path) -> ModuleType:
    """The text as a module of its own, whose source can be found."""
    name = f"{CASE}{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    torch.manual_seed(0)
    random.seed(0)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module

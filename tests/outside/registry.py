"""Programs of outside packages: a page of code around a model or algorithm of the package.

A module per field registers its programs; importing it imports none of the packages. Weights are
random, configurations small, and nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.models.configs import prepare_torchvision

FIELDS = ("vision", "images", "audio", "text", "attention", "graphs", "solvers", "probability")


@dataclass(frozen=True)
class Case:
    """A function and its calls: on `first`, on `second` of another size, on `first` again.

    state: what the calls may change; the function itself, where it is not given.
    """

    function: Callable[..., Any]
    first: tuple[Any, ...]
    second: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True)
class Program:
    """`make` gives a new case each time, the same one for the same seed.

    fast: among the few that run as ordinary tests; the normal installation has its package.
    """

    name: str
    package: str
    field: str
    make: Callable[[], Case]
    fast: bool


_programs: dict[str, Program] = {}


def program(
    package: str, *, fast: bool = False
) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Registers a function that makes a case as a program of its name."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        field = make.__module__.rpartition(".")[2]
        _programs[make.__name__] = Program(make.__name__, package, field, make, fast)
        return make

    return register


def programs() -> dict[str, Program]:
    """All programs by their names, field by field."""
    prepare_torchvision()
    for field in FIELDS:
        importlib.import_module(f"tests.outside.{field}")
    return _programs

"""Which machines there are: `backend="name"` finds one here.

The folders of this package have theirs in `MACHINES` of their module `machine`. Another package
gives one by an entry point of the group "stretto.machines" that names a `Machine`, a program of the
user by `register`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from stretto import machines
from stretto.machines.machine import HOST, Machine

ENTRY_POINTS = "stretto.machines"

_REGISTERED: dict[str, Machine] = {}


def register(machine: Machine) -> None:
    """From now on `backend=machine.name` is this machine, whichever had the name before."""
    _REGISTERED[machine.name] = machine


def unregister(name: str) -> None:
    """Takes back what `register` did. Raises KeyError where no such machine was registered."""
    del _REGISTERED[name]


@contextmanager
def registered(*chosen: Machine) -> Generator[None]:
    """Machines that are known inside the block only."""
    before = dict(_REGISTERED)
    _REGISTERED.update({machine.name: machine for machine in chosen})
    try:
        yield
    finally:
        _REGISTERED.clear()
        _REGISTERED.update(before)


def find_machine(name: str) -> Machine:
    """The machine of that name. Raises KeyError for one that nobody gave."""
    return known_machines()[name]


def default_machine(device_type: str = HOST.type) -> Machine:
    """The machine that backend "auto" takes for tensors on such devices. Raises KeyError where
    there is none."""
    for machine in known_machines().values():
        if machine.is_default and machine.device_type == device_type:
            return machine
    raise KeyError(device_type)


def known_machines() -> dict[str, Machine]:
    """All machines by name, in alphabetical order."""
    return dict(sorted((_built_in() | _REGISTERED).items()))


@cache
def _built_in() -> dict[str, Machine]:
    """Those of this package's folders, and of other installed packages."""
    folders = [info.name for info in pkgutil.iter_modules(machines.__path__) if info.ispkg]
    modules = [import_module(f"{machines.__name__}.{folder}.machine") for folder in folders]
    found: list[Machine] = [machine for module in modules for machine in module.MACHINES]
    found += [point.load() for point in entry_points(group=ENTRY_POINTS)]
    return {machine.name: machine for machine in found}

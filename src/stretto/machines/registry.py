"""Which machines there are: `backend="name"` finds one here.

The folders of this package have theirs in `MACHINES` of their module `machine`. Another package
gives one by an entry point of the group "stretto.machines" that names a `Machine`, a program of the
user by `register`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

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
    for machine in _machines():
        if machine.name == name:
            return machine
    raise KeyError(name)


def default_machine(device_type: str = HOST.type) -> Machine:
    """The machine that backend "auto" takes for tensors on such devices. Raises KeyError where
    there is none."""
    for machine in _machines():
        if machine.is_default and machine.device_type == device_type:
            return machine
    raise KeyError(device_type)


def known_machines() -> dict[str, Machine]:
    """All machines by name, in alphabetical order."""
    found = [machine for folder in _folders() for machine in _in_folder(folder)]
    found += [point.load() for point in _points()]
    return dict(sorted(({machine.name: machine for machine in found} | _REGISTERED).items()))


def _machines() -> Iterator[Machine]:
    """The same, one after the other. To import a machine takes a tenth of a second or two, so those
    behind the one that is looked for are left alone, where no other can take their names."""
    if _REGISTERED or _points():
        yield from known_machines().values()
    else:
        for folder in _folders():
            yield from _in_folder(folder)


@cache
def _folders() -> tuple[str, ...]:
    """Those of this package, in alphabetical order, as the names of their machines are."""
    return tuple(info.name for info in pkgutil.iter_modules(machines.__path__) if info.ispkg)


@cache
def _in_folder(folder: str) -> tuple[Machine, ...]:
    return import_module(f"{machines.__name__}.{folder}.machine").MACHINES


@cache
def _points() -> tuple[EntryPoint, ...]:
    """What other installed packages give."""
    return tuple(entry_points(group=ENTRY_POINTS))

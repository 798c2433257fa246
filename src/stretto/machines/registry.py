"""Registry of machines, searched by `backend="name"`.

The folders of this package provide theirs as `MACHINES` in their module `machine`. Another package
provides one by an entry point of the group "stretto.machines" that names a `Machine`; a user's
program by `register`.
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
    """Make `backend=machine.name` this machine from now on, in place of one with the same name."""
    _REGISTERED[machine.name] = machine


def unregister(name: str) -> None:
    """Undo `register`. Raise KeyError if no machine of this name was registered."""
    del _REGISTERED[name]


@contextmanager
def registered(*chosen: Machine) -> Generator[None]:
    """Register machines inside the block only."""
    before = dict(_REGISTERED)
    _REGISTERED.update({machine.name: machine for machine in chosen})
    try:
        yield
    finally:
        _REGISTERED.clear()
        _REGISTERED.update(before)


def find_machine(name: str) -> Machine:
    """Return the machine of that name. Raise KeyError if there is none."""
    for machine in _machines():
        if machine.name == name:
            return machine
    raise KeyError(name)


def default_machine(device_type: str = HOST.type) -> Machine:
    """Return the machine that backend "auto" takes for tensors on this type of device. Raise
    KeyError if there is none."""
    for machine in _machines():
        if machine.is_default and machine.device_type == device_type:
            return machine
    raise KeyError(device_type)


def known_machines() -> dict[str, Machine]:
    """Return all machines by name, in alphabetical order."""
    found = [machine for folder in _folders() for machine in _in_folder(folder)]
    found += [point.load() for point in _points()]
    return dict(sorted(({machine.name: machine for machine in found} | _REGISTERED).items()))


def _machines() -> Iterator[Machine]:
    """Yield the same machines one by one. Importing one takes a tenth of a second or two, so those
    after the requested one are not imported if no other machine can take their names."""
    if _REGISTERED or _points():
        yield from known_machines().values()
    else:
        for folder in _folders():
            yield from _in_folder(folder)


@cache
def _folders() -> tuple[str, ...]:
    """Return the folders of this package, in alphabetical order, which is that of their machines'
    names."""
    return tuple(info.name for info in pkgutil.iter_modules(machines.__path__) if info.ispkg)


@cache
def _in_folder(folder: str) -> tuple[Machine, ...]:
    return import_module(f"{machines.__name__}.{folder}.machine").MACHINES


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Return the entry points of other installed packages."""
    return tuple(entry_points(group=ENTRY_POINTS))

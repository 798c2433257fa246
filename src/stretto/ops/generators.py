"""Generators of random numbers that a Program names.

An operator of a Program that draws has an argument `generator`: the name of a `torch.Generator`.
Without one it draws from torch's default generator. Names are those of one process: a generator has
no text.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

_numbers = count(1)
_WEAK = bool(torch.Generator.__weakrefoffset__)
"""Whether generators can be referred to weakly. Where they cannot, before torch 2.13, those that a
Program names live as long as the process."""
_names: MutableMapping[torch.Generator, str] = WeakKeyDictionary() if _WEAK else {}
_generators: MutableMapping[str, torch.Generator] = WeakValueDictionary() if _WEAK else {}

States = tuple[tuple[torch.Generator, torch.Tensor], ...]


def generator_name(generator: torch.Generator) -> str:
    """The name by which Programs know a generator."""
    if generator not in _names:
        name = f"generator_{next(_numbers)}"
        _names[generator], _generators[name] = name, generator
    return _names[generator]


def generator_named(name: str | None) -> torch.Generator:
    """The generator of that name, without a name the default one. KeyError if it is gone."""
    return torch.default_generator if name is None else _generators[name]


def states_of(names: Iterable[str | None]) -> States:
    """The states of generators now."""
    found = map(generator_named, names)
    return tuple([(generator, generator.get_state()) for generator in found])


def restore(states: States) -> None:
    """Make the states what they were, as if nothing had been drawn since."""
    for generator, state in states:
        generator.set_state(state)

"""Mutants, and access to parts at any depth of a program, which is made of dataclasses and
tuples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from stretto.device.expr import Buffer, Reg
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.tree import Tree

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed program. `source`: the tree that `program` should be a schedule of. `same_source`:
    True if it is unchanged."""

    program: DeviceProgram
    source: Tree[Body]
    change: str
    same_source: bool = True


class NotApplicable(Exception):
    """Raised if the program has nothing that this kind of change can be made to."""


Change = Callable[[DeviceProgram, Tree[Body], random.Random], Mutant]
"""Changes a program, and in some cases its source tree too."""

Path = tuple[str | int, ...]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(value):
        yield field.name, getattr(value, field.name)


def _parts(value: Any) -> Iterator[tuple[str | int, Any]]:
    if is_dataclass(value):
        yield from _fields(value)
    elif isinstance(value, tuple):
        yield from enumerate(cast(tuple[Any, ...], value))


def places(value: Any, wanted: Callable[[Any], bool], path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all wanted parts inside of a value."""
    if wanted(value):
        yield path
    for step, part in _parts(value):
        yield from places(part, wanted, (*path, step))


def at_path(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return value


def with_part(value: V, path: Path, new: Any) -> V:
    """Return the value with the part at a path replaced."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = list(cast(tuple[Any, ...], value))
        items[step] = with_part(items[step], rest, new)
        return cast(V, tuple(items))
    part = with_part(getattr(value, step), rest, new)
    return cast(V, replace(cast(Any, value), **{step: part}))


def replaced_everywhere(value: V, old: object, new: object) -> V:
    """Return the value with every part that equals `old` replaced."""
    if type(value) is type(old) and value == old:
        return cast(V, new)
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        return cast(V, tuple(replaced_everywhere(item, old, new) for item in items))
    if not is_dataclass(value):
        return value
    changed = {
        name: found
        for name, part in _fields(value)
        if (found := replaced_everywhere(part, old, new)) is not part
    }
    return cast(V, replace(cast(Any, value), **changed)) if changed else value


def is_number(value: object) -> bool:
    return type(value) is int


def pick(rng: random.Random, found: list[V]) -> V:
    if not found:
        raise NotApplicable
    return rng.choice(found)


def nudged(rng: random.Random, value: int) -> int:
    return rng.choice([value - 1, value + 1, value + 1, -value, 0, 1, 2 * value, value + 7, 10**9])


def other_name(reg: Reg) -> str:
    return f"{reg.name}_other"


def another(kind: type[Reg | Buffer]) -> Change:
    """Replace a register or buffer in a control node or a statement by another one of the
    program."""

    def apply(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
        paths = list(places(program.tree, lambda value: isinstance(value, kind)))
        path, other = pick(rng, paths), pick(rng, paths)
        old, new = at_path(program.tree, path), at_path(program.tree, other)
        tree = with_part(program.tree, path, new)
        return Mutant(replace(program, tree=tree), source, f"{old.name} becomes {new.name}")

    return apply

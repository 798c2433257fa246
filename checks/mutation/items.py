"""Changes of a leaf: of the items that its units run in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from checks.mutation.parts import (
    Change,
    Mutant,
    NotApplicable,
    at_path,
    is_number,
    nudged,
    other_name,
    pick,
    places,
    with_part,
)
from stretto.device.expr import Reg
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.regions import Body
from stretto.device.tree import Tree

Units = list[list[Item]]


def _leaf_change(
    change: Callable[[Units, random.Random], str],
) -> Change:
    """Make a change of a program from one of the lists of items of a leaf."""

    def apply(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
        path = pick(rng, list(places(program.tree, lambda v: isinstance(v, Schedule))))
        schedule: Schedule = at_path(program.tree, path)
        units: Units = [list(items) for items in schedule.units]
        if not any(units):
            raise NotApplicable
        text = change(units, rng)
        made = replace(schedule, units=tuple(tuple(items) for items in units))
        return Mutant(replace(program, tree=with_part(program.tree, path, made)), source, text)

    return apply


def _item(
    units: Units, rng: random.Random, kinds: type | tuple[type, ...] = object
) -> tuple[int, int]:
    """Pick a unit and the index of one of its items."""
    found = [
        (unit, index)
        for unit, items in enumerate(units)
        for index, item in enumerate(items)
        if isinstance(item, kinds)
    ]
    return pick(rng, found)


def _statement(units: Units, rng: random.Random) -> Item:
    """Pick one of the statements on registers, which all units run."""
    unit, index = _item(units, rng)
    item = units[unit][index]
    if isinstance(item, Run | Wait | Signal):
        raise NotApplicable
    return item


@_leaf_change
def _drop(units: Units, rng: random.Random) -> str:
    unit, index = _item(units, rng, rng.choice([object, Wait, Signal, Run]))
    return f"drop {units[unit].pop(index)} of unit {unit}"


@_leaf_change
def _duplicate(units: Units, rng: random.Random) -> str:
    unit, index = _item(units, rng)
    item = units[unit][index]
    units[unit].insert(rng.randint(0, len(units[unit])), item)
    return f"duplicate {item} of unit {unit}"


@_leaf_change
def _move(units: Units, rng: random.Random) -> str:
    unit, index = _item(units, rng, rng.choice([object, Wait, Signal, Run]))
    item = units[unit].pop(index)
    near = max(0, min(len(units[unit]), index + rng.choice([-2, -1, 1, 2])))
    target = rng.choice([near, rng.randint(0, len(units[unit]))])
    units[unit].insert(target, item)
    return f"move {item} of unit {unit} from {index} to {target}"


@_leaf_change
def _move_everywhere(units: Units, rng: random.Random) -> str:
    """Move a register statement on all units, past one or more runs."""
    item = _statement(units, rng)
    shift = rng.choice([-3, -2, -1, 1, 2, 3, 100, -100])
    for items in units:
        if item in items:
            place = items.index(item)
            items.remove(item)
            items.insert(max(0, place + shift), item)
    return f"move {item} of all units by {shift}"


@_leaf_change
def _drop_everywhere(units: Units, rng: random.Random) -> str:
    unit, index = _item(units, rng)
    item = units[unit][index]
    for items in units:
        if item in items:
            items.remove(item)
    return f"drop {item} of all units"


@_leaf_change
def _other_unit(units: Units, rng: random.Random) -> str:
    unit, index = _item(units, rng, rng.choice([object, Run]))
    item = units[unit].pop(index)
    target = rng.randrange(len(units))
    units[target].insert(rng.randint(0, len(units[target])), item)
    return f"move {item} from unit {unit} to unit {target}"


@_leaf_change
def _exchange_units(units: Units, rng: random.Random) -> str:
    a, b = rng.randrange(len(units)), rng.randrange(len(units))
    units[a], units[b] = units[b], units[a]
    return f"exchange units {a} and {b}"


@_leaf_change
def _change_item(units: Units, rng: random.Random) -> str:
    """Change a number in a wait, a signal or a run."""
    unit, index = _item(units, rng, (Wait, Signal, Run))
    item = units[unit][index]
    path = pick(rng, list(places(item, is_number)))
    changed = with_part(item, path, nudged(rng, at_path(item, path)))
    units[unit][index] = changed
    return f"{item} of unit {unit} becomes {changed}"


@_leaf_change
def _retarget_run(units: Units, rng: random.Random) -> str:
    """Exchange two runs, or their kernels."""
    unit, index = _item(units, rng, Run)
    other, place = _item(units, rng, Run)
    one, two = units[unit][index], units[other][place]
    assert isinstance(one, Run) and isinstance(two, Run)
    if rng.random() < 0.5:
        units[unit][index], units[other][place] = two, one
    else:
        units[unit][index] = replace(one, kernel=two.kernel)
        units[other][place] = replace(two, kernel=one.kernel)
    return f"{one} of unit {unit} and {two} of unit {other} trade places"


@_leaf_change
def _insert(units: Units, rng: random.Random) -> str:
    unit = rng.randrange(len(units))
    step = rng.randint(0, 4)
    item = rng.choice([Signal(step), Wait(rng.randrange(len(units)), step)])
    units[unit].insert(rng.randint(0, len(units[unit])), item)
    return f"insert {item} on unit {unit}"


@_leaf_change
def _no_waits(units: Units, rng: random.Random) -> str:
    unit = rng.randrange(len(units))
    units[unit] = [item for item in units[unit] if not isinstance(item, Wait)]
    return f"no waits on unit {unit}"


@_leaf_change
def _change_statement(units: Units, rng: random.Random) -> str:
    """Change a number or register in a statement, on all units."""
    item = _statement(units, rng)
    path = pick(rng, list(places(item, lambda v: is_number(v) or isinstance(v, Reg))))
    value = at_path(item, path)
    new = nudged(rng, value) if is_number(value) else replace(value, name=other_name(value))
    changed = with_part(item, path, new)
    for items in units:
        items[:] = [changed if other == item else other for other in items]
    return f"{item} becomes {changed}"


def _change_steps(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    path = pick(rng, list(places(program.tree, lambda v: isinstance(v, Schedule))))
    schedule: Schedule = at_path(program.tree, path)
    steps = nudged(rng, schedule.steps)
    tree = with_part(program.tree, path, replace(schedule, steps=steps))
    return Mutant(replace(program, tree=tree), source, f"a leaf of {steps} steps")


CHANGES: tuple[Change, ...] = (
    *(_drop, _drop, _move, _move, _move, _duplicate, _change_item, _change_item, _other_unit),
    *(_exchange_units, _insert, _insert, _no_waits, _retarget_run, _change_steps),
    *(_move_everywhere, _move_everywhere, _drop_everywhere, _change_statement),
)
"""The changes, each listed as often as it should be drawn."""

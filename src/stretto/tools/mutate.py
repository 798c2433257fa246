"""Breaks DevicePrograms at random: what the verifier has to find.

`mutate` makes one change somewhere in a program: to items of leaves, to control nodes, to frames,
to numbers and buffers inside of kernels. A change of a kernel or of a declared buffer may be made
to the source tree too: then it is not the schedule that is wrong, but what it was made for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from stretto.kernels.expr import Buffer, Const, Reg
from stretto.kernels.operator import Kernel
from stretto.kernels.tree import Call, For, If, Node, Seq, Tree, While
from stretto.schedule.dependence import Body
from stretto.schedule.program import (
    DeviceProgram,
    Frame,
    Item,
    Placement,
    Run,
    Schedule,
    Signal,
    Wait,
)

L = TypeVar("L")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Mutant:
    """`source`: the tree that `program` is to be a schedule of. `same_source`: it is unchanged."""

    program: DeviceProgram
    source: Tree[Body]
    change: str
    same_source: bool = True


class NotApplicable(Exception):
    """The program has nothing that a change of this kind could be made to."""


def mutate(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """The program with one change, drawn from `rng`; it differs from the program."""
    while True:
        kind = rng.choice(KINDS)
        try:
            mutant = kind(program, source, rng)
        except NotApplicable:
            continue
        if mutant.program != program:
            return mutant


# ---- any dataclass ---------------------------------------------------------------------------
Path = tuple[str | int, ...]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(value):
        yield field.name, getattr(value, field.name)


def _parts(value: Any) -> Iterator[tuple[str | int, Any]]:
    if is_dataclass(value):
        yield from _fields(value)
    elif isinstance(value, tuple):
        yield from enumerate(cast(tuple[Any, ...], value))


def _places(value: Any, wanted: Callable[[Any], bool], path: Path = ()) -> Iterator[Path]:
    """Where inside of a value something wanted is."""
    if wanted(value):
        yield path
    for step, part in _parts(value):
        yield from _places(part, wanted, (*path, step))


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return value


def _with(value: V, path: Path, new: Any) -> V:
    """The value with another part at a place."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = list(cast(tuple[Any, ...], value))
        items[step] = _with(items[step], rest, new)
        return cast(V, tuple(items))
    part = _with(getattr(value, step), rest, new)
    return cast(V, replace(cast(Any, value), **{step: part}))


def _everywhere(value: V, old: object, new: object) -> V:
    """The value with every part that equals `old` replaced."""
    if type(value) is type(old) and value == old:
        return cast(V, new)
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        return cast(V, tuple(_everywhere(item, old, new) for item in items))
    if not is_dataclass(value):
        return value
    changed = {
        name: found
        for name, part in _fields(value)
        if (found := _everywhere(part, old, new)) is not part
    }
    return cast(V, replace(cast(Any, value), **changed)) if changed else value


def _is_number(value: object) -> bool:
    return type(value) is int


def _pick(rng: random.Random, found: list[V]) -> V:
    if not found:
        raise NotApplicable
    return rng.choice(found)


def _nudged(rng: random.Random, value: int) -> int:
    return rng.choice([value - 1, value + 1, value + 1, -value, 0, 1, 2 * value, value + 7, 10**9])


# ---- items -----------------------------------------------------------------------------------
Units = list[list[Item]]


def _leaf_change(
    change: Callable[[Units, random.Random], str],
) -> Callable[[DeviceProgram, Tree[Body], random.Random], Mutant]:
    """A change of the lists of items of one leaf."""

    def apply(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
        path = _pick(rng, list(_places(program.tree, lambda v: isinstance(v, Schedule))))
        schedule: Schedule = _at(program.tree, path)
        units: Units = [list(items) for items in schedule.units]
        if not any(units):
            raise NotApplicable
        text = change(units, rng)
        made = replace(schedule, units=tuple(tuple(items) for items in units))
        return Mutant(replace(program, tree=_with(program.tree, path, made)), source, text)

    return apply


def _item(
    units: Units, rng: random.Random, kinds: type | tuple[type, ...] = object
) -> tuple[int, int]:
    """A unit and the index of one of its items."""
    found = [
        (unit, index)
        for unit, items in enumerate(units)
        for index, item in enumerate(items)
        if isinstance(item, kinds)
    ]
    return _pick(rng, found)


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
    """A register statement on all units, past one or more runs."""
    unit, index = _item(units, rng)
    item = units[unit][index]
    if isinstance(item, Run | Wait | Signal):
        raise NotApplicable
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
    """Another number in a wait, a signal or a run."""
    unit, index = _item(units, rng, (Wait, Signal, Run))
    item = units[unit][index]
    path = _pick(rng, list(_places(item, _is_number)))
    changed = _with(item, path, _nudged(rng, _at(item, path)))
    units[unit][index] = changed
    return f"{item} of unit {unit} becomes {changed}"


@_leaf_change
def _retarget_run(units: Units, rng: random.Random) -> str:
    """Two runs trade their kernels or their tasks."""
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
    """Another number or register in a statement, on all units."""
    unit, index = _item(units, rng)
    item = units[unit][index]
    if isinstance(item, Run | Wait | Signal):
        raise NotApplicable
    path = _pick(rng, list(_places(item, lambda v: _is_number(v) or isinstance(v, Reg))))
    value = _at(item, path)
    new = _nudged(rng, value) if _is_number(value) else replace(value, name=_other_name(value))
    changed = _with(item, path, new)
    for items in units:
        items[:] = [changed if other == item else other for other in items]
    return f"{item} becomes {changed}"


def _other_name(reg: Reg) -> str:
    return f"{reg.name}_other"


def _change_steps(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    path = _pick(rng, list(_places(program.tree, lambda v: isinstance(v, Schedule))))
    schedule: Schedule = _at(program.tree, path)
    steps = _nudged(rng, schedule.steps)
    tree = _with(program.tree, path, replace(schedule, steps=steps))
    return Mutant(replace(program, tree=tree), source, f"a leaf of {steps} steps")


# ---- control ---------------------------------------------------------------------------------
def _nodes(tree: Tree[Schedule], kinds: Any) -> list[Path]:
    return list(_places(tree, lambda v: isinstance(v, kinds)))


def _node_change(
    change: Callable[[Node[Schedule], random.Random], Node[Schedule]],
    *kinds: type,
) -> Callable[[DeviceProgram, Tree[Body], random.Random], Mutant]:
    """A change of one control node."""

    def apply(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
        path = _pick(rng, _nodes(program.tree, kinds))
        node = _at(program.tree, path)
        made = change(node, rng)
        text = f"{change.__name__.strip('_')} at a {type(node).__name__} node"
        return Mutant(replace(program, tree=_with(program.tree, path, made)), source, text)

    return apply


def _children(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """Drops, duplicates or exchanges children of a sequence."""
    assert isinstance(node, Seq)
    items = list(node.children)
    if len(items) < 2:
        raise NotApplicable
    a, b = rng.randrange(len(items)), rng.randrange(len(items))
    match rng.randrange(3):
        case 0:
            del items[a]
        case 1:
            items.insert(a, items[b])
        case _:
            items[a], items[b] = items[b], items[a]
    return Seq(tuple(items))


def _arms(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    assert isinstance(node, If)
    match rng.randrange(3):
        case 0:
            return replace(node, then=node.orelse, orelse=node.then)
        case 1:
            return replace(node, then=Seq(()))
        case _:
            return replace(node, orelse=node.then)


def _unwrapped(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """The body of a loop or an arm of a branch, instead of the whole node."""
    match node:
        case For(body=body) | While(body=body):
            return body
        case If(then=then, orelse=orelse):
            return rng.choice([then, orelse])
        case _:
            raise NotApplicable


def _bounds(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """Another number of iterations, but a small one."""
    assert isinstance(node, For)
    changed = [Const(rng.randint(-1, 4), node.stop.dtype), node.start, node.stop]
    match rng.randrange(3):
        case 0:
            return replace(node, start=rng.choice(changed))
        case 1:
            return replace(node, stop=rng.choice(changed))
        case _:
            return replace(node, step=rng.choice([0, 1, 2, -1]))


def _rotation(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    assert isinstance(node, For | While)
    pairs = list(node.rotate)
    if not pairs:
        raise NotApplicable
    a, b = rng.randrange(len(pairs)), rng.randrange(len(pairs))
    match rng.randrange(5):
        case 0:
            del pairs[a]
        case 1:
            pairs.append(pairs[a])
        case 2:
            pairs[a] = pairs[a][0], pairs[a][0]
        case 3:
            pairs[a] = pairs[a][1], pairs[a][0]
        case _:
            pairs[a], pairs[b] = (pairs[a][0], pairs[b][1]), (pairs[b][0], pairs[a][1])
    return replace(node, rotate=tuple(pairs))


def _condition(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    assert isinstance(node, If | While)
    return replace(node, condition=replace(node.condition, name=_other_name(node.condition)))


def _call(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """Other arguments, or other places for results."""
    assert isinstance(node, Call)
    bound = list(node.tensors)
    a, b = (rng.randrange(len(bound)) for _ in range(2)) if bound else (0, 0)
    match rng.randrange(5):
        case 0 if bound:
            bound[a], bound[b] = (bound[a][0], bound[b][1]), (bound[b][0], bound[a][1])
        case 1 if bound:
            del bound[a]
        case 2 if bound:
            bound[a] = bound[a][0], bound[b][1]
        case 3:
            return replace(node, registers=node.registers[1:])
        case _:
            path = _pick(rng, list(_places(node, _is_number)))
            return _with(node, path, _nudged(rng, _at(node, path)))
    return replace(node, tensors=tuple(bound))


def _registers(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """A register in a control node or a statement becomes another one of the program."""
    paths = list(_places(program.tree, lambda v: isinstance(v, Reg)))
    path, other = _pick(rng, paths), _pick(rng, paths)
    old, new = _at(program.tree, path), _at(program.tree, other)
    tree = _with(program.tree, path, new)
    return Mutant(replace(program, tree=tree), source, f"{old.name} becomes {new.name}")


# ---- memory ----------------------------------------------------------------------------------
def _frames(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """Another place for a buffer, or another size of the frame."""
    number = rng.randrange(len(program.frames))
    name, frame = program.frames[number]
    places = list(frame.placements)
    text = f"the frame of {name} "
    if not places or rng.random() < 0.15:
        size = rng.choice([0, frame.nbytes - 64, frame.nbytes + 64, frame.nbytes + 1])
        made = replace(frame, nbytes=size)
        text += f"has {size} bytes"
    else:
        at = rng.randrange(len(places))
        buffer, place = places[at]
        other = rng.choice(places)[1]
        kind = rng.randrange(6)
        if kind == 0:
            del places[at]
        elif kind == 1:
            places[at] = buffer, Placement(place.offset, max(0, place.nbytes - 4))
        else:
            offset = rng.choice(
                [other.offset, place.offset - 64, place.offset + 64, place.offset + 4, 0]
            )
            places[at] = buffer, Placement(offset, place.nbytes)
        made = Frame(frame.nbytes, tuple(places))
        text += f"changes at {buffer}"
    frames = list(program.frames)
    frames[number] = name, made
    return Mutant(replace(program, frames=tuple(frames)), source, text)


def _declarations(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """Locals, params, results and externals of a function, of the program alone."""
    function = rng.choice(program.tree.functions)
    found = [
        (owner, name, value)
        for owner, name, value in (
            *((function, n, getattr(function, n)) for n in ("params", "tensors", "written")),
            *((function, n, getattr(function, n)) for n in ("results", "locals", "name")),
            (program.tree, "externals", program.tree.externals),
            (program, "kernels", program.kernels),
            (program, "frames", program.frames),
        )
        if value
    ]
    owner, name, value = rng.choice(found)
    if name == "name":
        new: Any = "other"
    else:
        items = list(cast(tuple[Any, ...], value))
        at = rng.randrange(len(items))
        match rng.randrange(3):
            case 0:
                del items[at]
            case 1:
                items.append(items[at])
            case _:
                items.reverse()
        new = tuple(items)
    made = replace(cast(Any, owner), **{name: new})
    text = f"other {name}"
    if owner is program:
        return Mutant(made, source, text)
    if owner is program.tree:
        return Mutant(replace(program, tree=made), source, text)
    functions = tuple(made if f is function else f for f in program.tree.functions)
    return Mutant(replace(program, tree=replace(program.tree, functions=functions)), source, text)


def _buffers(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """A declared buffer gets another size, everywhere or not everywhere."""
    declared = [b for f in program.tree.functions for b in (*f.locals, *f.tensors)]
    buffer = _pick(rng, [b for b in (*declared, *program.tree.externals) if b.shape])
    at = rng.randrange(len(buffer.shape))
    shape = list(buffer.shape)
    extent = shape[at]
    shape[at] = max(0, _nudged(rng, extent)) if isinstance(extent, int) else 4
    new = replace(buffer, shape=tuple(shape))
    text = f"{buffer.name} has shape {new.shape}"
    both = rng.random() < 0.5
    if both:
        source = _everywhere(source, buffer, new)
    return Mutant(_resized(program, buffer, new, rng), source, text, same_source=not both)


def _resized(
    program: DeviceProgram, buffer: Buffer, new: Buffer, rng: random.Random
) -> DeviceProgram:
    tree = _everywhere(program.tree, buffer, new)
    kernels = program.kernels if rng.random() < 0.3 else _everywhere(program.kernels, buffer, new)
    return replace(program, tree=tree, kernels=kernels)


def _kernels(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """A number, a buffer or a stage of a kernel; in the source too, or in the program alone."""
    kernel = _pick(rng, [k for k in program.kernels if k.call is None])
    made, text = _changed_kernel(kernel, program, rng)
    kernels = tuple(made if k is kernel else k for k in program.kernels)
    changed = replace(program, kernels=kernels)
    if rng.random() < 0.2:
        return Mutant(changed, source, f"{kernel.name}: {text}")
    both = _everywhere(source, kernel, made)
    return Mutant(changed, both, f"{kernel.name}, in the source too: {text}", same_source=False)


def _changed_kernel(
    kernel: Kernel, program: DeviceProgram, rng: random.Random
) -> tuple[Kernel, str]:
    if rng.random() < 0.15 and len(kernel.stages) > 1:
        stages = list(kernel.stages)
        if rng.random() < 0.5:
            stages.reverse()
        else:
            stages.pop(rng.randrange(len(stages)))
        return replace(kernel, stages=tuple(stages)), "other stages"
    if rng.random() < 0.25:
        path = _pick(rng, list(_places(kernel, lambda v: isinstance(v, Buffer))))
        old: Buffer = _at(kernel, path)
        alike = [
            b
            for f in program.tree.functions
            for b in (*f.locals, *f.tensors, *program.tree.externals)
            if b.dtype is old.dtype and b != old
        ]
        new = _pick(rng, alike)
        return _with(kernel, path, new), f"{new.name} instead of {old.name}"
    places = [p for p in _places(kernel, _is_number) if not {"buffer", "method"} & set(p)]
    path = _pick(rng, places)
    value = _at(kernel, path)
    changed = _nudged(rng, value)
    if abs(changed) > 1000 and path[0] == "grid":
        changed = value + 1
    return _with(kernel, path, changed), f"{changed} instead of {value} at {path}"


def _units(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    units = rng.choice([program.units - 1, program.units + 1, 0])
    return Mutant(replace(program, units=units), source, f"{units} units")


def _rename(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """A buffer in a control node or a statement becomes another one."""
    paths = list(_places(program.tree, lambda v: isinstance(v, Buffer)))
    path, other = _pick(rng, paths), _pick(rng, paths)
    old, new = _at(program.tree, path), _at(program.tree, other)
    tree = _with(program.tree, path, new)
    return Mutant(replace(program, tree=tree), source, f"{new.name} instead of {old.name}")


KINDS = (
    *(_drop, _drop, _move, _move, _move, _duplicate, _change_item, _change_item, _other_unit),
    *(_exchange_units, _insert, _insert, _no_waits, _retarget_run, _change_steps),
    *(_move_everywhere, _move_everywhere, _drop_everywhere, _change_statement),
    _node_change(_children, Seq),
    _node_change(_arms, If),
    _node_change(_unwrapped, For, While, If),
    _node_change(_bounds, For),
    _node_change(_rotation, For, While),
    _node_change(_rotation, For, While),
    _node_change(_condition, If, While),
    _node_change(_call, Call),
    _node_change(_call, Call),
    *(_registers, _frames, _frames, _frames, _declarations, _buffers, _kernels, _kernels, _kernels),
    *(_kernels, _units, _rename),
)

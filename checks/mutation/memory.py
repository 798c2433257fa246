"""Changes of frames, declarations, buffers and kernels."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

from checks.mutation.parts import (
    Change,
    Mutant,
    another,
    at_path,
    is_number,
    nudged,
    pick,
    places,
    replaced_everywhere,
    with_part,
)
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Placement
from stretto.device.regions import Body
from stretto.device.tree import Tree


def _frames(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """Change the placement of a buffer, or the size of the frame."""
    number = rng.randrange(len(program.frames))
    name, frame = program.frames[number]
    placed = list(frame.placements)
    text = f"the frame of {name} "
    if rng.random() < 0.1:
        made = replace(frame, copies=program.units if frame.copies == 1 else 1)
        text += f"has {made.copies} copies"
    elif not placed or rng.random() < 0.15:
        size = rng.choice([0, frame.nbytes - 64, frame.nbytes + 64, frame.nbytes + 1])
        made = replace(frame, nbytes=size)
        text += f"has {size} bytes"
    else:
        at = rng.randrange(len(placed))
        buffer, place = placed[at]
        other = rng.choice(placed)[1]
        kind = rng.randrange(6)
        if kind == 0:
            del placed[at]
        elif kind == 1:
            placed[at] = buffer, replace(place, nbytes=max(0, place.nbytes - 4))
        else:
            offset = rng.choice(
                [other.offset, place.offset - 64, place.offset + 64, place.offset + 4, 0]
            )
            copies = rng.choice([place.copies] * 4 + [1, program.units])
            placed[at] = buffer, Placement(offset, place.nbytes, copies)
        made = replace(frame, placements=tuple(placed))
        text += f"changes at {buffer}"
    frames = list(program.frames)
    frames[number] = name, made
    return Mutant(replace(program, frames=tuple(frames)), source, text)


def _slots(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """Change the slot, place or size of a buffer whose size the call decides, or change a slot."""
    number, (name, frame) = pick(
        rng, [(n, pair) for n, pair in enumerate(program.frames) if pair[1].sized]
    )
    slots, sized = list(frame.slots), list(frame.sized)
    at = rng.randrange(len(sized))
    buffer, place = sized[at]
    other = rng.choice(sized)[1]
    text = f"the frame of {name} changes at {buffer}"
    match rng.randrange(7):
        case 0:
            slots[rng.randrange(len(slots))] = rng.choice(slots)
        case 1:
            at = rng.randrange(len(slots))
            slots[at] = slots[at] + rng.choice([-64, 64, 4])
        case 2:
            del slots[rng.randrange(len(slots))]
        case 3:
            sized[at] = buffer, replace(place, slot=other.slot)
        case 4:
            sized[at] = buffer, replace(place, slot=other.slot, offset=0)
        case 5:
            sized[at] = buffer, replace(place, offset=rng.choice([0, 64, other.nbytes]))
        case _:
            sized[at] = buffer, replace(place, nbytes=rng.choice([other.nbytes, 4]))
    frames = list(program.frames)
    frames[number] = name, replace(frame, slots=tuple(slots), sized=tuple(sized))
    return Mutant(replace(program, frames=tuple(frames)), source, text)


def _declarations(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """Change locals, params, results or externals of a function, in the program alone."""
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
    """Change the size of a declared buffer, in the whole program or without its kernels."""
    declared = [b for f in program.tree.functions for b in (*f.locals, *f.tensors)]
    buffer = pick(rng, [b for b in (*declared, *program.tree.externals) if b.shape])
    at = rng.randrange(len(buffer.shape))
    shape = list(buffer.shape)
    extent = shape[at]
    shape[at] = max(0, nudged(rng, extent)) if isinstance(extent, int) else 4
    new = replace(buffer, shape=tuple(shape))
    text = f"{buffer.name} has shape {new.shape}"
    both = rng.random() < 0.5
    if both:
        source = replaced_everywhere(source, buffer, new)
    return Mutant(_resized(program, buffer, new, rng), source, text, same_source=not both)


def _resized(
    program: DeviceProgram, buffer: Buffer, new: Buffer, rng: random.Random
) -> DeviceProgram:
    tree = replaced_everywhere(program.tree, buffer, new)
    kernels = (
        program.kernels if rng.random() < 0.3 else replaced_everywhere(program.kernels, buffer, new)
    )
    return replace(program, tree=tree, kernels=kernels)


def _kernels(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """Change a number, a buffer or a stage of a kernel; in the source too, or in the program
    alone."""
    kernel = pick(rng, [k for k in program.kernels if k.call is None])
    made, text = _changed_kernel(kernel, program, rng)
    kernels = tuple(made if k is kernel else k for k in program.kernels)
    changed = replace(program, kernels=kernels)
    if rng.random() < 0.2:
        return Mutant(changed, source, f"{kernel.name}: {text}")
    both = replaced_everywhere(source, kernel, made)
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
        path = pick(rng, list(places(kernel, lambda v: isinstance(v, Buffer))))
        old: Buffer = at_path(kernel, path)
        alike = [
            b
            for f in program.tree.functions
            for b in (*f.locals, *f.tensors, *program.tree.externals)
            if b.dtype is old.dtype and b != old
        ]
        new = pick(rng, alike)
        return with_part(kernel, path, new), f"{new.name} instead of {old.name}"
    numbers = [p for p in places(kernel, is_number) if not {"buffer", "template"} & set(p)]
    path = pick(rng, numbers)
    value = at_path(kernel, path)
    changed = nudged(rng, value)
    if abs(changed) > 1000 and path[0] == "grid":
        changed = value + 1
    return with_part(kernel, path, changed), f"{changed} instead of {value} at {path}"


def _units(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    units = rng.choice([program.units - 1, program.units + 1, 0])
    return Mutant(replace(program, units=units), source, f"{units} units")


CHANGES: tuple[Change, ...] = (
    *(
        _frames,
        _frames,
        _frames,
        _slots,
        _slots,
        _declarations,
        _buffers,
        _kernels,
        _kernels,
        _kernels,
        _kernels,
    ),
    *(_units, another(Buffer)),
)
"""The changes, each listed as often as it should be drawn."""

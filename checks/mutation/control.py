"""Changes of control nodes: branches, loops, sequences, calls, and the registers they read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from checks.mutation.parts import (
    Change,
    Mutant,
    NotApplicable,
    Path,
    another,
    at_path,
    is_number,
    nudged,
    other_name,
    pick,
    places,
    with_part,
)
from stretto.device.expr import Const, Reg
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.regions import Body
from stretto.device.tree import Call, For, If, Node, Seq, Tree, While


def _nodes(tree: Tree[Schedule], kinds: Any) -> list[Path]:
    return list(places(tree, lambda v: isinstance(v, kinds)))


def _node_change(
    change: Callable[[Node[Schedule], random.Random], Node[Schedule]],
    *kinds: type,
) -> Change:
    """Make a change of a program from one of a control node."""

    def apply(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
        path = pick(rng, _nodes(program.tree, kinds))
        node = at_path(program.tree, path)
        made = change(node, rng)
        text = f"{change.__name__.strip('_')} at a {type(node).__name__} node"
        return Mutant(replace(program, tree=with_part(program.tree, path, made)), source, text)

    return apply


def _children(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """Drop, duplicate or exchange children of a sequence."""
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
    """Replace a loop by its body, or a branch by one of its arms."""
    match node:
        case For(body=body) | While(body=body):
            return body
        case If(then=then, orelse=orelse):
            return rng.choice([then, orelse])
        case _:
            raise NotApplicable


def _bounds(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """Change the number of iterations, to a small one."""
    assert isinstance(node, For)
    changed = [Const(rng.randint(-1, 4), node.stop.dtype), node.start, node.stop]
    match rng.randrange(3):
        case 0:
            return replace(node, start=rng.choice(changed))
        case 1:
            return replace(node, stop=rng.choice(changed))
        case _:
            return replace(node, step=rng.choice([0, 1, 2, -1]))


def _parallel(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """Toggle whether iterations run on separate units."""
    assert isinstance(node, For)
    return replace(node, parallel=not node.parallel)


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
    return replace(node, condition=replace(node.condition, name=other_name(node.condition)))


def _call(node: Node[Schedule], rng: random.Random) -> Node[Schedule]:
    """Change the arguments, or the buffers for results."""
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
            path = pick(rng, list(places(node, is_number)))
            return with_part(node, path, nudged(rng, at_path(node, path)))
    return replace(node, tensors=tuple(bound))


CHANGES: tuple[Change, ...] = (
    _node_change(_children, Seq),
    _node_change(_arms, If),
    _node_change(_unwrapped, For, While, If),
    _node_change(_bounds, For),
    _node_change(_rotation, For, While),
    _node_change(_parallel, For),
    _node_change(_rotation, For, While),
    _node_change(_condition, If, While),
    _node_change(_call, Call),
    _node_change(_call, Call),
    another(Reg),
)
"""The changes, each listed as often as it should be drawn."""

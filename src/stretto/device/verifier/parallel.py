"""Iterations of parallel loops touch no memory of each other, and nobody waits inside of them.

A buffer of which every unit has a copy is private: only one parallel loop accesses it, so a unit
finds there what it has written itself (`initialisation` looks at an iteration as if it was the
first one, so nothing comes from an earlier one). So is any local buffer of a single unit that only
one parallel loop accesses. Of everything else that the loop writes, each
access has the index of the loop, plus a number, as one of its indices, always the same one: two
iterations then have different elements. Registers that an iteration assigns are looked at where
assignments are (`assignment`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stretto.device.expr import Access, Index, Reg, loads
from stretto.device.operator import Kernel
from stretto.device.program import FrameLayout, Run, Schedule
from stretto.device.tree import (
    Call,
    For,
    Leaf,
    Let,
    Node,
    TreeFunction,
    assigns,
    is_parallel,
    leaves,
    rotation,
    walk,
)
from stretto.device.verifier.touched import Touched
from stretto.errors import VerifyError


def apart_schedules(body: Node[Schedule]) -> dict[int, Schedule]:
    """The leaves of parallel loops, by their identity."""
    loops = (node for node in walk(body) if is_parallel(node))
    return {id(schedule): schedule for loop in loops for schedule in leaves(loop.body)}


def check_parallel(
    function: TreeFunction[Schedule], frame: FrameLayout, units: int, touched: Touched
) -> None:
    """Raises VerifyError for a parallel loop whose iterations may disturb each other."""
    loops = [node for node in walk(function.body) if is_parallel(node)]
    copied = {name for name, place in frame.placements if place.copies != 1}
    for name in sorted(copied):
        if frame[name].copies != units:
            raise VerifyError(f"buffer {name} has {frame[name].copies} copies for {units} units")
    if not loops and not copied:
        return
    for loop in loops:
        _check_form(loop, touched)
    homes = Counter(name for loop in loops for name in {*_names(loop, touched)})
    shared = {*_outside(function, touched), *(name for name, count in homes.items() if count > 1)}
    for name in sorted(copied & shared):
        raise VerifyError(f"buffer {name} is private to a loop, but accessed outside of it")
    private = copied if units > 1 else {buffer.name for buffer in function.locals} - shared
    for loop in loops:
        _check_memory(loop, private, touched)


def _check_form(loop: For[Schedule], touched: Touched) -> None:
    if loop.rotate:
        raise VerifyError("buffers trade places from one parallel iteration to the next")
    for node in walk(loop.body):
        if is_parallel(node):
            raise VerifyError("a parallel loop has another one inside")
        if isinstance(node, Call):
            raise VerifyError(f"a parallel loop calls {node.function}")
        if isinstance(node, Leaf):
            _check_leaf(node.body, touched)
    statements = (item for schedule in leaves(loop.body) for item in schedule.statements)
    assigned = {item.reg for item in statements if isinstance(item, Let)}
    if loop.index in assigned.union(*(assigns(node) for node in walk(loop.body))):
        raise VerifyError(f"a parallel loop assigns its index {loop.index.name}")


def _check_leaf(schedule: Schedule, touched: Touched) -> None:
    if schedule.steps:
        raise VerifyError("a leaf of a parallel loop publishes steps, which units count apart")
    for item in schedule.units[0]:
        if isinstance(item, Run) and touched.kernels[item.kernel].call is not None:
            raise VerifyError(f"a parallel iteration calls {item.kernel}, of a library")


def _check_memory(loop: For[Schedule], private: set[str], touched: Touched) -> None:
    accesses = list(_accesses(loop, touched))
    written = {a.buffer.name for a, write in accesses if write} - private
    for name in sorted(written):
        rows = [_rows(a, loop.index) for a, _ in accesses if a.buffer.name == name]
        if not frozenset.intersection(*rows):
            raise VerifyError(
                f"iterations of a parallel loop may access what others write to {name}"
            )


def _rows(access: Access, index: Reg) -> frozenset[tuple[object, int, int]]:
    """The dims, with the shape, in which the position is the loop's index and a number."""
    return frozenset(
        (access.shape, dim, position.const)
        for dim, position in enumerate(access.index)
        if position == Index.of(index) + position.const
    )


def _accesses(loop: For[Schedule], touched: Touched) -> Iterator[tuple[Access, bool]]:
    """All accesses of the loop; is each a write?"""
    for schedule in leaves(loop.body):
        for name in schedule.kernels:
            yield from _of_kernel(touched.kernels[name])
        for item in schedule.statements:
            yield from ((load.access, False) for expr in item.exprs for load in loads(expr))


def _of_kernel(kernel: Kernel) -> Iterator[tuple[Access, bool]]:
    for stage in kernel.stages:
        yield stage.operator.out, True
        yield from ((load.access, False) for load in stage.operator.reads())


def _names(loop: For[Schedule], touched: Touched) -> Iterator[str]:
    yield from (access.buffer.name for access, _ in _accesses(loop, touched))
    for node in walk(loop.body):
        yield from (buffer.name for pair in rotation(node) for buffer in pair)


def _outside(function: TreeFunction[Schedule], touched: Touched) -> Iterator[str]:
    """Names of what is accessed outside of parallel loops."""
    inside = {id(node) for loop in walk(function.body) if is_parallel(loop) for node in walk(loop)}
    for node in walk(function.body):
        if id(node) in inside:
            continue
        yield from (buffer.name for pair in rotation(node) for buffer in pair)
        match node:
            case Leaf(schedule):
                for name in schedule.kernels:
                    yield from (region.buffer.name for region in touched.kernel(name))
                for item in schedule.statements:
                    yield from (region.buffer.name for region in touched.regions(item))
            case Call(tensors=tensors):
                yield from (access.buffer.name for _, access in tensors)
            case _:
                pass

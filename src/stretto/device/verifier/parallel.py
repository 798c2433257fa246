"""Check that iterations of parallel loops touch no memory of each other, and have no waits inside.

A buffer of which every unit has a copy is private: only one parallel loop accesses it, so a unit
reads there only what it has written itself (`initialisation` treats an iteration as if it was the
first one, so no value comes from an earlier one). In a program of a single unit any local buffer
that only one parallel loop accesses is private too. To all other memory that the loop writes, each
access has the index of the loop, plus a number, as one of its indices, always the same one: two
iterations then have different elements. Registers that an iteration assigns are checked in
`assignment`.

Functions that iterations call are called by nothing else, so that each unit runs them by itself, in
its own frames. They write only to params and locals, not to memory that other units see. All units
synchronise directly after such a loop, because no unit knows which functions another one called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

from stretto.components import reachable
from stretto.device.expr import Access, Buffer, Index, Reg, loads
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout, Run, Schedule, Signal, Wait
from stretto.device.runs import (
    call_graph,
    called,
    called_outside_parallel_loops,
    functions_in_parallel_loops,
)
from stretto.device.tree import (
    For,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    assigns,
    calls,
    children,
    is_parallel,
    leaves,
    renamed,
    rotation,
    walk,
)
from stretto.device.verifier.ordering import Orders
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError


def parallel_schedules(tree: Tree[Schedule]) -> dict[int, Schedule]:
    """Return the leaves of parallel loops and of the functions reachable from them, by identity."""
    apart = functions_in_parallel_loops(tree)
    bodies = [function.body for function in tree.functions if function.name in apart]
    bodies += [node.body for node in tree.walk() if is_parallel(node)]
    return {id(schedule): schedule for body in bodies for schedule in leaves(body)}


def check_called_in_parallel(program: DeviceProgram, touched: ItemRegions) -> None:
    """Raise VerifyError for functions called in parallel loops that do not fit that use."""
    apart = functions_in_parallel_loops(program.tree)
    for function in program.tree.functions:
        name, frame = function.name, program.frame(function.name)
        if frame.copies != (program.units if name in apart else 1):
            raise VerifyError(f"function {name} has {frame.copies} frames side by side")
        if name in apart:
            _check_function(function, frame, touched)
        elif found := apart & called_outside_parallel_loops(function.body):
            raise VerifyError(f"function {min(found)} is called in parallel loops and by {name}")
    sizes = {program.frame(name).nbytes for name in apart}
    if program.units > 1 and len(sizes) > 1:
        raise VerifyError("functions that units call by themselves have frames of different sizes")


def _check_function(
    function: TreeFunction[Schedule], frame: FrameLayout, touched: ItemRegions
) -> None:
    name = function.name
    if name == "main":
        raise VerifyError("a parallel loop calls main")
    if frame.slots:
        raise VerifyError(f"function {name} has sized buffers, but units call it by themselves")
    for node in walk(function.body):
        if is_parallel(node):
            raise VerifyError(f"function {name} has a parallel loop, and is called in another one")
        if isinstance(node, Leaf):
            _check_leaf(node.body, touched)
    for buffer, _, writes in _accesses(function.body, None, {}, touched):
        if writes and buffer.kind not in ("local", "items", "param"):
            raise VerifyError(
                f"function {name} writes {buffer.name}, but units call it by themselves"
            )


def check_parallel(
    function: TreeFunction[Schedule],
    program: DeviceProgram,
    touched: ItemRegions,
    orders: Orders,
) -> None:
    """Raise VerifyError for a parallel loop whose iterations may interfere with each other."""
    frame, units = program.frame(function.name), program.units
    functions = {one.name: one for one in program.tree.functions}
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
        _check_memory(loop, private, functions, touched)
    if units > 1:
        _check_barriers_after(function.body, orders)


def _check_form(loop: For[Schedule], touched: ItemRegions) -> None:
    if loop.rotate:
        raise VerifyError("a parallel loop rotates buffers, which would order its iterations")
    for node in walk(loop.body):
        if is_parallel(node):
            raise VerifyError("a parallel loop has another one inside")
        if isinstance(node, Leaf):
            _check_leaf(node.body, touched)
    statements = (item for schedule in leaves(loop.body) for item in schedule.statements)
    assigned = {item.reg for item in statements if isinstance(item, Let)}
    if loop.index in assigned.union(*(assigns(node) for node in walk(loop.body))):
        raise VerifyError(f"a parallel loop assigns its index {loop.index.name}")


def _check_leaf(schedule: Schedule, touched: ItemRegions) -> None:
    if schedule.steps:
        raise VerifyError("a leaf of a parallel loop publishes steps, which units count apart")
    for item in schedule.units[0]:
        if isinstance(item, Run) and touched.kernels[item.kernel].call is not None:
            raise VerifyError(f"a parallel iteration calls {item.kernel}, of a library")


def _check_barriers_after(body: Node[Schedule], orders: Orders) -> None:
    """Check that each parallel loop with calls is followed by a leaf in which all units wait for
    all others before they do anything else."""
    calling = {id(node) for node in walk(body) if is_parallel(node) and called(node)}
    for node in walk(body):
        items = children(node) if isinstance(node, Seq) else ()
        for loop, behind in pairwise(items):
            if (
                id(loop) in calling
                and isinstance(behind, Leaf)
                and _is_barrier(behind.body, orders)
            ):
                calling.remove(id(loop))
    if calling:
        raise VerifyError("the units do not meet after a parallel loop that calls functions")


def _is_barrier(schedule: Schedule, orders: Orders) -> bool:
    order = orders(schedule)
    for unit, items in enumerate(schedule.units):
        first = (n for n, item in enumerate(items) if not isinstance(item, Wait | Signal))
        known = [order.before[unit][n] for n in first]
        if not (known[0] if known else order.end[unit]).start.all():
            return False
    return True


Functions = Mapping[str, TreeFunction[Schedule]]
Rows = frozenset[tuple[object, int, int]]
"""The dims of an access, each with the view's shape, in which its position is the loop's index
plus a number."""


def _check_memory(
    loop: For[Schedule], private: set[str], functions: Functions, touched: ItemRegions
) -> None:
    accesses = list(_accesses(loop.body, loop.index, functions, touched))
    written = {buffer.name for buffer, _, writes in accesses if writes} - private
    for name in sorted(written):
        rows = [found for buffer, found, _ in accesses if buffer.name == name]
        if not frozenset.intersection(*rows):
            raise VerifyError(
                f"iterations of a parallel loop may access what others write to {name}"
            )


def _rows(access: Access, index: Reg | None) -> Rows:
    if index is None:
        return frozenset()
    return frozenset(
        (access.shape, dim, position.const)
        for dim, position in enumerate(access.index)
        if position == Index.of(index) + position.const
    )


def _accesses(
    body: Node[Schedule], index: Reg | None, functions: Functions, touched: ItemRegions
) -> Iterator[tuple[Buffer, Rows, bool]]:
    """Yield the accesses of a node: buffer, rows, and True for a write. functions: callees whose
    accesses to external buffers are included; index: the register that identifies rows."""
    for schedule in leaves(body):
        for name in schedule.kernels:
            for access, writes in _of_kernel(touched.kernels[name]):
                yield access.buffer, _rows(access, index), writes
        for access in _of_statements(schedule):
            yield access.buffer, _rows(access, index), False
    for call in calls(body):
        written = functions[call.function].written if call.function in functions else ()
        for param, access in call.tensors:
            rows = _rows(access, index) if _is_one_row(param, access) else frozenset()
            yield access.buffer, rows, param in written
    names = reachable(called(body), call_graph(functions.values())) & functions.keys()
    for name in names:
        for buffer, _, writes in _accesses(functions[name].body, None, {}, touched):
            if buffer.kind not in ("local", "items", "param"):
                yield buffer, frozenset(), writes


def _is_one_row(param: Buffer, access: Access) -> bool:
    """Return True if the memory that a call binds to a param is within one row of dim 0."""
    row = access.shape[1:]
    is_start = all(position == Index() for position in access.index[1:])
    numbers = [dim for dim in (*param.shape, *row) if isinstance(dim, int)]
    is_known = len(numbers) == len(param.shape) + len(row)
    return is_start and is_known and param.elements <= prod(n for n in row if isinstance(n, int))


def _of_statements(schedule: Schedule) -> Iterator[Access]:
    for item in schedule.statements:
        yield from (load.access for expr in item.exprs for load in loads(expr))


def _of_kernel(kernel: Kernel) -> Iterator[tuple[Access, bool]]:
    for stage in kernel.stages:
        yield stage.operator.out, True
        yield from ((load.access, False) for load in stage.operator.reads())


def _names(loop: For[Schedule], touched: ItemRegions) -> Iterator[str]:
    yield from (buffer.name for buffer, _, _ in _accesses(loop.body, None, {}, touched))
    for node in walk(loop.body):
        yield from (buffer.name for pair in rotation(node) for buffer in pair)


def _outside(function: TreeFunction[Schedule], touched: ItemRegions) -> Iterator[str]:
    """Yield the names of buffers that are accessed outside of parallel loops."""
    inside = {id(node) for loop in walk(function.body) if is_parallel(loop) for node in walk(loop)}
    for node in walk(function.body):
        if id(node) in inside:
            continue
        yield from (buffer.name for buffer in renamed(node))
        if isinstance(node, Leaf):
            for name in node.body.kernels:
                yield from (region.buffer.name for region in touched.kernel(name))
            for item in node.body.statements:
                yield from (region.buffer.name for region in touched.regions(item))

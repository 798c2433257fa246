"""The memory that calls bind to the params of functions, and which buffers may share memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

from stretto.components import Partition
from stretto.device.expr import Access, Buffer
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import Tree, TreeFunction, calls, rotation, walk

L = TypeVar("L")

IN_FRAMES = ("local", "items")
"""Kinds of buffers that are in the frame of an activation."""
Bindings = dict[Buffer, set[Buffer | None]]
"""The external buffers that each param of a function may be bound to; None: any, as the host
decides for `main`."""
Pairs = set[frozenset[Buffer]]
"""Pairs of params of a function that one call may bind to overlapping memory."""
Bound = tuple[Buffer, Access]
"""A param, and the memory that a call binds it to."""


def rotation_groups(function: TreeFunction[L]) -> Partition[Buffer]:
    """Return the sets of buffers that loops rotate among each other."""
    groups = Partition[Buffer]()
    for node in walk(function.body):
        for pair in rotation(node):
            groups.join(*pair)
    return groups


def bindings(tree: Tree[L]) -> dict[str, Bindings]:
    """Return the bindings of each function, propagated through all calls to a fixpoint."""
    found = {f.name: {param: set[Buffer | None]() for param in f.tensors} for f in tree.functions}
    found["main"] = {param: {None} for param in tree.main.tensors}
    groups = {f.name: rotation_groups(f) for f in tree.functions}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            own, group = found[function.name], groups[function.name]
            bound = (
                (found[call.function][param], access.buffer)
                for call in calls(function.body)
                for param, access in call.tensors
            )
            for memory, given in bound:
                before = len(memory)
                for buffer in group.members(given):
                    if buffer.kind == "param":
                        memory |= own[buffer]
                    elif buffer.kind not in IN_FRAMES:
                        memory.add(buffer)
                changed |= len(memory) != before
    return found


def param_pairs(
    tree: Tree[L], meet: Callable[[str, Collection[frozenset[Buffer]], Bound, Bound], bool]
) -> dict[str, Pairs]:
    """Return the pairs of each function. meet: True if a function, given its own pairs, may bind
    two params to overlapping memory."""
    found = {f.name: Pairs() for f in tree.functions}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            for call in calls(function.body):
                new = {
                    frozenset((one[0], other[0]))
                    for one, other in combinations(call.tensors, 2)
                    if meet(function.name, found[function.name], one, other)
                }
                changed |= not new <= found[call.function]
                found[call.function] |= new
    return found


# ---- Aliasing: which buffers of a program may share memory.


@dataclass(slots=True)
class Aliasing:
    """Aliasing of the buffers of one function.

    bindings: the external buffers that each param may be bound to; None among them: any. pairs: the
    params that one call may bind to overlapping memory. groups: buffers that loops rotate.
    """

    program: DeviceProgram
    function: TreeFunction[Schedule]
    bindings: Bindings
    pairs: Collection[frozenset[Buffer]] = ()
    groups: Partition[Buffer] = field(init=False)
    _known: dict[tuple[Buffer, Buffer], bool] = field(
        default_factory=dict[tuple[Buffer, Buffer], bool], init=False
    )

    def __post_init__(self) -> None:
        self.groups = rotation_groups(self.function)

    def externals(self, buffer: Buffer) -> Iterable[Buffer]:
        """Return the external buffers under which other functions may know the memory of a buffer
        that is not rotated."""
        if buffer.kind != "param":
            return () if buffer.kind in IN_FRAMES else (buffer,)
        bound = self.bindings[buffer]
        if None in bound:
            return self.program.tree.externals
        return [other for other in bound if other is not None]

    def group(self, buffer: Buffer) -> list[Buffer]:
        """Return the buffers whose memory a name may refer to after rotations."""
        return self.groups.members(buffer)

    def may_share(self, a: Buffer, b: Buffer) -> bool:
        """Return True if two names may refer to overlapping memory."""
        key = (a, b) if a.name < b.name else (b, a)
        if key not in self._known:
            self._known[key] = self.compared(a, b)
        return self._known[key]

    def compared(self, a: Buffer, b: Buffer) -> bool:
        """Compute `may_share` without storing the result, since `pairs` may still grow."""
        if a == b:
            return True
        if b in self.group(a):  # rotated buffers swap places, so they never have the same one
            params = [buffer for buffer in self.group(a) if buffer.kind == "param"]
            return any(self._are_shared(*pair) for pair in combinations(params, 2))
        return any(self._are_shared(x, y) for x in self.group(a) for y in self.group(b))

    def _are_shared(self, a: Buffer, b: Buffer) -> bool:
        """Return True if two buffers that are not rotated may overlap."""
        kinds = {a.kind, b.kind}
        if "param" in kinds:
            return not kinds & {*IN_FRAMES} and self._is_given(a, b)
        if kinds <= {*IN_FRAMES}:
            return self._overlap_in_frame(a, b)
        return a == b

    def _is_given(self, a: Buffer, b: Buffer) -> bool:
        """Return True if two buffers may overlap, of which at least one is a param."""
        if a.kind == b.kind:
            return self.function.name == "main" or frozenset((a, b)) in self.pairs
        param, other = (a, b) if a.kind == "param" else (b, a)
        return None in self.bindings[param] or other in self.bindings[param]

    def _overlap_in_frame(self, a: Buffer, b: Buffer) -> bool:
        """Return True if two buffers of a frame may overlap."""
        frame = self.program.frame(self.function.name)
        fixed, sized = dict(frame.placements), dict(frame.sized)
        if a.name in fixed and b.name in fixed:
            first, second = fixed[a.name], fixed[b.name]
            return first.offset < second.end and second.offset < first.end
        if a.name in sized and b.name in sized:
            return sized[a.name].slot == sized[b.name].slot
        return False


def aliasing_of(program: DeviceProgram) -> dict[str, Aliasing]:
    """Return the aliasing of each function, by name."""
    bound = bindings(program.tree)
    found = {f.name: Aliasing(program, f, bound[f.name]) for f in program.tree.functions}

    def meet(name: str, pairs: Collection[frozenset[Buffer]], one: Bound, other: Bound) -> bool:
        found[name].pairs = pairs
        return found[name].compared(one[1].buffer, other[1].buffer)

    for name, pairs in param_pairs(program.tree, meet).items():
        found[name].pairs = pairs
    return found

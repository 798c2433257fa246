"""Aliasing: which buffers of a program may share memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from stretto.device.expr import Buffer
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import Call, TreeFunction, calls, rotation, walk

IN_FRAMES = ("local", "items")
"""Kinds of buffers that are in the frame of an activation."""


@dataclass(slots=True)
class Aliasing:
    """Aliasing of the buffers of one function.

    bindings: the external buffers that each param may be bound to; None among them: any. pairs: the
    params that one call may bind to overlapping memory. groups: buffers that loops rotate.
    """

    program: DeviceProgram
    function: TreeFunction[Schedule]
    bindings: dict[Buffer, set[Buffer | None]] = field(
        default_factory=dict[Buffer, set[Buffer | None]]
    )
    pairs: set[frozenset[Buffer]] = field(default_factory=set[frozenset[Buffer]])
    groups: dict[Buffer, tuple[Buffer, ...]] = field(init=False)
    _known: dict[tuple[Buffer, Buffer], bool] = field(
        default_factory=dict[tuple[Buffer, Buffer], bool]
    )

    def __post_init__(self) -> None:
        self.groups = _groups(self.function)

    def forget(self) -> None:
        """Drop cached answers, after more is known of params."""
        self._known.clear()

    def externals(self, buffer: Buffer) -> Iterable[Buffer]:
        """Return the external buffers under which other functions may know the memory of a buffer
        that is not rotated."""
        if buffer.kind != "param":
            return () if buffer.kind in IN_FRAMES else (buffer,)
        bindings = self.bindings.get(buffer, set())
        if None in bindings or self.function.name == "main":
            return self.program.tree.externals
        return [other for other in bindings if other is not None]

    def group(self, buffer: Buffer) -> tuple[Buffer, ...]:
        """Return the buffers whose memory a name may refer to after rotations."""
        return self.groups.get(buffer, (buffer,))

    def may_share(self, a: Buffer, b: Buffer) -> bool:
        """Return True if two names may refer to overlapping memory."""
        if a == b:
            return True
        key = (a, b) if a.name < b.name else (b, a)
        if key not in self._known:
            self._known[key] = self._compared(a, b)
        return self._known[key]

    def _compared(self, a: Buffer, b: Buffer) -> bool:
        if b in self.group(a):  # rotated buffers swap places, so they never have the same one
            params = [buffer for buffer in self.group(a) if buffer.kind == "param"]
            return any(self._are_shared(*pair) for pair in combinations(params, 2))
        return any(self._are_shared(x, y) for x in self.group(a) for y in self.group(b))

    def _are_shared(self, a: Buffer, b: Buffer) -> bool:
        """As `may_share`, for two buffers that are not rotated."""
        kinds = {a.kind, b.kind}
        if "param" in kinds:
            return not kinds & {*IN_FRAMES} and self._is_given(a, b)
        if kinds <= {*IN_FRAMES}:
            return self._overlap_in_frame(a, b)
        return a == b

    def _is_given(self, a: Buffer, b: Buffer) -> bool:
        """As `may_share`, if at least one of the two is a param."""
        if self.function.name == "main":
            return True  # the host binds them
        if a.kind == b.kind:
            return frozenset((a, b)) in self.pairs
        param, other = (a, b) if a.kind == "param" else (b, a)
        bindings = self.bindings.get(param, set())
        return None in bindings or other in bindings

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
    """Return the aliasing of each function, by name. Bindings of params are propagated through all
    calls to a fixpoint."""
    found = {f.name: Aliasing(program, f) for f in program.tree.functions}
    bound = [(found[f.name], call) for f in program.tree.functions for call in calls(f.body)]
    while any(_bound(caller, call, found[call.function]) for caller, call in bound):
        for aliasing in found.values():
            aliasing.forget()
    return found


def _bound(caller: Aliasing, call: Call[Schedule], callee: Aliasing) -> bool:
    """Add what a call binds params to; return True if that was new."""
    before = len(callee.pairs), sum(map(len, callee.bindings.values()))
    for param, access in call.tensors:
        bindings = callee.bindings.setdefault(param, set())
        for buffer in caller.group(access.buffer):
            if buffer.kind == "param":
                is_main = caller.function.name == "main"
                bindings |= {None} if is_main else caller.bindings.get(buffer, set())
            elif buffer.kind not in IN_FRAMES:
                bindings.add(buffer)
    for (one, a), (other, b) in combinations(call.tensors, 2):
        if caller.may_share(a.buffer, b.buffer):
            callee.pairs.add(frozenset((one, other)))
    return before != (len(callee.pairs), sum(map(len, callee.bindings.values())))


def _groups(function: TreeFunction[Schedule]) -> dict[Buffer, tuple[Buffer, ...]]:
    """Return the buffers that loops rotate among each other, for each of them."""
    groups: dict[Buffer, tuple[Buffer, ...]] = {}
    for node in walk(function.body):
        for pair in rotation(node):
            joined = tuple(dict.fromkeys(b for one in pair for b in groups.get(one, (one,))))
            groups |= dict.fromkeys(joined, joined)
    return groups

"""Aliasing: which buffers of a program may share memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import combinations

from stretto.device.aliases import (
    IN_FRAMES,
    Bindings,
    Bound,
    bindings,
    param_pairs,
    rotation_groups,
)
from stretto.device.expr import Buffer
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import TreeFunction


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
    groups: dict[Buffer, tuple[Buffer, ...]] = field(init=False)
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

    def group(self, buffer: Buffer) -> tuple[Buffer, ...]:
        """Return the buffers whose memory a name may refer to after rotations."""
        return self.groups.get(buffer, (buffer,))

    def may_share(self, a: Buffer, b: Buffer) -> bool:
        """Return True if two names may refer to overlapping memory."""
        key = (a, b) if a.name < b.name else (b, a)
        if key not in self._known:
            self._known[key] = self.compared(a, b)
        return self._known[key]

    def compared(self, a: Buffer, b: Buffer) -> bool:
        """As `may_share`, while `pairs` may still grow."""
        if a == b:
            return True
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

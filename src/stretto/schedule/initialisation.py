"""Proves that memory is written before it is read, on every way through the tree.

For each local buffer and param the elements that are surely written are kept. Writing to other
memory at the same bytes takes them away again. Lists, and buffers that are written at positions
known only at run time, are left out. Since no two conflicting accesses are unordered (`races`), it
is enough to look at a leaf in one order that its waits allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.errors import VerifyError
from stretto.kernels.expr import Access, Buffer
from stretto.kernels.operator import Kernel
from stretto.kernels.regions import Region, stores_anywhere
from stretto.kernels.tree import (
    Call,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    TreeFunction,
    While,
    leaves,
    trip_count,
    walk,
)
from stretto.schedule.ordering import Orders
from stretto.schedule.places import Places
from stretto.schedule.program import Item, Run, Schedule
from stretto.schedule.touched import Touched

Mask = NDArray[np.bool_]
Written = dict[str, Mask]
"""For each buffer, flat, which elements are written. Buffers of dynamic size are not tracked."""


@dataclass(slots=True)
class Summary:
    """What a call asks and gives: params that are read before the function writes them, and those
    that are surely written when it returns."""

    needs: set[Buffer] = field(default_factory=set[Buffer])
    gives: set[Buffer] = field(default_factory=set[Buffer])


class InitialisationChecker:
    """Checks one function, given summaries of all; `check` refines the function's own summary."""

    def __init__(
        self,
        function: TreeFunction[Schedule],
        kernels: Mapping[str, Kernel],
        places: Places,
        summaries: Mapping[str, Summary],
        orders: Orders,
        touched: Touched,
    ) -> None:
        self._function = function
        self._places = places
        self._summaries = summaries
        self._own = summaries[function.name]
        loose = set(_loose_buffers(function.body, kernels))
        everything = (*function.locals, *function.tensors)
        self._buffers = {b.name: b for b in everything if _is_tracked(b) and b.name not in loose}
        self._orders = orders
        self._touched = touched

    def check(self) -> bool:
        """Raises VerifyError for a read of unwritten memory; True if the summary changed."""
        before = set(self._own.needs), set(self._own.gives)
        written = {name: np.zeros(b.elements, np.bool_) for name, b in self._buffers.items()}
        end = self._visit(self._function.body, written)
        for param in list(self._own.gives):
            if param.name in end and not end[param.name].all():
                self._own.gives.discard(param)
        return before != (self._own.needs, self._own.gives)

    def _visit(self, node: Node[Schedule], written: Written) -> Written:
        """What is written after the node; changes `written`."""
        match node:
            case Leaf(schedule):
                self._leaf(schedule, written)
            case Seq(children):
                for child in children:
                    written = self._visit(child, written)
            case For(body=body, rotate=rotate):
                while True:
                    end = _turn(self._visit(body, _copy(written)), rotate)
                    if not _intersect(written, end):
                        return end if trip_count(node) else written
            case While(head=head, body=body, rotate=rotate):
                while True:
                    tested = self._visit(head, _copy(written))
                    end = _turn(self._visit(body, _copy(tested)), rotate)
                    if not _intersect(written, end):
                        return tested
            case If(then=then, orelse=orelse):
                other = self._visit(orelse, _copy(written))
                written = self._visit(then, written)
                _intersect(written, other)
            case Call():
                self._call(node, written)
        return written

    def _leaf(self, schedule: Schedule, written: Written) -> None:
        for unit, index in self._orders(schedule).sequence:
            item = schedule.units[unit][index]
            for regions in self._touched.steps(item):
                self._step(regions, _what(item), written)

    def _step(self, regions: tuple[Region, ...], what: str, written: Written) -> None:
        for region in regions:
            if not region.write:
                self._require(region, what, written)
        for region in regions:
            if region.write:
                self._write(region, written)

    def _require(self, region: Region, what: str, written: Written) -> None:
        mask = written.get(region.buffer.name)
        if mask is None or _part(mask, region).all():
            return
        if region.buffer.kind == "param":
            # Whoever calls must have written it.
            self._own.needs.add(region.buffer)
            mask[:] = True
            return
        raise VerifyError(
            f"{what} reads {region.buffer.name}, of which a part may not be written before "
            f"(function {self._function.name})"
        )

    def _write(self, region: Region, written: Written) -> None:
        for other, first, last in self._places.destroyed(region):
            if other in written:
                size = self._buffers[other].dtype.itemsize
                written[other][first // size : -(-last // size)] = False
        if region.buffer.name in written:
            _part(written[region.buffer.name], region)[...] = True

    def _call(self, call: Call[Schedule], written: Written) -> None:
        summary = self._summaries[call.function]
        for param, access in call.tensors:
            if param in summary.needs:
                self._require(
                    bound_region(param, access, write=False), f"call {call.function}", written
                )
        for param, access in call.tensors:
            if param in summary.gives:
                self._write(bound_region(param, access, write=True), written)


def bound_region(param: Buffer, access: Access, write: bool) -> Region:
    """The memory of the caller that a param stands for."""
    buffer = access.buffer
    offset = access.offset
    if buffer.elements == param.elements or not offset.is_const or not _is_static(param):
        return Region(buffer, buffer.shape, (None,) * len(buffer.shape), write)
    box = (offset.const, offset.const + param.elements)
    return Region(buffer, (buffer.elements,), (box,), write)


def _what(item: Item) -> str:
    match item:
        case Run(kernel=name):
            return f"kernel {name}"
        case Let(reg=register):
            return f"let {register.name}"
        case _:
            return "a check"


def _is_tracked(buffer: Buffer) -> bool:
    return _is_static(buffer) and buffer.kind != "items"


def _is_static(buffer: Buffer) -> bool:
    return all(isinstance(dim, int) for dim in buffer.shape)


def _loose_buffers(body: Node[Schedule], kernels: Mapping[str, Kernel]) -> Iterator[str]:
    """Buffers that are written at positions known only at run time."""
    for schedule in leaves(body):
        for item in (item for items in schedule.units for item in items):
            if isinstance(item, Run):
                for stage in kernels[item.kernel].stages:
                    if stores_anywhere(stage.operator):
                        yield stage.operator.out.buffer.name
    for call in walk(body):
        if isinstance(call, Call):
            yield from (a.buffer.name for _, a in call.tensors if not a.offset.is_const)


def _part(mask: Mask, region: Region) -> Mask:
    """The elements of a region, as a view."""
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in region.shape)
    box = tuple(slice(None) if part is None else slice(*part) for part in region.box)
    return mask.reshape(shape)[(*box, ...)]


def _copy(written: Written) -> Written:
    return {name: mask.copy() for name, mask in written.items()}


def _intersect(written: Written, other: Written) -> bool:
    """Keeps what is written in both; True if that took something away."""
    changed = False
    for name, mask in written.items():
        lost = mask & ~other[name]
        if lost.any():
            mask &= other[name]
            changed = True
    return changed


def _turn(written: Written, pairs: tuple[tuple[Buffer, Buffer], ...]) -> Written:
    """After the buffers of each pair have traded places."""
    for a, b in pairs:
        if a.name in written and b.name in written:
            written[a.name], written[b.name] = written[b.name], written[a.name]
    return written

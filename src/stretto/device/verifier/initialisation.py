"""Prove that memory is written before it is read, and not overwritten in between, on every path.

For each buffer two masks are propagated through the tree: the elements that are definitely written,
and those whose content may be lost, because other memory at the same bytes was written after them.
A read needs elements that are written. Lists, and buffers that are written at positions known only
at run time, are *loose*: only the source determines which of their elements are written, so a read
of them needs only that nothing it may touch is lost. Since no two conflicting accesses are
unordered (`races`), it is enough to consider a leaf in one order that its waits allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.components import reachable
from stretto.device.boxes import Mask
from stretto.device.expr import Access, Buffer, Index, is_known, known_size
from stretto.device.flow import Facts
from stretto.device.program import DeviceProgram, Run, Schedule
from stretto.device.regions import Interval, Region, whole
from stretto.device.runs import call_graph
from stretto.device.tree import (
    Call,
    Leaf,
    Node,
    Rotation,
    Tree,
    TreeFunction,
    calls,
    leaves,
    rotation,
    swaps,
    walk,
)
from stretto.device.verifier.cells import Cells, Selection
from stretto.device.verifier.conformance import what_of
from stretto.device.verifier.ordering import Orders
from stretto.device.verifier.places import FramePlaces, bound_region
from stretto.device.verifier.symbols import seen_size
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError

Masks = dict[str, Mask]


@dataclass(frozen=True, slots=True)
class InitialisationState:
    """Masks over cells, by buffer name: definitely written, possibly written (`touched`),
    possibly lost. Loose buffers have the latter two, others the first.

    Masks are never modified, so that states can share equal ones.
    """

    written: Masks
    touched: Masks
    lost: Masks

    def meet(self, other: InitialisationState) -> InitialisationState:
        """Return a state that holds wherever either of two does."""
        return InitialisationState(
            _merged(self.written, other.written, np.logical_and),
            _merged(self.touched, other.touched, np.logical_or),
            _merged(self.lost, other.lost, np.logical_or),
        )

    def rotate(self, pairs: Rotation) -> InitialisationState:
        """Return the state after the buffers of each pair have been swapped."""
        names = {name: buffer.name for name, buffer in swaps(pairs).items()}
        return InitialisationState(
            *(
                {names.get(name, name): mask for name, mask in masks.items()}
                for masks in (self.written, self.touched, self.lost)
            )
        )

    def same(self, other: InitialisationState) -> bool:
        return all(
            mask is theirs[name] or np.array_equal(mask, theirs[name])
            for ours, theirs in (
                (self.written, other.written),
                (self.touched, other.touched),
                (self.lost, other.lost),
            )
            for name, mask in ours.items()
        )


class _Draft:
    """The state that one leaf or one call produces, while it is computed."""

    def __init__(self, state: InitialisationState) -> None:
        self.state = InitialisationState(dict(state.written), dict(state.touched), dict(state.lost))
        self._own: set[tuple[int, str]] = set()

    def mask(self, masks: Masks, name: str) -> Mask:
        """Return a mask of the state that may be modified."""
        key = id(masks), name
        if key not in self._own:
            self._own.add(key)
            masks[name] = masks[name].copy()
        return masks[name]


def _merged(ours: Masks, theirs: Masks, both: Callable[[Mask, Mask], Mask]) -> Masks:
    return {
        name: mask if mask is theirs[name] else both(mask, theirs[name])
        for name, mask in ours.items()
    }


@dataclass(slots=True)
class InitialisationSummary:
    """Preconditions and effects of a call: the buffers that the function reads before it writes
    them, and those that it has definitely written when it returns. Both are params, or outputs.

    loose: params that are written at positions known only at run time. written: all params that it
    may write.
    """

    needs: set[Buffer] = field(default_factory=set[Buffer])
    gives: set[Buffer] = field(default_factory=set[Buffer])
    loose: set[Buffer] = field(default_factory=set[Buffer])
    written: frozenset[Buffer] = frozenset()


def check_initialisation(
    program: DeviceProgram, places: Mapping[str, FramePlaces], orders: Orders, touched: ItemRegions
) -> None:
    """Raise VerifyError for a read of memory that may be unwritten or overwritten.

    The summaries of functions depend on each other, so they are computed to a fixpoint.
    """
    functions = program.tree.functions
    outputs = {b for b in program.tree.externals if b.kind == "output" and _is_known(b)}
    written = _written_outputs(program.tree, touched)
    summaries = {
        f.name: InitialisationSummary(
            gives={*f.written, *written[f.name]}, written=frozenset(f.written)
        )
        for f in functions
    }
    loose = _loose_buffers(program.tree, touched, summaries)
    checkers = [
        _InitialisationChecker(
            f, outputs, loose[f.name], places[f.name], summaries, orders, touched
        )
        for f in functions
    ]
    while any(checker.check() for checker in checkers):
        pass


class _InitialisationChecker(Facts[Schedule, InitialisationState]):
    """Checks one function, given summaries of all; `check` refines the function's own summary."""

    def __init__(
        self,
        function: TreeFunction[Schedule],
        outputs: set[Buffer],
        loose: frozenset[str],
        places: FramePlaces,
        summaries: Mapping[str, InitialisationSummary],
        orders: Orders,
        touched: ItemRegions,
    ) -> None:
        super().__init__()
        self._function = function
        self._places = places
        self._summaries = summaries
        self._own = summaries[function.name]
        self._buffers = {b.name: b for b in (*function.locals, *function.tensors, *outputs)}
        self._loose = loose
        self._orders = orders
        self._touched = touched
        self._cells = self._cut()

    def check(self) -> bool:
        """Return True if the summary changed. Raise VerifyError for a read of unwritten memory."""
        before = set(self._own.needs), set(self._own.gives)
        nothing = {name: cells.none() for name, cells in self._cells.items()}
        loose = {name: mask for name, mask in nothing.items() if name in self._loose}
        start = InitialisationState(
            {name: mask for name, mask in nothing.items() if name not in self._loose}, loose, loose
        )
        end = self.end(self._function.body, start)
        for buffer in list(self._own.gives):
            if buffer.name in self._loose or not end.written[buffer.name].all():
                self._own.gives.discard(buffer)
        return before != (self._own.needs, self._own.gives)

    def _cut(self) -> dict[str, Cells]:
        """Return the cells of each buffer; buffers that rotate together are cut equally."""
        regions: dict[str, set[Region]] = {name: set() for name in self._buffers}
        spans: dict[str, set[Interval]] = {name: set() for name in self._buffers}
        for region in self._accesses():
            if region.buffer.name in regions:
                regions[region.buffer.name].add(region)
            if region.write:
                for name, span in self._destroyed(region):
                    spans[name].add(span)
        cut = {name: (regions[name], spans[name]) for name in self._buffers}
        for group in self._places.groups():
            # Buffers at one place are divided equally, so that masks fit both.
            alike = {*group, *(other for name in group for other in self._places.alike(name))}
            together: set[Region] = set().union(*(regions[name] for name in alike))
            pieces: set[Interval] = set().union(*(spans[name] for name in group))
            cut |= dict.fromkeys(group, (together, pieces))
        return {name: Cells.of(buffer, *cut[name]) for name, buffer in self._buffers.items()}

    def _accesses(self) -> Iterator[Region]:
        for node in walk(self._function.body):
            match node:
                case Leaf(schedule):
                    for item in {item for items in schedule.units for item in items}:
                        yield from self._touched.exposed(item)
                        yield from (r for r in self._touched.regions(item) if r.write)
                case Call(tensors=tensors):
                    for param, access in tensors:
                        yield bound_region(param, access, write=False)
                        yield bound_region(param, access, write=True)
                case _:
                    pass

    def _destroyed(self, region: Region) -> Iterator[tuple[str, Interval]]:
        """Yield elements of other buffers that a write to the region may destroy."""
        for name, first, last in self._places.destroyed(region):
            size = self._buffers[name].dtype.itemsize
            yield name, (first // size, -(-last // size))

    def _destroyed_cells(self, region: Region) -> Iterator[tuple[str, Selection]]:
        """Yield cells of other buffers that a write to the region may destroy."""
        for name, span in self._destroyed(region):
            yield name, self._cells[name].span(span)
        for name, part in self._places.destroyed_sized(region):
            yield name, slice(None) if part is None else self._cells[name].region(part)

    def merge(self, a: InitialisationState, b: InitialisationState) -> InitialisationState:
        return a.meet(b)

    def same(self, a: InitialisationState, b: InitialisationState) -> bool:
        return a.same(b)

    def rotate(self, state: InitialisationState, pairs: Rotation) -> InitialisationState:
        return state.rotate(pairs)

    # ---- leaves --------------------------------------------------------------------------------
    def after(self, body: Schedule, state: InitialisationState) -> InitialisationState:
        draft = _Draft(state)
        ran: Counter[str] = Counter()
        for unit, index in self._orders(body).sequence:
            item = body.units[unit][index]
            if not (self._touched.exposed(item) or isinstance(item, Run)):
                continue
            for region in self._touched.exposed(item):
                self._require(region, what_of(item), draft)
            if isinstance(item, Run):
                ran[item.kernel] += item.count or 1
                self._written_by(item, ran[item.kernel], draft)
        return draft.state

    def _written_by(self, run: Run, ran: int, draft: _Draft) -> None:
        """Record the writes of a run. `ran`: number of the kernel's tasks that have run in the
        leaf, or of its runs if the grid is known only at the call. Regions that cells do not
        represent exactly count as written once all tasks have run."""
        partly = self._touched.partly_written(run.kernel)
        sized = self._touched.is_sized(run.kernel)  # then it writes buffers as a whole, or partly
        last = ran == (run.stride if run.count is None else self._touched.tasks(run.kernel))
        for region in self._touched.regions(run):
            if region.write:
                part = run.count is None or not self._is_exact(region)
                surely = region.buffer.name not in partly and (
                    not part or (last and (not region.buffer.is_sized or sized))
                )
                self._write(region, surely, draft)

    def _is_exact(self, region: Region) -> bool:
        cells = self._cells.get(region.buffer.name)
        return cells is None or cells.is_exact(region)

    def _require(self, region: Region, what: str, draft: _Draft) -> None:
        name, state = region.buffer.name, draft.state
        lost = state.lost.get(name)
        if lost is not None:
            if lost[self._cells[name].region(region)].any():
                raise VerifyError(
                    f"{what} reads {name}, of which a part may be overwritten before "
                    f"(function {self._function.name})"
                )
            return
        mask = state.written.get(name)
        if mask is None or mask[self._cells[name].region(region)].all():
            return
        if self._function.name != "main" and region.buffer.kind != "local":
            # The caller must have written it.
            self._own.needs.add(region.buffer)
            draft.mask(state.written, name)[:] = True
            return
        raise VerifyError(
            f"{what} reads {name}, of which a part may not be written before "
            f"(function {self._function.name})"
        )

    def _write(self, region: Region, surely: bool, draft: _Draft) -> None:
        state = draft.state
        for other, cells in self._destroyed_cells(region):
            if other in state.written:
                draft.mask(state.written, other)[cells] = False
            else:
                draft.mask(state.lost, other)[cells] |= state.touched[other][cells]
        name = region.buffer.name
        if name in state.written:
            if surely:
                draft.mask(state.written, name)[self._cells[name].region(region)] = True
        elif name in state.touched:
            cells = self._cells[name].region(region)
            draft.mask(state.touched, name)[cells] = True
            if surely:
                draft.mask(state.lost, name)[cells] = False

    # ---- calls ---------------------------------------------------------------------------------
    def call(
        self, call: Call[Schedule], state: InitialisationState
    ) -> tuple[Node[Schedule], InitialisationState]:
        draft = _Draft(state)
        summary = self._summaries[call.function]
        callee_params = {param for param, _ in call.tensors}
        what = f"call {call.function}"
        for param, access in call.tensors:
            if param in summary.needs or param in summary.loose:
                self._require(bound_region(param, access, write=False), what, draft)
        for buffer in summary.needs - callee_params:
            self._require(whole(buffer, write=False), what, draft)
        for param, access in call.tensors:
            region = bound_region(param, access, write=True)
            if param in summary.gives:
                self._write(region, access.offset.is_const and _fills(call, param, access), draft)
            elif param in summary.loose or param in summary.written:
                self._write(region, False, draft)
        for buffer in summary.gives - callee_params:
            self._write(whole(buffer, write=True), True, draft)
        return call, draft.state


def _fills(call: Call[Schedule], param: Buffer, access: Access) -> bool:
    """Return True if a param covers the whole of a buffer, also for sizes that are known only at
    the call."""
    buffer = access.buffer
    if not buffer.is_sized and not param.is_sized:
        return True
    if not _is_known(buffer):
        return False
    return access.offset == Index() and seen_size(call, param) == known_size(buffer.shape)


def _is_known(buffer: Buffer) -> bool:
    return all(map(is_known, buffer.shape))


def loose_names(program: DeviceProgram) -> frozenset[str]:
    """Return the names of the buffers for which reads are not proved to find written elements."""
    touched = ItemRegions({kernel.name: kernel for kernel in program.kernels})
    summaries = {function.name: InitialisationSummary() for function in program.tree.functions}
    found = _loose_buffers(program.tree, touched, summaries)
    return frozenset(name for names in found.values() for name in names)


def _loose_buffers(
    tree: Tree[Schedule], touched: ItemRegions, summaries: Mapping[str, InitialisationSummary]
) -> dict[str, frozenset[str]]:
    """Return for each function the names of the buffers that are lists or written at unknown
    positions.

    Adds the params among them to the summaries: buffers bound to them are loose too.
    """
    loose: dict[str, set[str]] = {}
    for function in tree.functions:
        kernels = {name for schedule in leaves(function.body) for name in schedule.kernels}
        found = {b.name for b in function.locals if b.kind == "items"}
        found.update(name for kernel in kernels for name in touched.partly_written(kernel))
        for call in calls(function.body):
            found |= {a.buffer.name for _, a in call.tensors if not a.offset.is_const}
        loose[function.name] = found
    externals = {buffer.name for buffer in tree.externals}
    everywhere = {name for found in loose.values() for name in found & externals}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            mine, own = loose[function.name], summaries[function.name].loose
            before = len(mine) + len(own)
            for call in calls(function.body):
                theirs = summaries[call.function].loose
                mine |= {access.buffer.name for param, access in call.tensors if param in theirs}
            everywhere |= mine & externals
            mine |= everywhere
            for node in walk(function.body):
                for pair in rotation(node):
                    names = {buffer.name for buffer in pair}
                    mine |= names if names & mine else set()
            own |= {param for param in function.written if param.name in mine}
            changed = changed or len(mine) + len(own) > before
    return {name: frozenset(found) for name, found in loose.items()}


def _written_outputs(tree: Tree[Schedule], touched: ItemRegions) -> dict[str, set[Buffer]]:
    """Return for each function the outputs that it or its callees may write by their own names."""
    found = {
        f.name: {
            region.buffer
            for schedule in leaves(f.body)
            for name in schedule.kernels
            for region in touched.kernel(name)
            if region.write and region.buffer.kind == "output" and _is_known(region.buffer)
        }
        for f in tree.functions
    }
    graph = call_graph(tree.functions)
    return {
        name: {buffer for callee in reachable((name,), graph) for buffer in found[callee]}
        for name in graph
    }

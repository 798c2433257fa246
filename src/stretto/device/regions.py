"""Regions that a task, a register statement or a library call reads and writes.

A region is a box of a buffer, found by interval arithmetic over index expressions; it may be larger
than what is accessed, never smaller. A dim whose index depends on a register is taken whole. Where
a grid dim of symbolic extent is cut into parts, the box says which parts: parts of the same cut are
compared by their numbers, whatever the size is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, starmap
from math import prod
from typing import Generic, TypeVar

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Expr,
    Extent,
    Index,
    Position,
    Quotient,
    Reg,
    Remainder,
    Var,
    expr_regs,
    has_fixed_strides,
    is_known,
    is_split,
    known_size,
    loads,
    row_major,
)
from stretto.device.operator import (
    Kernel,
    LibraryCall,
    Operator,
    Piece,
    Span,
    Split,
    Stage,
    Tile,
    TileDim,
    tile_range,
    whole_tile,
)
from stretto.device.tree import Check, Let
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size

Statement = Kernel | Let | Check
Body = tuple[Statement, ...]
"""A leaf before it is scheduled: straight-line code."""

Interval = tuple[int, int]
"""First value and last + 1."""
Part = Interval | Piece | None
"""The part of a dim: an interval, some tiles of a cut, or (None) the whole dim."""
Box = tuple[Part, ...]
"""A part for each dim."""
Ranges = tuple[Interval | None, ...]
"""The known ranges of iteration variables; None if nothing is known."""
Kind = tuple[str, tuple[Extent, ...], bool, tuple[TileDim | Split | None, ...]]
"""Properties shared by regions that can be compared by numbers: the buffer, its shape, whether it
is written, and how its dims are cut."""

_Item = TypeVar("_Item")
_Said = TypeVar("_Said")

FAR_BELOW = -(1 << 62)
"""A lower bound of all values."""
NOTHING: Mapping[Reg, Interval] = {}
"""The known ranges of registers if none is known."""


@dataclass(frozen=True, slots=True)
class Region:
    """The part `box` of `buffer` viewed with dims `shape`."""

    buffer: Buffer
    shape: tuple[Extent, ...]
    box: Box
    write: bool

    @property
    def kind(self) -> Kind:
        cuts = tuple([part.dim if isinstance(part, Piece) else None for part in self.box])
        return self.buffer.name, self.shape, self.write, cuts

    def whole_in(self, dims: Sequence[int]) -> Region:
        """Return the region with some of its dims taken whole."""
        box = tuple(None if n in dims else part for n, part in enumerate(self.box))
        return Region(self.buffer, self.shape, box, self.write)

    def lasting(self) -> Region:
        """Return a region that stays valid when registers change: dims that are cut by a register
        become whole."""
        dims = [n for n, part in enumerate(self.box) if _is_cut_by_register(part)]
        return self.whole_in(dims) if dims else self

    @property
    def span(self) -> Interval | None:
        """First element and last + 1 of the region; None if the end is not known."""
        if not has_fixed_strides(self.shape):
            return None
        first = last = 0
        for interval, extent, stride in zip(
            self.box, self.shape, row_major(self.shape), strict=True
        ):
            if isinstance(interval, Piece):
                return None
            if interval is not None:
                first += interval[0] * stride
                last += (interval[1] - 1) * stride
            elif isinstance(extent, int):
                last += (extent - 1) * stride
            else:
                return None
        return first, last + 1


def whole(buffer: Buffer, write: bool) -> Region:
    return Region(buffer, buffer.shape, (None,) * len(buffer.shape), write)


def task_regions(kernel: Kernel, task: int) -> tuple[Region, ...]:
    """Return the regions that one task of a kernel with a static grid touches."""
    return tile_regions(kernel, kernel.tile(task))


def stage_regions(kernel: Kernel, task: int | None = None) -> Iterator[tuple[Region, ...]]:
    """Yield for each stage the regions that one task, or (None) all tasks, of a kernel with a
    static grid touch."""
    tile = whole_tile(kernel) if task is None else kernel.tile(task)
    for stage in kernel.stages:
        yield merged(_stage_regions(stage, tile))


class _Remembered(Generic[_Item, _Said]):
    """A cache of a function of immutable items. Keys are identities, since comparing two kernels
    takes longer than computing again; policies, waits and verifiers pass the same objects."""

    def __init__(self, compute: Callable[[_Item], _Said], most: int = 16384) -> None:
        self._compute = compute
        self._most = most
        self._known: dict[int, tuple[_Item, _Said]] = {}
        """Holds the items too, so that their identities are not reused."""

    def __call__(self, item: _Item) -> _Said:
        found = self._known.get(id(item))
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[id(item)] = item, self._compute(item)
        return found[1]


def kernel_regions(kernel: Kernel) -> tuple[Region, ...]:
    """Return the regions that all tasks together touch."""
    return _KERNEL_REGIONS(kernel)


def _kernel_regions(kernel: Kernel) -> tuple[Region, ...]:
    if not kernel.is_static or kernel.call is not None:
        return merged(whole(region.buffer, region.write) for region in _touched(kernel))
    return tile_regions(kernel, whole_tile(kernel))


_KERNEL_REGIONS = _Remembered(_kernel_regions)


def block_regions(kernel: Kernel, first: int, count: int) -> tuple[Region, ...]:
    """Return the regions that the tasks first .. first + count - 1 touch."""
    if kernel.call is not None or not kernel.is_static or (first == 0 and count == kernel.tasks):
        return kernel_regions(kernel)
    tiles = tuple(dim.tiles for dim in kernel.grid)
    found: list[tuple[Region, ...]] = []
    for block in _blocks(tiles, first, first + count):
        ranges = tuple(
            tile_range(dim, low, high) for (low, high), dim in zip(block, kernel.grid, strict=True)
        )
        found.append(tile_regions(kernel, ranges))
    # A single block is merged already.
    return found[0] if len(found) == 1 else merged(chain(*found))


def tile_regions(kernel: Kernel, tile: Tile) -> tuple[Region, ...]:
    """Return the regions that the stages touch for the given range of each grid dim."""
    return merged(chain(*(_stage_regions(stage, tile) for stage in kernel.stages)))


def expr_regions(expr: Expr) -> tuple[Region, ...]:
    """Return the regions that an expression without iteration variables reads."""
    return merged(_read_regions(expr, ()))


def kernel_reads(kernel: Kernel) -> set[Reg]:
    """Return the registers that the tasks read."""
    found = {r for dim in kernel.grid for r in _extent_registers(dim.extent)}
    for stage in kernel.stages:
        operator = stage.operator
        extents = (*operator.dims, *operator.reduce, *(span.extent for span in stage.box))
        found |= {r for extent in extents for r in _extent_registers(extent)}
        found |= expr_regs(operator.value)
        found |= {a for i in operator.out.index for a in i.atoms() if isinstance(a, Reg)}
    if kernel.call is not None:
        found |= {item for item in kernel.call.operands if isinstance(item, Reg)}
    return found


def written_buffers(kernel: Kernel) -> set[Buffer]:
    """Return the buffers that the tasks write."""
    found = {stage.operator.out.buffer for stage in kernel.stages}
    return found if kernel.call is None else found.union(kernel.call.outs)


def call_buffers(call: LibraryCall) -> tuple[Buffer, ...]:
    """Return the buffers that a library call reads."""
    return tuple(item for item in call.inputs if isinstance(item, Buffer))


def item_regions(item: Statement) -> tuple[Region, ...]:
    """Return all regions that an item touches."""
    return kernel_regions(item) if isinstance(item, Kernel) else statement_regions(item)


def statement_regions(item: Let | Check) -> tuple[Region, ...]:
    """Return the regions that a register statement reads."""
    return _STATEMENT_REGIONS(item)


def _statement_regions(item: Let | Check) -> tuple[Region, ...]:
    return tuple(region for expr in item.exprs for region in expr_regions(expr))


_STATEMENT_REGIONS = _Remembered(_statement_regions)


def statement_reads(item: Let | Check) -> set[Reg]:
    """Return the registers that a statement reads."""
    return {reg for expr in item.exprs for reg in expr_regs(expr)}


def overlap(a: Region, b: Region) -> bool:
    """Return True if the two regions of one buffer may share an element."""
    boxes = _common_boxes(a, b)
    if boxes is None:
        first, second = a.span, b.span
        return first is None or second is None or intervals_overlap(first, second)
    return all(_parts_meet(x, y) for x, y in zip(*boxes, strict=True))


def covers(a: Region, b: Region) -> bool:
    """Return True if region `a` certainly contains region `b` of the same buffer; False when in
    doubt."""
    if a.shape == b.shape:
        return all(starmap(_contains, zip(a.box, b.box, strict=True)))
    same = same_dims(a.shape, b.shape)
    if any(part is not None for part in a.box[same:]):
        return False
    if same:
        return all(starmap(_contains, zip(a.box[:same], b.box[:same], strict=True)))
    return sees_as_many(a.shape, b.shape)


def sees_as_many(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> bool:
    """Return True if a view with dims `a` certainly has all elements of a view of the same buffer
    with dims `b`."""
    if not all(map(is_known, (*a, *b))):
        return False
    return at_most(known_size(b), known_size(a))


def _is_cut_by_register(part: Part) -> bool:
    return isinstance(part, Piece) and part.dim.is_cut_by_register


def _contains(outer: Part, inner: Part) -> bool:
    """Return True if a part certainly contains another one; False when in doubt."""
    if outer is None or inner is None:
        return outer is None
    pair = _comparable(outer, inner)
    return pair is not None and pair[0][0] <= pair[1][0] and pair[1][1] <= pair[0][1]


def _parts_meet(one: Part, other: Part) -> bool:
    """Return True if two parts of a dim may share a value."""
    if one is None or other is None:
        return True
    pair = _comparable(one, other)
    return pair is None or intervals_overlap(*pair)


def _comparable(one: Interval | Piece, other: Interval | Piece) -> tuple[Interval, Interval] | None:
    """Return two parts as intervals of one kind (values, or tiles of one cut), or None if they
    differ in kind."""
    if isinstance(one, tuple):
        return (one, other) if isinstance(other, tuple) else None
    if isinstance(other, tuple) or one.dim != other.dim:
        return None
    return (one.first, one.last), (other.first, other.last)


def intervals_overlap(a: Interval, b: Interval) -> bool:
    """Return True if two intervals have a number in common."""
    return a[0] < b[1] and b[0] < a[1]


def _extent_registers(extent: Extent) -> tuple[Reg, ...]:
    return (extent,) if isinstance(extent, Reg) else ()


def _touched(kernel: Kernel) -> Iterator[Region]:
    if kernel.call is not None:
        yield from (whole(buffer, write=False) for buffer in call_buffers(kernel.call))
        yield from (whole(buffer, write=True) for buffer in kernel.call.outs)
    for stage in kernel.stages:
        for load in stage.operator.reads():
            yield whole(load.access.buffer, write=False)
        yield whole(stage.operator.out.buffer, write=True)
        if stage.operator.accumulate:
            yield whole(stage.operator.out.buffer, write=False)


def _stage_regions(stage: Stage, tile: Tile) -> list[Region]:
    operator = stage.operator
    box = [span_range(span, tile) for span in stage.box]
    for part in box:
        if isinstance(part, tuple) and part[0] >= part[1]:
            return []
    depths = [(0, extent) if isinstance(extent, int) else None for extent in operator.reduce]
    ranges = (*box, *depths)
    found = (_access_region(access, ranges, write) for access, write in _ACCESSES(operator))
    return [region for region in found if region is not None]


def _accesses(operator: Operator) -> tuple[tuple[Access, bool], ...]:
    """Return the accesses of an operator with a flag for writes: reads first, then the result."""
    found = [(load.access, False) for load in loads(operator.value)]
    for index in operator.out.index:
        for atom in index.atoms():
            if isinstance(atom, ComputedPosition):
                found += [(load.access, False) for load in loads(atom.value)]
    found.append((operator.out, True))
    if operator.accumulate:
        found.append((operator.out, False))
    return tuple(found)


_ACCESSES = _Remembered(_accesses)


def span_range(span: Span, tile: Box) -> Part:
    """Return the part of a stage's parallel dim that corresponds to a tile of the grid."""
    if span.grid is not None:
        interval = tile[span.grid]
        if interval is None:
            return None
        if isinstance(interval, Piece):
            return None if span.offset else interval
        return span.offset + interval[0], span.offset + interval[1]
    if isinstance(span.extent, int):
        return span.offset, span.offset + span.extent
    return None


def _read_regions(expr: Expr, ranges: Box) -> Iterator[Region]:
    for load in loads(expr):
        region = _access_region(load.access, ranges, write=False)
        if region is not None:
            yield region


def _access_region(access: Access, ranges: Box, write: bool) -> Region | None:
    """Return the region of an access; None if all indices are out of range (masked padding)."""
    box: list[Part] = []
    for index, extent in zip(access.index, access.shape, strict=True):
        if (piece := _piece(index, extent, ranges)) is not None:
            box.append(None if piece.is_whole else piece)
            continue
        if (side := _side(index, ranges)) is not None:
            box.append(side)
            continue
        interval = index_range(index, ranges)
        if interval is not None and isinstance(extent, int):
            interval = max(interval[0], 0), min(interval[1], extent)
            if interval[0] >= interval[1]:
                return None
            if interval == (0, extent):
                interval = None
        box.append(interval)
    return Region(access.buffer, *_as_the_buffer(access, box), write)


def _as_the_buffer(access: Access, box: Sequence[Part]) -> tuple[tuple[Extent, ...], Box]:
    """Return dims and box of an access, in the sized buffer's own dims if the box can be moved to
    them."""
    own, shape = access.buffer.shape, access.shape
    if shape != own and access.buffer.is_sized:
        moved = moved_box(box, shape, own)
        if moved is not None:
            return own, moved
    return shape, tuple(box)


def moved_box(box: Sequence[Part], seen: tuple[Extent, ...], own: tuple[Extent, ...]) -> Box | None:
    """Return the same elements as a box over other dims. Dims that are joined or split must be
    whole; None otherwise."""
    runs = _common_runs(seen, own)
    if runs is None:
        return None
    moved: list[Part] = [None] * len(own)
    for ours, theirs in runs:
        parts = [box[n] for n in ours if seen[n] != 1]
        places = [n for n in theirs if own[n] != 1]
        if len(parts) == len(places) == 1:
            moved[places[0]] = parts[0]
        elif any(part is not None for part in parts):
            return None
    return tuple(moved)


@lru_cache(maxsize=4096)
def _common_runs(
    a: tuple[Extent, ...], b: tuple[Extent, ...]
) -> tuple[tuple[range, range], ...] | None:
    """Pair the shortest runs of dims of two shapes that have the same number of elements; None if
    the shapes differ in size."""
    if not all(map(is_known, (*a, *b))) or known_size(a) != known_size(b):
        return None
    ends = {Size.of(known_size(b[:n])): n for n in range(1, len(b) + 1)}
    runs: list[tuple[range, range]] = []
    first = start = 0
    for n in range(1, len(a) + 1):
        end = ends.get(Size.of(known_size(a[:n])), start)
        if end > start:
            runs.append((range(first, n), range(start, end)))
            first, start = n, end
    if first < len(a) and runs:  # dims of size 1
        runs[-1] = range(runs[-1][0].start, len(a)), runs[-1][1]
    return tuple(runs)


def without_units(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Return the dims that are not of size 1."""
    return tuple(dim for dim in shape if dim != 1)


def _piece(index: Index, extent: Extent, ranges: Box) -> Piece | None:
    """Return the piece of a dim that an index covers, if it is a single variable and the dim is as
    long as the extent that is cut; None otherwise."""
    if index.const or len(index.terms) != 1 or index.terms[0][1] != 1:
        return None
    atom = index.terms[0][0]
    found = ranges[atom.number] if isinstance(atom, Var) else None
    return found if isinstance(found, Piece) and found.dim.extent == extent else None


def _side(index: Index, ranges: Box) -> Piece | None:
    """Return where all values of an index certainly are, relative to the row of a split register;
    None if unknown."""
    match index:
        case Size(terms=((ComputedPosition(Apply("minimum", (_, Position(bound)))), 1),), const=0):
            split = _split(bound)
            is_before = split is not None and bound == Index.of(split) + -1
            return Piece(Split(split), FAR_BELOW, 0) if split and is_before else None
        case _:
            split = _split(index)
            rest = index_range(index + Index.of(split) * -1, ranges) if split else None
            return Piece(Split(split), *rest) if split and rest else None


def lies_before(read: Access, operator: Operator) -> bool:
    """Return True if an access certainly reads only below the row of a split register while the
    operator writes only from that row on."""
    out = operator.out
    if read.buffer != out.buffer or read.shape != out.shape:
        return False
    dims = tuple((0, extent) if isinstance(extent, int) else None for extent in operator.dims)
    unknown = (None,) * (1 + max((v for i in read.index for v in i.vars()), default=-1))
    for one, other in zip(read.index, out.index, strict=True):
        before, behind = _side(one, unknown), _side(other, dims)
        if before and behind and not _parts_meet(before, behind):
            return True
    return False


def lies_before_split(read: Access) -> bool:
    """Return True if an access certainly reads only below the row of a split register."""
    unknown = (None,) * (1 + max((v for i in read.index for v in i.vars()), default=-1))
    sides = (_side(index, unknown) for index in read.index)
    return any(side is not None and side.last == 0 for side in sides)


def _split(index: Index) -> Reg | None:
    """Return the split register in an index, or None if it has none."""
    for atom, factor in index.terms:
        if isinstance(atom, Reg) and is_split(atom) and factor == 1:
            return atom
    return None


def index_range(
    index: Index, ranges: Box, registers: Mapping[Reg, Interval] = NOTHING
) -> Interval | None:
    """Return the smallest value and the largest + 1. None if a quantity in the index has no known
    range: memory, a symbol, a variable of unknown range, or a register that is not in
    `registers`."""
    low = high = index.const
    for atom, coefficient in index.terms:
        match atom:
            case Var(number):
                known = ranges[number]
                interval = None if isinstance(known, Piece) else known
            case Quotient(inner, int(divisor)):
                interval = _quotient_range(index_range(inner, ranges, registers), divisor)
            case Remainder(inner, int(divisor)):
                interval = _remainder_range(index_range(inner, ranges, registers), divisor)
            case Reg():
                interval = registers.get(atom)
            case _:
                interval = None
        if interval is None:
            return None
        ends = (interval[0] * coefficient, (interval[1] - 1) * coefficient)
        low, high = low + min(ends), high + max(ends)
    return low, high + 1


def _quotient_range(interval: Interval | None, divisor: int) -> Interval | None:
    if interval is None:
        return None
    return interval[0] // divisor, (interval[1] - 1) // divisor + 1


def _remainder_range(interval: Interval | None, divisor: int) -> Interval:
    if interval is None or interval[0] // divisor != (interval[1] - 1) // divisor:
        return 0, divisor
    return interval[0] % divisor, (interval[1] - 1) % divisor + 1


def merged(regions: Iterable[Region]) -> tuple[Region, ...]:
    """Return the regions without those contained in another of the same kind, with adjacent ones
    joined."""
    kept: dict[tuple[Buffer, tuple[Extent, ...], bool], list[Region]] = {}
    for region in regions:
        group = kept.setdefault((region.buffer, region.shape, region.write), [])
        _add(group, region)
    return tuple(region for group in kept.values() for region in group)


def _add(group: list[Region], region: Region) -> None:
    """Add a region to a group of one buffer, shape and access, joining regions until none can be
    joined."""
    while True:
        for position, other in enumerate(group):
            joined = _join(other, region)
            if joined is not None:
                del group[position]
                region = joined
                break
        else:
            group.append(region)
            return


def _join(a: Region, b: Region) -> Region | None:
    """Return the union of two regions as one box, or None if it is not exactly a box."""
    if covers(a, b):
        return a
    if covers(b, a):
        return b
    differing = [d for d, (x, y) in enumerate(zip(a.box, b.box, strict=True)) if x != y]
    if len(differing) != 1:
        return None
    dim = differing[0]
    x, y = a.box[dim], b.box[dim]
    if x is None or y is None:
        return None
    pair = _comparable(x, y)
    if pair is None or pair[0][0] > pair[1][1] or pair[1][0] > pair[0][1]:
        return None
    union = _part(x, min(pair[0][0], pair[1][0]), max(pair[0][1], pair[1][1]), a.shape[dim])
    return Region(a.buffer, a.shape, (*a.box[:dim], union, *a.box[dim + 1 :]), a.write)


def _part(like: Interval | Piece, first: int, last: int, extent: Extent) -> Part:
    """Return an interval or piece like `like` with other limits; None if it is the whole dim."""
    if isinstance(like, Piece):
        piece = Piece(like.dim, first, last)
        return None if piece.is_whole else piece
    return None if (first, last) == (0, extent) else (first, last)


def _blocks(tiles: tuple[int, ...], first: int, last: int) -> Iterator[tuple[Interval, ...]]:
    """Yield boxes of tiles that together are the row-major numbers first .. last - 1."""
    if not tiles:
        if first < last:
            yield ()
        return
    row = prod(tiles[1:], start=1)
    start, end = -(-first // row), last // row
    if start > end:
        for inner in _blocks(tiles[1:], first - end * row, last - end * row):
            yield ((end, start), *inner)
        return
    if first < start * row:
        for inner in _blocks(tiles[1:], first - (start - 1) * row, row):
            yield ((start - 1, start), *inner)
    if start < end:
        yield ((start, end), *((0, extent) for extent in tiles[1:]))
    if end * row < last:
        for inner in _blocks(tiles[1:], 0, last - end * row):
            yield ((end, end + 1), *inner)


def _common_boxes(a: Region, b: Region) -> tuple[Box, Box] | None:
    """Return both boxes over the dims that both shapes can be cut into, or else over the leading
    dims that they share; None if there are none."""
    if a.shape == b.shape:
        return a.box, b.box
    extents = refined_strides(a.shape, b.shape)
    if extents is None:
        same = same_dims(a.shape, b.shape)
        return (a.box[:same], b.box[:same]) if same else None
    return refine(a, extents), refine(b, extents)


@lru_cache(maxsize=4096)
def same_dims(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> int:
    """Return the number of leading dims that two shapes of one buffer share: an element has the
    same position in these. 0 if the remaining dims differ in size."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    if not all(map(is_known, (*a, *b))):
        return 0
    return same if known_size(a[same:]) == known_size(b[same:]) else 0


@lru_cache(maxsize=4096)
def refined_strides(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> tuple[int, ...] | None:
    """Return the strides of dims that both shapes can be cut into, largest first; None if there
    are none."""
    if not has_fixed_strides(a) or not has_fixed_strides(b):
        return None
    strides = tuple(sorted({1, *row_major(a), *row_major(b)}, reverse=True))
    if strides[-1] == 0 or any(x % y for x, y in pairwise(strides)):
        return None
    return strides


def refine(region: Region, strides: tuple[int, ...]) -> Box:
    """Return a box over dims of the given strides (the shape's are among them) that contains the
    region."""
    pieces: dict[int, Interval | None] = dict.fromkeys(strides, (0, 1))
    for interval, extent, stride in zip(
        region.box, region.shape, row_major(region.shape), strict=True
    ):
        end = stride * extent if isinstance(extent, int) else None
        parts = [part for part in strides if part >= stride and (end is None or part < end)]
        pieces |= dict.fromkeys(parts)
        if interval is None or isinstance(interval, Piece):
            continue
        low, high = interval
        for part in parts:
            step = part // stride
            pieces[part] = low // step, (high - 1) // step + 1
            if low // step != (high - 1) // step:
                break
            low, high = low % step, (high - 1) % step + 1
    return tuple(pieces[stride] for stride in strides)

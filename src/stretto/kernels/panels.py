"""Constants laid out as panels: which elements a panel has, and where a product reads it.

Selection says by `Packing` how panels come out of a constant. Where an operator reads them is
derived from its own index of the constant (`panel_position`): the printed code begins there, and
the emulator loads from there (`read_packed`), so that both read the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from stretto.device.expr import Access, Apply, Buffer, Extent, Index, Load, Var, row_major
from stretto.device.operator import Kernel, Stage
from stretto.kernels.contraction import analyse, analyse_convolution, factors


@dataclass(frozen=True, slots=True)
class Stacked:
    """One dim of a stack: registers choose `index` among `size` members that are `step` apart."""

    size: int
    step: int
    index: Index


@dataclass(frozen=True, slots=True)
class Layout:
    """A constant that an operator reads: `start` and variables within the member that `stack`
    chooses."""

    start: int
    stack: tuple[Stacked, ...]


def layout_of(access: Access, dims: tuple[Extent, ...]) -> Layout | None:
    """How registers and variables (of extents `dims`) share the index of a constant.

    None where they cannot be told apart: what is read at one value of a register must not overlap
    with what is read at another, unless it is the same.
    """
    start = 0
    stack: list[Stacked] = []
    strides = row_major(access.shape)
    for index, size, step in zip(access.index, access.shape, strides, strict=True):
        if not index.is_affine or not isinstance(size, int):
            return None
        chosen = tuple((atom, c) for atom, c in index.terms if not isinstance(atom, Var))
        if not chosen:
            start += index.const * step
            continue
        reach = _reach(index, dims)
        width = gcd(*(coefficient for _, coefficient in chosen))
        member, rest = divmod(index.const, width)
        if reach is None or rest + reach[0] < 0 or rest + reach[1] >= width:
            return None
        start += rest * step
        count = (size - 1 - rest - reach[1]) // width + 1
        choice = Index(tuple((atom, c // width) for atom, c in chosen), member)
        stack.append(Stacked(count, width * step, choice))
    return Layout(start, tuple(stack))


def _reach(index: Index, dims: tuple[Extent, ...]) -> tuple[int, int] | None:
    """The least and the largest sum of the terms with variables, where that is known."""
    low = high = 0
    for atom, coefficient in index.terms:
        if not isinstance(atom, Var):
            continue
        extent = dims[atom.number]
        if not isinstance(extent, int):
            return None
        low += min(0, coefficient * (extent - 1))
        high += max(0, coefficient * (extent - 1))
    return low, high


# ---- where panels are read -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Panels:
    """What an operator reads of a packed constant. `outer`, `column`, `depth`: positions in it."""

    weight: Access
    stack: tuple[Index, ...]
    outer: tuple[Index, ...]
    column: Index
    depth: Index


def _panels(stage: Stage) -> _Panels:
    operator = stage.operator
    dims = (*operator.dims, *operator.reduce)
    depth = Index()
    for number, extent in enumerate(operator.reduce, len(operator.dims)):
        assert isinstance(extent, int)
        depth = depth * extent + (Var(number) if extent != 1 else 0)
    if stage.method.template == "conv":
        convolution = analyse_convolution(operator)
        assert convolution is not None
        weight, channel = convolution.weight, Index.of(Var(1))
        per_group = convolution.out_channels // convolution.groups
        grouped = convolution.groups > 1
        outer = (channel // per_group,) if grouped else ()
        column = channel % per_group if grouped else channel
    else:
        contraction = analyse(operator)
        assert contraction is not None
        weight, column = contraction.right, Index.of(Var(contraction.column))
        outer = tuple(Index.of(Var(dim)) for dim in contraction.batch)
    layout = layout_of(weight, dims)
    assert layout is not None
    return _Panels(weight, tuple(dim.index for dim in layout.stack), outer, column, depth)


def _position(packed: Buffer, choices: tuple[Index, ...]) -> Index:
    """Where the panels of these positions in the leading dims of a packed constant begin."""
    sizes = [dim for dim in packed.shape if isinstance(dim, int)]
    total = Index()
    for dim, choice in enumerate(choices):
        total = total + choice * prod(sizes[dim + 1 :], start=1)
    return total


def member_position(stage: Stage) -> Index:
    """Where the member that registers choose lies in the stage's packed stack of constants."""
    assert stage.method.packed is not None
    return _position(stage.method.packed, _panels(stage).stack)


def panel_position(stage: Stage) -> Index:
    """Where the panel that begins with the stage's column lies in the packed constant.

    The column must be a multiple of the lanes.
    """
    packed = stage.method.packed
    assert packed is not None
    panels = _panels(stage)
    depth = packed.shape[-2]
    assert isinstance(depth, int)
    return _position(packed, (*panels.stack, *panels.outer)) + panels.column * depth


def read_packed(kernel: Kernel) -> Kernel:
    """The kernel as the machine executes it: where a template takes packed panels, the operator
    loads from those."""
    if all(stage.method.packed is None for stage in kernel.stages):
        return kernel
    return replace(kernel, stages=tuple(map(_read_packed, kernel.stages)))


def _read_packed(stage: Stage) -> Stage:
    packed, pair = stage.method.packed, factors(stage.operator)
    if packed is None:
        return stage
    assert pair is not None
    panels = _panels(stage)
    depth, lanes = packed.shape[-2:]
    assert isinstance(depth, int) and isinstance(lanes, int)
    begin = _position(packed, (*panels.stack, *panels.outer)) + panels.column // lanes * (
        depth * lanes
    )
    place = begin + panels.depth * lanes + panels.column % lanes
    load = Load(Access(packed, (packed.elements,), (place,)))
    value = stage.operator.value
    assert isinstance(value, Apply)
    args = tuple(load if factor == Load(panels.weight) else factor for factor in pair)
    return replace(stage, operator=replace(stage.operator, value=replace(value, args=args)))

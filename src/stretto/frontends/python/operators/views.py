"""Views as steps that can be read and written back, so that aliases see each other's writes.

A view operator on a traced tensor adds a ViewStep to its chain instead of computing a new
value. `RULES` has the ATen overloads that are views.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from stretto.errors import OnlyInPython, VerifyError
from stretto.frontends.python.operators.checks import OF_OPERATORS, eager_error, faked, settled
from stretto.frontends.python.tracing.fakes import call_key, dims_by_stride, known_result, remember
from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor, ViewStep
from stretto.frontends.python.tracing.tracer import data_dependent_shape, tracer
from stretto.frontends.python.values.data_dependent_sizes import is_decided, plain
from stretto.frontends.python.values.raises import check
from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.symbols import rename_dim, rename_type
from stretto.ir.types import DType, TensorType
from stretto.ops.infer import infer as infer_types
from stretto.ops.positions import Positions
from stretto.ops.symints import on_fakes

aten = torch.ops.aten

ViewRule = Callable[..., Any]


def _fake_view(func: Any, tensor: TracedTensor, *args: Any) -> Any:
    """Return the result of a view operator on the fake tensor. Its memory is not that of
    `tensor.fake`: only storages of traced tensors record what is shared. Raises eager's errors."""
    state = tracer()
    key = call_key(func, (tensor.fake, *args), {})
    known = None if key is None else known_result(state.fake_mode, key)
    if known is not None:
        return known
    try:
        if func is aten.slice.Tensor and is_decided(tensor.shape[args[0]]):
            with state.faking():
                known = on_fakes(func, (tensor.fake, *args), {})
        else:
            known = faked(state, func, (tensor.fake, *args), {})
    except GuardOnDataDependentSymNode:
        raise data_dependent_shape(f"the shape that {func} needs") from None
    except OF_OPERATORS as problem:
        raise (eager_error(func, (tensor, *args), {}) or problem) from None
    if key is not None:
        remember(key, known)
    return known


def _extended(
    tensor: TracedTensor,
    fake: torch.Tensor,
    target: str,
    *arguments: Argument,
    inverse: tuple[Argument, ...] | None = None,
) -> TracedTensor:
    """Return the alias of `tensor` with one more view step."""
    state = tracer()
    known = tuple(map(_known, arguments))
    if state.symbols:
        # The fake of `tensor` may be that of a view with a step that has been removed.
        steps, memory = tensor.steps, tensor.memory
        type = steps[-1].type if steps else state.type_in(memory.state)
        (fake,) = settled(state, TensorOp(target, (Value(type), *known)), [fake])
    step = ViewStep(target, known, state.type_of(fake), inverse, user_location())
    return TracedTensor(fake, tensor.memory, (*tensor.steps, step))


def _known(argument: Any) -> Argument:
    """Return an argument with its sizes in the Program's form."""
    if isinstance(argument, torch.SymInt):
        return tracer().dim(argument)
    return tuple(map(_known, argument)) if isinstance(argument, tuple) else argument  # pyright: ignore[reportUnknownArgumentType]


def _last(tensor: TracedTensor, target: str) -> ViewStep | None:
    """Return the last view step if it has this operator, else None."""
    return tensor.steps[-1] if tensor.steps and tensor.steps[-1].target == target else None


def _without_last(tensor: TracedTensor) -> TracedTensor:
    return TracedTensor(tensor.fake, tensor.memory, tensor.steps[:-1])


# -- the same elements in another shape or order --------------------------------------------------


def _alias(x: TracedTensor, *args: Any) -> TracedTensor:
    """Return the same tensor as another Python object."""
    return TracedTensor(_fake_view(aten.alias.default, x), x.memory, x.steps, x.number)


def _detached(x: TracedTensor) -> TracedTensor:
    """Return an alias for `detach_`. `torch.tensor` ends with it too, and treats a traced number
    as a tensor of its dtype if called from code that is not rewritten, which is refused."""
    if x.number is not None:
        fail(
            "a tensor is made of a number that depends on a tensor, in code whose source cannot "
            "be read",
            "define the function in a file",
        )
    return _alias(x)


def _reshaped(func: Any) -> ViewRule:
    """Return the rule for a view with another shape and the same order of elements."""
    return lambda x, *args: _with_shape(x, _fitting_view(func, x, *args))


def _fitting_view(func: Any, x: TracedTensor, *args: Any) -> Any:
    """Return the fake result of a view operator. Torch assumes that data-dependent sizes in the
    requested shape are those that the tensor needs; a call where they are not runs in Python."""
    asked: Any = args[0] if args and isinstance(args[0], tuple | list) else ()
    known: list[Any] = [size if is_decided(size) else None for size in asked]
    dims = [None if size is None else tracer().dim(size) for size in known]
    if -1 in asked and func is not aten.expand.default:
        others: Any = math.prod(size for size in asked if size != -1)
        count: Any = x.numel()
        if is_decided(count) and not is_decided(others) and others > 1:
            check(plain(count % others == 0), OnlyInPython.__name__, "no size fits for -1")
    fake = _fake_view(func, x, *args)
    for dim, size in zip(dims, fake.shape, strict=False):
        if dim is not None and dim != tracer().dim(size):
            fits = plain(tracer().symbolic_dim(dim) == size)
            check(fits, OnlyInPython.__name__, "a data-dependent size does not fit the view")
    return fake


def _squeezed(func: Any) -> ViewRule:
    """Return the rule for a view without dims of size 1. Each size is compared with 1, as the rank
    depends on it; a data-dependent size is assumed not to be 1, and a call where it is runs in
    Python."""
    reshaped = _reshaped(func)

    def rule(x: TracedTensor, dims: int | Sequence[int] | None = None) -> TracedTensor:
        asked = range(x.dim()) if dims is None else (dims,) if isinstance(dims, int) else dims
        for dim in asked if x.dim() else ():
            size: Any = x.shape[dim]
            if is_decided(size):
                check(plain(size != 1), OnlyInPython.__name__, "squeeze() drops a dim")
            else:
                bool(size == 1)
        return reshaped(x) if dims is None else reshaped(x, dims)

    return rule


def _with_shape(tensor: TracedTensor, fake: torch.Tensor) -> TracedTensor:
    before, after = _shape_arguments(tensor.shape), _shape_arguments(fake.shape)
    view = "aten.view.default"
    last = _last(tensor, view)
    if last is not None and last.inverse is not None:
        (before,) = last.inverse
        tensor = _without_last(tensor)
    if before == after:
        return TracedTensor(fake, tensor.memory, tensor.steps)
    return _extended(tensor, fake, view, after, inverse=(before,))


def _shape_arguments(shape: Any) -> Argument:
    """Return a shape as an argument."""
    return tuple(map(tracer().dim, shape))


def _permuted(func: Any) -> ViewRule:
    """Return the rule for a view with permuted dims; the permutation is read from the strides of a
    result."""

    def rule(x: TracedTensor, *args: Any) -> TracedTensor:
        fake = _fake_view(func, x, *args)
        with tracer().native():
            numbered = torch.empty_strided([1] * x.dim(), list(range(x.dim())), device="meta")
            order = list(func(numbered, *args).stride())
        permute = "aten.permute.default"
        last = _last(x, permute)
        if last is not None:
            (first,) = last.arguments
            assert isinstance(first, tuple)
            order = [int(first[dim]) for dim in order]  # type: ignore[call-overload]
            x = _without_last(x)
        if order == sorted(order):
            return TracedTensor(fake, x.memory, x.steps)
        inverse = tuple(order.index(dim) for dim in range(len(order)))
        return _extended(x, fake, permute, tuple(order), inverse=(inverse,))

    return rule


# -- parts ----------------------------------------------------------------------------------------


def selected(x: TracedTensor, dim: int, index: int | torch.SymInt | Value) -> TracedTensor:
    """Return `x.select(dim, index)`, also at a position known only at run time."""
    dim = dim % x.dim() if x.dim() else dim
    size = x.shape[dim] if x.dim() else 0
    is_checked = isinstance(index, Value) or not (x.dim() == 0 or _is_inside(index, size))
    if is_checked and isinstance(index, torch.SymInt):
        index = _position(index)
    if isinstance(index, Value) and isinstance(size, torch.SymInt) and not is_decided(size):
        # The loop may have no iterations in this call: torch would settle that the size is not 0.
        sizes, strides = (of[:dim] + of[dim + 1 :] for of in (list(x.shape), list(x.stride())))
        with tracer().faking():
            fake = x.fake.new_empty_strided(sizes, strides)
    else:
        fake = _fake_view(aten.select.int, x, dim, 0 if isinstance(index, Value) else index)
    if is_checked:
        position = index if isinstance(index, Value) else tracer().literal(int(index), DType.I64)
        _check(position, x, dim, 1, "aten.select.int")
    place = _known(index)
    if _last(x, "aten.expand.default") is not None:
        inside = _selected_before_expand(x, fake, dim, place)
        if inside is not None:
            return inside
    return _extended(x, fake, "aten.select.int", dim, place)


def _position(place: int | torch.SymInt) -> Value:
    """Return a position that sizes decide as a value of the Program."""
    state = tracer()
    number = state.number_of_dim(place)
    return state.literal(number, DType.I64) if isinstance(number, int) else state.read(number)


def _is_inside(index: int | torch.SymInt, size: int | torch.SymInt) -> bool:
    """True if an index is known to be a position in a dim. torch has compared two numbers, and a
    number with the least size that the guards allow."""
    state = tracer()
    if isinstance(index, int):
        least = size if isinstance(size, int) else state.sizes.least(state.dim(size))
        return least is not None and -least <= index < least
    place, end = state.dim(index), state.dim(size)
    is_from_front = at_most(0, place) and at_most(Size.of(place) + 1, end)
    return is_from_front or (at_most(-Size.of(end), place) and at_most(place, -1))


def _selected_before_expand(
    tensor: TracedTensor, fake: torch.Tensor, dim: int, index: Argument
) -> TracedTensor | None:
    """Return `x.expand(...).select(dim, index)` as a view of `x`, which can be written."""
    state = tracer()
    base = _without_last(tensor)
    whole = tensor.memory.fake
    assert whole is not None
    type = base.steps[-1].type if base.steps else state.type_of(whole)
    new = tensor.dim() - len(type.shape)
    if dim >= new:
        at = index if type.shape[dim - new] != 1 else 0
        left = tuple(size for place, size in enumerate(type.shape) if place != dim - new)
        type = TensorType(type.dtype, left)
        step = ViewStep("aten.select.int", (dim - new, at), type, place=user_location())
        base = TracedTensor(fake, base.memory, (*base.steps, step))
    if type == state.type_of(fake):
        return TracedTensor(fake, base.memory, base.steps)
    (sizes,) = tensor.steps[-1].arguments
    assert isinstance(sizes, tuple)
    return _extended(base, fake, "aten.expand.default", sizes[:dim] + sizes[dim + 1 :])


def _check(position: Value, tensor: TracedTensor, dim: int, length: Any, operator: str) -> None:
    """Emit a check that the position is in range, needed even if the view is never read."""
    state = tracer()
    size, count = state.dim(tensor.shape[dim]), state.dim(length)
    state.emit(Positions(state.use(position), size, count, operator, dim, True).check(), ())


def narrowed(
    tensor: TracedTensor, dim: int, start: Value, length: int | torch.SymInt
) -> TracedTensor:
    """Return `length` elements of `dim` from a position known only at run time."""
    fake = _fake_view(aten.narrow.default, tensor, dim, 0, length)
    _check(start, tensor, dim % tensor.dim(), length, "stretto.narrow")
    return _extended(tensor, fake, "stretto.narrow", dim, start, tracer().dim(length))


def first_elements(tensor: TracedTensor, dim: int, length: torch.SymInt) -> TracedTensor:
    """Return the first `length` elements of `dim`, a data-dependent number. The caller ensures
    that they exist."""
    return part_of(tensor, dim, 0, length)


def part_of(
    tensor: TracedTensor, dim: int, start: int | TracedTensor, length: int | torch.SymInt
) -> TracedTensor:
    """Return a range of `dim` that the caller ensures to exist."""
    state = tracer()
    shape: list[Any] = list(tensor.shape)
    shape[dim] = length
    with state.faking():
        fake = torch.empty_strided(
            shape, tensor.fake.stride(), dtype=tensor.dtype, device=tensor.device
        )
    size = length if isinstance(length, int) else state.dim(length)
    place = start if isinstance(start, int) else state.read(start)
    return _extended(tensor, fake, "stretto.narrow", dim, place, size)


def _narrow(x: TracedTensor, dim: int, start: Any, length: int) -> TracedTensor:
    if isinstance(start, TracedTensor):
        if start.dim() or start.dtype.is_floating_point or start.dtype == torch.bool:
            raise RuntimeError("start must be an 0-dim integral Tensor.")
        return narrowed(x, dim % x.dim(), tracer().read(start), length)
    fake = _fake_view(aten.narrow.default, x, dim, start, length)
    start = start % x.shape[dim] if start < 0 else start
    return _sliced(x, fake, dim, start, start + length, 1)


def _slice(x: TracedTensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Return a slice. A symbolic end is compared with the size of the dim, so that the size has
    few cases."""
    start, end = _from_front(x, dim, start), _from_front(x, dim, end)
    is_symbolic = isinstance(end, torch.SymInt)
    with tracer().sizes.deciding() if is_symbolic else nullcontext():
        fake = _fake_view(aten.slice.Tensor, x, dim, start, end, step)
    return _sliced(x, fake, dim, start, end, step)


def _from_front(x: TracedTensor, dim: int, bound: Any) -> Any:
    """Return a symbolic slice bound that certainly counts from the end as one that counts from the
    front."""
    if not isinstance(bound, torch.SymInt) or is_decided(bound):
        return bound
    moved: Any = bound + x.shape[dim]
    distance, place = tracer().dim_of(bound.node.expr), tracer().dim_of(moved.node.expr)
    if place == 0:
        return 0
    if distance is None or place is None:
        return bound
    if at_most(distance, -1) and at_most(0, place):
        return moved
    if at_most(distance, 0) and bound < 0:  # without this guard torch would find no size
        return moved if moved >= 0 else 0
    return bound


def _sliced(
    tensor: TracedTensor, fake: torch.Tensor, dim: int, start: Any, end: Any, step: int
) -> TracedTensor:
    """Return `tensor[..., start:end:step, ...]` in dim `dim` with Python bounds."""
    state = tracer()
    dim %= tensor.dim()
    size: Any = tensor.shape[dim]
    is_symbolic = any(isinstance(item, torch.SymInt) for item in (size, start, end))
    if not is_symbolic:
        start, end, step = slice(start, end, step).indices(size)
        end = max(start, end)
    if start in (None, 0) and step == 1 and _is_whole(size, end):
        return TracedTensor(fake, tensor.memory, tensor.steps)
    is_decided = isinstance(size, torch.SymInt) and not size.node.has_hint()
    is_narrow = is_symbolic and step == 1 and not is_decided
    if is_narrow and not _has_formula(tensor, fake, dim, start, end):
        start = 0 if start is None else start + size if start < 0 else start
        if not (at_most(0, state.dim(start)) and at_most(state.dim(start), state.dim(size))):
            start = torch.sym_max(0, torch.sym_min(start, size))
        return _extended(tensor, fake, "stretto.narrow", dim, _position(start), fake.shape[dim])
    return _extended(tensor, fake, "aten.slice.Tensor", dim, start, end, step)


def _has_formula(tensor: TracedTensor, fake: torch.Tensor, dim: int, *bounds: Any) -> bool:
    """True if the size of a slice follows from its bounds, without guards that relate two sizes."""
    state = tracer()
    renaming = state.sizes.renaming()
    source, found = (rename_type(state.type_of(item), renaming) for item in (tensor, fake))
    known = (
        rename_dim(state.dim(item), renaming) if isinstance(item, int | torch.SymInt) else item
        for item in bounds
    )
    try:
        return infer_types("aten.slice.Tensor", (Value(source), dim, *known, 1)) == (found,)
    except VerifyError:
        return False


def _is_whole(size: Any, end: Any) -> bool:
    """True if a slice with this end reaches the end of the dim."""
    if end is None or (isinstance(end, int) and end == sys.maxsize):
        return True
    dim = tracer().dim
    return isinstance(end, int | torch.SymInt) and dim(end) == dim(size)


def _unbind(x: TracedTensor, dim: int = 0) -> tuple[TracedTensor, ...]:
    return tuple(selected(x, dim, index) for index in range(x.shape[dim]))


def _pieces(func: Any) -> ViewRule:
    def rule(x: TracedTensor, sizes: Any, *axes: int, dim: int | None = None) -> Any:
        axis = (axes[0] if axes else 0) if dim is None else dim
        length: Any = x.shape[axis] if x.dim() else None
        is_empty = type(length) is type(sizes) is int and 0 == length <= sizes
        if is_empty and func is aten.split.Tensor:  # torch 2.11 fails to infer the shapes
            pieces = _fake_view(aten.split_with_sizes.default, x, [0], axis)
        else:
            pieces = _fake_view(func, x, sizes, axis)
        if not x.dim():
            raise RuntimeError("split expects at least a 1-dimensional tensor")
        if any(is_decided(piece.shape[axis]) for piece in pieces):
            return _decided_pieces(x, [piece.shape[axis] for piece in pieces], axis % x.dim())
        start, made = 0, list[TracedTensor]()
        for piece in pieces:
            length = piece.shape[axis]
            made.append(_sliced(x, piece, axis, start, start + length, 1))
            start += length
        return tuple(made)

    return rule


def _decided_pieces(x: TracedTensor, sizes: list[Any], dim: int) -> tuple[TracedTensor, ...]:
    """Return pieces of data-dependent lengths, with a check that they add up to the whole."""
    start: Any = 0
    made: list[TracedTensor] = []
    with tracer().mode:
        for size in sizes:
            made.append(part_of(x, dim, start, size))
            start = start + plain(size)
        message = (
            "split_with_sizes expects sizes that sum to the size of the dim, but they sum to {}"
        )
        check(start == plain(x.shape[dim]), "RuntimeError", message, tracer().read(start))
    return tuple(made)


def _diagonal(x: TracedTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TracedTensor:
    fake = _fake_view(aten.diagonal.default, x, offset, dim1, dim2)
    return _extended(x, fake, "aten.diagonal.default", offset, dim1, dim2)


def _as_strided(x: TracedTensor, size: Any, stride: Any, offset: int | None = None) -> TracedTensor:
    """Return a view of the memory of `x`, whatever part of it `x` is."""
    fake = _fake_view(aten.as_strided.default, x, size, stride, offset)
    whole = _in_order_of_memory(x)
    start = fake.storage_offset() - whole.fake.storage_offset()
    last = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if start < 0 or (fake.numel() > 0 and last >= whole.fake.numel()):
        fail(
            "as_strided reaches beyond the tensor whose memory it views",
            "take the view of the larger tensor in the compiled function, or use slices",
        )
    places = (tuple(size), tuple(stride), start)
    return _extended(whole, fake, "aten.as_strided.default", *places)


def _in_order_of_memory(x: TracedTensor) -> TracedTensor:
    """Return the whole memory of a tensor, with its dims in memory order. Raises Abort if it has
    gaps."""
    memory = x.memory
    if memory.fake is not None and not memory.any_layout:
        whole = TracedTensor(memory.fake, memory, ())
        order = dims_by_stride(memory.fake)[::-1]
        ordered = (
            whole if order == tuple(sorted(order)) else RULES[aten.permute.default](whole, order)
        )
        if ordered.fake.is_contiguous():
            return ordered
    fail(
        "as_strided of a tensor with gaps between its elements, or whose layout depends on the run",
        "call contiguous() first, or use slices, unfold or reshape instead",
    )


# -- repeated elements ----------------------------------------------------------------------------


def _expand(x: TracedTensor, sizes: list[int], **_: Any) -> TracedTensor:
    """Return the tensor repeated without copies; where an element is repeated it cannot be
    written."""
    own = list(x.shape)
    wanted = sizes[len(sizes) - x.dim() :]
    taken = [n for n, size in enumerate(own) if is_decided(size) and wanted[n] != -1]
    if taken:  # a data-dependent size is assumed to be the requested one, not 1
        shape = [wanted[n] if n in taken else size for n, size in enumerate(own)]
        x = _with_shape(x, _fitting_view(aten.view.default, x, shape))
    fake = _fitting_view(aten.expand.default, x, sizes)
    new = fake.dim() - x.dim()
    before, after = (tuple(map(tracer().dim, shape)) for shape in (x.shape, fake.shape))
    if after[new:] == before and all(size == 1 for size in after[:new]):
        return _with_shape(x, fake)
    return _extended(x, fake, "aten.expand.default", after)


_RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
)
_SQUEEZES = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
_PERMUTATIONS = (
    aten.permute.default,
    aten.transpose.int,
    aten.swapaxes.default,
    aten.swapdims.default,
    aten.t.default,
    aten.numpy_T.default,
    aten.mT.default,
    aten.movedim.int,
    aten.movedim.intlist,
)
_ALIASES = (aten.alias.default, aten.detach.default, aten.lift_fresh.default)
_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)

RULES: dict[Any, ViewRule] = {
    **{func: _reshaped(func) for func in _RESHAPES},
    **{func: _squeezed(func) for func in _SQUEEZES},
    **{func: _permuted(func) for func in _PERMUTATIONS},
    **{func: _pieces(func) for func in _SPLITS},
    **dict.fromkeys(_ALIASES, _alias),
    aten.detach_.default: _detached,
    aten.select.int: selected,
    aten.slice.Tensor: _slice,
    aten.narrow.default: _narrow,
    aten.narrow.Tensor: _narrow,
    aten.unbind.int: _unbind,
    aten.expand.default: _expand,
    aten.expand_as.default: lambda x, other: _expand(x, list(other.shape)),
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _as_strided,
}

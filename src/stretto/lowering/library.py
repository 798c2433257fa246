"""Library calls: operators that torch computes on whole buffers.

Those are what no rule lowers, and what `Options.library` leaves to torch although a rule could.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from stretto.device.expr import Const, Extent, Position, is_known
from stretto.device.operator import DRAWS, LibraryArgument, LibraryCall
from stretto.errors import LibraryLayoutError
from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import TensorType
from stretto.lowering.function import LeftToTorch, Lowering
from stretto.lowering.lazy import memory_shape
from stretto.lowering.targets import bind
from stretto.ops.effects import is_draw
from stretto.ops.infer import parameters
from stretto.ops.properties import properties
from stretto.ops.table import Cost


def is_left(op: TensorOp, library: LeftToTorch) -> bool:
    """Whether an operator that has a rule is left to torch.

    Views have no memory of their own to write, and numbers, such as counters of loops, are what
    control is decided by: both stay native, and so does what `_check_layout` would refuse.
    """
    if isinstance(library, frozenset):
        return op in library
    if not library or not any(_names(pattern, op.target) for pattern in library):
        return False
    known = properties(op.target)
    if not op.target.startswith("aten.") or not op.results or known.cost is Cost.FREE:
        return False
    tensors = [value.type for value in (*op.operands, *op.results)]
    shapes = [kind.shape for kind in tensors if isinstance(kind, TensorType)]
    if len(shapes) < len(tensors) or all(shape == () for shape in shapes):
        return False
    return all(isinstance(dim, int) for shape in shapes for dim in shape[1:])


def _names(pattern: str, target: str) -> bool:
    """Patterns name overloads, `aten.add.Tensor`, or all of an operator, `aten.add`."""
    return fnmatchcase(target, pattern) or fnmatchcase(target.rpartition(".")[0], pattern)


def library_call(low: Lowering, op: TensorOp, reason: str) -> None:
    """A call into ATen on whole buffers."""
    outs = tuple(
        low.output(value)
        if value in low.destinations
        else low.new_whole(value.hint, value.tensor.dtype, low.extents(value.tensor.shape))
        for value in op.results
    )
    for value in op.results:
        _check_layout(low, low.extents(value.tensor.shape))
    known = parameters(op.target)
    args = tuple(
        _library_argument(low, argument, parameter.is_tensor)
        for parameter, argument in zip(known.values(), op.args, strict=False)
    )
    kwargs = tuple(
        (key, _library_argument(low, item, known[key].is_tensor)) for key, item in op.kwargs
    )
    written = outs
    if is_draw(op):
        assert low.externals.draws is not None
        kwargs, written = (*kwargs, (DRAWS, low.externals.draws)), (*outs, low.externals.draws)
    low.emit(LibraryCall(op.target, op.target, args, kwargs, written, reason, low.source))
    for value, buffer in zip(op.results, outs, strict=True):
        bind(low, value, buffer)


def _check_layout(low: Lowering, shape: tuple[Extent, ...]) -> None:
    """A library call sees memory as it lies, where a dynamic dim is the first one."""
    if memory_shape(shape) != shape or not all(map(is_known, shape[1:])):
        raise LibraryLayoutError(
            "a library call on a tensor whose size is known only at run time in a dim other than "
            "the first",
            location=low.location,
            remedy="transpose the tensor before and after the call",
        )


def _library_argument(low: Lowering, argument: Argument, tensor: bool) -> LibraryArgument:
    """`tensor`: the operator takes a tensor here, and else a number."""
    match argument:
        case Value() if tensor:
            lazy = low.tensor(argument)
            _check_layout(low, lazy.shape)
            return low.whole(lazy, argument.hint)
        case Value():
            number = low.scalar(argument)
            return number.value if isinstance(number, Const) else low.let(number, argument.hint)
        case Size():
            extent = low.extent(argument)
            return low.let(Position(extent), "size") if isinstance(extent, Size) else extent
        case tuple():
            return tuple(_library_argument(low, item, tensor) for item in argument)
        case _:
            return argument

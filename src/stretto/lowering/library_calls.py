"""Library calls (operators that torch computes on whole buffers) and calls of user kernels.

An operator becomes a library call if no rule lowers it, or if `Options.library` leaves it to torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from stretto.device.expr import Apply, Const, Expr, Extent, Index, Load, Position, Reg, is_known
from stretto.device.operator import DRAWS, Combine, LibraryArgument, LibraryCall
from stretto.device.user_kernels import DeclaredPart, DeclaredRegion, Linear, UserKernel
from stretto.errors import CodegenError, LibraryLayoutError
from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Product, Size, Var
from stretto.ir.types import DType, TensorType
from stretto.lowering.emit import emit, index_of
from stretto.lowering.lazy import Lazy, cast, memory_shape
from stretto.lowering.lower_function import LeftToTorch, Lowering
from stretto.lowering.rules import Decline, TensorOpCall
from stretto.lowering.targets import bind
from stretto.ops.arguments import arguments
from stretto.ops.effects import is_draw
from stretto.ops.infer import parameters
from stretto.ops.properties import properties
from stretto.ops.table import Cost


def is_left(op: TensorOp, library: LeftToTorch) -> bool:
    """True if an operator that has a rule is left to torch.

    Views have no separate memory to write, and numbers such as loop counters decide control:
    both are always lowered natively, and so are operators that `_check_layout` would refuse.
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
    """True if the pattern matches the overload (`aten.add.Tensor`) or its operator (`aten.add`)."""
    return fnmatchcase(target, pattern) or fnmatchcase(target.rpartition(".")[0], pattern)


def library_call(low: Lowering, op: TensorOp, reason: str) -> None:
    """Emit a call into ATen on whole buffers."""
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
    """Raise LibraryLayoutError if the memory layout differs from torch's: only the first dim may
    be data-dependent."""
    if memory_shape(shape) != shape or not all(map(is_known, shape[1:])):
        raise LibraryLayoutError(
            "a library call on a tensor whose size is known only at run time in a dim other than "
            "the first",
            location=low.location,
            remedy="transpose the tensor before and after the call",
        )


def _library_argument(low: Lowering, argument: Argument, tensor: bool) -> LibraryArgument:
    """Return an argument of a library call. `tensor`: True if the operator takes a tensor here,
    not a number."""
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


# ---- Operators for which the user has provided a kernel ---------------------------------------


def lower_kernel(
    low: Lowering, op: TensorOp, kernel: UserKernel
) -> tuple[tuple[Lazy, ...] | None, str]:
    """Return the result computed by the kernel, or None and why torch is to compute it. Raise
    CodegenError if a region extends outside of its tensor."""
    call = TensorOpCall(low, op, arguments(op.target, op.args, op.kwargs))
    try:
        return (_Lowered(call, kernel).result(),), ""
    except Decline as declined:
        return None, str(declined)


@dataclass(slots=True)
class _Lowered:
    """One call of an operator that has a user kernel."""

    call: TensorOpCall
    kernel: UserKernel

    def result(self) -> Lazy:
        call, kernel = self.call, self.kernel
        if not kernel.languages & call.low.languages:
            raise Decline("its kernel has no source for this machine")
        self._check_dtypes()
        numbers = [self._number(name, dtype) for name, dtype in kernel.numbers]
        shape, lead = self._dims()
        if 0 in shape:
            nothing = Const(0, call.dtype)
            return emit(call.low, kernel.entry, shape, (), Combine.KERNEL, nothing, call.result)
        reduce: list[Extent] = []
        views = [_OperandView(self, read, shape, lead, reduce) for read in kernel.reads]
        for view in views:
            view.place(view.shape)
        if any(0 in view.shape for view in views):
            raise Decline("one of its tensors has no elements")
        # Nothing may be emitted before this point, and nothing may decline after it.
        loads = [Lazy.at(self._operand(view), *view.index) for view in views]
        sizes = [_size(dim) for view in views for dim in view.shape[view.leads :]]
        value = Apply(kernel.function, (*loads, *numbers, *sizes), call.dtype)
        return emit(
            call.low, kernel.entry, shape, tuple(reduce), Combine.KERNEL, value, call.result
        )

    def _check_dtypes(self) -> None:
        declared = {DType.from_torch(dtype) for dtype in self.kernel.dtypes}
        found = {read.tensor: self.call.tensor(read.tensor).dtype for read in self.kernel.reads}
        for name, dtype in (*found.items(), ("the result", self.call.dtype)):
            if dtype.is_float and dtype not in declared:
                names = " and ".join(sorted(str(dtype.torch) for dtype in declared))
                raise Decline(f"its kernel is declared for {names}, and {name} is {dtype.torch}")

    def _number(self, name: str, dtype: str) -> Expr:
        argument, kind = self.call.arguments[name], DType(dtype)
        if isinstance(argument, bool | int | float):
            return Const({"bool": bool, "i64": int, "f64": float}[dtype](argument), kind)
        triton = self.kernel.triton if "triton" in self.call.low.languages else None
        if triton is not None and name in triton.constexprs:
            raise Decline(f"its kernel needs `{name}` at compile time, but only the run has it")
        if argument is None or isinstance(argument, str | tuple):
            raise Decline(f"`{name}` is no number")
        return cast(self.call.scalar(name), kind)

    def _dims(self) -> tuple[tuple[Extent, ...], int]:
        """Return the dims of the result, and the number of leading dims."""
        shape, write = self.call.shape, self.kernel.write
        lead = len(shape) - len(write.parts)
        if lead < 0 or (lead and not write.leads):
            raise Decline(f"its kernel is declared for another number of dims than {len(shape)}")
        if not all(map(is_known, shape)):
            raise Decline("data decide the size of its result")
        return shape, lead

    def _operand(self, view: _OperandView) -> Lazy:
        """Return the tensor for the kernel: in place if it is strided memory, else a copy."""
        low, name = self.call.low, view.region.tensor
        lazy = low.materialised(self.call.arguments[name])
        if isinstance(lazy.expr, Load) and _is_strided(lazy.expr.access.offset):
            return lazy
        return low.store(lazy, low.new_buffer(name, lazy.dtype, lazy.shape))

    # ---- regions -----------------------------------------------------------------------------
    def extent(self, name: str, shape: tuple[Extent, ...], lead: int) -> tuple[Extent, int]:
        """Return the extent of an index of the kernel, and its variable."""
        for number, part in enumerate(self.kernel.write.parts, lead):
            if part.start is not None and part.start.name == name:
                return shape[number], number
        raise AssertionError(name)

    def outside(self, region: DeclaredRegion, dim: int, size: Extent, last: object) -> CodegenError:
        return CodegenError(
            f"the kernel of {self.kernel.name} declares that it reads element {last} of dim {dim} "
            f"of `{region.tensor}`, which has {size}",
            location=self.call.low.location,
            remedy="correct the region, or check the shapes in the operator itself",
        )


class _OperandView:
    """A tensor that a kernel reads: its dims, and the position of the elements a result element
    needs.

    Its windows become further reduction dims.
    """

    def __init__(
        self,
        lowered: _Lowered,
        region: DeclaredRegion,
        result: tuple[Extent, ...],
        lead: int,
        reduce: list[Extent],
    ) -> None:
        self.lowered, self.region, self.result, self.lead = lowered, region, result, lead
        self.shape = lowered.call.tensor(region.tensor).shape
        self.leads = len(self.shape) - len(region.parts)
        if self.leads < 0 or self.leads > (lead if region.leads else 0):
            raise Decline(
                f"its kernel is declared for another number of dims of `{region.tensor}` than "
                f"{len(self.shape)}"
            )
        if not all(map(is_known, self.shape)):
            raise Decline(f"data decide the size of `{region.tensor}`")
        self.reduce = reduce
        self.index: list[Index] = []

    def place(self, shape: tuple[Extent, ...]) -> None:
        """Compute the index of each dim."""
        offset = self.lead - self.leads
        for dim in range(self.leads):
            if shape[dim] == 1:
                self.index.append(Index())
                continue
            if shape[dim] != self.result[offset + dim]:
                raise Decline(f"dim {dim} of `{self.region.tensor}` is not one of the result")
            self.index.append(index_of(shape[dim], offset + dim))
        for dim, part in enumerate(self.region.parts, self.leads):
            self.index.append(self._position(dim, shape[dim], part))

    def _position(self, dim: int, size: Extent, part: DeclaredPart) -> Index:
        if part.start is None:
            return self._window(size)
        if size == 1 and part.start.name is not None and part.length == 1:
            return Index()  # broadcast, as torch does
        index, last = self._linear(part.start)
        last = last + (part.length - 1)
        self._check(dim, size, part.start, last)
        return index if part.length == 1 else index + self._window(part.length)

    def _window(self, extent: Extent) -> Index:
        number = len(self.result) + len(self.reduce)
        self.reduce.append(extent)
        return index_of(extent, number)

    def _linear(self, start: Linear) -> tuple[Index, Index]:
        """Return an affine expression of the indices, and its largest value."""
        index, last = Index(const=start.const), Index(const=start.const)
        for name, factor in start.terms:
            extent, number = self.lowered.extent(name, self.result, self.lead)
            index = index + index_of(extent, number) * factor
            if factor > 0:
                last = last + (Index.of(extent) + -1) * factor
        return index, last

    def _check(self, dim: int, size: Extent, start: Linear, last: Index) -> None:
        """Check that the part is inside the tensor."""
        first = Index(const=start.const)
        for name, factor in start.terms:
            extent, _ = self.lowered.extent(name, self.result, self.lead)
            if factor < 0:
                first = first + (Index.of(extent) + -1) * factor
        end = Index.of(size) + -1
        for at, inside in ((first, at_most(0, first.dim)), (last, at_most(last.dim, end.dim))):
            if inside:
                continue
            if at.is_const and isinstance(size, int):
                raise self.lowered.outside(self.region, dim, size, at.const)
            raise Decline(f"dim {dim} of `{self.region.tensor}` may be too small for its kernel")


def _size(dim: Extent) -> Expr:
    return Const(dim, DType.I64) if isinstance(dim, int) else Position(Index.of(dim))


def _is_strided(offset: Index) -> bool:
    """True if elements are reached by strides that are known at the call."""
    for atom, _ in offset.terms:
        factors = atom.factors if isinstance(atom, Product) else (atom,)
        inner = [factor for factor in factors if Index.of(factor).vars()]
        if len(inner) > 1 or not all(isinstance(factor, Var) for factor in inner):
            return False
    return not any(isinstance(atom, Reg) and atom.dtype.is_float for atom in offset.atoms())

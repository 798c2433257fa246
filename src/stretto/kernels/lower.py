"""Lowering: from a Program to a tree of operators over buffers.

Tensor ops become lazy tensors (pointwise, views) or operators (reductions, contractions, ...), by the rules in
`kernels/rules`. A lazy value is stored when storing pays or is needed: several costly uses, use inside a loop,
a result. Integers and flags without dims become registers, which every unit computes for itself, so that
control needs no round trip through a single unit. What has no rule becomes a library call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from stretto.errors import CodegenError, SourceLocation
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import Argument, ConstantOp, LiteralOp, TensorOp
from stretto.ir.types import Dim, DType, Symbol, TensorType
from stretto.kernels.expr import (
    Access,
    Apply,
    Buffer,
    Const,
    Dynamic,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Reg,
    dynamic_index,
    loads,
)
from stretto.kernels.lazy import (
    Lazy,
    cast,
    constant,
    contiguous_base,
    memory_shape,
    placed,
    stored,
    whole_buffer,
)
from stretto.kernels.operator import LibraryCall, Operator
from stretto.kernels.sizes import formula_index
from stretto.kernels.tree import Check, Leaf, Let, Node, Seq, Tree, TreeFunction

LeafItem = Operator | LibraryCall | Let | Check
Items = tuple[LeafItem, ...]

MAX_FUSED_APPLIES = 48
"""A lazy expression with more function applications than this is stored."""

CHEAP_APPLIES = 2
"""An expression with at most this many applications (none transcendental) may be computed again per use."""


@dataclass(frozen=True, slots=True)
class ListView:
    """A list value: items in `buffer` [capacity, *element], `length` of them."""

    buffer: Buffer
    length: Index


Binding = Lazy | ListView


@dataclass(slots=True)
class Externals:
    """The argument block: buffers by slot, the tensors of constants, shared by all functions."""

    buffers: list[Buffer] = field(default_factory=list[Buffer])
    constants: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    tensors: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])

    def add(self, name: str, dtype: DType, shape: tuple[Extent, ...], kind: str) -> Buffer:
        buffer = Buffer(name, dtype, shape, kind, len(self.buffers))
        self.buffers.append(buffer)
        return buffer

    def constant(self, key: str, tensor: torch.Tensor) -> Buffer:
        """The buffer of a constant, entered once per key."""
        if key not in self.constants:
            buffer = self.add(key, DType.from_torch(tensor.dtype), tuple(tensor.shape), "constant")
            self.constants[key] = buffer
            self.tensors[buffer.slot] = tensor
        return self.constants[key]


@dataclass(slots=True)
class Lowering:
    """The state of lowering one function."""

    program: Program
    function: Function
    externals: Externals
    env: dict[Value, Binding] = field(default_factory=dict[Value, Binding])
    symbols: dict[Symbol, Extent] = field(default_factory=dict[Symbol, Extent])
    destinations: dict[Value, Buffer] = field(default_factory=dict[Value, Buffer])
    locals: list[Buffer] = field(default_factory=list[Buffer])
    items: list[LeafItem] = field(default_factory=list[LeafItem])
    nodes: list[Node[Items]] = field(default_factory=list[Node[Items]])
    uses: dict[Value, int] = field(default_factory=dict[Value, int])
    home: dict[Value, Block] = field(default_factory=dict[Value, Block])
    used_below: set[Value] = field(default_factory=set[Value])
    later_uses: dict[Value, int] = field(default_factory=dict[Value, int])
    ranges: dict[Reg, tuple[int, int | None]] = field(
        default_factory=dict[Reg, tuple[int, int | None]]
    )
    positions: dict[tuple[Index, Extent, Extent], Index] = field(
        default_factory=dict[tuple[Index, Extent, Extent], Index]
    )
    """Positions that have been checked where control is now."""
    mutable: set[Buffer] = field(default_factory=set[Buffer])
    block: Block = field(default_factory=Block)
    operands: tuple[Value, ...] = ()
    location: SourceLocation | None = None
    counter: int = 0

    # ---- names and buffers -------------------------------------------------------------------
    def fresh(self, hint: str) -> str:
        self.counter += 1
        return f"{self.function.name}.{hint or 'v'}{self.counter}"

    def new_reg(self, hint: str, dtype: DType = DType.I64) -> Reg:
        return Reg(self.fresh(hint), dtype)

    def new_buffer(self, hint: str, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """A buffer in the frame. A dynamic dim needs memory whose size is known at run time only.

        A dynamic dim becomes the first one of the buffer (see `placed`); there can be only one.
        """
        if not all(isinstance(dim, int) for dim in shape):
            shape = memory_shape(shape)
            if not all(isinstance(dim, int) for dim in shape[1:]):
                raise CodegenError(
                    "a tensor with two dims that are known only at run time", location=self.location
                )
            return self.externals.add(self.fresh(hint), dtype, shape, "list")
        buffer = Buffer(self.fresh(hint), dtype, shape)
        self.locals.append(buffer)
        return buffer

    def output(self, value: Value) -> Buffer:
        """The buffer that is to hold `value`: its assigned destination or a new local one."""
        if value in self.destinations:
            return self.destinations[value]
        return self.new_buffer(value.hint, value.tensor.dtype, self.extents(value.tensor.shape))

    def extents(self, shape: tuple[Dim, ...]) -> tuple[Extent, ...]:
        return tuple(self.extent(dim) for dim in shape)

    def extent(self, dim: Dim) -> Extent:
        """The size of a dim. A formula over bound symbols is computed into a register."""
        if isinstance(dim, int):
            return dim
        if dim not in self.symbols:
            reg = self.let(Position(formula_index(dim, self.symbols)), "size")
            self.ranges[reg] = (0, None)
            self.symbols[dim] = reg
        return self.symbols[dim]

    @property
    def source(self) -> str:
        return f"{self.location.file}:{self.location.line}" if self.location else ""

    # ---- emitting ----------------------------------------------------------------------------
    def emit(self, item: LeafItem) -> None:
        self.items.append(item)

    def emit_node(self, node: Node[Items]) -> None:
        """A control node after everything emitted so far."""
        self.flush()
        self.nodes.append(node)

    def flush(self) -> None:
        if self.items:
            self.nodes.append(Leaf(tuple(self.items)))
            self.items = []

    def let(self, value: Expr, hint: str = "r") -> Reg:
        reg = self.new_reg(hint, value.dtype)
        self.emit(Let(reg, value))
        return reg

    def store(self, lazy: Lazy, buffer: Buffer, name: str = "copy") -> Lazy:
        """Computes a tensor into the whole of `buffer`."""
        out = placed(buffer, lazy.shape)
        if 0 in lazy.shape:
            return stored(buffer, lazy.shape)
        self.emit(
            Operator(name, lazy.shape, (), "", cast(lazy.expr, buffer.dtype), out, source=self.source)
        )
        return stored(buffer, lazy.shape)

    # ---- reading arguments -------------------------------------------------------------------
    def tensor(self, argument: Argument) -> Lazy:
        """A tensor argument, or a number as a lazy tensor without dims."""
        match argument:
            case Value():
                binding = self.env[argument]
                if isinstance(binding, ListView):
                    raise CodegenError("a list where a tensor is needed", location=self.location)
                return binding
            case bool():
                return constant(argument, DType.BOOL)
            case int():
                return constant(argument, DType.I64)
            case float():
                return constant(argument, DType.F32)
            case _:
                raise CodegenError(f"not a tensor: {argument!r}", location=self.location)

    def list(self, value: Value) -> ListView:
        binding = self.env[value]
        assert isinstance(binding, ListView)
        return binding

    def scalar(self, argument: Argument) -> Expr:
        """A number, or the one element of a tensor without dims, as an expression of registers."""
        lazy = self.tensor(argument)
        if lazy.rank and any(dim != 1 for dim in lazy.shape):
            raise CodegenError("a tensor with dims where a number is needed", location=self.location)
        return lazy.at(*([0] * lazy.rank))

    def register(self, argument: Argument, hint: str = "r") -> Reg:
        """A number held in a register (for conditions, which every unit tests)."""
        expr = self.scalar(argument)
        if isinstance(expr, Position) and len(expr.index.terms) == 1 and expr.index.const == 0:
            atom, factor = expr.index.terms[0]
            if isinstance(atom, Reg) and factor == 1:
                return atom
        return self.let(expr, hint)

    def index(self, argument: Argument) -> Index:
        """An integer argument as an index over registers; computed values are put into a register."""
        expr = self.scalar(argument)
        found = dynamic_index(expr)
        if any(isinstance(atom, Dynamic) for atom in found.atoms()):
            return Index.of(self.let(cast(expr, DType.I64), "i"))
        return found

    def position(self, argument: Argument, size: Extent, length: Extent = 1) -> Index:
        """Where `length` elements of a dim of `size` begin: negative positions count from the end.

        Checked in the run when it is not known to be in range.
        """
        index = self.index(argument)
        if index.is_const and isinstance(size, int) and isinstance(length, int):
            wrapped = index.const + size if index.const < 0 else index.const
            if not 0 <= wrapped <= size - length:
                self.check(Const(False, DType.BOOL), "index")
                return Index()
            return Index(const=wrapped)
        key = (index, size, length)
        if key not in self.positions:
            self.positions[key] = self._checked_position(index, size, length)
        return self.positions[key]

    def _checked_position(self, index: Index, size: Extent, length: Extent) -> Index:
        low, high = self.interval(index)
        room = Index.of(size) + Index.of(length) * -1
        if low is None or low < 0:
            zero = Const(0, DType.I64)
            value = Position(index)
            below = Apply("lt", (value, zero), DType.BOOL)
            wrapped = Apply("where", (below, Position(index + size), value), DType.I64)
            reg = self.let(wrapped, "i")
            self.ranges[reg] = (0, room.const if room.is_const else None)
            index = Index.of(reg)
            self.check(Apply("ge", (Position(index), zero), DType.BOOL), "index")
        if high is None or not room.is_const or high > room.const:
            self.check(Apply("le", (Position(index), Position(room)), DType.BOOL), "index")
        return index

    def interval(self, index: Index) -> tuple[int | None, int | None]:
        """The smallest and the largest value as far as the ranges of registers tell (None: unknown)."""
        low: int | None = index.const
        high: int | None = index.const
        for atom, factor in index.terms:
            bounds = self.ranges.get(atom, (None, None)) if isinstance(atom, Reg) else (None, None)
            first, last = bounds if factor > 0 else bounds[::-1]
            low = None if low is None or first is None else low + factor * first
            high = None if high is None or last is None else high + factor * last
        return low, high

    def check(self, condition: Expr, code: str, subject: int = 0) -> None:
        self.emit(Check(condition, code, subject))

    # ---- storing -----------------------------------------------------------------------------
    def settle(self, value: Value, lazy: Lazy) -> Lazy:
        """Binds the result of an op: kept lazy, or stored when that pays."""
        if not lazy.is_stored and self.should_store(value, lazy):
            lazy = self.store(lazy, self.output(value), value.hint or "map")
        self.env[value] = lazy
        return lazy

    def should_store(self, value: Value, lazy: Lazy) -> bool:
        if lazy.rank == 0 and not lazy.dtype.is_float:
            return False
        applies = count_applies(lazy.expr)
        if value in self.destinations or applies > MAX_FUSED_APPLIES:
            return True
        if isinstance(lazy.expr, Const | Position):
            return False
        if value in self.used_below:
            return not lazy.rank == 0 or applies > CHEAP_APPLIES
        return self.uses.get(value, 0) > 1 and not is_cheap(lazy.expr)

    def materialise(self, lazy: Lazy, hint: str = "t") -> Lazy:
        """The same tensor with every element a plain load."""
        if lazy.is_stored:
            return lazy
        return self.store(lazy, self.new_buffer(hint, lazy.dtype, lazy.shape), hint)

    def materialised(self, argument: Argument) -> Lazy:
        """A tensor argument with every element a plain load; later uses in this block see it stored."""
        lazy = self.tensor(argument)
        if lazy.is_stored:
            return lazy
        value = argument if isinstance(argument, Value) else None
        lazy = self.materialise(lazy, value.hint if value and value.hint else "t")
        if value is not None and self.home.get(value) is self.block:
            self.env[value] = lazy
        return lazy

    def contiguous(self, lazy: Lazy, hint: str = "t") -> Access:
        """The start of a row-major run of memory that holds the tensor; copied when it is not one yet."""
        base = contiguous_base(lazy)
        if base is not None:
            return base
        buffer = self.new_buffer(hint, lazy.dtype, lazy.shape)
        self.store(lazy, buffer, hint)
        return Access(buffer, buffer.shape, tuple(Index() for _ in buffer.shape))

    def whole(self, lazy: Lazy, hint: str = "t") -> Buffer:
        """A buffer that holds exactly the tensor, in row-major order."""
        buffer = whole_buffer(lazy)
        if buffer is not None and buffer.shape == lazy.shape:
            return buffer
        fresh = self.new_buffer(hint, lazy.dtype, lazy.shape)
        self.store(lazy, fresh, hint)
        return fresh

    def updatable(self, base: Value, result: Value) -> Buffer:
        """A buffer that holds `base` and may be changed in place into `result`."""
        lazy = self.tensor(base)
        buffer = whole_buffer(lazy)
        owned = self.home.get(base) is self.block and buffer is not None and buffer.kind == "local"
        if buffer is not None and self.later_uses.get(base, 0) <= 0:
            if buffer in self.mutable or (owned and result not in self.destinations):
                self.protect(buffer)
                return buffer
        fresh = self.output(result)
        self.store(lazy, fresh, result.hint or "copy")
        return fresh

    def protect(self, buffer: Buffer) -> None:
        """Before `buffer` changes in place: lazy values that read it and are still needed are stored.

        A rule therefore reads its other operands (`tensor`) after `updatable`, not before.
        """
        for value, binding in list(self.env.items()):
            needed = self.later_uses.get(value, 0) > 0 or value in self.operands
            if not isinstance(binding, Lazy) or not needed or whole_buffer(binding) == buffer:
                continue
            if any(load.access.buffer == buffer for load in loads(binding.expr)):
                hint = value.hint or "kept"
                self.env[value] = self.store(
                    binding, self.new_buffer(hint, binding.dtype, binding.shape), hint
                )

    # ---- blocks ------------------------------------------------------------------------------
    def ops(self, block: Block) -> None:
        from stretto.kernels.control import lower_control

        self.block = block
        for op in block.ops:
            self.location = op.location or self.location
            self.operands = op.operands
            for value in op.operands:
                self.later_uses[value] = self.later_uses.get(value, 0) - 1
            match op:
                case TensorOp():
                    self.tensor_op(op)
                case ConstantOp():
                    buffer = self.externals.constant(op.key, self.program.constants[op.key])
                    self.env[op.result] = stored(buffer)
                case LiteralOp():
                    kind = op.result.tensor.dtype
                    self.env[op.result] = Lazy((kind), (), cast(_literal(op.value), kind))
                case _:
                    lower_control(self, op)
                    self.block = block

    def tensor_op(self, op: TensorOp) -> None:
        from stretto.kernels.rules import RULES

        rule = RULES.get(op.target)
        if rule is None:
            self.library(op, "no native lowering")
            return
        results = rule(self, op)
        if results is None:
            self.library(op, "these arguments have no native lowering")
            return
        for value, lazy in zip(op.results, results, strict=True):
            self.settle(value, lazy)

    def library(self, op: TensorOp, reason: str) -> None:
        """A call into ATen on whole buffers."""
        outs = tuple(self.output(value) for value in op.results)
        args = tuple(self.library_argument(argument) for argument in op.args)
        kwargs = tuple((key, self.library_argument(item)) for key, item in op.kwargs)
        self.emit(LibraryCall(op.target, op.target, args, kwargs, outs, reason, self.source))
        for value, buffer in zip(op.results, outs, strict=True):
            self.env[value] = stored(buffer)

    def library_argument(self, argument: Argument):
        match argument:
            case Value():
                lazy = self.tensor(argument)
                if not lazy.shape and isinstance(lazy.expr, Const):
                    return lazy.expr.value
                return self.whole(lazy, argument.hint)
            case tuple():
                return tuple(self.library_argument(item) for item in argument)
            case _:
                return argument


def _literal(value: bool | int | float) -> Const:
    if isinstance(value, bool):
        return Const(value, DType.BOOL)
    return Const(value, DType.I64 if isinstance(value, int) else DType.F64)


TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh "
    "sigmoid erf erfc pow sqrt rsqrt div atan2 fmod remainder floordiv truncdiv".split()
)
"""Functions too dear to compute twice."""


def count_applies(expr: Expr) -> int:
    """Function applications in an expression, shared ones counted each time; stops counting at 1000."""
    match expr:
        case Apply(_, args, _):
            total = 1
            for arg in args:
                total += count_applies(arg)
                if total > 1000:
                    break
            return total
        case _:
            return 0


def is_cheap(expr: Expr) -> bool:
    """Cheap enough to compute at every use."""
    return count_applies(expr) <= CHEAP_APPLIES and not _has_transcendental(expr)


def _has_transcendental(expr: Expr) -> bool:
    match expr:
        case Apply(function, args, _):
            return function in TRANSCENDENTAL or any(_has_transcendental(arg) for arg in args)
        case _:
            return False


def count_uses(block: Block, lowering: Lowering) -> None:
    """Fills `uses`, `later_uses`, `home` and `used_below` for a block and its nested blocks."""
    for value in block.params:
        lowering.home[value] = block
    for op in block.ops:
        for value in op.results:
            lowering.home[value] = block
        _count(op.operands, block, lowering)
        for inner in op.blocks:
            count_uses(inner, lowering)
    _count(block.yields, block, lowering)


def _count(values: tuple[Value, ...], block: Block, lowering: Lowering) -> None:
    for value in values:
        lowering.uses[value] = lowering.uses.get(value, 0) + 1
        lowering.later_uses[value] = lowering.uses[value]
        if lowering.home.get(value) is not block:
            lowering.used_below.add(value)


def tensor_type(op: Op) -> TensorType:
    return op.result.tensor

"""The state of lowering one function of a Program to operators over buffers.

Tensor ops become lazy tensors (pointwise, views) or operators (reductions, contractions, ...),
by the rules of `operators`. A lazy value is stored if that pays or is needed: several
expensive uses, a use inside a loop, a result. Integers and flags without dims become registers,
which every unit computes for itself, so that control needs no round trip through a single unit.
An op without a rule becomes a library call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from stretto.device.costs import CostModel, count_applies
from stretto.device.expr import (
    SPLIT,
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Const,
    Expr,
    Extent,
    Index,
    Position,
    Reg,
    checks,
    dynamic_index,
    is_known,
    is_split,
    known_size,
    limit_register,
    loads,
    parts,
)
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import Combine, LibraryCall, Operator, operator_name, origin
from stretto.device.tree import Check, CheckCode, Leaf, Let, Node
from stretto.errors import CodegenError, NotLowered, SourceLocation
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.failure import Failure
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.size_bounds import at_most, maximum
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import symbols_of_types
from stretto.ir.types import Dim, DType, TensorType
from stretto.lowering.lazy import (
    Joint,
    Lazy,
    cast,
    constant,
    contiguous_base,
    memory_shape,
    placed,
    register_value,
    stored,
    whole_buffer,
)
from stretto.lowering.limits import Range, most
from stretto.lowering.lists.slots import Externals, ListSlots
from stretto.lowering.lists.storage import ListStorage
from stretto.lowering.row_results import Rows, RowTarget
from stretto.lowering.uses import Uses

MOST_ROOM = 1 << 22
"""Elements: a tensor of data-dependent size gets room for its maximum up to this; a larger one
grows."""
_MOST_APPLIES = 64
"""Most functions in the expression of a number: the code that works on expressions is recursive."""


LeftToTorch = tuple[str, ...] | frozenset[TensorOp]
"""Operators left to torch although a rule could lower them: names and patterns, or the ops
themselves."""


@dataclass(frozen=True, slots=True)
class ListView:
    """A list value: `length` items in `buffer` [capacity, *room], from `Lowering.base` on.

    item: the shape of the items; the buffer has room for the largest.
    """

    buffer: Buffer
    length: Index
    item: tuple[Extent, ...]


Binding = Lazy | ListView


def base_register(function: str, buffer: Buffer) -> Reg:
    """Return the parameter that holds where the lists of an activation begin in `buffer`."""
    return Reg(f"{function}.base{buffer.slot}")


@dataclass(slots=True)
class Lowering:
    """The state of lowering one function.

    lower_op: lowers one op; passed in by `lower_program.py`, which imports the rules and the
    control ops. recursive: the function may call itself, so only memory in its frame belongs to one
    activation. languages: those in which the machine accepts user kernels. library: what is
    left to torch. slots: the memory of the lists that functions take and return. bases: the
    stacks that this function uses. outer: the enclosing blocks that are being lowered, with the
    items emitted at their end so far. joints: the tensors that are parts of others. begun: the
    memory of those being put together. created: the block in which a buffer was created.
    mutable: buffers of carried values, and the blocks that update them in place. joined: the
    results of branches whose arms do so, and what they update. positions: positions that are
    already checked here. row_sources: maps results of functions to the parameters that they may
    be rows of. rows: targets of values that become such results. handed: for values that are a
    row or in memory, the register that distinguishes the two and the memory.
    """

    program: Program
    function: Function
    externals: Externals
    lists: ListStorage
    lower_op: Callable[[Lowering, Op], None]
    costs: CostModel
    recursive: bool = False
    languages: frozenset[str] = frozenset()
    slots: ListSlots = field(default_factory=ListSlots)
    bases: set[Buffer] = field(default_factory=set[Buffer])
    uses: Uses = field(default_factory=Uses)
    env: dict[Value, Binding] = field(default_factory=dict[Value, Binding])
    symbols: dict[Dim, Extent] = field(default_factory=dict[Dim, Extent])
    destinations: dict[Value, Buffer] = field(default_factory=dict[Value, Buffer])
    joints: dict[Value, Joint] = field(default_factory=dict[Value, Joint])
    begun: dict[Value, Lazy] = field(default_factory=dict[Value, Lazy])
    locals: list[Buffer] = field(default_factory=list[Buffer])
    items: list[LeafItem] = field(default_factory=list[LeafItem])
    nodes: list[Node[Items]] = field(default_factory=list[Node[Items]])
    outer: list[tuple[Block, list[LeafItem]]] = field(
        default_factory=list[tuple[Block, list[LeafItem]]]
    )
    ranges: dict[Reg, Range] = field(default_factory=dict[Reg, Range])
    positions: dict[tuple[Index, Extent, Extent, bool], Index] = field(
        default_factory=dict[tuple[Index, Extent, Extent, bool], Index]
    )
    created: dict[Buffer, Block] = field(default_factory=dict[Buffer, Block])
    mutable: dict[Buffer, set[Block]] = field(default_factory=dict[Buffer, set[Block]])
    joined: dict[Value, Value] = field(default_factory=dict[Value, Value])
    block: Block = field(default_factory=Block)
    operands: tuple[Value, ...] = ()
    location: SourceLocation | None = None
    operator: str = ""
    counter: int = 0
    extras: int = 0
    is_extra: bool = False
    library: LeftToTorch = ()
    row_sources: Rows = field(default_factory=dict[tuple[str, int], int])
    rows: dict[Value, RowTarget] = field(default_factory=dict[Value, RowTarget])
    handed: dict[Value, tuple[Reg, Buffer]] = field(default_factory=dict[Value, tuple[Reg, Buffer]])

    # ---- names and buffers -------------------------------------------------------------------
    def fresh(self, hint: str) -> str:
        """Return a new unique name."""
        if self.is_extra:
            self.extras += 1
            return f"{self.function.name}.{hint or 'v'}.x{self.extras}"
        self.counter += 1
        return f"{self.function.name}.{hint or 'v'}.{self.counter}"

    @contextmanager
    def extra(self, enabled: bool = True) -> Generator[None]:
        """Number names created meanwhile separately, because only some machines create them: the
        other names, by which branches and loops of one machine's program are found in
        another's, stay the same."""
        before, self.is_extra = self.is_extra, enabled
        yield
        self.is_extra = before

    def new_reg(self, hint: str, dtype: DType = DType.I64) -> Reg:
        return Reg(self.fresh(hint), dtype)

    def new_buffer(
        self, hint: str, dtype: DType, shape: tuple[Extent, ...], kind: str = "local"
    ) -> Buffer:
        """Return a new buffer in the frame. A data-dependent dim becomes its first one (see
        `placed`), and the frame has room for the maximum of that dim. If the maximum is unknown
        or large, the buffer is one that grows."""
        shape = memory_shape(shape)
        if not all(map(is_known, shape)):
            room = self._room(shape)
            if room is None:
                return self.new_decided(hint, dtype, shape)
            shape, kind = room, "items"
        buffer = Buffer(self.fresh(hint), dtype, shape, kind)
        self.locals.append(buffer)
        self.created[buffer] = self.block
        return buffer

    def new_result(self, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """Return memory outside the frame for a result with a data-dependent dim."""
        shape = memory_shape(shape)
        room = self._room(shape)
        if room is None or not all(isinstance(dim, int) for dim in room):
            return self.new_decided("out", dtype, shape)
        return self.externals.add(self.fresh("out"), dtype, room, "list")

    def new_decided(self, hint: str, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """Return memory that grows, for a tensor with a data-dependent number of rows. Further
        data-dependent dims have room for their maximum."""
        first, *others = memory_shape(shape)
        known = tuple(self._room_of(dim) for dim in others)
        if None in known:
            raise NotLowered(
                "a tensor has two dims that data decide, and nothing tells how large the second "
                "can be",
                location=self.location,
                remedy="take it as a part of a tensor of known size: `x[:n]` instead of "
                "`torch.zeros(n, m)`",
            )
        inner = tuple(size.dim for size in known if size is not None)
        buffer = self.new_growing(hint, dtype, (first, *inner))
        self.check_room(buffer, Index.of(first), tells=True)
        return buffer

    def room(self, shape: tuple[Extent, ...]) -> tuple[Extent, ...] | None:
        """Return the maximum of each dim; None if one is unknown."""
        room = [self._room_of(dim) for dim in shape]
        return None if None in room else tuple(size.dim for size in room if size is not None)

    def _room(self, shape: tuple[Extent, ...]) -> tuple[int | Size, ...] | None:
        """Return the maximum of each dim; None if one is unknown, or if that takes much memory."""
        room: list[int | Size] = []
        for dim in shape:
            most = self._room_of(dim)
            if most is None:
                return None
            room.append(most.dim)
        size = known_size(room)
        decided = sum(not is_known(dim) for dim in shape)
        is_little = size <= MOST_ROOM if isinstance(size, int) else decided == 1
        return tuple(room) if is_little else None

    def _room_of(self, dim: Extent) -> Size | None:
        return self.most(Index.of(dim)) if isinstance(dim, Reg) else Size.of(dim)

    def most(self, size: Index) -> Size | None:
        """Return an upper limit of a size in terms of sizes known at the call; None if there is
        none."""
        return most(size, self.ranges)

    def has_symbols(self, size: Size) -> bool:
        """True if the values of all symbols of a size are known here."""
        return all(Size.of(symbol) in self.symbols for symbol in size.symbols)

    def new_growing(self, hint: str, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """Return memory outside the frame that all activations share and the runtime can grow."""
        if self.recursive:
            raise NotLowered(
                f"`{self.function.name}` is recursive, and makes a tensor whose size is known only "
                "at run time",
                location=self.location,
                remedy="make it in a function that is not recursive, or keep its rows in a list",
            )
        return self.externals.add(self.fresh(hint), dtype, shape, "list")

    def new_list(self, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """Return memory for a list that the runtime can grow, with a part per activation."""
        if self.recursive:
            return self.externals.stack(self.fresh("list"), dtype, shape)
        return self.new_growing("list", dtype, shape)

    def base(self, buffer: Buffer) -> Index:
        """Return where the lists of this activation begin in `buffer`; below are those of its
        callers."""
        if self.function is self.program.main or buffer not in self.externals.stacks:
            return Index()
        self.bases.add(buffer)
        register = base_register(self.function.name, buffer)
        self.ranges[register] = (0, None)
        return Index.of(register)

    def check_room(self, buffer: Buffer, length: Index, *, tells: bool = False) -> None:
        """Stop the run if `length` items do not fit. It starts again with room for these items if
        `tells` is set, else with somewhat more room."""
        if isinstance(buffer.shape[0], Reg):
            limit = Position(Index.of(limit_register(buffer.slot)))
            fits = Apply("le", (Position(length), limit), DType.BOOL)
            wanted = Position(length) if tells else None
            self.check(fits, CheckCode.LIST_FULL, buffer.slot, wanted)

    def output(self, value: Value) -> Buffer:
        """Return the buffer for `value`: its assigned destination or a new local buffer."""
        if value in self.destinations:
            buffer = self.destinations[value]
            if buffer in self.mutable:
                self.protect(buffer)
            return buffer
        return self.new_buffer(value.hint, value.tensor.dtype, self.extents(value.tensor.shape))

    def extents(self, shape: tuple[Dim, ...]) -> tuple[Extent, ...]:
        return tuple(self.extent(dim) for dim in shape)

    def extent(self, dim: Dim) -> Extent:
        """Return the extent of a dim. A formula over lengths of lists is put into a register."""
        if isinstance(dim, int):
            return dim
        if dim not in self.symbols:
            formula = self.formula(dim)
            if any(isinstance(atom, Reg) for atom in formula.atoms()):
                reg = self.let(Position(formula), "size")
                most = self.most(formula)
                self.ranges[reg] = (0, None if most is None else most.dim)
                self.symbols[dim] = reg
            else:
                self.symbols[dim] = formula.dim
        return self.symbols[dim]

    def known_extents(self, kind: TensorType) -> tuple[Extent, ...] | None:
        """Return the extents of a tensor if the function's parameters determine them, else None."""
        return self.extents(kind.shape) if symbols_of_types((kind,)) <= self.own_symbols else None

    @property
    def own_symbols(self) -> set[Symbol]:
        """Symbols of the function's parameters."""
        return symbols_of_types(value.type for value in self.function.params)

    def formula(self, dim: Size) -> Index:
        """Return a formula over symbols as an index over the registers that hold them."""

        def lookup(symbol: Symbol) -> Index:
            found = self.symbols.get(Size.of(symbol))
            if found is None:
                message = f"the size {dim} cannot be computed in the run"
                raise CodegenError(message, location=self.location)
            return Index.of(found)

        return Index.of(dim.evaluate(lookup, maximum))

    @property
    def source(self) -> str:
        """The current source line as "file:line"; "" if it is unknown."""
        return f"{self.location.file}:{self.location.line}" if self.location else ""

    def name_of(self, rule: str) -> str:
        """Return the name of the current op with its location; `rule` replaces the name of a non-
        operator."""
        return origin(self.location, self.operator or rule)

    # ---- emitting ----------------------------------------------------------------------------
    def emit(self, item: LeafItem) -> None:
        """Append an item to the current leaf."""
        if isinstance(item, Operator | LibraryCall) and not item.origin:
            item = replace(item, origin=self.name_of(item.name))
        self.items.append(item)

    def emit_node(self, node: Node[Items]) -> None:
        """Emit a control node after everything emitted so far."""
        self.flush()
        self.nodes.append(node)

    def flush(self) -> None:
        """End the current leaf."""
        if self.items:
            self.nodes.append(Leaf(tuple(self.items)))
            self.items = []

    def let(self, value: Expr, hint: str = "r", usual: int | None = None) -> Reg:
        """Emit the assignment of a value to a new register, and return the register."""
        reg = replace(self.new_reg(hint, value.dtype), usual=usual)
        self.emit(Let(reg, value))
        return reg

    def check(
        self, condition: Expr, code: CheckCode, subject: int = 0, detail: Expr | None = None
    ) -> None:
        """Emit a check, which stops the run unless `condition` holds."""
        self.emit(Check(condition, code, subject, detail))

    def stop(self, failure: Failure) -> int:
        """Return the number of a check that raises `failure` at the current source line."""
        return self.externals.stop(failure, self.location)

    def store(self, lazy: Lazy, buffer: Buffer, name: str = "copy") -> Lazy:
        """Store a tensor into the whole of `buffer`; return the stored tensor."""
        value, out = cast(lazy.expr, buffer.dtype), placed(buffer, lazy.shape)
        if 0 not in lazy.shape:
            made_by = "" if lazy.is_stored else lazy.origin
            dims, source = lazy.shape, self.source
            self.emit(Operator(name, dims, (), Combine.NONE, value, out, False, source, made_by))
        return stored(buffer, lazy.shape)

    def write(
        self, name: str, dims: tuple[Extent, ...], value: Expr, out: Access, adds: bool = False
    ) -> None:
        """Emit the operator that stores `value` at `out`, for each element of `dims`."""
        if 0 not in dims:
            self.emit(Operator(name, dims, (), Combine.NONE, value, out, adds, self.source))

    # ---- reading arguments -------------------------------------------------------------------
    def tensor(self, argument: Argument) -> Lazy:
        """Return a tensor argument, or a number as a lazy tensor without dims."""
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
            case Size():
                return Lazy(DType.I64, (), Position(Index.of(self.extent(argument))))
            case _:
                raise CodegenError(f"not a tensor: {argument!r}", location=self.location)

    def list(self, value: Value) -> ListView:
        """Return the list that a value is bound to."""
        binding = self.env[value]
        assert isinstance(binding, ListView)
        return binding

    def scalar(self, argument: Argument) -> Expr:
        """Return a number, or the only element of a tensor, as an expression of registers."""
        lazy = self.tensor(argument)
        if any(dim != 1 for dim in lazy.shape):
            raise CodegenError("a tensor with dims, not a number", location=self.location)
        return lazy.at(*([0] * lazy.rank))

    def register(self, argument: Argument, hint: str = "r") -> Reg:
        """Return a register that holds a number (for conditions, which every unit tests)."""
        expr = self.scalar(argument)
        if isinstance(expr, Position) and len(expr.index.terms) == 1 and expr.index.const == 0:
            atom, factor = expr.index.terms[0]
            if isinstance(atom, Reg) and factor == 1:
                return atom
        return self.let(expr, hint)

    def index(self, argument: Argument) -> Index:
        """Return an integer argument as an index over registers, computed into one if needed."""
        expr = self.scalar(argument)
        found = dynamic_index(expr)
        if any(isinstance(atom, ComputedPosition) for atom in found.atoms()):
            return Index.of(self.let(cast(expr, DType.I64), "i"))
        return found

    def position(
        self,
        argument: Argument,
        size: Extent,
        failure: Failure,
        length: Extent = 1,
        wraps: bool = True,
    ) -> Index:
        """Return where `length` elements of a dim of `size` begin; negative positions count
        from the end if `wraps`.

        A position that is not known to be in range is checked in the run, which then raises
        `failure`.
        """
        index = self.index(argument)
        if index.is_const and isinstance(size, int) and isinstance(length, int):
            wrapped = index.const + size if wraps and index.const < 0 else index.const
            if not 0 <= wrapped <= size - length:
                detail = Const(index.const, DType.I64)
                self.check(Const(False, DType.BOOL), CheckCode.INDEX, self.stop(failure), detail)
                return Index()
            return Index(const=wrapped)
        key = (index, size, length, wraps)
        if key not in self.positions:
            self.positions[key] = self._checked_position(index, size, length, failure, wraps)
        return self.positions[key]

    def split(self, argument: Argument, size: Extent, failure: Failure, length: Extent) -> Reg:
        """Return a `position` in a register that separates accesses (`expr.SPLIT`): elements from
        there on are disjoint from those before. It is checked to be at least 1."""
        start = self.position(argument, size, failure, length)
        known = start.terms[0][0] if len(start.terms) == 1 else None
        if isinstance(known, Reg) and is_split(known) and start == Index.of(known):
            return known
        behind = Apply("ge", (Position(start), Const(1, DType.I64)), DType.BOOL)
        self.check(behind, CheckCode.INDEX, self.stop(failure), Position(start))
        reg = self.let(Position(start), SPLIT)
        self.ranges[reg] = (1, None)
        self.positions[self.index(argument), size, length, True] = Index.of(reg)
        return reg

    def _checked_position(
        self, index: Index, size: Extent, length: Extent, failure: Failure, wraps: bool
    ) -> Index:
        low, high = self.interval(index)
        room = Index.of(size) + Index.of(length) * -1
        zero, value = Const(0, DType.I64), Position(index)

        def require(function: str, bound: Expr) -> None:
            holds = Apply(function, (Position(index), bound), DType.BOOL)
            self.check(holds, CheckCode.INDEX, self.stop(failure), value)

        if not wraps and (low is None or not at_most(0, low)):
            require("ge", zero)
        elif low is None or not at_most(0, low):
            below = Apply("lt", (value, zero), DType.BOOL)
            wrapped = Apply("where", (below, Position(index + size), value), DType.I64)
            reg = self.let(wrapped, "i")
            self.ranges[reg] = (0, room.const if room.is_const else None)
            index = Index.of(reg)
            require("ge", zero)
        if high is None or not at_most(high, room):
            require("le", Position(room))
            if not any(isinstance(atom, Reg) for atom in index.atoms()):
                # Only this check ensures the range, and proofs trust checks about registers only.
                index = Index.of(self.let(Position(index), "i"))
        return index

    def interval(self, index: Index) -> tuple[Size | None, Size | None]:
        """Return the smallest and the largest value by the ranges of registers; None if unknown."""
        low: Size | None = Size(const=index.const)
        high: Size | None = low
        for atom, factor in index.terms:
            match atom:
                case Symbol():
                    bounds = (Size.of(atom), Size.of(atom))
                case Reg():
                    bounds = self.ranges.get(atom, (None, None))
                case _:
                    bounds = (None, None)
            first, last = bounds if factor > 0 else bounds[::-1]
            low = None if low is None or first is None else low + Size.of(first) * factor
            high = None if high is None or last is None else high + Size.of(last) * factor
        return low, high

    # ---- storing -----------------------------------------------------------------------------
    def settle(self, value: Value, lazy: Lazy) -> Lazy:
        """Bind the result of an op to `value`: lazily, or stored if that pays."""
        if lazy.rank == 0 and not lazy.dtype.is_float:
            if self.needs_register(value, lazy):
                lazy = register_value(self.let(lazy.expr, value.hint))
            elif self.looks_up(value, lazy):
                with self.extra():
                    lazy = register_value(self.let(lazy.expr, value.hint))
        elif self._checks_more_than_is_read(value, lazy) or (
            not lazy.is_stored and self.should_store(value, lazy)
        ):
            lazy = self.store(lazy, self.output(value), value.hint or "map")
        if not lazy.origin:
            lazy = replace(lazy, origin=self.name_of(value.hint or "map"))
        self.env[value] = lazy
        return lazy

    def _checks_more_than_is_read(self, value: Value, lazy: Lazy) -> bool:
        """True if the value checks positions that its readers may never compute, because they read
        only part of the tensor or are on another control path."""
        is_partial = value in self.uses.partly or value in self.uses.below
        return is_partial and bool(checks(parts(lazy.expr)))

    def needs_register(self, value: Value, lazy: Lazy) -> bool:
        """True if a number is expensive and read more than once, or too long for one expression."""
        applies = count_applies(lazy.expr)
        if applies > _MOST_APPLIES:
            return True
        return applies > self.costs.cheap_applies and self.uses.total.get(value, 0) > 1

    def looks_up(self, value: Value, lazy: Lazy) -> bool:
        """True if the number is loaded from memory, and a later branch or loop reads it or the
        block yields it."""
        is_awaited = value in self.uses.below or value in self.block.yields
        if not is_awaited or not self.costs.early_lookups:
            return False
        return next(loads(lazy.expr), None) is not None and not checks(parts(lazy.expr))

    def should_store(self, value: Value, lazy: Lazy) -> bool:
        """True if a tensor should be stored: it is a result, long, read in nested blocks, or
        expensive and read more than once."""
        applies = count_applies(lazy.expr)
        if value in self.destinations or applies > self.costs.most_applies:
            return True
        if isinstance(lazy.expr, Const | Position):
            return False
        if value in self.uses.below:
            return lazy.rank != 0 or applies > self.costs.cheap_applies
        return self.uses.total.get(value, 0) > 1 and not self.costs.is_cheap(lazy.expr)

    def materialise(self, lazy: Lazy, hint: str = "t") -> Lazy:
        """Return the same tensor with every element a plain load."""
        if lazy.is_stored:
            return lazy
        return self.store(lazy, self.new_buffer(hint, lazy.dtype, lazy.shape), hint)

    def materialised(self, argument: Argument) -> Lazy:
        """Store a tensor unless its elements are plain loads; later uses in this block read it."""
        lazy = self.tensor(argument)
        if lazy.is_stored:
            return lazy
        value = argument if isinstance(argument, Value) else None
        lazy = self.materialise(lazy, value.hint if value and value.hint else "t")
        if value is not None and self.uses.home.get(value) is self.block:
            self.env[value] = lazy
        return lazy

    def contiguous(self, lazy: Lazy, hint: str = "t") -> Access:
        """Return the start of a contiguous, row-major range of memory with the tensor, copying it
        if needed."""
        base = contiguous_base(lazy)
        if base is not None and base.offset.is_affine:
            return base
        buffer = self.new_buffer(hint, lazy.dtype, lazy.shape)
        self.store(lazy, buffer, hint)
        return Access(buffer, buffer.shape, tuple(Index() for _ in buffer.shape))

    def whole(self, lazy: Lazy, hint: str = "t") -> Buffer:
        """Return a buffer that holds exactly the tensor, in row-major order."""
        buffer = whole_buffer(lazy)
        if buffer is not None and buffer.shape == lazy.shape:
            return buffer
        fresh = self.new_whole(hint, lazy.dtype, lazy.shape)
        self.store(lazy, fresh, hint)
        return fresh

    def new_whole(self, hint: str, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """Return a buffer with exactly the dims of a tensor, for a library call."""
        if all(map(is_known, shape)):
            return self.new_buffer(hint, dtype, shape)
        return self.new_decided(hint, dtype, shape)

    # ---- changing in place -------------------------------------------------------------------
    def updatable(self, base: Value, result: Value) -> Buffer:
        """Return a buffer that holds `base` and may be changed in place into `result`."""
        if result not in self.destinations or whole_buffer(self.tensor(base)) in self.mutable:
            buffer = self.changeable(base)
            if buffer is not None:
                return buffer
        fresh = self.output(result)
        self.store(self.tensor(base), fresh, result.hint or "copy")
        return fresh

    def changeable(self, base: Value) -> Buffer | None:
        """Return the buffer that holds `base` if it may be changed: nothing reads `base` later,
        and the buffer belongs to this iteration of the current block. Else None."""
        buffer = whole_buffer(self.tensor(base))
        if buffer is None or self.uses.is_needed(base):
            return None
        known = self.mutable[buffer] if buffer in self.mutable else {self.created.get(buffer)}
        if self.block not in known:
            return None
        self.protect(buffer, base)
        return buffer

    def protect(self, buffer: Buffer, base: Value | None = None) -> None:
        """Before `buffer` changes, store lazy values that read it and are still needed.

        `base` is the value that changes. A rule must therefore read its other operands after
        `updatable`.
        """
        for value, binding in list(self.env.items()):
            if value is base or not isinstance(binding, Lazy):
                continue
            if not self.uses.is_needed(value) and value not in self.operands:
                continue
            if any(load.access.buffer == buffer for load in loads(binding.expr)):
                self._keep(value, binding)

    def _keep(self, value: Value, lazy: Lazy) -> None:
        """Store a lazy value after the items emitted so far in the block that defines it."""
        here = self.items
        home = self.uses.home.get(value)
        self.items = next((items for block, items in self.outer if block is home), here)
        hint = value.hint or "kept"
        self.env[value] = self.store(lazy, self.new_buffer(hint, lazy.dtype, lazy.shape), hint)
        self.items = here

    # ---- blocks ------------------------------------------------------------------------------
    def ops(self, block: Block) -> None:
        """Lower the ops of a block in order."""
        self.block = block
        for op in block.ops:
            self.location = op.location or self.location
            self.operator = operator_name(op.target) if isinstance(op, TensorOp) else ""
            self.operands = op.operands
            self.uses.take(op.operands)
            self.lower_op(self, op)
            self.block = block
        self.operands, self.operator = (), ""

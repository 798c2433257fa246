"""The op classes of a Program. Their fields declare operands, attributes and nested blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from stretto.ir.core import Argument, Block, Op, Value
from stretto.ir.failure import Failure
from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import Size, Symbol, ceil_div


@dataclass(eq=False, slots=True)
class ConstantOp(Op):
    """A tensor of `Program.constants` (a parameter, a buffer or a tensor of a closure)."""

    key: str
    name: ClassVar[str] = "constant"


@dataclass(eq=False, slots=True)
class LiteralOp(Op):
    """A number as a tensor without dims; its dtype is that of the result."""

    value: bool | int | float
    name: ClassVar[str] = "literal"


@dataclass(eq=False, slots=True)
class TensorOp(Op):
    """A functional ATen overload such as `aten.add.Tensor`; arguments follow its schema.

    A Value in place of an int or float argument is a scalar that is known only at run time,
    such as the position in `aten.select.int(%x, 0, %i)`. Besides ATen, `stretto.narrow(%x, dim,
    %start, length)` is a slice of static length at a run-time position, and
    `stretto.narrow_scatter(%x, %src, dim, %start)` is its inverse. Their positions must be in
    range; negative ones count from the end, as in Python.
    """

    target: str
    args: tuple[Argument, ...] = ()
    kwargs: tuple[tuple[str, Argument], ...] = ()
    name: ClassVar[str] = "tensor"


@dataclass(eq=False, slots=True)
class SizeOp(Op):
    """Binds a symbol to `number`, an i64 without dims that is known only at run time.

    `size` is the symbol as a Size. Checks before this op must ensure that the number is in the
    symbol's range. The result is the number itself, which is live as long as the symbol is
    used. most: an upper limit of the number that is known earlier; None if there is none.
    """

    number: Value
    size: Size
    most: Size | None = None
    name: ClassVar[str] = "size"

    @property
    def symbol(self) -> Symbol:
        symbol = self.size.symbol
        assert symbol is not None
        return symbol


@dataclass(eq=False, slots=True)
class ListNewOp(Op):
    """A new list of the given items, possibly empty."""

    items: tuple[Value, ...] = ()
    name: ClassVar[str] = "list.new"


@dataclass(eq=False, slots=True)
class ListPushOp(Op):
    """The list with `item` appended."""

    list: Value
    item: Value
    name: ClassVar[str] = "list.push"


@dataclass(eq=False, slots=True)
class ListExtendOp(Op):
    """The list with the slices of `rows` along its first dim appended in order."""

    list: Value
    rows: Value
    name: ClassVar[str] = "list.extend"


@dataclass(eq=False, slots=True)
class ListGetOp(Op):
    """Item `index` (i64 without dims; negative counts from the end). Stops the run if out of
    range."""

    list: Value
    index: Value
    name: ClassVar[str] = "list.get"


@dataclass(eq=False, slots=True)
class ListSetOp(Op):
    """The list with item `index` replaced. Stops the run if the index is out of range."""

    list: Value
    index: Value
    item: Value
    name: ClassVar[str] = "list.set"


@dataclass(eq=False, slots=True)
class ListPopOp(Op):
    """Two results: the list without its last item, and that item. Stops the run if the list is
    empty."""

    list: Value
    name: ClassVar[str] = "list.pop"


@dataclass(eq=False, slots=True)
class ListLengthOp(Op):
    """The number of items, an i64 without dims."""

    list: Value
    name: ClassVar[str] = "list.length"


@dataclass(eq=False, slots=True)
class ListStackOp(Op):
    """All items as one tensor with a new leading dim.

    If the length is known (an int, a formula, or a symbol of the function's parameters), the
    leading dim of the result type is that int or Size, and the length must be equal to it.
    Otherwise it is another Symbol as a Size, which this op binds; several lists of equal length may
    bind the same one. An empty list stops the run unless the range of that Size begins at 0.
    """

    list: Value
    name: ClassVar[str] = "list.stack"


@dataclass(eq=False, slots=True)
class CheckOp(Op):
    """Stops the run with `failure` unless `condition`, a bool without dims, holds.

    `detail`, if not None, is an i64 without dims that the message shows. The op has no results
    but is an effect: it runs exactly when control reaches it, and if it fails, no later effect
    of the program is visible outside.
    """

    condition: Value
    failure: Failure
    detail: Value | None = None
    name: ClassVar[str] = "check"


@dataclass(eq=False, slots=True)
class IfOp(Op):
    """Runs one of two blocks without parameters; the op's results are the values it yields.

    The condition is a bool without dims.
    """

    condition: Value
    then: Block
    orelse: Block
    name: ClassVar[str] = "if"


@dataclass(eq=False, slots=True)
class WhileOp(Op):
    """Carried values start as `inits`; `condition` maps them to a flag, `body` to their next
    values."""

    inits: tuple[Value, ...]
    condition: Block
    body: Block
    name: ClassVar[str] = "while"


@dataclass(eq=False, slots=True)
class ForOp(Op):
    """A counted loop; `body` takes the index and then the carried values. Bounds are as in `range`.

    `start` and `stop` are ints, sizes or i64 values without dims; `step` is a nonzero int.
    independent: no iteration accesses an element of a carried tensor that another one writes, and
    no two iterations take the same path through the body's branches, so that each computes its own
    tensors. The creator of the op guarantees this: it follows from the data that the program is
    given. parallel: iterations may run at the same time. The only thing that an iteration does to a
    carried tensor is to update the row whose number is the index, by one `stretto.narrow_scatter`
    along dim 0.
    """

    start: int | Size | Value
    stop: int | Size | Value
    step: int
    inits: tuple[Value, ...]
    body: Block
    independent: bool = field(kw_only=True, default=False)
    parallel: bool = field(kw_only=True, default=False)
    name: ClassVar[str] = "for"

    @property
    def index(self) -> Value:
        return self.body.params[0]

    @property
    def carried(self) -> tuple[Value, ...]:
        return self.body.params[1:]

    def trip_count(self) -> int | None:
        """Return the number of iterations if both bounds are ints, else None."""
        if isinstance(self.start, int) and isinstance(self.stop, int):
            return len(range(self.start, self.stop, self.step))
        return None

    def trips(self) -> int | Size | None:
        """Return the number of iterations as a size; None if a bound is known only at run time."""
        if isinstance(self.start, Value) or isinstance(self.stop, Value):
            return None
        ends = (self.start, self.stop) if self.step > 0 else (self.stop, self.start)
        return maximum(0, ceil_div(Size.of(ends[1]) - ends[0], abs(self.step))).dim


@dataclass(eq=False, slots=True)
class CallOp(Op):
    """A call of a function of the Program by name, possibly recursive."""

    function: str
    arguments: tuple[Value, ...]
    name: ClassVar[str] = "call"

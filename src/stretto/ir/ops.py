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
    """A tensor of `Program.constants` (a parameter, a buffer, a closure's tensor)."""

    key: str
    name: ClassVar[str] = "constant"


@dataclass(eq=False, slots=True)
class LiteralOp(Op):
    """A number as a tensor without dims; its dtype is that of the result."""

    value: bool | int | float
    name: ClassVar[str] = "literal"


@dataclass(eq=False, slots=True)
class TensorOp(Op):
    """A functional ATen overload as `aten.add.Tensor`; `args` follow its schema, keywords by name.

    A Value in the place of an int or float argument is a scalar known only at run time, as the
    position in `aten.select.int(%x, 0, %i)`. Besides ATen, `stretto.narrow(%x, dim, %start,
    length)` is a slice of static length at a run-time position, and `stretto.narrow_scatter(%x,
    %src, dim, %start)` its inverse (positions must lie in range; negative ones count from the
    end, as in Python).
    """

    target: str
    args: tuple[Argument, ...] = ()
    kwargs: tuple[tuple[str, Argument], ...] = ()
    name: ClassVar[str] = "tensor"


@dataclass(eq=False, slots=True)
class SizeOp(Op):
    """Binds a symbol to `number`, an i64 without dims that is known in the run only.

    `size` is the symbol as a Size. The number must be in the symbol's range, which checks before
    this op see to. The result is the number itself: it is alive as long as the symbol is used.
    most: a size that is known before, and that the number does not exceed.
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
    """An empty list, or one with the given items."""

    items: tuple[Value, ...] = ()
    name: ClassVar[str] = "list.new"


@dataclass(eq=False, slots=True)
class ListPushOp(Op):
    """The list with `item` at its end."""

    list: Value
    item: Value
    name: ClassVar[str] = "list.push"


@dataclass(eq=False, slots=True)
class ListExtendOp(Op):
    """The list with the rows of `rows` at its end: what it has along its first dim, in order."""

    list: Value
    rows: Value
    name: ClassVar[str] = "list.extend"


@dataclass(eq=False, slots=True)
class ListGetOp(Op):
    """Item `index` (i64 without dims; negative counts from the end). Out of range stops the run."""

    list: Value
    index: Value
    name: ClassVar[str] = "list.get"


@dataclass(eq=False, slots=True)
class ListSetOp(Op):
    """The list with item `index` replaced. Out of range stops the run."""

    list: Value
    index: Value
    item: Value
    name: ClassVar[str] = "list.set"


@dataclass(eq=False, slots=True)
class ListPopOp(Op):
    """Two results: the list without its last item, and that item. An empty list stops the run."""

    list: Value
    name: ClassVar[str] = "list.pop"


@dataclass(eq=False, slots=True)
class ListLengthOp(Op):
    """The number of items, i64 without dims."""

    list: Value
    name: ClassVar[str] = "list.length"


@dataclass(eq=False, slots=True)
class ListStackOp(Op):
    """All items as one tensor with a new leading dim.

    The leading dim of the result type is an int or a Size where the length is known: a formula, or
    a symbol of the function's parameters. The length must then be equal to it. Or else it is
    another Symbol as Size, which this op binds; several lists of one length may bind the same one.
    An empty list stops the run, unless the range of that Size begins at 0.
    """

    list: Value
    name: ClassVar[str] = "list.stack"


@dataclass(eq=False, slots=True)
class CheckOp(Op):
    """Stops the run with `failure` unless `condition`, a bool without dims, holds.

    `detail`, where given, is an i64 without dims that the message shows. The op has no results; it
    is an effect: it runs exactly when control comes to it, and nothing that follows it is seen
    outside of the program when it does not hold.
    """

    condition: Value
    failure: Failure
    detail: Value | None = None
    name: ClassVar[str] = "check"


@dataclass(eq=False, slots=True)
class IfOp(Op):
    """Runs one of two blocks without parameters; the results are what it yields.

    The condition is a bool without dims.
    """

    condition: Value
    then: Block
    orelse: Block
    name: ClassVar[str] = "if"


@dataclass(eq=False, slots=True)
class WhileOp(Op):
    """Carried values start as `inits`; `condition` maps them to a flag, `body` to the next ones."""

    inits: tuple[Value, ...]
    condition: Block
    body: Block
    name: ClassVar[str] = "while"


@dataclass(eq=False, slots=True)
class ForOp(Op):
    """`body` has the index as first parameter, then the carried values. Bounds as in `range`.

    `start` and `stop` are ints, sizes or i64 values without dims; `step` is an int other than 0.
    independent: no iteration reads or writes an element of a carried tensor that another one
    writes, and no two take the same way through the body's branches, so that each makes tensors of
    its own. Whoever makes the op says so: it follows from the data that the program is given.
    parallel: iterations may run at the same time. All that an iteration does to a carried tensor is
    to update the row whose number is the index, by one `stretto.narrow_scatter` along dim 0.
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
        """The number of iterations when the bounds are ints, else None."""
        if isinstance(self.start, int) and isinstance(self.stop, int):
            return len(range(self.start, self.stop, self.step))
        return None

    def trips(self) -> int | Size | None:
        """The number of iterations as a size; None where only the run knows a bound."""
        if isinstance(self.start, Value) or isinstance(self.stop, Value):
            return None
        ends = (self.start, self.stop) if self.step > 0 else (self.stop, self.start)
        return maximum(0, ceil_div(Size.of(ends[1]) - ends[0], abs(self.step))).dim


@dataclass(eq=False, slots=True)
class CallOp(Op):
    """A call of a function of the Program by name; recursion allowed."""

    function: str
    arguments: tuple[Value, ...]
    name: ClassVar[str] = "call"

"""Build Triton terms from expressions and positions, for scalars and for blocks of lanes.

Values of f16 and bf16 are rounded fp32; only memory holds the 16-bit types. A bool is an int1, in
memory an int8. Every subexpression gets one name. Both arms of `where` are computed: the loads of
an arm are masked by its condition.

A position has a scalar part, which is added to the pointer, and a part that differs from lane to
lane, which stays in 32 bits where the sizes allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce

from stretto.device.expr import (
    Access,
    Apply,
    Atom,
    Buffer,
    ComputedPosition,
    Const,
    Expr,
    Index,
    Load,
    Position,
    Reg,
    size_register,
)
from stretto.device.regions import Interval, index_range
from stretto.ir.sizes import (
    Maximum,
    Product,
    Quotient,
    Remainder,
    Size,
    Symbol,
    Var,
)
from stretto.ir.types import DType
from stretto.machines.cuda.printer.scalar import (
    CONTROL,
    cast_term,
    constant,
    function_term,
    stored_term,
)
from stretto.machines.expression_printer import HALVES, ExpressionPrinter
from stretto.machines.statements import Assign, Do, StatementBuilder, Store
from stretto.machines.terms import (
    Operand,
    Term,
    call,
    every,
    infix,
    literal,
    scaled,
    total,
    variable,
)

INDEX_LIMIT = 2**31
"""Bound below which positions of lanes are computed in 32 bits."""

_TESTS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """An iteration variable: the scalar `first` (None is 0) plus, optionally, lanes of the block.

    `range` holds the possible values of the variable, `reach` the largest value of the lanes (None:
    not known).
    """

    first: Term | None = None
    lanes: Term | None = None
    range: Interval | None = None
    reach: int | None = 0


Conditions = tuple[Term, ...]


@dataclass(slots=True)
class LanePrinter(ExpressionPrinter):
    """Builds terms for lanes, with one name for each subexpression.

    shape: the sizes of the block's axes, empty for scalars. warps: the rows (axis 0) are divided
    among this many warps, and axis 1 among the lanes of each (blocks.py); 0 leaves the layout to
    Triton. alike: True if the lanes of a warp compute the same. masks: by axis, the lanes that are
    in range; an axis without a mask has no others. conditions: those of the `where` arms around.
    known: names by conditions and item. counter: numbers new names.
    """

    shape: tuple[int, ...] = ()
    warps: int = 0
    alike: bool = False
    variables: dict[int, Coordinate] = field(default_factory=dict[int, Coordinate])
    masks: dict[int, Term] = field(default_factory=dict[int, Term])
    conditions: Conditions = ()
    known: dict[tuple[Conditions, Expr | Atom], Term] = field(
        default_factory=dict[tuple[Conditions, Expr | Atom], Term]
    )
    counter: list[int] = field(default_factory=lambda: [0])

    def inner(self) -> LanePrinter:
        """Return a printer for the body of a loop: names made in it are not visible after the
        loop."""
        return replace(
            self, variables=dict(self.variables), masks=dict(self.masks), known=dict(self.known)
        )

    def fresh(self, prefix: str, axes: int = 0) -> Term:
        """Return a new variable."""
        number = self.counter[0]
        self.counter[0] += 1
        return variable(f"{prefix}{number}", axes)

    def name(self, value: Term, prefix: str = "v") -> Term:
        """Assign a value to a new variable, and return that."""
        name = self.fresh(prefix, value.axes)
        self.out.add(Assign(name, value, shape=self.sizes(value.axes), alike=self.alike))
        return name

    def sizes(self, axes: int) -> tuple[int, ...]:
        """Return the shape of a value along `axes`."""
        if not axes:
            return ()
        if self.warps:
            rows, lanes = self.shape
            return (lanes if axes & 2 else 1, self.warps, rows // self.warps if axes & 1 else 1)
        return tuple(size if axes >> axis & 1 else 1 for axis, size in enumerate(self.shape))

    # ---- positions ---------------------------------------------------------------------------
    def position(self, index: Index) -> tuple[Term | None, Term | None]:
        """Return the scalar part of a position and its part per lane; None is 0."""
        scalars: list[Term] = []
        lanes: list[Term] = []
        for atom, factor in index.terms:
            scalar, block = self.atom(atom)
            if scalar is not None:
                scalars.append(scaled(scalar, factor))
            if block is not None:
                lanes.append(scaled(self._wide_enough(block, atom, factor), factor))
        if index.const:
            scalars.append(literal(index.const))
        return total(*scalars), total(*lanes)

    def _wide_enough(self, lanes: Term, atom: Atom, factor: int) -> Term:
        """Cast lanes to 64 bits if their product with the factor may need them."""
        reach: int | None = None
        match atom:
            case Var(number):
                reach = self.variables[number].reach
            case Product():
                return lanes
            case Quotient() | Remainder():
                interval = self.range(Index.of(atom))
                reach = None if interval is None else max(abs(interval[0]), abs(interval[1]))
            case _:
                pass
        fits = reach is not None and reach * abs(factor) < INDEX_LIMIT
        return lanes if fits else call("tl.cast", lanes, "tl.int64")

    def whole(self, index: Index) -> Term:
        """Return a position as one value, scalar or per lane."""
        scalar, block = self.position(index)
        return total(block, scalar) or literal(0)

    def atom(self, atom: Atom) -> tuple[Term | None, Term | None]:
        """Return the scalar part of an atom and its part per lane; None is 0."""
        match atom:
            case Var(number):
                coordinate = self.variables[number]
                return coordinate.first, coordinate.lanes
            case Reg():
                return self.names.reg(atom), None
            case Symbol():
                return self.names.reg(size_register(atom)), None
            case Product(factors):
                return self._product(factors)
            case Quotient() | Remainder():
                found = self.named(atom, lambda: self._division(atom))
            case Maximum(parts):
                found = self.named(atom, lambda: self._largest(parts))
            case ComputedPosition(value):
                found = self.expr(value)
            case _:
                raise AssertionError(f"unknown quantity {atom!r}")
        return (None, found) if found.axes else (found, None)

    def _product(self, factors: tuple[Atom, ...]) -> tuple[Term | None, Term | None]:
        """Return (scalar, lanes) of a product, in 64 bits; usually all factors but one are
        scalars."""
        scalar: Term | None = literal(1)
        lanes: Term | None = None
        for factor in factors:
            first, block = self.atom(factor)
            if block is not None:
                block = call("tl.cast", block, "tl.int64")
            if lanes is not None and block is not None:
                whole, other = total(lanes, scalar), total(block, first)
                assert whole is not None and other is not None
                scalar, lanes = None, whole * other
                continue
            lanes = _times(lanes, first) if block is None else _times(scalar, block)
            scalar = _times(scalar, first)
        return scalar, lanes

    def _largest(self, parts: tuple[Size, ...]) -> Term:
        return reduce(lambda a, b: call("tl.maximum", a, b), map(self.whole, parts))

    def range(self, index: Index) -> Interval | None:
        """Return the smallest value and the largest value + 1 of an index; None if unknown."""
        numbers = index.vars()
        known = {n: c.range for n, c in self.variables.items() if n in numbers}
        return index_range(index, tuple(known.get(n) for n in range(max(numbers, default=-1) + 1)))

    def _division(self, atom: Quotient | Remainder) -> Term:
        """Divide by a positive number. Triton's operators truncate, so they are used only for
        operands that are not negative."""
        inner, divisor = self.whole(atom.index), atom.divisor
        interval = self.range(atom.index)
        operation, sign = ("div", "//") if isinstance(atom, Quotient) else ("mod", "%")
        if interval is None or interval[0] < 0 or not isinstance(divisor, int):
            by = divisor if isinstance(divisor, int) else self.whole(divisor)
            return call(f"stretto_index_{operation}", inner, by)
        return infix(inner, sign, divisor)

    def pointer(self, access: Access) -> Term:
        """Return the pointer to an access, scalar or per lane."""
        scalar, block = self.position(access.offset)
        pointer = self.names.buffer(access.buffer)
        for part in (scalar, block):
            pointer = pointer if part is None else pointer + part
        return pointer

    # ---- masks -------------------------------------------------------------------------------
    def mask(self, axes: int) -> Term | None:
        """Return the mask of valid lanes for a block along `axes` and along the axes of the
        conditions; None if all are valid."""
        for condition in self.conditions:
            axes |= condition.axes
        masks = (mask for axis, mask in self.masks.items() if axes >> axis & 1)
        mask = every(*self.conditions, *masks)
        return None if mask is None else mask.along(axes)

    def spread(self, pointer: Term, axes: int) -> Term:
        """Broadcast a pointer to a block along at least `axes`."""
        return pointer if axes & ~pointer.axes == 0 else pointer + self.zeros(axes)

    def zeros(self, axes: int, dtype: str = "tl.int32") -> Term:
        return call("tl.zeros", str(list(self.sizes(axes))), dtype).along(axes)

    # ---- values ------------------------------------------------------------------------------
    def literal(self, value: bool | int | float, dtype: DType) -> Term:
        return constant(value, dtype)

    def number(self, position: Position) -> Term:
        return call("tl.cast", self.whole(position.index), "tl.int64")

    def named(self, expr: Expr | Atom, make: Callable[[], Term]) -> Term:
        """Return the name of an item that was computed under the present conditions or under a
        prefix of them; make one otherwise."""
        for count in range(len(self.conditions), -1, -1):
            found = self.known.get((self.conditions[:count], expr))
            if found is not None:
                return found
        name = self.name(make())
        self.known[self.conditions if _is_partial(expr) else (), expr] = name
        return name

    def numbers(self, axis: int) -> Term:
        """Return the numbers of the lanes along an axis."""
        if self.warps:
            rows, lanes = self.shape
            if axis == 0:
                return call("stretto_rows", self.warps, rows // self.warps).along(1)
            return literal(f"tl.arange(0, {lanes})[:, None, None]").along(2)
        slots = ", ".join(":" if n == axis else "None" for n in range(len(self.shape)))
        arange = f"tl.arange(0, {self.shape[axis]})" + (f"[{slots}]" if len(self.shape) > 1 else "")
        return literal(arange).along(1 << axis)

    def load(self, load: Load, other: Operand | None = None) -> Term:
        """Load one element per lane, `other` where the mask is off."""
        pointer = self.pointer(load.access)
        if self.warps and pointer.axes == 2:
            pointer = pointer + call("stretto_each_warp", self.warps)
        mask = self.mask(pointer.axes)
        if mask is not None:
            pointer = self.spread(pointer, mask.axes)
        return self._loaded(load.access, pointer, mask, other)

    def _loaded(
        self, access: Access, pointer: Term, mask: Term | None, other: Operand | None = None
    ) -> Term:
        other = None if mask is None else other
        value = call("tl.load", pointer, reads=(access.buffer,), mask=mask, other=other)
        if access.buffer.dtype in HALVES:
            return value.to("tl.float32")
        return infix(value, "!=", 0) if access.buffer.dtype is DType.BOOL else value

    def arguments(self, expr: Apply) -> list[Term]:
        if expr.function in _TESTS and all(_is_plain_index(arg) for arg in expr.args):
            return [self._plain_index(arg) for arg in expr.args]
        return [self.expr(argument) for argument in expr.args]

    def cast(self, value: Term, source: DType, target: DType) -> Term:
        return cast_term(value, source, target)

    def function(self, expr: Apply, values: list[Term]) -> Term:
        if expr.function != "checked":
            return function_term(expr, values)
        axes = 0
        for value in values:
            axes |= value.axes
        inside = self.mask(axes) or literal(True)
        return call("stretto_checked", CONTROL, *values, inside, effect=True)

    def where(self, expr: Apply) -> Term:
        condition = self.expr(expr.args[0])
        arms: list[Term] = []
        for arm, holds in zip(expr.args[1:], (condition, infix(condition, "==", 0)), strict=True):
            outer = self.conditions
            if _is_partial(arm):
                self.conditions = (*outer, holds)
            arms.append(self.expr(arm))
            self.conditions = outer
        return call("tl.where", condition, *arms)

    def _plain_index(self, expr: Expr) -> Term:
        match expr:
            case Position(index):
                return self.whole(index)
            case Const(value, _):
                return literal(int(value))
            case _:
                return self.expr(expr)

    # ---- stores ------------------------------------------------------------------------------
    def place(self, access: Access, value: Term) -> tuple[Term, Term | None]:
        """Return the pointer and the mask of a store, along all axes of the value."""
        pointer = self.pointer(access)
        mask = self.mask(pointer.axes | value.axes)
        return self.spread(pointer, value.axes | (0 if mask is None else mask.axes)), mask

    def store(self, access: Access, value: Term, dtype: DType, accumulate: bool = False) -> None:
        """Store a value computed as `dtype`; the block's lanes are those of the value. accumulate:
        add to the element (for bool: or)."""
        pointer, mask = self.place(access, value)
        if accumulate:
            old = self._loaded(access, pointer, mask)
            value = infix(old, "|" if dtype is DType.BOOL else "+", value)
        stored = stored_term(value, dtype, access.buffer.dtype)
        self.out.add(Store(access.buffer, pointer, stored, mask))

    def add(self, access: Access, value: Term, dtype: DType) -> None:
        """Add a value to memory atomically, where other tasks may add to the same element."""
        pointer, mask = self.place(access, value)
        stored = stored_term(value, dtype, access.buffer.dtype)
        self.out.add(Do(call("tl.atomic_add", pointer, stored, mask=mask, sem='"relaxed"')))


@dataclass(frozen=True, slots=True)
class _SizeNames:
    """Names of the values of symbols."""

    reg: Callable[[Reg], Term]

    def buffer(self, buffer: Buffer) -> Term:
        raise AssertionError(f"sizes do not depend on {buffer.name}")


class _SizePrinter(LanePrinter):
    """Builds terms without names for their parts."""

    def named(self, expr: Expr | Atom, make: Callable[[], Term]) -> Term:
        return make()


def size_term(size: int | Size, register: Callable[[Reg], Term]) -> Term:
    """Return a size over symbols as one term. register: names the values of symbols."""
    return _SizePrinter(_SizeNames(register), StatementBuilder()).whole(Index.of(size))


def _times(left: Term | None, right: Term | None) -> Term | None:
    """Multiply two terms, where None is 0."""
    if left is None or right is None:
        return None
    return right if left.text == "1" else left * right


def _is_plain_index(expr: Expr) -> bool:
    return isinstance(expr, Position) or (isinstance(expr, Const) and expr.dtype is DType.I64)


def _is_partial(item: Expr | Atom) -> bool:
    """Return True if an item loads or checks, so that its value is valid only where the conditions
    hold."""
    match item:
        case Apply():
            return item.function == "checked" or any(_is_partial(arg) for arg in item.args)
        case ComputedPosition(value):
            return _is_partial(value)
        case Load():
            return True
        case Position(index) | Quotient(index, _) | Remainder(index, _):
            return any(_is_partial(a) for a in index.atoms() if isinstance(a, ComputedPosition))
        case _:
            return False

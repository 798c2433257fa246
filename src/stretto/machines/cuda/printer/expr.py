"""Prints expressions and positions as Triton, for scalars and for blocks of lanes.

Values of f16 and bf16 are fp32 that have been rounded; only memory holds the 16-bit types. A bool
is an int1, in memory an int8. Every subexpression becomes one name. Both arms of `where` are
computed: the loads of an arm are masked by its condition.

A position is a scalar part, which goes into the pointer, and a part that differs from lane to lane,
which stays in 32 bits where the sizes allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stretto.device.expr import (
    Access,
    Apply,
    Atom,
    Buffer,
    Const,
    Dynamic,
    Expr,
    Index,
    Load,
    Position,
    Quotient,
    Reg,
    Remainder,
    Var,
)
from stretto.device.regions import Interval, index_range
from stretto.ir.types import DType
from stretto.machines.cuda.printer.scalar import HALVES, apply_text, literal, stored_text
from stretto.machines.symbols import no_symbols
from stretto.text import Writer

INDEX_LIMIT = 2**31
"""Positions of lanes up to here are computed in 32 bits."""

_TESTS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True)
class Text:
    """A value in the text: bit n of `axes` is set where it varies along axis n of the block."""

    text: str
    axes: int = 0


@dataclass(frozen=True, slots=True)
class Coordinate:
    """An iteration variable: the scalar `first` ("" is 0) plus, maybe, lanes of the block.

    `range` is what the variable may be, `reach` the largest value of the lanes (None: not known).
    """

    first: str = ""
    lanes: Text | None = None
    range: Interval | None = None
    reach: int | None = 0


@dataclass(slots=True)
class Names:
    """What buffers and registers are called in the text at hand."""

    buffer: Callable[[Buffer], str]
    reg: Callable[[Reg], str]


Conditions = tuple[Text, ...]


@dataclass(slots=True)
class ExprPrinter:
    """Prints expressions into `out`, one line per subexpression.

    shape: the sizes of the block's axes, none for scalars. masks: by axis, which lanes count; an
    axis without one has no others. conditions: those of the `where` arms around.
    """

    names: Names
    out: Writer
    shape: tuple[int, ...] = ()
    variables: dict[int, Coordinate] = field(default_factory=dict[int, Coordinate])
    masks: dict[int, str] = field(default_factory=dict[int, str])
    conditions: Conditions = ()
    known: dict[tuple[Conditions, Expr | Atom], Text] = field(
        default_factory=dict[tuple[Conditions, Expr | Atom], Text]
    )
    counter: list[int] = field(default_factory=lambda: [0])

    def inner(self) -> ExprPrinter:
        """A printer for the body of a loop: what it names ends with the loop."""
        return replace(
            self, variables=dict(self.variables), masks=dict(self.masks), known=dict(self.known)
        )

    def name(self, text: str, axes: int = 0, prefix: str = "v") -> Text:
        """Gives a text a name."""
        name = f"{prefix}{self.counter[0]}"
        self.counter[0] += 1
        self.out.write(f"{name} = {text}")
        return Text(name, axes)

    # ---- positions ---------------------------------------------------------------------------
    def position(self, index: Index) -> tuple[str, Text | None]:
        """The scalar part of a position ("" for 0), and the part of the lanes."""
        scalars: list[str] = []
        lanes: list[str] = []
        axes = 0
        for atom, factor in index.terms:
            scalar, block = self.atom(atom)
            if scalar:
                scalars.append(_scaled(scalar, factor))
            if block is not None:
                lanes.append(_scaled(self._wide_enough(block.text, atom, factor), factor))
                axes |= block.axes
        if index.const:
            scalars.append(str(index.const))
        return " + ".join(scalars), Text(" + ".join(lanes), axes) if lanes else None

    def _wide_enough(self, text: str, atom: Atom, factor: int) -> str:
        """In 64 bits, where a product may need them."""
        reach: int | None = None
        match atom:
            case Var(number):
                reach = self.variables[number].reach
            case Quotient() | Remainder():
                interval = self.range(Index.of(atom))
                reach = None if interval is None else max(abs(interval[0]), abs(interval[1]))
            case _:
                pass
        fits = reach is not None and reach * abs(factor) < INDEX_LIMIT
        return text if fits else f"tl.cast({text}, tl.int64)"

    def whole(self, index: Index) -> Text:
        """A position as one value, scalar or block."""
        scalar, block = self.position(index)
        if block is None:
            return Text(scalar or "0")
        return Text(f"{block.text} + {scalar}" if scalar else block.text, block.axes)

    def atom(self, atom: Atom) -> tuple[str, Text | None]:
        match atom:
            case Var(number):
                coordinate = self.variables[number]
                return coordinate.first, coordinate.lanes
            case Reg():
                return self.names.reg(atom), None
            case Quotient() | Remainder():
                found = self._named(atom, lambda: self._division(atom))
            case Dynamic(value):
                found = self.expr(value)
            case _:
                raise no_symbols(atom)
        return ("", found) if found.axes else (found.text, None)

    def range(self, index: Index) -> Interval | None:
        """The smallest and the largest value + 1, as far as known."""
        numbers = index.vars()
        known = {n: c.range for n, c in self.variables.items() if n in numbers}
        return index_range(index, tuple(known.get(n) for n in range(max(numbers, default=-1) + 1)))

    def _division(self, atom: Quotient | Remainder) -> Text:
        """By a positive number. Triton's operators truncate, and so want no negative operand."""
        inner = self.whole(atom.index)
        interval = self.range(atom.index)
        operation = "div" if isinstance(atom, Quotient) else "mod"
        if interval is None or interval[0] < 0:
            text = f"stretto_index_{operation}({inner.text}, {atom.divisor})"
        else:
            sign = "//" if operation == "div" else "%"
            text = f"({inner.text}) {sign} {atom.divisor}"
        return Text(text, inner.axes)

    def pointer(self, access: Access) -> Text:
        scalar, block = self.position(access.offset)
        text = self.names.buffer(access.buffer)
        if scalar:
            text = f"{text} + ({scalar})"
        if block is None:
            return Text(text)
        return Text(f"{text} + ({block.text})", block.axes)

    # ---- masks -------------------------------------------------------------------------------
    def mask(self, axes: int) -> Text | None:
        """Which lanes count, of a block along `axes` and of the conditions."""
        parts = [f"({condition.text})" for condition in self.conditions]
        for condition in self.conditions:
            axes |= condition.axes
        parts += [mask for axis, mask in self.masks.items() if axes >> axis & 1]
        return Text(" & ".join(parts), axes) if parts else None

    def spread(self, pointer: Text, axes: int) -> Text:
        """A pointer as a block along at least `axes`."""
        if axes & ~pointer.axes == 0:
            return pointer
        return Text(f"{pointer.text} + {self.zeros(axes)}", axes | pointer.axes)

    def zeros(self, axes: int, dtype: str = "tl.int32") -> str:
        sizes = [str(size) if axes >> axis & 1 else "1" for axis, size in enumerate(self.shape)]
        return f"tl.zeros([{', '.join(sizes)}], {dtype})"

    # ---- values ------------------------------------------------------------------------------
    def expr(self, expr: Expr) -> Text:
        match expr:
            case Const(value, dtype):
                return Text(literal(value, dtype))
            case Position(index):
                whole = self.whole(index)
                return Text(f"tl.cast({whole.text}, tl.int64)", whole.axes)
            case Load():
                return self._named(expr, lambda: self.load(expr))
            case Apply():
                return self._named(expr, lambda: self.apply(expr))

    def _named(self, item: Expr | Atom, make: Callable[[], Text]) -> Text:
        """The name of an item, which holds under the present conditions or under fewer."""
        for count in range(len(self.conditions), -1, -1):
            found = self.known.get((self.conditions[:count], item))
            if found is not None:
                return found
        made = make()
        name = self.name(made.text, made.axes)
        self.known[self.conditions if _is_partial(item) else (), item] = name
        return name

    def load(self, load: Load, other: str = "") -> Text:
        """One element per lane, `other` where the mask is off."""
        pointer = self.pointer(load.access)
        mask = self.mask(pointer.axes)
        arguments = ""
        if mask is not None:
            pointer = self.spread(pointer, mask.axes)
            arguments = f", mask={mask.text}" + (f", other={other}" if other else "")
        text = f"tl.load({pointer.text}{arguments})"
        if load.dtype in HALVES:
            text = f"{text}.to(tl.float32)"
        return Text(f"({text} != 0)" if load.dtype is DType.BOOL else text, pointer.axes)

    def apply(self, expr: Apply) -> Text:
        if expr.function == "where":
            return self.where(expr)
        if expr.function in _TESTS and all(_is_plain_index(arg) for arg in expr.args):
            args = [self._plain_index(arg) for arg in expr.args]
        else:
            args = [self.expr(arg) for arg in expr.args]
        axes = 0
        for arg in args:
            axes |= arg.axes
        if expr.function == "checked":
            return self.checked(args, axes)
        texts = [arg.text for arg in args]
        return Text(apply_text(expr, texts), axes)

    def checked(self, args: list[Text], axes: int) -> Text:
        mask = self.mask(axes)
        inside = "True" if mask is None else mask.text
        texts = ", ".join(arg.text for arg in args)
        text = f"stretto_checked(control, {texts}, {inside})"
        return Text(text, axes if mask is None else mask.axes)

    def where(self, expr: Apply) -> Text:
        condition = self.expr(expr.args[0])
        axes = condition.axes
        arms: list[Text] = []
        for arm, taken in zip(expr.args[1:], (True, False), strict=True):
            if _is_partial(arm):
                holds = condition if taken else Text(f"{condition.text} == 0", condition.axes)
                outer, self.conditions = self.conditions, (*self.conditions, holds)
                arms.append(self.expr(arm))
                self.conditions = outer
            else:
                arms.append(self.expr(arm))
            axes |= arms[-1].axes
        return Text(f"tl.where({condition.text}, {arms[0].text}, {arms[1].text})", axes)

    def _plain_index(self, expr: Expr) -> Text:
        match expr:
            case Position(index):
                whole = self.whole(index)
                return Text(f"({whole.text})", whole.axes)
            case Const(value, _):
                return Text(str(int(value)))
            case _:
                return self.expr(expr)

    def store(self, access: Access, value: Text, dtype: DType, accumulate: bool = False) -> None:
        """Stores a value computed as `dtype`; the block's lanes are those of the value."""
        pointer = self.pointer(access)
        mask = self.mask(pointer.axes | value.axes)
        pointer = self.spread(pointer, value.axes | (0 if mask is None else mask.axes))
        arguments = "" if mask is None else f", mask={mask.text}"
        text = value.text
        if accumulate:
            old = self._loaded(pointer.text, arguments, access.buffer)
            text = f"{old} | {text}" if dtype is DType.BOOL else f"{old} + {text}"
        text = stored_text(f"({text})" if accumulate else text, dtype, access.buffer.dtype)
        self.out.write(f"tl.store({pointer.text}, {text}{arguments})")

    def add(self, access: Access, value: Text, dtype: DType) -> None:
        """Adds a value to memory, where others may add to the same element."""
        pointer = self.pointer(access)
        mask = self.mask(pointer.axes | value.axes)
        pointer = self.spread(pointer, value.axes | (0 if mask is None else mask.axes))
        arguments = "" if mask is None else f", mask={mask.text}"
        text = stored_text(value.text, dtype, access.buffer.dtype)
        self.out.write(f'tl.atomic_add({pointer.text}, {text}{arguments}, sem="relaxed")')

    def _loaded(self, pointer: str, arguments: str, buffer: Buffer) -> str:
        text = f"tl.load({pointer}{arguments})"
        if buffer.dtype is DType.BOOL:
            return f"({text} != 0)"
        return f"{text}.to(tl.float32)" if buffer.dtype in HALVES else text


def _scaled(text: str, factor: int) -> str:
    if factor == 1:
        return text
    simple = text.isidentifier() or (text.startswith("tl.cast(") and text.endswith("tl.int64)"))
    return f"{text} * {factor}" if simple else f"({text}) * {factor}"


def _is_plain_index(expr: Expr) -> bool:
    return isinstance(expr, Position) or (isinstance(expr, Const) and expr.dtype is DType.I64)


def _is_partial(item: Expr | Atom) -> bool:
    """Does it load or check, so that its value counts only where the conditions hold?"""
    match item:
        case Apply():
            return item.function == "checked" or any(_is_partial(arg) for arg in item.args)
        case Dynamic(value):
            return _is_partial(value)
        case Load():
            return True
        case Position(index) | Quotient(index, _) | Remainder(index, _):
            return any(_is_partial(a) for a in index.atoms() if isinstance(a, Dynamic))
        case _:
            return False

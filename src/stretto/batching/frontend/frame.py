"""An activation of a user's function during evaluation; conversion of values to operands."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from stretto.batching.frontend.evaluation import Evaluation
from stretto.batching.frontend.function_builder import FunctionBuilder, Gap, PathEnds
from stretto.batching.frontend.python_library import LIBRARY
from stretto.batching.frontend.values import (
    ChoiceValue,
    Closure,
    Composed,
    Dynamic,
    IterableValue,
    Method,
    Native,
    SliceValue,
    Static,
    Super,
    Text,
    TupleValue,
    Unbound,
    Value,
    literal,
)
from stretto.batching.instance_program import Composition, rows_in
from stretto.batching.instances.types import TypesGrew, scalar_type, show_type, tensor_type
from stretto.errors import CaptureError, SourceLocation
from stretto.ir.core import Literal, Operand, Variable
from stretto.ir.data import AssignOp, OperandPlaceholder, Operation, RaiseOp
from stretto.ir.types import (
    NEVER,
    DataType,
    DType,
    ListType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
    union,
)

# ---- Numbers computed from the number of rows of a value: they may be sizes of tensors.
#
# A number that the instance decides cannot be a size of a tensor, unless it is computed from
# the number of rows of a value: `torch.zeros(len(x), 4)` has as many rows as `x`.


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
}
_REFUSAL = CaptureError(
    "the size of a tensor depends on a number of the instance",
    remedy="keep such a tensor as a list of its rows",
)


def count_of(
    op: str, args: Sequence[Operand], counts: Mapping[Variable, Composed]
) -> Composed | None:
    """Return the result of a primitive as a composition on the rows that it is computed from; None
    for other numbers."""
    if op == "len" and isinstance(args[0], Variable) and isinstance(args[0].type, RowsType):
        return rows_count(Dynamic(args[0], args[0].type))
    known = [counts.get(item) for item in args if isinstance(item, Variable)]
    if op not in _ARITHMETIC or len(known) != 1 or known[0] is None:
        return None
    steps, rows = known[0].composition.steps, known[0].operands[0]
    if not all(isinstance(x, Variable) or type(x.value) is int for x in args):
        return None
    last = OperandPlaceholder(len(steps))
    given = tuple(item.value if isinstance(item, Literal) else last for item in args)
    return _count((*steps, Operation(_ARITHMETIC[op], given, (), ())), rows)


def rows_count(rows: Dynamic) -> Composed:
    """Return the number of rows of a value, as a composition."""
    return _count((Operation(rows_in, (OperandPlaceholder(0),), (), ()),), rows)


def _count(steps: tuple[Operation, ...], rows: Dynamic) -> Composed:
    return Composed(Composition(steps), (rows,), 0, DType.I64, _REFUSAL)


@dataclass(eq=False, slots=True)
class Exit:
    """A path that leaves a part of the program: its locals, and the gap for its assignments."""

    gap: Gap
    locals: dict[str, Value]
    value: Value | None = None


@dataclass(eq=False, slots=True)
class LoopExits:
    """Targets of `break` and `continue` of a loop. A label of None is the loop itself."""

    breaks: list[Exit] = field(default_factory=list[Exit])
    continues: list[Exit] = field(default_factory=list[Exit])
    break_label: int | None = None
    continue_label: int | None = None


@dataclass(eq=False, slots=True)
class Frame:
    """One activation of a function.

    outer: the activation in which a nested function was defined. free: free variables of a
    function defined outside of evaluated code. code: identity of the function's code. path: the
    call sites that lead here, which distinguish activations of one function. return_label: of
    the scope that a `return` leaves; None if the function is not inlined.
    """

    evaluation: Evaluation
    builder: FunctionBuilder
    name: str
    file: str
    globals: dict[str, Any]
    outer: Frame | None
    free: dict[str, Any]
    code: Hashable
    path: tuple[Hashable, ...]
    locals: dict[str, Value]
    local_names: frozenset[str]
    return_label: int | None = None
    caller: Frame | None = None
    owner: type | None = None
    """The class that defines the function, for `super()`."""
    loops: list[LoopExits] = field(default_factory=list[LoopExits])
    returns: list[Exit] = field(default_factory=list[Exit])
    place: ast.AST | None = None
    owned: frozenset[str] = frozenset()
    """Local variables that are the only reference to a tensor (`sources.owned_names`)."""
    private: frozenset[str] = frozenset()
    """Local variables with lists that have no other reference (`sources.private_lists`)."""
    once: frozenset[str] = frozenset()
    """Local variables that are read once each time they are bound (`sources.read_once_names`)."""
    receiver: str | None = None
    """The first parameter, for `super()`."""
    parameters: dict[str, Value] = field(default_factory=dict[str, Value])
    """The arguments of a function that is not inlined."""
    result_key: Hashable = None

    def returned(self, type_: DataType) -> None:
        """Record the type of a value that a function that is not inlined returns."""
        self.evaluation.returns(self.result_key, type_)

    # ---- errors

    @property
    def location(self) -> SourceLocation | None:
        if self.file == LIBRARY and self.caller is not None:
            return self.caller.location
        node = self.place
        if node is None or not hasattr(node, "lineno"):
            return None
        return SourceLocation(
            self.file,
            node.lineno,  # type: ignore[attr-defined]
            getattr(node, "col_offset", None),
            getattr(node, "end_col_offset", None)
            if getattr(node, "end_lineno", None) == node.lineno  # type: ignore[attr-defined]
            else None,
            self.name,
        )

    def refuse(self, message: str, remedy: str | None = None) -> NoReturn:
        """Raise CaptureError at the place that is being evaluated."""
        raise CaptureError(message, location=self.location, remedy=remedy)

    def check_iterator(self, name: str, value: Value, once: frozenset[str] | None = None) -> None:
        """Refuse a local variable with an iterator that may be consumed twice: Python would find
        it exhausted, but a plan would yield its items again."""
        if isinstance(value, IterableValue) and name not in (self.once if once is None else once):
            self.refuse(
                f"{name} is an iterator that may be consumed more than once",
                "make a list of it",
            )

    def show(self, type_: DataType) -> str:
        return show_type(self.evaluation, type_)

    def site(self, *more: Hashable) -> Hashable:
        """Return a key for the place that is being evaluated, including the path of calls."""
        node = self.place
        where = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0), type(node).__name__)
        return (self.code, self.path, where, *more)

    # ---- emission

    def assign(
        self, op: str, type_: DataType, *args: Operand, detail: Any = None, name: str | None = None
    ) -> Dynamic:
        """Emit a primitive; return a new variable with its result."""
        self.evaluation.settle(type_)
        self.evaluation.statements += 1
        if self.evaluation.statements > MOST_STATEMENTS:
            self.refuse(
                f"the program of this function has more than {MOST_STATEMENTS} statements",
                "its variables may have very many types: keep values of one type in one variable",
            )
        target = self.builder.variable(name or op, type_)
        self.builder.emit(AssignOp(op, args, detail, results=(target,), location=self.location))
        count = count_of(op, args, self.evaluation.counts)
        if count is not None:
            self.evaluation.counts[target] = count
        return Dynamic(target, type_)

    def do(self, op: str, *args: Operand, detail: Any = None) -> None:
        """Emit a primitive for its effect."""
        self.builder.emit(AssignOp(op, args, detail, location=self.location))

    def fail(self, exception: type[BaseException], *parts: str | Operand) -> None:
        """Emit the end of the instance with an exception. The path ends: the caller raises
        PathEnds if there is no other."""
        self.builder.emit(RaiseOp(exception, parts, location=self.location))

    def stop(self, exception: type[BaseException], *parts: str | Operand) -> NoReturn:
        """End the instance with an exception on the current path; raises PathEnds."""
        self.fail(exception, *parts)
        raise PathEnds

    # ---- values as operands

    def type_of(self, value: Value) -> DataType:
        """Return the type of a value; NEVER if it cannot be data."""
        match value:
            case Dynamic(_, type_):
                return type_
            case TupleValue(items, is_list):
                if is_list:
                    cell = self.evaluation.cell(self.site("list", len(items)))
                    return ListType(cell)
                return TupleType(tuple(map(self.type_of, items)))
            case Static(item):
                return self._type_of_static(item)
            case _:
                return NEVER

    def _type_of_static(self, item: Any) -> DataType:
        kind = scalar_type(item)
        if kind is not None:
            return kind
        if isinstance(item, torch.Tensor):
            return tensor_type(item)
        if type(item) in (tuple, torch.Size):
            return TupleType(tuple(self._type_of_static(part) for part in item))
        return NEVER

    def operand(self, value: Value) -> Operand:
        """Return the value as an operand; static values become data of the instance."""
        return self.dynamic(value).operand

    def dynamic(self, value: Value) -> Dynamic:
        match value:
            case Dynamic():
                return value
            case TupleValue(items, is_list):
                return self._container(items, is_list)
            case Static(item):
                return self._static(item)
            case Unbound():
                self.refuse("a local variable is read that is not assigned on every path")
            case ChoiceValue():
                self.refuse(
                    "one of several functions or modules would become data of an instance",
                    "keep its number, and index a list of functions or modules by it",
                )
            case IterableValue():
                self.refuse("an iterator is kept in data", "make a list of it")
            case Composed(refusal=refusal):
                self.refuse(refusal.message, refusal.remedy)
            case Text():
                self.refuse("a string with values of instances is stored", "use it in `raise` only")
            case Closure() | Method() | Native() | SliceValue() | Super():
                self.refuse(
                    "a function would become data of an instance",
                    "call functions by their names, or choose between them by a branch",
                )

    def _container(self, items: tuple[Value, ...], is_list: bool) -> Dynamic:
        parts = [self.dynamic(item) for item in items]
        operands = [part.operand for part in parts]
        site = self.site("tuple", len(items))
        if not is_list and site not in self.evaluation.deep_tuples:
            type_ = TupleType(tuple(part.type for part in parts))
            if tuple_depth(type_) > DEEPEST_TUPLE:
                self.evaluation.deep_tuples.add(site)
                raise TypesGrew
            return self.assign("tuple", type_, *operands)
        if not is_list:
            self.evaluation.grow(self.evaluation.cell(site), union(part.type for part in parts))
            made = ListType(self.evaluation.cell(site), is_tuple=True)
            return self.assign("list", made, *operands, detail=True)
        cell = self.evaluation.cell(self.site("list", len(items)))
        self.evaluation.grow(cell, union(part.type for part in parts))
        return self.assign("list", ListType(cell), *operands, detail=False)

    def _static(self, item: Any) -> Dynamic:
        if scalar_type(item) is not None:
            return literal(item)
        if isinstance(item, torch.Tensor):
            return self.assign("shared", tensor_type(item), detail=item)
        if type(item) in (tuple, torch.Size):
            return self._container(tuple(map(Static, item)), is_list=False)
        if type(item) is list:
            return self._container(tuple(map(Static, item)), is_list=True)
        self.refuse(
            f"an object of class {type(item).__name__} that all instances share becomes data of "
            "an instance",
            "data may be numbers, strings, tensors, None, and tuples, lists and objects made by "
            "the function",
        )

    # ---- types

    def cast(self, value: Dynamic, type_: DataType) -> Dynamic:
        """Return the value with a type known to hold; in a new variable if operators take it or a
        register holds it."""
        if value.type == type_:
            return value
        if isinstance(type_, TensorType | RowsType | Scalar):
            made = self.assign("cast", type_, value.operand, detail=type_)
            if isinstance(made.operand, Variable) and isinstance(value.operand, Variable):
                self.evaluation.note_same_length(made.operand, value.operand)
            return made
        return Dynamic(value.operand, type_)

    def expect(self, value: Value, types: tuple[DataType, ...] | type, what: str) -> Dynamic:
        """Return the value as one of some types (or of a class of types); values of other types
        raise TypeError at run time. Refuse a value that has none of them. what: the start of
        the message."""
        given = self.dynamic(value)
        wanted = [
            item
            for item in alternatives(given.type)
            if (isinstance(item, types) if isinstance(types, type) else item in types)
        ]
        if not wanted:
            shown = self.show(given.type)
            if given.type == NEVER:
                shown = "nothing that is known yet"
            self.refuse(f"{what}, not {shown}")
        if len(wanted) == len(list(alternatives(given.type))):
            return given
        type_ = union(wanted)
        if isinstance(type_, UnionType):
            return self.assign(
                "expect", type_, given.operand, detail=(type_, f"{what}"), name="known"
            )
        return self.assign("expect", type_, given.operand, detail=(type_, what), name="known")


MOST_STATEMENTS = 60_000


DEEPEST_TUPLE = 4
"""Tuples nested deeper than this get the type of tuples of any length, since a recursive function
may create them."""


def tuple_depth(type_: DataType) -> int:
    """Return the depth of nesting of tuples of known length."""
    if isinstance(type_, TupleType):
        return 1 + max(map(tuple_depth, type_.items), default=0)
    if isinstance(type_, UnionType):
        return max(map(tuple_depth, type_.items), default=0)
    return 0

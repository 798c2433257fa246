"""The `data` dialect: ops on Python data (records, lists, dicts, numbers, strings) and on tensors
of one instance.

A function of this dialect is about one instance of a batch. Its values are `Variable`s, which
several ops may assign, and `Literal`s. Objects are mutable and have identity, so ops on them have
effects. Tensors are computed while a batch runs: `OperateOp` and `RecordOp` only say which operator
is needed, and `ReadOp` is the only op that needs the value of a tensor.

Control is structured, with jumps. A block of these ops yields nothing; what it computes is assigned
to variables. An `IfOp` has two such blocks and no results; a `LoopOp` repeats its block until a
jump leaves it; a `ScopeOp` runs its block once, and a `LeaveOp` with its label ends it.

    %a = add(%b, 1)                 AssignOp: a primitive on data (`PRIMITIVES`)
    %h = operate tanh(%x)           OperateOp: one tensor operator, as the user's code calls it
    %h, %c = record 0(%x, %w)       RecordOp: a static block of operators
    %r = invoke 1(%node)            InvokeOp: another function, maybe recursive
    %p = read(%t)                   ReadOp: the number in a tensor; the instance waits for it
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from stretto.errors import SourceLocation
from stretto.ir.core import Block, Function, Literal, Op, Operand, Variable
from stretto.ir.types import DataType, RowsType, Scalar, TensorType

PRIMITIVES: dict[str, str] = {
    # -- values
    "copy": "returns the argument",
    "shared": "detail: torch.Tensor, the same for all instances -> a tensor value",
    # -- numbers and bools, as in Python, but OverflowError is raised for ints beyond 64 bits
    **dict.fromkeys(
        ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"), "arithmetic of two numbers"
    ),
    **dict.fromkeys(("and", "or", "xor", "lshift", "rshift"), "of two ints"),
    **dict.fromkeys(("neg", "abs", "invert", "to_int", "to_float", "round"), "of one number"),
    "round_to": "(float, digits, not negative) -> float",
    **dict.fromkeys(("min", "max"), "of two numbers"),
    "unset": "any value of the target's type; it is never read",
    "ready": "(tensor): the depth from which it may be read plus detail, an int >= 0; only for "
    "`Record.after` -> int",
    "math": "detail: the name of a function of `math`, on floats (sqrt, exp, log, ...) -> float",
    # -- comparisons -> bool
    **dict.fromkeys(("lt", "le", "gt", "ge"), "of two numbers or strs"),
    **dict.fromkeys(("eq", "ne"), "of any two values, by value as =="),
    "is": "identity of two values; None, bools, ints and strs by value",
    "not": "of a bool",
    "truth": "bool(x) of a number, str, list, tuple, dict or None; True for other objects",
    "has_type": "detail: tuple of Types; True if the value is of one of them -> bool",
    "cast": "detail: a type; the same value, of that type wherever the result is read",
    "expect": "detail: (type, message) or (type, message, exception class); as `cast`, but raises "
    "TypeError, or the class, where the value is of another type",
    # -- records; detail of get and set: field name. They raise AttributeError, as Python does, for
    # a value without that field
    "record": "detail: (class number, names of fields); args: their values -> a new object "
    "(fields that are not given are missing until they are assigned)",
    "get": "a field of a record",
    "has": "detail: field name; True if a record has the field and it is assigned -> bool",
    "set": "(record, value): assigns a field",
    # -- tuples of known length
    "tuple": "args: the items",
    "item": "detail: the position, known; an item of a tuple of known length",
    # -- lists (and tuples of any length, and RowsType); positions (negative ones count from the
    # end), IndexError and ValueError as in Python
    "list": "args: the items; detail: is_tuple -> a new list",
    "len": "of a list, tuple, dict, str or RowsType -> int",
    "at": "(list, position) -> item",
    "put": "(list, position, value): assigns an item",
    "append": "(list, value)",
    "pop": "(list) or (list, position) -> item",
    "insert": "(list, position, value)",
    "extend": "(list, list)",
    "slice": "(list, start | None, stop | None, step | None) -> a new list",
    "concat": "(list, list) -> a new list; detail: is_tuple",
    "repeat": "(list, int) -> a new list",
    "reverse": "(list): in place",
    "to_list": "list(x) of a list or tuple: a new list; detail: is_tuple for tuple(x)",
    "contains": "(container, value) -> bool; a list, tuple, dict, or str in str",
    "index": "(list, value) -> int, ValueError where there is none",
    "clear": "(list or dict)",
    "rows": "(list of tensors of one type) -> RowsType, as torch.stack",
    "sorted_ints": "(list of ints) -> a new sorted list",
    # -- dicts whose keys are not fixed; KeyError as in Python
    "dict": "args: key, value, key, value, ... -> a new dict",
    "lookup": "(dict, key) -> value",
    "lookup_or": "(dict, key, default) -> value",
    "store": "(dict, key, value)",
    "remove": "(dict, key) -> value: dict.pop",
    "keys": "(dict) -> a new list",
    "values": "(dict) -> a new list",
    # -- strs
    "join_str": "(str, str) -> str: concatenation",
    "join_all": "(list of strs) -> str: concatenation",
    "characters": "(str) -> a new list of strs of one character",
    "ord": "(str of one character) -> int; TypeError for any other str",
    "repr": "repr(x) of a str, int, bool or None",
    "text": "str(x) of a str, int, bool or None",
}
"""The primitives of `AssignOp`, each with what it does."""
CHANGES = frozenset(
    ("set", "put", "append", "pop", "insert", "extend", "reverse", "clear", "store", "remove")
)
"""The primitives that change an object."""
ERRORS: dict[str, tuple[type[Exception], ...]] = {
    **dict.fromkeys(("at", "put", "pop"), (IndexError,)),
    **dict.fromkeys(("lookup", "remove"), (KeyError,)),
    "index": (ValueError,),
    **dict.fromkeys(("truediv", "floordiv", "mod"), (ZeroDivisionError, OverflowError)),
    **dict.fromkeys(("pow", "lshift", "rshift"), (ZeroDivisionError, OverflowError, ValueError)),
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs"), (OverflowError,)),
    **dict.fromkeys(("to_int", "round", "round_to", "math"), (OverflowError, ValueError)),
    "expect": (TypeError,), "ord": (TypeError,), "rows": (RuntimeError,),
}  # fmt: skip
"""The classes of the exceptions that primitives may raise."""


@dataclass(eq=False, slots=True, match_args=False)
class DataOp(Op):
    """Base class of the ops on data."""

    @property
    def targets(self) -> tuple[Variable, ...]:
        """The variables that the op itself assigns."""
        return self.results  # pyright: ignore[reportReturnType]

    @property
    def target(self) -> Variable | None:
        """The variable that the op assigns; None if it runs for its effect only."""
        return self.targets[0] if self.results else None


@dataclass(eq=False, slots=True)
class AssignOp(DataOp):
    """target = op(*args). `op` is a key of `PRIMITIVES`; `detail` is static data that it needs.

    A primitive that runs for its effect only has no result.
    """

    op: str
    args: tuple[Operand, ...] = ()
    detail: Any = None
    name: ClassVar[str] = "assign"
    __match_args__ = ("target", "op", "args", "detail")


@dataclass(frozen=True, slots=True)
class OperandPlaceholder:
    """The place of operand number `number` in the arguments of an `Operation`."""

    number: int


@dataclass(frozen=True, slots=True)
class RowCount:
    """A size in the arguments of an `Operation`: factor * n + offset, where n rows are those of an
    operand."""

    rows: OperandPlaceholder
    factor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a torch function for one instance, as the user's code makes it.

    `args` and `kwargs` are the arguments of the function (tuples, lists, dicts, static values,
    parameters), with an `OperandPlaceholder` in the place of each operand, or a `RowCount`.
    Operands are tensors, rows, ints, floats or bools. All operands that are rows have the same
    length, and so do results that are rows. `results` gives the types of the tensors in the
    function's result, in the order of `torch.utils._pytree.tree_leaves`.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[TensorType | RowsType, ...]
    location: SourceLocation | None = None


@dataclass(eq=False, slots=True)
class OperateOp(DataOp):
    """targets = the tensors that an operation returns for its inputs."""

    operation: Operation
    inputs: tuple[Operand, ...]
    name: ClassVar[str] = "operate"
    __match_args__ = ("targets", "operation", "inputs")

    @property
    def may_raise(self) -> bool:
        """True if it may fail because of an instance's data: an integer may be a position out of
        range or a divisor of 0, and a tensor of rows may be empty."""
        types = (item.type for item in self.inputs if isinstance(item, Variable))
        return any(
            isinstance(its, RowsType)
            or its is Scalar.INT
            or (isinstance(its, TensorType) and its.dtype.is_integer)
            for its in types
        )


@dataclass(eq=False, slots=True)
class RecordOp(DataOp):
    """targets = block number `block` of the inputs, recorded to run later.

    after: ints from the primitive `ready`; the block runs at none of the depths before them.
    """

    block: int
    inputs: tuple[Operand, ...]
    after: tuple[Operand, ...] = ()
    name: ClassVar[str] = "record"
    __match_args__ = ("targets", "block", "inputs")


@dataclass(eq=False, slots=True)
class InvokeOp(DataOp):
    """target = a function of the program of `args`; no result if it is not used."""

    function: str
    args: tuple[Operand, ...]
    name: ClassVar[str] = "invoke"
    __match_args__ = ("target", "function", "args")


@dataclass(eq=False, slots=True)
class ReadOp(DataOp):
    """target = the number in `tensor`, which has one element: a bool, int or float."""

    tensor: Operand
    name: ClassVar[str] = "read"
    __match_args__ = ("target", "tensor")

    @property
    def target(self) -> Variable:
        return self.targets[0]


@dataclass(eq=False, slots=True)
class LoopOp(DataOp):
    """Runs the body repeatedly, until a Break, a Leave or a Return."""

    body: Block
    name: ClassVar[str] = "loop"


@dataclass(eq=False, slots=True)
class ScopeOp(DataOp):
    """Runs the body once; `LeaveOp` with its label ends it. An inlined function is a Scope."""

    label: int
    body: Block
    name: ClassVar[str] = "scope"


@dataclass(eq=False, slots=True)
class LeaveOp(DataOp):
    """Ends the enclosing scope with that label."""

    label: int
    name: ClassVar[str] = "leave"


@dataclass(eq=False, slots=True)
class BreakOp(DataOp):
    """Ends the innermost loop."""

    name: ClassVar[str] = "break"


@dataclass(eq=False, slots=True)
class ContinueOp(DataOp):
    """Begins the next iteration of the innermost loop."""

    name: ClassVar[str] = "continue"


@dataclass(eq=False, slots=True)
class ReturnOp(DataOp):
    """Ends the function with a result."""

    value: Operand
    name: ClassVar[str] = "return"


@dataclass(eq=False, slots=True)
class RaiseOp(DataOp):
    """Ends this instance with an exception of the user's code.

    exception: a class, or a function that returns an exception. message: the fragments of the text
    that it is called with: strs, and operands that are formatted by `str`. If there are none, it
    is called without an argument.
    """

    exception: Callable[..., BaseException]
    message: tuple[str | Operand, ...]
    name: ClassVar[str] = "raise"


@dataclass(eq=False, slots=True)
class ForkOp(DataOp):
    """Bodies independent of each other: while one waits for a value, the others continue."""

    bodies: tuple[Block, ...]
    name: ClassVar[str] = "fork"


@dataclass(eq=False, slots=True)
class ForkLoopOp(DataOp):
    """A loop whose iterations are independent: it runs head, body and tail until a Break in the
    head; while one body waits for a value, the others continue.

    All heads run before the tails, and no body uses what another body computes. The tails run
    in the order of the iterations; if one iteration fails, the tails of the iterations before
    it have run. `private` variables are assigned in each iteration before it reads them, and
    nothing else reads them: each iteration has its own copy.
    """

    head: Block
    body: Block
    tail: Block
    private: tuple[Variable, ...] = field(kw_only=True, default=())
    name: ClassVar[str] = "fork_loop"


@dataclass(eq=False, slots=True)
class PhaseOp(DataOp):
    """Begins a later phase: the ops after it run after all that instances recorded before it."""

    number: int
    name: ClassVar[str] = "phase"


def body_of(ops: Iterable[Op]) -> Block:
    """Return a block of ops that yields nothing."""
    return Block(ops=list(ops))


@dataclass(eq=False, slots=True)
class InstanceFunction(Function):
    """A function, specialised for its static arguments and for the types of the others."""

    result: DataType
    location: SourceLocation | None = None
    title: str = ""
    """The name in the user's program, which several functions may have."""

    @property
    def parameters(self) -> tuple[Variable, ...]:
        return self.body.params  # pyright: ignore[reportReturnType]

    @property
    def result_types(self) -> tuple[DataType, ...]:  # pyright: ignore
        return (self.result,)


# ---- Equality of operators: by content, static objects by identity.


@dataclass(frozen=True, slots=True, eq=False)
class SameObject:
    """A key that is equal for the same object only."""

    item: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.item is self.item

    def __hash__(self) -> int:
        return id(self.item)


def operation_key(operation: Operation) -> Hashable:
    """Return a key that is equal for operations that compute the same."""
    parts = (operation.function, operation.args, operation.kwargs)
    return (*map(_static_key, parts), operation.results)


def _static_key(item: Any) -> Hashable:
    match item:
        case tuple() | list():
            return (type(item), *map(_static_key, cast("list[Any]", item)))
        case dict():
            pairs = cast("dict[Any, Any]", item).items()
            return (dict, *((key, _static_key(value)) for key, value in pairs))
        case slice():
            return (slice, *map(_static_key, (item.start, item.stop, item.step)))
        case OperandPlaceholder() | RowCount() | bool() | int() | float() | str() | None:
            return (type(item), item, str(item))
        case _:
            return SameObject(item)


def operand_key(operand: Operand) -> Hashable:
    """Return a variable itself (identity), or the type and text of a literal (1 is not 1.0, 0.0 is
    not -0.0)."""
    if isinstance(operand, Literal):
        return (type(operand.value), repr(operand.value))
    return operand

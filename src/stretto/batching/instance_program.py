"""The InstanceProgram: control and data of one instance, and the tensor operators it records.

The front end builds it from a user's function for one instance. It consists of functions over
variables, in structured statements. Its values are those of Python (mutable lists and objects
with identity, `None`, numbers, strings as tags) and tensors, of which only the types are known:
tensors are computed while a batch runs, and `ReadStatement` is the only statement that needs the
value of one. Everything that is the same for all instances (parameters, modules, functions,
settings) has been evaluated already: parameters are arguments of operators (`Operation`).

Statements; the class of `Assign` is `AssignStatement`, and so on:

    Assign     %a = op(...)            a primitive on data (`PRIMITIVES`)
    Operate    %h = torch function     one tensor operator, as the user's code calls it
    Record     %h, %c = block(...)     a static block of operators, built from Operates by `passes/`
    Call       %r = function(...)      another function, maybe recursive
    Read       %p = value of %t        the number in a tensor of one element: the instance waits
    If, Loop, Scope, Break, Continue, Leave, Return, Raise, Fork, ForkLoop
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from stretto.batching.types import InstanceTensorType, RowsType, Scalar, Type
from stretto.errors import SourceLocation


@dataclass(eq=False, slots=True)
class Variable:
    """A variable of a function; it may be assigned several times. Compared by identity.

    `type` holds for all its values. A variable of one scalar type (other than None and str) or
    of one tensor type is a native register in the host program.
    """

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Literal:
    """None, a bool, an int, a float or a str."""

    value: bool | int | float | str | None


Operand = Variable | Literal


@dataclass(frozen=True, slots=True)
class AssignStatement:
    """target = op(*args). `op` is a key of `PRIMITIVES`; `detail` is static data that it needs.

    target is None for a primitive that runs for its effect only.
    """

    target: Variable | None
    op: str
    args: tuple[Operand, ...] = ()
    detail: Any = None
    location: SourceLocation | None = None


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
    "cast": "detail: Type; the same value, known to be of that type (the front end has tested it)",
    "expect": "detail: (Type, message) or (Type, message, exception class); as `cast`, but raises "
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
"""The primitives of `AssignStatement`, each with what it does."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a torch function for one instance, as the user's code makes it.

    `args` and `kwargs` are the arguments of the function (tuples, lists, dicts, static values,
    parameters), with an `OperandPlaceholder` in the place of each operand. Operands are tensors,
    rows, ints, floats or bools. All operands that are rows have the same length, and so do results
    that are rows. `results` gives the types of the tensors in the function's result, in the order
    of `torch.utils._pytree.tree_leaves`.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[InstanceTensorType | RowsType, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class OperandPlaceholder:
    """The place of operand number `number` in the arguments of an `Operation`."""

    number: int


def inputs_of(item: Any) -> Iterator[int]:
    """Yield the numbers of the operands that have a place (`OperandPlaceholder`) in `item`, nested
    containers included."""
    match item:
        case OperandPlaceholder(number):
            yield number
        case tuple() | list():
            for part in cast("list[Any]", item):
                yield from inputs_of(part)
        case dict():
            yield from inputs_of(list(cast("dict[Any, Any]", item).values()))
        case slice():
            yield from inputs_of((item.start, item.stop, item.step))
        case _:
            pass


@dataclass(frozen=True, slots=True)
class OperateStatement:
    """targets = the tensors that an operation returns for its operands."""

    targets: tuple[Variable, ...]
    operation: Operation
    operands: tuple[Operand, ...]

    @property
    def may_raise(self) -> bool:
        """True if it may fail because of an instance's data: an integer may be a position out of
        range or a divisor of 0, and a tensor of rows may be empty."""
        types = (item.type for item in self.operands if isinstance(item, Variable))
        return any(
            isinstance(its, RowsType)
            or its is Scalar.INT
            or (isinstance(its, InstanceTensorType) and its.dtype.is_integer)
            for its in types
        )


@dataclass(frozen=True, slots=True)
class BlockStep:
    """An operation of a block. `operands` are numbers of values of the block."""

    operation: Operation
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StaticBlock:
    """A static block: straight-line tensor operators of one instance, run as one for many
    instances.

    Its values are numbered: the inputs first, then the results of each step, in order.
    `outputs` are the numbers of the values that are used outside the block.
    """

    name: str
    inputs: tuple[InstanceTensorType | RowsType | Scalar, ...]
    steps: tuple[BlockStep, ...]
    outputs: tuple[int, ...]

    @property
    def types(self) -> tuple[InstanceTensorType | RowsType | Scalar, ...]:
        """The types of all values, by number."""
        made = (type_ for step in self.steps for type_ in step.operation.results)
        return (*self.inputs, *made)

    def __call__(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """Compute the outputs for one instance in eager PyTorch. Inputs are tensors, or numbers
        for scalars; rows are one tensor [L, *shape]."""
        values: list[Any] = list(inputs)
        for step in self.steps:
            given = [values[number] for number in step.operands]
            made = call_operation(step.operation, given)
            values.extend(x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor))
        return tuple(values[number] for number in self.outputs)


def filled(item: Any, operands: Sequence[Any]) -> Any:
    """Return arguments of an operation with `operands` substituted for each
    `OperandPlaceholder`."""
    match item:
        case OperandPlaceholder(number):
            return operands[number]
        case tuple() if type(item) is tuple:
            return tuple(filled(part, operands) for part in item)
        case list():
            return [filled(part, operands) for part in item]
        case dict():
            return {key: filled(value, operands) for key, value in item.items()}
        case slice():
            parts = (item.start, item.stop, item.step)
            return slice(*(filled(part, operands) for part in parts))
        case _:
            return item


def call_operation(operation: Operation, operands: Sequence[Any]) -> Any:
    """Call the operation's function with these operands and return its result."""
    kwargs = {name: filled(value, operands) for name, value in operation.kwargs}
    return operation.function(*filled(operation.args, operands), **kwargs)


def rows_in(tensor: Any) -> Any:
    """Return the number of rows of a tensor."""
    return tensor.shape[0]


def leaf_of(made: Any, number: int) -> Any:
    """Return tensor number `number` (in `tree_leaves` order) of a function's result."""
    return pytree.tree_leaves(made)[number]


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """A function that runs several operations and returns the result of the last one. The operands
    of a step are those of the function, followed by the results of the earlier steps."""

    steps: tuple[Operation, ...]

    def __call__(self, *operands: Any) -> Any:
        return self.run(operands, call_operation)

    def run(self, operands: Sequence[Any], call: Callable[[Operation, list[Any]], Any]) -> Any:
        """Run the steps, each by `call(operation, values)`, and return the last result."""
        values = list(operands)
        for step in self.steps:
            values.append(call(step, values))
        return values[-1]

    @property
    def name(self) -> str:
        """The name of the last function."""
        last = self.steps[-1].function
        return getattr(last, "__name__", type(last).__name__)


@dataclass(frozen=True, slots=True)
class RecordStatement:
    """targets = block number `block` of the operands, recorded to run later.

    after: ints from the primitive `ready`; the block runs at none of the depths before them.
    """

    targets: tuple[Variable, ...]
    block: int
    operands: tuple[Operand, ...]
    location: SourceLocation | None = None
    after: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStatement:
    """target = function number `function` of `args`; target is None if the result is not used."""

    target: Variable | None
    function: int
    args: tuple[Operand, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class ReadStatement:
    """target = the number in `tensor`, which has one element: a bool, int or float."""

    target: Variable
    tensor: Operand
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class IfStatement:
    condition: Operand
    then: Body
    orelse: Body


@dataclass(frozen=True, slots=True)
class LoopStatement:
    """Run the body repeatedly, until a Break, a Leave or a Return."""

    body: Body


@dataclass(frozen=True, slots=True)
class ScopeStatement:
    """Run the body once; `LeaveStatement` with its label ends it. An inlined function is a
    Scope."""

    label: int
    body: Body


@dataclass(frozen=True, slots=True)
class LeaveStatement:
    """End the enclosing scope with that label."""

    label: int


@dataclass(frozen=True, slots=True)
class BreakStatement:
    """End the innermost loop."""


@dataclass(frozen=True, slots=True)
class ContinueStatement:
    """Begin the next iteration of the innermost loop."""


@dataclass(frozen=True, slots=True)
class ReturnStatement:
    value: Operand


@dataclass(frozen=True, slots=True)
class RaiseStatement:
    """End this instance with an exception of the user's code.

    exception: a class to call, or an exception. `parts` are the fragments of a message that
    depends on the instance: strs, and operands that are formatted by `str`.
    """

    exception: type[BaseException]
    parts: tuple[str | Operand, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class ForkStatement:
    """Bodies independent of each other: while one waits for a value, the others continue."""

    bodies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class ForkLoopStatement:
    """A loop whose iterations are independent: it runs head, body and tail until a Break in the
    head; while one body waits for a value, the others continue.

    All heads run before the tails, and no body uses what another body computes. The tails run
    in the order of the iterations; if one iteration fails, the tails of the iterations before
    it have run. `private` variables are assigned in each iteration before it reads them, and
    nothing else reads them: each iteration has its own copy.
    """

    head: Body
    body: Body
    tail: Body
    private: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class PhaseStatement:
    """Begin a later phase: the statements after it run after all that instances recorded before
    it."""

    number: int


Statement = (
    AssignStatement
    | OperateStatement
    | RecordStatement
    | CallStatement
    | ReadStatement
    | IfStatement
    | LoopStatement
    | ScopeStatement
    | LeaveStatement
    | BreakStatement
    | ContinueStatement
    | ReturnStatement
    | RaiseStatement
    | ForkStatement
    | ForkLoopStatement
    | PhaseStatement
)
Body = tuple[Statement, ...]


@dataclass(slots=True)
class InstanceFunction:
    """A function, specialised for its static arguments and for the types of the others."""

    name: str
    parameters: tuple[Variable, ...]
    result: Type
    body: Body
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A class of objects that instances hold or the program creates.

    kind: "object" (dataclass or plain class), "namedtuple" or "dict" (with fixed keys, the fields).
    cells: the cell of each field. absent: names that the program looked up in the class because no
    object known at that time stores them; an object that stores one is of another kind.
    """

    python: type
    kind: str
    fields: tuple[str, ...]
    cells: tuple[int, ...]
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassRemark:
    """A change that a pass made or declined to make, and the reason. what: the thing concerned."""

    what: str
    reason: str
    location: SourceLocation | None = None
    is_done: bool = False


@dataclass(slots=True)
class InstanceProgram:
    """A program for one instance; functions[0] is called with the instance's parameters. remarks:
    remarks of passes for `explain()`. tested: names of fields that the program tests with
    `hasattr`. joins: True if products of a block that share an operand are joined into one."""

    functions: list[InstanceFunction] = field(default_factory=list[InstanceFunction])
    classes: list[ClassInfo] = field(default_factory=list[ClassInfo])
    cells: list[Type] = field(default_factory=list[Type])
    blocks: list[StaticBlock] = field(default_factory=list[StaticBlock])
    remarks: list[PassRemark] = field(default_factory=list[PassRemark])
    tested: frozenset[str] = frozenset()
    joins: bool = True


def bodies(statement: Statement) -> Iterator[Body]:
    """Yield the bodies directly in a statement."""
    match statement:
        case IfStatement(_, then, orelse):
            yield from (then, orelse)
        case LoopStatement(body) | ScopeStatement(_, body):
            yield body
        case ForkStatement(several):
            yield from several
        case ForkLoopStatement(head, body, tail):
            yield from (head, body, tail)
        case _:
            pass


def walk(body: Body) -> Iterator[Statement]:
    """Yield all statements of a body, nested ones included, in source order."""
    for statement in body:
        yield statement
        for inner in bodies(statement):
            yield from walk(inner)


def first_location(body: Body) -> SourceLocation | None:
    """Return the first source location in a body; None if no statement has one."""
    for statement in walk(body):
        found = statement.operation if isinstance(statement, OperateStatement) else statement
        location: SourceLocation | None = getattr(found, "location", None)
        if location is not None:
            return location
    return None

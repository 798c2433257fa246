"""The InstanceProgram: control and data of one instance, and the tensor operators it records.

It is what the front end makes of a user's function for one instance: functions over variables, in
structured statements. It has the values of Python (mutable lists and objects with identity,
`None`, numbers, strings as tags), and tensors of which it knows the types alone: a tensor is
computed when a batch runs, and a program asks for its value with `Read` only. What is the same for
all instances (parameters, modules, functions, settings) has been evaluated away: parameters are
arguments of operators (`Operation`).

Statements:

    Assign     %a = op(...)            a primitive on data (`PRIMITIVES`)
    Operate    %h = torch function     one tensor operator, as the user's code calls it
    Record     %h, %c = block(...)     a static block of operators, made of these by `passes/`
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

from stretto.batching.types import RowsType, Scalar, TensorType, Type
from stretto.errors import SourceLocation


@dataclass(eq=False, slots=True)
class Variable:
    """A variable of a function; it may be assigned several times. Compared by identity.

    `type` holds for all its values. Where it is one scalar type (but None and str) or one tensor
    type, it is kept in a native register.
    """

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Literal:
    """None, a bool, an int, a float or a str."""

    value: bool | int | float | str | None


Operand = Variable | Literal


@dataclass(frozen=True, slots=True)
class Assign:
    """target = op(*args). `op` is a key of `PRIMITIVES`; `detail` is static data that it needs.

    target is None for what is done for its effect.
    """

    target: Variable | None
    op: str
    args: tuple[Operand, ...] = ()
    detail: Any = None
    location: SourceLocation | None = None


PRIMITIVES: dict[str, str] = {
    # -- values
    "copy": "the argument",
    "shared": "detail: torch.Tensor, the same for all instances -> a tensor value",
    # -- numbers and bools, as Python's: ints are of 64 bits, and OverflowError is raised beyond
    **dict.fromkeys(
        ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"), "arithmetic of two numbers"
    ),
    **dict.fromkeys(("and", "or", "xor", "lshift", "rshift"), "of two ints"),
    **dict.fromkeys(("neg", "abs", "invert", "to_int", "to_float", "round"), "of one number"),
    "round_to": "(float, digits, not negative) -> float",
    **dict.fromkeys(("min", "max"), "of two numbers"),
    "unset": "any value of the target's type; nothing reads it",
    "ready": "(tensor): the depth from which it may be read, and detail, an int >= 0, more; for "
    "`Record.after` alone -> int",
    "math": "detail: the name of a function of `math`, on floats (sqrt, exp, log, ...) -> float",
    # -- comparisons -> bool
    **dict.fromkeys(("lt", "le", "gt", "ge"), "of two numbers or strs"),
    **dict.fromkeys(("eq", "ne"), "of any two values, by value as =="),
    "is": "identity of two values; None, bools, ints and strs by value",
    "not": "of a bool",
    "truth": "bool(x) of a number, str, list, tuple, dict or None; True for other objects",
    "has_type": "detail: tuple of Types; whether the value is of one of them -> bool",
    "cast": "detail: Type; the same value, known to be of that type (the front end has tested it)",
    "expect": "detail: (Type, message) or (Type, message, exception class); as `cast`, but raises "
    "TypeError, or the class, where the value is of another type",
    # -- records; detail of get and set: field name. A value that has no such field raises
    # AttributeError as Python does
    "record": "detail: (class number, names of fields); args: their values -> a new object "
    "(fields that are not given are missing until they are assigned)",
    "get": "a field of a record",
    "has": "detail: field name; whether a record has the field, and it is assigned -> bool",
    "set": "(record, value): assigns a field",
    # -- tuples of known length
    "tuple": "args: the items",
    "item": "detail: the position, known; an item of a tuple of known length",
    # -- lists (and tuples of any length, and RowsType); positions as Python's, negative ones from
    # the end; IndexError, ValueError as Python's
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
    # -- dicts with keys that are not fixed; KeyError as Python's
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
"""The primitives of `Assign` and what each does."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a torch function, as the user's code makes it, in the words of one instance.

    `args` and `kwargs` are what the function is called with (tuples, lists, dicts, static values,
    parameters), in which an `Input` is a place for an operand. Operands are tensors, rows, ints,
    floats or bools. Operands that are rows have one length, which results that are rows have, too.
    `results` gives the types of the tensors in what the function returns, in the
    order of `torch.utils._pytree.tree_leaves`.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[TensorType | RowsType, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """The place of operand number `number` among the arguments of an `Operation`."""

    number: int


def inputs_of(item: Any) -> Iterator[int]:
    """The numbers of the operands that have a place in some arguments of an operation."""
    match item:
        case Input(number):
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
class Operate:
    """targets = the tensors that an operation makes of its operands."""

    targets: tuple[Variable, ...]
    operation: Operation
    operands: tuple[Operand, ...]

    @property
    def may_raise(self) -> bool:
        """Whether it may fail for what an instance holds: integers may be positions out of range or
        divisors of 0, and rows may be none."""
        types = (item.type for item in self.operands if isinstance(item, Variable))
        return any(
            isinstance(its, RowsType)
            or its is Scalar.INT
            or (isinstance(its, TensorType) and its.dtype.is_integer)
            for its in types
        )


@dataclass(frozen=True, slots=True)
class Step:
    """An operation of a block: `operands` are numbers of values of the block."""

    operation: Operation
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A static block: straight-line tensor operators of one instance, run as one for many.

    Its values are numbered: the inputs first, then what each step makes, in order. `outputs` are
    the numbers of the values that are used outside of it.
    """

    name: str
    inputs: tuple[TensorType | RowsType | Scalar, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def types(self) -> tuple[TensorType | RowsType | Scalar, ...]:
        """The types of all values, by number."""
        made = (type_ for step in self.steps for type_ in step.operation.results)
        return (*self.inputs, *made)

    def __call__(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """Computes the outputs for one instance: tensors for tensors and rows, numbers for
        scalars. Rows are one tensor [L, *shape]."""
        values: list[Any] = list(inputs)
        for step in self.steps:
            given = [values[number] for number in step.operands]
            made = call_operation(step.operation, given)
            values.extend(x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor))
        return tuple(values[number] for number in self.outputs)


def filled(item: Any, operands: Sequence[Any]) -> Any:
    """Arguments of an operation with operands in the place of each `Input`."""
    match item:
        case Input(number):
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
    """What the function returns for some operands."""
    kwargs = {name: filled(value, operands) for name, value in operation.kwargs}
    return operation.function(*filled(operation.args, operands), **kwargs)


def rows_in(tensor: Any) -> Any:
    """How many rows a tensor has."""
    return tensor.shape[0]


def leaf_of(made: Any, number: int) -> Any:
    """One of the tensors that a function returned."""
    return pytree.tree_leaves(made)[number]


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """A function that makes several calls, and returns what the last one does. The operands of a
    step are those of the function, then the results of the steps before."""

    steps: tuple[Operation, ...]

    def __call__(self, *operands: Any) -> Any:
        return self.run(operands, call_operation)

    def run(self, operands: Sequence[Any], call: Callable[[Operation, list[Any]], Any]) -> Any:
        """The same, where `call` makes the call of a step."""
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
class Record:
    """targets = block number `block` of the operands, recorded to run later.

    after: ints, what `ready` gave; it runs at none of the depths before these.
    """

    targets: tuple[Variable, ...]
    block: int
    operands: tuple[Operand, ...]
    location: SourceLocation | None = None
    after: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """target = function number `function`; target is None where the result is not used."""

    target: Variable | None
    function: int
    args: tuple[Operand, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """target = the number in `tensor`, which has one element: a bool, int or float."""

    target: Variable
    tensor: Operand
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class If:
    condition: Operand
    then: Body
    orelse: Body


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs the body again and again, until a Break, a Leave or a Return."""

    body: Body


@dataclass(frozen=True, slots=True)
class Scope:
    """Runs the body once; `Leave` of its label ends it. A function that was inlined is one."""

    label: int
    body: Body


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends the scope of that label, which is around this statement."""

    label: int


@dataclass(frozen=True, slots=True)
class Break:
    """Ends the innermost loop."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Begins the next iteration of the innermost loop."""


@dataclass(frozen=True, slots=True)
class Return:
    value: Operand


@dataclass(frozen=True, slots=True)
class Raise:
    """Ends this instance with an exception of the user's code.

    exception: a class with static arguments, or an exception. `parts` are the pieces of its
    message where it depends on the instance: strs and operands that are shown by `str`.
    """

    exception: type[BaseException]
    parts: tuple[str | Operand, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """Bodies that do not depend on each other: where one waits for a value, the others go on."""

    bodies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class ForkLoop:
    """A loop whose iterations do not depend on each other: runs head, body and tail again and
    again, until a Break in the head; where one body waits for a value, the others go on.

    All heads run before the tails, and no body needs what another one makes. The tails run in the
    order of the iterations; where one fails, those before it have run. `private` variables are
    assigned in each iteration before it reads them, and nothing else reads them: each iteration
    has its own.
    """

    head: Body
    body: Body
    tail: Body
    private: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """What follows belongs to a later phase: it runs after all that instances recorded before."""

    number: int


Statement = (
    Assign
    | Operate
    | Record
    | Call
    | Read
    | If
    | Loop
    | Scope
    | Leave
    | Break
    | Continue
    | Return
    | Raise
    | Fork
    | ForkLoop
    | Phase
)
Body = tuple[Statement, ...]


@dataclass(slots=True)
class Function:
    """A function, specialised for what is static of its arguments and for the types of the rest."""

    name: str
    parameters: tuple[Variable, ...]
    result: Type
    body: Body
    location: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A class of objects in instances or made by the program.

    kind: "object" (dataclass or plain class), "namedtuple" or "dict" (with fixed keys, the fields).
    cells: the cell of each field. absent: names that the program looked up in the class, since
    no object that was known then stores them; an object that does is of another kind.
    """

    python: type
    kind: str
    fields: tuple[str, ...]
    cells: tuple[int, ...]
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remark:
    """What a pass did and why, or why it left something as it is. what: what it has, or might have,
    changed."""

    what: str
    reason: str
    location: SourceLocation | None = None
    is_done: bool = False


@dataclass(slots=True)
class InstanceProgram:
    """functions[0] is what is called with the parameters of one instance. remarks: what passes say
    for `explain()`. tested: names of fields for which `hasattr` was asked.
    joins: whether products of a block that share their operand become one.
    """

    functions: list[Function] = field(default_factory=list[Function])
    classes: list[ClassInfo] = field(default_factory=list[ClassInfo])
    cells: list[Type] = field(default_factory=list[Type])
    blocks: list[Block] = field(default_factory=list[Block])
    remarks: list[Remark] = field(default_factory=list[Remark])
    tested: frozenset[str] = frozenset()
    joins: bool = True


def bodies(statement: Statement) -> Iterator[Body]:
    """The bodies directly in a statement."""
    match statement:
        case If(_, then, orelse):
            yield from (then, orelse)
        case Loop(body) | Scope(_, body):
            yield body
        case Fork(several):
            yield from several
        case ForkLoop(head, body, tail):
            yield from (head, body, tail)
        case _:
            pass


def walk(body: Body) -> Iterator[Statement]:
    """All statements of a body, inner ones too, in the order of the text."""
    for statement in body:
        yield statement
        for inner in bodies(statement):
            yield from walk(inner)


def place_of(body: Body) -> SourceLocation | None:
    """The first place in the user's source that a body has."""
    for statement in walk(body):
        found = statement.operation if isinstance(statement, Operate) else statement
        location: SourceLocation | None = getattr(found, "location", None)
        if location is not None:
            return location
    return None

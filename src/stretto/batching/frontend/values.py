"""Values during the evaluation of a user's function.

A value is *static* if it is the same for all instances (a module, a parameter, a function, a
setting): it is the Python object itself, and operations on it run while the function is
evaluated. Otherwise it is *dynamic*: a variable of the InstanceProgram with its type.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from stretto.batching.instance_program import Composition
from stretto.batching.instances.types import scalar_type
from stretto.errors import CaptureError
from stretto.ir.core import Literal, Operand
from stretto.ir.types import DataType, DType, Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A Python object that is the same for all instances. It is never changed."""

    value: Any


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A value that differs from instance to instance."""

    operand: Operand
    type: DataType


@dataclass(frozen=True, slots=True)
class TupleValue:
    """A tuple whose items are separate values."""

    items: tuple[Value, ...]
    is_list: bool = False
    """True for a list display that is only read, such as the argument of a call."""
    names: tuple[str, ...] = ()
    """The names of the items of a named tuple that a torch function returned."""


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """A function defined in an evaluated function. `scope` has its free variables, by reference."""

    node: ast.FunctionDef
    scope: Any  # the Frame in which it was defined
    defaults: tuple[Value, ...]
    keyword_defaults: dict[str, Value]
    name: str


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a value that is not static: `function` is called with `owner` as its first
    argument."""

    function: FunctionType | str
    owner: Value


@dataclass(frozen=True, slots=True, eq=False)
class Composed:
    """A tensor that cannot be data of the program, since the instance decides a size other than
    its first one. It is represented by the calls that compute it from some operands."""

    composition: Composition
    operands: tuple[Dynamic, ...]
    dims: int
    dtype: DType
    refusal: CaptureError
    """The error to raise where it would have to be data."""


@dataclass(frozen=True, slots=True)
class SliceValue:
    start: Value
    stop: Value
    step: Value


@dataclass(frozen=True, slots=True, eq=False)
class IterableValue:
    """The iterable of a `for` loop, if it is no plain value: `range`, `zip`, a generator."""

    plan: Any
    """A `walks.Plan`; or a function of the frame that makes it, when the loop begins."""
    python: type | None
    """Its class in Python, if that is known."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """A local variable that is not assigned."""


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceValue:
    """One of several values, depending on the path that the instance took; `index` has its number.

    The options are values that cannot be data (functions, modules, an unassigned variable), and
    at most one that can: its variable has the type `known` where it is chosen.
    """

    options: tuple[tuple[int, Value], ...]
    index: Dynamic
    known: DataType


@dataclass(frozen=True, slots=True)
class Text:
    """A string with parts that the instance decides, such as the message of an exception."""

    parts: tuple[str | Operand, ...]


@dataclass(frozen=True, slots=True)
class Super:
    """The value of super() in a method of class `owner`, for an object of the instance."""

    owner: type
    value: Dynamic


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """A function of Python or torch that the evaluation implements on values."""

    name: str
    call: Callable[..., Value] = field(repr=False)
    python: type | None = None
    """Its class in Python, if that is known."""


Value = (
    Static
    | Dynamic
    | TupleValue
    | Closure
    | Method
    | SliceValue
    | IterableValue
    | Unbound
    | ChoiceValue
    | Text
    | Native
    | Super
    | Composed
)


NONE = Static(None)
FALSE = Static(False)
ZERO = Static(0)
ONE = Static(1)


def is_scalar(value: Value) -> bool:
    """Return True for a static scalar."""
    return isinstance(value, Static) and scalar_type(value.value) is not None


def literal(value: object) -> Dynamic:
    """Return a static scalar as an operand."""
    kind = scalar_type(value)
    assert kind is not None
    return Dynamic(Literal(value), kind)  # type: ignore[arg-type]


# ---- Properties of values that do not depend on the instance.


def constant(value: Value) -> Any:
    """Return the Python object of a static value or of a literal; `...` otherwise."""
    match value:
        case Static(item):
            return item
        case Dynamic(Literal(item), _):
            return item
        case _:
            return ...


def is_data(value: Value) -> bool:
    """Return True if a value can be stored in a variable of the program."""
    match value:
        case Dynamic():
            return True
        case TupleValue(items):
            return all(map(is_data, items))
        case Static(item):
            return _is_static_data(item)
        case _:
            return False


def _is_static_data(item: Any) -> bool:
    if type(item) in (tuple, list, torch.Size):
        return all(map(_is_static_data, item))
    return scalar_type(item) is not None or isinstance(item, torch.Tensor)


def is_static(value: Value) -> bool:
    """Return True if a value and all its parts are the same for all instances."""
    match value:
        case Static():
            return True
        case TupleValue(items):
            return all(map(is_static, items))
        case SliceValue(start, stop, step):
            return is_static(start) and is_static(stop) and is_static(step)
        case Dynamic(Literal(), _):
            return True
        case _:
            return False


def python_of(value: Value) -> Any:
    """Return the Python object of a static value. Raises TypeError for other values."""
    match value:
        case Static(item) | Dynamic(Literal(item), _):
            return item
        case TupleValue(items, is_list):
            made = map(python_of, items)
            return list(made) if is_list else tuple(made)
        case SliceValue(start, stop, step):
            return slice(python_of(start), python_of(stop), python_of(step))
        case _:
            raise TypeError(value)


def is_int(value: Value) -> bool:
    """Return True for an int, static or dynamic."""
    match value:
        case Static(item):
            return type(item) is int
        case Dynamic(_, type_):
            return type_ is Scalar.INT
        case _:
            return False


# ---- Equality of values of the evaluation.


def same(first: Value, second: Value) -> bool:
    """Return True if two values are certainly the same Python value."""
    match first, second:
        case Static(a), Static(b):
            return a is b or (is_scalar(first) and type(a) is type(b) and a == b)
        case Dynamic(a, kind), Dynamic(b, other):
            return kind == other and (a is b or a == b)
        case TupleValue(a, x), TupleValue(b, y):
            return x == y and len(a) == len(b) and all(map(same, a, b))
        case Method(f, a), Method(g, b):
            return f is g and same(a, b)
        case Closure(a, x), Closure(b, y):  # same scope, since it reads free variables by reference
            return a is b and x is y and _same_defaults(first, second)
        case Unbound(), Unbound():
            return True
        case ChoiceValue(a, i, _), ChoiceValue(b, j, _):
            alike = len(a) == len(b) and same(i, j)
            return alike and all(
                x[0] == y[0] and same(x[1], y[1]) for x, y in zip(a, b, strict=True)
            )
        case _:
            return first is second


def _same_defaults(first: Closure, second: Closure) -> bool:
    pairs = zip(first.defaults, second.defaults, strict=True)
    named = ((v, second.keyword_defaults[k]) for k, v in first.keyword_defaults.items())
    return all(same(a, b) for a, b in (*pairs, *named))

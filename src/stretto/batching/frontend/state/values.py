"""What the evaluation of a user's function knows of a Python value.

A value is *static* when it is the same for all instances (a module, a parameter, a function, a
setting): it is the Python object itself, and what is done with it is done while the function is
evaluated. Otherwise it is *dynamic*: a variable of the InstanceProgram with its type.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from stretto.batching.program import Composition, Literal, Operand
from stretto.batching.types import Scalar, Type
from stretto.errors import CaptureError
from stretto.ir.types import DType


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A Python object that is the same for all instances. It is never changed."""

    value: Any


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A value that differs from instance to instance."""

    operand: Operand
    type: Type


@dataclass(frozen=True, slots=True)
class TupleValue:
    """A tuple whose items are known one by one."""

    items: tuple[Value, ...]
    is_list: bool = False
    """A list display that is only read: the argument of a call, say."""
    names: tuple[str, ...] = ()
    """The names of the items of a named tuple that a torch function returned."""


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """A function defined in an evaluated function. `scope` has its free variables, by reference."""

    node: ast.FunctionDef
    scope: Any  # the Frame it was defined in
    defaults: tuple[Value, ...]
    keyword_defaults: dict[str, Value]
    name: str


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a value that is not static: `function` is called with `owner` before the rest."""

    function: FunctionType | str
    owner: Value


@dataclass(frozen=True, slots=True, eq=False)
class Composed:
    """A tensor that is no data of the program, as the calls that make it from some operands: a size
    that the instance decides is not its first one."""

    composition: Composition
    operands: tuple[Dynamic, ...]
    dims: int
    dtype: DType
    refusal: CaptureError
    """Why it is no data."""


@dataclass(frozen=True, slots=True)
class SliceValue:
    start: Value
    stop: Value
    step: Value


@dataclass(frozen=True, slots=True, eq=False)
class Iterator_:
    """What a `for` loop goes through, where it is no plain value: `range`, `zip`, a generator."""

    plan: Any
    """An `iteration.Plan`."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """A local variable that is not assigned."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of several values, by the way that the instance took: `index` has the number of one.

    The options are values that cannot be data (functions, modules, a variable that is not
    assigned), and at most one that is: its variable has the type `known` where it is chosen.
    """

    options: tuple[tuple[int, Value], ...]
    index: Dynamic
    known: Type


@dataclass(frozen=True, slots=True)
class Text:
    """A string with parts that the instance decides: the message of an exception."""

    parts: tuple[str | Operand, ...]


@dataclass(frozen=True, slots=True)
class Super:
    """super() in a method of `owner`, of an object of the instance."""

    owner: type
    value: Dynamic


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """A function of Python or torch that the evaluation itself performs on values."""

    name: str
    call: Callable[..., Value] = field(repr=False)


Value = (
    Static
    | Dynamic
    | TupleValue
    | Closure
    | Method
    | SliceValue
    | Iterator_
    | Unbound
    | Choice
    | Text
    | Native
    | Super
    | Composed
)


NONE = Static(None)


_SCALARS: dict[type, Scalar] = {
    type(None): Scalar.NONE,
    bool: Scalar.BOOL,
    int: Scalar.INT,
    float: Scalar.FLOAT,
    str: Scalar.STR,
}


def scalar_type(value: object) -> Scalar | None:
    """The type of a scalar Python object; None for any other object."""
    return _SCALARS.get(type(value))


def is_scalar(value: Value) -> bool:
    """Whether a value is a static scalar."""
    return isinstance(value, Static) and type(value.value) in _SCALARS


def literal(value: object) -> Dynamic:
    """A static scalar as an operand."""
    kind = scalar_type(value)
    assert kind is not None
    return Dynamic(Literal(value), kind)  # type: ignore[arg-type]

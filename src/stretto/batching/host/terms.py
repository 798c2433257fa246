"""C++ expressions of the host program, and in which form each has its value.

A form is one letter: b bool, i int64_t, f double, t Tensor (a number of the run), v Value (a tagged
value), n none at all (void).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, isnan

from stretto.batching.types import Scalar, TensorType, Type

C_TYPES = {"b": "bool", "i": "int64_t", "f": "double", "t": "Tensor", "v": "Value"}
NUMBERS = "bif"
INTEGERS = "bi"


@dataclass(frozen=True, slots=True)
class Term:
    """An expression without effects that matter when it is repeated, unless it is a call."""

    text: str
    form: str

    def to(self, form: str) -> str:
        """The expression in another form. What the program knows of the type makes it right."""
        if self.form == form:
            return self.text
        match self.form, form:
            case "n", _:
                return f"({self.text}, {_ZERO[form]})"
            case _, "v":
                return f"box({self.text})"
            case "v", "b":
                return f"(({self.text}).i != 0)"
            case "v", "i":
                return f"({self.text}).i"
            case "v", "f":
                return f"as_float({self.text})"
            case "v", "t":
                return f"as_tensor({self.text})"
            case (("b" | "i" | "f"), ("b" | "i" | "f")):
                return f"static_cast<{C_TYPES[form]}>({self.text})"
            case _:  # the value has another type than its variable: control never comes here
                return f"({self.text}, {_ZERO[form]})"


_ZERO = {"b": "false", "i": "int64_t{0}", "f": "0.0", "t": "Tensor{0}", "v": "none()"}


def zero(form: str) -> str:
    """A value of a form, for variables before they are assigned."""
    return _ZERO[form]


def form_of(type_: Type) -> str:
    """How a variable of a type is kept."""
    match type_:
        case Scalar.BOOL:
            return "b"
        case Scalar.INT:
            return "i"
        case Scalar.FLOAT:
            return "f"
        case TensorType():
            return "t"
        case _:
            return "v"


def number_literal(value: bool | int | float) -> Term:
    """A number as C++. Floats are exact."""
    if isinstance(value, bool):
        return Term("true" if value else "false", "b")
    if isinstance(value, int):
        if value == -(2**63):
            return Term("(-INT64_C(9223372036854775807) - 1)", "i")
        return Term(f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))", "i")
    if isnan(value):
        return Term('__builtin_nan("")', "f")
    if isinf(value):
        return Term("__builtin_inf()" if value > 0 else "(-__builtin_inf())", "f")
    return Term(f"({value.hex()})", "f")


def call(name: str, *args: str) -> str:
    return f"{name}({', '.join(args)})"

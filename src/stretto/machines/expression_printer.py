"""Walk over expressions of the device language, shared by all printers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from stretto.device.expr import Apply, Const, Expr, Load, Position
from stretto.ir.types import DType
from stretto.machines.statements import Naming, StatementBuilder
from stretto.machines.terms import Term

HALVES = (DType.F16, DType.BF16)
"""Values of these dtypes are computed as rounded f32; only memory holds 16 bits."""
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
"""The functions that are operators in C++ and in Python."""


@dataclass(slots=True)
class ExpressionPrinter(ABC):
    """Printer of expressions as terms. Subexpressions that deserve a name are assigned by a
    statement in `out`."""

    names: Naming
    out: StatementBuilder

    def expr(self, expr: Expr) -> Term:
        """Return the term of an expression."""
        match expr:
            case Const(value, dtype):
                return self.literal(value, dtype)
            case Position():
                return self.number(expr)
            case Load():
                return self.named(expr, lambda: self.load(expr))
            case Apply():
                return self.named(expr, lambda: self.apply(expr))

    def apply(self, expr: Apply) -> Term:
        if expr.function == "where":
            return self.where(expr)
        values = self.arguments(expr)
        if expr.function == "cast":
            return self.cast(values[0], expr.args[0].dtype, expr.dtype)
        return self.function(expr, values)

    def arguments(self, expr: Apply) -> list[Term]:
        return [self.expr(argument) for argument in expr.args]

    @abstractmethod
    def literal(self, value: bool | int | float, dtype: DType) -> Term: ...

    @abstractmethod
    def number(self, position: Position) -> Term:
        """Return a position as a 64-bit integer."""

    @abstractmethod
    def named(self, expr: Load | Apply, make: Callable[[], Term]) -> Term:
        """Return the variable of an expression; assign it with `make()` if there is none yet."""

    @abstractmethod
    def load(self, load: Load) -> Term: ...

    @abstractmethod
    def where(self, expr: Apply) -> Term: ...

    @abstractmethod
    def cast(self, value: Term, source: DType, target: DType) -> Term:
        """Return a conversion as in torch's `.to`: to bool by comparison with 0, to halves by
        rounding."""

    @abstractmethod
    def function(self, expr: Apply, values: list[Term]) -> Term:
        """Return the value of any other function."""

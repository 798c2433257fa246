"""Local variables of the user's functions while they are traced: cells by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType
from typing import Any, NamedTuple

from stretto.frontends.python.tracing.signals import Abort, abort
from stretto.ir.core import Op
from stretto.ir.ops import ListGetOp, ListPopOp, ListSetOp, TensorOp
from stretto.ops.properties import eager_errors


class _Undefined:
    """Stands for a variable without a value; compared by identity."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED: Any = _Undefined()


class Maybe(NamedTuple):
    """A variable that has a value only where `bound`, a bool or a traced one, holds."""

    value: Any
    bound: Any
    name: str

    @staticmethod
    def of(value: Any, name: str) -> Maybe:
        """The same variable in this form."""
        if isinstance(value, Maybe):
            return value
        return Maybe(value, value is not UNDEFINED, name)


@dataclass(eq=False, slots=True)
class CallFrame:
    """An active call of a rewritten function."""

    name: str
    cells: dict[str, CellType]

    @staticmethod
    def of(name: str, probe: Callable[[], object]) -> CallFrame:
        """The frame whose variables `probe`, a lambda, refers to."""
        names = probe.__code__.co_freevars
        cells = probe.__closure__ or ()
        return CallFrame(name, dict(zip(names, cells, strict=True)))

    def get(self, name: str) -> Any:
        return read_cell(self.cells[name])

    def set(self, name: str, value: Any) -> None:
        write_cell(self.cells[name], value)


def read_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNDEFINED


def write_cell(cell: CellType, value: Any) -> None:
    if value is UNDEFINED:
        if read_cell(cell) is not UNDEFINED:
            del cell.cell_contents
    else:
        cell.cell_contents = value


def is_internal(name: str) -> bool:
    """Whether a variable was made by the rewriting (flags, return values)."""
    return name.startswith("__stretto")


# ---- The user's `try` blocks that are open, and what their handlers catch.
#
# A compiled program cannot run a handler in its midst. So whatever may raise depending on the run
# is refused where a handler would catch it and go on. Where a handler raises in any case, so does
# the call: a run that comes to the exception starts again in Python, which raises that of the
# handler.


ErrorClasses = tuple[type[BaseException], ...]


@dataclass(slots=True, eq=False)
class Tries:
    """The classes that the handlers of each open `try` catch, the innermost one last.

    handled: by those that may go on. replaced: by those that raise in any case. replaces: something
    in the program may raise what these catch. notes: an exception was noted, and not raised.
    """

    handled: list[ErrorClasses] = field(default_factory=list[ErrorClasses])
    replaced: list[ErrorClasses] = field(default_factory=list[ErrorClasses])
    replaces: bool = False
    notes: bool = False

    def catch(self, error: type[BaseException]) -> bool:
        return any(issubclass(error, classes) for classes in self.handled)

    def takes_next(self) -> bool:
        """Returns True if code around this asks an iterator for its next item, and may handle that
        there is none, as a loop of Python does."""
        return (StopIteration,) in self.handled

    def refuse(self, error: type[BaseException]) -> None:
        """Stop capturing where a handler would catch `error`."""
        if self.catch(error):
            raise caught(error)
        self.replaces |= any(issubclass(error, classes) for classes in self.replaced)

    def refuse_caught_by(self, op: Op) -> None:
        """Does the same for all that the op may raise."""
        if not any(self.handled) and not any(self.replaced):
            return
        if isinstance(op, TensorOp):
            errors = eager_errors(op)
        else:
            errors = (IndexError,) if isinstance(op, ListGetOp | ListSetOp | ListPopOp) else ()
        for error in errors:
            self.refuse(error)


def caught(error: type[BaseException]) -> Abort:
    return abort(
        f"whether {error.__name__} is raised here depends on a tensor, and a try around it "
        "catches that, or a with or loop may",
        "raise it in the function that has the try, test the condition with if, or compile with "
        "fallback=True",
    )

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
    """The value of a variable that has none; compared by identity."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED: Any = _Undefined()


class Maybe(NamedTuple):
    """A variable that has a value only if `bound`, a Python or traced bool, holds."""

    value: Any
    bound: Any
    name: str

    @staticmethod
    def of(value: Any, name: str) -> Maybe:
        """Return the variable as a Maybe."""
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
        """Return the frame of the variables that `probe`, a lambda, refers to."""
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
    """True if a variable was created by the rewriting (flags, return values)."""
    return name.startswith("__stretto")


# ---- The user's open `try` blocks, and what their handlers catch.
#
# A compiled program cannot run an exception handler. An op that may raise at run time is therefore
# refused if a handler would catch the exception and continue. If the handler always raises, the
# call fails in any case: a run that reaches the exception is repeated in Python, which raises the
# handler's exception.


ErrorClasses = tuple[type[BaseException], ...]


@dataclass(slots=True, eq=False)
class Tries:
    """The classes that the handlers of each open `try` catch, the innermost one last.

    handled: by handlers that may continue. replaced: by handlers that always raise. replaces:
    True if something in the program may raise a class in `replaced`. notes: True if an
    exception was recorded instead of raised.
    """

    handled: list[ErrorClasses] = field(default_factory=list[ErrorClasses])
    replaced: list[ErrorClasses] = field(default_factory=list[ErrorClasses])
    replaces: bool = False
    notes: bool = False

    def catch(self, error: type[BaseException]) -> bool:
        """Return True if a handler that may continue catches `error`."""
        return any(issubclass(error, classes) for classes in self.handled)

    def takes_next(self) -> bool:
        """Return True if the surrounding code requests an iterator's next item and may handle its
        end, as a Python loop does."""
        return (StopIteration,) in self.handled

    def refuse(self, error: type[BaseException]) -> None:
        """Raise Abort if a handler would catch `error` and continue."""
        if self.catch(error):
            raise caught(error)
        self.replaces |= any(issubclass(error, classes) for classes in self.replaced)

    def refuse_caught_by(self, op: Op) -> None:
        """Do the same for every error that the op may raise."""
        if not any(self.handled) and not any(self.replaced):
            return
        if isinstance(op, TensorOp):
            errors = eager_errors(op)
        else:
            errors = (IndexError,) if isinstance(op, ListGetOp | ListSetOp | ListPopOp) else ()
        for error in errors:
            self.refuse(error)


def caught(error: type[BaseException]) -> Abort:
    """Return the signal for an exception that depends on the run and that a handler would catch."""
    return abort(
        f"whether {error.__name__} is raised here depends on a tensor, and a try around it "
        "catches that, or a with or loop may",
        "raise it in the function that has the try, test the condition with if, or compile with "
        "fallback=True",
    )

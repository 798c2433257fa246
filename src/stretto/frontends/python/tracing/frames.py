"""Variables of the user's functions, and the `try` blocks that are open while they are traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from stretto.frontends.python.tracing.signals import Abort, abort
from stretto.ir.core import Op
from stretto.ir.data import ERRORS, AssignOp
from stretto.ir.ops import ListGetOp, ListPopOp, ListSetOp, TensorOp
from stretto.ops.properties import eager_errors


class _Undefined:
    """The value of a variable that has none; compared by identity."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED: Any = _Undefined()


def cells_of(probe: Callable[[], object]) -> dict[str, CellType]:
    """Return the cells of the variables that `probe`, a lambda, refers to, by name."""
    return dict(zip(probe.__code__.co_freevars, probe.__closure__ or (), strict=True))


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
    True if something in the program may raise a class in `replaced`.
    """

    handled: list[ErrorClasses] = field(default_factory=list[ErrorClasses])
    replaced: list[ErrorClasses] = field(default_factory=list[ErrorClasses])
    replaces: bool = False

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
        elif isinstance(op, AssignOp):
            errors = ERRORS.get(op.op, ())
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

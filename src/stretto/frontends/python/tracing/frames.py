"""Local variables of the user's functions while they are traced: cells by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CellType
from typing import Any, NamedTuple


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

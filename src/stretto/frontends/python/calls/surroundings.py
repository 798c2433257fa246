"""What a traced function may have read besides its arguments, to find out later whether it
changed."""

from __future__ import annotations

from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

from torch import nn

from stretto.frontends.python.aliasing.aliases import visible
from stretto.frontends.python.tracing.frames import read_cell
from stretto.frontends.python.tracing.tensor import Storage
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.state import contents, equal_leaves, is_box
from stretto.ir.core import Value


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """Variables of outer functions, contents of containers, tensors, and writes to globals."""

    cells: tuple[tuple[CellType, Any], ...]
    boxes: tuple[tuple[Any, dict[Any, Any]], ...]
    storages: tuple[tuple[Storage, Value], ...]
    globals: int

    @staticmethod
    def of(cells: tuple[CellType, ...], arguments: Any, captures: list[Value]) -> Surroundings:
        """Follows the variables of outer functions, the functions among them, and containers."""
        found, boxes = dict[int, tuple[CellType, Any]](), dict[int, tuple[Any, dict[Any, Any]]]()
        pending: list[Any] = [arguments, *cells]
        while pending:
            value = pending.pop()
            if isinstance(value, CellType):
                if id(value) not in found:
                    found[id(value)] = value, read_cell(value)
                    pending.append(read_cell(value))
            elif isinstance(value, FunctionType):
                pending += value.__closure__ or ()
            elif isinstance(value, tuple):
                pending += value
            elif (is_box(value) or isinstance(value, nn.Module)) and id(value) not in boxes:
                boxes[id(value)] = value, contents(value)
                pending += contents(value).values()
        bases = set(captures)
        storages = ((s, s.state.base) for s in visible() if isinstance(s.state.base, Value))
        return Surroundings(
            tuple(found.values()),
            tuple(boxes.values()),
            tuple((storage, base) for storage, base in storages if base in bases),
            tracer().global_writes,
        )

    def hold(self) -> bool:
        """Whether nothing has changed."""
        return (
            all(equal_leaves(read_cell(cell), value) for cell, value in self.cells)
            and all(_same_items(contents(box), items) for box, items in self.boxes)
            and all(storage.state.base is base for storage, base in self.storages)
            and tracer().global_writes == self.globals
        )


def _same_items(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    return first.keys() == second.keys() and all(equal_leaves(first[k], second[k]) for k in first)

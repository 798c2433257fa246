"""Last uses of lists: one that nothing reads any more may be changed in place."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.ir.core import Block, Value
from stretto.ir.ops import ForOp, WhileOp

Path = tuple[int, ...]
"""The place of an op: its number in the body, the number of its block, its number there, ..."""


@dataclass(eq=False)
class LastUses:
    """The places where the values of a function are made and read."""

    body: Block
    homes: dict[Value, Path] = field(default_factory=dict[Value, Path])
    """The block of each value."""
    uses: dict[Value, list[Path]] = field(default_factory=dict[Value, list[Path]])
    repeated: set[Path] = field(default_factory=set[Path])
    """Blocks of loops."""

    def __post_init__(self) -> None:
        self.find(self.body, ())

    def find(self, block: Block, path: Path) -> None:
        for value in block.params:
            self.homes[value] = path
        for number, op in enumerate(block.ops):
            here = (*path, number)
            for value in op.results:
                self.homes[value] = path
            for value in op.operands:
                self.uses.setdefault(value, []).append(here)
            for index, inner in enumerate(op.blocks):
                if isinstance(op, WhileOp | ForOp):
                    self.repeated.add((*here, index))
                self.find(inner, (*here, index))
        for value in block.yields:
            self.uses.setdefault(value, []).append((*path, len(block.ops)))

    def is_last(self, value: Value, here: Path) -> bool:
        """True if nothing reads a value after the op at a place."""
        home = len(self.homes[value])
        if any(here[:end] in self.repeated for end in range(home + 2, len(here), 2)):
            return False  # the next iteration reads it
        return not any(_is_later(use, here) for use in self.uses.get(value, ()) if use != here)


def _is_later(use: Path, here: Path) -> bool:
    for depth, (one, other) in enumerate(zip(use, here, strict=False)):
        if one != other:
            return not depth % 2 and one > other  # else in another arm
    return False

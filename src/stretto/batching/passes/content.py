"""When two operators, or two blocks, are the same: equal content, static objects by identity."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from stretto.batching.program import Block, Input, Literal, Operand, Operation, Step
from stretto.batching.types import RowsType, Scalar, TensorType


@dataclass(slots=True)
class Contents:
    """Keys of what operators are called with. Objects that are part of a key are kept, so that no
    other object gets their identity."""

    _kept: list[Any] = field(default_factory=list[Any])

    def operation(self, operation: Operation) -> Hashable:
        parts = (operation.function, operation.args, operation.kwargs)
        return (*map(self._key, parts), operation.results)

    def _key(self, item: Any) -> Hashable:
        match item:
            case tuple() | list():
                return (type(item), *map(self._key, item))
            case dict():
                return (dict, *((key, self._key(value)) for key, value in item.items()))
            case slice():
                return (slice, *map(self._key, (item.start, item.stop, item.step)))
            case Input() | bool() | int() | float() | str() | None:
                return (type(item), item, str(item))
            case _:
                self._kept.append(item)
                return id(item)


def operand_key(operand: Operand) -> Hashable:
    """A variable by identity, a literal by its type and value (1 is not 1.0, 0.0 is not -0.0)."""
    if isinstance(operand, Literal):
        return (type(operand.value), repr(operand.value))
    return operand


class Blocks:
    """The blocks of a program, each content once."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self._contents = Contents()
        self._numbers: dict[Hashable, int] = {}
        for number, block in enumerate(blocks):
            key = self._key(block.inputs, block.steps, block.outputs)
            self._numbers.setdefault(key, number)

    def number(
        self,
        inputs: tuple[TensorType | RowsType | Scalar, ...],
        steps: tuple[Step, ...],
        outputs: tuple[int, ...],
    ) -> int:
        """The number of the block with this content, which is added where it is new."""
        key = self._key(inputs, steps, outputs)
        if key not in self._numbers:
            self._numbers[key] = len(self._blocks)
            last = steps[-1].operation.function
            name = getattr(last, "__name__", type(last).__name__).strip("_").lower()
            self._blocks.append(Block(f"{name}{len(self._blocks)}", inputs, steps, outputs))
        return self._numbers[key]

    def _key(
        self,
        inputs: tuple[TensorType | RowsType | Scalar, ...],
        steps: tuple[Step, ...],
        outputs: tuple[int, ...],
    ) -> Hashable:
        content = tuple((self._contents.operation(step.operation), step.operands) for step in steps)
        return (inputs, content, outputs)

"""Tensors that no variable of an instance program can hold, because a size that the instance
decides is not their first one, as in `x @ x.T`. They stay the calls that make them.

An operator on such a tensor becomes part of one function, from operands that variables hold. Once
that returns a tensor of known size, or rows, it is one operation of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.batching.frontend.state.values import Composed, SliceValue, TupleValue, Value
from stretto.batching.program import Composition, Input, Operation, filled


def composed_in(value: Value) -> list[Composed]:
    """The parts of an argument that are calls."""
    match value:
        case Composed():
            return [value]
        case TupleValue(items):
            return [found for item in items for found in composed_in(item)]
        case SliceValue(start, stop, step):
            return [found for item in (start, stop, step) for found in composed_in(item)]
        case _:
            return []


class Joined:
    """The steps of a composition, as they are put together. Operands are numbered from 0; results
    follow, and have negative numbers as long as not all operands are known."""

    def __init__(self) -> None:
        self._steps: list[Operation] = []
        self._made: dict[int, Input] = {}

    def result(self, value: Composed, operands: Sequence[Input]) -> Input:
        """The result of the calls that a value stands for; each is made once."""
        if id(value) not in self._made:
            places: list[Any] = list(operands)
            for step in value.composition.steps:
                args, kwargs = filled((step.args, dict(step.kwargs)), places)
                places.append(self.add(step.function, args, tuple(kwargs.items())))
            self._made[id(value)] = places[-1]
        return self._made[id(value)]

    def add(
        self, function: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
    ) -> Input:
        self._steps.append(Operation(function, args, kwargs, ()))
        return Input(-len(self._steps))

    def composition(self, count: int) -> Composition:
        """The function of `count` operands that makes all steps and returns what the last does."""
        places = [Input(n) for n in range(count)]
        results = [Input(count + n) for n in range(len(self._steps))]
        order = [*places, *reversed(results)]  # the first step's result is -1, at the end
        steps = list[Operation]()
        for step in self._steps:
            args, kwargs = filled((step.args, dict(step.kwargs)), order)
            steps.append(Operation(step.function, args, tuple(kwargs.items()), ()))
        return Composition(tuple(steps))

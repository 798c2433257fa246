"""The result of the traced function as yields of main and an OutputSpec."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stretto.capture.result import InputLeaf, Node, OutputSpec, PythonLeaf, ResultLeaf
from stretto.capture.scalars import known_value
from stretto.capture.signals import fail
from stretto.capture.sources import Source
from stretto.capture.state import TracedList, is_box
from stretto.capture.tensor import TracedTensor
from stretto.capture.tracer import tracer
from stretto.ir.core import Value


@dataclass(eq=False)
class _Flattener:
    inputs: dict[int, int]
    yields: list[Value] = field(default_factory=list[Value])
    seen: dict[int, OutputSpec] = field(default_factory=dict[int, OutputSpec])

    def spec(self, value: Any) -> OutputSpec:
        if id(value) not in self.seen or not isinstance(value, TracedTensor | TracedList):
            self.seen[id(value)] = self._spec(value)
        return self.seen[id(value)]

    def _spec(self, value: Any) -> OutputSpec:
        match value:
            case TracedTensor():
                return self._tensor(value)
            case TracedList():
                self.yields.append(tracer().current(value.memory))
                return ResultLeaf(len(self.yields) - 1, value.numbers)
            case Source():
                return self._node(list, [self.spec(item) for item in value])
            case dict():
                return self._dict(value)
            case tuple():
                build = functools.partial(_tuple, type(value))
                return self._node(build, [self.spec(item) for item in value])
            case list():
                return self._node(list, [self.spec(item) for item in value])
            case str() if "<traced " in value:
                fail(
                    "a returned text shows a value that is known only when the program runs",
                    "return the value, and make the text outside of the compiled function",
                )
            case nn.Module() | torch.Tensor() | type():
                return PythonLeaf(value)
            case _ if is_box(value) or dataclasses.is_dataclass(value):
                return self._record(value)
            case _:
                return PythonLeaf(value)

    def _tensor(self, value: TracedTensor) -> OutputSpec:
        if id(value) in self.inputs:
            return InputLeaf(self.inputs[id(value)])
        for constant in tracer().constants.values():
            if constant.traced is value:
                return PythonLeaf(constant.tensor)
        known = known_value(value)
        if known is not None:
            return PythonLeaf(known)
        self.yields.append(tracer().read(value))
        return ResultLeaf(len(self.yields) - 1, value.number is not None)

    def _node(self, build: Callable[[Sequence[Any]], Any], children: list[OutputSpec]) -> Node:
        return Node(build, tuple(children))

    def _dict(self, value: dict[Any, Any]) -> OutputSpec:
        keys, kind = list(value), type(value)

        def build(items: Sequence[Any]) -> Any:
            pairs = dict(zip(keys, items, strict=True))
            return pairs if kind is dict else kind(pairs)

        return self._node(build, [self.spec(item) for item in value.values()])

    def _record(self, value: Any) -> OutputSpec:
        """An object, rebuilt without calling its class."""
        kind = type(value)
        names = (
            list(vars(value))
            if hasattr(value, "__dict__")
            else [item.name for item in dataclasses.fields(value)]
        )

        def build(items: Sequence[Any]) -> Any:
            made = object.__new__(kind)
            for name, item in zip(names, items, strict=True):
                object.__setattr__(made, name, item)
            return made

        return self._node(build, [self.spec(getattr(value, name)) for name in names])


def _tuple(kind: type, items: Sequence[Any]) -> Any:
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def describe_output(result: Any, inputs: dict[int, int]) -> tuple[list[Value], OutputSpec]:
    """Values that main yields for `result`, and how to rebuild it.

    `inputs` maps the id of each input's traced tensor to its number.
    """
    flattener = _Flattener(inputs)
    spec = flattener.spec(result)
    return flattener.yields, spec

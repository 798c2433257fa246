"""What `capture` hands to the caller: a Program and how to bind and rebuild Python values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stretto.capture.guards import Guards
from stretto.ir.core import Program


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """Tensor leaf `index` of `tree_flatten((args, kwargs))`, counting tensor leaves only."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class External:
    """A buffer or closure tensor that the program changes; `name` is its qualified name."""

    tensor: torch.Tensor
    name: str


InputBinding = ArgumentLeaf | External


@dataclass(frozen=True, slots=True, eq=False)
class ConstantSource:
    """A tensor whose content the Program relies on.

    `key` names it in `Program.constants`, or is None when its value was only read while capturing.
    `owner[name]` still being `tensor`, at `version`, means that the Program is still right.
    `owner` is None for closure tensors and globals. Inference tensors have no version.
    """

    key: str | None
    tensor: torch.Tensor
    version: int | None
    address: int
    owner: dict[str, Any] | None
    name: str | None

    def is_current(self) -> bool:
        """Whether the tensor is unchanged since capture, and still what its owner holds."""
        if self.version is not None and self.tensor._version != self.version:
            return False
        if self.tensor.data_ptr() != self.address:
            return False
        if self.owner is None or self.name is None:
            return True
        return self.owner.get(self.name) is self.tensor


@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """Yield `index` of main: a tensor, or a list of tensors. `number`: as Python numbers."""

    index: int
    number: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PythonLeaf:
    """A value that does not depend on the inputs' content, returned as it is."""

    value: Any


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """The tensor bound to input `index` itself, so identity is kept."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A container: `build` makes it from its children."""

    build: Callable[[Sequence[Any]], Any]
    children: tuple[OutputSpec, ...]


OutputSpec = ResultLeaf | PythonLeaf | InputLeaf | Node


def build_output(spec: OutputSpec, results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
    """The Python result from the yields of main and the tensors bound to its params."""
    match spec:
        case ResultLeaf(index, number):
            found = results[index]
            if not number:
                return found
            return [item.item() for item in found] if isinstance(found, list) else found.item()
        case PythonLeaf(value):
            return value
        case InputLeaf(index):
            return inputs[index]
        case Node(build, children):
            return build([build_output(child, results, inputs) for child in children])


@dataclass(frozen=True, slots=True)
class Mutation:
    """After a run, result `result` is to be copied into input `input`."""

    input: int
    result: int


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A captured function. `inputs` has one entry per param of main, in order.

    `guards`: what else it was captured with; see `guards.py`.
    `writes`: something is changed in place, so that it matters which views are copies.
    """

    program: Program
    inputs: tuple[InputBinding, ...]
    constants: tuple[ConstantSource, ...]
    output: OutputSpec
    mutations: tuple[Mutation, ...]
    notes: tuple[str, ...]
    guards: Guards
    writes: bool

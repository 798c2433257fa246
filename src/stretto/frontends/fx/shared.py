"""Outputs of a graph that share memory with one of its inputs, or with another output.

A Program computes values, and gives each result memory of its own. Which memory eager PyTorch would
give is known from the fake tensors that Dynamo has put into the graph: a view is made again from
its base after each run.
"""

# pyright: reportPrivateUsage=false
# the identity of a storage has no public name

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from stretto.frontends.fx.graph import GraphFunction

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharedOutput:
    """Output `output` is a view of an input, or of another output.

    geometry: size, strides and offset, from the values of the inputs that are integers.
    """

    output: int
    base: int
    of_input: bool
    geometry: Callable[[Sequence[Any]], tuple[Sizes, Sizes, int]]

    def made(self, inputs: Sequence[Any], results: Sequence[Any]) -> torch.Tensor:
        """The view, from what the graph was given and what it has returned."""
        base = inputs[self.base] if self.of_input else results[self.base]
        size, strides, offset = self.geometry(inputs)
        return base.as_strided(size, strides, offset)


def shared_outputs(graph: GraphFunction) -> tuple[SharedOutput, ...]:
    """All of them, in order. The graph returns a flat tuple, as graphs of Dynamo do."""
    inputs = [_fake_of(node) for node in graph.inputs]
    outputs = [_fake_of(node) for node in graph.outputs]
    homes = {_storage(fake): (n, True) for n, fake in enumerate(inputs) if fake is not None}
    for number, fake in enumerate(outputs):
        if fake is not None and _is_whole(fake):
            homes.setdefault(_storage(fake), (number, False))
    symbols = {
        node.meta["example_value"].node.expr: position
        for position, node in enumerate(graph.inputs)
        if isinstance(node.meta.get("example_value"), torch.SymInt)
    }
    found: list[SharedOutput] = []
    for number, fake in enumerate(outputs):
        base, of_input = homes.get(_storage(fake), (number, False)) if fake is not None else (0, 0)
        if fake is not None and (base, of_input) != (number, False):
            found.append(SharedOutput(number, base, bool(of_input), _geometry(fake, symbols)))
    return tuple(found)


def _fake_of(node: Any) -> torch.Tensor | None:
    fake = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return fake if isinstance(fake, torch.Tensor) and fake.layout is torch.strided else None


def _storage(fake: torch.Tensor | None) -> int:
    return 0 if fake is None else fake.untyped_storage()._cdata


def _is_whole(fake: torch.Tensor) -> bool:
    """Whether a tensor has all that its storage has, in order."""
    count: Any = 1
    for size, stride in reversed(list(zip(map(_term, fake.shape), fake.stride(), strict=True))):
        if size != 1 and _term(stride) != count:
            return False
        count = count * size
    bytes_held = _term(fake.untyped_storage().nbytes())
    return _term(fake.storage_offset()) == 0 and bytes_held == count * fake.element_size()


def _term(number: Any) -> Any:
    """A number, or the expression of a symbolic one, to compare without making guards."""
    return number.node.expr if isinstance(number, torch.SymInt) else number


def _geometry(
    fake: torch.Tensor, symbols: dict[Any, int]
) -> Callable[[Sequence[Any]], tuple[Sizes, Sizes, int]]:
    parts: tuple[Any, ...] = (tuple(fake.shape), tuple(fake.stride()), fake.storage_offset())
    leaves, spec = pytree.tree_flatten(parts)
    if all(isinstance(leaf, int) for leaf in leaves):
        return lambda inputs: parts  # pyright: ignore[reportReturnType]
    terms = list(map(_term, leaves))
    names, positions = tuple(symbols), tuple(symbols.values())

    @lru_cache(_MOST_GEOMETRIES)
    def computed(*values: int) -> Any:
        known = {name: sympy.Integer(value) for name, value in zip(names, values, strict=True)}
        found = [int(sympy.sympify(term).xreplace(known)) for term in terms]
        return pytree.tree_unflatten(found, spec)

    return lambda inputs: computed(*(inputs[position] for position in positions))


_MOST_GEOMETRIES = 64
"""Geometries of one view that are remembered."""

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

    geometry: size, strides, and by how many bytes it begins behind the base, from the values of the
    inputs that are integers. Where the base itself begins in its memory is known at the call only.
    """

    output: int
    base: int
    of_input: bool
    dtype: torch.dtype
    geometry: Callable[[Sequence[Any]], tuple[Sizes, Sizes, int]]

    def made(self, inputs: Sequence[Any], results: Sequence[Any]) -> torch.Tensor:
        """The view, from what the graph was given and what it has returned."""
        base: torch.Tensor = inputs[self.base] if self.of_input else results[self.base]
        size, strides, distance = self.geometry(inputs)
        start = base.storage_offset() * base.element_size() + distance
        offset = start // self.dtype.itemsize
        if base.dtype == self.dtype:
            return base.as_strided(size, strides, offset)
        made = torch.empty(0, dtype=self.dtype, device=base.device)
        return made.set_(base.untyped_storage(), offset, size, strides)


def shared_outputs(graph: GraphFunction) -> tuple[SharedOutput, ...]:
    """All of them, in order. The graph returns a flat tuple, as graphs of Dynamo do."""
    positions = {node: number for number, node in enumerate(graph.inputs)}
    outputs = [_fake_of(node) for node in graph.outputs]
    whole: dict[int, int] = {}
    for number, fake in enumerate(outputs):
        if fake is not None and _is_whole(fake):
            whole.setdefault(_storage(fake), number)
    symbols = {
        node.meta["example_value"].node.expr: position
        for position, node in enumerate(graph.inputs)
        if isinstance(node.meta.get("example_value"), torch.SymInt)
    }
    found: list[SharedOutput] = []
    for number, (node, fake) in enumerate(zip(graph.outputs, outputs, strict=True)):
        if fake is None:
            continue
        origin = _origin(node, _storage(fake))
        base = whole.get(_storage(fake), number) if origin is None else positions[origin]
        source = outputs[base] if origin is None else _fake_of(origin)
        if source is not None and (origin is not None or base != number):
            of_input = origin is not None
            geometry = _geometry(fake, source, symbols)
            found.append(SharedOutput(number, base, of_input, fake.dtype, geometry))
    return tuple(found)


def _origin(node: fx.Node, storage: int) -> fx.Node | None:
    """The input whose memory a node gives, followed from view to view: two inputs that share memory
    in one call need not share it in another."""
    while node.op != "placeholder":
        sources = (source for source in node.all_input_nodes if storage in _storages(source))
        found = next(sources, None)
        if found is None:
            return None
        node = found
    return node


def _storages(node: fx.Node) -> set[int]:
    leaves = pytree.tree_leaves(node.meta.get("example_value"))
    return {_storage(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}


def _fake_of(node: Any) -> torch.Tensor | None:
    fake = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        return None
    return None if fake.is_conj() or fake.is_neg() else fake


def _storage(fake: torch.Tensor) -> int:
    while _of_functorch(fake):
        fake = _functorch.get_unwrapped(fake)  # what `vmap` has wrapped has no storage
    return fake.untyped_storage()._cdata if fake.layout is torch.strided else 0


_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
_of_functorch = _functorch.is_functorch_wrapped_tensor


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
    fake: torch.Tensor, source: torch.Tensor, symbols: dict[Any, int]
) -> Callable[[Sequence[Any]], tuple[Sizes, Sizes, int]]:
    start, base = (_term(x.storage_offset()) * x.element_size() for x in (fake, source))
    parts: tuple[Any, ...] = (tuple(fake.shape), tuple(fake.stride()), start - base)
    leaves, spec = pytree.tree_flatten(parts)
    if all(isinstance(leaf, int | sympy.Integer) for leaf in leaves):
        parts = pytree.tree_unflatten(list(map(int, leaves)), spec)
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

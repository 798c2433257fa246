"""Conversion of FX graphs, as Dynamo and torch.export make them, to Programs.

A graph is run node by node under the tracer of `frontends.python`, which handles operators, shared
memory and in-place writes; so both frontends give the same program for the same operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from stretto.errors import SourceLocation
from stretto.frontends.python import call_in_program
from stretto.frontends.python.tracing.locations import at, place_of_trace
from stretto.frontends.python.tracing.tracer import active


@dataclass(frozen=True, slots=True, eq=False)
class GraphFunction:
    """The function that an FX graph computes. Outside of a capture it runs eagerly.

    owner: holds the tensors and inner graphs that nodes refer to. places: the user's line of
    each node.
    """

    owner: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    places: tuple[SourceLocation | None, ...]
    inputs: tuple[fx.Node, ...]

    @staticmethod
    def of(owner: fx.GraphModule) -> GraphFunction:
        """Return the function of a module's graph."""
        nodes = tuple(owner.graph.nodes)
        inputs = tuple(node for node in nodes if node.op == "placeholder")
        return GraphFunction(
            owner, nodes, tuple(place_of_trace(node.stack_trace) for node in nodes), inputs
        )

    @property
    def sizes(self) -> dict[int, tuple[int, int]]:
        """Inputs that always equal a size of an input tensor: maps the input's position to the
        position of the tensor and the dim."""
        places: dict[Any, tuple[int, int]] = {}
        for number, node in enumerate(self.inputs):
            fake = node.meta.get("example_value")
            for dim, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt):
                    places.setdefault(size.node.expr, (number, dim))
        examples = [node.meta.get("example_value") for node in self.inputs]
        return {
            number: places[example.node.expr]
            for number, example in enumerate(examples)
            if isinstance(example, torch.SymInt) and example.node.expr in places
        }

    @property
    def outputs(self) -> Any:
        """The returned nodes, in their containers."""
        return self.nodes[-1].args[0]

    def __call__(self, *args: Any) -> Any:
        if active() is None:
            return self.owner(*args)
        values: dict[fx.Node, Any] = {}
        grad_mode = torch.is_grad_enabled()
        try:
            given = iter(args)
            for node, place in zip(self.nodes, self.places, strict=True):
                if node.op == "placeholder":
                    values[node] = next(given, *node.args)
                elif node.op != "output":
                    with at(place):
                        values[node] = self._run(node, values)
        except BaseException:
            torch.set_grad_enabled(grad_mode)
            _leave_contexts(values)
            raise
        return fx.map_arg(self.outputs, values.__getitem__)

    def _run(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        target: Any = node.target
        if node.op == "get_attr":
            return self._attribute(target)
        args = fx.map_arg(node.args, values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, values.__getitem__)
        if node.op == "call_method":
            receiver, *rest = args
            if target == "item" and isinstance(receiver, float):
                return receiver  # Dynamo takes floats out of tensors
            return call_in_program(getattr(receiver, target), *rest, **kwargs)
        called = self._attribute(target) if node.op == "call_module" else target
        return call_in_program(called, *args, **kwargs)

    def _attribute(self, path: str) -> Any:
        """Return the owner's attribute at a dotted path; an inner graph becomes a GraphFunction."""
        found: Any = self.owner
        for name in path.split("."):
            found = getattr(found, name)
        return GraphFunction.of(found) if isinstance(found, fx.GraphModule) else found


@dataclass(frozen=True, slots=True, eq=False)
class BoundGraph:
    """A graph with some inputs bound to fixed tensors, which become constants of its Program.

    fixed: these tensors, by input position. sizes: inputs that equal a size of an input tensor,
    as in `GraphFunction.sizes`; callers do not pass them. views: positions of outputs that the
    caller derives from other tensors; they are returned as None.
    """

    graph: GraphFunction
    fixed: dict[int, torch.Tensor]
    sizes: dict[int, tuple[int, int]]
    views: frozenset[int] = frozenset()

    @property
    def __name__(self) -> str:
        return type(self.graph.owner).__name__

    def __call__(self, *args: Any) -> Any:
        given = iter(args)
        whole: list[Any] = []
        for number in range(len(self.graph.inputs)):
            is_given = number not in self.fixed and number not in self.sizes
            whole.append(next(given) if is_given else self.fixed.get(number))
        for number, (tensor, dim) in self.sizes.items():
            whole[number] = whole[tensor].shape[dim]
        results = self.graph(*whole)
        if not self.views:
            return results
        return tuple(None if n in self.views else x for n, x in enumerate(results))


def _leave_contexts(values: dict[fx.Node, Any]) -> None:
    """Leave the autocast, inference-mode and functorch contexts that nodes have entered, after an
    error.

    Such a node calls a function named `_enter_*` or `_increment_*`, and another node calls its
    counterpart in the same module. An error in between must not leave the process in that state.
    """
    begun: list[tuple[Any, Any]] = []
    for node, value in values.items():
        counterpart = _counterpart(node.target)
        if counterpart is not None:
            begun.append((counterpart, value))
        elif begun and begun[-1][0] is node.target:
            begun.pop()
    for end, value in reversed(begun):
        end(*(() if "nesting" in end.__name__ else (value,)))


def _counterpart(target: Any) -> Any:
    name = getattr(target, "__name__", "")
    for begin, end in (("_enter_", "_exit_"), ("_increment_", "_decrement_")):
        if name.startswith("_") and begin in name:
            module = sys.modules.get(getattr(target, "__module__", ""))
            return getattr(module, name.replace(begin, end), None)
    return None


# ---- Outputs of a graph that share memory with an input, or with another output ---------------
#
# A Program gives each result separate memory. The fake tensors that Dynamo put into the graph
# show which outputs share memory in eager PyTorch: such a view is derived from its base again
# after each run.


# pyright: reportPrivateUsage=false
# Private use: torch has no public name for the identity of a storage.


Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharedOutput:
    """An output that is a view of an input or of another output, the base.

    geometry: computes sizes, strides and the distance in bytes from the start of the base, from the
    values of the inputs that are integers. The base's own storage offset is known only at the call.
    """

    output: int
    base: int
    of_input: bool
    dtype: torch.dtype
    geometry: Callable[[Sequence[Any]], tuple[Sizes, Sizes, int]]

    def made(self, inputs: Sequence[Any], results: Sequence[Any]) -> torch.Tensor:
        """Return the view, given the graph's inputs and results."""
        base: torch.Tensor = inputs[self.base] if self.of_input else results[self.base]
        size, strides, distance = self.geometry(inputs)
        start = base.storage_offset() * base.element_size() + distance
        offset = start // self.dtype.itemsize
        if base.dtype == self.dtype:
            return base.as_strided(size, strides, offset)
        made = torch.empty(0, dtype=self.dtype, device=base.device)
        return made.set_(base.untyped_storage(), offset, size, strides)


def shared_outputs(graph: GraphFunction) -> tuple[SharedOutput, ...]:
    """Return all outputs that are views, in order. The graph must return a flat tuple, as Dynamo's
    do."""
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
    """Return the input whose memory a node shares, found by following views back; None if there is
    none. Two inputs that share memory in one call need not share it in another."""
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
        fake = _functorch.get_unwrapped(fake)  # a tensor that `vmap` has wrapped has no storage
    return fake.untyped_storage()._cdata if fake.layout is torch.strided else 0


_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
_of_functorch = _functorch.is_functorch_wrapped_tensor


def _is_whole(fake: torch.Tensor) -> bool:
    """True if a tensor covers its whole storage, contiguously."""
    count: Any = 1
    for size, stride in reversed(list(zip(map(_term, fake.shape), fake.stride(), strict=True))):
        if size != 1 and _term(stride) != count:
            return False
        count = count * size
    bytes_held = _term(fake.untyped_storage().nbytes())
    return _term(fake.storage_offset()) == 0 and bytes_held == count * fake.element_size()


def _term(number: Any) -> Any:
    """Return a number, or the expression of a symbolic one, so that comparing adds no guards."""
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
"""Number of geometries of one view to cache."""

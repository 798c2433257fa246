"""A graph as a function that can be captured: each node is called, at the line it comes from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stretto.errors import SourceLocation
from stretto.frontends.python import staging
from stretto.frontends.python.tracing.locations import at, place_of_trace
from stretto.frontends.python.tracing.tracer import active


@dataclass(frozen=True, slots=True, eq=False)
class GraphFunction:
    """The function that an FX graph performs. Outside of a capture it runs eager.

    owner: has the tensors and the inner graphs that nodes name. places: the user's line of each
    node.
    """

    owner: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    places: tuple[SourceLocation | None, ...]
    inputs: tuple[fx.Node, ...]

    @staticmethod
    def of(owner: fx.GraphModule) -> GraphFunction:
        nodes = tuple(owner.graph.nodes)
        inputs = tuple(node for node in nodes if node.op == "placeholder")
        return GraphFunction(
            owner, nodes, tuple(place_of_trace(node.stack_trace) for node in nodes), inputs
        )

    @property
    def sizes(self) -> dict[int, tuple[int, int]]:
        """The inputs that are always a size of a tensor among the inputs, by position: the position
        of the tensor, and the dim."""
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
        """The nodes that are returned, in their containers."""
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
            return staging.call(getattr(receiver, target), *rest, **kwargs)
        called = self._attribute(target) if node.op == "call_module" else target
        return staging.call(called, *args, **kwargs)

    def _attribute(self, path: str) -> Any:
        """What the owner has under a name; an inner graph is a function of this kind, too."""
        found: Any = self.owner
        for name in path.split("."):
            found = getattr(found, name)
        return GraphFunction.of(found) if isinstance(found, fx.GraphModule) else found


@dataclass(frozen=True, slots=True, eq=False)
class BoundGraph:
    """A graph some of whose inputs are fixed tensors, which become constants of its Program.

    fixed: these tensors, by position among the inputs. sizes: the inputs that are a size of a
    tensor among the inputs: its position and the dim; they are not passed. views: positions of
    outputs that the caller makes from others; they are None.
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
    """Ends autocast, inference mode and the levels of functorch that nodes have begun.

    Such a node calls a function whose name says so, and another node calls its counterpart of the
    same module. An error in between must not leave the process in that state.
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

"""JAX programs of models that run straight through, from torch.export's graph of ATen operators.

Each operator is computed by its JAX function in `jax_operators.py` or `jax_windows.py`. As
in a program written by hand, batch norms are folded into the convolutions before them, and
everything that does not depend on the inputs is computed once, before the first call.
"""

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import torch
from jax import numpy as jnp
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from .base import Skipped
from .jax_layers import Program
from .jax_operators import NOTHING, OPERATORS
from .jax_windows import BATCH_NORM, CONVOLUTION

# Larger graphs, which come from unrolled loops over steps, take XLA many minutes to compile.
MOST_OPERATORS = 5000

# Keywords about memory and devices, which JAX decides itself.
_OF_MEMORY = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})

Values = dict[Node, Any]


def graph_program(module: nn.Module, inputs: Sequence[Tensor]) -> Program:
    """Return a function of (weights, *inputs) that lists the outputs, and its weights. Raises
    `Skipped` for a model that torch.export rejects, that changes its own buffers, or that has
    an operator without a JAX function."""
    program = exported(module, inputs)
    graph = program.graph
    require_known(graph)
    free, held = _placeholders(program)
    fold_norms(graph, held)
    before, steps = _split(graph, free)
    values: Values = {node: jnp.asarray(value.numpy()) for node, value in held.items()}
    results = graph.output_node().args[0]
    read = {source for node in steps for source in node.all_input_nodes}
    read |= set(graph.output_node().all_input_nodes)
    values |= _computed(before, values, read)
    kept = [node for node in values if node in read]

    def run(weights: Sequence[jax.Array], *arrays: jax.Array) -> Any:
        environment: Values = dict(zip((*kept, *free), (*weights, *arrays), strict=True))
        with jax.default_matmul_precision("highest"):
            evaluate(steps, environment)
        return map_arg(results, environment.__getitem__)

    return run, [values[node] for node in kept]


def exported(module: nn.Module, inputs: Sequence[Tensor]) -> ExportedProgram:
    """Export the module as a graph of core ATen operators without mutation, for inputs of these
    sizes."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = export(module, tuple(inputs)).run_decompositions()
    except Exception as reason:  # torch.export raises whatever tracing a model raises
        first = f"{type(reason).__name__}: {reason}".strip().splitlines()[0]
        raise Skipped(f"torch.export takes no {type(module).__name__}: {first}") from reason
    if any(spec.kind != OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise Skipped(f"{type(module).__name__} changes its buffers or its inputs")
    return program


def require_known(graph: Graph) -> None:
    """Raise `Skipped` for a graph with too many operators, or with one that has no JAX function."""
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    names = {_overload(node) for node in calls}
    unknown = sorted(names - OPERATORS.keys() - NOTHING)
    if unknown:
        raise Skipped(f"no JAX function is written for {', '.join(unknown)}")
    if len(calls) > MOST_OPERATORS:
        raise Skipped(
            f"the exported graph has {len(calls)} operators, its loops unrolled; above "
            f"{MOST_OPERATORS} XLA compiles for many minutes"
        )


def _overload(node: Node) -> str:
    return "getitem" if node.target is operator.getitem else str(node.target)


def _placeholders(program: ExportedProgram) -> tuple[list[Node], dict[Node, Tensor]]:
    """Return the placeholders of the inputs, and those of parameters, buffers and constants with
    values."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    free: list[Node] = []
    held: dict[Node, Tensor] = {}
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            free.append(node)
            continue
        known = program.state_dict
        state: Mapping[str, Any] = known if spec.target in known else program.constants
        value = state[str(spec.target)]
        if not isinstance(value, Tensor):
            raise Skipped(f"the graph has a constant that is no tensor: {spec.target}")
        held[node] = value.detach()
    return free, held


def fold_norms(graph: Graph, held: dict[Node, Tensor]) -> None:
    """Merge each batch norm into the convolution before it, unless other nodes read the
    convolution's result, its weight, or the norm's bias, which becomes the convolution's.
    Changes the graph and the weights' values."""
    for norm in list(graph.nodes):
        if norm.op != "call_function" or _overload(norm) != BATCH_NORM:
            continue
        arguments: Any = norm.args
        conv, *parameters = arguments[:5]
        if not _folds(conv, parameters, norm, held):
            continue
        scaling, shift, mean, variance = (held[node].double() for node in parameters)
        scale = scaling / torch.sqrt(variance + arguments[6])
        weight, bias = conv.args[1:3]
        offset = -mean if bias is None else held[bias].double() - mean
        shape = (-1, *(1,) * (held[weight].ndim - 1))
        held[weight] = (held[weight].double() * scale.reshape(shape)).to(held[weight].dtype)
        held[parameters[1]] = (shift + offset * scale).to(held[weight].dtype)
        conv.update_arg(2, parameters[1])
        for part in list(norm.users):
            part.replace_all_uses_with(conv)
            graph.erase_node(part)
        graph.erase_node(norm)


def _folds(conv: Any, parameters: Sequence[Any], norm: Node, held: Mapping[Node, Tensor]) -> bool:
    if not isinstance(conv, Node) or conv.op != "call_function" or _overload(conv) != CONVOLUTION:
        return False
    if any(part.target is not operator.getitem or part.args[1] != 0 for part in norm.users):
        return False
    arguments: Any = conv.args
    weight, bias, transposed = arguments[1], arguments[2], arguments[6]
    read = [weight, *parameters, *([] if bias is None else [bias])]
    owned = [conv, weight, parameters[1]]
    known = all(isinstance(node, Node) and node in held for node in read)
    return known and not transposed and all(len(node.users) == 1 for node in owned)


def _split(graph: Graph, free: Iterable[Node]) -> tuple[list[Node], list[Node]]:
    """Return the operators that do not depend on the inputs, and those that do; both in order."""
    depending = set(free)
    before: list[Node] = []
    steps: list[Node] = []
    for node in graph.nodes:
        if node.op != "call_function" or _overload(node) in NOTHING:
            continue
        if depending.isdisjoint(node.all_input_nodes):
            before.append(node)
        else:
            depending.add(node)
            steps.append(node)
    return before, steps


def _computed(before: Sequence[Node], values: Values, read: set[Node]) -> Values:
    """Compute the operators in `before`; return the values that others read."""
    wanted = [node for node in before if node in read]
    if not wanted:
        return {}
    sources = {source for node in before for source in node.all_input_nodes}
    given = [node for node in values if node in sources]

    def run(arrays: Sequence[jax.Array]) -> Any:
        environment = dict(zip(given, arrays, strict=True))
        with jax.default_matmul_precision("highest"):
            evaluate(before, environment)
        return [environment[node] for node in wanted]

    results = jax.jit(run)([values[node] for node in given])
    return dict(zip(wanted, results, strict=True))


def evaluate(nodes: Iterable[Node], environment: Values) -> None:
    """Compute the nodes in order, and add their values."""
    for node in nodes:
        function: Callable[..., Any] = OPERATORS[_overload(node)]
        positional = map_arg(node.args, environment.__getitem__)
        named = {name: node.kwargs[name] for name in node.kwargs if name not in _OF_MEMORY}
        environment[node] = function(*positional, **map_arg(named, environment.__getitem__))

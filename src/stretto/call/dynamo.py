"""`torch.compile(model, backend="stretto")`: the backend that torch's registry finds.

Dynamo passes graphs that have the parameters and buffers of modules among their inputs. Programs
treat these as constants, so that they may be packed. Modules of one class share a graph, so each
call finds its program by the identity of these tensors.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import is_
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stretto.call.compiled import Compiled
from stretto.call.compiler import AUTO, choose_machine, require_backend
from stretto.call.entry import Entry
from stretto.errors import CaptureError, StrettoWarning
from stretto.frontends.fx import BoundGraph, GraphFunction, shared_outputs
from stretto.frontends.python.tracing.admission import active_transformation
from stretto.options import Options

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""The modes of torch.compile. All have the same effect: a program of stretto is one launch, with
kernels chosen by cost, in each of them."""

MOST_MODULES = 64
"""Number of modules sharing a graph that get their own programs. Further ones share one program
that takes their parameters as inputs."""

_graphs: weakref.WeakValueDictionary[int, Compiled] = weakref.WeakValueDictionary()
_numbers = count()


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return a function that compiles a graph of Dynamo at its first call.

    mode: one of torch's modes; all have the same effect. options: fields of
    `stretto.Options`, and "backend", the machine. A graph that needs gradients runs eager,
    with a `StrettoWarning`. Raises ValueError for unknown modes and options.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    machine, settings = _settings(options or {})
    graph = GraphFunction.of(module)
    grad_mode = torch.is_grad_enabled()
    if wants_gradients(graph, example_inputs):
        warnings.warn(_EAGER, StrettoWarning, stacklevel=2)
        return module.forward
    programs = GraphPrograms(graph, _held_by_modules(graph), machine, settings)
    return torch.no_grad()(programs) if grad_mode else programs


_EAGER = (
    "a result of a graph requires grad and training is not supported yet: it runs eager. Call it "
    "under torch.no_grad() to run it compiled."
)


def graphs() -> tuple[Compiled, ...]:
    """Return Dynamo's graphs that are compiled now, oldest first, each with its `explain()`."""
    return tuple(_graphs.values())


def _settings(options: dict[str, Any]) -> tuple[str, Options]:
    """Split torch.compile's `options` into the machine's name and the Options."""
    given = dict(options)
    machine = given.pop("backend", AUTO)
    known = tuple(Options().settings())
    for name in given:
        if name not in known:
            shown = ", ".join(("backend", *known))
            raise ValueError(f"{name!r} is not an option of stretto; known are {shown}")
    require_backend(machine)
    return machine, Options.of(given)


def wants_gradients(graph: GraphFunction, examples: Sequence[Any]) -> bool:
    """Return True if a result of the graph, or an input that it changes, requires grad: because
    grad mode is on, or the graph turns it on."""
    outputs = pytree.tree_leaves(graph.outputs)
    made = [item.meta.get("example_value") for item in outputs if isinstance(item, fx.Node)]
    changed = (
        requires_grad(node.meta.get("example_value")) and not requires_grad(example)
        for node, example in zip(graph.inputs, examples, strict=False)
    )
    return any(map(requires_grad, made)) or any(changed)


def requires_grad(value: Any) -> bool:
    """Return True for a tensor that requires grad."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def _held_by_modules(graph: GraphFunction) -> dict[int, bool]:
    """Return the positions of inputs that are parameters (True) or buffers (False) of modules."""
    found: dict[int, bool] = {}
    for number, node in enumerate(graph.inputs):
        source: Any = getattr(node.meta.get("grapharg"), "source", None)
        name: Any = getattr(source, "name", "")
        owner = _OF_MODULE.search(str(name() if callable(name) else name))
        if owner is not None:
            found[number] = owner[1] == "parameters"
    return found


def _floats(graph: GraphFunction) -> frozenset[int]:
    """Return the positions of the inputs that are Python floats."""
    return frozenset(
        number
        for number, node in enumerate(graph.inputs)
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
    )


_OF_MODULE = re.compile(r"\._(parameters|buffers)\['[^']*'\]$")
"""The end of the name that Dynamo gives to a parameter or buffer of a module."""


class GraphPrograms:
    """The callable that replaces a graph for Dynamo: one compiled function per module that uses it.

    held: positions of the inputs that modules hold, each with True for a parameter. A buffer that
    the module replaces by another tensor is an input from then on. floats: positions of Python
    floats that may change, which Dynamo passes as tensors. If an operator needs such a float as a
    number, there is one program per value.
    """

    def __init__(
        self,
        graph: GraphFunction,
        held: dict[int, bool],
        machine: str,
        settings: Options,
    ) -> None:
        self.graph, self.machine, self.settings = graph, machine, settings
        self.parameters = [n for n, is_parameter in held.items() if is_parameter]
        self.buffers = [n for n, is_parameter in held.items() if not is_parameter]
        self.shared = shared_outputs(graph)
        self.floats = _floats(graph)
        self.sizes = graph.sizes
        self.has_sizes = any(
            isinstance(node.meta.get("example_value"), torch.SymInt) for node in graph.inputs
        )
        self._specialised = False
        self._modules: dict[tuple[int, ...], _OneModule] = {}
        self._last: _OneModule | None = None

    def __call__(self, *args: Any) -> Any:
        results = self._run(args)
        if not self.shared:
            return results
        results = list(results)
        for item in self.shared:
            results[item.output] = item.made(args, results)
        return tuple(results)

    def _run(self, args: tuple[Any, ...]) -> Any:
        """Run the program for these parameters and buffers; if floats cannot be tensors, pass them
        as numbers from then on."""
        given = args
        if self._specialised:
            given = [float(x) if n in self.floats else x for n, x in enumerate(args)]
        last = self._last
        if last is None or not last.serves(given):
            last = self._last = self._module(given)
        inputs: list[Any] = [given[n] for n in last.inputs]
        entry = last.entry
        if entry is not None and active_transformation() is None and entry.is_current():
            return entry(inputs)
        try:
            results = last.compiled(*inputs)
            if not (self.has_sizes or self._specialised) and all(map(torch.is_tensor, inputs)):
                last.entry = last.compiled.only_entry()
            return results
        except CaptureError:
            if self._specialised or not self.floats:
                raise
        self._specialised = True
        return self._run(args)

    def _module(self, args: Sequence[Any]) -> _OneModule:
        """Return the compiled function for these parameters and buffers."""
        if len(self._modules) < MOST_MODULES:
            parameters, buffers = self.parameters, self.buffers
        else:
            parameters, buffers = [], []
        key = tuple(id(args[n]) for n in parameters)
        found = self._modules.get(key)
        if found is not None and found.serves(args):
            return found
        if found is not None:
            buffers = [n for n in buffers if n in found.fixed and found.fixed[n] is args[n]]
        made = self._modules[key] = self._made(args, (*parameters, *buffers))
        return made

    def _made(self, args: Sequence[Any], positions: Iterable[int]) -> _OneModule:
        """Compile the graph with the tensors at `positions` as constants."""
        fixed = {n: args[n] for n in sorted(positions)}
        inputs = [n for n in range(len(args)) if n not in fixed and n not in self.sizes]
        views = frozenset(item.output for item in self.shared)
        bound = BoundGraph(self.graph, fixed, self.sizes, views)
        compiled = Compiled(bound, self.machine, self.settings, self._dynamic(args))
        _graphs[next(_numbers)] = compiled
        return _OneModule(fixed, tuple(fixed.values()), inputs, compiled)

    def _dynamic(self, args: Sequence[Any]) -> bool | None:
        """The `dynamic` argument of `stretto.compile`: None (sizes may become symbols) only if
        Dynamo made some sizes symbolic, since it guards all others; else False."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        takes_symbols = choose_machine(self.machine, tensors).takes_symbols
        return None if self.has_sizes and takes_symbols else False


@dataclasses.dataclass(slots=True, eq=False)
class _OneModule:
    """A graph bound to the tensors of one module. It holds the tensors, so that their ids stay
    unique.

    inputs: positions of the arguments that are passed to `compiled`. entry: the program of
    `compiled`, if it is right for all calls that Dynamo's guards let through.
    """

    fixed: dict[int, torch.Tensor]
    tensors: tuple[torch.Tensor, ...]
    inputs: list[int]
    compiled: Compiled
    entry: Entry | None = None

    def serves(self, args: Sequence[Any]) -> bool:
        """Return True if the arguments have the same parameters and buffers."""
        return all(map(is_, [args[n] for n in self.fixed], self.tensors))

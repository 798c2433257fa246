"""`torch.compile(model, backend="stretto")`: what torch's registry of backends finds.

Dynamo hands over graphs, with the parameters and buffers of modules among their inputs. Those are
constants of the programs, so that they may be packed; which tensors they are is found by identity
at each call, since modules of one class share a graph.
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
"""What torch.compile calls modes. A program of stretto is one launch, whose kernels are chosen by
cost, in each of them."""

MOST_MODULES = 64
"""Modules that share a graph and get programs of their own. Further ones share one program, to
which their parameters are inputs."""

_graphs: weakref.WeakValueDictionary[int, Compiled] = weakref.WeakValueDictionary()
_numbers = count()


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo, at its first call.

    mode: as torch has them; all are alike. options: fields of `stretto.Options`, and "backend", the
    machine. Where gradients are wanted the graph runs eager, with a `StrettoWarning`.
    Raises ValueError for unknown modes and options.
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
    """The graphs of Dynamo that are compiled now, oldest first, each with its `explain()`."""
    return tuple(_graphs.values())


def _settings(options: dict[str, Any]) -> tuple[str, Options]:
    """The machine and the settings that torch.compile's `options` name."""
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
    """True if a result of the graph or an input that it changes requires grad: with grad mode on,
    or where the graph switches it on."""
    outputs = pytree.tree_leaves(graph.outputs)
    made = [item.meta.get("example_value") for item in outputs if isinstance(item, fx.Node)]
    changed = (
        requires_grad(node.meta.get("example_value")) and not requires_grad(example)
        for node, example in zip(graph.inputs, examples, strict=False)
    )
    return any(map(requires_grad, made)) or any(changed)


def requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _held_by_modules(graph: GraphFunction) -> dict[int, bool]:
    """The inputs that are parameters (True) and buffers (False) of modules, by position."""
    found: dict[int, bool] = {}
    for number, node in enumerate(graph.inputs):
        source: Any = getattr(node.meta.get("grapharg"), "source", None)
        name: Any = getattr(source, "name", "")
        owner = _OF_MODULE.search(str(name() if callable(name) else name))
        if owner is not None:
            found[number] = owner[1] == "parameters"
    return found


def _floats(graph: GraphFunction) -> frozenset[int]:
    """Positions of the inputs that are Python floats."""
    return frozenset(
        number
        for number, node in enumerate(graph.inputs)
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
    )


_OF_MODULE = re.compile(r"\._(parameters|buffers)\['[^']*'\]$")
"""How Dynamo names what a module holds."""


class GraphPrograms:
    """What Dynamo calls in place of a graph: one compiled function per module that it serves.

    held: positions of the inputs that modules hold, and whether each is a parameter. A buffer that
    a module replaces by another one is an input from then on. floats: positions of Python floats,
    which Dynamo passes as tensors where they may change. Where an operator needs a number, there is
    a program for each.
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
        """The compiled function for these parameters and buffers."""
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
        fixed = {n: args[n] for n in sorted(positions)}
        inputs = [n for n in range(len(args)) if n not in fixed and n not in self.sizes]
        views = frozenset(item.output for item in self.shared)
        bound = BoundGraph(self.graph, fixed, self.sizes, views)
        compiled = Compiled(bound, self.machine, self.settings, self._dynamic(args))
        _graphs[next(_numbers)] = compiled
        return _OneModule(fixed, tuple(fixed.values()), inputs, compiled)

    def _dynamic(self, args: Sequence[Any]) -> bool | None:
        """Whether sizes may be symbols of a program, as `stretto.compile` has it: only where Dynamo
        has made some of them symbolic, for it guards all others."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        takes_symbols = choose_machine(self.machine, tensors).takes_symbols
        return None if self.has_sizes and takes_symbols else False


@dataclasses.dataclass(slots=True, eq=False)
class _OneModule:
    """A graph with the tensors of one module, which keep their identity as long as this is there.

    inputs: positions of what is passed to `compiled`. entry: its program, where that is right for
    whatever Dynamo's guards let through.
    """

    fixed: dict[int, torch.Tensor]
    tensors: tuple[torch.Tensor, ...]
    inputs: list[int]
    compiled: Compiled
    entry: Entry | None = None

    def serves(self, args: Sequence[Any]) -> bool:
        return all(map(is_, [args[n] for n in self.fixed], self.tensors))

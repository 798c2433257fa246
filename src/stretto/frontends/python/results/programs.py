"""The Program of a capture, with its inputs, results and changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.frontends.python.guards.guards import Guards
from stretto.frontends.python.results.captured import (
    Captured,
    Differentiable,
    JournalSpec,
    Mutation,
    ObjectState,
)
from stretto.frontends.python.results.inputs import Input, call_sizes, source_of
from stretto.frontends.python.tracing.tensor import FunctionContext
from stretto.frontends.python.tracing.tracer import TracedRegion, Tracer
from stretto.ir.core import Function, Program, Value
from stretto.ir.ops import CallOp

MakeCaptured = Callable[[Guards, ObjectState | None], Captured]
"""Makes the Captured from the guards and object state, which are read last."""


def finished(
    tracer: Tracer,
    context: FunctionContext,
    region: TracedRegion,
    inputs: list[Input],
    yields: list[Value],
    output: Any,
    mutations: list[Mutation],
    journal: JournalSpec | None,
) -> MakeCaptured:
    """Close the main function of a Program; return what makes the capture from its guards."""
    block = region.scope.block
    block.params = tuple(item.value for item in inputs)
    block.yields = tuple(yields)
    tracer.close_function(context, block)
    functions = reachable_functions(Function("main", block), tracer.functions)
    program = Program(functions)
    bound = [(item.binding, item.value) for item in inputs]
    sizes = call_sizes(tracer.sizes, program, bound, writes=tracer.writes)
    keys = {op.key for op in program.walk() if op.name == "constant"}  # type: ignore[attr-defined]
    used = [c for c in tracer.constants.values() if c.key in keys]
    program.constants = {c.key: c.tensor for c in used}
    read = [source_of(tracer, None, tensor) for tensor in tracer.read_values.values()]
    sources = [source_of(tracer, c.key, c.tensor) for c in used if c.guarded]
    return lambda guards, objects: Captured(
        program,
        tuple(item.binding for item in inputs),
        (*sources, *read),
        output,
        tuple(mutations),
        tuple(tracer.notes),
        guards,
        tracer.writes,
        tuple((n, item.real) for n, item in enumerate(inputs) if id(item.real) in tracer.met),
        objects,
        sizes,
        frozenset(tracer.windows),
        journal,
        Differentiable.of(tracer.gradients),
        tracer.tries.replaces,
    )


def reachable_functions(main: Function, functions: dict[str, Function]) -> dict[str, Function]:
    """Return main and the functions that are called from it, by name."""
    kept = {"main": main}
    pending = [main]
    while pending:
        for op in pending.pop().body.walk():
            if isinstance(op, CallOp) and op.function not in kept:
                kept[op.function] = functions[op.function]
                pending.append(functions[op.function])
    return kept

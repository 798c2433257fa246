"""`capture`: run a function on traced tensors and collect the Program that it performs."""

# pyright: reportPrivateUsage=false
# module parameters are private tables

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from types import GeneratorType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from stretto.errors import CaptureError, SourceLocation
from stretto.frontends.python import staging
from stretto.frontends.python.calls.generated import Generated
from stretto.frontends.python.calls.output_journal import intercepted_output
from stretto.frontends.python.control.settled import settles_more
from stretto.frontends.python.guards.guards import Guards
from stretto.frontends.python.guards.reach import CapturedCode, guards_of
from stretto.frontends.python.guards.reading import Exempt, Reading
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.objects.copies import enter_lists
from stretto.frontends.python.objects.heap import Heap
from stretto.frontends.python.operators.dispatch import recording
from stretto.frontends.python.results.captured import (
    Captured,
    Differentiable,
    JournalSpec,
    Mutation,
    ObjectState,
)
from stretto.frontends.python.results.changes import (
    ChangePlan,
    EffectWriter,
    check_changes,
    exemptions,
    journal_spec,
    substitute,
    substitute_counters,
    substitute_updated,
)
from stretto.frontends.python.results.inputs import (
    Input,
    bind_inputs,
    bind_sizes,
    call_sizes,
    check_aliases,
    externals,
    fetch_counters,
    owners_of,
    paths_of,
    provable,
    source_of,
    traced_arguments,
)
from stretto.frontends.python.results.output import ArgumentReturned, Flattener
from stretto.frontends.python.source.redirected import redirected
from stretto.frontends.python.tracing.contents import OPERATOR_ERRORS
from stretto.frontends.python.tracing.history import Hints, SettledBranches
from stretto.frontends.python.tracing.locations import ExecutedCode
from stretto.frontends.python.tracing.signals import (
    Abort,
    ArgumentsChange,
    KeepApart,
    NeedsPeel,
    NeedsUnroll,
    Replan,
    TooMuchWork,
    UnknownResult,
)
from stretto.frontends.python.tracing.symbolic_sizes import SizePlan, SizeSource
from stretto.frontends.python.tracing.tensor import FunctionContext
from stretto.frontends.python.tracing.tracer import Caller, TracedRegion, Tracer, activate, tracer
from stretto.frontends.python.values.raises import place_of, raises, shows_values, stop_at
from stretto.frontends.python.values.stores import CellVariable
from stretto.ir.core import Function, Program, Value
from stretto.ir.ops import CallOp, CheckOp
from stretto.ops.effects import restore, states_of
from stretto.options import Options
from stretto.stack import depth_within_stack

_PYTHON_FRAMES = 20_000
"""Limit of Python frames: recursion on Python values is traced inline, and each level takes about
ten."""

_TRIES = 10
"""Number of times that a capture starts again because it changes more than was known."""


MakeCaptured = Callable[[Guards, ObjectState | None], Captured]
"""Makes the Captured from the guards and object state, which are read only after all objects are
restored."""


_lock = threading.RLock()
"""Held during a capture, since objects of the user then hold traced tensors."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def capturing() -> Generator[None]:
    """Allow one capture at a time, over all threads."""
    with _lock:
        yield


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Options,
    *,
    by_structure: bool | None = False,
    sizes: SizePlan | None = None,
    cuts: Collection[SourceLocation] = (),
    settling: SettledBranches | None = None,
    surroundings: Caller = Caller.COMPILED,
    state: ObjectState | None = None,
) -> Captured:
    """Trace `fn(*args, **kwargs)` into a Program.

    Tensors among the arguments (also inside containers) become inputs; all other values are
    constants of the Program.

    by_structure: contents of objects among the arguments are read at each call, as if these
    were containers; None: raises ArgumentsChange if some of them are changed. sizes: the sizes
    of the arguments that are symbols. cuts: places where slices of static length may reach
    beyond their dim. settling: branches of which a program has one arm; the capture adds to
    them. None: none allowed. surroundings: who makes the call. state: what an earlier capture
    found in objects; tensors there are numbered alike.

    Objects of the user are unchanged afterwards. Raises CaptureError if the function cannot be
    captured, GradientsWanted if it reads a tensor that requires grad with grad mode on;
    exceptions of the function itself are raised unchanged.
    """
    limit = sys.getrecursionlimit()
    with capturing(), intercepted_output():
        drawn = states_of((None,))
        sys.setrecursionlimit(max(limit, depth_within_stack(_PYTHON_FRAMES)))
        try:
            heap, plan = Heap(), ChangePlan.of(state)
            heap.add((fn, heap.journal.order))
            plan.arguments |= heap.add_arguments((args, kwargs)) or bool(by_structure)
            executed = ExecutedCode()
            hints = Hints()
            tries = 0
            while tries < _TRIES:
                tracer = Tracer(options, sizes, cuts)
                tracer.hints, known = hints, hints.size()
                tracer.surroundings, tracer.settling = surroundings, settling
                try:
                    captured, merged = _try_sizes(tracer, fn, (args, kwargs), heap, plan, executed)
                except Exception as error:
                    if isinstance(error, CaptureError) and hints.varying and hints.is_varying:
                        hints.is_varying = False
                        continue
                    reason = next(iter(str(error).splitlines()), type(error).__name__)
                    if tracer.sizes.calls.keep_guards(reason):
                        continue
                    if not isinstance(error, CaptureError) or not settles_more(tracer, error):
                        raise
                    continue
                if merged is None and captured is not None:
                    return captured
                if by_structure is None and plan.changes_objects((args, kwargs)):
                    raise ArgumentsChange
                tries += merged is None and known == hints.size()
                sizes = merged or sizes
        finally:
            sys.setrecursionlimit(limit)
            restore(drawn)  # operators were run to see what eager refuses, drawing random numbers
    raise CaptureError(
        "the function changes other attributes, items or variables each time that it runs",
        remedy="return the values that change, and keep them outside of the compiled function",
    )


def _try_sizes(
    tracer: Tracer,
    fn: Callable[..., Any],
    arguments: Any,
    heap: Heap,
    plan: ChangePlan,
    executed: ExecutedCode,
) -> tuple[Captured | None, SizePlan | None]:
    """Run `_try`; also return a plan with fewer symbols if the capture must be repeated with it."""
    try:
        with tracer.sizes.inferring():
            captured = _try(tracer, fn, arguments, heap, plan, executed)
    except (CaptureError, *OPERATOR_ERRORS):
        merged = tracer.sizes.merged()
        if merged is None:
            raise
        return None, merged
    merged = tracer.sizes.merged()
    if merged is None and captured is not None and tracer.sizes.are_symbolic:
        merged = provable(tracer.sizes, captured.program)
        if merged is not None and tracer.sizes.calls.keep_guards("a size in it may be negative"):
            return None, tracer.sizes.plan
    return captured, merged


def _try(
    tracer: Tracer,
    fn: Callable[..., Any],
    arguments: Any,
    heap: Heap,
    plan: ChangePlan,
    executed: ExecutedCode,
) -> Captured | None:
    """Capture with this plan. Returns None, after improving the plan, if it lacks some changes."""
    leaves = tree_leaves(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ints = [leaf for leaf in leaves if type(leaf) is int]
    reading = plan.read(arguments, tensors)
    tracer.heap, tracer.tracked = heap, dict(plan.tracked)
    tracer.keeps_apart, tracer.executed = plan.keeps_apart, executed
    tracer.tracked_cells = {
        id(b.cell) for b in plan.tracked.values() if isinstance(b, CellVariable)
    }
    error: BaseException
    try:
        with activate(tracer), recording(), executed.collect():
            made, held = _capture(tracer, fn, arguments, (tensors, ints), plan, reading)
        heap.restore()
        return _guarded(made, held, tracer, [fn, *leaves], arguments, tensors)
    except Replan:
        return None
    except ArgumentReturned:
        plan.arguments = True
        return None
    except KeepApart:
        plan.keeps_apart = True
        return None
    except (Abort, NeedsUnroll, NeedsPeel, UnknownResult, TooMuchWork) as signal:
        error = signal.abort.error
    except GuardOnDataDependentSymNode as problem:
        error = _needs_a_number(problem)
    except (AttributeError, TypeError) as problem:
        error = _of_stand_in(problem) or problem
    except Exception as problem:
        error = problem
    finally:
        with activate(tracer):
            grown = plan.grow(heap, reading, tracer.traced.values())
        heap.restore()
    if grown:
        return None
    if plan.is_counting:
        plan.counting = False
        return None
    raise error


def _needs_a_number(problem: Exception) -> CaptureError:
    """Return the error for unrewritten Python code that needs the value of a size that data
    decide."""
    return CaptureError(
        "a Python number is needed here, but it is a size that the content of a tensor decides",
        location=place_of(problem),
        remedy="use the size in shapes, conditions, loops and arithmetic of the function itself, "
        "or a tensor of fixed size and a mask",
    )


def _of_stand_in(problem: AttributeError | TypeError) -> CaptureError | None:
    """Return the error for using an object of the capture as the Python object it represents.

    That is reading an attribute that only the Python object has, or passing it to a function
    that does not accept it. None if eager PyTorch raises the same.
    """
    if _STAND_INS.search(str(problem)):
        return CaptureError(
            f"a value that only the run knows is used here ({problem})",
            location=place_of(problem),
            remedy="compute it outside of the compiled function, or compile with fallback=True",
        )
    if isinstance(problem, TypeError):
        return None
    holder, name = problem.obj, problem.name
    kind = next((kind for ours, kind in _PLACES.items() if isinstance(holder, ours)), None)
    if kind is None or name is None or not hasattr(kind, name):
        return None
    return CaptureError(
        f"'{name}' of a value of type {kind.__name__} that only the call or the run knows",
        location=place_of(problem),
        remedy="compute it outside of the compiled function, or compile with fallback=True",
    )


_STAND_INS = re.compile(
    r"""["'](Either|TracedList|TracedText|Indexed|Iterated|Range|Generated|Parts)["']"""
)
"""Matches classes of the capture as Python's own functions name them in messages."""
_PLACES: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
    Generated: GeneratorType,
    Indexed: list,
}
"""The Python class that each class of the capture represents."""


def _capture(
    tracer: Tracer,
    fn: Callable[..., Any],
    arguments: Any,
    leaves: tuple[list[torch.Tensor], list[int]],
    plan: ChangePlan,
    reading: Reading,
) -> tuple[MakeCaptured, ObjectState | None]:
    heap: Heap = tracer.heap
    roots = [fn, *tree_leaves(arguments)]
    tracer.owners, tracer.paths = owners_of(roots), paths_of(roots)
    context = FunctionContext("main")
    with tracer.region(context) as region:
        tensors, ints = leaves
        inputs = bind_inputs(tracer, tensors, reading)
        tracer.inputs = {id(item.real): item.traced for item in inputs}
        tracer.gradients.enter([item.real for item in inputs])
        numbers = [tracer.sizes.size(SizeSource(n), value) for n, value in enumerate(ints)]
        sized = bind_sizes(tracer, numbers)
        counters = fetch_counters(tracer, reading)
        substitute(heap, plan, reading, tracer.inputs)
        substitute_counters(heap, reading, [item.traced for item in counters])
        tracer.updated = dict(plan.updated)
        substitute_updated(heap, plan.updated)
        traced_args, traced_kwargs = traced_arguments(
            heap, arguments, (item.traced for item in inputs[: len(tensors)]), iter(numbers)
        )
        enter_lists(plan.tracked.values())
        with redirected(heap.seen) as tracer.redirected:
            result = _call(region, fn, traced_args, traced_kwargs)
        check_changes(heap)
        if plan.grow(heap, reading, tracer.traced.values()):
            raise Replan
        check_aliases(tracer, inputs)
        objects = {id(item): number for number, item in enumerate(reading.objects)}
        flattener = Flattener(heap, {id(i.traced): n for n, i in enumerate(inputs)}, objects)
        flattener.layouts = tracer.surroundings is Caller.PYTHON
        writer = EffectWriter(heap, flattener, objects)
        effects = writer.effects()
        flattener.storing = flattener.layouts
        output = flattener.spec(result)
        if flattener.storing:
            flattener.check_apart()
            tracer.writes = True
        yields = flattener.yields
        every = [*inputs, *counters, *sized, *externals(tracer, context)]
        mutations = list[Mutation]()
        for number, item in enumerate(every):
            after = item.traced.memory.state
            if after.base is not item.value or after.stale is not None:
                mutations.append(Mutation(number, len(yields)))
                yields.append(tracer.read(item.traced))
        journal = journal_spec(heap, flattener)
        made = _finish(tracer, context, region, every, yields, output, mutations, journal)
        if not effects and not reading.objects and not plan.roots:
            return made, None
        roots, fixed = tuple(plan.used_roots()), tuple(writer.fixed)
        counted = plan.used_counters
        return made, ObjectState(roots, plan.arguments, fixed, (), effects, counted)


def _guarded(
    made: MakeCaptured,
    held: ObjectState | None,
    tracer: Tracer,
    roots: list[Any],
    arguments: Any,
    tensors: list[torch.Tensor],
) -> Captured:
    """Return the capture with its guards and the key of its state; both are read here, after all
    objects have been restored."""
    reading, exempt = Reading(), Exempt()
    if held is not None:
        reading = held.read(tensors, arguments)
        held = replace(held, key=reading.key, shapes=reading.shapes)
        exempt = exemptions(held.roots, reading)
    code = CapturedCode(tracer.traced.values(), tracer.executed, tracer.names_read)
    guards = guards_of(roots, code, tracer.missing, exempt)
    guards.settings |= dict(tracer.asked.values())
    return made(guards, held)


def _call(region: TracedRegion, fn: Any, args: Any, kwargs: Any) -> Any:
    """Return the function's result.

    A function that always raises does so at once, unless a check or output of the program comes
    first: then the program raises whichever a run reaches.
    """
    try:
        return staging.call(fn, *args, **kwargs)
    except Exception as error:
        if raises(error) and tracer().hints.deny_compiling():
            raise Replan from None
        has_checks = any(isinstance(op, CheckOp) for op in region.scope.block.walk())
        says = bool(tracer().heap.journal.sites)
        if not raises(error) or not (has_checks or says or shows_values(error)):
            raise
        stop_at(region, error)
        return None


def _finish(
    tracer: Tracer,
    context: FunctionContext,
    region: TracedRegion,
    inputs: list[Input],
    yields: list[Value],
    output: Any,
    mutations: list[Mutation],
    journal: JournalSpec | None,
) -> MakeCaptured:
    block = region.scope.block
    block.params = tuple(item.value for item in inputs)
    block.yields = tuple(yields)
    tracer.close_function(context, block)
    functions = _reachable(Function("main", block), tracer.functions)
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


def _reachable(main: Function, functions: dict[str, Function]) -> dict[str, Function]:
    """Return main and the functions that are called from it, by name."""
    kept = {"main": main}
    pending = [main]
    while pending:
        for op in pending.pop().body.walk():
            if isinstance(op, CallOp) and op.function not in kept:
                kept[op.function] = functions[op.function]
                pending.append(functions[op.function])
    return kept

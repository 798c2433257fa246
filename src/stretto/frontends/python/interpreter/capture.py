"""`capture` by interpretation: a function's Program, its guards and its changes of the outside."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from stretto.errors import CaptureError, SourceLocation
from stretto.frontends.python.calls.output_journal import intercepted_output
from stretto.frontends.python.guards.reading import Exempt, Reading
from stretto.frontends.python.interpreter.changes import (
    EffectsOf,
    PlannedChanges,
    check_shared,
    exemptions,
    journal_spec_of,
    traced_tensors,
)
from stretto.frontends.python.interpreter.execution import PythonInterpreter
from stretto.frontends.python.interpreter.heap import PythonHeap
from stretto.frontends.python.interpreter.host import HostOperations
from stretto.frontends.python.interpreter.outside import Outside
from stretto.frontends.python.interpreter.returned import Flattener
from stretto.frontends.python.interpreter.settled import settles_more
from stretto.frontends.python.interpreter.swapped_arguments import SwappedArguments, has_twice
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.operators.dispatch import recording
from stretto.frontends.python.results.captured import Captured, Mutation, ObjectState
from stretto.frontends.python.results.inputs import (
    bind_inputs,
    bind_sizes,
    check_aliases,
    externals,
    fetch_counters,
    owners_of,
    paths_of,
    provable,
)
from stretto.frontends.python.results.output import ArgumentReturned
from stretto.frontends.python.results.programs import finished
from stretto.frontends.python.tracing.contents import OPERATOR_ERRORS
from stretto.frontends.python.tracing.history import Hints, SettledBranches
from stretto.frontends.python.tracing.locations import interpreted_at
from stretto.frontends.python.tracing.signals import (
    Abort,
    ArgumentsChange,
    KeepApart,
    NeedsPeel,
    NeedsUnroll,
    NoAlternative,
    Replan,
    UnknownResult,
)
from stretto.frontends.python.tracing.symbolic_sizes import SizePlan, SizeSource
from stretto.frontends.python.tracing.tensor import FunctionContext, Hooks
from stretto.frontends.python.tracing.tracer import Caller, TracedRegion, Tracer, activate, tracer
from stretto.frontends.python.values.raises import place_of, raises, shows_values, stop_at
from stretto.ir.ops import CheckOp
from stretto.ops.effects import restore, states_of
from stretto.options import Options
from stretto.stack import depth_within_stack

_PYTHON_FRAMES = 20_000
"""Limit of Python frames: recursion on Python values is interpreted inline, and each level takes
about twenty."""
_TRIES = 10
"""Number of times that a capture starts again because it changes more than was known."""


_lock = threading.RLock()
"""Held during a capture: torch's modes and the hooks of traced values are of the process."""


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
    """Interpret `fn(*args, **kwargs)` into a Program.

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
    plan = PlannedChanges.of(state)
    plan.arguments |= has_twice((args, kwargs)) or bool(by_structure)
    hints = Hints()
    tries = 0
    with capturing(), intercepted_output(), unbounded():
        while tries < _TRIES:
            tracer = Tracer(options, sizes, cuts)
            tracer.hints, known = hints, hints.size()
            tracer.surroundings, tracer.settling = surroundings, settling
            try:
                captured, merged = _try_sizes(tracer, fn, (args, kwargs), plan)
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
    raise CaptureError(
        "the function changes other attributes, items or variables each time that it runs",
        remedy="return the values that change, and keep them outside of the compiled function",
    )


@contextmanager
def unbounded() -> Generator[None]:
    """Allow deep recursion, and leave the generators of random numbers as they were: operators are
    run to see what eager PyTorch refuses."""
    limit, drawn = sys.getrecursionlimit(), states_of((None,))
    sys.setrecursionlimit(max(limit, depth_within_stack(_PYTHON_FRAMES)))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        restore(drawn)


def _try_sizes(
    tracer: Tracer, fn: Callable[..., Any], arguments: Any, plan: PlannedChanges
) -> tuple[Captured | None, SizePlan | None]:
    """Run `_try`; also return a plan with fewer symbols if the capture must be repeated with it."""
    try:
        with tracer.sizes.inferring():
            captured = _try(tracer, fn, arguments, plan)
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
    tracer: Tracer, fn: Callable[..., Any], arguments: Any, plan: PlannedChanges
) -> Captured | None:
    """Capture with this plan. Returns None, after improving the plan, if it lacks some changes."""
    leaves = tree_leaves(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ints = [leaf for leaf in leaves if type(leaf) is int]
    reading = plan.read(arguments, tensors)
    heap = PythonHeap(Outside(plan.boxes))
    tracer.heap, tracer.keeps_apart = heap, plan.keeps_apart
    interpreter = PythonInterpreter(heap)
    error: BaseException
    try:
        with activate(tracer), recording(), interpreting(interpreter):
            made, held = _capture(
                tracer, interpreter, fn, arguments, (tensors, ints), plan, reading
            )
        return _guarded(made, held, tracer, arguments, tensors)
    except Replan:
        return None
    except ArgumentReturned:
        plan.arguments = True
        return None
    except KeepApart:
        plan.keeps_apart = True
        return None
    except (Abort, NeedsUnroll, NeedsPeel, UnknownResult, NoAlternative) as signal:
        error = signal.abort.error
    except GuardOnDataDependentSymNode as problem:
        error = _needs_a_number(problem)
    except (AttributeError, TypeError) as problem:
        error = _of_stand_in(problem) or problem
    except Exception as problem:
        error = problem
    finally:
        with activate(tracer):
            grown = plan.learn(heap, reading)
    if grown:
        return None
    if plan.is_counting:
        plan.counting = False
        return None
    raise error


@contextmanager
def interpreting(interpreter: PythonInterpreter) -> Generator[None]:
    """Make the methods of traced values, and locations, use the interpreter."""
    before = Hooks.python, Hooks.use, Hooks.call, Hooks.own, Hooks.values_in_use
    calls = interpreter.calls
    Hooks.python = HostOperations(interpreter)
    Hooks.use = interpreter.regions.each_option
    Hooks.values_in_use = interpreter.values_in_use
    Hooks.call = lambda function, *args, **kwargs: calls.from_host(function, args, kwargs)
    Hooks.own = lambda function: (
        lambda *args, **kwargs: calls.from_host(function, args, kwargs, is_own=True)
    )
    try:
        with interpreted_at(interpreter.place, interpreter.lines):
            yield
    finally:
        Hooks.python, Hooks.use, Hooks.call, Hooks.own, Hooks.values_in_use = before


def _capture(
    tracer: Tracer,
    interpreter: PythonInterpreter,
    fn: Callable[..., Any],
    arguments: Any,
    leaves: tuple[list[torch.Tensor], list[int]],
    plan: PlannedChanges,
    reading: Reading,
) -> tuple[Any, ObjectState | None]:
    heap = interpreter.heap
    outside = heap.outside
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
        outside.given = {id(item.real): item.traced for item in inputs[: len(tensors)]}
        outside.traced = {id(item.real): item.traced for item in inputs[len(tensors) :]}
        outside.visited = {id(item) for item in reading.objects}
        for (box, key), item in zip(reading.counters, counters, strict=True):
            outside.numbers[id(box), key] = item.traced
        tracer.updated = dict(plan.updated)
        outside.traced |= traced_tensors(plan.updated)
        swapped = SwappedArguments(
            heap, (item.traced for item in inputs[: len(tensors)]), iter(numbers), plan.arguments
        )
        args, kwargs = arguments
        given = tuple(swapped.value(item) for item in args)
        named = {key: swapped.value(item) for key, item in kwargs.items()}
        result = _call(region, interpreter, fn, given, named)
        if plan.learn(heap, reading):
            raise Replan
        check_shared(heap)
        interpreter.generators.check_dropped()
        check_aliases(tracer, inputs)
        objects = {id(item): number for number, item in enumerate(reading.objects)}
        flattener = Flattener(heap, {id(i.traced): n for n, i in enumerate(inputs)}, objects)
        flattener.layouts = tracer.surroundings is Caller.PYTHON
        writer = EffectsOf(heap, flattener, objects, [])
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
        journal = journal_spec_of(heap, flattener)
        made = finished(tracer, context, region, every, yields, output, mutations, journal)
        if not effects and not reading.objects and not plan.roots:
            return made, None
        used, fixed = tuple(plan.used_roots()), tuple(writer.fixed)
        return made, ObjectState(used, plan.arguments, fixed, (), effects, plan.used_counters)


def _guarded(
    made: Any, held: ObjectState | None, tracer: Tracer, arguments: Any, tensors: Any
) -> Captured:
    """Return the capture with its guards and the key of its state."""
    reading, exempt = Reading(), Exempt()
    if held is not None:
        reading = held.read(tensors, arguments)
        held = replace(held, key=reading.key, shapes=reading.shapes)
        exempt = exemptions(held.roots, reading)
    guards = tracer.heap.outside.log.guards(exempt)
    guards.settings |= dict(tracer.asked.values())
    return made(guards, held)


def _call(
    region: TracedRegion, interpreter: PythonInterpreter, fn: Any, args: Any, kwargs: Any
) -> Any:
    """Return the function's result.

    A function that always raises does so at once, unless a check or output of the program comes
    first: then the program raises whichever a run reaches.
    """
    try:
        return interpreter.calls.call(interpreter.heap.adopt(fn), args, kwargs)
    except Exception as error:
        if raises(error) and tracer().hints.deny_compiling():
            raise Replan from None
        has_checks = any(isinstance(op, CheckOp) for op in region.scope.block.walk())
        says = bool(tracer().heap.journal.sites)
        if not raises(error) or not (has_checks or says or shows_values(error)):
            raise
        stop_at(region, error)
        return None


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


_STAND_INS = re.compile(r"""["'](Either|TracedList|TracedText|TracedRange)["']""")
"""Matches classes of the capture as Python's own functions name them in messages."""
_PLACES: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
    Indexed: list,
}
"""The Python class that each class of the capture represents."""

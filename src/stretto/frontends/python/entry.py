"""`capture`: run a function on traced tensors and collect the Program it performs."""

# pyright: reportPrivateUsage=false
# module parameters are private tables

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from stretto.errors import CaptureError, SourceLocation
from stretto.frontends.python import staging
from stretto.frontends.python.control.settled import settles_more
from stretto.frontends.python.guards.guards import Guards
from stretto.frontends.python.guards.layout import guards_of
from stretto.frontends.python.guards.reach import Code
from stretto.frontends.python.guards.reading import Exempt, Reading
from stretto.frontends.python.objects.heap import Heap
from stretto.frontends.python.objects.stand_ins import enter_lists
from stretto.frontends.python.operators.dispatch import recording
from stretto.frontends.python.results.captured import (
    ArgumentLeaf,
    Captured,
    ConstantSource,
    External,
    Fetched,
    InputBinding,
    IntLeaf,
    Mutation,
    ObjectState,
)
from stretto.frontends.python.results.effects import (
    ChangePlan,
    EffectWriter,
    check_changes,
    exemptions,
    substitute,
    substitute_counters,
)
from stretto.frontends.python.results.output import ArgumentReturned, Flattener
from stretto.frontends.python.results.sizes import provable, settled_sizes
from stretto.frontends.python.tracing.executed import ExecutedCode
from stretto.frontends.python.tracing.fakes import fake_like, fake_with_sizes
from stretto.frontends.python.tracing.frames import read_cell
from stretto.frontends.python.tracing.hints import Hints
from stretto.frontends.python.tracing.signals import (
    Abort,
    ArgumentsChange,
    KeepApart,
    NeedsPeel,
    NeedsUnroll,
    Replan,
    UnknownResult,
    fail,
)
from stretto.frontends.python.tracing.sizes import SizePlan, SizeSource
from stretto.frontends.python.tracing.tensor import (
    FunctionContext,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import (
    Constant,
    Owner,
    Region,
    Surroundings,
    Tracer,
    activate,
)
from stretto.frontends.python.values.raises import place_of, raises, stop_at
from stretto.frontends.python.values.state import rebuild_tuple
from stretto.frontends.python.values.stores import CellVariable
from stretto.ir.core import Function, Program, Value
from stretto.ir.ops import CallOp, CheckOp
from stretto.ir.types import INDEX
from stretto.ops.generators import restore, states_of
from stretto.options import Options

_PYTHON_FRAMES = 20_000
"""Recursion on Python values is traced inline; each level takes some ten Python frames."""

_TRIES = 10
"""How often a capture starts again because it changes more than was known."""


MakeCaptured = Callable[[Guards, ObjectState | None], Captured]
"""A capture without what is read after it, when all objects are as they were."""


@dataclass(eq=False, slots=True)
class _Input:
    """A param of main that stands for a tensor argument."""

    binding: InputBinding
    value: Value
    traced: TracedTensor
    real: torch.Tensor


_lock = threading.RLock()
"""While a function is captured, objects of the user hold traced tensors."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def capturing() -> Generator[None]:
    """One capture at a time, of all threads."""
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
    settling: set[SourceLocation] | None = None,
    surroundings: Surroundings = Surroundings.COMPILED,
    state: ObjectState | None = None,
) -> Captured:
    """Trace `fn(*args, **kwargs)` into a Program.

    Tensors among the arguments (also inside containers) become inputs; all other values are taken
    as they are. by_structure: what objects among the arguments hold is read at each call, as if
    they were containers; None: raises ArgumentsChange where some of it is changed. sizes: which
    sizes of the arguments are symbols. cuts: where slices of static length may reach beyond their
    dim. settling: branches of which a program has one arm, to which the capture adds; None where
    there may be none. surroundings: who makes the call. state: what an earlier capture found in
    objects; tensors there are numbered alike. Objects of the user are as before afterwards. Raises
    CaptureError where the function cannot be captured; exceptions of the function itself are raised
    unchanged.
    """
    limit = sys.getrecursionlimit()
    with capturing():
        drawn = states_of((None,))
        sys.setrecursionlimit(max(limit, _PYTHON_FRAMES))
        try:
            heap, plan = Heap(), ChangePlan.of(state)
            heap.add((fn,))
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
                except CaptureError:
                    if not settles_more(tracer):
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
            restore(drawn)  # operators were tried, to see what eager PyTorch refuses
    raise CaptureError(
        "each time the function runs, it changes other attributes, items or variables",
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
    """The same as `_try`, and a plan with fewer symbols, with which it has to be tried again."""
    try:
        with tracer.sizes.inferring():
            captured = _try(tracer, fn, arguments, heap, plan, executed)
    except Exception:
        merged = tracer.sizes.merged()
        if merged is None:
            raise
        return None, merged
    merged = tracer.sizes.merged()
    if merged is None and captured is not None and tracer.sizes.are_symbolic:
        merged = provable(tracer.sizes, captured.program)
    return captured, merged


def _try(
    tracer: Tracer,
    fn: Callable[..., Any],
    arguments: Any,
    heap: Heap,
    plan: ChangePlan,
    executed: ExecutedCode,
) -> Captured | None:
    """Capture with this plan; None, and a better plan, where it does not hold all changes."""
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
    except (Abort, NeedsUnroll, NeedsPeel, UnknownResult) as signal:
        error = signal.abort.error
    except GuardOnDataDependentSymNode as problem:
        error = _needs_a_number(problem)
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
    """Python code that the capture does not rewrite asked for a size that data decide."""
    return CaptureError(
        "a Python number is needed here, but it is a size that the content of a tensor decides",
        location=place_of(problem),
        remedy="use the size in shapes, conditions, loops and arithmetic of the function itself, "
        "or a tensor of fixed size and a mask",
    )


def _capture(
    tracer: Tracer,
    fn: Callable[..., Any],
    arguments: Any,
    leaves: tuple[list[torch.Tensor], list[int]],
    plan: ChangePlan,
    reading: Reading,
) -> tuple[MakeCaptured, ObjectState | None]:
    heap: Heap = tracer.heap
    tracer.owners = _owners([fn, *tree_leaves(arguments)])
    context = FunctionContext("main")
    with tracer.region(context) as region:
        tensors, ints = leaves
        inputs = _bind_inputs(tracer, tensors, reading)
        tracer.inputs = {id(item.real): item.traced for item in inputs}
        numbers = [tracer.sizes.size(SizeSource(n), value) for n, value in enumerate(ints)]
        sized = _bind_sizes(tracer, numbers)
        counters = _fetch_counters(tracer, reading)
        substitute(heap, plan, reading, tracer.inputs)
        substitute_counters(heap, reading, [item.traced for item in counters])
        traced_args, traced_kwargs = _traced_arguments(
            heap, arguments, (item.traced for item in inputs[: len(tensors)]), iter(numbers)
        )
        enter_lists(plan.tracked.values())
        result = _call(region, fn, traced_args, traced_kwargs)
        check_changes(heap)
        if plan.grow(heap, reading, tracer.traced.values()):
            raise Replan
        _check_aliases(tracer, inputs)
        objects = {id(item): number for number, item in enumerate(reading.objects)}
        flattener = Flattener(heap, {id(i.traced): n for n, i in enumerate(inputs)}, objects)
        flattener.layouts = tracer.surroundings is Surroundings.PYTHON
        writer = EffectWriter(heap, flattener, objects)
        effects = writer.effects()
        flattener.storing = flattener.layouts
        output = flattener.spec(result)
        if flattener.storing:
            flattener.check_apart()
            tracer.writes = True
        yields = flattener.yields
        every = [*inputs, *counters, *sized, *_externals(tracer, context)]
        mutations = list[Mutation]()
        for number, item in enumerate(every):
            after = item.traced.memory.state
            if after.base is not item.value or after.stale is not None:
                mutations.append(Mutation(number, len(yields)))
                yields.append(tracer.read(item.traced))
        made = _finish(tracer, context, region, every, yields, output, mutations)
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
    """With the guards of a capture, and the key of its state: both are read here, after all objects
    have been restored."""
    reading, exempt = Reading(), Exempt()
    if held is not None:
        reading = held.read(tensors, arguments)
        held = replace(held, key=reading.key, shapes=reading.shapes)
        exempt = exemptions(held.roots, reading)
    code = Code(tracer.traced.values(), tracer.executed, tracer.names_read)
    return made(guards_of(roots, code, tracer.missing, exempt), held)


def _call(region: Region, fn: Any, args: Any, kwargs: Any) -> Any:
    """What the function returns. One that always raises does so at once, unless a check of the
    program comes first: then the program raises whichever it comes to."""
    try:
        return staging.call(fn, *args, **kwargs)
    except Exception as error:
        if not raises(error) or not any(
            isinstance(op, CheckOp) for op in region.scope.block.walk()
        ):
            raise
        stop_at(region, error)
        return None


def _finish(
    tracer: Tracer,
    context: FunctionContext,
    region: Region,
    inputs: list[_Input],
    yields: list[Value],
    output: Any,
    mutations: list[Mutation],
) -> MakeCaptured:
    block = region.scope.block
    block.params = tuple(item.value for item in inputs)
    block.yields = tuple(yields)
    tracer.close_function(context, block)
    functions = _reachable(Function("main", block), tracer.functions)
    program = Program(functions)
    bound = [(item.binding, item.value) for item in inputs]
    sizes = settled_sizes(tracer.sizes, program, bound, writes=tracer.writes)
    keys = {op.key for op in program.walk() if op.name == "constant"}  # type: ignore[attr-defined]
    used = [c for c in tracer.constants.values() if c.key in keys]
    program.constants = {c.key: c.tensor for c in used}
    read = [_source(tracer, None, tensor) for tensor in tracer.read_values.values()]
    sources = [_source(tracer, c.key, c.tensor) for c in used if c.guarded]
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
    )


def _bind_inputs(tracer: Tracer, tensors: list[torch.Tensor], reading: Reading) -> list[_Input]:
    """A param for each tensor among the arguments, also if it is passed twice, and for each tensor
    that an object holds in a place that is changed."""
    given = [
        _input(tracer, ArgumentLeaf(number), tensor, f"arg{number}")
        for number, tensor in enumerate(tensors)
    ]
    fetched = enumerate(zip(reading.tensors, reading.names, strict=False))
    found = [_input(tracer, Fetched(n, name, x.device), x, name) for n, (x, name) in fetched]
    return [*given, *found]


def _input(tracer: Tracer, binding: InputBinding, tensor: torch.Tensor, hint: str) -> _Input:
    tracer.type_of(tensor)  # refuses what a Program cannot have
    shape: list[Any] = list(tensor.shape)
    if isinstance(binding, ArgumentLeaf | Fetched):
        held = isinstance(binding, Fetched)
        sources = (SizeSource(binding.index, dim, held) for dim in range(tensor.dim()))
        shape = list(map(tracer.sizes.size, sources, shape))
    if all(isinstance(size, int) for size in shape):
        fake = fake_like(tracer.fake_mode, tensor)
    else:
        fake = fake_with_sizes(tracer.fake_mode, tensor, shape)
    return _made_input(tracer, binding, fake, tensor, hint)


def _made_input(
    tracer: Tracer, binding: InputBinding, fake: torch.Tensor, tensor: torch.Tensor, hint: str
) -> _Input:
    value = tracer.param(tracer.type_of(fake), hint)
    if isinstance(binding, ArgumentLeaf):
        tracer.given[value] = tensor
    traced = TracedTensor(fake, Storage(StorageState(value), tracer.scope, fake))
    return _Input(binding, value, traced, tensor)


def _bind_sizes(tracer: Tracer, numbers: list[Any]) -> list[_Input]:
    """A param per integer among the arguments that is a symbol: a tensor without elements, with as
    many rows."""
    found = list[_Input]()
    for index, number in enumerate(numbers):
        if isinstance(number, torch.SymInt):
            with tracer.faking():
                fake = torch.empty((number, 0), dtype=torch.uint8, device="cpu")
            binding = IntLeaf(index, f"int{index}")
            found.append(_made_input(tracer, binding, fake, torch.empty(0), binding.name))
    return found


def _fetch_counters(tracer: Tracer, reading: Reading) -> list[_Input]:
    """A param per integer that is changed. Where it is needed as a Python number, the capture is
    tried again with its value."""
    made = list[_Input]()
    for number in range(len(reading.numbers)):
        index = len(reading.tensors) + number
        value = tracer.param(INDEX, "counter")
        traced = tracer.number(value, loops=frozenset({-1 - number}))
        binding = Fetched(index, "counter", torch.device("cpu"), is_tensor=False)
        made.append(_Input(binding, value, traced, torch.empty(0)))
    return made


def _traced_arguments(
    heap: Heap, arguments: Any, supply: Iterator[TracedTensor], numbers: Iterator[Any]
) -> Any:
    """The arguments with the tensors of `supply` and the `numbers` in them, in the order of pytree.
    Containers are filled in place, so that they are the same objects; what else torch takes apart
    is made anew."""

    def swapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(supply)
        if type(value) is int:
            return next(numbers)
        if isinstance(value, tuple):
            items: list[Any] = [swapped(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            return rebuild_tuple(value, items)
        if type(value) in _FILLED:
            values = {key: swapped(item) for key, item in heap.before_of(value).items()}
            if id(value) in heap.shared:
                return heap.copied(value, values)
            heap.place(value, values)
            return value
        leaves, tree = tree_flatten(value)
        return value if tree.is_leaf() else tree_unflatten([swapped(x) for x in leaves], tree)

    return swapped(arguments)


_FILLED = (list, dict, OrderedDict, defaultdict, deque)


def _check_aliases(tracer: Tracer, inputs: list[_Input]) -> None:
    """An input (or constant) that is changed must not share memory with another one."""
    reals = [(item.real, item.traced) for item in inputs]
    reals += [(c.tensor, c.traced) for c in tracer.constants.values()]
    by_memory = dict[int, list[TracedTensor]]()
    for real, traced in reals:
        memory = real.untyped_storage().data_ptr()
        if memory and real.numel():
            by_memory.setdefault(memory, []).append(traced)
    values = {id(item.traced): item.value for item in inputs}
    for group in by_memory.values():
        states = [(item.memory.state.base, values.get(id(item))) for item in group]
        if len(group) > 1 and any(b is not v for b, v in states if not isinstance(b, str)):
            fail(
                "a tensor that shares memory with another input is changed in place",
                "pass a clone() of one of them",
            )


def _externals(tracer: Tracer, context: FunctionContext) -> list[_Input]:
    """Constants that were changed: they become params of main."""
    found = list[_Input]()
    for constant in list(tracer.constants.values()):
        if isinstance(constant.memory.state.base, str) or not constant.guarded:
            if constant.memory.state.stale is not None:
                raise constant.memory.state.stale
            continue
        _forbid_in_functions(tracer, constant)
        value = context.constants.pop(constant.key, None)
        if value is None:
            value = tracer.param(tracer.type_of(constant.tensor), constant.key)
        found.append(
            _Input(External(constant.tensor, constant.key), value, constant.traced, constant.tensor)
        )
    return found


def _forbid_in_functions(tracer: Tracer, constant: Constant) -> None:
    for function in tracer.functions.values():
        for op in function.body.ops:
            if op.name == "constant" and op.key == constant.key:  # type: ignore[attr-defined]
                fail(
                    f"the buffer '{constant.key}' is changed and also read in a recursive function",
                    "pass the buffer to the recursive function as an argument",
                )


def _reachable(main: Function, functions: dict[str, Function]) -> dict[str, Function]:
    """main and the functions that are called from it."""
    kept = {"main": main}
    pending = [main]
    while pending:
        for op in pending.pop().body.walk():
            if isinstance(op, CallOp) and op.function not in kept:
                kept[op.function] = functions[op.function]
                pending.append(functions[op.function])
    return kept


def _source(tracer: Tracer, key: str | None, tensor: torch.Tensor) -> ConstantSource:
    owner = tracer.owners.get(id(tensor))
    table, name = (owner.table, owner.name) if owner else (None, None)
    version = None if tensor.is_inference() else tensor._version
    return ConstantSource(key, tensor, version, tensor.data_ptr(), table, name)


def _owners(roots: Iterable[Any]) -> dict[int, Owner]:
    """Parameters and buffers of every module that is reachable from the function's closure."""
    owners = dict[int, Owner]()
    for prefix, module in _modules(roots):
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        parts = [item for item in (prefix, path, name) if item]
                        owners.setdefault(id(tensor), Owner(table, name, ".".join(parts)))
    return owners


def _modules(roots: Iterable[Any]) -> list[tuple[str, nn.Module]]:
    found = list[tuple[str, nn.Module]]()
    pending = [("", root) for root in roots]
    seen = set[int]()
    while pending:
        name, value = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        match value:
            case nn.Module():
                found.append((name, value))
            case MethodType():
                pending += [(name, value.__self__), (name, value.__func__)]
            case FunctionType():
                code, table = value.__code__, value.__globals__
                cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
                pending += [(free, read_cell(cell)) for free, cell in cells]
                used = ((n, table.get(n)) for n in code.co_names)
                pending += [item for item in used if isinstance(item[1], nn.Module | FunctionType)]
            case _:
                continue
    return found

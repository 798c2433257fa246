"""`capture`: run a function on traced tensors and collect the Program it performs."""

# pyright: reportPrivateUsage=false
# module parameters are private tables

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from stretto.capture import staging
from stretto.capture.dispatch import recording
from stretto.capture.guards import Guards, guards_of
from stretto.capture.output import describe_output
from stretto.capture.poison import poisons
from stretto.capture.raises import raises, stop_at
from stretto.capture.result import (
    ArgumentLeaf,
    Captured,
    ConstantSource,
    External,
    InputBinding,
    Mutation,
)
from stretto.capture.signals import Abort, NeedsPeel, NeedsUnroll, UnknownResult, fail
from stretto.capture.tensor import FunctionContext, Storage, StorageState, TracedTensor
from stretto.capture.tracer import Constant, Owner, Region, Tracer, activate
from stretto.ir.core import Function, Program, Value
from stretto.ir.ops import CallOp, CheckOp
from stretto.options import Options

_PYTHON_FRAMES = 20_000
"""Recursion on Python values is traced inline; each level takes some ten Python frames."""


@dataclass(eq=False, slots=True)
class _Input:
    """A param of main that stands for a tensor argument."""

    binding: InputBinding
    value: Value
    traced: TracedTensor
    real: torch.Tensor


def capture(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Captured:
    """Trace `fn(*args, **kwargs)` into a Program.

    Tensors among the arguments (also inside containers) become inputs; all other values are taken
    as they are. Raises CaptureError where the function cannot be captured; exceptions of the
    function itself are raised unchanged.
    """
    tracer = Tracer(options)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _PYTHON_FRAMES))
    try:
        with activate(tracer), recording():
            return _capture(tracer, fn, args, kwargs)
    except Abort as signal:
        error = signal.error
    except (NeedsUnroll, NeedsPeel, UnknownResult) as signal:
        error = signal.abort.error
    finally:
        sys.setrecursionlimit(limit)
    raise error


def _capture(
    tracer: Tracer, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Captured:
    leaves, tree = tree_flatten((args, kwargs))
    tracer.owners = _owners([fn, *leaves])
    context = FunctionContext("main")
    with tracer.region(context) as region:
        inputs = _bind_inputs(tracer, leaves)
        tracer.inputs = {id(item.real): item.traced for item in inputs}
        supply = iter(inputs)
        traced = [next(supply).traced if isinstance(x, torch.Tensor) else x for x in leaves]
        traced_args, traced_kwargs = tree_unflatten(traced, tree)
        result = _call(region, fn, traced_args, traced_kwargs)
        poison = poisons(result)
        if poison is not None:
            poison.fail_at_origin()
        _check_aliases(tracer, inputs)
        yields, output = describe_output(result, {id(i.traced): n for n, i in enumerate(inputs)})
        externals = _externals(tracer, context)
        every = [*inputs, *externals]
        mutations = list[Mutation]()
        for number, item in enumerate(every):
            after = item.traced.memory.state
            if after.base is not item.value or after.stale is not None:
                mutations.append(Mutation(number, len(yields)))
                yields.append(tracer.read(item.traced))
        guards = guards_of([fn, *leaves], tracer.traced.values(), tracer.names_read, tracer.missing)
        return _finish(tracer, context, region, every, yields, output, mutations, guards)


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
    guards: Guards,
) -> Captured:
    block = region.scope.block
    block.params = tuple(item.value for item in inputs)
    block.yields = tuple(yields)
    tracer.close_function(context, block)
    functions = _reachable(Function("main", block), tracer.functions)
    program = Program(functions)
    keys = {op.key for op in program.walk() if op.name == "constant"}  # type: ignore[attr-defined]
    used = [c for c in tracer.constants.values() if c.key in keys]
    program.constants = {c.key: c.tensor for c in used}
    read = [_source(tracer, None, tensor) for tensor in tracer.read_values.values()]
    sources = [_source(tracer, c.key, c.tensor) for c in used if c.guarded]
    return Captured(
        program,
        tuple(item.binding for item in inputs),
        (*sources, *read),
        output,
        tuple(mutations),
        tuple(tracer.notes),
        guards,
        tracer.writes,
    )


def _bind_inputs(tracer: Tracer, leaves: list[Any]) -> list[_Input]:
    """A param per tensor among the arguments, also for one that is passed twice."""
    inputs = list[_Input]()
    for position, leaf in enumerate(x for x in leaves if isinstance(x, torch.Tensor)):
        value = tracer.param(tracer.type_of(leaf), f"arg{position}")
        with tracer.faking():
            fake = tracer.fake_mode.from_tensor(leaf.detach(), static_shapes=True)
        traced = TracedTensor(fake, Storage(StorageState(value), tracer.scope, fake))
        inputs.append(_Input(ArgumentLeaf(position), value, traced, leaf))
    return inputs


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
        if len(group) > 1 and any(_was_written(item, values) for item in group):
            fail(
                "a tensor that shares memory with another input is changed in place",
                "pass a clone() of one of them",
            )


def _was_written(tensor: TracedTensor, values: dict[int, Value]) -> bool:
    base = tensor.memory.state.base
    return not isinstance(base, str) and base is not values.get(id(tensor))


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
                cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
                for free, cell in cells:
                    try:
                        pending.append((free, cell.cell_contents))
                    except ValueError:
                        continue
                used = (n for n in value.__code__.co_names if n in value.__globals__)
                pending += [
                    (n, value.__globals__[n])
                    for n in used
                    if isinstance(value.__globals__[n], nn.Module | FunctionType)
                ]
            case _:
                continue
    return found

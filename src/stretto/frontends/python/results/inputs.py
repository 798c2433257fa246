"""Params of main: tensors and sizes of the arguments, tensors and counters in objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from stretto.frontends.python.guards.reading import Identity, Reading
from stretto.frontends.python.results.captured import (
    ArgumentLeaf,
    ConstantSource,
    External,
    Fetched,
    InputBinding,
    IntLeaf,
)
from stretto.frontends.python.tracing.fakes import fake_like, fake_with_sizes
from stretto.frontends.python.tracing.frames import read_cell
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.symbolic_sizes import (
    CallSizes,
    CaptureSizes,
    SizePlan,
    SizeSource,
)
from stretto.frontends.python.tracing.tensor import (
    FunctionContext,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import Constant, ParameterOwner, Tracer
from stretto.ir.core import Program, Value
from stretto.ir.rewrite import defined_values
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size, symbols_in
from stretto.ir.symbols import dims_of, rename_symbols
from stretto.ir.types import INDEX, Dim


@dataclass(eq=False, slots=True)
class Input:
    """A param of main, with its traced tensor and the real tensor of this call."""

    binding: InputBinding
    value: Value
    traced: TracedTensor
    real: torch.Tensor


def bind_inputs(tracer: Tracer, tensors: list[torch.Tensor], reading: Reading) -> list[Input]:
    """Make a param for each tensor among the arguments, also if passed twice, and for each tensor
    in a place that is changed."""
    given = [
        _input(tracer, ArgumentLeaf(number), tensor, f"arg{number}")
        for number, tensor in enumerate(tensors)
    ]
    fetched = enumerate(zip(reading.tensors, reading.names, strict=False))
    found = [_input(tracer, Fetched(n, name, x.device), x, name) for n, (x, name) in fetched]
    return [*given, *found]


def _input(tracer: Tracer, binding: InputBinding, tensor: torch.Tensor, hint: str) -> Input:
    tracer.type_of(tensor)  # raises for tensors that a Program cannot have
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
) -> Input:
    value = tracer.param(tracer.type_of(fake), hint)
    if isinstance(binding, ArgumentLeaf):
        tracer.given[value] = tensor
    traced = TracedTensor(fake, Storage(StorageState(value), tracer.scope, fake))
    return Input(binding, value, traced, tensor)


def bind_sizes(tracer: Tracer, numbers: list[Any]) -> list[Input]:
    """Make a param for each int argument that is a symbol: an empty tensor with that number of
    rows."""
    found = list[Input]()
    for index, number in enumerate(numbers):
        if isinstance(number, torch.SymInt):
            with tracer.faking():
                fake = torch.empty((number, 0), dtype=torch.uint8, device="cpu")
            binding = IntLeaf(index, f"int{index}")
            found.append(_made_input(tracer, binding, fake, torch.empty(0), binding.name))
    return found


def fetch_counters(tracer: Tracer, reading: Reading) -> list[Input]:
    """Make a param for each integer that is changed. If one is needed as a Python number, the
    capture is repeated with its value."""
    made = list[Input]()
    for number in range(len(reading.numbers)):
        index = len(reading.tensors) + number
        value = tracer.param(INDEX, "counter")
        traced = tracer.number(value, loops=frozenset({-1 - number}))
        binding = Fetched(index, "counter", torch.device("cpu"), is_tensor=False)
        made.append(Input(binding, value, traced, torch.empty(0)))
    return made


def check_aliases(tracer: Tracer, inputs: list[Input]) -> None:
    """Fail if a changed input or constant shares memory with another one."""
    reals = [(item.real, item.traced) for item in inputs]
    reals += [(c.tensor, c.traced) for c in tracer.constants.values()]
    read = (t for t in tracer.read_as_found.values() if id(t) not in tracer.constants)
    reals += [(tensor, tracer.promote(tensor)) for tensor in read]
    by_memory = dict[int, list[TracedTensor]]()
    for real, traced in reals:
        with tracer.native():
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


def externals(tracer: Tracer, context: FunctionContext) -> list[Input]:
    """Make params of main of the constants that were changed."""
    found = list[Input]()
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
            Input(External(constant.tensor, constant.key), value, constant.traced, constant.tensor)
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


# ---- Signatures: the properties of arguments for which a program is specialised, as a key.


_HASHED_BY_VALUE = (
    bool,
    int,
    str,
    bytes,
    type(None),
    range,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def key_of(leaf: Any) -> Any:
    """Return the key of an argument, or of an item of a container among the arguments.

    A tensor is represented by its type. A value whose content cannot change is represented by
    that content, so that an equal one finds the same program. Any other object is represented
    by itself; the key keeps it alive.
    """
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.dtype, leaf.device)
    return value_key(leaf)


def value_key(value: Any) -> Any:
    """Return the key of a value that is not an input: here a tensor, too, is represented by
    itself."""
    kind = type(value)
    if kind in _HASHED_BY_VALUE:
        return (kind, value)
    if kind is float:
        return (float, value.hex())
    if kind is complex:
        return (complex, value.real.hex(), value.imag.hex())
    if kind is slice:
        return (slice, value_key(value.start), value_key(value.stop), value_key(value.step))
    if kind is tuple:
        return (tuple, *map(value_key, value))
    if kind is frozenset:
        return (frozenset, frozenset(map(value_key, value)))
    if isinstance(value, np.generic) and value.dtype != object:
        return (kind, value.dtype.str, value.tobytes())
    if _is_frozen(kind):
        return (kind, *((name, value_key(item)) for name, item in _contents(value)))
    return (kind, Identity(value))


def _is_frozen(kind: type) -> bool:
    """Return True for frozen dataclasses."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and "__dataclass_fields__" in vars(kind)


def _contents(value: Any) -> list[tuple[str, Any]]:
    """Return the fields of a frozen dataclass and its other attributes, without cached
    properties."""
    found = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    for name, item in getattr(value, "__dict__", {}).items():
        if not isinstance(getattr(type(value), name, None), cached_property):
            found[name] = item
    return sorted(found.items())


# ---- The sizes of a captured Program: its symbols with their ranges, and conditions on a call.


def call_sizes(
    sizes: CaptureSizes,
    program: Program,
    inputs: Sequence[tuple[InputBinding, Value]],
    *,
    writes: bool,
) -> CallSizes | None:
    """Rename the symbols in the program as the guards leave them. Returns the conditions on the
    sizes of a call; None if no size is a symbol. writes: the program changes tensors in place."""
    if not sizes.are_symbolic and not sizes.plan.fixed:
        return None
    final = sizes.final()
    renaming = sizes.renaming()
    for function in program.functions.values():
        rename_symbols(function.body, renaming)
    shapes: dict[int, tuple[Dim, ...]] = {}
    ints: dict[int, Dim] = {}
    held: dict[int, tuple[Dim, ...]] = {}
    for binding, value in inputs:
        if isinstance(binding, ArgumentLeaf):
            shapes[binding.index] = value.tensor.shape
        elif isinstance(binding, IntLeaf):
            ints[binding.index] = value.tensor.shape[0]
        elif isinstance(binding, Fetched) and binding.is_tensor:
            held[binding.index] = value.tensor.shape
    conditions = sizes.conditions(final, writes=writes)
    program.is_guarded = bool(conditions or sizes.plan.seen.branches)
    symbols = symbols_in(final.values())
    return CallSizes(
        tuple(shape for _, shape in sorted(shapes.items())),
        ints,
        symbols,
        conditions,
        sizes.plan.fixed,
        tuple(shape for _, shape in sorted(held.items())),
        sizes.branches(final),
    )


def provable(sizes: CaptureSizes, program: Program) -> SizePlan | None:
    """Return a plan with one symbol less if some size is not proved to be >= 0 for all values of
    its symbols; None if all are."""
    for function in program.functions.values():
        for value in defined_values(function.body):
            for dim in dims_of(value.type):
                if isinstance(dim, int) or at_most(0, dim):
                    continue
                known = symbols_in(dim for dim in sizes.final().values())
                less = [atom for atom, factor in dim.terms if factor < 0]
                for symbol in (*symbols_in(Size.of(atom) for atom in less), *dim.symbols):
                    if symbol in known:
                        return sizes.without(symbol)
    return None


# ---- The modules whose parameters and buffers are constants of a Program.


# pyright: reportPrivateUsage=false
# module parameters are private tables


def source_of(tracer: Tracer, key: str | None, tensor: torch.Tensor) -> ConstantSource:
    """Return the source of a constant, with its module's table if there is one."""
    owner = tracer.owners.get(id(tensor))
    table, name = (owner.table, owner.name) if owner else (None, None)
    version = None if tensor.is_inference() else tensor._version
    return ConstantSource(key, tensor, version, tensor.data_ptr(), table, name)


def owners_of(roots: Iterable[Any]) -> dict[int, ParameterOwner]:
    """Return the owners of parameters and buffers of all modules reachable from the function's
    closure, by id."""
    owners = dict[int, ParameterOwner]()
    for prefix, module in _modules(roots):
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        parts = [item for item in (prefix, path, name) if item]
                        owners.setdefault(id(tensor), ParameterOwner(table, name, ".".join(parts)))
    return owners


def paths_of(roots: Iterable[Any]) -> dict[int, str]:
    """Return the path of each module reachable from the function's closure, by id. The first path
    found counts; for the compiled module it is ""."""
    paths = dict[int, str]()
    for prefix, module in _modules(roots):
        for path, part in module.named_modules():
            paths.setdefault(id(part), ".".join(item for item in (prefix, path) if item))
    return paths


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

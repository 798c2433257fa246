"""`Compiled.save`: signatures as JSON, with their arguments, inputs, constants, results and
changes."""

from __future__ import annotations

import platform
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import count
from pathlib import Path
from typing import Any, assert_never

import torch
from torch.utils import _pytree as pytree

import stretto
from stretto.call.entry import Entry
from stretto.call.saved_code import names_of_code, pack
from stretto.call.saved_file import (
    Content,
    Json,
    SavedTensors,
    container_to_json,
    digest_of,
    value_to_json,
    without_weights,
    write,
)
from stretto.call.signatures import SizeKey, callable_name, parameter_names
from stretto.device.user_kernels import kernel_for
from stretto.errors import RaisesInPython, SaveError, SourceLocation
from stretto.frontends.python import (
    ArgumentLeaf,
    Captured,
    External,
    Fetched,
    InputBinding,
    InputLeaf,
    IntLeaf,
    NewContainer,
    OutputSpec,
    PythonLeaf,
    ResultLeaf,
)
from stretto.frontends.python.results.captured import ChoiceLeaf, ObjectLeaf
from stretto.ir.core import Op, Program
from stretto.ir.ops import CheckOp, TensorOp
from stretto.ir.text import print_program
from stretto.options import Options

_PATHS = ("dump_dir", "cache_dir")


def save(
    function: Callable[..., Any],
    compiled: Sequence[Entry],
    options: Options,
    path: str | Path,
    weights: bool = True,
) -> None:
    """Write all signatures of a compiled function to a file. weights: include the tensors that the
    function has by name. Raises SaveError."""
    module = function if isinstance(function, torch.nn.Module) else None
    entries = [entry for entry in compiled if _is_of_mode(entry, module)]
    if not entries:
        raise SaveError(
            "nothing has been compiled yet that could be saved",
            remedy="call the function with the arguments that it is to be saved for, or give "
            "stretto.compile its example_inputs",
        )
    for entry in entries:
        if not entry.is_current():
            changed = entry.watch.changed() or "the content of a tensor"
            raise SaveError(
                "the function was compiled with another value of something that has changed "
                f"since: {changed}",
                remedy="call it once more with the same arguments before you save it",
            )
    tensors = SavedTensors()
    texts: dict[str, str] = {}
    signatures: list[Json] = []
    for number, entry in enumerate(entries):
        texts[f"program.{number}"] = print_program(entry.captured.program)
        signature = _signature(entry, f"program.{number}", tensors)
        code = pack(entry.stages, signature, tensors)
        signatures.append(signature | {"code": code, "read": _read(entry.captured, module)})
    manifest = {
        "function": callable_name(function),
        "parameters": parameter_names(function),
        "built": _built(compiled, options),
        "signatures": signatures,
    }
    content = Content(manifest, texts, tensors.by_name)
    if not weights:
        made = names_of_code(manifest, made=True)
        content = without_weights(content, _weights_given_at_load(module, tensors), made)
    write(Path(path), content)


def _shows_values(op: Op) -> bool:
    """Return True if an op is a check whose exception shows values of the run."""
    return isinstance(op, CheckOp) and op.failure.error == RaisesInPython.__name__


def _read(captured: Captured, module: torch.nn.Module | None) -> dict[str, str]:
    """Return digests of those tensors of the module's `state_dict()` whose content the capture has
    read: the program is right for this content only."""
    own = {} if module is None else module.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in own.items()}
    read = [source.tensor for source in captured.constants if source.key is None]
    return {names[id(tensor)]: digest_of(tensor) for tensor in read if id(tensor) in names}


def _weights_given_at_load(module: torch.nn.Module | None, tensors: SavedTensors) -> list[str]:
    """Return the tensors that the caller of `load` can pass: those of the module's `state_dict()`,
    or for a function all that it has by name."""
    if module is None:
        return tensors.named
    own = module.state_dict(keep_vars=True)
    return [name for name in tensors.named if own.get(name) is tensors.by_name[name]]


def _is_of_mode(entry: Entry, module: torch.nn.Module | None) -> bool:
    """Return True if a signature is for the module's current mode: a file has only one mode."""
    return module is None or entry.key == () or _mode_of(entry.key) in (None, module.training)


def _mode_of(key: Any) -> bool | None:
    """Return the mode of the module, the first item of a key; None if the key has none. Longer
    keys end in the one they extend."""
    while isinstance(key, tuple) and key and type(key[0]) is not bool:  # pyright: ignore[reportUnknownArgumentType]
        key = key[-1]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(key, SizeKey):
        return _mode_of(key.family.first.family)
    return key[0] if isinstance(key, tuple) and key else None  # pyright: ignore[reportUnknownVariableType]


def _signature(entry: Entry, text: str, tensors: SavedTensors) -> Json:
    """Describe a signature as JSON. Raises SaveError if a file cannot hold it."""
    captured = entry.captured
    if captured.objects is not None:
        raise SaveError(
            "the function reads or changes attributes or items of objects that outlive the call",
            remedy="pass what changes as tensors, and return it, or keep it in buffers of a module",
        )
    journal = captured.journal
    if captured.replaces:
        raise SaveError(
            "the function has handlers that raise another exception for one that a run comes to",
            remedy="let the function raise the first one, and handle it outside",
        )
    if any(map(_shows_values, captured.program.walk())) or (journal and journal.is_of_user):
        raise SaveError(
            "the function raises an exception that shows values of the run, or prints or logs",
            remedy="raise it with a constant message; print and log outside of the function",
        )
    if captured.identical:
        raise SaveError(
            "a tensor is both an argument and reached by the function in another way",
            remedy="pass a clone() of it",
        )
    if captured.differentiable.inputs:
        raise SaveError(
            "the function asks for gradients by itself, and programs compute none",
            remedy="compute gradients outside of the function that is saved",
        )
    _check_buffers(captured)
    arguments, order = _arguments(entry.example_arguments, _device_named(entry))
    constants = {
        source.key: tensors.of_function(source.tensor, source.key)
        for source in captured.constants
        if source.key is not None
    }
    made = {
        key: tensors.name(tensor, key)
        for key, tensor in captured.program.constants.items()
        if key not in constants
    }
    return {
        "text": text,
        "arguments": arguments,
        "inputs": [_input(binding, order, tensors) for binding in captured.inputs],
        "constants": constants | made,
        "output": _output(captured.output, tensors),
        "mutations": [[mutation.input, mutation.result] for mutation in captured.mutations],
        "writes": captured.writes,
        "variant": entry.compiled_variant,
        "notes": list(captured.notes),
        "conditions": _conditions(entry),
        **_places(captured.program),
    }


def _check_buffers(captured: Captured) -> None:
    """Raise SaveError for a changing buffer that shares memory: a file separates all tensors."""
    changed = [b.tensor for b in captured.inputs if isinstance(b, External)]
    others = {id(tensor): tensor for tensor in (*changed, *captured.program.constants.values())}
    memory = Counter(x.untyped_storage().data_ptr() for x in others.values() if x.numel())
    if any(memory[tensor.untyped_storage().data_ptr()] > 1 for tensor in changed):
        raise SaveError(
            "a buffer that the function changes shares memory with another tensor",
            remedy="give it memory of its own, with clone()",
        )


# ---- arguments -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Order:
    """Maps the number of each tensor and int in the order of the call to its number with keywords
    sorted by name."""

    tensors: list[int]
    ints: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Numbered:
    """A tensor or an int among the arguments, with its number in the order of the call."""

    number: int
    value: Any


def _device_named(entry: Entry) -> str:
    """Return the file's name of the device of a signature's tensors: that of its program if it was
    compiled for another device than the tensors were on."""
    place, runs_on = entry.stages.place, entry.stages.machine.runs_on
    return str(place) if place.type == runs_on else runs_on


def _arguments(keep: Any, device: str) -> tuple[Json, _Order]:
    """Return the arguments of a call as JSON, keywords sorted by name, and the renumbering this
    implies."""
    tensors, ints = count(), count()

    def numbered(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return _Numbered(next(tensors), leaf)
        return _Numbered(next(ints), leaf) if type(leaf) is int else leaf

    args, kwargs = pytree.tree_map(numbered, keep)
    found_tensors: list[int] = []
    found_ints: list[int] = []

    def described(value: Any) -> Json:
        match value:
            case _Numbered(number, torch.Tensor() as tensor):
                found_tensors.append(number)
                return {"tensor": [_dtype(tensor), list(tensor.shape), device]}
            case _Numbered(number, value):
                found_ints.append(number)
                return value
            case tuple() if type(value) is tuple:
                return {"tuple": [described(item) for item in value]}
            case list() if type(value) is list:
                return {"list": [described(item) for item in value]}
            case dict() if type(value) in (dict, OrderedDict):
                keys = [value_to_json(key, "a key of an argument") for key in value]
                kind = type(value).__name__
                return {kind: [keys, [described(item) for item in value.values()]]}
            case _:
                return value_to_json(value, "an argument")

    made = [described(args), described({name: kwargs[name] for name in sorted(kwargs)})]
    return made, _Order(_inverse(found_tensors), _inverse(found_ints))


def _inverse(order: list[int]) -> list[int]:
    return [order.index(number) for number in range(len(order))]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _input(binding: InputBinding, order: _Order, tensors: SavedTensors) -> Json:
    match binding:
        case ArgumentLeaf(index):
            return {"argument": order.tensors[index]}
        case IntLeaf(index, name):
            return {"int": [order.ints[index], name]}
        case External(tensor, name):
            return {"buffer": tensors.of_function(tensor, name)}
        case Fetched():
            raise AssertionError("only signatures with objects have these")
        case _:
            assert_never(binding)


# ---- results ---------------------------------------------------------------------------------
def _output(spec: OutputSpec, tensors: SavedTensors) -> Json:
    match spec:
        case ResultLeaf(index, number, order):
            return {"result": [index, number, list(order)]}
        case PythonLeaf(value) if isinstance(value, torch.Tensor):
            return {"tensor": tensors.name(value, "result")}
        case PythonLeaf(value):
            return {"value": value_to_json(value, "a result")}
        case InputLeaf(index):
            return {"input": index}
        case NewContainer(build, children):
            return container_to_json(build, [_output(child, tensors) for child in children])
        case ChoiceLeaf(flags, options):
            found = [[_output(item, tensors) for item in items] for items in (flags, options)]
            return {"choice": found}
        case ObjectLeaf():
            raise AssertionError("only signatures with objects have these")
        case _:
            assert_never(spec)


def _conditions(entry: Entry) -> Json:
    """Return the conditions on the sizes of a call; None if all sizes are numbers."""
    sizes = entry.captured.sizes
    if sizes is None or not sizes.symbols:
        return None
    return [condition.text for condition in sizes.conditions]


def _places(program: Program) -> dict[str, Json]:
    """Return the user's lines that errors and `explain()` name, and per operator, in the order of
    the text, the index of its line."""
    places: dict[Json, int] = {}
    of_ops = [places.setdefault(_place(op.location), len(places)) for op in program.walk()]
    listed = [place and list(place) for place in places]
    return {"places": listed, "of operators": of_ops}


def _place(place: SourceLocation | None) -> Json:
    return place and astuple(place)


# ---- information about the file --------------------------------------------------------------
def _kernels(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the operators that have kernels of the user, each with its kernel's digest."""
    ops = (op for entry in entries for op in entry.captured.program.walk())
    found = (kernel_for(op.target) for op in ops if isinstance(op, TensorOp))
    return {kernel.target: kernel.digest for kernel in found if kernel is not None}


def _built(entries: Sequence[Entry], options: Options) -> Json:
    """Return what the programs were built with, for display only."""
    entry = entries[0]
    found = options.settings()
    settings = {name: value for name, value in found.items() if name not in _PATHS}
    return {
        "stretto": stretto.__version__,
        "torch": torch.__version__,
        "machine": entry.stages.machine.name,
        "device": entry.stages.machine.runs_on,
        "processor": platform.machine(),
        "kernels": _kernels(entries),
        "options": settings,
    }

"""Read and check the signatures of a file: nothing in them is trusted.

Errors in them raise LoadError or an exception of Python; `loaded.load` adds the file's name.
"""

from __future__ import annotations

import keyword
import re
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.call.saved_code import CodeUse, check_condition, check_program
from stretto.call.saved_file import (
    Json,
    container_from_json,
    dtype_named,
    integers,
    nested_tuples,
    value_from_json,
)
from stretto.call.signatures import CallForm, Fits, Key, fitting
from stretto.errors import LoadError, SourceLocation
from stretto.frontends.python import (
    ArgumentLeaf,
    CallSizes,
    Captured,
    ConstantSource,
    External,
    InputBinding,
    InputLeaf,
    IntLeaf,
    Mutation,
    NewContainer,
    OutputSpec,
    PythonLeaf,
    ResultLeaf,
    SizeCondition,
)
from stretto.frontends.python.guards.guards import Guards
from stretto.frontends.python.results.captured import ChoiceLeaf
from stretto.frontends.python.results.inputs import key_of
from stretto.ir.core import Program
from stretto.ir.sizes import Symbol, symbols_in
from stretto.ir.text import parse_program
from stretto.ir.types import Dim, TensorType


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The required shape, dtype and device of a tensor argument."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{str(self.dtype).removeprefix('torch.')}[{shape}] on {self.device}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature of a file.

    arguments: the positional and keyword arguments that it was compiled with, with a
    TensorForm for each tensor. fits: tests the sizes of a call; None for fixed sizes.
    found: the signature as JSON, with the code of its program, if any.
    """

    found: Json
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    key: Key
    form: CallForm
    captured: Captured
    variant: Key
    fits: Fits | None


@dataclass(frozen=True, slots=True)
class Supply:
    """Inputs of `restore`. device: replaces those of the file. use: programs that run by the
    file's code are not verified, since nothing is built from them."""

    texts: Mapping[str, str]
    tensors: Mapping[str, torch.Tensor]
    classes: Mapping[str, type]
    namespaces: Collection[str]
    device: torch.device
    use: CodeUse


def restore(found: Json, supply: Supply) -> Signature:
    """Make a signature from its JSON. Raises LoadError if its parts do not fit together."""
    arguments = _arguments(found["arguments"], supply)
    key = key_of_forms(arguments)
    form = CallForm.of(key)
    program = _program(found, supply)
    inputs = tuple(_inputs(found["inputs"], supply))
    forms = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, TensorForm)]
    _check_inputs(program, inputs, forms, len(form.ints))
    sizes = _sizes(found["conditions"], program, inputs)
    fits = None
    if sizes is not None:
        fits = fitting(sizes, form.ints)
        _require(fits(form.shapes, form.ints, ()), "a signature does not take its own arguments")
    keys: dict[str, str] = dict(found["constants"])
    sources = (_source(key, supply.tensors[name]) for key, name in keys.items())
    captured = Captured(
        program,
        inputs,
        tuple(sources),
        _output(found["output"], program, inputs, supply),
        tuple(_mutations(found["mutations"], program, inputs)),
        tuple(map(str, found["notes"])),
        Guards({}, (), (), (), (), (), (), ()),
        bool(found["writes"]),
        sizes=sizes,
    )
    return Signature(found, arguments, key, form, captured, nested_tuples(found["variant"]), fits)


def key_of_forms(arguments: Any) -> Key:
    """Return the key of calls with such arguments, which are tensors or forms of them."""
    leaves, spec = pytree.tree_flatten(arguments)
    return (spec, *map(_key_of_form, leaves))


def _key_of_form(leaf: Any) -> Any:
    if isinstance(leaf, TensorForm):
        return torch.Size(leaf.shape), leaf.dtype, leaf.device
    return key_of(leaf)


def _require(condition: bool, reason: str) -> None:
    """Raise LoadError with the reason unless the condition holds."""
    if not condition:
        raise LoadError(reason)


# ---- arguments -------------------------------------------------------------------------------
def _arguments(found: Json, supply: Supply) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = (_tree(item, supply) for item in found)
    _require(isinstance(args, tuple) and isinstance(kwargs, dict), "arguments are not args, kwargs")
    names = list(kwargs)
    _require(all(type(n) is str for n in names) and names == sorted(names), "keywords are no names")
    return args, kwargs


def _tree(found: Json, supply: Supply) -> Any:
    """Read an argument from JSON, with a TensorForm for each tensor."""
    match found:
        case {"tensor": [str(dtype), shape, str()]}:
            sizes = tuple(integers(shape))
            _require(all(size >= 0 for size in sizes), "a size is negative")
            return TensorForm(sizes, dtype_named(dtype), supply.device)
        case {"tuple": list(items)}:
            return tuple(_tree(item, supply) for item in items)
        case {"list": list(items)}:
            return [_tree(item, supply) for item in items]
        case {"dict": [list(keys), list(items)]}:
            return dict(_pairs(keys, items, supply))
        case {"OrderedDict": [list(keys), list(items)]}:
            return OrderedDict(_pairs(keys, items, supply))
        case _:
            return value_from_json(found)


def _pairs(keys: list[Json], items: list[Json], supply: Supply) -> Iterator[tuple[Any, Any]]:
    return zip(map(value_from_json, keys), (_tree(item, supply) for item in items), strict=True)


def _inputs(found: list[Json], supply: Supply) -> Iterator[InputBinding]:
    """Yield the sources of the program's inputs."""
    for item in found:
        match item:
            case {"argument": int(index)}:
                yield ArgumentLeaf(index)
            case {"int": [int(index), str(name)]}:
                yield IntLeaf(index, name)
            case {"buffer": str(name)}:
                yield External(supply.tensors[name], name)
            case _:
                raise LoadError("an input of a program has an unknown source")


def _check_inputs(
    program: Program, inputs: Sequence[InputBinding], forms: Sequence[TensorForm], ints: int
) -> None:
    """Raise LoadError unless the program's inputs have the types of what is passed for them."""
    params = [param.type for param in program.main.params]
    _require(len(params) == len(inputs), "a program has another number of inputs")
    for param, binding in zip(params, inputs, strict=True):
        match binding:
            case ArgumentLeaf(index):
                _require(0 <= index < len(forms), "a tensor is missing among the arguments")
                shape, dtype = forms[index].shape, forms[index].dtype
            case IntLeaf(index):
                _require(0 <= index < ints, "an int is missing among the arguments")
                continue
            case External(tensor):
                shape, dtype = tuple(tensor.shape), tensor.dtype
            case _:
                raise AssertionError(binding)
        _require(isinstance(param, TensorType), "an input is a list")
        assert isinstance(param, TensorType)
        fits = len(shape) == param.rank and all(
            not isinstance(dim, int) or dim == size
            for dim, size in zip(param.shape, shape, strict=False)
        )
        _require(fits and param.dtype.torch == dtype, f"an input of type {param} gets another type")
    given = [binding.index for binding in inputs if isinstance(binding, ArgumentLeaf)]
    _require(sorted(given) == list(range(len(forms))), "an argument is passed twice, or never")


# ---- the program -----------------------------------------------------------------------------
def _program(found: Json, supply: Supply) -> Program:
    """Return the program of a signature; verify it if it is to be built."""
    names: dict[str, str] = dict(found["constants"])
    constants = {key: supply.tensors[name] for key, name in names.items()}
    program = parse_program(supply.texts[found["text"]], constants)
    program.is_guarded = found["conditions"] is not None
    if not supply.use.holds(found["code"]):
        check_program(program, supply.namespaces)
    places = [place and _place(place) for place in found["places"]]
    numbers = integers(found["of operators"])
    for op, number in zip(program.walk(), numbers, strict=True):
        _require(0 <= number < len(places), "the source line of an operator is missing")
        op.location = places[number]
    return program


def _place(found: Json) -> SourceLocation:
    match found:
        case [
            str(file), int(line), int() | None as column, int() | None as end,
            str() | None as function, str() | None as module,
        ]:  # fmt: skip
            return SourceLocation(file, line, column, end, function, module)
        case _:
            raise LoadError("the source line of an operator is malformed")


def _source(key: str, tensor: torch.Tensor) -> ConstantSource:
    return ConstantSource(key, tensor, version_of(tensor), tensor.data_ptr(), None, None)


def version_of(tensor: torch.Tensor) -> int | None:
    """Return the version counter of a tensor; None for tensors made in inference mode, which have
    none."""
    return None if tensor.is_inference() else tensor._version  # pyright: ignore[reportPrivateUsage]


_SYMBOL = re.compile(r"[a-z][a-z0-9_]{0,40}")
_TAKEN = frozenset(("abs", "bool", "fits", "float", "held", "int", "ints", "math", "max", "min"))
_NAMES_OF_CHECKS = _TAKEN | {"round", "shapes"}


def _sizes(found: Json, program: Program, inputs: Sequence[InputBinding]) -> CallSizes | None:
    """Return the shapes that a program takes if sizes are symbols, else None. Symbol names are
    checked, since they become names in Python code."""
    dims: list[Dim] = []
    shapes: dict[int, tuple[Dim, ...]] = {}
    ints: dict[int, Dim] = {}
    for binding, param in zip(inputs, program.main.params, strict=True):
        dims += param.tensor.shape
        if isinstance(binding, ArgumentLeaf):
            shapes[binding.index] = param.tensor.shape
        elif isinstance(binding, IntLeaf):
            _require(param.tensor.rank == 2, "an int is passed as a tensor")
            ints[binding.index] = param.tensor.shape[0]
    symbols = symbols_in(dims)
    if found is None:
        _require(not symbols, "a program of fixed sizes has symbols")
        return None
    names = [symbol.name for symbol in symbols]
    for name in names:
        usable = _SYMBOL.fullmatch(name) and not keyword.iskeyword(name)
        _require(bool(usable) and name not in _NAMES_OF_CHECKS, f"{name!r} cannot name a size")
    own = {s.name for s in _own_symbols([*(d for s in shapes.values() for d in s), *ints.values()])}
    _require(own >= set(names), "a size cannot be read from the arguments")
    for text in found:
        check_condition(text, names)
    return CallSizes(
        tuple(shape for _, shape in sorted(shapes.items())),
        ints,
        tuple(symbols),
        tuple(SizeCondition(text, None) for text in found),
        {},
    )


def _own_symbols(dims: Sequence[Dim]) -> Iterator[Symbol]:
    """Yield the symbols that are dims by themselves."""
    for dim in dims:
        symbol = None if isinstance(dim, int) else dim.symbol
        if symbol is not None:
            yield symbol


# ---- results ---------------------------------------------------------------------------------
def _mutations(
    found: list[Json], program: Program, inputs: Sequence[InputBinding]
) -> Iterator[Mutation]:
    """Yield the inputs that the program changes, each with the result that has its new value."""
    results = program.main.result_types
    for item in found:
        place, result = integers(item)
        is_there = 0 <= place < len(inputs) and 0 <= result < len(results)
        _require(is_there and not isinstance(inputs[place], IntLeaf), "a changed input is missing")
        same = program.main.params[place].type == results[result]
        _require(same, "an input is changed to a value of another type")
        yield Mutation(place, result)


def _output(
    found: Json, program: Program, inputs: Sequence[InputBinding], supply: Supply
) -> OutputSpec:
    """Read the structure of the result."""
    results = program.main.result_types

    def read(item: Json) -> OutputSpec:
        match item:
            case {"result": [int(index), bool(number), order]}:
                _require(0 <= index < len(results), "a result is missing")
                kind = results[index]
                scalar = not isinstance(kind, TensorType) or not kind.shape
                _require(scalar or not number, "a result that should be a number has dims")
                dims = tuple(integers(order))
                rank = kind.rank if isinstance(kind, TensorType) else 0
                _require(not dims or sorted(dims) == list(range(rank)), "a result has other dims")
                return ResultLeaf(index, number, dims)
            case {"input": int(index)}:
                is_there = 0 <= index < len(inputs) and not isinstance(inputs[index], IntLeaf)
                _require(is_there, "a result is an input that is missing")
                return InputLeaf(index)
            case {"tensor": str(name)}:
                return PythonLeaf(supply.tensors[name])
            case {"value": value}:
                return PythonLeaf(value_from_json(value))
            case {"choice": [list(flags), list(options)]}:
                _require(len(flags) == len(options) > 0, "a choice has no options")
                return ChoiceLeaf(tuple(map(read, flags)), tuple(map(read, options)))
            case _:
                made = container_from_json(item, supply.classes, read)
                _require(made is not None, "a result has an unknown form")
                assert made is not None
                return NewContainer(*made)

    return read(found)

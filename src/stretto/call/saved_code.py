"""The built program of a signature in a file, so that `load` need not build it again.

It includes the constants that passes computed. They are valid as long as the tensors that they were
computed from are unchanged; otherwise passes compute them again, and the code is still used if the
program comes out the same.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import torch

from stretto.call.compiler import begin
from stretto.call.saved_file import Content, Json, SavedTensors, digest_of
from stretto.errors import BuildError, LoadError, ScheduleError
from stretto.frontends.python import Captured
from stretto.ir.core import Folded, Program, Value
from stretto.ir.ops import TensorOp
from stretto.ir.text import print_program
from stretto.ir.types import TensorListType, TensorType
from stretto.ir.verifier import verify
from stretto.machines.machine import Machine, PackedProgram, Stages
from stretto.machines.stages import PASSES
from stretto.ops.infer import resolve
from stretto.options import Options

# ---- Refusal of programs in a file. A text may name any operator that this process has loaded,
# and inferring the type of a result already calls the operator, so names are checked first.


NAMESPACES = ("aten", "stretto")
"""Libraries of operators that every program may use."""

_FORBIDDEN_WORDS = ("file", "path", "url")
"""Parts of the names of operators, and of their arguments, that reach beyond tensors."""


def check_program(program: Program, namespaces: Collection[str]) -> None:
    """Verify a program of a file. Raises LoadError, or VerifyError if it is not a valid program.

    namespaces: libraries that the caller allows besides torch's own operators.
    """
    for op in program.walk():
        if isinstance(op, TensorOp):
            check_operator(op.target, namespaces)
    _check_memory(program)
    verify(program)


def check_operator(target: str, namespaces: Collection[str]) -> None:
    """Raise LoadError for an operator that no program of a file may call."""
    namespace = target.partition(".")[0]
    if namespace not in NAMESPACES and namespace not in namespaces:
        raise LoadError(
            f"a program in the file uses the operator `{target}`, which is not one of torch",
            remedy="if you trust the file, allow it: "
            f'stretto.load(path, namespaces=["{namespace}"])',
        )
    schema = resolve(target)._schema
    words = [schema.name, *(argument.name for argument in schema.arguments)]
    reaches_out = any(part in word for word in words for part in _FORBIDDEN_WORDS)
    if schema.is_mutable or reaches_out:
        raise LoadError(f"a program in the file uses the operator `{target}`, which no program may")


def _check_memory(program: Program) -> None:
    """Raise LoadError for a tensor that is larger than all memory of this machine."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for value in _values(program):
        found = value.type.element if isinstance(value.type, TensorListType) else value.type
        needed = _bytes(found)
        if needed > most:
            raise LoadError(
                f"a program in the file has a tensor of {needed} bytes, type {found}, and this "
                f"machine has {most} bytes of memory"
            )


def _values(program: Program) -> Iterator[Value]:
    for function in program.functions.values():
        yield from function.params
        for op in function.body.walk():
            yield from op.results
            for block in op.blocks:
                yield from block.params


def _bytes(found: TensorType) -> int:
    """Return the bytes of a tensor, counting only the dims that are numbers."""
    return prod(dim for dim in found.shape if isinstance(dim, int)) * found.dtype.itemsize


_ARITHMETIC = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.IfExp, ast.Load,
)  # fmt: skip
_FUNCTIONS = frozenset(
    ("abs", "bool", "float", "int", "max", "min", "round", "math.ceil", "math.floor", "math.pow",
     "math.sqrt", "math.trunc")
)  # fmt: skip


def check_condition(text: str, names: Collection[str]) -> None:
    """Raise LoadError for a condition on sizes that is more than arithmetic with these names.

    Conditions are run as Python code. Powers of ints are excluded: they may take forever.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LoadError("a condition on sizes is not an expression") from error
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=int() | float()):
                continue
            case ast.Name(id=name) if name in names or name in _FUNCTIONS or name == "math":
                continue
            case ast.Attribute() if ast.unparse(node) in _FUNCTIONS:
                continue
            case ast.Call(func=function, keywords=[]) if ast.unparse(function) in _FUNCTIONS:
                continue
            case _ if isinstance(node, _ARITHMETIC):
                continue
            case _:
                raise LoadError(f"a condition on sizes is not arithmetic: {ast.unparse(node)}")


_OF_RUNS = frozenset(
    ("threads", "dump_dir", "cache_dir", "seed", "max_depth", "max_signatures_before_warning",
     "timeout", "verify", "check", "remarks", "tune", "profile")
)  # fmt: skip
"""Options that the code of a program does not depend on."""


def pack(stages: Stages, signature: Json, tensors: SavedTensors) -> Json:
    """Return a signature's code as JSON; None if the machine stores no code.

    Adds its tensors to `tensors`, compressed: a program of many small launches has
    megabytes of plan and machine code. signature: the JSON so far, without code.
    """
    packed = stages.machine.pack(stages)
    if packed is None:
        return None
    prefix = signature["text"]

    def kept(content: bytes, name: str) -> str:
        return tensors.name(compressed(content), f"{prefix}.{name}")

    texts = {name: kept(text.encode(), f"{name}.text") for name, text in packed.texts.items()}
    binaries = {name: kept(code, name) for name, code in packed.binaries.items()}
    _, interface = stages.runnable()
    own = {key: stages.captured.constants[key] for key in signature["constants"]}
    keys = {id(tensor): key for key, tensor in stages.program.constants.items()}
    sources = set(stages.program.folded.sources)
    constants: dict[str, Json] = {}
    for slot, tensor in interface.constants.items():
        view = _view(tensor, own)
        if id(tensor) not in tensors.names and view is None:
            # A view of a tensor with gaps is saved as a copy, like constants that passes compute.
            sources.add(tensor.untyped_storage().data_ptr())
            name = tensors.name(tensor, f"{prefix}.{keys[id(tensor)]}")
            constants[str(slot)] = {"made": [keys[id(tensor)], name]}
        else:
            constants[str(slot)] = view or {"tensor": tensors.names[id(tensor)]}
    names: dict[str, str] = signature["constants"]
    return {
        "machine": stages.machine.name,
        "units": stages.units,
        "facts": packed.facts,
        "texts": texts,
        "binaries": binaries,
        "constants": constants,
        "made of": {
            names[key]: digest_of(tensor)
            for key, tensor in own.items()
            if tensor.untyped_storage().data_ptr() in sources
        },
        "optimised": _digest(stages.program),
    }


def compressed(content: bytes) -> torch.Tensor:
    """Return bytes, compressed by zlib, as a tensor."""
    return torch.frombuffer(bytearray(zlib.compress(content, 9)), dtype=torch.uint8)


def _view(tensor: torch.Tensor, own: Mapping[str, torch.Tensor]) -> Json:
    """Describe a tensor as a view of one of the signature's constants; None if it is not one."""
    for key, base in own.items():
        memory = base.untyped_storage().data_ptr()
        if base is tensor or not memory or tensor.untyped_storage().data_ptr() != memory:
            continue
        start = tensor.storage_offset() - base.storage_offset()
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        inside = tensor.numel() and start >= 0 and start + last < base.numel()
        if base.is_contiguous() and base.dtype == tensor.dtype and inside:
            return {"view": [key, list(tensor.shape), list(tensor.stride()), start]}
    return None


def _digest(program: Program) -> str:
    """Return a digest of what a program does. Values are numbered, since their names depend on
    other names in use when it was made."""
    numbers: dict[str, int] = {}

    def numbered(name: re.Match[str]) -> str:
        return f"%{numbers.setdefault(name[0], len(numbers))}"

    return hashlib.sha256(_VALUE.sub(numbered, print_program(program)).encode()).hexdigest()


_VALUE = re.compile(r"%[\w.]+")
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ScheduleError, zlib.error)
"""Errors that content which `pack` did not write may lead to."""


def unpack(
    code: Json, signature: Json, content: Content, captured: Captured, machine: Machine,
    options: Options, place: torch.device, namespaces: tuple[str, ...],
) -> Stages:  # fmt: skip
    """Make the program of a signature from its code, ready to run. signature: as JSON.

    Raises BuildError, with the reason, if it has to be built instead, and LoadError for
    content that `pack` did not write or for library calls that no program may make.
    """
    try:
        return _unpacked(code, signature, content, captured, machine, options, place, namespaces)
    except _WRONG as error:
        reason = str(error).partition("\n")[0]
        raise LoadError(
            f"the code of a program is not as it was written: {type(error).__name__}: {reason}",
            remedy="save the compiled function again, or load it with machine_code=False",
        ) from error


def _unpacked(
    code: Json, signature: Json, content: Content, captured: Captured, machine: Machine,
    options: Options, place: torch.device, namespaces: tuple[str, ...],
) -> Stages:  # fmt: skip

    def kept(name: str) -> bytes:
        return zlib.decompress(content.tensors[name].numpy().tobytes())

    packed = PackedProgram(
        code["facts"],
        {name: kept(own).decode() for name, own in code["texts"].items()},
        {name: kept(own) for name, own in code["binaries"].items()},
    )
    machine = machine.for_packed(packed)
    program = captured.program
    options = replace(options, units=int(code["units"]))
    stages = begin(program, machine, options, place)
    names: dict[str, str] = signature["constants"]
    made_of: dict[str, str] = code["made of"]
    sources = {
        tensor.untyped_storage().data_ptr()
        for key, tensor in program.constants.items()
        if names[key] in made_of
    }
    made = _made(code, content, stages)
    constants = {
        int(slot): _constant(found, program.constants, content.tensors, made)
        for slot, found in code["constants"].items()
    }
    stages.program = replace(program, folded=Folded(sources))
    machine.unpack(packed, constants, stages)
    device, _ = stages.runnable()
    for kernel in device.kernels:
        if kernel.call is not None:
            check_operator(kernel.call.target, namespaces)
    return stages


def _made(code: Json, content: Content, stages: Stages) -> Mapping[str, torch.Tensor]:
    """Return the constants that passes compute, by key: those of the file, or recomputed if the
    file lacks them or the tensors that they were computed from have changed."""
    found = [item["made"] for item in code["constants"].values() if "made" in item]
    made_of: dict[str, str] = code["made of"]
    is_right = all(digest_of(content.tensors[name]) == made_of[name] for name in made_of)
    if is_right and all(name in content.tensors for _, name in found):
        return {key: content.tensors[name] for key, name in found}
    PASSES.run(stages)
    if _digest(stages.program) != code["optimised"]:
        raise BuildError("with these tensors, or this version of torch, the program is another one")
    return stages.program.constants


def _constant(
    found: Json,
    own: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
    made: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Return a constant of the code: a tensor of the file, one that passes computed, or a view of
    one."""
    match found:
        case {"tensor": str(name)}:
            return tensors[name]
        case {"made": [str(key), _]}:
            return made[key]
        case {"view": [str(key), shape, strides, int(start)]}:
            # A tensor that was passed to `load` may have gaps between its elements.
            base = own[key].detach().contiguous()
            return base.as_strided(shape, strides, base.storage_offset() + start)
        case _:
            raise LoadError("a constant of a program has an unknown source")


def names_of_code(
    manifest: Mapping[str, Any], *, binaries: bool = False, made: bool = False
) -> frozenset[str]:
    """Return the names of tensors of a file that are code, in binary or text form, or constants
    that passes computed."""
    codes = [item["code"] for item in manifest["signatures"] if item["code"] is not None]
    constants = [item for code in codes for item in code["constants"].values()]
    found: set[str] = set()
    if binaries:
        found.update(
            n for code in codes for n in (*code["binaries"].values(), *code["texts"].values())
        )
    if made:
        found.update(item["made"][1] for item in constants if "made" in item)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class CodeUse:
    """Decides if the code of a file is used.

    machine: the name of the machine that runs it. options: those passed to `load`, if any. saved:
    those that the code was made with. is_trusted: True if machine code may be used at all.
    """

    machine: str
    options: Options | None
    saved: Mapping[str, Any]
    is_trusted: bool

    def holds(self, code: Json) -> bool:
        """Return True if a signature is to run by its code, as far as can be decided before it is
        tried."""
        usable = code is not None and self.is_trusted and code["machine"] == self.machine
        return usable and (self.options is None or self._makes_the_same(self.options))

    def _makes_the_same(self, options: Options) -> bool:
        """Return True if the options differ from the saved ones only in some that code does not
        depend on."""
        settings = options.settings()
        names = [name for name in settings if name not in _OF_RUNS]
        given = json.loads(json.dumps({name: settings[name] for name in names}))
        return all(given[name] == self.saved[name] for name in names if name in self.saved)


def options_of(saved: Mapping[str, Any]) -> Options:
    """Return the options that a file was saved with."""
    known = Options().settings()
    given: dict[str, Any] = {
        name: tuple(cast("list[str]", value)) if isinstance(value, list) else value
        for name, value in saved.items()
        if name in known
    }
    return Options.of(given)

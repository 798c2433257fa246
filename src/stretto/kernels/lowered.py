"""Entry of the lowering: a Program becomes a tree of operators and a description of its argument block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stretto.errors import CodegenError
from stretto.ir.core import Function, Program, Value
from stretto.ir.types import ListType, TensorType
from stretto.kernels.control import (
    Target,
    argument_param,
    argument_reg,
    bind_register,
    finish,
    is_register,
    result_param,
    result_reg,
    tensor_param_type,
)
from stretto.kernels.expr import Buffer, Extent, Position, Reg
from stretto.kernels.lazy import stored
from stretto.kernels.lower import Externals, Items, Lowering, count_uses
from stretto.kernels.tree import Seq, Tree, TreeFunction


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor result. Dims that are registers are read from the scalar results of main by number."""

    buffer: Buffer
    shape: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class OutputList:
    """A list result: items in `buffer`, their number in scalar result `length` of main."""

    buffer: Buffer
    length: Reg


Output = OutputTensor | OutputList


@dataclass(frozen=True, slots=True)
class Lowered:
    """inputs[i] is the buffer of main's parameter i; `constants` holds the tensor of each constant's slot."""

    tree: Tree[Items]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Output, ...]
    constants: dict[int, torch.Tensor]


def lower(program: Program) -> Lowered:
    """Lowers every function that main reaches. Raises CodegenError for what no machine could run."""
    externals = Externals()
    inputs = tuple(
        externals.add(f"in{n}", kind.dtype, kind.static_shape(), "input")
        for n, kind in enumerate(tensor_param_type(value.type) for value in program.main.params)
    )
    functions: list[TreeFunction[Items]] = []
    for function in program.functions.values():
        if function is not program.main:
            functions.append(_lower_function(program, function, externals))
    main, outputs = _lower_main(program, externals, inputs)
    tree = Tree((main, *functions), tuple(externals.buffers))
    return Lowered(tree, inputs, outputs, externals.tensors)


def _lower_function(program: Program, function: Function, externals: Externals) -> TreeFunction[Items]:
    low = Lowering(program, function, externals)
    count_uses(function.body, low)
    params: list[Reg] = []
    tensors: list[Buffer] = []
    for number, value in enumerate(function.params):
        kind = tensor_param_type(value.type)
        if is_register(kind):
            params.append(argument_reg(function.name, number, kind))
            bind_register(low, value, params[-1])
        else:
            tensors.append(argument_param(function.name, number, kind))
            low.env[value] = stored(tensors[-1])
    targets: list[Target] = []
    for number, value in enumerate(function.body.yields):
        kind = tensor_param_type(value.type)
        make = result_reg if is_register(kind) else result_param
        targets.append(make(function.name, number, kind))
    written = tuple(target for target in targets if isinstance(target, Buffer))
    results = tuple(target for target in targets if isinstance(target, Reg))
    _lower_body(low, targets)
    return TreeFunction(
        function.name, tuple(params), (*tensors, *written), written, results, tuple(low.locals), Seq(tuple(low.nodes))
    )


def _lower_body(low: Lowering, targets: list[Target]) -> None:
    body = low.function.body
    defined = {value for op in body.ops for value in op.results}
    for value, target in zip(body.yields, targets, strict=True):
        if isinstance(target, Buffer) and value in defined and value not in low.destinations:
            low.destinations[value] = target
    low.ops(body)
    finish(low, body.yields, tuple(targets))
    low.flush()


def _lower_main(
    program: Program, externals: Externals, inputs: tuple[Buffer, ...]
) -> tuple[TreeFunction[Items], tuple[Output, ...]]:
    function = program.main
    low = Lowering(program, function, externals)
    count_uses(function.body, low)
    for value, buffer in zip(function.params, inputs, strict=True):
        low.env[value] = stored(buffer)
    buffers: dict[int, Buffer] = {}
    for number, value in enumerate(function.body.yields):
        if isinstance(value.type, TensorType) and value.type.is_static:
            kind = value.type
            buffers[number] = externals.add(f"out{number}", kind.dtype, kind.static_shape(), "output")
    defined = {value for op in function.body.ops for value in op.results}
    for number, buffer in buffers.items():
        value = function.body.yields[number]
        if value in defined and value not in low.destinations:
            low.destinations[value] = buffer
    low.ops(function.body)
    results: list[Reg] = []
    outputs = tuple(
        _finish_output(low, value, buffers.get(number), results)
        for number, value in enumerate(function.body.yields)
    )
    low.flush()
    main = TreeFunction("main", (), (), (), tuple(results), tuple(low.locals), Seq(tuple(low.nodes)))
    return main, outputs


def _finish_output(low: Lowering, value: Value, buffer: Buffer | None, results: list[Reg]) -> Output:
    if buffer is not None:
        finish(low, (value,), (buffer,))
        return OutputTensor(buffer, buffer.shape)
    if isinstance(value.type, ListType):
        view = low.list(value)
        if view.buffer.kind != "list":
            raise CodegenError("a returned list is not in external memory", location=low.location)
        length = low.let(Position(view.length), "length")
        results.append(length)
        return OutputList(view.buffer, length)
    lazy = low.tensor(value)
    target = low.new_buffer("out", lazy.dtype, lazy.shape)
    low.store(lazy, target, "out")
    results.extend(dim for dim in lazy.shape if isinstance(dim, Reg) and dim not in results)
    return OutputTensor(target, lazy.shape)



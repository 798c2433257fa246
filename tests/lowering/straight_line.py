"""Runs one tensor op through its rule: lowered to operators, which are evaluated one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stretto.device.evaluate import evaluate, resolve, run_operator
from stretto.device.expr import Buffer, limit_register
from stretto.device.forms import LeafItem, Lowered, Output, OutputTensor
from stretto.device.operator import LibraryCall, Operator
from stretto.device.tree import Check, Let, leaves
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import Argument, ListNewOp, ListStackOp, TensorOp
from stretto.ir.sizes import Size, symbol
from stretto.ir.types import DType, TensorListType, TensorType
from stretto.lowering.lower_program import lower
from stretto.ops.infer import infer
from stretto.ops.infer import resolve as overload


class NotNative(Exception):
    """The op became a library call."""


class RunStopped(Exception):
    """A check of the run failed."""


CAPACITY = 100
"""Items for which a list outside of the frame has room."""


@dataclass
class Machine:
    """Registers, and memory that is full of noise where nothing has been written."""

    registers: dict[str, bool | int | float] = field(default_factory=dict)
    buffers: dict[Buffer, Tensor] = field(default_factory=dict)

    def flat(self, buffer: Buffer) -> Tensor:
        if buffer not in self.buffers:
            size = 1
            for extent in buffer.shape:
                size *= resolve(extent, self.registers)
            noise = float("nan") if buffer.dtype.is_float else 85
            self.buffers[buffer] = torch.full((size,), noise, dtype=buffer.dtype.torch)
        return self.buffers[buffer]

    def elements(self, buffer: Buffer) -> int:
        return self.flat(buffer).numel()

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor:
        return self.flat(buffer)[offsets].clone()

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None:
        self.flat(buffer)[offsets] = values.to(buffer.dtype.torch)

    def step(self, item: LeafItem) -> None:
        match item:
            case Let(reg, value):
                self.registers[reg.name] = evaluate(value, self.registers, self)
            case Check(condition, code):
                if not evaluate(condition, self.registers, self):
                    raise RunStopped(code)
            case Operator():
                box = tuple((0, resolve(extent, self.registers)) for extent in item.dims)
                run_operator(item, box, self.registers, self)
            case LibraryCall():
                raise NotNative(f"{item.target}: {item.reason}")


def execute(program: Program, inputs: list[Tensor]) -> list[Tensor]:
    """The results of main. The program must have no control flow."""
    lowered = lower(program)
    machine = Machine()
    for buffer, tensor in zip(lowered.interface.inputs, inputs, strict=True):
        machine.buffers[buffer] = tensor.contiguous().reshape(-1).clone()
    for buffer in lowered.tree.externals:
        machine.registers[limit_register(buffer.slot).name] = CAPACITY
        if buffer.slot in lowered.interface.constants:
            machine.buffers[buffer] = (
                lowered.interface.constants[buffer.slot].contiguous().reshape(-1)
            )
    for items in leaves(lowered.tree.main.body):
        for item in items:
            machine.step(item)
    return [result_of(machine, output) for output in lowered.interface.outputs]


def result_of(machine: Machine, output: Output) -> Tensor:
    assert isinstance(output, OutputTensor)
    shape = [resolve(dim, machine.registers) for dim in output.shape]
    dynamic = [n for n, dim in enumerate(output.shape) if not isinstance(dim, int)]
    order = [*dynamic, *(n for n in range(len(shape)) if n not in dynamic)]
    memory = machine.flat(output.buffer).reshape([shape[n] for n in order])
    return memory.permute([order.index(n) for n in range(len(shape))])


def type_of(tensor: Tensor) -> TensorType:
    return TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))


@dataclass
class Parameters:
    """Turns tensors among arguments into parameters of main.

    A `Stacked` becomes a list of its items, stacked: a tensor whose first dim is a symbol. A
    `Number` becomes a scalar known only at run time. costly: floats are computed of parameters, by
    so much that nobody computes them twice.
    """

    costly: bool = False
    values: list[Value] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def argument(self, item: Any) -> Argument:
        match item:
            case Tensor():
                return self.parameter(item)
            case Number(value):
                kind = torch.float64 if isinstance(value, float) else None
                return self.parameter(torch.tensor(value, dtype=kind))
            case Stacked(items, name):
                return self.stacked([self.parameter(part) for part in items], symbol(name))
            case list() | tuple():
                return tuple(self.argument(part) for part in item)
            case _:
                return item

    def parameter(self, tensor: Tensor) -> Value:
        self.values.append(Value(type_of(tensor)))
        self.tensors.append(tensor)
        found = self.values[-1]
        for name in (
            ("sin", "exp", "erf", "tanh") if self.costly and found.tensor.dtype.is_float else ()
        ):
            self.ops.append(
                TensorOp(f"aten.{name}.default", (found,), (), results=(Value(found.type),))
            )
            found = self.ops[-1].result
        return found

    def stacked(self, items: list[Value], lead: Size) -> Value:
        element = items[0].tensor
        new = ListNewOp(tuple(items), results=(Value(TensorListType(element)),))
        stacked = TensorType(element.dtype, (lead, *element.shape))
        stack = ListStackOp(new.result, results=(Value(stacked),))
        self.ops += [new, stack]
        return stack.result


@dataclass(frozen=True)
class Number:
    """A number that the Program does not know."""

    value: bool | int | float


@dataclass(frozen=True)
class Stacked:
    """A tensor whose first dim is not known to the Program."""

    items: tuple[Tensor, ...]
    symbol: str = "s0"

    @staticmethod
    def of(tensor: Tensor, symbol: str = "s0") -> Stacked:
        return Stacked(tuple(tensor.unbind(0)), symbol)


def plain(item: Any) -> Any:
    """The argument as torch takes it."""
    match item:
        case Number(value):
            return value
        case Stacked(items):
            return torch.stack(items)
        case list() | tuple():
            return [plain(part) for part in item]
        case _:
            return item


def lowered_of_costly(target: str, *args: Any, **kwargs: Any) -> Lowered:
    """The op where its operands have to be stored first if they are read several times."""
    program, _ = build(target, *args, parameters=Parameters(costly=True), **kwargs)
    return lower(program)


def build(
    target: str, *args: Any, parameters: Parameters | None = None, **kwargs: Any
) -> tuple[Program, list[Tensor]]:
    """A program of one op whose tensor arguments are parameters."""
    parameters = parameters or Parameters()
    arguments = tuple(parameters.argument(item) for item in args)
    keywords = tuple((key, parameters.argument(item)) for key, item in kwargs.items())
    types = infer(target, arguments, keywords)
    op = TensorOp(target, arguments, keywords, results=tuple(Value(t) for t in types))
    block = Block(tuple(parameters.values), [*parameters.ops, op], op.results)
    return Program({"main": Function("main", block)}), parameters.tensors


def run(target: str, *args: Any, **kwargs: Any) -> list[Tensor]:
    """All results of the op by its rule. NotNative when it becomes a library call."""
    program, inputs = build(target, *args, **kwargs)
    return execute(program, inputs)


TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-10, 1e-10),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (2e-3, 2e-3),
}
"""(relative, absolute) by dtype; other dtypes must be equal."""


def check(target: str, *args: Any, **kwargs: Any) -> None:
    """The rule gives what torch gives: dtypes, dims and elements, NaN for NaN."""
    found = run(target, *args, **kwargs)
    keywords = {key: plain(item) for key, item in kwargs.items()}
    expected: Any = overload(target)(*(plain(item) for item in args), **keywords)
    expected = [expected] if isinstance(expected, Tensor) else list(expected)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        relative, absolute = TOLERANCES.get(theirs.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            mine, theirs.contiguous(), rtol=relative, atol=absolute, equal_nan=True
        )

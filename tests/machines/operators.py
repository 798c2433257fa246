"""Straight-line Programs of many operators, run as C++ against the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stretto.interp.interpreter import run
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import ConstantOp, TensorOp
from stretto.ir.types import DType, TensorType
from stretto.ir.verifier import verify
from stretto.ops.infer import infer
from tests.backends import assert_close, built


@dataclass
class Operators:
    """A Program under construction; what it returns is compared result by result."""

    params: list[Value] = field(default_factory=list[Value])
    inputs: list[Tensor] = field(default_factory=list[Tensor])
    ops: list[Op] = field(default_factory=list[Op])
    results: list[tuple[str, Value]] = field(default_factory=list[tuple[str, Value]])
    constants: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def random(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        """Normal floats, flags, or integers from -5 to 5 (0 to 5 where there is no sign)."""
        if dtype.is_floating_point:
            return (torch.randn(shape, generator=self.generator) * scale).to(dtype)
        low, high = (0, 2) if dtype is torch.bool else (0 if dtype is torch.uint8 else -5, 6)
        return torch.randint(low, high, shape, generator=self.generator).to(dtype)

    def parameter(self, tensor: Tensor) -> Value:
        value = Value(_type(tensor), "x")
        self.params.append(value)
        self.inputs.append(tensor)
        return value

    def constant(self, tensor: Tensor) -> Value:
        key = f"c{len(self.constants)}"
        self.constants[key] = tensor
        value = Value(_type(tensor), "w")
        self.ops.append(ConstantOp(key, results=(value,)))
        return value

    def x(self, *shape: int, **options: Any) -> Value:
        """A random parameter."""
        return self.parameter(self.random(*shape, **options))

    def w(self, *shape: int, **options: Any) -> Value:
        """A random constant."""
        return self.constant(self.random(*shape, **options))

    def call(self, target: str, *args: Any, **kwargs: Any) -> tuple[Value, ...]:
        """All results of an op; the namespace is `aten` unless it is given."""
        target = target if target.startswith("stretto.") else f"aten.{target}"
        types = infer(target, args, tuple(kwargs.items()))
        results = tuple(Value(type) for type in types)
        self.ops.append(TensorOp(target, args, tuple(kwargs.items()), results=results))
        return results

    def __call__(self, target: str, *args: Any, **kwargs: Any) -> Value:
        """The first result of an op."""
        return self.call(target, *args, **kwargs)[0]

    def keep(self, name: str, *values: Value) -> None:
        """These values are results."""
        self.results.extend((name, value) for value in values)

    def chunks(self, value: Value, count: int, dim: int = 1) -> list[Value]:
        size = value.tensor.static_shape()[dim] // count
        return [self("slice.Tensor", value, dim, n * size, (n + 1) * size) for n in range(count)]

    def program(self) -> Program:
        values = tuple(value for _, value in self.results)
        main = Function("main", Block(tuple(self.params), self.ops, values))
        program = Program({"main": main}, self.constants)
        verify(program)
        return program

    def check(self, units: int = 2, scale: float = 1.0, spread: bool = True) -> None:
        """Every result of the C++ is the interpreter's."""
        program = self.program()
        expected = run(program, self.inputs)
        found = built(program, units, spread=spread).cpu()(self.inputs)
        wrong: list[str] = []
        for (name, _), one, other in zip(self.results, found, expected, strict=True):
            try:
                assert_close([one], [other], scale)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
        assert not wrong, "\n".join(wrong)


def _type(tensor: Tensor) -> TensorType:
    return TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))

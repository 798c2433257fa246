"""Sizes that are known at the call: read from the inputs, and what follows from them.

A program with symbolic sizes is called with the values of its symbols, in the order of
`ProgramInterface.symbols`. `InputSizes.read` takes them from the shapes of the inputs and checks
nothing, for callers who have compared the shapes already; `bound` checks everything. Formulas over
symbols, such as the shapes of results, become Python functions once, when the program is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from stretto.device.expr import Buffer, known_dims, size_name
from stretto.errors import RunError
from stretto.interp.check import Sizes, bind_sizes, size_value
from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import Size, Symbol

Values = Sequence[int]
"""The values of a program's symbols, in their order."""
Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a dense tensor."""


@dataclass(frozen=True, slots=True)
class InputSizes:
    """The symbols of a program, and where its inputs have them.

    read: the values, as the first dim says that is the symbol itself; nothing is checked.
    """

    symbols: tuple[Symbol, ...]
    inputs: tuple[Buffer, ...]
    read: Callable[[Sequence[torch.Tensor]], tuple[int, ...]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        places = {symbol: self._place(symbol) for symbol in self.symbols}
        if None in places.values():
            missing = next(symbol for symbol, place in places.items() if place is None)

            def refuse(_: Sequence[torch.Tensor]) -> tuple[int, ...]:
                raise RunError(f"the size {missing} is no dim of an input; the call has to give it")

            object.__setattr__(self, "read", refuse)
            return
        sources = [f"t[{n}].shape[{dim}]" for n, dim in filter(None, places.values())]
        object.__setattr__(self, "read", _function("t", sources, {}))

    def _place(self, symbol: Symbol) -> tuple[int, int] | None:
        """The first input, and the dim of it, that is the symbol."""
        found = (
            (number, dim)
            for number, buffer in enumerate(self.inputs)
            for dim, size in enumerate(buffer.shape)
            if isinstance(size, Size) and size.symbol == symbol
        )
        return next(found, None)

    def bound(self, tensors: Sequence[torch.Tensor], given: Values | None = None) -> Values:
        """The values, of which `given` are those that the caller knows already. Raises RunError for
        inputs that do not fit each other, the program, or the ranges of its symbols."""
        sizes: Sizes = {} if given is None else dict(zip(self.symbols, given, strict=True))
        for buffer, tensor in zip(self.inputs, tensors, strict=True):
            if len(buffer.shape) != tensor.dim():
                raise RunError(f"{buffer.name} should have {len(buffer.shape)} dims")
            bind_sizes(known_dims(buffer), tensor.shape, sizes)
        for buffer, tensor in zip(self.inputs, tensors, strict=True):
            expected = [size_value(dim, sizes) for dim in known_dims(buffer)]
            if expected != list(tensor.shape):
                shape = list(tensor.shape)
                raise RunError(f"{buffer.name} should have dims {expected}, not {shape}")
        return [sizes[symbol] for symbol in self.symbols]

    def registers(self, values: Values) -> dict[str, int]:
        """The values by the names of the registers that hold them."""
        return {
            size_name(symbol.name): value
            for symbol, value in zip(self.symbols, values, strict=True)
        }

    def shown(self, values: Values) -> str:
        """`n = 3, m = 4`, for messages."""
        pairs = zip(self.symbols, values, strict=True)
        return ", ".join(f"{symbol} = {value}" for symbol, value in pairs)


# ---- formulas --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """A number of a Python text: formulas are evaluated in these to become one."""

    text: str

    def __add__(self, other: _Text | int) -> _Text:
        return _Text(f"({self.text} + {_operand(other)})")

    def __mul__(self, other: _Text | int) -> _Text:
        return _Text(f"{self.text} * {_operand(other)}")

    def __floordiv__(self, other: _Text | int) -> _Text:
        return _Text(f"({self.text} // ({_operand(other)}))")

    def __mod__(self, other: _Text | int) -> _Text:
        return _Text(f"({self.text} % ({_operand(other)}))")

    __radd__ = __add__


def _operand(value: _Text | int) -> str:
    return value.text if isinstance(value, _Text) else f"({value})"


def _function(parameters: str, results: Sequence[str], known: Mapping[str, object]) -> Any:
    """The function of these parameters that gives a tuple of the results."""
    every = "".join(f"{result}, " for result in results)
    return eval(f"lambda {parameters}: ({every})", dict(known))


@dataclass(frozen=True, slots=True)
class Formulas:
    """Makes functions of the values of symbols."""

    symbols: tuple[Symbol, ...]

    def text(self, size: int | Size) -> str:
        if isinstance(size, int):
            return str(size)
        names = {symbol: _Text(f"s{number}") for number, symbol in enumerate(self.symbols)}
        return _operand(
            size.evaluate(
                names.__getitem__, lambda a, b: _Text(f"max({_operand(a)}, {_operand(b)})")
            )
        )

    def function(self, results: Sequence[str]) -> Callable[..., Any]:
        """Gives a tuple of what the texts say."""
        return _function(", ".join(f"s{n}" for n in range(len(self.symbols))), results, {})

    def layouts(self, buffers: Sequence[Buffer]) -> Callable[..., tuple[int, tuple[Layout, ...]]]:
        """A function of the values that gives the bytes of all the buffers together, and the shape
        and strides of each. Strides are torch's: a dim without elements counts as one."""
        total: int | Size = 0
        texts: list[str] = []
        for buffer in buffers:
            dims = known_dims(buffer)
            total = total + prod(dims, start=Size(const=buffer.dtype.itemsize))
            steps: list[int | Size] = []
            step: int | Size = 1
            for dim in reversed(dims):
                steps.insert(0, step)
                step = step * (max(dim, 1) if isinstance(dim, int) else maximum(dim, 1))
            texts.append(f"({self._tuple(dims)}, {self._tuple(steps)})")
        every = "".join(f"{text}, " for text in texts)
        return self.function([self.text(total), f"({every})"])

    def _tuple(self, sizes: Sequence[int | Size]) -> str:
        return "(" + "".join(f"{self.text(size)}, " for size in sizes) + ")"

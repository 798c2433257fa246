"""Sizes that are known at the call: symbols read from the inputs, and formulas over them.

A program with symbolic sizes is called with the values of its symbols, in the order of
`ProgramInterface.symbols`. `InputSizes.read` takes them from the shapes of the inputs and
checks nothing, for callers that have compared the shapes already; `bound` checks
everything, which takes about 0.2 us more for each input. Formulas over symbols, such as the
shapes of results, become Python functions once, when the program is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn

import torch

from stretto.device.expr import Buffer, known_dims, size_name
from stretto.errors import RunError
from stretto.interp.type_check import Sizes, bind_sizes, size_value
from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import Size, Symbol
from stretto.runtime.constants import LARGE_RESULT, advise_large
from stretto.runtime.results import too_large

Values = Sequence[int]
"""The values of a program's symbols, in their order."""


@dataclass(frozen=True, slots=True)
class InputSizes:
    """The symbols of a program, and the dims of its inputs that have them.

    read: returns the value of each symbol, from the first dim that is the symbol itself;
    nothing is checked. fitting: returns the values, or None for inputs that do not fit.
    """

    symbols: tuple[Symbol, ...]
    inputs: tuple[Buffer, ...]
    read: Callable[[Sequence[torch.Tensor]], tuple[int, ...]] = field(init=False, compare=False)
    fitting: Callable[[Sequence[torch.Tensor]], tuple[int, ...] | None] = field(
        init=False, compare=False
    )

    def __post_init__(self) -> None:
        sources = [self._source(symbol) for symbol in self.symbols]
        object.__setattr__(self, "read", _function("t", _tuple(sources), {}))
        object.__setattr__(self, "fitting", _function("t", self._checked(sources), {}))

    def _source(self, symbol: Symbol) -> str:
        """Return the first dim of an input that is the symbol itself, as Python text."""
        for number, buffer in enumerate(self.inputs):
            for dim, size in enumerate(buffer.shape):
                if isinstance(size, Size) and size.symbol == symbol:
                    return f"t[{number}].shape[{dim}]"
        raise AssertionError(f"no dim of an input is the size {symbol}")

    def _checked(self, sources: Sequence[str]) -> str:
        """Return an expression that compares all shapes and ranges."""
        formulas = Formulas(self.symbols)
        tests = [f"len(t) == {len(self.inputs)}"]
        for number, (symbol, source) in enumerate(zip(self.symbols, sources, strict=True)):
            tests.append(f"{symbol.low} <= (s{number} := {source})")
            tests += [] if symbol.high is None else [f"s{number} <= {symbol.high}"]
        for number, buffer in enumerate(self.inputs):
            shape = _tuple(map(formulas.text, known_dims(buffer)))
            tests.append(f"t[{number}].shape == {shape}")
        return f"{_tuple(formulas.names)} if {' and '.join(tests)} else None"

    def bound(self, tensors: Sequence[torch.Tensor]) -> Values:
        """Return the values. Raises RunError for inputs that do not fit each other, the program,
        or the ranges of its symbols."""
        try:
            found = self.fitting(tensors)
        except IndexError:  # too few dims
            found = None
        return self._explained(tensors) if found is None else found

    def _explained(self, tensors: Sequence[torch.Tensor]) -> Values:
        """Same as `bound`, but slowly, with the reason if they do not fit."""
        sizes: Sizes = {}
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
        """Return the values by the names of the registers that hold them."""
        return {
            size_name(symbol.name): value
            for symbol, value in zip(self.symbols, values, strict=True)
        }

    def shown(self, values: Values) -> str:
        """Return the values as text for messages."""
        return shown_sizes(self.symbols, values)


def shown_sizes(symbols: Sequence[Symbol], values: Values) -> str:
    """Return text like `n = 3, m = 4`."""
    pairs = zip(symbols, values, strict=True)
    return ", ".join(f"{symbol} = {value}" for symbol, value in pairs)


# ---- formulas --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """A number as Python text: evaluating a formula with these returns its text."""

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


def _function(parameters: str, result: str, known: Mapping[str, object]) -> Any:
    """Return the function of these parameters whose result is the expression `result`."""
    return eval(f"lambda {parameters}: {result}", dict(known))


def _tuple(texts: Iterable[str]) -> str:
    return "(" + "".join(f"{text}, " for text in texts) + ")"


@dataclass(frozen=True, slots=True)
class Formulas:
    """Compiles formulas over symbols to functions of their values."""

    symbols: tuple[Symbol, ...]

    @property
    def names(self) -> list[str]:
        return [f"s{number}" for number in range(len(self.symbols))]

    @property
    def parameters(self) -> str:
        return ", ".join(self.names)

    def text(self, size: int | Size) -> str:
        names = dict(zip(self.symbols, map(_Text, self.names), strict=True))

        def largest(a: _Text | int, b: _Text | int) -> _Text:
            return _Text(f"max({_operand(a)}, {_operand(b)})")

        return _operand(Size.of(size).evaluate(names.__getitem__, largest))

    def allocate(self, buffers: Sequence[Buffer], limit: int) -> Callable[..., list[torch.Tensor]]:
        """Return a function of the values that allocates memory for the buffers.

        It raises RunError if they need more than `limit` bytes, and then allocates none.
        """
        total = Size()
        known: dict[str, object] = {"empty": torch.empty_strided, "large": advise_large}
        made: list[str] = []
        for number, buffer in enumerate(buffers):
            dims = known_dims(buffer)
            total = total + prod(dims, start=Size(const=buffer.dtype.itemsize))
            known[f"d{number}"] = buffer.dtype.torch
            shape, steps = (_tuple(map(self.text, sizes)) for sizes in (dims, _steps(dims)))
            made.append(f"empty({shape}, {steps}, dtype=d{number})")
        known["refuse"] = self._refuse(total, limit)
        every = f"[{', '.join(made)}]"
        nbytes = self.text(total)
        large = f"large({every}) if {nbytes} <= {limit} else refuse({self.parameters})"
        text = f"{every} if {nbytes} < {min(LARGE_RESULT, limit)} else {large}"
        return _function(self.parameters, text, known)

    def _refuse(self, total: Size, limit: int) -> Callable[..., NoReturn]:
        nbytes = _function(self.parameters, self.text(total), {})

        def refuse(*values: int) -> NoReturn:
            shown = shown_sizes(self.symbols, values)
            raise too_large("the results", nbytes(*values), limit, shown)

        return refuse


def _steps(dims: Sequence[int | Size]) -> list[int | Size]:
    """Return row-major strides like torch's: a dim without elements counts as one."""
    steps: list[int | Size] = []
    step: int | Size = 1
    for dim in reversed(dims):
        steps.insert(0, step)
        step = step * (max(dim, 1) if isinstance(dim, int) else maximum(dim, 1))
    return steps

"""Helpers for tests of Programs: inputs, constants, and the check of a pass by expected text."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence

import torch

from stretto.interp.interpreter import Datum, run
from stretto.interp.type_check import size_value
from stretto.ir.core import Program
from stretto.ir.ops import ConstantOp
from stretto.ir.sizes import Symbol
from stretto.ir.symbols import symbols_of_types
from stretto.ir.text import parse_program, print_program
from stretto.ir.types import DType, TensorListType, TensorType
from stretto.ir.verifier import verify
from stretto.passes.manager import Pass, run_passes


def program_of(text: str) -> Program:
    """Parse and verify a Program, with random tensors for the constants it names."""
    program = parse_program(textwrap.dedent(text))
    for op in program.walk():
        if isinstance(op, ConstantOp):
            seed = random.Random(op.key).getrandbits(32)
            program.constants[op.key] = random_tensor(op.result.tensor, seed, {})
    verify(program)
    return program


def random_inputs(program: Program, seed: int = 0, most: int = 3) -> tuple[Datum, ...]:
    """Return one datum for each parameter of `main`. Symbols are at least their minimum and at
    most `most` larger; lists have 1 to 4 items."""
    generator = random.Random(seed)
    types = [value.type for value in program.main.params]
    sizes = {
        symbol: generator.randint(symbol.low, min(symbol.high or 1 << 30, symbol.low + most))
        for symbol in sorted(symbols_of_types(types), key=str)
    }
    data: list[Datum] = []
    for type in types:
        if isinstance(type, TensorListType):
            count = generator.randint(1, 4)
            seeds = [generator.getrandbits(32) for _ in range(count)]
            data.append([random_tensor(type.element, item, sizes) for item in seeds])
        else:
            data.append(random_tensor(type, generator.getrandbits(32), sizes))
    return tuple(data)


def random_tensor(type: TensorType, seed: int, sizes: dict[Symbol, int]) -> torch.Tensor:
    """Return normal floats, bools, or integers from 0 to 3, which can be positions and counts."""
    generator = torch.Generator().manual_seed(seed)
    shape = [size_value(dim, sizes) for dim in type.shape]
    if type.dtype.is_float:
        return torch.randn(shape, generator=generator).to(type.dtype.torch)
    high = 2 if type.dtype is DType.BOOL else 4
    return torch.randint(high, shape, generator=generator).to(type.dtype.torch)


def assert_same(found: Sequence[Datum], expected: Sequence[Datum]) -> None:
    """Check for bitwise equality; any NaN equals any other, and the sign of zero counts."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, list) or isinstance(other, list):
            assert isinstance(one, list) and isinstance(other, list)
            assert_same(one, other)
            continue
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        if one.is_floating_point():
            numbers = ~one.isnan()
            assert torch.equal(one.signbit() & numbers, other.signbit() & numbers)


def check_same_results(before: Program, after: Program, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Check that both Programs give the same results on random inputs."""
    for seed in seeds:
        inputs = random_inputs(before, seed)
        assert_same(run(after, inputs), run(before, inputs))


def check_pass(before: str, step: Pass, expected: str) -> None:
    """Check that the pass turns one text into the other, with the same results on random inputs."""
    program = program_of(before)
    after = run_passes(program, [step])
    verify(after)
    wanted = print_program(parse_program(textwrap.dedent(expected)))
    assert print_program(after) == wanted, print_program(after)
    check_same_results(program, after)


def check_unchanged(text: str, step: Pass) -> None:
    """Check that the pass changes nothing, and returns False."""
    program = program_of(text)
    before = print_program(program)
    assert step.apply(program) is False
    assert print_program(program) == before

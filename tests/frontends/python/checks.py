"""Captures a function, runs the Program by the interpreter, and compares with eager PyTorch."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from stretto.errors import CaptureError
from stretto.frontends.python import (
    ArgumentLeaf,
    Captured,
    Fetched,
    InputBinding,
    Reading,
    build_output,
    capture,
)
from stretto.interp.interpreter import run
from stretto.ir.ops import CallOp, ForOp, IfOp, WhileOp
from stretto.ir.text import print_program
from stretto.ir.verifier import verify
from stretto.options import Debug, Options


def run_captured(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a compiled function does: bind inputs, run, write mutations back, rebuild."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    held = captured.objects
    reading = Reading() if held is None else held.read(tensors, (args, kwargs))
    inputs = [_bound(binding, tensors, reading.inputs) for binding in captured.inputs]
    results = run(captured.program, [item.detach().clone() for item in inputs])
    with torch.no_grad():
        for mutation in captured.mutations:
            inputs[mutation.input].copy_(results[mutation.result])
    if held is not None:
        assert held.key == reading.key
        return held.finish(captured.output, results, inputs, reading)
    return build_output(captured.output, results, inputs, (), {})


def _bound(
    binding: InputBinding, tensors: list[torch.Tensor], fetched: list[torch.Tensor]
) -> torch.Tensor:
    match binding:
        case ArgumentLeaf(index):
            return tensors[index]
        case Fetched(index):
            return fetched[index]
        case _:
            return binding.tensor


def assert_same(actual: Any, expected: Any) -> None:
    """Equal structure, types, shapes, dtypes, and values."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        torch.testing.assert_close(actual, expected, equal_nan=True)
    elif isinstance(expected, float):
        assert isinstance(actual, float)
        assert actual == pytest.approx(expected, rel=1e-5, nan_ok=True)
    elif isinstance(expected, dict):
        assert type(actual) is type(expected)
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_same(actual[key], value)
    elif isinstance(expected, list | tuple):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    elif dataclasses.is_dataclass(expected):
        assert type(actual) is type(expected)
        for item in dataclasses.fields(expected):
            assert_same(getattr(actual, item.name), getattr(expected, item.name))
    else:
        assert type(actual) is type(expected)
        assert actual == expected


def identical(found: Any, wanted: Any) -> bool:
    """Equal types, dtypes, structure and values. Floats may differ in the last digit, tensors and
    arrays may not."""
    if type(found) is not type(wanted):
        return False
    match wanted:
        case torch.Tensor():
            same = found.dtype == wanted.dtype and found.shape == wanted.shape
            return same and torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True)
        case np.ndarray():
            same = found.dtype == wanted.dtype
            return same and np.array_equal(found, wanted, equal_nan=wanted.dtype.kind in "fc")
        case tuple() | list():
            return len(found) == len(wanted) and all(map(identical, found, wanted))
        case dict():
            return identical(list(found.items()), list(wanted.items()))
        case set() | frozenset():
            return identical(sorted(map(repr, found)), sorted(map(repr, wanted)))
        case float() if wanted and math.isfinite(wanted):
            return math.isclose(found, wanted, rel_tol=1e-15)
        case _:
            return repr(found) == repr(wanted)


def check(
    fn: Callable[..., Any], *cases: tuple[Any, ...], options: Options | None = None
) -> Captured:
    """Capture with the first case's arguments; all cases must then equal eager.

    Arguments are compared after the run too, so that writes to inputs are checked.
    """
    first, kwargs = cases[0], dict[str, Any]()
    captured = capture(fn, copy.deepcopy(first), kwargs, options or Options(debug=Debug(unroll=2)))
    verify(captured.program)
    for case in cases:
        expected_args, actual_args = copy.deepcopy(case), copy.deepcopy(case)
        with torch.no_grad():
            expected = fn(*expected_args)
        try:
            actual = run_captured(captured, actual_args, kwargs)
            assert_same(actual, expected)
            assert_same(actual_args, expected_args)
        except BaseException:
            print(print_program(captured.program))
            raise
    return captured


def count(captured: Captured, kind: type) -> int:
    """How many ops of a class the Program has."""
    return sum(isinstance(op, kind) for op in captured.program.walk())


def structure(captured: Captured) -> dict[str, int]:
    """Numbers of control ops by name."""
    kinds = {"if": IfOp, "while": WhileOp, "for": ForOp, "call": CallOp}
    found = {name: count(captured, kind) for name, kind in kinds.items()}
    return {name: number for name, number in found.items() if number}


def refused(fn: Callable[..., Any], *args: Any, options: Options | None = None) -> CaptureError:
    """The CaptureError of a function that cannot be captured."""
    with pytest.raises(CaptureError) as caught:
        capture(fn, args, {}, options or Options(debug=Debug(unroll=2)))
    return caught.value


def defined(source: str, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a module of this text defines, beside the names that it is given. It is in a file, so
    that its functions have a source."""
    path = folder / "program.py"
    path.write_text(source)
    space = dict(names)
    exec(compile(source, str(path), "exec"), space)
    return space


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """The result, or the class of Python's that the exception is of. A refusal is raised."""
    try:
        return function(*args)
    except CaptureError:
        raise
    except Exception as error:
        return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")

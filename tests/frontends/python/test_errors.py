"""What cannot be captured: a CaptureError with file, line, caret, reason and remedy."""

from __future__ import annotations

import datetime
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import CaptureError
from stretto.frontends.python import capture
from stretto.options import Options
from tests.frontends.python.checks import refused

X = torch.tensor([1.0, -2.0, 3.0])


def test_message_shows_file_line_and_caret() -> None:
    def f(x: Tensor) -> Tensor:
        y = x + 1
        return y.chunk(int(x[0]))[0]

    error = refused(f, X)
    assert error.location is not None
    assert error.location.file == __file__
    assert error.location.line == f.__code__.co_firstlineno + 2
    assert error.location.function.endswith("f")  # type: ignore[union-attr]
    lines = str(error).split("\n")
    assert lines[0].startswith(f"{__file__}:{error.location.line}")
    assert lines[1].strip() == "return y.chunk(int(x[0]))[0]"
    assert lines[2].index("^") == lines[1].index("y.chunk")
    assert lines[2].count("^") == len("y.chunk(int(x[0]))")
    assert lines[3].strip().startswith("remedy: keep it a tensor")


def pieces_from_data(x: Tensor) -> Any:
    return x.split(int(x[0]))


async def coroutine(x: Tensor) -> Tensor:
    return x


ARRAY = np.zeros(3)
NUMBERS = iter(range(100))


def changes_an_array(x: Tensor) -> Tensor:
    ARRAY[0] += 1
    return x * float(ARRAY[0])


def advances_an_iterator(x: Tensor) -> Tensor:
    return x * next(NUMBERS)


def marks_a_tensor(x: Tensor) -> Tensor:
    x.mark = 1  # type: ignore[attr-defined]
    return x + 1


def check_sum(x: Tensor) -> None:
    if x.sum() > 0:
        raise ValueError("positive")


def branch_in_try(x: Tensor) -> Tensor:
    try:
        check_sum(x)
    except ValueError:
        x = x - 1
    return x


def loop_in_try(x: Tensor) -> Tensor:
    try:
        while x.sum() < 10:
            x = x + 1
            check_sum(-x)
    except Exception:
        return x
    return x


def numpy_array(x: Tensor) -> Any:
    return x.numpy()


def shape_in_place(x: Tensor) -> Tensor:
    return x.clone().t_()


def complex_numbers(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.repeat(2).view(3, 2))


def mixed_list(x: Tensor) -> list[Tensor]:
    out = []
    while x.sum() < 100:
        x = x * 2
        out.append(x if len(out) % 2 == 0 else x[:2])
    return out


def expanded_write(x: Tensor) -> Tensor:
    y = x.expand(2, 3)
    y.fill_(1)
    return y


CASES: list[tuple[Callable[..., Any], str, str]] = [
    (pieces_from_data, "depends on the content of a tensor", "masks"),
    (coroutine, "is an async function", "plain function"),
    (changes_an_array, "may change an object of class ndarray, which is not known", "in tensors"),
    (advances_an_iterator, "an iterator of class range_iterator from outside", "pass a list"),
    (marks_a_tensor, "the attribute 'mark' is set on a tensor", "an object of your own"),
    (branch_in_try, "whether ValueError is raised here depends on a tensor", "test the condition"),
    (loop_in_try, "whether ValueError is raised here depends on", "test the condition"),
    (numpy_array, "a NumPy array is needed here", "torch operators"),
    (shape_in_place, "changes the shape of a tensor in place", "out-of-place"),
    (complex_numbers, "dtype complex64 is not supported", "convert"),
    (mixed_list, "a tensor float32[2] is put into a list of f32[3]", "one shape and dtype"),
    (expanded_write, "an expanded tensor is written", "clone()"),
]


@pytest.mark.parametrize(("fn", "reason", "remedy"), CASES)
def test_reasons(fn: Callable[..., Any], reason: str, remedy: str) -> None:
    error = refused(fn, X.clone())
    assert reason in error.message
    assert error.remedy is not None
    assert remedy in error.remedy
    assert error.location is not None
    assert error.location.file == __file__


def test_no_source() -> None:
    space: dict[str, Any] = {}
    exec("def f(x):\n    return x + 1 if x.sum() > 0 else x\n", space)
    error = refused(space["f"], X)
    assert "a Python bool is needed here" in error.message
    assert "define 'f' in a file" in (error.remedy or "")
    assert capture(eval("lambda x: x * 2"), (X,), {}, Options()).notes


def test_capture_error_passes_the_users_handlers() -> None:
    def f(x: Tensor) -> Any:
        try:
            return x.numpy()
        except Exception:
            return x

    assert "a NumPy array is needed here" in str(refused(f, X))


def test_native_try_and_context_managers() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            table = {"a": 1}
            y = x * table["b"]
        except KeyError as error:
            y = x + len(error.args)
        finally:
            y = y * 2
        with torch.no_grad():
            return y

    from tests.frontends.python.checks import check

    check(f, (X,))


@pytest.mark.gradients
def test_nothing_is_left_behind() -> None:
    with pytest.raises(CaptureError):
        capture(pieces_from_data, (X,), {}, Options())
    assert torch.equal(X + 1, X + 1)
    assert torch.is_grad_enabled()
    capture(lambda x: x, (X,), {}, Options())


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (random.random, "'random' gives another value"),
        (lambda: random.choice([1, 2]), "'choice' gives another value"),
        (random.Random(3).random, "'random' gives another value"),
        (np.random.rand, "'rand' gives another value"),
        (np.random.default_rng(0).random, "'random' gives another value"),
        (lambda: len(os.urandom(3)), "'urandom' gives another value"),
        (time.time, "'time' reads a clock"),
        (time.perf_counter, "'perf_counter' reads a clock"),
        (lambda: datetime.datetime.now().year, "'now' reads a clock"),
        (lambda: datetime.date.today().day, "'today' reads a clock"),
    ],
)
def test_values_that_are_others_at_each_call(read: Callable[[], float], what: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x * read()

    with pytest.raises(CaptureError, match=what) as caught:
        stretto.compile(function)(torch.ones(2))
    assert caught.value.remedy is not None and "as an argument" in caught.value.remedy


def test_a_sparse_result() -> None:
    def f(x: Tensor) -> Tensor:
        return x.to_sparse().to_dense()

    error = refused(f, X)
    assert "sparse" in str(error).lower()

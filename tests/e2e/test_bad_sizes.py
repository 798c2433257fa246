"""Sizes that a program cannot take: a clear error with the user's line, compiled, as a backend
of torch.compile, and loaded from a file."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import CaptureError, LoadError, RunError, StrettoError


def zeros_of(n: Tensor) -> Tensor:
    return torch.zeros(n.item(), 3) + 1


def masked(x: Tensor, m: Tensor) -> Tensor:
    return x[m] * 2


def pieces(x: Tensor, n: Tensor) -> Tensor:
    a, b = x.split([n.item(), 5 - n.item()])
    return a.sum() - b.sum()


def double(x: Tensor) -> Tensor:
    return x * 2


def doubled(n: Tensor) -> int:
    return n.item() * 2


def vast(x: Tensor) -> Tensor:
    rows = (x > 0).nonzero().squeeze(1)
    return rows[:, None] * torch.ones(1, 1 << 44) + 1


CASES: list[
    tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...], type[Exception], str]
] = [
    (zeros_of, (torch.tensor(2),), (torch.tensor(-3),), RuntimeError, "negative dimension -3"),
    (
        masked,
        (torch.ones(5), torch.ones(5) > 0),
        (torch.ones(5), torch.ones(4) > 0),
        IndexError,
        r"shape of the mask,? \[?4\]? at index 0",
    ),
    (
        pieces,
        (torch.ones(5), torch.tensor(2)),
        (torch.ones(5), torch.tensor(-1)),
        RuntimeError,
        "only non-negative entries, but got -1",
    ),
]


def named_line(error: BaseException) -> str:
    """The file that an error names, with the name of the function there. What eager raises while a
    function is captured has it in its traceback."""
    if not isinstance(error, StrettoError):
        frames = traceback.extract_tb(error.__traceback__)
        found = [f"{Path(f.filename).name} {f.name}" for f in frames if f.filename == __file__]
        return found[-1]
    assert error.location is not None
    assert str(error.location) in str(error)
    return f"{Path(error.location.file).name} {error.location.function}"


@pytest.mark.parametrize(("function", "good", "bad", "kind", "message"), CASES)
def test_compiled(function: Any, good: Any, bad: Any, kind: type[Exception], message: str) -> None:
    for dynamic in (None, True):
        compiled = stretto.compile(function, backend="cpu", dynamic=dynamic)
        torch.testing.assert_close(compiled(*good), function(*good))
        with pytest.raises(kind, match=message) as caught:
            compiled(*bad)
        assert named_line(caught.value) == f"test_bad_sizes.py {function.__name__}"
        torch.testing.assert_close(compiled(*good), function(*good))


@pytest.mark.parametrize(("function", "good", "bad", "kind", "message"), [CASES[0], CASES[2]])
def test_loaded(
    function: Any, good: Any, bad: Any, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    compiled = stretto.compile(function, backend="cpu")
    compiled(*good)
    compiled.save(tmp_path / "saved")
    loaded = stretto.load(tmp_path / "saved")
    torch.testing.assert_close(loaded(*good), function(*good))
    with pytest.raises(kind, match=message) as caught:
        loaded(*bad)
    assert named_line(caught.value) == f"test_bad_sizes.py {function.__name__}"


def test_loaded_where_only_python_computes_it(tmp_path: Path) -> None:
    """A function that is not loaded runs in Python there."""
    compiled = stretto.compile(doubled, backend="cpu")
    good, bad = torch.tensor(3), torch.tensor(2**62)
    assert compiled(good) == 6
    assert compiled(bad) == 2**63
    compiled.save(tmp_path / "saved")
    loaded = stretto.load(tmp_path / "saved")
    assert loaded(good) == 6
    with pytest.raises(RunError, match="an int is beyond 64 bits") as caught:
        loaded(bad)
    assert named_line(caught.value) == "test_bad_sizes.py doubled"


def test_a_size_out_of_the_declared_range() -> None:
    compiled = stretto.compile(double, backend="interpreter")
    x = torch.ones(4, 2)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    torch.testing.assert_close(compiled(x), x * 2)
    with pytest.raises(CaptureError, match="has size 10, and was declared to be .* at most 8") as c:
        compiled(torch.ones(10, 2))
    assert named_line(c.value) == "test_bad_sizes.py double"
    with pytest.raises(
        CaptureError, match="has 3 dims, and sizes were declared for one with 2"
    ) as c:
        compiled(torch.ones(4, 2, 1))
    assert named_line(c.value) == "test_bad_sizes.py double"


def test_memory_for_a_limit_that_cannot_be_had() -> None:
    options = stretto.Options(check=False)  # the interpreter tries to take the memory
    compiled = stretto.compile(vast, backend="cpu", options=options)
    assert compiled(-torch.ones(4)).shape == (0, 1 << 44)
    with pytest.raises(RunError, match=r"need \d+\.\d GiB; a call may have") as caught:
        compiled(torch.ones(4))
    assert named_line(caught.value) == "test_bad_sizes.py vast"


def test_a_file_of_another_call(tmp_path: Path) -> None:
    compiled = stretto.compile(double, backend="cpu", dynamic=False)
    compiled(torch.ones(4))
    path = tmp_path / "saved"
    compiled.save(path)
    with pytest.raises(StrettoError, match="4"):
        stretto.load(path)(torch.ones(5))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(LoadError, match="damaged"):
        stretto.load(path)


def test_as_a_backend_of_torch_compile() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(masked, backend="stretto", dynamic=False)
    good, bad = CASES[1][1:3]
    torch.testing.assert_close(compiled(*good), masked(*good))
    with pytest.raises(Exception, match="mask") as caught:
        compiled(*bad)
    assert "test_bad_sizes.py" in str(caught.value) or isinstance(caught.value, IndexError)

"""What acts on the world outside of a program: later runs would not do it again."""

from __future__ import annotations

import io
import json
import os
import pathlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

QUEUE: queue.Queue[int] = queue.Queue()
SEEN = io.StringIO()


def writes_a_file(x: Tensor, path: pathlib.Path) -> None:
    with open(path, "a") as file:
        file.write("again")


def writes_by_path(x: Tensor, path: pathlib.Path) -> None:
    path.write_text("again")


def makes_a_folder(x: Tensor, path: pathlib.Path) -> None:
    os.makedirs(path)


def dumps(x: Tensor, path: pathlib.Path) -> None:
    json.dump([1], SEEN)


def puts(x: Tensor, path: pathlib.Path) -> None:
    QUEUE.put(1)


def writes_a_text_of_others(x: Tensor, path: pathlib.Path) -> None:
    SEEN.write("again")


def prints_to_a_text_of_others(x: Tensor, path: pathlib.Path) -> None:
    print("again", file=SEEN)


def runs(x: Tensor, path: pathlib.Path) -> None:
    subprocess.run(["touch", str(path)], check=True)


def starts(x: Tensor, path: pathlib.Path) -> None:
    threading.Thread(target=lambda: None).start()


def sleeps(x: Tensor, path: pathlib.Path) -> None:
    time.sleep(0.001)


ACTS = [
    writes_a_file, writes_by_path, makes_a_folder, dumps, puts, writes_a_text_of_others,
    prints_to_a_text_of_others, runs, starts, sleeps,
]  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_it_is_refused_with_its_line_before_it_happens(
    act: Callable[..., None], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "made"

    def run(x: Tensor) -> Tensor:
        act(x, path)
        return x + 1

    with pytest.raises(stretto.CaptureError, match="acts on the world outside") as caught:
        stretto.compile(run, backend="interpreter")(torch.ones(2))
    assert caught.value.location is not None
    assert caught.value.location.function == act.__name__
    assert not path.exists() and QUEUE.empty() and not SEEN.getvalue()


def test_texts_of_its_own_and_files_that_are_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "factor"
    path.write_text("3")

    def run(x: Tensor) -> Any:
        text = io.StringIO()
        text.write("2")
        with open(path) as file:
            return x * int(file.read()) * int(text.getvalue())

    assert stretto.compile(run, backend="interpreter")(torch.ones(2)).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("act", [writes_a_file, writes_by_path, runs])
def test_with_fallback_it_happens_in_each_call(
    act: Callable[..., None], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "made"

    def run(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        act(y, path)
        return y + 1

    fast = stretto.compile(run, backend="interpreter", fallback=True)
    for _ in range(2):
        assert torch.equal(fast(torch.ones(2)), torch.tanh(torch.ones(2)) + 1)
        assert path.exists()
        path.unlink()

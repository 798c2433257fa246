"""A process that forks while another of its threads compiles."""

import multiprocessing
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.call import compiler


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_can_compile_what_its_parent_was_compiling(monkeypatch: pytest.MonkeyPatch):
    inside, go_on = threading.Event(), threading.Event()
    capture = compiler.capture

    def waiting(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            inside.set()  # the lock of the compiled function is held
            go_on.wait(30)
        return capture(*args, **kwargs)

    def double(x: Tensor) -> Tensor:
        return x * 2

    monkeypatch.setattr(compiler, "capture", waiting)

    fast = stretto.compile(double)
    thread = threading.Thread(target=lambda: fast(torch.ones(3)))
    thread.start()
    inside.wait(30)

    def call() -> None:
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))

    child = multiprocessing.get_context("fork").Process(target=call)
    child.start()
    child.join(60)
    go_on.set()
    thread.join()
    child.kill()
    assert child.exitcode == 0

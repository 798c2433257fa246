"""A process that forks while another of its threads compiles."""

import multiprocessing
import threading

import pytest
import torch
from torch import Tensor

import stretto


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_can_compile_what_its_parent_was_compiling():
    inside, go_on = threading.Event(), threading.Event()

    def double(x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            inside.set()  # while it is captured: the lock of the compiled function is held
            go_on.wait(30)
        return x * 2

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

"""Options(timeout=...) ends a run, wherever it is; so does Ctrl-C between long operators."""

import signal
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stretto


def endless(x: Tensor) -> Tensor:
    while x.sum() < 1e9:
        x = torch.where(x > 0.5, x - 0.25, x + 0.25)
    return x


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", ["cpu", "emulator", "interpreter"])
def test_timeout_ends_an_endless_loop(backend: str, threads: int):
    fast = stretto.compile(
        endless, backend=backend, options=stretto.Options(timeout=0.2, threads=threads)
    )
    with pytest.raises(stretto.RunError, match="took longer than Options") as caught:
        fast(torch.zeros(4))
    assert "check that its loops end" in str(caught.value)
    assert fast(torch.full((4,), 1e9)).sum() == 4e9


def waiting(x: Tensor) -> Tensor:
    while x.sum() < 0:
        pass
    return x


def waiting_for_a_break(x: Tensor) -> Tensor:
    while True:
        if x.sum() >= 0:
            break
    return x * 2


def computing_what_nobody_reads(x: Tensor) -> Tensor:
    y = x
    while x.sum() < 0:
        y = y * 2
    return x


def waiting_in_a_branch(x: Tensor) -> Tensor:
    if x[0] < 0:
        while x.sum() < 0:
            _unused = x * 2
    return x


@pytest.mark.parametrize(
    "function", [waiting, waiting_for_a_break, computing_what_nobody_reads, waiting_in_a_branch]
)
@pytest.mark.parametrize("backend", ["cpu", "emulator", "interpreter"])
def test_a_loop_that_changes_nothing_does_not_end(
    function: Callable[[Tensor], Tensor], backend: str
):
    fast = stretto.compile(function, backend=backend, options=stretto.Options(timeout=0.2))
    assert torch.equal(fast(torch.ones(4)), function(torch.ones(4)))
    with pytest.raises(stretto.RunError, match="took longer than Options"):
        fast(-torch.ones(4))


def test_ctrl_c_ends_a_loop_that_changes_nothing():
    fast = stretto.compile(waiting, (torch.ones(4),), options=stretto.Options(threads=2))
    interrupt = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        fast(-torch.ones(4))
    interrupt.join()


def products(x: Tensor, w: Tensor) -> Tensor:
    for i in range(8):
        x = torch.tanh(x @ w + i)
    return x


@pytest.mark.whole
def test_long_operators_of_straight_line_code_let_ctrl_c_in():
    """A unit that works through operators one after the other looks at the clock between them."""
    x = torch.randn(256, 256)
    fast = stretto.compile(
        products, (x, x), options=stretto.Options(threads=1, debug=stretto.Debug(unroll=8))
    )
    source = fast.signatures[0].stages.product
    assert source is not None
    assert source.text.count("stretto::go_on") >= 8
    small = stretto.compile(products, (x[:1, :8].clone(), x[:8, :8].clone()))
    source = small.signatures[0].stages.product
    assert source is not None
    assert "stretto::go_on" not in source.text

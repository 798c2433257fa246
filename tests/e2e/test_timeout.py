"""Options(timeout=...) ends a run, wherever it is; so does Ctrl-C between long operators."""

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


def products(x: Tensor, w: Tensor) -> Tensor:
    for i in range(8):
        x = torch.tanh(x @ w + i)
    return x


def test_long_operators_of_straight_line_code_let_ctrl_c_in():
    """A unit that works through operators one after the other looks at the clock between them."""
    x = torch.randn(256, 256)
    fast = stretto.compile(products, (x, x), options=stretto.Options(threads=1, unroll=8))
    source = fast.signatures[0].stages.source
    assert source is not None
    assert source.text.count("stretto::go_on") >= 8
    small = stretto.compile(products, (x[:1, :8].clone(), x[:8, :8].clone()))
    source = small.signatures[0].stages.source
    assert source is not None
    assert "stretto::go_on" not in source.text

"""Keywords of functions of torch that make tensors: each is followed, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from stretto.frontends.python import GradientsWanted, capture
from stretto.options import Options
from tests.frontends.python.checks import assert_same, defined, outcome, refused, run_captured
from tests.sampling import every

PROGRAM = """
def program(x: Tensor):
    n = int(x[0, 2])
    found = {call}
    kind = found.dtype, found.device.type, found.layout, found.requires_grad
    return found, *kind, found is x, tuple(found.stride())
"""
NAMES = {"torch": torch, "F": F, "Tensor": Tensor}
X = torch.arange(6.0).reshape(2, 3)


def cases(text: str) -> list[str]:
    return [part.strip() for line in text.split("\n") for part in line.split(";") if part.strip()]


# Calls with a float tensor `x` of two rows of three, and `n`, a number that the run tells: 2.
SAME = cases("""
    torch.tensor(n, dtype=torch.float64); torch.tensor([n, n], dtype=torch.float16)
    torch.tensor([n, n], device="cpu"); torch.tensor([n, n], requires_grad=False)
    torch.tensor([n, n], pin_memory=False); torch.tensor(data=[n, n]); torch.tensor([n, n], foo=1)
    torch.tensor([n, n], requires_grad=True); torch.tensor(x.t()); torch.tensor(x, dtype=int)
    torch.as_tensor([n, n], dtype=torch.float16); torch.as_tensor(x, requires_grad=True)
    torch.as_tensor(x, torch.float64); torch.as_tensor(x.t(), dtype=torch.float64)
    torch.asarray(n, dtype=torch.float64); torch.asarray(obj=n); torch.asarray([n, n], copy=True)
    torch.asarray([n, n], copy=False); torch.asarray(x, dtype=torch.float64, copy=False)
    torch.asarray([n, n], requires_grad=True); x.new_tensor([n, n], dtype=torch.int64)
    torch.full((2,), n, dtype=torch.float64); torch.full(size=(2,), fill_value=n)
    torch.full((2, 3), n, out=x); torch.full((2,), n, out=torch.zeros(2)); torch.zeros(2, 3, out=x)
    torch.full((2,), n, layout=torch.strided); torch.full((2, 3), n, dtype=int, out=x)
    torch.full_like(x, n, dtype=torch.int64); torch.full_like(x.t(), n); torch.zeros_like(x.t())
    torch.full_like(x.t(), n, memory_format=torch.contiguous_format); torch.empty_like(x.t()) * 0
    torch.empty(2, 3, 1, 1, memory_format=torch.channels_last).zero_()
    torch.empty(2, 3, 4, 5, memory_format=torch.channels_last).zero_()
    torch.empty(2, 3, 4, 5, memory_format=torch.contiguous_format).zero_()
    torch.empty_strided((2, 3), (1, 2)).zero_(); x.new_zeros((2,), dtype=torch.int64)
    torch.arange(n, dtype=torch.float64); torch.arange(0, n, step=1, dtype=torch.float16)
    torch.arange(3, out=x[0]); torch.linspace(0, n, 3, dtype=torch.float64)
    torch.linspace(0, 1, 3, out=x[0]); torch.eye(2, 3, out=x); torch.stack([x[0], x[1]], out=x)
    torch.cat([x[:1], x[1:]], out=torch.zeros(2, 3)); torch.add(x, x, out=x)
    torch.add(x, x, out=torch.zeros(3, 2).t()); torch.add(x, x, out=torch.zeros(2, 3).long())
    torch.sum(x, dtype=torch.float64); x.softmax(0, dtype=torch.float64); x.cumsum(0, dtype=int)
    torch.topk(x, n, largest=False)[0]; torch.topk(x, n, dim=0, sorted=True)[1]
    torch.topk(input=x, k=n)[0].view(-1); torch.kthvalue(x, 2, keepdim=True)[0]
    torch.kthvalue(x, 2, 0, True)[1]; torch.median(x, 1, keepdim=True)[0]; x.clone()
    x.t().to(torch.float32, copy=True); x.t().to(copy=True, memory_format=torch.contiguous_format)
    x.t().to(torch.float64, memory_format=torch.contiguous_format); x.t().double()
    x.t().clone(memory_format=torch.contiguous_format); x.to("cpu", non_blocking=True, copy=True)
    x.reshape(2, 3, 1, 1).to(memory_format=torch.channels_last)
    x.reshape(1, 2, 3, 1).repeat(2, 1, 1, 4).to(memory_format=torch.channels_last)
    x.reshape(1, 2, 3, 1).repeat(2, 1, 1, 4).to(memory_format=torch.channels_last).double()
    torch.relu(x.reshape(1, 2, 3, 1).repeat(2, 1, 1, 4).to(memory_format=torch.channels_last))
    x.reshape(1, 2, 3, 1).expand(2, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    F.relu(x, inplace=True); F.one_hot(x.long(), num_classes=7); torch.rand(2, dtype=float) * 0
    torch.rand_like(x.t(), memory_format=torch.contiguous_format) * 0; torch.rand_like(x.t()) * 0
""")


@pytest.mark.parametrize("call", every(5, SAME))
def test_a_keyword_has_its_effect(call: str, tmp_path: Path) -> None:
    program = defined(PROGRAM.format(call=call), NAMES, tmp_path)["program"]

    def compiled(x: Tensor) -> Any:
        return run_captured(capture(program, (X.clone(),), {}, Options()), (x,), {})

    wanted, found = X.clone(), X.clone()
    assert_same(outcome(compiled, found), outcome(program, wanted))
    assert_same(found, wanted)


OF_STORAGE = cases("""
    torch.tensor([n, n], device="meta"); torch.tensor([n, n], pin_memory=True)
    torch.tensor(x, device="meta"); torch.as_tensor(x, device="meta")
    torch.asarray(x, device="meta"); x.to(torch.ones(1).to("meta"))
    torch.as_tensor([n, n], device="meta"); x.new_tensor([n, n], device="meta"); x.to("meta")
    x.to(torch.float64).to("meta"); torch.zeros(2, device="meta"); x.new_zeros(2, device="meta")
    torch.full((2,), n, device="meta"); torch.full((2,), n, layout=torch.sparse_coo)
    torch.full((2,), n, pin_memory=True); torch.zeros(2, layout=torch.sparse_coo)
    torch.zeros(2, pin_memory=True); x.new_zeros((2,), pin_memory=True); x.pin_memory()
    x.new_full((2,), 2.0, layout=torch.sparse_coo); torch.zeros_like(x, layout=torch.sparse_coo)
    torch.zeros_like(x, pin_memory=True); torch.arange(n, layout=torch.sparse_coo)
    torch.arange(n, pin_memory=True); torch.arange(3, layout=torch.sparse_coo)
    torch.arange(n, requires_grad=True); torch.arange(n, out=torch.zeros(2).long())
    torch.rand(2, pin_memory=True)
""")


@pytest.mark.parametrize("call", every(5, OF_STORAGE))
def test_memory_elsewhere_is_refused(call: str, tmp_path: Path) -> None:
    refused(defined(PROGRAM.format(call=call), NAMES, tmp_path)["program"], X.clone())


WITH_GRADIENTS = cases("""
    torch.tensor([n, n], dtype=torch.float32, requires_grad=True)
    torch.tensor(1.5 * n, requires_grad=True); torch.tensor(x, requires_grad=True)
    torch.tensor([x[0, 0], x[0, 1]], requires_grad=True); x.new_tensor(x, requires_grad=True)
    torch.asarray([1.0 * n, n], requires_grad=True); torch.zeros(2, requires_grad=True)
    torch.full((2,), 1.5 * n, requires_grad=True); x.new_full((2,), 2.0, requires_grad=True)
    torch.rand(2, 3, requires_grad=True); torch.zeros_like(x, requires_grad=True)
""")


@pytest.mark.parametrize("call", WITH_GRADIENTS)
def test_a_new_tensor_that_requires_grad(call: str, tmp_path: Path) -> None:
    program = defined(PROGRAM.format(call=call), NAMES, tmp_path)["program"]
    with pytest.raises(GradientsWanted):
        capture(program, (X.clone(),), {}, Options())


def conditions_on_sizes(x: Tensor) -> Any:
    """Tensors of conditions on a size that a branch may have made a float, and on a size that data
    decide."""
    columns = x.shape[-1]
    if x.sum() > 0:
        columns = columns * 1.0
    count = x[x > 0].shape[0]
    return (
        torch.tensor(columns > 3),
        torch.as_tensor(columns > 3, dtype=torch.float32),
        torch.tensor([columns > 3, columns < 9]),
        torch.tensor([count > 2, columns > 3]),
    )


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_conditions_on_sizes_are_flags(dynamic: bool | None) -> None:
    fast = stretto.compile(conditions_on_sizes, backend="interpreter", dynamic=dynamic)
    for columns in (3, 5, 4):
        for sign in (1, -1):
            x = torch.ones(2, columns) * sign
            x[0, 0] = -sign
            torch.testing.assert_close(fast(x), conditions_on_sizes(x), rtol=0, atol=0)

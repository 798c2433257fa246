"""Operators over sizes of the call, and over known ones, compiled for sm_90.

Triton is typed, and the interpreter of the emulated GPU takes some texts that Triton does
not: a variable whose type changes in a loop, for one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stretto
from stretto.call.compiler import build
from stretto.machines.cuda.machine import CUDA, gpu_program
from stretto.options import Options
from tests.e2e.machines import CUDA as EMULATED

pytest.importorskip("triton", reason="triton is not installed")


def rows_one_by_one(x: Tensor) -> Tensor:
    out = x * 0
    for row in x:
        out = out + row.argmax()
    return out


OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda x: (x.argmax(1), x.argmax(0), x.argmax()),
    "argmin": lambda x: x.double().argmin(0),
    "max": lambda x: (x.max(1), x.min(0), x.amax(0), x.aminmax(dim=0)),
    "sum": lambda x: (x.sum(0), x.sum(1), x.sum(), x.double().sum(0)),
    "prod": lambda x: (x.prod(0), x.long().prod(1)),
    "integers": lambda x: (x.long().sum(0), (x > 0).sum(1), x.long() // 3, x.long() % 5),
    "any": lambda x: ((x > 1).any(0), (x > 0).all(1), torch.count_nonzero(x, 0)),
    "mean": lambda x: (x.mean(0), x.var(0), x.std(1), x.norm(dim=1), x.logsumexp(0)),
    "softmax": lambda x: (x.softmax(0), x.log_softmax(1)),
    "cumsum": lambda x: (x.cumsum(0), x.cumsum(1), x.long().cumsum(0)),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(0),
    "sort": lambda x: x.sort(0),
    "argsort": lambda x: x.argsort(1),
    "topk": lambda x: x.topk(2, 1),
    "median": lambda x: x.median(0),
    "kthvalue": lambda x: x.kthvalue(1, 0),
    "searchsorted": lambda x: torch.searchsorted(x.sort(1)[0], x),
    "mm": lambda x: (x @ x.t(), x.t() @ x),
    "bmm": lambda x: x[None] @ x.t()[None],
    "bfloat16": lambda x: (x.bfloat16() @ x.bfloat16().t()).float(),
    "einsum": lambda x: (torch.einsum("ij,kj->ik", x, x), torch.outer(x[:, 0], x[0])),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "flip": lambda x: (x.flip(0), x.roll(1, 0), x.tril()),
    "cat": lambda x: (torch.cat([x, x * 2], 0), torch.stack([x, x + 1])),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)),
    "gather": lambda x: x.gather(0, (x > 0).long()),
    "index": lambda x: (x[(x.sum(1) > 0).long()], x.index_select(0, torch.arange(x.shape[0]))),
    "scatter": lambda x: torch.zeros_like(x).scatter(0, (x > 0).long(), x),
    "index_put": lambda x: torch.zeros_like(x).index_put(
        (torch.arange(x.shape[0]),), x, accumulate=True
    ),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[1],)),
    "pointwise": lambda x: (torch.where(x > 0, x, -x), x.clamp(0, 1), F.gelu(x), (x > 0) & (x < 1)),
    "arange": lambda x: torch.arange(x.shape[0]) + x.sum(1),
    "expand": lambda x: x[:, None].expand(-1, 3, -1).sum(1),
    "reshape": lambda x: x.reshape(-1) * 2,
    "nonzero": lambda x: x.nonzero(),
    "pool": lambda x: (F.avg_pool1d(x[None], 3, 1, 1), F.max_pool1d(x[None], 3, 1, 1)),
    "one_hot": lambda x: F.one_hot((x[:, 0] > 0).long(), 3),
    "cdist": lambda x: torch.cdist(x, x),
    "embedding": lambda x: F.embedding((x > 0).long(), torch.ones(5, 4)),
    "losses": lambda x: (F.mse_loss(x, x * 2), F.cross_entropy(x, (x[:, 0] > 0).long())),
    "loop": rows_one_by_one,
}


@pytest.mark.whole
@pytest.mark.parametrize("dynamic", [True, False], ids=["sizes", "known"])
@pytest.mark.parametrize("name", OPERATORS)
@torch.no_grad()
def test_triton_takes_the_text(name: str, dynamic: bool, tmp_path: Path) -> None:
    function, options = OPERATORS[name], Options(units=3, cache_dir=tmp_path)
    compiled: Any = stretto.compile(function, backend=EMULATED, options=options, dynamic=dynamic)
    for rows in (5, 6):
        x = torch.randn(rows, 7)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)
    program = compiled.signatures[-1].stages.captured
    stages = build(program, CUDA.for_target("sm_90", 132), Options(cache_dir=tmp_path))
    assert all(kernel.resources.spill_bytes == 0 for kernel in gpu_program(stages).compiled)

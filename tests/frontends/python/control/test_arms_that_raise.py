"""What an operator refuses in an arm of a branch is raised where the run comes to that arm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import stretto
from stretto.errors import CaptureError

from ..checks import defined, outcome

# Expressions of x, three floats, and y, five of them, that eager PyTorch refuses.
REFUSED = """x + y; x[y > 0]; x[y > 0][:2]; torch.ones(3)[y > 0]; x[7]; x[y.long() + 7]; x @ y
x @ x[:2]; torch.cat([x, y[None]]); torch.stack([x, y]); x.reshape(2, 2); x.view(4); x.expand(4)
x.unsqueeze(3); x.squeeze(2); x.sum(1); x.transpose(0, 1); x.permute(1, 0); x.narrow(0, 2, 3)
x.chunk(0); x.split(0); x.index_select(0, y.long() + 5); x.gather(0, y.long() + 9)
x.gather(0, y); x.scatter(0, y.long(), y); x.masked_select(y > 0); x.masked_fill(y > 0, 1)
torch.where(x > 0, x, y); x.add_(y); x.copy_(y); x.long().add_(0.5); x.bitwise_and(x); ~x; x << 1
x.long() ** -1; torch.zeros(-1); torch.arange(3, 0); torch.linspace(0, 1, -2); torch.eye(-1)
torch.full((-2,), 0.5); x.repeat(); x.flatten(1, 0); x.unfold(0, 5, 1); x.diagonal(); x.tril()
x.topk(5); x.sort(1); x.argmax(2); x.cumsum(1); x.softmax(1); x.max(1); x.median(2)
torch.nn.functional.linear(x, y); torch.nn.functional.embedding(x, y)
torch.nn.functional.one_hot(x); torch.nn.functional.conv1d(x, y)
torch.nn.functional.layer_norm(x, (5,)); torch.einsum('ij,j', x, y); torch.bmm(x, y)
torch.mm(x, y); torch.dot(x, y); torch.outer(x, y[None]); torch.cross(x, y, 0); x.T @ y
torch.nn.functional.mse_loss(x, y[:2]); float(x); int(y); x.item(); bool(x); [1, 2][5]; {}['k']
None + 1; int('a'); 1 // 0; x.nothing; (1, 2).append(3); x['a']; len(x[0]); math.sin(x)
math.floor(y); complex(x); round(x); range(x); [1, 2][x]; [1, 2][:y]"""
TEXTS = [text.strip() for line in REFUSED.splitlines() for text in line.split(";")]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.filterwarnings("ignore")
def test_an_arm_that_raises(text: str, tmp_path: Path) -> None:
    source = f"""
def program(x, y):
    if x.sum() > 3:
        z = {text}
    return x + 1
"""
    function: Any = defined(source, {"math": math, "torch": torch}, tmp_path)["program"]
    compiled = stretto.compile(function, backend="interpreter")
    y = torch.linspace(-1, 1, 5)
    for factor in (0.5, 2.0, 0.25):
        x = torch.ones(3) * factor
        wanted = outcome(function, x.clone(), y.clone())
        assert isinstance(wanted, type) == (factor == 2.0), wanted
        try:
            found = outcome(compiled, x.clone(), y.clone())
        except CaptureError:
            return
        assert torch.equal(found, wanted) if factor < 2 else found is wanted, (found, wanted)

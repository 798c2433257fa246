"""Sizes that data decide beside other sizes: what fits, what is broadcast, and what is refused is
as in eager PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stretto
from stretto.errors import CaptureError

from ..checks import defined, identical, outcome

# Expressions of x, four floats, m, an int, z, a tensor of m zeros, and p, those of x above 0.
FORMS = """x.reshape(2, m); x.view(m, -1); x.view(m, 2).view(4); x.reshape(len(p), -1)
x.expand(2, m); x[:, None].expand(4, m); p.expand(2, m); z.expand_as(x); z.view_as(x)
torch.broadcast_to(x, (m, 4)); p.view(2, -1).flatten(); p.view(2, 2).view(4)
p.view(2, 2).flatten()[:0]; p.reshape(m, 2).sum(0); p.unflatten(0, (m, -1)).flatten()
torch.unflatten(p, 0, (-1, m)); p.unflatten(dim=0, sizes=(m, -1)); z + x; z * x[:3]; p + x
p ** x; p @ x; torch.broadcast_tensors(z, x); torch.where(z > 0, x, 0.0); torch.minimum(x, z)
torch.addcmul(x, z, x); torch.lerp(z, x, 0.5); torch.outer(z, x); torch.inner(z, x)
torch.mv(torch.zeros(2, m), x); torch.zeros(2, m) @ x[:, None]; torch.tensordot(z, x, 1)
torch.bmm(torch.zeros(1, 2, m), x[None, :, None]); F.linear(torch.zeros(3, m), x[None])
torch.einsum('i,i->i', z, x); torch.stack([z, x])
torch.cat([torch.zeros(m, 2), x.reshape(2, 2)], 1); copied(x, z); assigned(x, z); added(x, z)
x[z == 0]; x.masked_fill(z == 0, 3.0); x.masked_select(z == 0); x.gather(0, z.long())
x.scatter(0, torch.arange(m) % 4, x); x.index_add(0, z.long(), x)
F.layer_norm(torch.ones(2, m), (4,)); F.mse_loss(z, x); F.l1_loss(z, x)
F.cosine_similarity(z, x, 0); F.binary_cross_entropy(z, x.sigmoid())
F.cross_entropy(x[None].repeat(m, 1), torch.zeros(2).long())
F.conv1d(torch.ones(1, m, 4), x.reshape(1, 1, 4)); torch.dist(z, x); torch.cartesian_prod(z, x)
F.pairwise_distance(torch.zeros(2, m), x.repeat(2, 1)); torch.equal(x, z); torch.allclose(x, z)
x[:, None] / torch.ones(m, 1); z.unflatten(0, (2, 2)); x.narrow(0, 1, m); x[1:].narrow(0, 0, m)
torch.tensor([p, 2]); p.reshape(()); p.squeeze(); p.squeeze(0); z[None].transpose(0, 1) + x"""


def texts_of(lines: str) -> list[str]:
    return [text.strip() for line in lines.splitlines() for text in line.split(";")]


def copied(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x.clone().copy_(z)


def assigned(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:2] = z
    return x


def added(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x += z
    return x


NAMES = {"F": F, "added": added, "assigned": assigned, "copied": copied, "torch": torch}


def made(text: str, folder: Path) -> Any:
    """A function of x and a tensor with the number m that returns this expression."""
    source = f"""
def program(x, i):
    m = int(i[0])
    z, p = torch.zeros(m), x[x > 0]
    return {text}
"""
    return defined(source, NAMES, folder)["program"]


@pytest.mark.parametrize("text", texts_of(FORMS))
@pytest.mark.filterwarnings("ignore")
def test_right_or_refused(text: str, tmp_path: Path) -> None:
    function = made(text, tmp_path)
    compiled = stretto.compile(function, backend="interpreter")
    for values in (
        [1.0, 2.0, 3.0, 4.0],
        [1.0, 2.0, -3.0, -4.0],
        [1.0, 2.0, 3.0, -4.0],
        [4.0, -1.0, -1.0, -2.0],
    ):
        for number in (2, 1, 4, 3, 0, -1):
            wanted = outcome(function, torch.tensor(values), torch.tensor([number]))
            try:
                found = outcome(compiled, torch.tensor(values), torch.tensor([number]))
            except CaptureError:
                return
            assert found is wanted or identical(found, wanted), (values, number, found, wanted)


# These are not refused.
CAPTURED = """x.reshape(2, m); x.expand(2, m); p.view(2, -1).flatten(); z + x; p @ x
torch.outer(z, x); torch.broadcast_tensors(z, x); p.unflatten(0, (m, -1)); torch.stack([z, x])
x[z == 0]; copied(x, z)"""


@pytest.mark.parametrize("text", texts_of(CAPTURED))
def test_captured(text: str, tmp_path: Path) -> None:
    function = made(text, tmp_path)
    compiled: Any = stretto.compile(function, backend="cpu")
    for number in (2, 1, 4):
        given = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([number])
        assert identical(outcome(compiled, *given), outcome(function, *given))

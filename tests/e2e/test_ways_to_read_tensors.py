"""Every way of Python to get at what a tensor of outside holds: the program is right after the
tensor has been changed in each of the ways in which it can be, or the function is refused."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import CaptureError
from tests.frontends.python.checks import assert_same

_IMPORTS = """\
import array, copy, math, operator, pickle
import numpy as np
import torch
"""
WAYS = """\
m.f.item()
float(m.f)
int(m.n)
m.f.__float__()
m.n.__index__()
m.n.__int__()
operator.index(m.n)
complex(m.f.item()).real
round(m.f.item())
round(float(m.f), 1)
abs(m.f.item())
hash(m.f.item())
divmod(int(m.n), 2)[0]
math.floor(m.f)
math.sqrt(m.f)
math.sqrt(float(m.f))
1 if m.flag else 2
1 if m.flag.item() else 2
1 if bool(m.flag) else 2
1 if m.flag.__bool__() else 2
1 if not m.flag else 2
2 if m.flag and m.n > 1 else 3
1 if (m.k == m.w).all() else 3
torch.is_nonzero(m.f)
m.k.tolist()[1]
m.f.tolist()
m.w.tolist()[1]
sum(m.k.tolist())
max(m.k.tolist())
sorted(m.k.tolist(), reverse=True)[0]
dict(zip("abcd", m.k.tolist()))["b"]
[i for i, v in enumerate(m.idx.tolist()) if v == 2][0]
m.idx.tolist().index(2)
(m.k * 2).tolist()[0]
float((m.k * 2).sum())
sum(float(v) for v in m.k)
sum(v.item() for v in m.k)
float(max(m.k))
sum(list(m.k))
next(iter(m.k)).item()
len([v for v in m.idx if v > 0])
array.array("f", m.k)[1]
bytes(m.idx.to(torch.uint8).tolist())[1]
bytes(m.idx.to(torch.uint8).numpy())[2]
float(m.f.numpy())
m.k.numpy()[1].item()
m.k.numpy().tolist()[1]
m.k.numpy().astype(np.int64)[2].item()
m.k.numpy(force=True)[1].item()
m.k.numpy()[m.n].item()
m.k.numpy()[int(m.n)].item()
m.k.detach().numpy()[1].item()
m.k.cpu().numpy()[1].item()
m.k.clone().numpy()[1].item()
(m.k + 1).numpy()[1].item()
m.k.to(torch.float64).numpy()[1].item()
m.k.__array__()[1].item()
m.k.__array__(np.dtype("float64"))[1].item()
float(np.asarray(m.k).sum())
float(np.array(m.w.detach()).sum())
float(np.array(m.k, copy=True).sum())
float(np.sqrt(m.k.numpy()).sum())
float(np.mean(m.k.numpy()))
float(np.float32(m.f))
float(np.float64(m.f.item()))
float(np.array([m.f, m.n]).sum())
float(np.interp(1.5, np.arange(4), m.k.numpy()))
torch.from_numpy(m.k.numpy())
torch.from_numpy(np.interp(np.arange(4), np.arange(4), m.k.numpy()).astype(np.float32))
torch.from_numpy(np.array(((1 - m.k / 9) / m.k) ** 0.5))
torch.as_tensor(m.k.numpy())
torch.tensor(m.k.numpy())
torch.tensor(m.k.tolist())
torch.tensor([m.f.item(), 1, 2, 3])
torch.full((4,), float(m.f))
torch.linspace(0, float(m.f), 4)
torch.arange(int(m.n) + 1).sum()
torch.zeros(int(m.n) + 1, 2).shape[0]
x.repeat(int(m.n) + 1).sum()
x.expand(int(m.n) + 1, 4).sum()
x.roll(int(m.n))
x[: m.n].sum()
x[m.n]
x[m.n :].sum()
x[m.idx].sum()
x[m.idx.tolist()].sum()
torch.nn.functional.leaky_relu(-x, float(m.f))
torch.clamp(x * 5, max=float(m.f))
float(f"{m.f}")
float(f"{m.f:.3f}")
float("%.2f" % m.f)
float("{:.2f}".format(m.f))
float(m.f.__format__(".2f"))
float(str(m.f.item()))
float(repr(m.f)[7:-1])
len(str(m.k))
len(repr(m.w))
f"{m.k} and {m.f}"
torch.equal(m.k, torch.tensor([1.0, 2, 3, 4]))
torch.equal(m.k, m.w)
m.k.equal(m.w)
torch.allclose(m.k, m.w)
m.k.allclose(m.w)
copy.copy(m.k)
copy.deepcopy(m.k)
copy.deepcopy(m.w).detach()
pickle.loads(pickle.dumps(m.k))
m.k.data[1].item()
m.w.data[1].item()
m.k.data
m.k.untyped_storage()[0]
m.k.storage()[1]
np.from_dlpack(m.k)[1].item()
m.k.apply_(lambda value: value + 1)
m.k.data_ptr() == m.w.data_ptr()
[10, 20, 30, 40][m.n]
(10, 20, 30, 40)[int(m.n)]
{0: 3.0, 1: 4.0, 2: 5.0, 3: 7.0}[int(m.n)]
{2: 5.0, 3: 7.0}.get(m.n.item(), 1.0)
float(m.f) in (2.5, 3.5)
2 in m.idx
m.n in [2, 7]
range(10)[m.n]
sum(range(m.n))
sum(1 for _ in range(int(m.n)))
m.k.sum().item()
m.k.max().item()
m.k.argmax().item()
m.k.norm().item()
m.k.nonzero().shape[0]
m.k[m.k > 2].shape[0]
m.idx.bincount().tolist()[0]
m.k[m.n].item()
m.k[int(m.n)]
dict(m.named_buffers())["f"].item()
m.state_dict()["f"].item()
m.get_buffer("f").item()
getattr(m, "f").item()
m._buffers["f"].item()
[b for b in m.buffers()][2].item()
""".splitlines()
REFUSED = {
    "copy.copy(m.k)",
    "pickle.loads(pickle.dumps(m.k))",
    "m.k.untyped_storage()[0]",
    "m.k.storage()[1]",
    "np.from_dlpack(m.k)[1].item()",
    "m.k.apply_(lambda value: value + 1)",
}
"""Ways that look at the memory itself."""
REFUSED_WITHOUT_SOURCE = {"copy.deepcopy(m.k)", "copy.deepcopy(m.w).detach()"}
"""Ways that call the special methods of tensors by names that their code does not show."""


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(2))
        self.register_buffer("k", torch.tensor([1.0, 2, 3, 4]))
        self.register_buffer("f", torch.tensor(2.5))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("idx", torch.tensor([1, 2, 0]))
        self.w = nn.Parameter(torch.tensor([1.0, 2, 3, 4]))


def _by_operators(held: Any) -> None:
    held.n.add_(1).remainder_(4)
    held.k.add_(1)
    held.f.add_(0.5)
    held.w.add_(2)
    held.flag.logical_not_()
    held.idx.copy_(held.idx.flip(0))


def _by_data(held: Any) -> None:
    held.n.data = (held.n + 1) % 4
    held.k.data = held.k * 2
    held.f.data = held.f - 0.25
    held.w.data = held.w.data + 2
    held.flag.data = ~held.flag
    held.idx.data = held.idx.flip(0)


def _by_numpy(held: Any) -> None:
    for tensor in (held.n, held.f, held.k):
        tensor.numpy()[...] = 3
    held.w.detach().numpy()[1] = 7


def _by_objects(held: Any) -> None:
    for name, value in (("n", 1), ("f", 4.5), ("flag", True)):
        setattr(held, name, torch.tensor(value))
    held.k = torch.tensor([4.0, 3, 2, 1])
    held.w = nn.Parameter(held.k + 1)


CHANGES = (_by_operators, _by_operators, _by_data, _by_numpy, _by_objects)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module with the ways as functions, whose sources the front end reads."""
    path: Path = tmp_path_factory.mktemp("ways") / "ways_to_read.py"
    functions = (f"def way_{n}(m, x):\n    return {way}\n" for n, way in enumerate(WAYS))
    path.write_text(_IMPORTS + "".join(functions))
    spec = importlib.util.spec_from_file_location("ways_to_read", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["ways_to_read"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("way", WAYS)
def test_in_code_that_is_rewritten(way: str, sources: Any) -> None:
    _check(way, getattr(sources, f"way_{WAYS.index(way)}"), way in REFUSED)


@pytest.mark.parametrize("way", WAYS)
def test_in_code_that_runs_as_it_is(way: str) -> None:
    names: dict[str, Any] = {}
    exec(_IMPORTS, names)
    _check(way, eval(f"lambda m, x: {way}", names), way in REFUSED | REFUSED_WITHOUT_SOURCE)


def _check(way: str, function: Callable[[Any, Tensor], Any], is_refused: bool) -> None:
    eager, held, x = Held(), Held(), torch.tensor([0.5, -1, 2, 3])
    compiled = stretto.compile(lambda x: _with(x, function(held, x)), backend="interpreter")
    with torch.no_grad():
        if is_refused:
            with pytest.raises(CaptureError, match="memory of a tensor|native code|is not found"):
                compiled(x)
            return
        for change in (None, *CHANGES):
            if change is not None:
                change(eager)
                change(held)
            assert_same(compiled(x), _with(x, function(eager, x)))


def _with(x: Tensor, value: Any) -> Any:
    return (x * 2, value) if isinstance(value, str) else x[:1] * value

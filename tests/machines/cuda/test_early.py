"""Constants that are loaded before a task may begin: the split of a kernel's text, and its use."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import stretto
from stretto.device.expr import Buffer
from stretto.ir.types import DType
from stretto.machines.cuda.printer.early import EarlyLoads, split_early
from stretto.machines.cuda.printer.kernel import TritonKernel
from stretto.options import Options

X = Buffer("x", DType.F32, (256,), "input", 0)
W = Buffer("w", DType.F32, (64, 256), "constant", 1)
Y = Buffer("y", DType.F32, (64,), "local")

PRODUCT = """(p0, p1, p2, control, task):
    g0 = (task) * 16
    x0 = tl.arange(0, 16)[:, None]
    a1 = tl.full([16, 256], 0, tl.float32)
    x2 = tl.arange(0, 256)[None, :]
    v3 = tl.load(p0 + (x2))
    v4 = tl.load(p1 + (g0 * 256) + (x0 * 256 + x2))
    a1 = a1 + v3 * v4
    s6 = stretto_row_sum(a1)
    tl.store(p2 + (g0) + (x0), s6)
    return
"""


def kernel(text: str, *buffers: Buffer) -> TritonKernel:
    return TritonKernel(text, buffers or (X, W, Y), ())


def test_only_the_weights_come_first() -> None:
    split = split_early(kernel(PRODUCT))
    assert split is not None
    assert split.values == ("v4",)
    assert split.constants == (1,)
    assert split.nbytes == 16 * 256 * 4
    assert split.early.startswith("(p1, task):")
    assert "p0" not in split.early and "a1" not in split.early
    assert split.body.startswith("(p0, p1, p2, control, task, v4):")
    assert "v4 = " not in split.body and "v3 = tl.load(p0 + (x2))" in split.body


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("p1 + (g0 * 256)", "p0 + (g0 * 256)"), "it loads no constant"),
        (("g0 = (task) * 16", "g0 = tl.load(p0)"), "the place is read from memory"),
        (("    v4 = ", "        v4 = "), "it stands in a loop"),
        (("[16, 256]", "[16, 8]"), ""),
    ],
)
def test_what_stays_where_it_is(change: tuple[str, str], reason: str) -> None:
    split = split_early(kernel(PRODUCT.replace(*change)))
    assert (split is None) == bool(reason)


def test_a_name_that_changes_is_no_place() -> None:
    text = PRODUCT.replace("    v3 =", "    x0 = x0 + 1\n    v3 =")
    assert split_early(kernel(text)) is None


def test_little_is_not_worth_it() -> None:
    small = PRODUCT.replace("tl.arange(0, 256)", "tl.arange(0, 16)")
    assert split_early(kernel(small)) is None


def test_registers_run_out_and_come_back() -> None:
    early = EarlyLoads(budget=20_000)
    first, second = (early.take(kernel(PRODUCT), name) for name in ("one", "two"))
    assert first is not None and second is not None
    early.hold("one", ["a"])
    assert early.budget == 20_000 - first.nbytes
    assert early.take(kernel(PRODUCT), "two") is None
    early.drop([])
    assert early.budget == 20_000
    assert early.values("one") is None


class Recurrence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.out = nn.Linear(width, 3)

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(1, xs.shape[1])
        for x in xs:
            h, c = self.cell(x.unsqueeze(0), (h, c))
        return self.out(h)


@pytest.mark.parametrize("units", [1, 3, 16])
def test_a_loop_keeps_its_weights(units: int) -> None:
    torch.manual_seed(0)
    model, xs = Recurrence(72).requires_grad_(False), torch.randn(5, 72)
    fast = stretto.compile(model, backend="cuda-emulated", options=Options(units=units, unroll=0))
    for _ in range(2):
        torch.testing.assert_close(fast(xs), model(xs), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    entry = source.text[source.text.index("def stretto_run") :]
    if units == 16:  # with few units a unit has several tasks, and no registers for all
        pieces = re.findall(r"def piece_main.*?\n    return", source.text, re.DOTALL)
        (loop,) = [piece for piece in pieces if "while ok" in piece]
        assert loop.index("early") < loop.index("while ok")
        assert re.search(r"= piece_main\w*\(", entry)


def test_weights_are_under_way_while_a_unit_waits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
    x = torch.randn(1, 512)
    fast = stretto.compile(
        model.requires_grad_(False), backend="cuda-emulated", options=Options(units=132)
    )
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    (source,) = fast.signatures[0].stages.product.sources
    entry = source.text[source.text.index("def stretto_run") :]
    load, wait = entry.index("= e_"), entry.index("ok = wait(")
    assert load < wait < entry.index("k_", wait)
    assert "early_" in entry[entry.index("k_", wait) :]

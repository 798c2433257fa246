"""How many bytes the loads of BlockDrop's convolutions have, in the PTX for sm_90.

Convolutions read images and weights along the channels, in vectors of 16 bytes
(docs/decisions/2026-11-26-convolutions-on-gpus.md). Triton finds that out by itself, from strides
and offsets, so that any change of the printed indices may lose it without a wrong result.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from stretto.machines.cuda import compile as triton_compile
from stretto.machines.cuda.printer.source import TritonSource
from stretto.options import Options
from stretto.tools.models import Model
from stretto.tools.simulate import compile_model, target_machine

pytest.importorskip("triton", reason="triton is not installed")

FUNCTION = re.compile(r"^\.func[^\n]*\($(.*?)^}", re.DOTALL | re.MULTILINE)
LOAD = re.compile(r"\bld\.global(?:\.[\w:]+)*?(?:\.v([248]))?\.[bfsu](8|16|32|64)\s")
COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x\w+|\d+)")


def widths(ptx: str) -> Counter[int]:
    """By bytes, how many loads and asynchronous copies from global memory there are."""
    found: Counter[int] = Counter()
    for vector, bits in LOAD.findall(ptx):
        found[int(bits) // 8 * int(vector or 1)] += 1
    for size in COPY.findall(ptx):
        found[int(size, 0)] += 1
    return found


class Convolutions(torch.nn.Module):
    """Those of BlockDrop's residual blocks, one after the other. All but the first one read images
    that nobody outside of the program has laid out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        return x


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The PTX that is made in a test."""
    found: list[str] = []
    run = triton_compile._run_triton

    def recorded(source: TritonSource, target: Any, **named: Any) -> Any:
        compiled = run(source, target, **named)
        found.append(compiled.asm["ptx"])
        return compiled

    monkeypatch.setattr(triton_compile, "_run_triton", recorded)
    return found


def of_products(channels: int, size: int, texts: list[str], folder: Path) -> list[Counter[int]]:
    """The widths of the loads of each function with a product; the first convolution's, which reads
    the program's input where it lies, is the last one: it has the most scalar loads."""
    inputs = (torch.ones(1, channels, size, size),)
    model = Model("convolutions", Convolutions(channels).eval(), inputs)
    compile_model(model, target_machine("sm_90"), Options(cache_dir=folder))
    (text,) = texts
    found = [widths(body) for body in FUNCTION.findall(text) if "mma" in body]
    return sorted(found, key=lambda counted: counted[4])


@pytest.mark.parametrize(
    ("channels", "size", "at_least"),
    [(16, 32, 8), (64, 8, 28)],  # the first stage, without asynchronous copies; the last, with them
)
def test_images_and_weights_are_read_in_vectors(
    channels: int, size: int, at_least: int, texts: list[str], tmp_path: Path
) -> None:
    *inner, _ = of_products(channels, size, texts, tmp_path)
    found = sum(inner, Counter[int]())
    assert found[16] >= at_least, found
    assert found[4] <= 2, found  # what a thread stores of the program's result is not a vector
    assert found[1] == found[2] == 0, found
    if channels == 64:
        assert COPY.findall(texts[0]) and {*COPY.findall(texts[0])} == {"0x10"}


def test_scalar_loads_are_noticed(texts: list[str], tmp_path: Path) -> None:
    """An odd number of channels cannot be read in vectors."""
    found = sum(of_products(15, 8, texts, tmp_path), Counter[int]())
    assert found[4] > 16 and found[16] == 0, found


def test_widths_of_ptx() -> None:
    text = """
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        ld.global.L1::evict_last.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];
        ld.global.b32 { %r1 }, [ %rd1 + 0 ];
        ld.acquire.gpu.global.s64 %seen, [%address + 128];
        ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r9];
        cp.async.cg.shared.global [ %r73 + 0 ], [ %rd18 + 0 ], 0x10, %r74;
        cp.async.ca.shared.global [ %r73 + 0 ], [ %rd18 + 0 ], 0x4, %r74;
    """
    assert widths(text) == {16: 2, 8: 1, 4: 2}

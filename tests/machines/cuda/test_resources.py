"""What typical kernels need of a device: no spills, and room for more than one unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.device.operator import Kernel
from tests.lowering.programs import lowered
from tests.machines.cuda.triton_runner import compiled, kernels_of


def product(m: int, n: int, k: int, dtype: str) -> str:
    return f"""
        func @main(%x: {dtype}[{m}, {k}]) -> ({dtype}[{m}, {n}]) {{
          %w = constant "w" : {dtype}[{n}, {k}]
          %y = aten.linear.default(%x, %w) : {dtype}[{m}, {n}]
          return %y
        }}
        """


CONVOLUTION = """
    func @main(%x: f32[1, 64, 56, 56]) -> (f32[1, 64, 56, 56]) {
      %w = constant "w" : f32[64, 64, 3, 3]
      %y = aten.convolution.default(%x, %w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1) : f32[1, 64, 56, 56]
      return %y
    }
    """  # noqa: E501
SOFTMAX = """
    func @main(%x: f32[12, 64]) -> (f32[12, 64]) {
      %y = aten.softmax.int(%x, 1) : f32[12, 64]
      return %y
    }
    """
PROGRAMS = {
    "one row": product(1, 512, 1024, "f32"),
    "three rows": product(3, 512, 1024, "f32"),
    "matrices": product(64, 256, 512, "f32"),
    "halves": product(64, 256, 512, "bf16"),
    "large": product(1024, 1024, 1024, "bf16"),
    "split, one row": product(1, 10, 100_003, "f32"),
    "split, matrices": product(16, 128, 16384, "f32"),
    "convolution": CONVOLUTION,
    "softmax": SOFTMAX,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_typical_kernels(name: str, tmp_path: Path) -> None:
    for leaf in kernels_of(lowered(PROGRAMS[name])):
        for item in leaf:
            if isinstance(item, Kernel):
                used = compiled(item, tmp_path)
                assert used.spill_bytes == 0
                assert used.shared_bytes <= 160 << 10


@pytest.mark.parametrize("name", ["matrices", "halves"])
def test_other_machines(name: str, tmp_path: Path) -> None:
    for target in ("sm_80", "sm_100", "gfx942"):
        for leaf in kernels_of(lowered(PROGRAMS[name])):
            for item in leaf:
                if isinstance(item, Kernel):
                    compiled(item, tmp_path, target)

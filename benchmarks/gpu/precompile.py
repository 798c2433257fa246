"""Compiles the zoo for a GPU that is not here, so that a lent one need not wait for compilers."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from ..models import CORE, ZOO

TARGET = "sm_90"
UNITS = 132
"""Of an H200."""


def precompile(folder: Path, chosen: tuple[str, ...] = ()) -> dict[str, float]:
    """Seconds by model. A program found in `folder` later is one whose text is the same."""
    from stretto.build import build
    from stretto.frontends.python import capture
    from stretto.machines.cuda.machine import CUDA
    from stretto.options import Options

    found: dict[str, float] = {}
    options = Options(cache_dir=str(folder))
    for name in chosen or CORE:
        for preset in ("small", "full"):
            entry = ZOO[name]
            module, inputs = entry.make(entry.presets[preset], 0)
            start = time.perf_counter()
            with torch.no_grad():
                captured = capture(module, inputs, {}, options)
                build(captured.program, CUDA.for_target(TARGET, UNITS), options)
            found[f"{name} {preset}"] = time.perf_counter() - start
            print(f"  {name} {preset}: {found[f'{name} {preset}']:.1f} s", flush=True)
    return found

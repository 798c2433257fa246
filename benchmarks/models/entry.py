"""Record of a model of the zoo for the harness: how to make it, and the work it cannot avoid."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

FLOAT_BYTES = 4

Made: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a call's unavoidable work: it takes at least its flops at the peak rate, and at
    least its bytes at the bandwidth of the nearest memory that holds `resident` bytes."""

    name: str
    flops: float
    bytes: float
    resident: float


def matmul_phase(name: str, rows: int, inner: int, columns: int, repeat: int = 1) -> Phase:
    """`repeat` products [rows, inner] x [inner, columns] by *different* weights, each read once."""
    weights = float(repeat * inner * columns * FLOAT_BYTES)
    return Phase(name, 2.0 * repeat * rows * inner * columns, weights, weights)


def recurrent_phase(name: str, steps: int, rows: int, inner: int, columns: int) -> Phase:
    """`steps` dependent products by the *same* weights, which are read again at every step."""
    weights = float(inner * columns * FLOAT_BYTES)
    return Phase(name, 2.0 * steps * rows * inner * columns, steps * weights, weights)


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One model. `make(config, seed)` returns the module in eval mode and its inputs.

    `presets` holds `full` (the published size) and `small` (seconds on the emulator).
    `work(config)` lists the phases of the physical floor. `one_launch`: a call must be
    one native launch. `loop`: it has a loop over steps. `batched`: `config.batch` may be
    more than 1. `decides`: the control flow depends on values, so a trace of one call is
    not the whole program.
    """

    name: str
    summary: str
    make: Callable[[Any, int], Made]
    presets: Mapping[str, Any]
    work: Callable[[Any], tuple[Phase, ...]]
    one_launch: bool = True
    loop: bool = False
    batched: bool = True
    decides: bool = False


def generator(seed: int) -> torch.Generator:
    """A CPU generator that does not touch torch's global one."""
    return torch.Generator().manual_seed(seed)

"""Record of a model that is written for one instance, for the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

from ..entry import FLOAT_BYTES, Phase

Function: TypeAlias = Callable[..., Any]

# Takes a function of tensors only, and returns it unchanged or compiled.
Wrap: TypeAlias = Callable[[Function], Function]
ManyFunction: TypeAlias = Callable[[Sequence[Any]], list[Any]]


def as_it_is(function: Function) -> Function:
    return function


@dataclass(frozen=True, slots=True)
class InstanceEntry:
    """One model, which takes one instance: a tree, a list, a graph as Python data.

    `presets` holds `small` (for tests) and the published sizes, `sizes` the names of the
    latter. `make(config, seed)` returns the module in eval mode, `instances(config,
    count, seed)` a list. `steps(instance, result)` counts the repeated steps of the
    model; over many instances its mean is within `mean_steps`. `work(config, instances,
    results)` lists the phases of the physical floor of one batch. `batched(model, wrap)`
    is a hand-written version for a whole batch, level by level: it prepares the weights
    and returns a function from instances to results. `wrap` is applied to its functions
    of tensors. None if nobody would write it by hand. `decides`: decisions depend on the
    values of tensors.
    """

    name: str
    summary: str
    presets: Mapping[str, Any]
    make: Callable[[Any, int], nn.Module]
    instances: Callable[[Any, int, int], list[Any]]
    steps: Callable[[Any, Any], float]
    mean_steps: tuple[float, float]
    work: Callable[[Any, Sequence[Any], Sequence[Any]], tuple[Phase, ...]]
    batched: Callable[[Any, Wrap], ManyFunction] | None = None
    decides: bool = False

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(name for name in self.presets if name != "small")


def chain_phase(name: str, flops: float, weights: float, reads: float) -> Phase:
    """Return the phase of work with `weights` numbers that a batch shares, and reads again at each
    of `reads` levels that depend on each other."""
    size = float(weights * FLOAT_BYTES)
    return Phase(name, float(flops), size * max(reads, 1), size)

"""Rules of lowering, a file per family of ops. `RULES` has them by target; see `table.py`."""

from __future__ import annotations

from stretto.lowering.rules import (
    activations,
    attention,
    contract,
    convolution,
    creation,
    indexing,
    moves,
    normalisation,
    pointwise,
    pooling,
    reduce,
    resample,
    softmax,
    sorting,
    updates,
    views,
)
from stretto.lowering.rules.table import RULES, Rule

FAMILIES = (
    activations,
    attention,
    contract,
    convolution,
    creation,
    indexing,
    moves,
    normalisation,
    pointwise,
    pooling,
    reduce,
    resample,
    softmax,
    sorting,
    updates,
    views,
)
"""The modules that register rules."""

__all__ = ["FAMILIES", "RULES", "Rule"]

"""stretto's own tensor operators, registered with torch so that they resolve and trace like
ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("stretto", "DEF")


def define(
    schema: str,
    compute: Callable[..., Any],
    shape: Callable[..., Any] | None = None,
    tags: tuple[torch.Tag, ...] = (),
) -> None:
    """Register an operator. `shape` returns its result without data; None if `compute` does so for
    tensors without data."""
    name = LIBRARY.define(schema, tags=tags)
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    if shape is not None:
        LIBRARY.impl(name, shape, "Meta")

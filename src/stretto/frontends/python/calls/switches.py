"""Keyword arguments of torch that are bools of Python, such as `is_causal`.

A flag that the run tells has no place there. It becomes a branch with a call in each arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from stretto.frontends.python.values.scalars import is_number


def switch_of(function: Any, kwargs: Mapping[str, Any]) -> str | None:
    """The first keyword argument of a call of torch that is a traced flag, where the function takes
    bools of Python only."""
    for name, item in kwargs.items():
        if is_number(item) and item.dtype is torch.bool:
            known = _switches(getattr(function, "__name__", ""))
            return name if name in known else None
    return None


@cache
def _switches(function: str) -> frozenset[str]:
    """The parameters of an operator that are bools in all of its overloads that have them."""
    packet = getattr(torch.ops.aten, function, None)
    overloads = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    types = [
        (item.name, str(item.type))
        for overload in overloads
        for item in overload._schema.arguments  # pyright: ignore[reportPrivateUsage]
    ]
    others = {name for name, kind in types if kind not in ("bool", "Optional[bool]")}
    return frozenset(name for name, _ in types) - others

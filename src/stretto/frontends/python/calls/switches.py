"""Keyword arguments of torch that are bools of Python, such as `is_causal`.

A flag that the run tells has no place there. It becomes a branch with a call in each arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from stretto.frontends.python.values.scalars import is_number
from stretto.frontends.python.values.sizes import is_decided, plain


def with_flags(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call without conditions on sizes of the call, which are settled by
    guards, and with flags in the place of conditions on sizes that data decide, where the function
    takes bools of Python only."""
    asked = [name for name, item in kwargs.items() if isinstance(item, torch.SymBool)]
    if not asked:
        return kwargs
    known = _switches(getattr(function, "__name__", ""))
    flags = {name: _flag(kwargs[name], is_known=name in known) for name in asked}
    return {**kwargs, **flags}


def _flag(condition: torch.SymBool, *, is_known: bool) -> Any:
    if not is_decided(condition):
        return bool(condition)
    return plain(condition) if is_known else condition


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

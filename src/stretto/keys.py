"""Keys of signatures: what calls that share a program have in common, and what varies, in words."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.frontends.python.results.inputs import key_of
from stretto.frontends.python.tracing.admission import foreign_input

Key = tuple[Any, ...]

BY_STRUCTURE = object()
"""Begins the keys of signatures in which objects among the arguments may be any of their class."""


def key_of_call(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Key, list[torch.Tensor], str | None]:
    """The key of any call, the tensors in it, and a reason to run eager."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    why = foreign_input(leaves)
    if why is not None:
        return (), tensors, why
    return (spec, *(key_of(leaf) for leaf in leaves)), tensors, None


def is_by_structure(key: Any) -> bool:
    """Whether a key, or the one that it makes longer, is one of objects of any identity."""
    while isinstance(key, tuple) and key:
        if key[0] is BY_STRUCTURE:
            return True
        key = key[-1]  # pyright: ignore[reportUnknownVariableType]
    return False


def varying(keys: list[Key]) -> str:
    """Which part of the signatures differs, in words."""
    shapes = [sizes for key in keys if (sizes := _shapes(key))]
    count = min((len(s) for s in shapes), default=0)
    found: list[str] = []
    for number in range(count):
        ranks = {len(s[number]) for s in shapes}
        if len(ranks) > 1:
            found.append(f"the number of dims of tensor {number} varies")
            continue
        for dim in range(ranks.pop()):
            sizes = sorted({s[number][dim] for s in shapes})
            if len(sizes) > 1:
                shown = ", ".join(str(size) for size in sizes[:6])
                more = ", ..." if len(sizes) > 6 else ""
                found.append(f"dimension {dim} of tensor {number} varies ({shown}{more})")
    return "; ".join(found) or "a value that is not a tensor varies"


def _shapes(key: Any) -> list[tuple[int, ...]]:
    if isinstance(key, torch.Size):
        return [tuple(key)]
    if isinstance(key, tuple):
        return [shape for part in key for shape in _shapes(part)]  # pyright: ignore[reportUnknownVariableType]
    return []

"""Operators that have no result without elements, which torch's rules for shapes do not ask for.

The largest element of nothing is an error in eager PyTorch. For a size that is known at the call
only, the rule of the operator's shape is silent; here it becomes a condition of that size: a guard
where a function is captured, a relation where the type of an op is inferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stretto.ops.table import entry

_REDUCTIONS = frozenset(
    f"aten.{name}"
    for name in (
        "max.default",
        "max.dim",
        "min.default",
        "min.dim",
        "amax.default",
        "amin.default",
        "aminmax.default",
        "argmax.default",
        "argmin.default",
        "median.dim",
        "nanmedian.dim",
        "mode.default",
    )
)


def require_elements(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Puts conditions on the sizes that the operator reduces. Raises RuntimeError for one that is
    0."""
    if str(overload) not in _REDUCTIONS:
        return
    known = [argument.name for argument in overload._schema.arguments]
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    tensor, dims = given["self"], given.get("dim", -1 if "mode" in str(overload) else None)
    if dims is None or dims == []:
        dims = range(tensor.dim())
    for dim in (dims,) if isinstance(dims, int) else dims:
        size = tensor.shape[dim] if tensor.dim() else 1
        torch._check(size >= 1)  # pyright: ignore[reportPrivateUsage]


def require_positions(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Puts conditions on the sizes of what the operator reads or writes at positions: that there is
    something. Eager PyTorch checks the positions of a tensor without elements, too, where kernels
    have nothing to do; sizes of 0 are programs of their own, which check."""
    argument = entry(str(overload)).positions
    if argument is None:
        return
    known = [item.name for item in overload._schema.arguments]
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    positions = given.get(argument.name)
    tables = positions if isinstance(positions, list | tuple) else [positions]
    if not any(isinstance(table, torch.Tensor) and table.dim() for table in tables):
        return  # one position, as of a loop over the rows
    tensor = given["weight"] if "weight" in given else given["self"]
    for size in tensor.shape:
        torch._check(size >= 1)  # pyright: ignore[reportPrivateUsage]
    if not tensor.dim():  # any number of positions, of which nothing is computed
        for item in filter(torch.is_tensor, given.values()):
            for size in item.shape:
                int(size)

"""The names that a user gave to the tensors of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensor_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """A name for each tensor among the arguments, in the order of the flattened call: `x`, or
    `state[0]` and `batch['mask']` for one inside a container."""
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    positions = _positional_names(function, len(args))
    return [_name(path, positions) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _name(path: tuple[Any, ...], positions: list[str]) -> str:
    kind, first, *rest = path
    name = positions[first.idx] if kind.idx == 0 else str(first.key)
    return name + pytree.keystr(tuple(rest))


def _positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """A name for each of `count` positional arguments; those of `*rest` are `rest[0]`, ..."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{n}" for n in range(count)]
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "arg")
    rest = [f"{several}[{n}]" for n in range(count - len(plain))]
    return [*plain[:count], *rest]

"""The error for arguments that no signature of a file is for: what is different, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.errors import RunError
from stretto.keys import Key
from stretto.saving.restore import Signature, TensorForm


def mismatch(
    function: str,
    parameters: Sequence[str],
    signatures: Sequence[Signature],
    arguments: Any,
    key: Key,
) -> RunError:
    """The error for a call; it is about the signature with the fewest differences, one
    for many sizes first."""
    ordered = sorted(signatures, key=lambda signature: signature.fits is None)
    found = [_differences(signature, arguments, parameters, key) for signature in ordered]
    shown = list(dict.fromkeys(min(found, key=len)))[:4]
    others = f" ({len(signatures)} signatures; this is about the nearest)" if len(found) > 1 else ""
    return RunError(
        f"{function} was not saved for these arguments{others}: {'; '.join(shown)}",
        remedy="pass such arguments, or call the compiled function with these before you save it",
    )


def _differences(
    signature: Signature, arguments: Any, parameters: Sequence[str], key: Key
) -> list[str]:
    """What of a call is not as a signature has it; what is wrong with the structure comes alone,
    and counts as much."""
    given, spec = pytree.tree_flatten_with_path(arguments)
    expected, wanted = pytree.tree_flatten(signature.arguments)
    if spec != wanted:
        shown = (_shown(*arguments), _shown(*signature.arguments))
        text = f"the arguments are ({shown[0]}), and it takes ({shown[1]})"
        return [text] * (1 + max(len(given), len(expected)))
    found: list[str] = []
    pairs = zip(key[1:], signature.key[1:], strict=True)
    for (path, leaf), form, (part, other) in zip(given, expected, pairs, strict=True):
        if part == other or (signature.fits is not None and _fits_but_sizes(leaf, form)):
            continue
        found.append(f"'{name_of(path, parameters)}' is {_leaf(leaf)}, and it takes {_leaf(form)}")
    if not found and signature.fits is not None and key != signature.key:
        found.append(_about_sizes(signature))
    text = "they share memory, or have strides, in another way than those it was compiled with"
    return found or [text]


def _fits_but_sizes(leaf: Any, form: Any) -> bool:
    if isinstance(leaf, torch.Tensor) and isinstance(form, TensorForm):
        rank = len(form.shape)
        return (leaf.dim(), leaf.dtype, leaf.device) == (rank, form.dtype, form.device)
    return type(leaf) is int and type(form) is int


def _about_sizes(signature: Signature) -> str:
    sizes = signature.captured.sizes
    assert sizes is not None
    shapes = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in sizes.shapes)
    ranges = [symbol.declaration for symbol in sizes.symbols]
    rules = " and ".join([*ranges, *(condition.text for condition in sizes.conditions)])
    return f"the sizes are others than it takes: {shapes} with {rules}"


def name_of(path: Any, parameters: Sequence[str]) -> str:
    """An argument as the function names it."""
    kind, first, *rest = path
    if kind.idx == 1:
        name = str(first.key)
    elif first.idx < len(parameters):
        name = str(parameters[first.idx])
    else:
        name = f"argument {first.idx}"
    return name + pytree.keystr(tuple(rest))


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    shown = [_structure(item) for item in args]
    return ", ".join([*shown, *(f"{name}={_structure(item)}" for name, item in kwargs.items())])


def _structure(value: Any) -> str:
    match value:
        case tuple() | list():
            return f"{type(value).__name__} of {len(value)}"  # pyright: ignore[reportUnknownArgumentType]
        case dict():
            return f"dict of {', '.join(map(str, value))}"  # pyright: ignore[reportUnknownArgumentType]
        case torch.Tensor() | TensorForm():
            return "tensor"
        case _:
            return type(value).__name__


def _leaf(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = TensorForm(tuple(value.shape), value.dtype, value.device)
    return str(value) if isinstance(value, TensorForm) else repr(value)

"""Functions of torch that take lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stretto.batching.frontend.builtins.library import from_source
from stretto.batching.frontend.builtins.objects import is_instance_of
from stretto.batching.frontend.builtins.table import (
    BUILTINS,
    Builtin,
    all_static,
    builtin,
    natively,
)
from stretto.batching.frontend.state import library
from stretto.batching.frontend.state.dispatch import impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant
from stretto.batching.frontend.state.values import Dynamic, Static, Value
from stretto.batching.frontend.tensors.operators import call_torch
from stretto.batching.types import ListType, RowsType, Scalar, TensorType, alternatives, union


@builtin(torch.is_tensor)
def _is_tensor(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return is_instance_of(frame, [args[0], Static(torch.Tensor)], {})


def _combined(frame: Frame, name: str, value: Dynamic, dim: Value) -> Value:
    """torch.stack or torch.cat of a list whose length the instance decides: rows."""
    if constant(dim) != 0:
        frame.refuse(
            f"torch.{name} of a list whose length the instance decides, along another dim than 0"
        )
    types = [
        frame.evaluation.item_type(k) for k in alternatives(value.type) if isinstance(k, ListType)
    ]
    kind = union(types)
    impossible(frame, kind)
    if not isinstance(kind, TensorType) or (name == "cat" and kind.shape[:1] != (1,)):
        frame.refuse(
            f"torch.{name} of a list of {frame.show(kind)}, whose length the instance decides",
            "combine tensors of one shape, whose first size is 1 for torch.cat",
        )
    rows = frame.assign("rows", RowsType(kind), value.operand)
    if name == "stack":
        return rows
    return call_torch(frame, torch.squeeze, [rows, Static(1)], {})


def _of_lists(function: Callable[..., Any], name: str) -> Builtin:
    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = args[0] if args else kwargs.get("tensors")
        if isinstance(value, Dynamic) and isinstance(value.type, ListType):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else Static(0))
            return _combined(frame, name, value, dim)
        if all_static(args, kwargs):
            return natively(frame, function, args, kwargs)
        return call_torch(frame, function, args, kwargs)

    return call


BUILTINS[torch.stack] = _of_lists(torch.stack, "stack")

for _cat in (torch.cat, torch.concat, torch.concatenate):
    BUILTINS[_cat] = _of_lists(_cat, "cat")


# ---- numbers


def _of_numbers(function: Callable[..., Any], dtype: torch.dtype | None) -> Builtin:
    """A tensor of a list of numbers whose length the instance decides: rows without dims."""

    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (value, *more), named = args or [Static(None)], dict(kwargs)
        if not (isinstance(value, Dynamic) and isinstance(value.type, ListType)):
            run = natively if all_static(args, kwargs) else call_torch
            return run(frame, function, args, kwargs)
        asked = named.pop("dtype", Static(dtype))
        if more or named:
            frame.refuse(
                f"{function.__name__} of a list whose length the instance decides, with more than "
                "a dtype"
            )
        kind = frame.evaluation.item_type(value.type)
        if kind not in (Scalar.BOOL, Scalar.INT, Scalar.FLOAT):
            frame.refuse(
                f"{function.__name__} of a list of {frame.show(kind)}",
                "give a list of numbers; combine tensors by torch.stack",
            )
        if kind == Scalar.FLOAT and constant(asked) is None:
            asked = Static(torch.get_default_dtype())
        source = library.tensor_of_some if constant(asked) is None else library.tensor
        return from_source(frame, source, [value, asked])

    return call


for _made, _dtype in (
    (torch.tensor, None),
    (torch.as_tensor, None),
    (torch.LongTensor, torch.int64),
    (torch.FloatTensor, torch.float32),
):
    BUILTINS[_made] = _of_numbers(_made, _dtype)

"""Functions that are not the user's: those of torch, and of Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from stretto.batching.frontend.builtins.table import BUILTINS
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import is_static, python_of
from stretto.batching.frontend.state.values import Dynamic, Value
from stretto.batching.frontend.tensors.operators import call_torch
from stretto.batching.frontend.tensors.purity import call_static
from stretto.batching.types import ListType


def is_of_torch(item: Any) -> bool:
    module = getattr(item, "__module__", None) or getattr(
        getattr(item, "__objclass__", None), "__module__", ""
    )
    return (isinstance(module, str) and (module == "torch" or module.startswith("torch."))) or (
        getattr(getattr(item, "__self__", None), "__name__", "") == "torch._C"
        or (
            type(item).__name__ in ("OpOverload", "OpOverloadPacket", "method_descriptor")
            and hasattr(torch.Tensor, getattr(item, "__name__", "?"))
        )
        or _is_of_torch_c(item)
    )


def _is_of_torch_c(item: Any) -> bool:
    owner = getattr(item, "__self__", None)
    return owner is not None and getattr(owner, "__module__", "") in (
        "torch._C", "torch._C._nn", "torch._C._linalg", "torch._C._VariableFunctions",
    )  # fmt: skip


def apply_torch(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = [*args, *kwargs.values()]
    if all(map(is_static, values)):
        named = {name: python_of(value) for name, value in kwargs.items()}
        return call_static(frame, item, [python_of(value) for value in args], named)
    args = [_rows_where_lists(frame, item, value) for value in args]
    return call_torch(frame, item, args, kwargs)


def _rows_where_lists(frame: Frame, item: Any, value: Value) -> Value:
    if isinstance(value, Dynamic) and isinstance(value.type, ListType):
        frame.refuse(
            f"{getattr(item, '__name__', item)} of a list whose length the instance decides",
            "combine its tensors in a loop",
        )
    return value


def handler_of(item: Any) -> Callable[..., Value] | None:
    try:
        return BUILTINS.get(item)
    except TypeError:  # not hashable
        return None


def is_of_user(item: Any) -> bool:
    """Whether a call evaluates the user's source."""
    if isinstance(item, MethodType):
        return is_of_user(item.__func__)
    if handler_of(item) is not None:
        return False
    is_module = isinstance(item, torch.nn.Module)
    if is_module and not type(item).__module__.startswith("torch."):
        return True
    return isinstance(item, functools.partial) or (
        isinstance(item, FunctionType) and not is_of_torch(item)
    )

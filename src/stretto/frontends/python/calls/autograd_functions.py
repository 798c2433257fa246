"""`torch.autograd.Function`: its `forward` is traced as any other function of the user.

Programs compute no gradients, so that what `forward` and `setup_context` keep for `backward` is
dropped. As in eager PyTorch, `forward` runs without grad mode, and an argument that is returned,
and not marked as dirty, is a view of itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.autograd.function import Function, FunctionCtx

from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer

Traced = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Traces a call."""

_APPLY: Any = Function.apply.__func__  # pyright: ignore[reportFunctionMemberAccess, reportUnknownMemberType]
_NO_SETUP: Any = Function.setup_context


def applied(function: Any) -> type[Function] | None:
    """The class whose `apply` a function is."""
    if not isinstance(function, MethodType) or function.__func__ is not _APPLY:
        return None
    owner: Any = function.__self__
    return owner


def apply(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any], traced: Traced) -> Any:
    """The result of `kind.apply(*args, **kwargs)`."""
    has_setup = kind.setup_context is not _NO_SETUP
    if has_setup:
        bound = inspect.signature(kind.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if kwargs:
        fail(
            f"the apply of {kind.__name__}, an autograd.Function, is given keyword arguments",
            "pass them by position",
        )
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    for tensor in tensors:
        tracer().gradients.read(tensor)
    context = _Context(len(args))
    with torch.no_grad():
        if has_setup:
            result = traced(kind.forward, args, {})
            traced(kind.setup_context, (context, args, result), {})
        else:
            result = traced(kind.forward, (context, *args), {})
        return _wrapped(result, tensors, context.dirty_tensors)


class _Context(FunctionCtx):
    """What `forward` and `setup_context` are given as `ctx`."""

    dirty_tensors: tuple[Any, ...] = ()

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (False,) * count


def _wrapped(result: Any, tensors: list[torch.Tensor], dirty: tuple[Any, ...]) -> Any:
    outputs: tuple[Any, ...] = result if isinstance(result, tuple) else (result,)
    if not all(_is_among(tensor, outputs) for tensor in dirty):
        fail(
            "a tensor is marked as dirty in the forward of an autograd.Function, and not returned",
            "return the tensors that are changed in place",
        )
    given = [tensor for tensor in tensors if not _is_among(tensor, dirty)]
    outputs = tuple([x.view_as(x) if _is_among(x, given) else x for x in outputs])
    return outputs if isinstance(result, tuple) else outputs[0]


def _is_among(value: Any, others: Any) -> bool:
    return any(value is other for other in others)

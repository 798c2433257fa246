"""Running a function in Python, outside of a capture, so that its calls are seen.

Its source is rewritten as for a capture: then each call of the user's code goes through
`staging.call`, which hands it to whoever runs the function.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from stretto.frontends.python.calls.call import OUTSIDE, call_with_hooks
from stretto.frontends.python.source.rewrite import (
    NoSource,
    is_rewritten,
    is_user_function,
    rewritten,
)

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def run_in_python(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_call: Handler
) -> Any:
    """`function(*args, **kwargs)`; the calls that it makes are `on_call(function, args, kwargs)`,
    also those of its closures."""
    before, OUTSIDE.handler = OUTSIDE.handler, on_call
    try:
        if isinstance(function, nn.Module) and is_user_function(_function_of(function.forward)):
            forward = functools.partial(_run, function.forward)
            return call_with_hooks(function, forward, args, kwargs)
        return _run(function, *args, **kwargs)
    finally:
        OUTSIDE.handler = before


def is_part(function: Any) -> bool:
    """Whether a function that is called may be compiled by itself: code of the user's that is there
    before the call. A closure that the call makes is another one each time."""
    if isinstance(function, nn.Module):
        is_sequence = type(function).forward is nn.Sequential.forward
        return is_sequence or is_user_function(_function_of(function.forward))
    inner = _function_of(function)
    return (
        is_user_function(inner)
        and not is_rewritten(inner)
        and inner.__closure__ is None
        and not inspect.isgeneratorfunction(inner)
        and not inspect.iscoroutinefunction(inner)
    )


def _function_of(function: Any) -> Any:
    return function.__func__ if isinstance(function, types.MethodType) else function


def _run(function: Any, *args: Any, **kwargs: Any) -> Any:
    inner = _function_of(function)
    if not is_user_function(inner) or inspect.isgeneratorfunction(inner):
        return function(*args, **kwargs)
    try:
        staged = rewritten(inner)
    except NoSource:
        return function(*args, **kwargs)
    if isinstance(function, types.MethodType):
        return staged(function.__self__, *args, **kwargs)
    return staged(*args, **kwargs)

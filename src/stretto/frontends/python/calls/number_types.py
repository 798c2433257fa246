"""Checks that functions of torch take Python numbers where they are called with traced ones.

A traced number is a tensor without dims to torch, which takes it where it refuses a number of
Python. The parser of the function itself is asked, with numbers of the same types; it does not come
to compute anything. Functions of torch that are written in Python are asked by their annotations.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from stretto.errors import StrettoError
from stretto.frontends.python.calls.keywords import is_parsed_by_torch
from stretto.frontends.python.tracing.locations import package_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import data_dependent_shape
from stretto.frontends.python.values.number_methods import kind_of_number
from stretto.frontends.python.values.raises import is_of_library
from stretto.frontends.python.values.scalars import is_number

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_CONTAINERS = (list, tuple)
_ARITHMETIC = (
    *("add", "div", "divide", "floor_divide", "mul", "multiply", "sub", "subtract"),
    "true_divide",
)
"""Functions of torch that make a tensor of two numbers."""
_OF_A_DIM = ("max", "min")
"""Functions that take another tensor in the place of a dim."""
_CONSTRUCTORS: tuple[Any, ...] = type(torch.Tensor), type(torch.FloatTensor)
"""The classes of torch.Tensor, and of the classes of tensors of one dtype."""


def with_accepted(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a call, if the function takes numbers where traced ones are given. Raises
    the TypeError of torch if it does not, or fails."""
    given = [*_leaves((*args, *kwargs.values()))]
    if not any(map(is_number, given)):
        return args, kwargs
    if is_parsed_by_torch(function):
        if any(_is_of_capture(item) for item in given):
            return args, kwargs
        _parse(function, args, kwargs)
        if function.__name__ in _OF_A_DIM:
            fail(
                f"the dim of '{function.__name__}' is a number that depends on a tensor",
                "choose among the results of known dims",
            )
        owner = getattr(function, "__self__", None)
        if function.__name__ in _ARITHMETIC and not any(map(_is_tensor, (owner, *given))):
            return tuple([Hooks.call(torch.tensor, x) if is_number(x) else x for x in args]), kwargs
    elif isinstance(function, _CONSTRUCTORS):
        fail(
            f"{function.__name__} is called with a number that depends on a tensor",
            "call torch.tensor with the dtype",
        )
    else:
        _check_annotations(function, args, kwargs)
    return args, kwargs


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if type(value) in _CONTAINERS:
            yield from _leaves(value)
        else:
            yield value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not is_number(value)


def _is_of_capture(value: Any) -> bool:
    """True for what takes the place of other things than tensors while a function is captured."""
    kind = type(value)
    return kind is not TracedTensor and package_of(kind) == "stretto"


def check_error(
    error: Exception, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Fails where a function that the tracer does not follow, of C or a library, has raised the
    error since it got traced numbers: with Python's it may raise none."""
    if _OF_SHAPES in str(error):
        raise data_dependent_shape() from None
    if isinstance(error, StrettoError | StopIteration | LookupError) or is_parsed_by_torch(
        function
    ):
        return
    given = (getattr(function, "__self__", None), *args, *kwargs.values())
    if is_of_library(error) and any(map(is_number, pytree.tree_leaves(given))):
        fail(
            f"'{getattr(function, '__name__', type(function).__name__)}' is called with a number "
            f"that depends on a tensor, and raises {type(error).__name__}: {error}",
            "call it with a number of Python, or compile with fallback=True",
        )


_OF_SHAPES = "data-dependent expression"
"""Torch has this in an error, of any class, if it would have to know a size that data decide."""


class _Parsed(Exception):
    """The parser has taken the arguments."""


class _Parsing(TorchFunctionMode):
    """Torch comes here when it has parsed the arguments of a call."""

    def __torch_function__(self, *_: Any) -> NoReturn:
        raise _Parsed


def _parse(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError where the parser refuses the arguments."""
    given = [_as_python(item) for item in args]
    named = {name: _as_python(item) for name, item in kwargs.items()}
    try:
        with _Parsing():
            function(*given, **named)
    except _Parsed:
        return


def _as_python(value: Any) -> Any:
    """The same with a number of Python for each traced one."""
    if type(value) in _CONTAINERS:
        return type(value)(map(_as_python, value))
    return kind_of_number(value)(1) if is_number(value) else value


def _check_annotations(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Fails where a function or module of torch that is written in Python takes a tensor."""
    called: Any = type(function).forward if isinstance(function, nn.Module) else function
    if not isinstance(called, types.FunctionType) or package_of(called) != "torch":
        return
    signature = _signature(called)
    given = (function, *args) if called is not function else args
    try:
        bound = signature.bind(*given, **kwargs).arguments
    except TypeError:
        return  # the call raises it
    for name, value in bound.items():
        found = next(filter(is_number, _leaves((value,))), None)
        if found is not None and _wants_tensor(signature.parameters[name]):
            kind = kind_of_number(found).__name__
            fail(
                f"'{called.__name__}' of torch is called with a number of Python, of type {kind}, "
                f"where it takes a tensor, '{name}'",
                "make a tensor of it with torch.tensor",
            )


@lru_cache(1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _wants_tensor(parameter: inspect.Parameter) -> bool:
    if parameter.annotation is parameter.empty:
        return parameter.name in ("input", "self", "tensor", "tensors", "x")
    return parameter.annotation in (torch.Tensor, "Tensor", torch.Tensor | None, "Tensor | None")

"""Names of the arguments of functions for which there are rules."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import torch

OF_NUMPY = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
}
"""Names that torch's parser of arguments takes for its own: `numpy_compatibility_arg_names` in
torch/csrc/utils/python_arg_parser.cpp."""


def names_of_torch(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call under the names that torch has for them."""
    if kwargs.keys().isdisjoint(OF_NUMPY) or not is_parsed_by_torch(function):
        return kwargs
    return {OF_NUMPY.get(name, name): item for name, item in kwargs.items()}


def is_parsed_by_torch(function: Any) -> bool:
    """True for functions of C whose arguments torch's own parser reads."""
    if isinstance(function, types.MethodDescriptorType):
        return function.__objclass__ in torch.Tensor.__mro__[:-1]  # all but `object`
    if not isinstance(function, types.BuiltinFunctionType):
        return False
    functions = torch._C._VariableFunctions  # pyright: ignore
    is_function = getattr(functions, function.__name__, None) is function
    is_inner = str(function.__module__).startswith("torch._C._")
    return is_function or is_inner or isinstance(function.__self__, torch.Tensor)


def takes(rule: Any, kwargs: Mapping[str, Any]) -> bool:
    """True if a rule has parameters of these names. The function itself refuses other ones."""
    if not kwargs:
        return True
    names = _parameters(rule.func if isinstance(rule, partial) else rule)
    return names is None or kwargs.keys() <= names


@lru_cache(1024)
def _parameters(rule: Any) -> frozenset[str] | None:
    """The names of the parameters of a rule; None where it takes any."""
    parameters = inspect.signature(rule).parameters.values()
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return None
    return frozenset(item.name for item in parameters)

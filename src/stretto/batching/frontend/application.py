"""Calls of values: dispatch on the kind of the callee."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from stretto.batching.frontend import python_library
from stretto.batching.frontend.attributes import attribute, construct
from stretto.batching.frontend.dispatch import applies, apply
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.functions import BUILTINS, from_source
from stretto.batching.frontend.guards import note_attribute, note_items, note_module
from stretto.batching.frontend.invocation import call_function
from stretto.batching.frontend.items import selected_or
from stretto.batching.frontend.joins import chosen, each_type, over_choices, python_class
from stretto.batching.frontend.methods import call_method
from stretto.batching.frontend.purity import call_static
from stretto.batching.frontend.sources import source_of_closure, source_of_function
from stretto.batching.frontend.tensor_operators import call_torch
from stretto.batching.frontend.values import (
    NONE,
    ChoiceValue,
    Closure,
    Dynamic,
    Method,
    Native,
    Static,
    Value,
    is_static,
    python_of,
)
from stretto.errors import CaptureError
from stretto.ir.types import ListType

# ---- Functions of torch and of Python.


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
    """Return True if a call evaluates the user's source."""
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


@applies
def _apply(frame: Frame, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    match function:
        case ChoiceValue():
            return chosen(frame, function, lambda one: apply(frame, one, args, kwargs))
        case Static(item):
            return _apply_static(frame, item, args, kwargs)
        case Closure():
            return call_function(frame, source_of_closure(frame, function), args, kwargs)
        case Method(str(name), owner):
            return over_choices(
                frame, args, kwargs, lambda a, k: call_method(frame, name, owner, a, k)
            )
        case Method(python, owner):
            assert isinstance(python, FunctionType)
            return _apply_static(frame, python, [owner, *args], kwargs)
        case Native(_, call):
            return call(frame, args, kwargs)
        case Dynamic():
            return each_type(frame, function, lambda one: _apply_object(frame, one, args, kwargs))
        case _:
            return frame.refuse("this value cannot be called")


def _apply_object(
    frame: Frame, value: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Return the value of a call of an object of the instance."""
    python = python_class(frame, value.type)
    if not any("__call__" in vars(owner) for owner in python.__mro__):
        frame.stop(TypeError, f"'{python.__name__}' object is not callable")
    return apply(frame, attribute(frame, value, "__call__"), args, kwargs)


def _apply_static(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not is_of_user(item):
        return over_choices(frame, args, kwargs, lambda a, k: _apply_foreign(frame, item, a, k))
    return _apply_own(frame, item, args, kwargs)


def _apply_foreign(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    handler = handler_of(item)
    if handler is not None:
        return handler(frame, args, kwargs)
    return _apply_own(frame, item, args, kwargs)


def _apply_own(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    match item:
        case MethodType():
            return _apply_static(frame, item.__func__, [Static(item.__self__), *args], kwargs)
        case functools.partial():
            given = {name: Static(value) for name, value in item.keywords.items()} | kwargs
            return _apply_static(frame, item.func, [*map(Static, item.args), *args], given)
        case torch.nn.Module():
            return _apply_module(frame, item, args, kwargs)
        case type():
            return _apply_class(frame, item, args, kwargs)
        case FunctionType() if not is_of_torch(item):
            return call_function(frame, source_of_function(frame, item), args, kwargs)
        case _:
            return _apply_other(frame, item, args, kwargs)


def _apply_other(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = [*args, *kwargs.values()]
    if is_of_torch(item) or isinstance(item, torch.jit.ScriptFunction | torch.jit.ScriptModule):
        return apply_torch(frame, item, args, kwargs)
    if all(map(is_static, values)):
        named = {name: python_of(value) for name, value in kwargs.items()}
        return call_static(frame, item, [python_of(value) for value in args], named)
    owner = getattr(item, "__self__", None)
    if isinstance(owner, dict) and item.__name__ == "get":
        note_items(frame.evaluation, owner)
        for key in owner:
            frame.evaluation.read("item", owner, key, owner[key])
        default = args[1] if len(args) > 1 else NONE
        options = [(key, Static(item)) for key, item in owner.items()]
        return selected_or(frame, options, args[0], default)
    if isinstance(owner, str) and item.__name__ == "join":
        return from_source(frame, python_library.join, [Static(owner), *args])
    call = getattr(type(item), "__call__", None)  # noqa: B004
    if isinstance(call, FunctionType):
        return _apply_static(frame, call, [Static(item), *args], kwargs)
    name = getattr(item, "__qualname__", type(item).__name__)
    if isinstance(item, BuiltinFunctionType):
        frame.refuse(f"{name} of a value of the instance", "it is not understood by stretto.batch")
    return frame.refuse(f"{name} is called, whose source is not Python")


def _apply_module(
    frame: Frame, module: torch.nn.Module, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    if vars(module).get("_forward_hooks") or vars(module).get("_forward_pre_hooks"):
        frame.refuse(f"a {type(module).__name__} has hooks", "remove them before batching")
    if type(module).__call__.__module__.split(".")[0] != "torch":
        name = type(module).__name__
        frame.refuse(f"the class {name} has a '__call__' of its own", "override 'forward' instead")
    note_attribute(frame.evaluation, module, "forward", module.forward)
    own = vars(module).get("forward")
    forward = own or getattr(type(module), "forward", None)
    is_torch = type(module).__module__.startswith("torch.")
    if not is_torch:
        assert isinstance(forward, FunctionType | MethodType)
        given = args if own or isinstance(forward, MethodType) else [Static(module), *args]
        return _apply_static(frame, forward, given, kwargs)
    if module.training and any(
        "dropout" in type(part).__name__.lower() and getattr(part, "p", 0) > 0
        for part in module.modules()
    ):
        frame.refuse("a module with dropout is in training mode", "call model.eval()")
    note_module(frame.evaluation, module)
    try:
        return call_torch(frame, module, args, kwargs)
    except CaptureError:
        # User modules in a container, such as Sequential, may decide on the content of tensors.
        if not any(not type(part).__module__.startswith("torch.") for part in module.modules()):
            raise
    assert isinstance(forward, FunctionType)
    return call_function(frame, source_of_function(frame, forward), [Static(module), *args], kwargs)


def _apply_class(frame: Frame, python: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if issubclass(python, BaseException):
        frame.refuse("an exception is created but not raised, which is not supported")
    if python.__module__.startswith("torch."):
        return apply_torch(frame, python, args, kwargs)
    source = getattr(python, "__module__", "")
    if source == "builtins":
        return _apply_other(frame, python, args, kwargs)
    return construct(frame, python, args, kwargs)

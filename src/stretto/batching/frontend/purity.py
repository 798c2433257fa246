"""Calls that run while a function is evaluated: their only effect may be their result."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_items
from stretto.batching.frontend.values import Static, Value
from stretto.errors import CaptureError
from stretto.ops.properties import draws


class Purity(TorchDispatchMode):
    """Raise CaptureError for operators that draw random numbers, or write tensors not created
    inside."""

    def __init__(self) -> None:
        super().__init__()
        self._made: set[int] = set()
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_tagged = torch.Tag.nondeterministic_seeded in func.tags
        if is_tagged and draws(str(func), args, (kwargs or {}).items()):
            raise CaptureError(
                f"{func} draws random numbers",
                remedy="draw them outside, and pass them as an argument of the instance; call "
                "model.eval() where they are those of dropout",
            )
        given = pytree.tree_leaves((args, kwargs or {}))
        made = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            changed = _written(func, args, kwargs or {})
            if any(_storage(item) not in self._made for item in changed):
                raise CaptureError(
                    "an operator changes a tensor in place",
                    remedy="use the operator that returns a new tensor; call model.eval() where it "
                    "is that of a normalisation",
                )
        known = {_storage(item) for item in given if isinstance(item, torch.Tensor)}
        for item in pytree.tree_leaves(made):
            if isinstance(item, torch.Tensor) and _storage(item) not in known:
                self._made.add(_storage(item))
                self._kept.append(item)
        return made


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes, according to its schema."""
    found: list[torch.Tensor] = []
    for number, spec in enumerate(func._schema.arguments):
        if spec.alias_info is None or not spec.alias_info.is_write:
            continue
        value = args[number] if number < len(args) else kwargs.get(spec.name)
        found += [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return found


_CHANGING = frozenset(
    (
        "append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort", "add", "discard",
        "update", "setdefault", "popitem", "appendleft", "popleft", "extendleft", "rotate",
        "difference_update", "intersection_update", "__setitem__", "__delitem__", "__setattr__",
        "__next__", "register_buffer", "register_parameter", "train", "eval", "to", "half",
    )
)  # fmt: skip


_IMPURE_MODULES = frozenset(
    ("random", "_random", "time", "os", "posix", "datetime", "secrets", "uuid", "io", "_io", "sys")
)


_IMPURE = frozenset(("open", "input", "print", "next", "setattr", "delattr", "exec", "eval"))


def _check_pure(frame: Frame, function: Callable[..., Any]) -> None:
    """Refuse a function whose result differs from call to call, or that changes an object that all
    instances share."""
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or type(owner).__module__
    owned = owner is not None and not isinstance(owner, type | types.ModuleType)
    if owned and not isinstance(owner, torch.Tensor) and name in _CHANGING:
        frame.refuse(
            f"{name} changes a {type(owner).__name__} that all instances share",
            "change lists, dicts and objects that the function makes, or those of the instance",
        )
    if (owned and type(owner).__module__ in _IMPURE_MODULES) or module in _IMPURE_MODULES:
        frame.refuse(
            f"{name} gives another value at each call",
            "pass the value as an argument of the instance",
        )
    if module == "builtins" and not owned and name in _IMPURE:
        frame.refuse(f"{name} is called, which has side effects")


def call_static(frame: Frame, function: Callable[..., Any], args: Any, kwargs: Any) -> Value:
    """Run a call with static arguments only, at evaluation time."""
    _check_pure(frame, function)
    for value in (*args, *kwargs.values()):
        note_items(frame.evaluation, value)
    try:
        with torch.no_grad(), Purity():
            found = function(*args, **kwargs)
    except CaptureError as error:
        frame.refuse(error.message, error.remedy)
    except Exception as error:  # a function of the user may raise anything
        name = getattr(function, "__qualname__", type(function).__name__)
        frame.refuse(f"{name} raises {type(error).__name__}: {error}")
    return Static(found)


# ---- Tensors whose content a program depends on.
#
# While a function is evaluated, what does not depend on the instance is computed:
# `int(self.count)`, `self.weight.softmax(0)`. The program is valid while the tensors that were
# read for it have the same content.


_PYTHON_READS = frozenset((torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__))
"""Functions that read memory without an operator."""


@contextmanager
def noting_content(found: dict[int, torch.Tensor]) -> Generator[None]:
    """Add the tensors whose content is read inside the block to `found`, by identity."""
    with _Functions(found), _Operators(found):
        yield


class _Functions(TorchFunctionMode):
    def __init__(self, found: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PYTHON_READS:
            self._found[id(args[0])] = args[0]
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Records the operands of operators as read, unless the results are only views of them."""

    def __init__(self, found: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        given, results = _tensors((args, kwargs)), _tensors(made)
        if not given or not all(map(_is_real, (*given, *results))):
            return made  # fake and meta tensors have no content
        storages = {_storage(x) for x in given}
        if results and all(_storage(x) in storages for x in results):
            return made
        self._found |= {id(item): item for item in given}
        return made


def _tensors(values: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]


def _is_real(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and not tensor.is_meta

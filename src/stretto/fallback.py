"""`stretto.compile(f, fallback=True)`: what cannot be captured runs in Python, its parts compiled.

Where a call cannot be captured, the program is cut at the calls of its function: that function runs
in Python, line by line, and each function and module of the user's that it calls is compiled by
itself, with the same fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.errors import CaptureError
from stretto.frontends.python import is_part, run_in_python
from stretto.keys import Key

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(eq=False, slots=True)
class Fallback:
    """What of one function runs in Python.

    reasons: why a call could not be captured, by its key. parts: what it calls, compiled, by
    identity. calls: how often the function ran in Python.
    """

    compiler: Compiler
    reasons: dict[Key, CaptureError] = field(default_factory=dict[Key, CaptureError])
    parts: dict[Hashable, Callable[..., Any]] = field(
        default_factory=dict[Hashable, Callable[..., Any]]
    )
    calls: int = 0

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function in Python."""
        self.calls += 1
        return run_in_python(function, args, kwargs, self.call)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that the function makes."""
        if not is_part(function) or not _has_tensor((args, kwargs)):
            return function(*args, **kwargs)
        return self.part(function)(*args, **kwargs)

    def part(self, function: Any) -> Callable[..., Any]:
        """A function or module that is called, compiled. It is kept, so that its id stays its."""
        key: Hashable = id(function)
        if isinstance(function, MethodType):
            key = (id(function.__func__), id(function.__self__))
        if key not in self.parts:
            self.parts[key] = self.compiler(function)
        return self.parts[key]


def _has_tensor(arguments: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(arguments))

"""`capture`, with the interpreter in place of rewriting: for the prototype's measurements."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from experiments.reader.heap import Heap, Ref
from experiments.reader.interpreter import Interpreter
from stretto.frontends.python import entry as real
from stretto.frontends.python import staging
from stretto.frontends.python.control import branches
from stretto.frontends.python.tracing import locations
from stretto.frontends.python.tracing.tensor import Hooks

_place = locations._user_place
CURRENT: list[Interpreter] = []


def _interpreted_place() -> Any:
    known = getattr(locations._local, "place", None)
    if known is not None or not CURRENT:
        return _place()
    return CURRENT[-1].place() or _place()


locations._user_place = _interpreted_place


class Staging:
    """Stands in for `staging` in `entry`: the call of the captured function."""

    @staticmethod
    def call(fn: Any, *args: Any, **kwargs: Any) -> Any:
        heap = Heap()
        interpreter = Interpreter(heap)
        CURRENT.append(interpreter)
        try:
            given = tuple(heap.adopt(x) for x in args)
            named = {k: heap.adopt(v) for k, v in kwargs.items()}
            result = interpreter.objects.call(fn, given, named)
            real_result = heap.finished(result)
            return real_result
        finally:
            CURRENT.pop()


class _NotRedirected:
    def update(self, *kinds: Any) -> None:
        return

    def add(self, kind: Any) -> None:
        return


def install() -> None:
    real.staging = Staging
    real.redirected = lambda seen: nullcontext(_NotRedirected())

    Hooks.use = lambda value, operation: CURRENT[-1].regions.each_option(value, operation)
    branches.branch = _branch


def _branch(condition: Any, then: Any, orelse: Any, frame: Any = None, live: Any = ()) -> Any:
    interpreter = CURRENT[-1]
    return interpreter.regions.branch(interpreter.objects.truth(condition), then, orelse)


def uninstall() -> None:
    real.staging = staging

"""Calls of generator functions: the values they yield, for whoever consumes them.

A `for` statement gives its body to the generator, which runs it at each `yield`. Every other
consumer gets a list: the generator runs to its end first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from stretto.frontends.python.lists import operations
from stretto.frontends.python.tracing.frames import CallFrame
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.tracing.tracer import active
from stretto.frontends.python.values.state import TracedList

Consumer = Callable[[Any], Any]
"""Takes a value; says whether it wants no more."""

MOST = 100_000
"""The most values of a generator that are collected."""


class _Consumers(threading.local):
    """Those of the generators that run, the innermost one last."""

    def __init__(self) -> None:
        self.stack: list[Consumer] = []


_consumers = _Consumers()


class Generated:
    """The values of one call of a generator function."""

    def __init__(self, run: Callable[[], object], name: str) -> None:
        self._run, self._name = run, name
        self._is_used = False
        self._rest: Iterator[Any] | None = None

    def feed(self, consumer: Consumer) -> None:
        """Run the generator; `consumer` is called with each value."""
        if self._is_used:
            fail(f"the generator '{self._name}' is consumed twice", "call the function again")
        self._is_used = True
        depth = len(_consumers.stack)
        _consumers.stack.append(consumer)
        try:
            self._run()
        finally:
            del _consumers.stack[depth:]

    def items(self) -> Any:
        """All values: a list, or one of the Program where their number depends on the run."""
        items: Any = []
        count = 0

        def collect(value: Any) -> bool:
            nonlocal count
            count += 1
            if count > MOST:
                fail(
                    f"the generator '{self._name}' yields more than {MOST} values, and what "
                    "consumes it is no for statement",
                    "consume it by a for statement with break",
                )
            Hooks.call(items.append, value)
            return False

        state = active()
        if state is None:
            self.feed(collect)
            return items
        frame = CallFrame.of("generated", lambda: items)
        state.frames.append(frame)
        try:
            self.feed(collect)
        finally:
            del state.frames[state.frames.index(frame) :]
        return items

    def __iter__(self) -> Iterator[Any]:
        if self._rest is None:
            found = self.items()
            given = operations.to_python(found) if isinstance(found, TracedList) else found
            self._rest = iter(given)
        return self._rest

    def __next__(self) -> Any:
        return next(iter(self))


def hand_over(value: Any) -> Any:
    """What a `yield` does: the consumer takes the value. Whether it wants no more."""
    consumer = _consumers.stack.pop()  # it may run generators of its own, and yield itself
    try:
        return consumer(value)
    finally:
        _consumers.stack.append(consumer)

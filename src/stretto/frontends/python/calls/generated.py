"""Calls of generator functions, and consumption of the values they yield.

Two ways of execution. *Push*: a `for` statement passes its body to the generator, which runs it
at each `yield`, inside of its own branches and loops; consumers of all values collect them in a
list. *Pull*: consumers of single values (`next`, `send`) run a Python generator, in which only
the statements around a `yield` are Python's, and all others are traced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from types import FunctionType
from typing import Any

from stretto.frontends.python.lists import operations
from stretto.frontends.python.source.rewrite import pulled, rewritten
from stretto.frontends.python.tracing.frames import CallFrame
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.tracing.tracer import TracedRegion, active
from stretto.frontends.python.values.state import TracedList

Consumer = Callable[[Any], Any]
"""Takes a value; returns True if it wants no more."""

Push = Callable[[], object]
Pull = Callable[[], Generator[Any, Any, Any]]

MOST = 100_000
"""The largest number of values collected from a generator."""


class _Consumers(threading.local):
    """The consumers of the running generators of this thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Consumer] = []


_consumers = _Consumers()


class Generated:
    """The values of one call of a generator function.

    push: runs the generator for a consumer; None if it cannot be rewritten so. pull: makes a
    Python generator; None if it cannot. branches: a traced condition may decide what is
    yielded, which a Python generator cannot represent.
    """

    def __init__(
        self, push: Push | None, pull: Pull | None, name: str, *, branches: bool = False
    ) -> None:
        self._push, self._pull, self._name = push, pull, name
        self._branches = branches or pull is None
        self._is_used = False
        self._running: Generator[Any, Any, Any] | None = None
        self._rest: Iterator[Any] | None = None
        self._frames: list[CallFrame] = []
        state = active()
        self._regions: list[TracedRegion] = [] if state is None else list(state.regions)

    @property
    def is_pulled(self) -> bool:
        """True if also a consumer of all values must take them one by one: some have been taken,
        or there is no push form."""
        return self._push is None or self._running is not None

    @property
    def can_wait(self) -> bool:
        """True if the values can be taken one by one, interleaved with other work."""
        return self._pull is not None and not self._branches and self._rest is None

    def of_expression(self, pull: Pull) -> Generated:
        """Make this a generator expression with conditions; `pull` makes its Python generator."""
        self._pull, self._branches = pull, True
        return self

    # ---- pushing -------------------------------------------------------------------------------

    def feed(self, consumer: Consumer) -> None:
        """Run the generator and pass each value to `consumer`."""
        assert self._push is not None
        self._begin()
        depth = len(_consumers.stack)
        _consumers.stack.append(consumer)
        try:
            self._push()
        finally:
            del _consumers.stack[depth:]

    def _begin(self) -> None:
        if self._is_used:
            fail(
                f"the generator '{self._name}' is consumed twice, or is continued after its values "
                "were taken inside of traced branches",
                "call the function again, or keep its values in a list",
            )
        self._is_used = True

    def items(self) -> Any:
        """Return all values: a list, or a list of the Program if the run decides their number."""
        items: Any = []
        count = 0

        def collect(value: Any) -> bool:
            nonlocal count
            count += 1
            if count > MOST:
                fail(
                    f"the generator '{self._name}' yields more than {MOST} values, and is not "
                    "consumed by a for statement",
                    "consume it by a for statement with break",
                )
            Hooks.call(items.append, value)
            return False

        if self.is_pulled or self._rest is not None:
            for value in self:
                collect(value)
            return items
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

    # ---- pulling -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Return itself. A generator with traced conditions first collects all its values."""
        if self._running is None and self._rest is None and self._branches:
            found = self.items()
            given = operations.to_python(found) if isinstance(found, TracedList) else found
            self._rest = iter(given)
        return self

    def __next__(self) -> Any:
        return next(self._rest) if self._rest is not None else self.send(None)

    def first(self, *default: Any) -> Any:
        """`next(self, *default)`."""
        if self._rest is not None or self._running is not None or not self._branches:
            return next(self, *default)
        return rewritten(first_of)(self, *default)

    def send(self, value: Any) -> Any:
        return self._resumed(lambda running: running.send(value))

    def throw(self, *error: Any) -> Any:
        return self._resumed(lambda running: running.throw(*error))

    def close(self) -> None:
        if self._running is None:
            self._is_used = True
        else:
            self._resumed(lambda running: running.close())

    def _resumed(self, step: Callable[[Generator[Any, Any, Any]], Any]) -> Any:
        """Advance to the next `yield`, with the generator's frames on the tracer's stack while it
        runs."""
        if self._running is None:
            self._begin()
            if self._pull is None:
                fail(
                    f"the values of the generator '{self._name}' are taken one by one, but it has "
                    "a yield inside of a try with handlers",
                    "consume it by a for statement, or return a list instead of using yield",
                )
            self._running = self._pull()
        state = active()
        if state is None:
            return step(self._running)
        entered = [region for region in state.regions if region not in self._regions]
        taken_back = any(region.is_taken_back for region in self._regions)
        if taken_back or any(not region.is_transaction for region in entered):
            fail(
                f"the generator '{self._name}' is advanced in a traced branch or loop, and was "
                "made outside of it",
                "consume it by a for statement, or keep its values in a list",
            )
        self._regions += entered
        depth = len(state.frames)
        state.frames += self._frames
        try:
            return step(self._running)
        finally:
            self._frames = state.frames[depth:]
            del state.frames[depth:]


def generated_by(
    function: FunctionType, push: Push | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generated:
    """Return the values of a call of a generator function. push: runs its staged form; None if it
    has none."""
    found = pulled(function)
    if found is None:
        return Generated(push, None, function.__name__)
    pull, branches = found
    return Generated(push, lambda: pull(*args, **kwargs), function.__name__, branches=branches)


def first_of(values: Any, *default: Any) -> Any:
    """`next` of a generator that has not been advanced yet."""
    for value in values:
        return value
    if default:
        return default[0]
    raise StopIteration


def any_of(values: Any) -> bool:
    """The builtin `any` as a loop, so that the generator stops after the first true value."""
    for value in values:  # noqa: SIM110
        if value:
            return True
    return False


def all_of(values: Any) -> bool:
    """The builtin `all` as a loop, so that the generator stops after the first false value."""
    for value in values:  # noqa: SIM110
        if not value:
            return False
    return True


OF_GENERATORS: dict[Any, Callable[..., Any]] = {
    next: Generated.first,
    any: lambda values: rewritten(any_of)(values),
    all: lambda values: rewritten(all_of)(values),
}
"""Builtins that take no more values of a generator than they need."""


def pass_to_consumer(value: Any) -> Any:
    """Pass a yielded value to the consumer. Returns True if it wants no more."""
    consumer = _consumers.stack.pop()  # it may run other generators, and yield itself
    try:
        return consumer(value)
    finally:
        _consumers.stack.append(consumer)

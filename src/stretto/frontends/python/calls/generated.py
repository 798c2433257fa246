"""Calls of generator functions: the values they yield, for whoever consumes them.

A `for` statement gives its body to the generator, which runs it at each `yield`, inside of its
branches and loops: it *pushes* its values. Who wants all values gets them collected in a list. Who
takes them one by one, as `next` and `send` do, *pulls*: a generator of Python runs, of which the
statements around a `yield` are those of Python, and all others are traced.
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
from stretto.frontends.python.tracing.tracer import Region, active
from stretto.frontends.python.values.state import TracedList

Consumer = Callable[[Any], Any]
"""Takes a value; says whether it wants no more."""

Push = Callable[[], object]
Pull = Callable[[], Generator[Any, Any, Any]]

MOST = 100_000
"""The most values of a generator that are collected."""


class _Consumers(threading.local):
    """Those of the generators that run, the innermost one last."""

    def __init__(self) -> None:
        self.stack: list[Consumer] = []


_consumers = _Consumers()


class Generated:
    """The values of one call of a generator function.

    push: runs it for a consumer, where it can be rewritten so. pull: makes a generator of Python.
    branches: a traced condition may decide what it yields, which a generator of Python cannot have.
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
        self._regions: list[Region] = [] if state is None else list(state.regions)

    @property
    def is_pulled(self) -> bool:
        """Whether its values are taken one by one also by who wants them all: some have been, or
        they can only be."""
        return self._push is None or self._running is not None

    @property
    def can_wait(self) -> bool:
        """Whether its values can be taken one by one, in the midst of other work."""
        return self._pull is not None and not self._branches and self._rest is None

    def of_expression(self, pull: Pull) -> Generated:
        """The same for a generator expression with conditions, which Python makes by `pull`."""
        self._pull, self._branches = pull, True
        return self

    # ---- pushing -------------------------------------------------------------------------------

    def feed(self, consumer: Consumer) -> None:
        """Run the generator; `consumer` is called with each value."""
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
                f"the generator '{self._name}' is consumed twice, or goes on after its values were "
                "taken inside of traced branches",
                "call the function again, or keep its values in a list",
            )
        self._is_used = True

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
        if self._running is None and self._rest is None and self._branches:
            found = self.items()
            given = operations.to_python(found) if isinstance(found, TracedList) else found
            self._rest = iter(given)
        return self

    def __next__(self) -> Any:
        return next(self._rest) if self._rest is not None else self.send(None)

    def first(self, *default: Any) -> Any:
        """What `next` gives."""
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
        """Goes on to the next `yield`, with the frames of the generator where they belong."""
        if self._running is None:
            self._begin()
            if self._pull is None:
                fail(
                    f"the values of the generator '{self._name}' are taken one by one, which its "
                    "handlers of exceptions around a yield do not allow",
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
    """A call of a generator function. push: runs its staged form, where there is one."""
    found = pulled(function)
    if found is None:
        return Generated(push, None, function.__name__)
    pull, branches = found
    return Generated(push, lambda: pull(*args, **kwargs), function.__name__, branches=branches)


def first_of(values: Any, *default: Any) -> Any:
    """`next` of a generator that nobody has advanced yet."""
    for value in values:
        return value
    if default:
        return default[0]
    raise StopIteration


def any_of(values: Any) -> bool:
    """The builtin `any`, of which a generator sees how many values it wants."""
    for value in values:  # noqa: SIM110
        if value:
            return True
    return False


def all_of(values: Any) -> bool:
    """The builtin `all`."""
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


def hand_over(value: Any) -> Any:
    """What a `yield` does: the consumer takes the value. Whether it wants no more."""
    consumer = _consumers.stack.pop()  # it may run generators of its own, and yield itself
    try:
        return consumer(value)
    finally:
        _consumers.stack.append(consumer)

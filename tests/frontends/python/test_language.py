"""What Python's own tests of the language have found: the order of evaluation, private names, what
functions tell about themselves, and C code and callers that meet traced numbers."""

from __future__ import annotations

import collections
import collections.abc
import decimal
import fractions
import functools
import numbers
import struct
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

steps: list[str] = []


def step(name: str, value: Any) -> Any:
    steps.append(name)
    return value


class Counter:
    def __init__(self) -> None:
        self.count, self.items = 1, [1]

    def advance(self) -> int:
        self.count += 10
        self.items[0] += 10
        return 1


def stores_items(x: Tensor) -> Any:
    found: dict[int, int] = {}
    step("holder", found)[step("key", 1)] = step("value", 2)
    step("holder", found)[step("key", 1)] += step("value", 2)
    return x + found[1]


def stores_attributes(x: Tensor) -> Any:
    counter = Counter()
    step("holder", counter).count = step("value", 2)
    return x + counter.count


def augments_what_the_value_changes(x: Tensor) -> Any:
    counter = Counter()
    counter.count += counter.advance()
    counter.items[0] += counter.advance()
    for _ in range(int(x.sum())):
        counter.count += counter.advance()
    return x + counter.count, counter.items


def augments_tensors_that_the_value_replaces(x: Tensor) -> Any:
    counter = Counter()
    counter.count, table = x[0] + 0, {"k": x[1] + 0}

    def replaced() -> Tensor:
        counter.count = counter.count * 10
        table["k"] = table["k"] + 5
        return x[1]

    counter.count += replaced()
    counter.count += (bound := replaced())
    table["k"] += (again := replaced())
    for _ in range(int(x.sum())):
        counter.count += (bound := replaced() + bound)
    return counter.count, table, bound, again, x


class Outer:
    def __added(self, x: Tensor, by: int = 1) -> Tensor:
        return x + by

    def __call__(self, x: Tensor) -> Any:
        def __same(value: Any) -> Any:
            return value

        class Inner:
            __three = 3

            def __four(self) -> int:
                return self.__three + 1

            four = property(__four)

        for __index in range(2):
            x = __same(x) + __index
        return self.__added(x, by=2), Inner().four, [__item + 1 for __item in range(2)]


def tells_about_itself(x: Tensor) -> Any:
    def inner(a: int, b: str = "s", *, c: float = 0.5) -> bool:
        """Says so."""
        return bool(a)

    return x, inner.__annotations__, inner.__doc__, inner.__defaults__, inner.__kwdefaults__


def shows_its_code(x: Tensor) -> Any:
    return x, step.__code__.co_varnames


class Both(collections.UserDict[Any, Any], collections.abc.Sequence[Any]):
    """A mapping first."""


class Registered:
    """A sequence without a length."""


collections.abc.Sequence.register(Registered)  # pyright: ignore


class Listed:
    __match_args__: Any = ["name"]  # noqa: RUF012 - it should be a tuple


def matches_by_flags(x: Tensor) -> Any:
    def kind(value: Any) -> str:
        match value:
            case [*_]:
                return "sequence"
            case {}:
                return "mapping"
            case _:
                return "neither"

    subjects = (Both(), Registered(), collections.deque[int](), {}, "text", b"", range(2), 3)
    return x, [kind(subject) for subject in subjects]


def matches_badly(x: Tensor) -> Any:
    try:
        match Listed():
            case Listed(_):  # pyright: ignore[reportGeneralTypeIssues]
                return x
            case _:
                pass
    except TypeError as error:
        return x + 1, str(error)
    return x - 1


def dispatches_locally(x: Tensor) -> Any:
    number = int(x.sum())

    @functools.singledispatch
    def name(value: object) -> str:
        return "object"

    @name.register
    def _(value: int) -> str:
        return "int"

    return x, name(number), name(number + 0.5), name("text"), sorted(vars(name)), {1: x}.keys()


def asks_for_classes(x: Tensor) -> Any:
    number = int(x.sum())
    kinds: tuple[Any, ...] = (int | None, (float, int | str), collections.abc.Sized, numbers.Real)
    found = [isinstance(number, kind) for kind in kinds]
    return x, found, number.__class__, dir(number) == dir(1), eval(" 1 + 2 ")


@pytest.mark.parametrize(
    "function",
    [
        *(matches_by_flags, matches_badly, dispatches_locally, asks_for_classes),
        *(stores_items, stores_attributes, augments_what_the_value_changes, Outer()),
        augments_tensors_that_the_value_replaces,
        *(tells_about_itself, shows_its_code),
    ],
)
def test_as_python(function: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for values in ([0.0, 0.0], [1.0, 1.0], [0.0, 0.0]):
        x = torch.tensor(values)
        steps.clear()
        wanted, order = function(x), list(steps)
        steps.clear()
        assert repr(fast(x)) == repr(wanted)
        assert steps == order


def jumping(x: Tensor) -> Any:
    for _ in range(3):
        try:
            return x
        finally:
            continue  # noqa: B012
    return x + 1


def jumping_in_some_runs(x: Tensor) -> Any:
    for i in range(3):
        try:
            if x.sum() > 0:
                return x * i
            x = x + 1
        finally:
            if i < 2:
                continue  # noqa: B012
    return x + 10


def contexts_of_errors(x: Tensor) -> Any:
    error: BaseException | None = None
    try:
        try:
            raise ValueError
        except ValueError:
            raise KeyError from None
    except KeyError as last:
        error = last
    return x, type(error.__context__).__name__, error.__suppress_context__, error.__cause__


@pytest.mark.parametrize("function", [jumping, jumping_in_some_runs, contexts_of_errors])
def test_exceptions_and_jumps(function: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for x in (torch.ones(2), torch.full((2,), -3.0)):
        assert repr(fast(x)) == repr(function(x))


class Owner:
    def method(self) -> None:
        pass


def renamed(x: Tensor) -> Any:
    step.__name__ = "other"
    return x


def redefined(x: Tensor) -> Any:
    step.__dict__ = {"count": int(x.sum())}
    return x


def test_attributes_of_functions() -> None:
    def counted(x: Tensor) -> Any:
        Owner.method.count = int(x.sum())  # pyright: ignore[reportFunctionMemberAccess]
        return x

    fast = stretto.compile(counted, backend="interpreter")
    for value in (1.0, 2.0, 1.0):
        fast(torch.full((2,), value))
        assert repr(vars(Owner.method)) == repr({"count": int(2 * value)})
    for function in (renamed, redefined):
        with pytest.raises(stretto.CaptureError, match="of a function that outlives the call"):
            stretto.compile(function, backend="interpreter")(torch.ones(2))
    assert (step.__name__, vars(step)) == ("step", {})


NAME = 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x, locals()),
        lambda x: (x, vars()),
        lambda x: (x, dir()),
        lambda x: (x, eval("NAME + 1")),
        lambda x: (x, sys._getframe().f_lineno),  # pyright: ignore[reportPrivateUsage]
        lambda x: (x, range(3) == range(int(x.sum()))),
        lambda x: (x, hash(range(int(x.sum())))),
    ],
)
def test_what_shows_how_a_function_is_captured_is_refused(
    function: Callable[[Tensor], Any],
) -> None:
    with pytest.raises(stretto.CaptureError):
        stretto.compile(function, backend="interpreter")(torch.ones(2))


class Index:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value


def suppressed(number: int) -> bool:
    error = ValueError()
    error.__suppress_context__ = number > 0
    return error.__suppress_context__


@pytest.mark.parametrize(
    "function",
    [
        lambda n: collections.deque("abc", maxlen=n).maxlen,
        lambda n: struct.pack("<d", n + 0.5),
        lambda n: str(fractions.Fraction(n + 0.5)),
        lambda n: str(fractions.Fraction(1, 2) + n),
        lambda n: str(n * decimal.Decimal(2)),
        lambda n: (timedelta(1) * n).days,
        lambda n: timedelta(days=n).days,
        lambda n: float.hex(1.0 + n),
        suppressed,
    ],
)
def test_what_takes_no_traced_number(function: Callable[[int], Any]) -> None:
    """It raises for a traced number, and not for one of Python's."""

    def given(x: Tensor) -> Any:
        return x, function(int(x.sum()))

    with pytest.raises(stretto.CaptureError):
        stretto.compile(given, backend="interpreter")(torch.ones(2))
    fast = stretto.compile(given, backend="interpreter", fallback=True)
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        assert repr(fast(x)) == repr(given(x))


class Rows:
    def __init__(self, count: Any) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        if index < self.count:
            return index
        raise IndexError


class Down:
    def __init__(self, count: Any) -> None:
        self.count = count

    def __iter__(self) -> Down:
        return self

    def __next__(self) -> Any:
        if self.count <= 0:
            raise StopIteration
        self.count -= 1
        return self.count


class Lacks:
    def __init__(self, count: Any) -> None:
        self.count = count

    def __getattr__(self, name: str) -> int:
        if self.count > 3:
            raise AttributeError(name)
        return 3


@pytest.mark.parametrize("kind", [Rows, Down])
@pytest.mark.parametrize("consume", [list, sum, tuple, lambda rows: [row * 2 for row in rows]])
def test_an_end_that_data_decide_is_refused(
    kind: Callable[[Any], Any], consume: Callable[[Any], Any]
) -> None:
    """The caller of the method, which is of C, handles its exception."""

    def consumed(x: Tensor) -> Any:
        return x, consume(kind(2 + int(x.sum())))

    with pytest.raises(stretto.CaptureError, match="depends on a tensor"):
        stretto.compile(consumed, backend="interpreter")(torch.ones(2))


def test_an_attribute_that_data_decide() -> None:
    def read(x: Tensor) -> Any:
        return x + getattr(Lacks(int(x.sum())), "other", 5)

    fast = stretto.compile(read, backend="interpreter")
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 4.0))
    with pytest.raises(stretto.CaptureError, match="AttributeError"):
        fast(torch.full((2,), 2.0))


class Named(int):
    name = ""
    __hash__ = None  # type: ignore[assignment]


def test_numbers_with_attributes_are_no_plain_numbers() -> None:
    """Two calls of one function with equal ones are not the same call."""

    def named(name: str) -> Named:
        made = Named(3)
        made.name = name
        return made

    def length(x: Tensor, number: Named) -> Tensor:
        return x + len(number.name) + int(number)

    def both(x: Tensor) -> Tensor:
        return length(x, named("a")) + length(x, named("bcd"))

    fast = stretto.compile(both, backend="interpreter")
    assert torch.equal(fast(torch.zeros(2)), both(torch.zeros(2)))

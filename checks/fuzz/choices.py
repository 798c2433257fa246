"""Choices that hypothesis draws: of a seed the same ones each time, or fewer and simpler ones."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar
from unittest import mock

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture import engine
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

T = TypeVar("T")


class Seeded(PrimitiveProvider):
    """Draws that depend on a seed alone, all alike. Those of hypothesis' own backend depend on the
    constants in all modules that are loaded."""

    seed: ClassVar[int] = 0

    def __init__(self, conjecturedata: Any, /) -> None:
        super().__init__(conjecturedata)
        self.random = random.Random(self.seed)

    def draw_boolean(self, p: float = 0.5) -> bool:
        return self.random.random() < p

    def draw_integer(
        self, min_value: int | None = None, max_value: int | None = None, **_: Any
    ) -> int:
        assert min_value is not None and max_value is not None
        return self.random.randint(min_value, max_value)

    def draw_float(self, **_: Any) -> float:
        raise NotImplementedError

    def draw_string(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def draw_bytes(self, *_: Any, **__: Any) -> bytes:
        raise NotImplementedError


AVAILABLE_PROVIDERS["seeded"] = Seeded


@cache
def _up_to(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


class Choices:
    """Answers to the questions of a writer, the simplest of which are the first, no, and few."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw

    def number(self, least: int, most: int) -> int:
        return self.draw(_up_to(most - least)) + least

    def chance(self, probability: float) -> bool:
        return self.draw(_up_to(99)) >= 100 - 100 * probability

    def one_of(self, items: Sequence[T]) -> T:
        return items[self.draw(_up_to(len(items) - 1))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Some of the items, none of them twice."""
        left = list(items)
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(min(count, len(left)))]

    def part(self, make: Callable[[], T]) -> T:
        """Make a part that can be left out when all becomes smaller."""
        return self.draw(st.none().map(lambda _: make()))

    def several(self, least: int, most: int, make: Callable[[], T]) -> list[T]:
        """Make some parts, each of which can be left out."""
        parts = st.none().map(lambda _: make())
        return self.draw(st.lists(parts, min_size=least, max_size=most))


MOST_CHOICES = 1 << 16
"""Of one text, most of them a byte each; with hypothesis' own limit large programs are left out."""
UNCHECKED = (
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
    HealthCheck.too_slow,
)


class Fails(Exception):
    """Raised for a text that is looked for, so that hypothesis makes it smaller."""


class TimeIsOver(KeyboardInterrupt):
    """Ends hypothesis, which takes other exceptions for failures."""


def drawn(write: Callable[[Choices], str], seed: int) -> str:
    """The text that is written with the choices of a seed."""
    texts: list[str] = []
    _run(write, seed, texts.append, [Phase.generate])
    return texts[-1]


def smallest(
    write: Callable[[Choices], str], seed: int, fails: Callable[[str], bool], seconds: float
) -> str:
    """The smallest text found within the time that fails as the one of the seed does."""
    end, known, best = time.monotonic() + seconds, dict[str, bool](), drawn(write, seed)

    def check(text: str) -> None:
        nonlocal best
        if time.monotonic() > end:
            raise TimeIsOver
        if text not in known:
            known[text] = fails(text)
        if known[text]:
            best = text
            raise Fails

    with contextlib.suppress(Fails, Flaky, TimeIsOver):
        _run(write, seed, check, [Phase.generate, Phase.shrink])
    return best


def _run(
    write: Callable[[Choices], str], seed: int, use: Callable[[str], None], phases: list[Phase]
) -> None:
    """Gives texts to `use`: the simplest of all seeds, that of the seed, and smaller ones where it
    raises Fails."""

    @st.composite
    def texts(draw: st.DrawFn) -> str:
        return write(Choices(draw))

    @settings(
        backend="seeded",
        database=None,
        deadline=None,
        max_examples=2,
        phases=phases,
        suppress_health_check=UNCHECKED,
        verbosity=Verbosity.quiet,
    )
    @given(texts())
    def test(text: str) -> None:
        use(text)

    Seeded.seed = seed
    with mock.patch.object(engine, "BUFFER_SIZE", MOST_CHOICES):
        test()

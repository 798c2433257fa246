"""The assertions of `unittest.TestCase` as plain comparisons, and functions that call a test.

`python_tests` runs a copy of this file, so that the front end takes it for code of a user.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch


class Raised:
    """Expects an exception in a `with`, and keeps it."""

    def __init__(self, expected: Any, pattern: str = "") -> None:
        self.expected = expected
        self.pattern = pattern
        self.exception: Any = None

    def __enter__(self) -> Raised:
        return self

    def __exit__(self, kind: Any, error: Any, _: object) -> bool:
        assert kind is not None
        if not issubclass(kind, self.expected):
            return False
        self.exception = error
        return not self.pattern or re.search(self.pattern, str(error)) is not None


class SubTest:
    """A part of a test; an exception ends the test here."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class PlainChecks:
    """Goes before `unittest.TestCase` in the bases of a test."""

    def fail(self, msg: Any = None) -> None:
        raise AssertionError(msg)

    def subTest(self, *_: Any, **__: Any) -> SubTest:
        return SubTest()

    def assertTrue(self, value: Any, msg: Any = None) -> None:
        assert value

    def assertFalse(self, value: Any, msg: Any = None) -> None:
        assert not value

    def assertEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first == second

    assertListEqual = assertTupleEqual = assertDictEqual = assertSetEqual = assertEqual
    assertMultiLineEqual = assertEqual

    def assertNotEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first != second

    def assertSequenceEqual(
        self, first: Any, second: Any, msg: Any = None, seq_type: Any = None
    ) -> None:
        assert len(first) == len(second)
        for place in range(len(first)):
            assert first[place] == second[place]

    def assertCountEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        rest = list(second)
        for item in first:
            rest.remove(item)
        assert not rest

    def assertAlmostEqual(
        self, first: Any, second: Any, places: Any = None, msg: Any = None, delta: Any = None
    ) -> None:
        if first != second:
            limit = 0.5 * 10.0 ** -(7 if places is None else places) if delta is None else delta
            assert abs(first - second) <= limit

    def assertIs(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first is second

    def assertIsNot(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first is not second

    def assertIsNone(self, value: Any, msg: Any = None) -> None:
        assert value is None

    def assertIsNotNone(self, value: Any, msg: Any = None) -> None:
        assert value is not None

    def assertIn(self, item: Any, container: Any, msg: Any = None) -> None:
        assert item in container

    def assertNotIn(self, item: Any, container: Any, msg: Any = None) -> None:
        assert item not in container

    def assertIsInstance(self, value: Any, kind: Any, msg: Any = None) -> None:
        assert isinstance(value, kind)

    def assertNotIsInstance(self, value: Any, kind: Any, msg: Any = None) -> None:
        assert not isinstance(value, kind)

    def assertLess(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first < second

    def assertLessEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first <= second

    def assertGreater(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first > second

    def assertGreaterEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        assert first >= second

    def assertRaises(
        self, expected: Any, function: Any = None, *args: Any, **kwargs: Any
    ) -> Raised | None:
        return self.assertRaisesRegex(expected, "", function, *args, **kwargs)

    def assertRaisesRegex(
        self, expected: Any, pattern: Any, function: Any = None, *args: Any, **kwargs: Any
    ) -> Raised | None:
        if function is None:
            return Raised(expected, pattern)
        try:
            function(*args, **kwargs)
        except expected as error:
            assert not pattern or re.search(pattern, str(error))
            return None
        raise AssertionError(f"no {expected}")


def calling(method: Callable[..., Any], takes_number: bool) -> Callable[[torch.Tensor], Any]:
    """A function of a tensor that runs a test, which may take the sum of the tensor."""
    if takes_number:

        def function(x: torch.Tensor) -> torch.Tensor:
            method(int(x.sum()))
            return x + 1
    else:

        def function(x: torch.Tensor) -> torch.Tensor:
            method()
            return x + 1

    return function

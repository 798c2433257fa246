"""Python's own tests as programs: how they are made, and a fixed sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.fuzz import python_tests as part
from checks.fuzz.outcome import FAILURES
from tests.sampling import sampled

OWN = '''
import unittest

class Counting:
    def test_total(self):
        """Three items."""
        found = [self.kind(1), self.kind(2)]
        found.append(self.kind(2.5))
        self.assertEqual(len(found), 3)
        self.assertTrue(sum(found) == 5 or False)
        match len(found):
            case 3: pass
            case _: self.fail(f"{len(found) + 1:03}")

class IntCounting(Counting, unittest.TestCase):
    def setUp(self):
        self.kind = int

    def test_wrong(self):
        self.assertEqual(1, 2)

    def test_long(self):
        for _ in range(9000):
            x = 1
            x = 2
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[part.Case]]:
    """The programs of a test module of our own."""
    path = tmp_path / "test_own.py"
    path.write_text(OWN)
    monkeypatch.setattr(part, "MODULES", ("own",))
    monkeypatch.setattr(part, "test_file", lambda _: path)
    part.parsed.cache_clear()
    yield part.python_test_cases()
    part.parsed.cache_clear()


def test_each_method_is_four_programs(own: list[part.Case]) -> None:
    assert len(own) == 12
    assert str(own[1]) == "test_own.Counting.test_total 1"
    assert "Three items" in part.method_text(own[0]) and part.ZERO not in part.method_text(own[0])
    assert part.method_text(own[1]) == part.method_text(own[1])
    assert f"{part.ZERO})" in part.method_text(own[1])
    assert ":03" in part.method_text(own[1]) and "case 3" in part.method_text(own[1])
    job = part.python_tests(own[:4], (), 60.0)
    for case in own[:4]:
        outcome = job.run(case, lambda _: None)
        assert outcome.verdict == "equal", outcome


def test_a_test_that_eager_fails_or_that_is_long_is_skipped(own: list[part.Case]) -> None:
    job = part.python_tests(own, (), 60.0)
    wrong, long = own[4], own[8]
    assert job.run(wrong, lambda _: None).reason == "eager raises AssertionError"
    assert job.run(long, lambda _: None).reason == "eager runs many lines"


def test_python_without_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "test_file", lambda _: None)
    part.parsed.cache_clear()
    (case,) = part.python_test_cases()
    outcome = part.python_tests([case], (), 60.0).run(case, lambda _: None)
    part.parsed.cache_clear()
    assert (outcome.verdict, outcome.reason) == (
        "skipped",
        "this Python came without its tests",
    )


NAMES = [
    "augassign.AugAssignTest.testBasic 1",
    "augassign.AugAssignTest.testCustomMethods1 1",
    "binop.RatTestCase.test_add 3",
    "binop.RatTestCase.test_sub 1",
    "class.ClassTests.testHashStuff 1",
    "contextlib.TestSuppress.test_exact_exception 3",
    "copy.TestCopy.test_deepcopy_bound_method 2",
    "dataclasses.TestDocString.test_docstring_three_fields 1",
    "decorators.TestDecorators.test_wrapped_classmethod_inside_classmethod 1",
    "defaultdict.TestDefaultDict.test_missing 1",
    "deque.TestSequence.test_subscript 1",
    "descr.ClassPropertiesAndMethods.test_proxy_call 2",
    "exceptions.AttributeErrorTests.test_attributes 1",
    "fstring.TestCase.test_closure 3",
    "functools.TestSingleDispatch.test_register_abc 3",
    "functools.TestCachedProperty.test_reuse_different_names 1",
    "named_expressions.NamedExpressionAssignmentTest.test_named_expression_assignment_02 3",
    "operator.OperatorTestCase.test_add 1",
    "patma.TestPatma.test_patma_067 2",
    "positional_only_arg.PositionalOnlyTestCase.test_pos_only_call_via_unpacking 1",
    "raise.TestRaise.test_new_returns_invalid_instance 1",
    "range.RangeTest.test_range 3",
    "scope.ScopeTests.testLocalsClass 1",
    "set.TestCopying.test_deep_copy 2",
]


@pytest.mark.parametrize("name", sampled(NAMES, NAMES[::5]))
def test_a_sample(name: str) -> None:
    """The same as `python -m checks.fuzz --part python-tests`, which tries all of them."""
    cases = {str(case): case for case in part.python_test_cases()}
    if (case := cases.get(f"test_{name}")) is None:
        pytest.skip("this Python has no such test")
    outcome = part.python_tests([case], (), 60.0).run(case, lambda _: None)
    assert outcome.verdict not in FAILURES, f"{outcome}\n{outcome.detail}\n{outcome.source}"

"""Which cases `make test` runs."""

from dataclasses import dataclass

import pytest

from tests.sampling import ONE_IN, TURNS, WHOLE_SUITE, chosen, commit, long_tests
from tools.long_tests import LEAST, LIST


@dataclass(frozen=True, eq=False)
class Case:
    """What is asked of an item of pytest."""

    nodeid: str
    marks: tuple[pytest.Mark, ...] = ()

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)


ROTATING = pytest.mark.rotating(3).mark
WHOLE = pytest.mark.whole.mark


def test_one_in_n_of_the_cases_runs_and_all_of_them_within_some_commits() -> None:
    cases = [Case(f"a.py::test[{number}]", (ROTATING,)) for number in range(10)]
    samples = [chosen(cases, f"commit {number}") for number in range(30)]
    assert {len(sample) for sample in samples} == {4}
    assert set().union(*samples) == set(cases)
    assert chosen(cases, "commit 0") == samples[0]


def test_a_test_of_one_case_runs_each_time() -> None:
    one, other = Case("a.py::one"), Case("a.py::other[0]")
    alone, left_out = Case("a.py::alone", (ROTATING,)), Case("a.py::one[2]", (WHOLE,))
    for sample in "abc":
        assert chosen([one, other, alone, left_out], sample) == {one, other, alone}


def test_one_in_so_many_cases_runs_and_at_least_one() -> None:
    few = [Case(f"a.py::few[{number}]") for number in range(2)]
    many = [Case(f"a.py::many[{number}]") for number in range(4 * ONE_IN)]
    samples = [chosen([*few, *many], f"commit {number}") for number in range(60)]
    assert {len(sample & {*few}) for sample in samples} == {1}
    assert {len(sample & {*many}) for sample in samples} == {4}
    assert set().union(*samples) == {*few, *many}


def test_cases_that_only_the_whole_has_are_not_in_a_sample() -> None:
    cases = [Case("a.py::test[0]", (ROTATING, WHOLE)), Case("a.py::test[1]", (ROTATING,))]
    for sample in "abc":
        assert chosen(cases, sample) == {cases[1]}


def test_long_tests_take_turns_where_the_whole_suite_runs() -> None:
    long = sorted(long_tests())
    others = [Case(f"a.py::test_{number}") for number in range(WHOLE_SUITE)]
    cases = [Case(test) for test in long]
    runs = [chosen([*cases, *others], f"commit {number}") for number in range(80)]
    assert all(run >= {*others} for run in runs)
    assert set().union(*runs) >= {*cases}
    share = sum(len(run & {*cases}) for run in runs) / (len(runs) * len(long))
    assert share == pytest.approx(1 / TURNS, abs=0.05)
    assert chosen(cases, "commit 0") == {*cases}  # somebody's choice


def test_the_list_of_long_tests_is_of_tests_that_are_there() -> None:
    assert all(float(line.split()[0]) >= LEAST for line in LIST.read_text().splitlines())
    for test in long_tests():
        file, name, *_ = test.split("::")
        text = (LIST.parents[1] / file).read_text()
        assert f"def {name}(" in text or f"{name} = " in text or f"class {name}" in text, test


def test_the_sample_of_this_run(request: pytest.FixtureRequest) -> None:
    assert isinstance(request.config.option.sample, str)
    assert " " not in commit()

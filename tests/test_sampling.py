"""The selection of cases that `make test` runs."""

from dataclasses import dataclass

import pytest

from tests.sampling import ONE_IN, chosen


@dataclass(frozen=True, eq=False)
class Case:
    """A fake pytest item with the attributes that `chosen` uses."""

    nodeid: str
    marks: tuple[pytest.Mark, ...] = ()

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)


WHOLE = (pytest.mark.whole.mark,)


def test_one_in_so_many_cases_runs_and_at_least_one() -> None:
    few = [Case(f"a.py::few[{number}]") for number in range(2)]
    many = [Case(f"a.py::many[{number}]") for number in range(4 * ONE_IN)]
    sample = chosen([*few, *many])
    assert len(sample & {*few}) == 1
    assert len(sample & {*many}) == 4


def test_each_run_has_the_same_sample() -> None:
    names = [f"a.py::test[{number}]" for number in range(100)]
    samples = [{case.nodeid for case in chosen([Case(name) for name in names])} for _ in range(3)]
    assert samples[0] == samples[1] == samples[2]


def test_other_files_and_tests_do_not_change_a_sample() -> None:
    cases = [Case(f"a.py::test[{number}]") for number in range(100)]
    others = [Case(f"b.py::test[{number}]") for number in range(100)]
    assert chosen([*others, *cases]) >= chosen(cases)


def test_cases_that_are_marked_whole_are_in_no_sample() -> None:
    cases = [Case("a.py::test[0]", WHOLE), Case("a.py::test[1]")]
    assert chosen(cases) == {cases[1]}


def test_each_file_has_a_case_in_the_sample() -> None:
    cases = [Case("a.py::long[0]", WHOLE), Case("a.py::long[1]", WHOLE), Case("b.py::short")]
    assert chosen(cases) == {cases[0], cases[2]}

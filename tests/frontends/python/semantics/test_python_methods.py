"""Python's own tests of its language and built-in classes, method by method."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.fuzz.python_tests import test_file as file_of
from tests.frontends.python.semantics.python_methods import counted, outcomes
from tests.sampling import sampled

SHARES = {
    "augassign": 90, "binop": 70, "bool": 90, "compare": 70, "contains": 40, "defaultdict": 90,
    "dictcomps": 80, "enumerate": 75, "generators": 60, "index": 65, "int": 50, "list": 70,
    "operator": 90, "raise": 85, "range": 65, "richcmp": 75, "scope": 80, "slice": 60,
    "string": 75, "super": 70, "tuple": 75, "unary": 90, "userlist": 90, "with": 90,
    "dict": 65, "patma": 85,
}  # fmt: skip
"""The least share of methods, in percent, that are captured and right; the others are refused."""
SAMPLE = ("augassign", "contains", "raise", "richcmp", "scope", "super", "tuple")
UNLIKE = {
    "list.ListTest.test_repr_large": "a text of a million items takes long",
    "tuple.TupleTest.test_repr_large": "a text of a million items takes long",
    "slice.SliceTest.test_deepcopy": "the parts of a slice are values, not objects",
    "super.TestSuper.test___classcell___missing": "a metaclass that drops __classcell__",
    "super.TestSuper.test___classcell___wrong_cell": "a metaclass that changes __classcell__",
    "super.TestSuper.test_obscure_super_errors": "super() in a function whose argument is deleted",
    "super.TestSuper.test_cell_as_self": "a cell as an argument",
    "defaultdict.TestDefaultDict.test_recursive_repr": "the text of a subclass of defaultdict",
    "dict.DictTest.test_errors_in_view_containment_check": "an error of a comparison of views",
    "generators.ExceptionTest.test_except_throw_bad_exception": "the text of a TypeError",
    "generators.GeneratorThrowTest.test_exception_context_with_yield_inside_generator": (
        "the context of an exception thrown into a generator"
    ),
}
"""Methods whose outcome is not that of Python, with what they are about."""


@pytest.mark.parametrize("name", sampled(list(SHARES), SAMPLE))
def test_methods(name: str, tmp_path: Path) -> None:
    if file_of(f"test_{name}") is None:
        pytest.skip("this Python came without its tests")
    found = list(outcomes(name, tmp_path, without=UNLIKE))
    assert not [outcome for outcome in found if outcome.verdict == "wrong"]
    count = counted(found)
    assert 100 * count["right"] >= SHARES[name] * (count["right"] + count["refused"]), count

"""Names of operators and kernels."""

import re

import pytest

from stretto.device.operator import MAX_NAME_LENGTH, UniqueNames, beside, label, origin
from stretto.errors import SourceLocation

PLACE = SourceLocation("model.py", 41, function="Net.decode")


@pytest.mark.parametrize(
    ("place", "operator", "expected"),
    [
        (None, "linear", "linear"),
        (PLACE, "_softmax", "decode:41.softmax"),
        (SourceLocation("a.py", 7, function="<lambda>"), "mm", "lambda:7.mm"),
        (SourceLocation("a.py", 7), "mm", "line:7.mm"),
        (SourceLocation("a.py", 7, function="übung"), "mm", "_bung:7.mm"),
        (SourceLocation("a.py", 7, module="layers.3.q_proj"), "linear", "layers.3.q_proj.linear"),
        (SourceLocation("a.py", 7, module='a"b\n//\\'), "mm", "a_b_.mm"),
    ],
)
def test_origin(place: SourceLocation | None, operator: str, expected: str) -> None:
    assert origin(place, operator) == expected


def test_what_the_compiler_adds_stands_beside_it() -> None:
    assert beside("layers.3.conv.convolution", "layout") == "layers.3.conv.layout"
    assert beside("convolution", "layout") == "layout"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.3.q_proj.linear", "linear"),
        ("layers.3.q_proj.linear.2", "linear"),
        ("decode:41.softmax.12", "softmax"),
        ("0.1", "kernel"),
        ("", "kernel"),
    ],
)
def test_label(name: str, expected: str) -> None:
    assert label(name) == expected


def test_names_are_unique_and_bounded() -> None:
    names, long = UniqueNames(), "outermost." + "inner." * 40 + "linear"
    wanted = ["a.mm", "a.mm", "a.mm.2", "a.mm", "", "x y", long, long, "z" * 1000]
    found = [names.of(name) for name in wanted]
    assert found[:6] == ["a.mm", "a.mm.2", "a.mm.2.2", "a.mm.3", "kernel", "x_y"]
    assert len(set(found)) == len(found)
    assert all(len(name) <= MAX_NAME_LENGTH + 4 for name in found)
    assert all(re.fullmatch(r"[A-Za-z0-9_.:]+", name) for name in found)
    assert found[6].startswith("inner.") and found[6].endswith(".linear")

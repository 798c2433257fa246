"""Tests of `stretto.errors`: their text, and that errors can be passed between processes."""

import copy
import pickle
from pathlib import Path

import pytest

from stretto import errors
from stretto.errors import CaptureError, SourceLocation, StrettoError, StrettoWarning

STAGES = [
    errors.CaptureError,
    errors.VerifyError,
    errors.PassError,
    errors.ScheduleError,
    errors.CodegenError,
    errors.BuildError,
    errors.RunError,
    errors.SaveError,
    errors.LoadError,
]


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text("def forward(x):\n    y = x[x > 0]\n\té = f(ü, x)\n")
    return str(path)


def test_an_error_shows_place_source_caret_reason_and_remedy(model_file: str) -> None:
    error = CaptureError(
        "the shape of the result depends on data",
        location=SourceLocation(model_file, 2, 8, 16, "forward"),
        remedy="use torch.where, which keeps the shape",
        op="%3 = nonzero(%2)",
    )
    assert str(error) == (
        f"{model_file}:2, in forward: the shape of the result depends on data\n"
        "    y = x[x > 0]\n"
        "        ^^^^^^^^\n"
        "  op: %3 = nonzero(%2)\n"
        "  remedy: use torch.where, which keeps the shape"
    )


def test_columns_are_bytes_of_utf8(model_file: str) -> None:
    line = Path(model_file).read_text().splitlines()[2]
    start = len(line[: line.index("f(")].encode())
    end = len(line[: line.index(", x")].encode())
    shown = str(CaptureError("no", location=SourceLocation(model_file, 3, start, end)))
    assert shown.splitlines()[1:] == ["    é = f(ü, x)", "        ^^^"]


@pytest.mark.parametrize(
    ("column", "end_column", "carets"),
    [(8, None, ["        ^"]), (0, 5, ["    ^"]), (None, None, [])],
)
def test_a_partly_known_place(
    model_file: str, column: int | None, end_column: int | None, carets: list[str]
) -> None:
    error = CaptureError("no", location=SourceLocation(model_file, 2, column, end_column))
    assert str(error).splitlines() == [f"{model_file}:2: no", "    y = x[x > 0]", *carets]


@pytest.mark.parametrize("place", [("<stdin>", 1), ("missing.py", 7)])
def test_source_that_cannot_be_read_is_left_out(place: tuple[str, int]) -> None:
    error = CaptureError("no", location=SourceLocation(*place, 4, 5), remedy="do")
    assert str(error) == f"{place[0]}:{place[1]}: no\n  remedy: do"


def test_only_the_reason_is_needed() -> None:
    assert str(StrettoError("no compiler")) == "no compiler"


def test_longer_texts_keep_their_lines() -> None:
    error = StrettoError("no", op="while {\n  body\n}\n", remedy="first\nsecond")
    assert str(error).splitlines() == [
        "no",
        "  op: while {",
        "      body",
        "    }",
        "  remedy: first",
        "    second",
    ]


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("send", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_errors_can_be_sent_to_another_process(kind, send) -> None:
    location = SourceLocation("model.py", 3, 4, 5, "forward")
    error = kind("reason", location=location, remedy="remedy", op="op")
    received = send(error)
    assert type(received) is kind
    assert isinstance(received, StrettoError)
    assert vars(received) == vars(error)
    assert str(received) == str(error)


def test_the_warning_is_a_user_warning_and_no_error() -> None:
    assert issubclass(StrettoWarning, UserWarning)
    assert not issubclass(StrettoWarning, StrettoError)


def test_code_of_a_library_is_not_to_be_changed() -> None:
    place = SourceLocation("/venv/lib/python3.12/site-packages/package/module.py", 7)
    error = CaptureError("no", location=place, remedy="use torch.where")
    assert "torch.where" not in str(error)
    assert "fallback=True" in str(error)

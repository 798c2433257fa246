"""Tests of `stretto.text`."""

import doctest

import pytest

from stretto import text
from stretto.text import (
    MOST_ROWS,
    TextSection,
    Writer,
    bytes_text,
    caret,
    explanation,
    listed,
    seconds_text,
    table,
)


def test_docstring_examples() -> None:
    assert doctest.testmod(text).failed == 0


def test_writer_indents_each_line_and_keeps_blank_lines_empty() -> None:
    w = Writer(indent="    ")
    w.write("a")
    with w.indent():
        w.write("b\n\nc")
        with w.indent():
            w.write("d")
        w.write()
    w.write("e")
    assert w.text() == "a\n    b\n\n    c\n        d\n\ne\n"


def test_writer_closes_the_indent_when_the_block_raises() -> None:
    w = Writer()
    with pytest.raises(KeyError), w.indent():
        raise KeyError
    w.write("a")
    assert w.text() == "a\n"


def test_an_empty_writer_has_no_text() -> None:
    assert Writer().text() == ""


@pytest.mark.parametrize(
    ("line", "column", "end", "expected"),
    [
        ("y = x[i]", 4, 8, "    ^^^^"),
        ("y = x[i]", 4, None, "    ^"),
        ("y = x[i]\n", 4, 99, "    ^^^^"),
        ("\ty = x", 5, 6, "\t    ^"),
        ("y", 7, 9, " ^"),
        ("y", -2, 1, "^"),
        ("ab", 1, 1, " ^"),
        ("", 0, None, "^"),
    ],
)
def test_caret(line: str, column: int, end: int | None, expected: str) -> None:
    assert caret(line, column, end) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (2 * 1024**3, "2.0 GiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_text(count: int, expected: str) -> None:
    assert bytes_text(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (5e-10, "0.5 ns"),
        (850e-9, "850 ns"),
        (12.34e-6, "12.3 us"),
        (999.7e-6, "1 ms"),
        (4.564e-3, "4.56 ms"),
        (1.5, "1.5 s"),
        (99.7, "1 min 40 s"),
        (125, "2 min 05 s"),
        (-0.002, "-2 ms"),
        (-125, "-2 min 05 s"),
        (float("inf"), "inf s"),
        (float("nan"), "nan s"),
    ],
)
def test_seconds_text(seconds: float, expected: str) -> None:
    assert seconds_text(seconds) == expected


def test_table_sets_text_left_and_numbers_right() -> None:
    rows = [["LSTM", 6.3, "1.2 ms", ""], ["RAE", 12, "-", "no tensor"]]
    assert table(rows, ["model", "ratio", "time", "note"]) == (
        "model  ratio    time  note\n"
        "-----  -----  ------  ---------\n"
        "LSTM     6.3  1.2 ms\n"
        "RAE       12       -  no tensor\n"
    )


def test_a_table_without_rows_is_its_header() -> None:
    assert table([], ["a", "bc"]) == "a  bc\n-  --\n"


def test_table_refuses_a_row_of_another_length() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        table([["x"]], ["a", "b"])


def test_a_table_without_headers_is_set_left() -> None:
    assert table([("units", 2), ("policy of all", 30)]) == "units          2\npolicy of all  30\n"


def test_long_lists_end_with_dots() -> None:
    assert listed("abc", 3) == "a, b, c"
    assert listed("abcd", 3) == "a, b, c, ..."


def test_sections_are_indented_and_apart() -> None:
    inner = TextSection("inner", [("x", 1)], ("name", "count"))
    parts = ("first\nline", inner, TextSection("left out"))
    assert explanation(
        ("head", TextSection("outer", parts=parts), TextSection("no content"), "end")
    ) == (
        "head\n"
        "\n"
        "outer\n"
        "  first\n"
        "  line\n"
        "  inner\n"
        "    name  count\n"
        "    ----  -----\n"
        "    x         1\n"
        "end\n"
    )


def test_a_section_says_how_many_rows_it_leaves_out() -> None:
    rows = [(number,) for number in range(MOST_ROWS + 2)]
    lines = explanation([TextSection("many", rows, ("row",))]).splitlines()
    assert lines[0] == "many" and lines[-1] == "  ... and 2 more rows"
    assert len(lines) == 3 + MOST_ROWS + 1

"""Plain text: an indenting writer, carets under source, quantities, tables, explanations."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_BYTE_UNITS = ("KiB", "MiB", "GiB", "TiB")
_SECOND_UNITS = ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s"))
_NUMBER = re.compile(r"[-+]?\.?\d")


class Writer:
    """Collects lines of text, each indented by the blocks that are open.

    >>> w = Writer()
    >>> w.write("while (true) {")
    >>> with w.indent():
    ...     w.write("wait(unit, step);")
    >>> w.write("}")
    >>> print(w.text(), end="")
    while (true) {
      wait(unit, step);
    }
    """

    def __init__(self, indent: str = "  ") -> None:
        self._unit = indent
        self._depth = 0
        self._lines: list[str] = []

    def write(self, text: str = "") -> None:
        """Add `text`, one line or several, each indented; a line that is blank stays empty."""
        prefix = self._unit * self._depth
        for line in text.split("\n"):
            self._lines.append(prefix + line if line.strip() else "")

    @contextmanager
    def indent(self) -> Generator[None]:
        """Indent what is written inside the block by one more unit."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def block(self) -> Generator[None]:
        """A block in braces: `{`, the indented lines, `}`."""
        self.write("{")
        with self.indent():
            yield
        self.write("}")

    def text(self) -> str:
        """Everything written so far, each line ended by a newline."""
        return "".join(line + "\n" for line in self._lines)


def caret(source_line: str, column: int, end: int | None = None) -> str:
    """Return a line that underlines characters `column..end` of `source_line` with carets.

    Tabs before the column are copied, so the carets are under the text at any tab width.
    Without `end` one caret is drawn; an `end` past the line is cut back to it.
    """
    line = source_line.rstrip()
    column = max(0, min(column, len(line)))
    stop = column + 1 if end is None else min(end, len(line))
    lead = "".join(char if char == "\t" else " " for char in line[:column])
    return lead + "^" * max(1, stop - column)


def bytes_text(count: int) -> str:
    """Return a number of bytes for display: `0 B`, `1023 B`, `1.5 KiB`, `2.0 GiB`."""
    if abs(count) < 1024:
        return f"{count} B"
    # A value that would round to 1024.0 of a unit is shown as 1.0 of the next one.
    powers = range(1, len(_BYTE_UNITS))
    power = next((p for p in powers if abs(count) < 1023.95 * 1024**p), len(_BYTE_UNITS))
    return f"{count / 1024**power:.1f} {_BYTE_UNITS[power - 1]}"


def seconds_text(seconds: float) -> str:
    """Return a time for display, to three digits: `850 ns`, `12.3 us`, `4.56 ms`, `2 min 05 s`."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:g} s"
    if abs(seconds) >= 99.5:
        minutes, rest = divmod(round(abs(seconds)), 60)
        return f"{'-' if seconds < 0 else ''}{minutes} min {rest:02d} s"
    scale, unit = next(
        (scale, unit) for scale, unit in _SECOND_UNITS if abs(seconds) < 999.5 * scale
    )
    return f"{seconds / scale:.3g} {unit}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: `1 value`, `2 values`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(items: Iterable[object], most: int) -> str:
    """Return the first `most` items with commas, then `...` if there are more: `a, b, ...`."""
    shown = list(map(str, items))
    return ", ".join(shown if len(shown) <= most else [*shown[:most], "..."])


def table(rows: Sequence[Sequence[object]], headers: Sequence[str] = ()) -> str:
    """Return a plain-text table, columns two spaces apart; columns of numbers are right-aligned.

    Without headers, all columns are left-aligned. Raises `ValueError` for a row of another length
    than the headers.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    for row in cells:
        if headers and len(row) != len(headers):
            raise ValueError(
                f"a row of {len(row)} cells in a table of {len(headers)} columns: {row}"
            )
    head = [list(headers)] if headers else []
    columns = list(zip(*head, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [bool(headers) and _is_numeric(column[1:]) for column in columns]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip() + "\n"

    rule = [["-" * width for width in widths]] if headers else []
    return "".join(map(line, [*head, *rule, *cells]))


def _is_numeric(column: Sequence[str]) -> bool:
    filled = [cell for cell in column if cell not in ("", "-")]
    return bool(filled) and all(_NUMBER.match(cell) for cell in filled)


MOST_ROWS = 60
"""Maximum number of rows that a section shows; it says how many more there are."""


@dataclass(frozen=True, slots=True)
class TextSection:
    """A titled part of an explanation: a table, then lines and further sections, all indented.

    rows, headers: the table's, as for `table`. A section without rows and parts is not shown.
    """

    title: str
    rows: Sequence[Sequence[object]] = ()
    headers: Sequence[str] = ()
    parts: Sequence[str | TextSection] = ()

    def write(self, out: Writer) -> None:
        """Write the title and the content."""
        out.write(self.title)
        with out.indent():
            if self.rows:
                out.write(table(self.rows[:MOST_ROWS], self.headers).rstrip("\n"))
            if len(self.rows) > MOST_ROWS:
                out.write(f"... and {len(self.rows) - MOST_ROWS} more rows")
            _write(out, self.parts)


def explanation(parts: Iterable[str | TextSection]) -> str:
    """Return the text of an `explain()`: lines, and sections with an empty line before each."""
    out = Writer()
    _write(out, parts, apart=True)
    return out.text()


def _write(out: Writer, parts: Iterable[str | TextSection], *, apart: bool = False) -> None:
    for number, part in enumerate(parts):
        if isinstance(part, str):
            out.write(part)
        elif part.rows or part.parts:
            if apart and number:
                out.write()
            part.write(out)

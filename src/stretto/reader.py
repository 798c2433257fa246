"""Reading a text token by token, with errors that say where in the text a mistake is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Never, TypeVar

A = TypeVar("A")


class Reader:
    """Reads a text token by token.

    token: what a token is, in groups that are named by its kind. space: what is between tokens.
    start: where the last token began. fields: what the pattern at hand has read so far.
    """

    token: ClassVar[re.Pattern[str]]
    space: ClassVar[re.Pattern[str]] = re.compile(r"\s*")

    def __init__(self, text: str) -> None:
        self.text = text
        self.start = 0
        self.fields: dict[str, Any] = {}
        self.move(0)

    def move(self, position: int) -> None:
        """Goes to the first token at or after a position."""
        space = self.space.match(self.text, position)
        assert space is not None
        self.position = space.end()
        self._next = self.token.match(self.text, self.position)

    def error(self, message: str, line: int, column: int, source: str) -> Exception:
        """The error for a mistake in a line of the text; line and column count from 1."""
        raise NotImplementedError

    def fail(self, message: str) -> Never:
        """Raises for the last token."""
        before = self.text[: self.start]
        line, column = before.count("\n") + 1, self.start - before.rfind("\n")
        lines = self.text.splitlines() or [""]
        raise self.error(message, line, column, lines[min(line, len(lines)) - 1])

    def miss(self, what: str) -> Never:
        """Raises for the next token, in the place of which something else is expected."""
        self.start = self.position
        known = self._next is not None or self.at_end()
        self.fail(f"{'' if known else 'cannot read this: '}expected {what}")

    def at_end(self) -> bool:
        return self.position == len(self.text)

    def end(self, what: str = "the end of the text") -> None:
        if not self.at_end():
            self.miss(what)

    def peek(self) -> str:
        """The next token, empty at the end."""
        return "" if self._next is None else self._next[0]

    def at(self, kind: str) -> bool:
        """Whether the next token is of that kind."""
        return self._next is not None and self._next.lastgroup == kind

    def take(self, kind: str) -> str | None:
        """The next token when it is of that kind, else None, and nothing is read."""
        if self._next is None or self._next.lastgroup != kind:
            return None
        text = self._next[kind]
        self._advance()
        return text

    def next(self, kind: str, what: str = "") -> str:
        """The next token, which must be of that kind; `what` names it in the error."""
        found = self.take(kind)
        return self.miss(what or f"a {kind}") if found is None else found

    def accept(self, token: str) -> bool:
        """Whether it is the next token, which then is read."""
        if self._next is None or self._next[0] != token:
            return False
        self._advance()
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.miss(f"`{token}`")

    def items(self, item: Callable[[], A], opening: str = "(", closing: str = ")") -> tuple[A, ...]:
        """Items in brackets, separated by commas; there may be one after the last item."""
        self.expect(opening)
        found: list[A] = []
        while not self.accept(closing):
            found.append(item())
            if not self.accept(","):
                self.expect(closing)
                break
        return tuple(found)

    def _advance(self) -> None:
        assert self._next is not None
        self.start = self.position
        self.move(self._next.end())


def number(text: str) -> int | float:
    """The number that a token says."""
    return int(text) if text.lstrip("-").isdecimal() else float(text)

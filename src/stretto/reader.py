"""Read a text token by token, with errors that give the position of a mistake in the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Never, TypeVar

A = TypeVar("A")


class Reader:
    """Reads a text token by token.

    token: the pattern of a token, with a group named after each kind. space: the pattern of
    what is between tokens. start: position of the last token. fields: fields that the
    current pattern has read so far.
    """

    token: ClassVar[re.Pattern[str]]
    space: ClassVar[re.Pattern[str]] = re.compile(r"\s*")

    def __init__(self, text: str) -> None:
        self.text = text
        self.start = 0
        self.fields: dict[str, Any] = {}
        self.move(0)

    def move(self, position: int) -> None:
        """Go to the first token at or after a position."""
        space = self.space.match(self.text, position)
        assert space is not None
        self.position = space.end()
        self._next = self.token.match(self.text, self.position)

    def error(self, message: str, line: int, column: int, source: str) -> Exception:
        """Return the error for a mistake in a line of the text; line and column count from 1."""
        raise NotImplementedError

    def fail(self, message: str) -> Never:
        """Raise the error for the last token."""
        before = self.text[: self.start]
        line, column = before.count("\n") + 1, self.start - before.rfind("\n")
        lines = self.text.splitlines() or [""]
        raise self.error(message, line, column, lines[min(line, len(lines)) - 1])

    def miss(self, what: str) -> Never:
        """Raise the error for the next token, where `what` was expected instead."""
        self.start = self.position
        known = self._next is not None or self.at_end()
        self.fail(f"{'' if known else 'cannot read this: '}expected {what}")

    def at_end(self) -> bool:
        """Return True if the whole text has been read."""
        return self.position == len(self.text)

    def end(self, what: str = "the end of the text") -> None:
        """Raise the error unless the whole text has been read."""
        if not self.at_end():
            self.miss(what)

    def peek(self) -> str:
        """Return the next token; empty at the end."""
        return "" if self._next is None else self._next[0]

    def at(self, kind: str) -> bool:
        """Return True if the next token is of that kind."""
        return self._next is not None and self._next.lastgroup == kind

    def take(self, kind: str) -> str | None:
        """Read the next token if it is of that kind; else read nothing and return None."""
        if self._next is None or self._next.lastgroup != kind:
            return None
        text = self._next[kind]
        self._advance()
        return text

    def next(self, kind: str, what: str = "") -> str:
        """Read the next token, which must be of that kind; `what` names it in the error."""
        found = self.take(kind)
        return self.miss(what or f"a {kind}") if found is None else found

    def accept(self, token: str) -> bool:
        """Read the next token if it is `token`, and return True; else False."""
        if self._next is None or self._next[0] != token:
            return False
        self._advance()
        return True

    def expect(self, token: str) -> None:
        """Read the next token, which must be `token`."""
        if not self.accept(token):
            self.miss(f"`{token}`")

    def items(self, item: Callable[[], A], opening: str = "(", closing: str = ")") -> tuple[A, ...]:
        """Read items in brackets, separated by commas; a comma after the last item is allowed."""
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
    """Convert a token to the number that it is."""
    return int(text) if text.lstrip("-").isdecimal() else float(text)

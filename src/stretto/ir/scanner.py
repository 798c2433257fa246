"""The tokens of a printed Program, and its types. A mistake is a VerifyError with a caret."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Never, TypeVar

from stretto.errors import VerifyError
from stretto.ir.size_parser import parse_size
from stretto.ir.sizes import Symbol
from stretto.ir.types import Dim, DType, ListType, TensorType, Type
from stretto.text import caret

Item = TypeVar("Item")

_TOKEN = re.compile(
    r"""(?P<value>%[A-Za-z0-9_.]+)
      | (?P<function>@(?:[A-Za-z_][A-Za-z0-9_.]*|"(?:[^"\\]|\\.)*"))
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?))
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
      | `(?P<symbol>[^`]*)`
      | (?P<punctuation>->|[(){}\[\]<>,:=])""",
    re.VERBOSE,
)
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_TYPES: dict[str, DType] = {item.value: item for item in DType}


class Scanner:
    """A position in the text, moved on token by token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.symbols: dict[str, Symbol] = {}
        """What the function at hand declares."""
        self.start = 0
        """Where the last token began; errors point there."""
        self._skip()

    def at_end(self) -> bool:
        return self.position == len(self.text)

    def fail(self, message: str) -> Never:
        """Raises for the last token."""
        before = self.text[: self.start]
        line, column = before.count("\n") + 1, self.start - before.rfind("\n") - 1
        source = (self.text.splitlines() or [""])[min(line, len(self.text.splitlines()) or 1) - 1]
        raise VerifyError(
            f"line {line}, column {column + 1}: {message}\n{source}\n{caret(source, column)}"
        )

    def next(self, kind: str, what: str) -> str:
        """The next token, which must be of that kind; `what` names it in the error."""
        found = self.take(kind)
        if found is None:
            self.start = self.position
            self.fail(f"expected {what}")
        return found

    def take(self, kind: str, text: str | None = None) -> str | None:
        """The next token when it is of that kind (and text), else None, and nothing is read."""
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup != kind:
            return None
        if text is not None and match[kind] != text:
            return None
        self.start, self.position = self.position, match.end()
        self._skip()
        return match[kind]

    def accept(self, punctuation: str) -> bool:
        return self.take("punctuation", punctuation) is not None

    def expect(self, punctuation: str) -> None:
        if not self.accept(punctuation):
            self.start = self.position
            self.fail(f"expected `{punctuation}`")

    def keyword(self, word: str) -> None:
        if self.take("word", word) is None:
            self.start = self.position
            self.fail(f"expected `{word}`")

    def separated(self, item: Callable[[], Item], close: str) -> tuple[Item, ...]:
        """Items between commas up to `close`, which is read; a comma after the last is allowed."""
        items: list[Item] = []
        while not self.accept(close):
            items.append(item())
            if not self.accept(","):
                self.expect(close)
                break
        return tuple(items)

    def type(self) -> Type:
        word = self.next("word", "a type")
        if word == "list":
            self.expect("<")
            element = self.type()
            if not isinstance(element, TensorType):
                self.fail("a list holds tensors")
            self.expect(">")
            return ListType(element)
        if word not in _TYPES:
            self.fail(f"`{word}` is not a type")
        return TensorType(_TYPES[word], self._dims())

    def _dims(self) -> tuple[Dim, ...]:
        self.expect("[")
        depth, end = 0, self.position
        pieces = [end]
        while end < len(self.text) and (depth or self.text[end] != "]"):
            depth += {"(": 1, ")": -1}.get(self.text[end], 0)
            if self.text[end] == "," and not depth:
                pieces.append(end + 1)
            end += 1
        texts = [
            self.text[first : last - 1].strip()
            for first, last in zip(pieces, [*pieces[1:], end + 1], strict=True)
        ]
        self.position = end
        self.expect("]")
        if texts == [""]:
            return ()
        if "" in texts:
            self.fail("a dim is missing")
        return tuple(self.size(item) for item in texts)

    def size(self, text: str) -> Dim:
        """A size over the symbols that are declared; others have the default range."""
        if text.isdecimal():
            return int(text)
        try:
            return parse_size(text, self.symbols)
        except VerifyError as error:
            self.fail(error.message)

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

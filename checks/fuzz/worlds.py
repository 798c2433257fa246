"""The names of a function over sizes, with values for several choices of its sizes at once.

An expression fits where eager computes it for each of the choices. Tensors whose shapes are equal
for all of them have the same shape as far as the writer can see: the sizes are unlike each other.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from checks.fuzz import sized_templates, templates
from checks.fuzz.scope import KINDS, is_number, is_tensor, same_type

SLOT = re.compile(r"\{(\w)\}")
MOST_ELEMENTS = 3000
MOST_NUMBER = 200
MOST_TEXT = 160

Values = list[Any]
"""One value for each choice of sizes."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """An expression with its values."""

    text: str
    values: Values


def same_types(one: Values, other: Values) -> bool:
    return all(map(same_type, one, other))


@dataclass
class Worlds:
    """What a block may read: a dict of names per choice of sizes. Inner blocks have copies."""

    random: random.Random
    globals: dict[str, Any]
    locals: list[dict[str, Any]]
    weights: tuple[str, ...] = ()
    decided: bool = True
    """Whether expressions whose size data decide are among those drawn."""
    helpers: tuple[str, ...] = ()
    """Calls of other functions, as templates."""

    def inner(self) -> Worlds:
        copies = [dict(names) for names in self.locals]
        return replace(self, locals=copies)

    def values(self, name: str) -> Values:
        return [names[name] for names in self.locals]

    def define(self, name: str, values: Values) -> None:
        for names, value in zip(self.locals, values, strict=True):
            names[name] = value

    def evaluate(self, text: str) -> Values | None:
        """None where eager raises for any choice of sizes."""
        found: Values = []
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for names in self.locals:
                try:
                    found.append(eval(text, self.globals, names))
                except Exception:  # whatever an expression raises that does not fit here
                    return None
        return found if _fits(found) else None

    def execute(self, text: str) -> bool:
        """Runs a statement; says whether it went well for all choices of sizes."""
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for names in self.locals:
                    exec(text, self.globals, names)
        except Exception:  # the same
            return False
        return True

    def names(self, test: Callable[[Any], bool]) -> list[str]:
        return [name for name, value in self.locals[0].items() if test(value)]

    # ---- expressions -----------------------------------------------------------------------------
    def expression(self, test: Callable[[Any], bool], depth: int = 2) -> Fitting:
        """A random expression for whose values the test holds."""
        groups = [templates.POINTWISE, templates.POINTWISE, templates.REDUCTIONS, templates.MOVES]
        groups += [templates.PRODUCTS, *[sized_templates.SIZED] * 5]
        if self.decided:
            groups += [sized_templates.DECIDED]
        groups += [self.helpers] * 3 if self.helpers else []
        for _ in range(16):
            found = self.filled(self.random.choice(self.random.choice(groups)), depth - 1)
            if found is not None and test(found.values[0]):
                return found
        return self.leaf(test)

    def leaf(self, test: Callable[[Any], bool]) -> Fitting:
        names = self.names(test)
        if names:
            text = self.random.choice(names)
            return Fitting(text, self.values(text))
        for text in ("torch.ones(4)", "torch.arange(4)", "torch.arange(4) > 1", "2", "[U, U * 2]"):
            values = self.evaluate(text)
            if values is not None and test(values[0]):
                return Fitting(text, values)
        raise AssertionError("every kind has an expression")

    def filled(self, template: str, depth: int, given: dict[str, str] | None = None) -> Any:
        """The template with its slots filled; None where that does not fit. One letter of `x`, `v`
        and `w` stands for the same expression everywhere, and often one `t`, too."""
        chosen = dict(given or {})

        def fill(match: re.Match[str]) -> str:
            letter = match[1]
            if letter not in chosen:
                text = self.slot(letter, depth)
                if letter not in "xvwl" and not (letter == "t" and self.random.random() < 0.6):
                    return text
                chosen[letter] = text
            return chosen[letter]

        text = SLOT.sub(fill, template)
        if len(text) > MOST_TEXT:
            return None
        values = self.evaluate(text)
        return None if values is None else Fitting(text, values)

    def slot(self, letter: str, depth: int) -> str:
        draw = self.random
        match letter:
            case "c":
                return draw.choice(templates.FLOATS)
            case "k":
                return draw.choice(("1", "2", "2", "3", "0", "5"))
            case "d":
                return draw.choice(templates.DIMS)
            case "w":
                return draw.choice(self.weights)
            case "n":
                return self.number(depth)
            case _:
                pass
        test = KINDS["f" if letter in "xv" else letter]
        if letter in "fibt" and depth > 0 and draw.random() < 0.4:
            text = self.expression(test, depth).text
            return text if re.fullmatch(r"[\w.]+", text) else f"({text})"
        return self.leaf(test).text

    def number(self, depth: int = 1) -> str:
        """A Python number that is no float: an argument, a size, or what is computed of them."""
        names = self.names(lambda value: is_number(value) and isinstance(value, int))
        if names and self.random.random() < 0.5:
            return self.random.choice(names)
        group = list(sized_templates.NUMBERS if depth > 0 else sized_templates.PLAIN_NUMBERS)
        if self.decided:
            group += sized_templates.DECIDED_NUMBERS
        for _ in range(6):
            found = self.filled(self.random.choice(group), depth - 1)
            if found is not None and isinstance(found.values[0], int):
                return f"({found.text})" if " " in found.text else found.text
        return "3"

    def test(self) -> str:
        """A condition, on sizes or on elements."""
        for _ in range(8):
            group = self.random.choice((sized_templates.TESTS, templates.TESTS))
            found = self.filled(self.random.choice(group), 1)
            if found is not None:
                return found.text
        return "U.sum() > 0"

    def like(self, values: Values) -> Fitting | None:
        """An expression whose types are those of a tensor for all choices of sizes."""
        for _ in range(8):
            found = self.expression(is_tensor)
            if same_types(found.values, values):
                return found
        return None


def _fits(values: Values) -> bool:
    """Whether a variable may hold them: of one kind, not complex, and not too large."""
    first = values[0]
    for value in values:
        if type(value) is not type(first):
            return False
        if isinstance(value, torch.Tensor):
            if value.dtype.is_complex or value.numel() > MOST_ELEMENTS:
                return False
            if value.dtype != first.dtype or value.dim() != first.dim():
                return False
        if is_number(value) and not abs(value) <= MOST_NUMBER:
            return False
    return True

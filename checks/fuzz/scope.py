"""What a block of a random function may read and change: names with sample values.

The sample values say of what type a name is. Expressions are tried on them, so that what a random
function computes fits together: shapes, dtypes, kinds of containers.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from checks.fuzz import templates

MOST_ELEMENTS = 400
SLOT = re.compile(r"\{(\w)\}")

Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Text:
    """An expression with the value that it has on the samples."""

    text: str
    value: Any


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def is_integer(value: Any) -> bool:
    return is_tensor(value) and not is_float(value) and value.dtype is not torch.bool


def is_flags(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_tensor, value))


def is_plain(value: Any) -> bool:
    """True for texts, flags, and lists, tuples and dicts of such and of numbers."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(item) or is_tensor(item) for item in value)
    return value is None or isinstance(value, str | bool | int | float)


KINDS: dict[str, Test] = {
    "t": is_tensor,
    "f": is_float,
    "i": is_integer,
    "b": is_flags,
    "n": is_number,
    "l": is_tensors,
    "v": is_float,
    "p": lambda value: isinstance(value, float),
    "s": lambda value: isinstance(value, str),
    "o": lambda value: type(value).__name__ == "Model",
}

FIRST = {
    "p": ("0.1", "0.5", "{f}.sum().item()", "float({f}.reshape(-1)[0])"),
    "s": ('"1"', '"k2"', "str({n})", 'f"{{n}}"'),
    "o": ("m",),
    "v": ("x",),
}
"""Expressions of kinds that need no variable."""


def same_type(one: Any, other: Any) -> bool:
    """Whether a variable may hold the one and then the other."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_type, one, other))
    return type(one) is type(other)


@dataclass
class Scope:
    """The names of a function at one place, with samples. A block's scope copies the outer one."""

    random: random.Random
    globals: dict[str, Any]
    weights: tuple[str, ...] = ()
    """Expressions for constants: globals, parameters of the module."""
    locals: dict[str, Any] = field(default_factory=dict[str, Any])
    numbers: tuple[str, ...] = templates.NUMBERS
    tests: tuple[str, ...] = templates.TESTS

    def inner(self) -> Scope:
        return replace(self, locals=dict(self.locals))

    def evaluate(self, text: str) -> Any:
        """The value of an expression. Raises whatever it raises."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(text, self.globals, self.locals)

    def execute(self, text: str) -> bool:
        """Runs a statement on the samples; says whether it went well."""
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, self.globals, self.locals)
        except Exception:  # whatever a statement raises that does not fit here
            return False
        return True

    def names(self, test: Test) -> list[str]:
        return [name for name, value in self.locals.items() if test(value)]

    # ---- expressions -----------------------------------------------------------------------------
    def expression(self, test: Test, depth: int = 2) -> Text:
        """A random expression for whose value the test holds."""
        for _ in range(12):
            groups = (
                templates.POINTWISE,
                templates.POINTWISE,
                templates.REDUCTIONS,
                templates.MOVES,
                templates.PRODUCTS,
            )
            found = self.filled(self.random.choice(self.random.choice(groups)), depth - 1)
            if found is not None and test(found.value):
                return found
        return self.leaf(test)

    def leaf(self, test: Test) -> Text:
        """A name, or a new value where there is none."""
        names = self.names(test)
        if names and self.random.random() < 0.95:
            text = self.random.choice(names[-6:] if self.random.random() < 0.6 else names)
            return Text(text, self.locals[text])
        made = [
            "torch.ones(3)",
            "torch.tensor([1, 2, 0])",
            "torch.tensor([True, False, True])",
            "2",
            "[torch.zeros(3), torch.ones(3)]",
            "torch.tensor(0.5)",
        ]
        self.random.shuffle(made)
        for text in made:
            if test(value := self.evaluate(text)):
                return Text(text, value)
        return Text("torch.zeros(3)", torch.zeros(3))

    def filled(self, template: str, depth: int, given: dict[str, str] | None = None) -> Text | None:
        """The template with its slots filled, tried on the samples; None where it fails."""
        text = self.fill(template, depth, given)
        if len(text) > 300:
            return None
        try:
            value = self.evaluate(text)
        except Exception:  # whatever an expression raises that does not fit here
            return None
        if isinstance(value, torch.Tensor) and (
            value.numel() > MOST_ELEMENTS or value.dtype.is_complex
        ):
            return None
        if isinstance(value, int) and abs(value) > 10**6:
            return None
        return Text(text, value)

    def fill(self, template: str, depth: int, given: dict[str, str] | None = None) -> str:
        """The template with its slots filled. A slot that occurs again is the same where its letter
        is `v`, `x` or `w`."""
        chosen = dict(given or {})

        def part(match: re.Match[str]) -> str:
            letter = match[1]
            if letter in chosen:
                return chosen[letter]
            text = self.slot(letter, depth)
            if letter in "wvl" or (letter == "t" and self.random.random() < 0.6):
                chosen[letter] = text
            return text

        return SLOT.sub(part, template)

    def slot(self, letter: str, depth: int) -> str:
        draw = self.random
        if letter in FIRST:
            names = self.names(KINDS[letter])
            return draw.choice(names) if names and draw.random() < 0.8 else self.first(letter)
        if letter == "c":
            return draw.choice(templates.RARE_FLOATS if draw.random() < 0.05 else templates.FLOATS)
        if letter == "k":
            return draw.choice(templates.INTS)
        if letter == "d":
            return draw.choice(templates.DIMS)
        if letter == "w":
            return self.weight()
        if letter == "n":
            return self.number(depth)
        test = KINDS[letter]
        if letter != "l" and depth > 0 and draw.random() < 0.45:
            return self.in_brackets(self.expression(test, depth))
        return self.leaf(test).text

    def first(self, letter: str) -> str:
        return self.fill(self.random.choice(FIRST[letter]), 0)

    def in_brackets(self, text: Text) -> str:
        simple = re.fullmatch(r"[\w.]+(\([^()]*\))?(\[[^\[\]]*\])?", text.text)
        return text.text if simple else f"({text.text})"

    def number(self, depth: int = 0) -> str:
        if depth > 0 and self.random.random() < 0.3:
            found = self.filled(self.random.choice(self.numbers), depth - 1)
            if found is not None and is_number(found.value):
                return f"({found.text})"
        names = self.names(lambda value: isinstance(value, int) and not isinstance(value, bool))
        return self.random.choice([*names, *names, self.random.choice(templates.INTS)])

    def weight(self) -> str:
        """A constant, or a view of one."""
        if not self.weights:
            return self.leaf(is_float).text
        name = self.random.choice(self.weights)
        for _ in range(4):
            template = self.random.choice(templates.WEIGHT_VIEWS)
            found = self.filled(template, 0, {"v": name})
            if found is not None and is_tensor(found.value) and found.value.numel():
                return found.text
        return name

    def test(self, depth: int = 1) -> str:
        """A condition."""
        for _ in range(6):
            found = self.filled(self.random.choice(self.tests), depth)
            if found is None:
                continue
            if depth and self.random.random() < 0.2:
                joined = self.random.choice(("and", "or", "and not"))
                return f"{found.text} {joined} ({self.test(0)})"
            return found.text
        return f"{self.leaf(is_float).text}.sum() > 0"

    def number_expression(self) -> Text:
        for _ in range(6):
            found = self.filled(self.random.choice(self.numbers), 1)
            if found is not None and is_number(found.value):
                return found
        return Text("1", 1)

    def like(self, value: torch.Tensor) -> Text:
        """An expression of the type of a tensor."""
        for _ in range(6):
            found = self.expression(is_tensor)
            if same_type(found.value, value):
                return found
        one = self.leaf(lambda other: same_type(value, other))
        if not same_type(one.value, value):
            one = Text(f"torch.zeros({list(value.shape)}, dtype={value.dtype})", value)
        if value.dtype.is_floating_point:
            return self._joined(one, value)
        return one

    def _joined(self, one: Text, value: torch.Tensor) -> Text:
        """An expression of a float tensor's type into which another one goes."""
        ways: Sequence[str] = (
            "torch.tanh({one} + {e})",
            "{one} * 0.5 + {e}",
            "torch.where({one} > 0, {one}, {e})",
            "{one} - ({e}).mean()",
            "{one} * torch.sigmoid({e})",
            "torch.maximum({one}, ({e}).sum())",
        )
        for _ in range(6):
            way = self.random.choice(ways)
            inner = self.expression(is_float, 2)
            text = way.format(one=one.text, e=self.in_brackets(inner))
            try:
                found = self.evaluate(text)
            except Exception:  # the same
                continue
            if same_type(found, value):
                return Text(text, found)
        return Text(f"torch.tanh({one.text})", torch.tanh(one.value).to(value.dtype))

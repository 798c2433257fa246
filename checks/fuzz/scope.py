"""The names that a block of a random program may read and change, with values for several samples.

An expression fits where eager computes it for every sample: one call's arguments, several choices
of sizes, or several instances. So what a random program computes fits together: shapes, dtypes,
kinds of containers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from checks.fuzz import grammar, templates
from checks.fuzz.choices import Choices
from checks.fuzz.grammar import Grammar

Values = list[Any]
"""One value for each sample."""
Test = Callable[[Any], bool]

WORDS = "plain|like|item|same|test|call|view|number|any|each|table|result"
SLOT = re.compile(rf"\{{([a-zA-Z]|{WORDS}|:\w+\.\w+)\}}")
GONE = object()
"""The value of what raises for a sample."""


class Misfit(Exception):
    """Raised where something that was drawn cannot stand."""


@dataclass(frozen=True, slots=True)
class Text:
    """An expression with its values."""

    text: str
    values: Values


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def is_integer(value: Any) -> bool:
    return is_tensor(value) and not is_float(value) and value.dtype is not torch.bool


def is_flags(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_tensor, value))


def is_vector(value: Any) -> bool:
    return is_tensor(value) and value.dtype is torch.float32 and value.shape == (3,)


def is_object(value: Any) -> bool:
    """True for objects of classes of the program."""
    return bool(fields(value)) and not isinstance(value, type)


def is_plain(value: Any) -> bool:
    """True for texts, flags, and lists, tuples and dicts of such and of numbers."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(item) or is_tensor(item) for item in value)
    return value is None or isinstance(value, str | bool | int | float)


def _items(test: Test) -> Test:
    return lambda value: isinstance(value, list) and all(map(test, value))


KINDS: dict[str, Test] = {
    "t": is_tensor,
    "e": is_tensor,
    "f": is_float,
    "v": is_float,
    "T": is_tensor,
    "i": is_integer,
    "b": is_flags,
    "n": is_int,
    "j": is_int,
    "p": lambda value: isinstance(value, float),
    "s": lambda value: isinstance(value, str),
    "q": lambda value: isinstance(value, bool),
    "l": is_tensors,
    "A": is_tensors,
    "P": lambda value: is_tensors(value) and len(value) > 1,
    "h": lambda value: isinstance(value, bool) or (is_flags(value) and not value.dim()),
    "o": lambda value: type(value).__name__ == "Model",
    "y": is_object,
    "M": lambda value: value is None or is_object(value) or is_vector(value),
    "H": is_vector,
    "z": is_vector,
    "V": _items(is_vector),
    "I": _items(is_int),
    "L": lambda value: isinstance(value, list),
    "g": lambda value: type(value).__name__ == "function",
    "any": lambda _: True,
}
VARIABLES = "vTjzhoAPg"
"""Slots for names alone, not for what is computed."""
SAME = "vTwlxajzAPURQK"
"""Slots that are the same wherever they occur in a template."""
LITERALS: dict[str, Sequence[str]] = {
    "c": templates.FLOATS,
    "d": templates.DIMS,
    "m": ("1", "2", "3", "4", "5", "6"),
}
MADE = (
    "torch.zeros(3)", "torch.tensor([1, 2, 0])", "torch.tensor([True, False, True])", "2", "0.5",
    "[torch.zeros(3), torch.ones(3)]", "True", "[1, 2]", "[]", "None", "'a'",
)  # fmt: skip
"""Values for where there is no variable."""
TEXTS = ('"1"', '"k2"', "str({n})", 'f"{{n}}"')
JOINS = (
    "torch.tanh({v} + {f})", "{v} * 0.5 + {f}", "torch.where({v} > 0, {v}, {f})",
    "{v} - ({f}).mean()", "{v} * torch.sigmoid({f})", "torch.maximum({v}, ({f}).sum())",
)  # fmt: skip
"""Expressions of a float tensor's type into which another one goes."""
EACH = ("[{item} for e in {list}]", "[{item} for e in {list}]", "[{item} for e in {list} if {if}]")


def fields(value: Any) -> dict[str, Any]:
    """The parts of an object of a class of the program, by name."""
    if type(value).__module__ != "builtins":
        return {}
    return value._asdict() if hasattr(value, "_asdict") else getattr(value, "__dict__", {})


def signature(value: Any) -> str:
    """The type of a value, with shapes and with the types of items."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, list):
        return f"[{' '.join(sorted(set(map(signature, value))))}]"
    if type(value) is tuple:
        return f"({' '.join(map(signature, value))})"
    if isinstance(value, dict):
        return f"{{{' '.join(sorted(set(map(signature, value.values()))))}}}"
    return type(value).__name__


def same_type(one: Any, other: Any) -> bool:
    """True where a variable may hold the one and then the other."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_type, one, other))
    return type(one) is type(other)


def same_types(one: Values, other: Values) -> bool:
    return all(map(same_type, one, other))


@dataclass
class Scope:
    """The names of a function at one place, with samples. A block's scope copies the outer one."""

    choices: Choices
    grammar: Grammar
    globals: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    weights: tuple[str, ...] = ()
    """Expressions for constants: globals, parameters of the module."""
    attributes: tuple[str, ...] = ()
    """Expressions for buffers and other state that may be assigned and changed."""
    helpers: tuple[str, ...] = ()
    """Calls of other functions, as templates."""
    result: tuple[str, ...] = ()
    """Names; what a function returns early is of their types."""
    outer: frozenset[str] = frozenset()
    """Names of the function around, which this one may not assign."""
    risky: bool = False
    """Expressions that raise for some of the samples may be written."""
    _held: list[Text] | None = None

    def inner(self, samples: list[dict[str, Any]] | None = None) -> Scope:
        copies = [dict(names) for names in (samples or self.samples)]
        return replace(self, samples=copies, _held=None)

    def define(self, name: str, values: Values) -> None:
        for names, value in zip(self.samples, values, strict=True):
            names[name] = value
        self.samples = [names for names in self.samples if names[name] is not GONE]
        self._held = None

    def restore(self, samples: list[dict[str, Any]]) -> None:
        self.samples, self.risky, self._held = samples, False, None

    # ---- running ---------------------------------------------------------------------------------
    def evaluate(self, text: str) -> Values:
        """The values of an expression. Raises Misfit."""
        found: Values = []
        try:
            code = compile(text, "expression", "eval")
        except SyntaxError as error:
            raise Misfit from error
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for names in self.samples:
                try:
                    found.append(eval(code, {**self.globals, **names}))
                except Exception as error:  # whatever an expression raises that does not fit here
                    if not self.risky:
                        raise Misfit from error
                    found.append(GONE)
        if sum(value is GONE for value in found) * 4 > len(found) * 3 or not self._fits(found):
            raise Misfit
        return found

    def _fits(self, values: Values) -> bool:
        """True where a variable may hold them: not complex, not too large, and of one kind."""
        values = [value for value in values if value is not GONE]
        first, limits = values[0], self.grammar
        for value in values:
            if not limits.lenient and type(value) is not type(first):
                return False
            if isinstance(value, torch.Tensor):
                if value.dtype.is_complex or value.numel() > limits.most_elements:
                    return False
                if not limits.lenient and (value.dtype, value.dim()) != (first.dtype, first.dim()):
                    return False
            if isinstance(value, int) and abs(value) > limits.most_number:
                return False
            if isinstance(value, list) and len(value) > 100:
                return False
        return True

    def execute(self, text: str) -> None:
        """Runs a statement on the samples. Raises Misfit."""
        try:
            code = compile(text, "statement", "exec")
        except SyntaxError as error:
            raise Misfit from error
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for names in self.samples:
                before = {**self.globals, **names}
                after = dict(before)
                try:
                    exec(code, after)
                except Exception as error:  # the same
                    raise Misfit from error
                names.update({n: v for n, v in after.items() if before.get(n, GONE) is not v})
                names.pop("__builtins__", None)
        self._held = None

    # ---- names -----------------------------------------------------------------------------------
    def held(self) -> list[Text]:
        """Everything that can be read: names, and parts of objects and tuples."""
        if self._held is None:
            common = [n for n in self.samples[0] if all(n in names for names in self.samples)]
            texts = [Text(name, [names[name] for names in self.samples]) for name in common]
            depth = 2 if self.grammar.parts else 0
            self._held = [part for text in texts for part in _parts(text, depth)]
        return self._held

    def names(self, test: Test) -> list[str]:
        return [one.text for one in self.held() if _all(test, one.values)]

    def values(self, text: str) -> Values:
        return self.evaluate(text)

    # ---- expressions -----------------------------------------------------------------------------
    def expression(self, test: Test, depth: int = 2) -> Text:
        """An expression for whose values the test holds."""
        groups = self.grammar.expressions
        if self.choices.chance(0.97):
            for _ in range(12):
                found = self.choices.part(lambda: self._attempt(groups, depth - 1))
                if found is not None and _all(test, found.values):
                    return found
        return self.leaf(test)

    def _attempt(
        self, groups: Sequence[Sequence[str]], depth: int, given: dict[str, str] | None = None
    ) -> Text | None:
        """A template of one of the groups with its slots filled; None where that does not fit."""
        try:
            return self.filled(self.choices.one_of(self.choices.one_of(groups)), depth, given)
        except Misfit:
            return None

    def leaf(self, test: Test) -> Text:
        """Something held, or a new value where there is none."""
        held = [one for one in self.held() if _all(test, one.values)]
        if held and not self.choices.chance(0.05):
            if len(held) > 6 and not self.grammar.parts and self.choices.chance(0.6):
                held = held[-6:]
            return self.choices.one_of(held)
        constants = [name for name in self.grammar.constants if test(self.globals[name])]
        for text in [self.choices.one_of(constants)] if constants else MADE:
            if _all(test, values := self.values(text)):
                return Text(text, values)
        raise Misfit

    def filled(self, template: str, depth: int, given: dict[str, str] | None = None) -> Text:
        """The template with its slots filled, tried on the samples. Raises Misfit."""
        text = self.fill(template, depth, given)
        if len(text) > self.grammar.most_text:
            raise Misfit
        return Text(text, self.evaluate(text))

    def fill(self, template: str, depth: int, given: dict[str, str] | None = None) -> str:
        """The template with its slots filled. Slots that are the same wherever they occur are in
        `given` afterwards."""
        chosen = {} if given is None else given

        def part(match: re.Match[str]) -> str:
            letter = match[1]
            if letter in chosen:
                return chosen[letter]
            text = self.slot(letter, depth, chosen)
            if letter in SAME or (letter == "t" and self.choices.chance(0.6)):
                chosen[letter] = text
            return text

        return SLOT.sub(part, template)

    def slot(self, letter: str, depth: int, chosen: dict[str, str]) -> str:
        """The text that stands in a slot."""
        draw = self.choices
        if letter in LITERALS and letter not in KINDS:
            rare = letter == "c" and draw.chance(0.05)
            return draw.one_of(templates.RARE_FLOATS if rare else LITERALS[letter])
        if letter in VARIABLES:
            return self.variable(letter)
        match letter:
            case "k":
                return draw.one_of(self.grammar.ints)
            case "n":
                return self.number(depth)
            case "p" | "s":
                return self.simple(letter, depth)
            case "w":
                return self.view(self.weights, templates.VIEWS)
            case "x":
                return draw.one_of([*self.names(is_tensor), *self.attributes * 2] or ["x"])
            case "a":
                return draw.one_of(self.attributes or ("a",))
            case "H" if depth > 0 and draw.chance(0.5):
                found = self._attempt((grammar.VECTORS,), 0)
                if found is not None and _all(is_vector, found.values):
                    return found.text
            case "M":
                return self.maybe()
            case _ if letter in PARTS:
                return PARTS[letter](self, chosen)
            case _ if letter.startswith(":"):
                return self.field(letter[1:], depth)
            case _:
                pass
        if letter in "eftib" and depth + (letter == "e") > 0 and draw.chance(0.45):
            return self.in_brackets(self.expression(KINDS[letter], max(depth, 1)))
        if letter == "any":
            return self.expression(lambda _: True, 2).text
        if letter == "e":
            return self.expression(is_tensor, 2).text
        return self.leaf(KINDS[letter]).text

    def in_brackets(self, text: Text) -> str:
        simple = re.fullmatch(r"[\w.]+(\([^()]*\))?(\[[^\[\]]*\])?", text.text)
        return text.text if simple else f"({text.text})"

    def variable(self, letter: str, other: str = "") -> str:
        """A name; one of the type of another, if there is one. Those of ints are not those that end
        loops and recursion."""
        names = [
            one.text
            for one in self.held()
            if one.text.isidentifier() and _all(KINDS[letter], one.values)
            if letter in "hog" or one.text not in self.outer
            if not other or (one.text != other and same_types(one.values, self.values(other)))
            if letter != "j" or not re.fullmatch(r"k\d+|n", one.text)
        ]
        if letter == "o" and not names:
            return "m"
        if not names:
            raise Misfit
        return self.choices.one_of(names)

    def number(self, depth: int = 0) -> str:
        """An int: a variable, a literal, or what is computed of these."""
        names = self.names(is_int)
        group = self.grammar.numbers if depth > 0 else self.grammar.plain
        if self.choices.chance(self.grammar.computed) or not names:
            for _ in range(4):
                found = self._attempt((group,), depth - 1)
                if found is not None and _all(is_int, found.values):
                    text = found.text
                    return f"({text})" if " " in text and text[0] != "(" else text
        return self.choices.one_of([*names, *names, self.choices.one_of(self.grammar.ints)])

    def simple(self, letter: str, depth: int) -> str:
        """A float or a text."""
        names = self.names(KINDS[letter])
        if names and not self.choices.chance(0.2 + 0.3 * self.grammar.parts):
            return self.choices.one_of(names)
        group = TEXTS if letter == "s" else self.grammar.floats
        if self.grammar.parts and (letter == "s" or depth <= 0):
            group = ("'a'", "'bc'", "''") if letter == "s" else group[:2]
        return self.fill(self.choices.one_of(group), depth - 1)

    def view(self, bases: Sequence[str], group: Sequence[str]) -> str:
        """A view of one of the bases, or itself."""
        if not bases:
            return self.leaf(is_float).text
        name = self.choices.one_of(bases)
        for _ in range(4):
            try:
                found = self.filled(self.choices.one_of(group), 0, {"v": name})
            except Misfit:
                continue
            if is_tensor(found.values[0]) and found.values[0].numel():
                return found.text
        return name

    def condition(self, depth: int = 1) -> str:
        for _ in range(6):
            found = self._attempt(self.grammar.tests, depth)
            if found is None:
                continue
            if depth and self.choices.chance(0.2):
                joined = self.choices.one_of(("and", "or", "and not"))
                return f"{found.text} {joined} ({self.condition(0)})"
            return found.text
        return f"{self.leaf(is_float).text}.sum() > 0"

    def like(self, values: Values) -> Text:
        """An expression of the types of values."""
        lenient, signatures = self.grammar.lenient, set(map(signature, values))

        def fits(found: Values) -> bool:
            return (
                set(map(signature, found)) <= signatures if lenient else same_types(found, values)
            )

        for _ in range(6):
            found = self.choices.part(lambda: self.expression(KINDS_OF.get(type(values[0]), _any)))
            if fits(found.values):
                return found
        same = [one for one in self.held() if fits(one.values)]
        if not same:
            if is_tensor(values[0]) and len(values) == 1:
                text = f"torch.zeros({list(values[0].shape)}, dtype={values[0].dtype})"
                return Text(text, self.evaluate(text))
            raise Misfit
        one = self.choices.one_of(same)
        if is_float(values[0]):
            for _ in range(6):
                found = self.choices.part(lambda: self._attempt((JOINS,), 2, {"v": one.text}))
                if found is not None and fits(found.values):
                    return found
            found = self._attempt((("torch.tanh({v})",),), 0, {"v": one.text})
            return found if found is not None and fits(found.values) else one
        return one

    def maybe(self) -> str:
        """Something that is None for some samples alone; else any object."""
        held = [one.text for one in self.held() if len({v is None for v in one.values}) > 1]
        return self.choices.one_of(held or self.names(KINDS["y"]) or ["None"])

    def field(self, name: str, depth: int) -> str:
        """Something that the field of a class may hold."""
        plain, signatures = self.grammar.samples[name]
        held = self.names(lambda value: signature(value) in signatures)
        if held and not self.choices.chance(0.4):
            return self.choices.one_of(held)
        found = self._attempt(self.grammar.expressions, depth - 1) if depth > 0 else None
        fits = found is not None and {signature(value) for value in found.values} <= signatures
        return found.text if found is not None and fits else plain

    def each(self, forms: Sequence[str] = EACH) -> str:
        """A comprehension over a list."""
        source = self.leaf(KINDS["I" if "e:" in forms[0] else "L"])
        samples = [
            names | {"e": items[-1]}
            for names, items in zip(self.samples, source.values, strict=True)
            if items
        ]
        if not samples:
            raise Misfit
        inner = self.inner(samples)
        form = self.choices.one_of(forms).replace("{list}", source.text)
        test = inner.condition(0) if "{if}" in form else ""
        return form.replace("{item}", inner.expression(_any, 2).text).replace("{if}", test)


def _all(test: Test, values: Values) -> bool:
    return all(value is GONE or test(value) for value in values)


def _any(_: Any) -> bool:
    return True


def _joined_result(scope: Scope, _: dict[str, str]) -> str:
    if not scope.result:
        raise Misfit
    return ", ".join(scope.like(scope.values(name)).text for name in scope.result)


KINDS_OF: dict[type, Test] = {torch.Tensor: is_tensor}
PARTS: dict[str, Callable[[Scope, dict[str, str]], str]] = {
    "test": lambda scope, _: scope.condition(),
    "plain": lambda scope, _: scope.condition(0),
    "each": lambda scope, _: scope.each(),
    "table": lambda scope, _: scope.each(("{e: {item} for e in {list}}",)),
    "result": _joined_result,
    "view": lambda scope, _: scope.view(
        [*scope.names(is_tensor), *scope.weights, *scope.attributes], templates.VIEWS[3:]
    ),
    "call": lambda scope, _: scope.filled(scope.choices.one_of(scope.helpers), 1).text,
    "number": lambda scope, _: scope.fill(scope.choices.one_of(scope.grammar.numbers), 1),
    "like": lambda scope, chosen: (
        scope.like(
            scope.values(next(chosen[letter] for letter in "TvaxjU" if letter in chosen))
        ).text
    ),
    "item": lambda scope, chosen: (
        scope.like([items[0] for items in scope.values(chosen["A"])]).text
    ),
    "same": lambda scope, chosen: scope.variable("v", chosen["v"]),
}
"""Slots that are more than a kind of value."""


def _parts(one: Text, depth: int) -> Iterator[Text]:
    yield one
    first = one.values[0]
    if not depth or len({type(value) for value in one.values}) > 1:
        return
    for name in fields(first):
        values = [fields(value)[name] for value in one.values]
        yield from _parts(Text(f"{one.text}.{name}", values), depth - 1)
    if type(first) is tuple and len({len(value) for value in one.values}) == 1:
        for place in range(len(first)):
            yield from _parts(
                Text(f"{one.text}[{place}]", [value[place] for value in one.values]), depth - 1
            )

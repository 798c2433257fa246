"""Patterns of `match` statements."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.frames import (
    PythonFrame,
)
from stretto.frontends.python.interpreter.heap import (
    ITEMS,
    MISSING,
    DataRef,
    Ref,
)
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import possible

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


_IS_SEQUENCE, _IS_MAPPING = 1 << 5, 1 << 6
"""The flags of classes by which Python tells what a pattern of a sequence or mapping may match."""

_MATCHED_WHOLE = (
    bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple,
)  # fmt: skip
"""Classes whose positional pattern matches the object itself."""


class Patterns:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def match(self, frame: PythonFrame, pattern: ast.pattern, subject: Any) -> Any:
        """Return the truth of a pattern's match. Its names are bound by `bind`, after all of it
        has matched."""
        interpreter = self.interpreter
        asks_for_parts = isinstance(pattern, ast.MatchSequence | ast.MatchMapping | ast.MatchClass)
        if asks_for_parts and isinstance(subject, Either):
            if isinstance(pattern, ast.MatchClass):
                found = self._of_one_class(frame, pattern, subject)
                if found is not NotImplemented:
                    return found

            def on_option(option: Any) -> Any:
                return self.match(frame, pattern, option)

            return interpreter.regions.each_option(subject, on_option)
        match pattern:
            case ast.MatchValue(value=value):
                return self.interpreter.operators.truth(
                    self.interpreter.operators.compare(
                        ast.Eq, subject, interpreter.expressions.value(frame, value)
                    )
                )
            case ast.MatchSingleton(value=value):
                return self.interpreter.operators.same(subject, value)
            case ast.MatchAs(pattern=None, name=name):
                if name is not None:
                    self._capture(frame, name, subject)
                return True
            case ast.MatchAs(pattern=ast.pattern() as inner, name=name):
                found = self.match(frame, inner, subject)
                if found is not False and name is not None:
                    self._capture(frame, name, subject)
                return found
            case ast.MatchOr(patterns=patterns):
                return self._any_of(frame, patterns, subject)
            case ast.MatchSequence(patterns=patterns):
                return self._of_sequence(frame, patterns, subject)
            case ast.MatchMapping():
                return self._of_mapping(frame, pattern, subject)
            case ast.MatchClass():
                return self._of_class(frame, pattern, subject)
            case _:
                raise AssertionError(pattern)

    def _of_one_class(self, frame: PythonFrame, pattern: ast.MatchClass, subject: Either) -> Any:
        """Match a value of which one option is of the pattern's class: a branch on that option's
        flag. NotImplemented if there are none or more, or the class decides itself."""
        kind = self.interpreter.expressions.value(frame, pattern.cls)
        is_instance = self.interpreter.attributes.is_instance
        pairs = possible(subject)
        answers = [is_instance(option, kind) for _, option in pairs]
        if len(pairs) < 2 or answers.count(True) != 1 or answers.count(False) != len(pairs) - 1:
            return NotImplemented
        flag, option = pairs[answers.index(True)]
        return self.interpreter.regions.branch(
            flag, lambda: self.match(frame, pattern, option), lambda: False
        )

    def _capture(self, frame: PythonFrame, name: str, value: Any) -> None:
        self.heap.set(frame.captured, name, value)

    def bind(self, frame: PythonFrame) -> None:
        """Bind the names of the pattern that has matched."""
        for name, value in frame.captured.items():
            self.interpreter.store_name(frame, name, self.interpreter.regions.present(value))

    def _of_sequence(self, frame: PythonFrame, patterns: Any, subject: Any) -> Any:
        kind = self.interpreter.attributes.type_of(subject)
        if not kind.__flags__ & _IS_SEQUENCE:
            return False
        stars = [p for p in patterns if isinstance(p, ast.MatchStar)]
        containers, count = self.interpreter.containers, len(patterns) - len(stars)
        takes_all = len(patterns) == 1 and bool(stars)
        if takes_all and stars[0].name is None:
            return True
        is_known = isinstance(subject, Ref) and isinstance(subject.table[ITEMS], tuple)
        length = None if is_known or takes_all else containers.length(subject)
        if isinstance(subject, DataRef):
            return self._of_data(frame, patterns, subject, length)
        if isinstance(length, int):
            if length < count or (not stars and length > count):
                return False
            if not count and all(star.name is None for star in stars):
                return True
            if stars and stars[0].name is None:  # only the items that are named are taken
                at = patterns.index(stars[0])
                places = [*range(at), *range(length - count + at, length)]
                items = [containers.getitem(subject, place) for place in places]
                others = [p for p in patterns if p is not stars[0]]
                return self._all_of(frame, others, items)
        return self._sequence(frame, patterns, list(self.interpreter.iteration.iterate(subject)))

    def _of_data(self, frame: PythonFrame, patterns: Any, subject: DataRef, length: Any) -> Any:
        """Match a list of an instance: its length decides first."""
        interpreter = self.interpreter
        star = next((n for n, p in enumerate(patterns) if isinstance(p, ast.MatchStar)), None)
        count = len(patterns) - (star is not None)
        if length is None:
            fits: Any = True
        else:
            fits = interpreter.operators.compare(ast.Eq if star is None else ast.GtE, length, count)

        def match() -> Any:
            items = interpreter.containers.unpacked(
                subject, len(patterns), *([] if star is None else [star])
            )
            if star is not None:
                name, middle = patterns[star].name, items.pop(star)
                if name is not None:
                    self._capture(frame, name, middle)
            others = [p for p in patterns if not isinstance(p, ast.MatchStar)]
            return self._all_of(frame, others, items)

        return interpreter.regions.branch(fits, match, lambda: False)

    def _of_mapping(self, frame: PythonFrame, pattern: ast.MatchMapping, subject: Any) -> Any:
        interpreter = self.interpreter
        if not interpreter.attributes.type_of(subject).__flags__ & _IS_MAPPING:
            return False
        known = interpreter.containers.mapping(subject)
        values = (interpreter.expressions.value(frame, key) for key in pattern.keys)
        names = list[Any]()
        for name in map(interpreter.containers.key, values):
            if name in names:
                raise ValueError(f"mapping pattern checks duplicate key ({name!r})")
            names.append(name)
        if not all(name in known for name in names):
            return False
        if pattern.rest is not None:
            left = {k: v for k, v in known.items() if k not in names}
            self._capture(frame, pattern.rest, self.heap.new(dict, left))
        return self._all_of(frame, pattern.patterns, [known[name] for name in names])

    def _of_class(self, frame: PythonFrame, pattern: ast.MatchClass, subject: Any) -> Any:
        attributes, patterns = self.interpreter.attributes, pattern.patterns
        kind = self.interpreter.expressions.value(frame, pattern.cls)
        if not attributes.is_instance(subject, kind):
            return False
        known = getattr(kind, "__match_args__", ())
        if patterns and not isinstance(known, tuple):
            shown = type(known).__name__
            raise TypeError(f"{kind.__name__}.__match_args__ must be a tuple (got {shown})")
        if patterns and issubclass(kind, _MATCHED_WHOLE) and not known:
            return self._all_of(frame, patterns, [subject])
        if len(patterns) > len(known):
            many = "" if len(known) == 1 else "s"
            raise TypeError(
                f"{kind.__name__}() accepts {len(known)} positional sub-pattern{many} "
                f"({len(patterns)} given)"
            )
        fields = [*known[: len(patterns)], *pattern.kwd_attrs]
        for number, name in enumerate(fields):
            if not isinstance(name, str):
                shown = type(name).__name__
                raise TypeError(f"__match_args__ elements must be strings (got {shown})")
            if name in fields[:number]:
                raise TypeError(
                    f"{kind.__name__}() got multiple sub-patterns for attribute {name!r}"
                )
        held = [attributes.lookup(subject, name) for name in fields]
        if any(item is MISSING for item in held):
            return False
        return self._all_of(frame, [*patterns, *pattern.kwd_patterns], held)

    def _any_of(self, frame: PythonFrame, patterns: Any, subject: Any) -> Any:
        found = self.match(frame, patterns[0], subject)
        if found is True or len(patterns) == 1:
            return found
        if found is False:
            return self._any_of(frame, patterns[1:], subject)
        return self.interpreter.regions.branch(
            found, lambda: True, lambda: self._any_of(frame, patterns[1:], subject)
        )

    def _all_of(self, frame: PythonFrame, patterns: Any, subjects: Any) -> Any:
        result: Any = True
        for pattern, subject in zip(patterns, subjects, strict=True):
            found = self.match(frame, pattern, subject)
            if found is False:
                return False
            if found is not True:
                before = result
                result = (
                    found
                    if before is True
                    else self.interpreter.regions.branch(
                        before, lambda found=found: found, lambda: False
                    )
                )
        return result

    def _sequence(self, frame: PythonFrame, patterns: Any, items: list[Any]) -> Any:
        star = next((n for n, p in enumerate(patterns) if isinstance(p, ast.MatchStar)), None)
        if star is None:
            return len(items) == len(patterns) and self._all_of(frame, patterns, items)
        rest = len(patterns) - star - 1
        if len(items) < len(patterns) - 1:
            return False
        middle = items[star : len(items) - rest]
        if patterns[star].name is not None:
            self._capture(frame, patterns[star].name, self.heap.list(middle))
        others = [*patterns[:star], *patterns[star + 1 :]]
        return self._all_of(frame, others, [*items[:star], *items[len(items) - rest :]])

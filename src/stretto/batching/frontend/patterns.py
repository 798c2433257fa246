"""`match` statements, each case a scope that is left if its pattern does not match; and type
narrowing."""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections.abc import Callable
from typing import Any

from stretto.batching.frontend.attributes import attribute
from stretto.batching.frontend.comparisons import compare, equal
from stretto.batching.frontend.dispatch import at, evaluate, execute, executes
from stretto.batching.frontend.frame import Exit, Frame
from stretto.batching.frontend.function_builder import Draft, PathEnds, if_op, scoped
from stretto.batching.frontend.functions import BUILTINS
from stretto.batching.frontend.items import subscript
from stretto.batching.frontend.joins import has_type, is_instance, merge, unpacked
from stretto.batching.frontend.truth import truth
from stretto.batching.frontend.values import (
    ChoiceValue,
    Dynamic,
    SliceValue,
    Static,
    TupleValue,
    Value,
    is_static,
    python_of,
)
from stretto.batching.frontend.walks import listed
from stretto.ir.core import Operand
from stretto.ir.data import LeaveOp
from stretto.ir.ops import IfOp
from stretto.ir.types import (
    DataType,
    ListType,
    RecordType,
    Scalar,
    TupleType,
    alternatives,
    union,
)


@executes(ast.Match)
def _match(frame: Frame, node: ast.Match) -> None:
    subject = evaluate(frame, node.subject)
    if isinstance(subject, ChoiceValue):
        frame.refuse("match of one of several functions or modules", "compare them with `is`")
    name = node.subject.id if isinstance(node.subject, ast.Name) else None
    end = frame.builder.label()
    ends: list[Exit] = []
    outer: Draft = []
    with frame.builder.into(outer):
        try:
            for case in node.cases:
                subject = _Case(frame, case, end, ends, name).evaluate(subject)
            ends.append(Exit(frame.builder.gap(), frame.locals))
        except PathEnds:
            pass
    frame.builder.pend(lambda body: scoped(end, body), outer)
    merge(frame, ends)


class _Case:
    """One case. `misses` are the paths on which its pattern does not match or its guard does not
    hold."""

    def __init__(
        self, frame: Frame, case: ast.match_case, end: int, ends: list[Exit], name: str | None
    ) -> None:
        self.frame = frame
        self.case = case
        self.end = end
        self.ends = ends
        self.name = name
        self.label = frame.builder.label()
        self.misses: list[Exit] = []

    def evaluate(self, subject: Value) -> Value:
        """Evaluate the case; continue on the paths where it does not match, and return the subject
        with the types left there. Raises PathEnds if it always matches."""
        frame = self.frame
        before = dict(frame.locals)
        draft: Draft = []
        with frame.builder.into(draft), contextlib.suppress(PathEnds):
            self._body(subject)
        label = self.label
        frame.builder.pend(lambda body: scoped(label, body), draft)
        for miss in self.misses:
            miss.locals = before
        merge(frame, self.misses)
        return self._rest(subject)

    def _body(self, subject: Value) -> None:
        frame = self.frame
        matched = self.fit(self.case.pattern, subject)
        if self.name is not None and isinstance(matched, Dynamic):
            frame.locals[self.name] = matched
        if self.case.guard is not None:
            self.require(truth(frame, evaluate(frame, self.case.guard)))
        execute(frame, self.case.body)
        self.ends.append(Exit(frame.builder.gap(), frame.locals))
        frame.builder.emit(LeaveOp(self.end))

    def _rest(self, subject: Value) -> Value:
        """Return the subject with the types that remain after a case that only tests a class."""
        pattern = self.case.pattern
        plain = isinstance(pattern, ast.MatchClass) and not pattern.patterns
        if not plain or self.case.guard is not None or not isinstance(subject, Dynamic):
            return subject
        assert isinstance(pattern, ast.MatchClass)
        if any(not _fits_all(part) for part in pattern.kwd_patterns):
            return subject
        found = self._class(pattern)
        kinds = [k for k in alternatives(subject.type) if not is_instance(self.frame, k, found)]
        return self.frame.cast(subject, union(kinds)) if kinds else subject

    # ---- conditions

    def require(self, condition: bool | Operand) -> None:
        """Leave the case if the condition does not hold."""
        frame = self.frame
        if condition is True:
            return
        missing: Draft = []
        with frame.builder.into(missing):
            self.misses.append(Exit(frame.builder.gap(), {}))
            frame.builder.emit(LeaveOp(self.label))
        if condition is False:
            frame.builder.pend(lambda body: body, missing)
            raise PathEnds
        frame.builder.pend(_unless(condition), missing)

    def holds(self, value: Value) -> None:
        self.require(truth(self.frame, value))

    def only(self, subject: Value, wanted: Callable[[DataType], bool]) -> Value:
        """Return the subject as one of the wanted types; leave the case for other types."""
        if not isinstance(subject, Dynamic):
            self.require(wanted(self.frame.type_of(subject)))
            return subject
        kinds = tuple(kind for kind in alternatives(subject.type) if wanted(kind))
        self.holds(has_type(self.frame, subject, kinds))
        return self.frame.cast(subject, union(kinds))

    # ---- patterns

    def fit(self, pattern: ast.pattern, subject: Value) -> Value:
        """Leave the case if the pattern does not match; bind its names. Return the subject with
        its narrowed type."""
        frame = self.frame
        with at(frame, pattern):
            match pattern:
                case ast.MatchAs(inner, name):
                    if inner is not None:
                        subject = self.fit(inner, subject)
                    if name is not None:
                        frame.locals[name] = subject
                case ast.MatchValue(value):
                    self.holds(equal(frame, subject, evaluate(frame, value)))
                case ast.MatchSingleton(value):
                    self.holds(compare(frame, ast.Is(), subject, Static(value)))
                case ast.MatchClass():
                    subject = self._fit_class(pattern, subject)
                case ast.MatchSequence(patterns):
                    self._fit_sequence(patterns, subject)
                case ast.MatchMapping():
                    self._fit_mapping(pattern, subject)
                case ast.MatchOr(patterns):
                    self._fit_one_of(patterns, subject)
                case _:
                    frame.refuse("this kind of pattern is not supported")
        return subject

    def _class(self, pattern: ast.MatchClass) -> type:
        found = evaluate(self.frame, pattern.cls)
        if not isinstance(found, Static) or not isinstance(found.value, type):
            self.frame.refuse("the class of a pattern must be the same for all instances")
        return found.value

    def _fit_class(self, pattern: ast.MatchClass, subject: Value) -> Value:
        frame = self.frame
        python = self._class(pattern)
        if isinstance(subject, Static):
            self.require(isinstance(subject.value, python))
        else:
            subject = self.only(subject, lambda kind: is_instance(frame, kind, python))
        if pattern.patterns and python in (int, float, str, bool, list, tuple, dict):
            self.fit(pattern.patterns[0], subject)
            return subject
        names = getattr(python, "__match_args__", ())
        if len(pattern.patterns) > len(names):
            shown = python.__name__
            frame.refuse(f"{shown}() accepts {len(names)} positional sub-patterns")
        pairs = [
            *zip(names, pattern.patterns, strict=False),
            *zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True),
        ]
        for name, inner in pairs:
            self.fit(inner, attribute(frame, subject, name))
        return subject

    def _fit_sequence(self, patterns: list[ast.pattern], subject: Value) -> None:
        frame = self.frame
        stars = [i for i, part in enumerate(patterns) if isinstance(part, ast.MatchStar)]
        subject = self.only(subject, lambda kind: _is_sequence(frame, kind))
        if isinstance(subject, Dynamic) and isinstance(subject.type, TupleType):
            subject = TupleValue(unpacked(frame, subject, subject.type))
        length = BUILTINS[len](frame, [subject], {})
        wanted = Static(len(patterns) - len(stars))
        op = ast.GtE() if stars else ast.Eq()
        self.holds(compare(frame, op, length, wanted))
        first = stars[0] if stars else len(patterns)
        after = len(patterns) - first - 1
        for number, part in enumerate(patterns[:first]):
            self.fit(part, subscript(frame, subject, Static(number)))
        if not stars:
            return
        star = patterns[first]
        assert isinstance(star, ast.MatchStar)
        if star.name is not None:
            frame.locals[star.name] = self._middle(subject, first, after)
        for number, part in enumerate(patterns[first + 1 :]):
            self.fit(part, subscript(frame, subject, Static(number - after)))

    def _middle(self, subject: Value, first: int, after: int) -> Value:
        frame = self.frame
        if isinstance(subject, TupleValue):
            return listed(frame, list(subject.items[first : len(subject.items) - after]))
        stop = Static(-after) if after else Static(None)
        found = subscript(frame, subject, SliceValue(Static(first), stop, Static(None)))
        return BUILTINS[list](frame, [found], {})

    def _fit_mapping(self, pattern: ast.MatchMapping, subject: Value) -> None:
        frame = self.frame
        if pattern.rest is not None:
            frame.refuse("** in a pattern is not supported")
        keys = [evaluate(frame, key) for key in pattern.keys]
        if not all(map(is_static, keys)):
            frame.refuse("the keys of a pattern must be the same for all instances")
        names = [python_of(key) for key in keys]

        def fits(kind: DataType) -> bool:
            if not isinstance(kind, RecordType):
                return False
            info = frame.evaluation.info(kind)
            return info.kind == "dict" and all(name in info.fields for name in names)

        subject = self.only(subject, fits)
        for key, part in zip(keys, pattern.patterns, strict=True):
            self.fit(part, subscript(frame, subject, key))

    def _fit_one_of(self, patterns: list[ast.pattern], subject: Value) -> None:
        """Match one of several alternatives. Names that they bind are joined."""
        frame = self.frame
        found = frame.builder.label()
        ways: list[Exit] = []
        outer: Draft = []
        with frame.builder.into(outer):
            try:
                for part in patterns:
                    inner = _Case(frame, self.case, found, ways, None)
                    inner.alternative(part, subject)
                self.require(False)
            except PathEnds:
                pass
        frame.builder.pend(lambda body: scoped(found, body), outer)
        merge(frame, ways)

    def alternative(self, pattern: ast.pattern, subject: Value) -> None:
        frame = self.frame
        before = dict(frame.locals)
        draft: Draft = []
        with frame.builder.into(draft):
            try:
                self.fit(pattern, subject)
                self.ends.append(Exit(frame.builder.gap(), frame.locals))
                frame.builder.emit(LeaveOp(self.end))
            except PathEnds:
                pass
        label = self.label
        frame.builder.pend(lambda body: scoped(label, body), draft)
        for miss in self.misses:
            miss.locals = before
        merge(frame, self.misses)


def _unless(condition: Operand) -> Callable[..., tuple[IfOp, ...]]:
    return lambda body: (if_op(condition, (), body),)


def _fits_all(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None


def _is_sequence(frame: Frame, kind: DataType) -> bool:
    if isinstance(kind, RecordType):
        return frame.evaluation.info(kind).kind == "namedtuple"
    return isinstance(kind, ListType | TupleType)


# ---- Narrowing of the types of variables that the condition of a branch tests.


def narrow(frame: Frame, test: ast.expr, holds: bool) -> None:
    """Narrow the types of local variables, given that `test` holds or does not hold."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            narrow(frame, operand, not holds)
        case ast.BoolOp(ast.And(), values) if holds:
            for value in values:
                narrow(frame, value, True)
        case ast.BoolOp(ast.Or(), values) if not holds:
            for value in values:
                narrow(frame, value, False)
        case ast.Name(name) if holds:
            _keep(frame, name, lambda kind: kind is not Scalar.NONE)
        case ast.NamedExpr(ast.Name(name), _) if holds:
            _keep(frame, name, lambda kind: kind is not Scalar.NONE)
        case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]):
            wanted = holds == isinstance(op, ast.Is)
            _keep(frame, name, lambda kind: (kind is Scalar.NONE) == wanted)
        case ast.Compare(
            ast.NamedExpr(ast.Name(name), _),
            [ast.Is() | ast.IsNot() as op],
            [ast.Constant(None)],
        ):
            wanted = holds == isinstance(op, ast.Is)
            _keep(frame, name, lambda kind: (kind is Scalar.NONE) == wanted)
        case ast.Call(ast.Name("isinstance"), [ast.Name(name), classes], []):
            found = _static_classes(frame, classes)
            if found is not None:
                _keep(frame, name, lambda kind: (is_instance(frame, kind, found) is True) == holds)
        case _:
            pass


def _static_classes(frame: Frame, node: ast.expr) -> Any:
    """Return the classes in a call of `isinstance`, if they are given by names and attributes;
    else None."""
    match node:
        case ast.Name(name):
            value = frame.globals.get(name, frame.free.get(name))
            if value is None:
                value = getattr(builtins, name, None)
            return value if isinstance(value, type) and name not in frame.locals else None
        case ast.Attribute(owner, name):
            found = _static_owner(frame, owner)
            value = getattr(found, name, None)
            return value if isinstance(value, type) else None
        case ast.Tuple(elts):
            parts = [_static_classes(frame, part) for part in elts]
            return None if any(part is None for part in parts) else tuple(parts)
        case _:
            return None


def _static_owner(frame: Frame, node: ast.expr) -> Any:
    match node:
        case ast.Name(name) if name not in frame.locals:
            return frame.globals.get(name)
        case ast.Attribute(owner, name):
            return getattr(_static_owner(frame, owner), name, None)
        case _:
            return None


def _keep(frame: Frame, name: str, wanted: Callable[[DataType], bool]) -> None:
    value = frame.locals.get(name)
    if not isinstance(value, Dynamic):
        return
    kinds = list(alternatives(value.type))
    kept = [kind for kind in kinds if wanted(kind)]
    if kept and len(kept) < len(kinds):
        frame.locals[name] = frame.cast(value, union(kept))

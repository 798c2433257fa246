"""`match` statements as `if` statements, which compare the subject as Python does.

    match x:                        __stretto_subject_0 = x
        case 0 | 1:                 if __stretto_subject_0 == 0 or __stretto_subject_0 == 1:
            f()                         f()
        case [a, _] if a > 2:       else:
            g(a)                        __stretto_found_0 = False
        case _:                         if is_sequence(__stretto_subject_0) and ... == 2:
            h()                             a = __stretto_subject_0[0]
                                            __stretto_found_0 = not not a > 2
                                        if __stretto_found_0: g(a)
                                        else: h()

`calls/matching.py` has what the tests call.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from stretto.frontends.python.source.syntax import STAGING, assign, at, constant, name

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class MatchLowering(ast.NodeTransformer):
    """The statements of one function; nested ones are left as they are."""

    def __init__(self) -> None:
        self._count = 0

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        self.generic_visit(node)
        subject = self._name("subject")
        first = at(node.subject, assign(subject, node.subject))
        return [first, *self._cases(name(subject), node.cases)]

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"__stretto_{kind}_{self._count - 1}"

    def _cases(self, subject: ast.expr, cases: list[ast.match_case]) -> list[ast.stmt]:
        if not cases:
            return []
        (case, *others) = cases
        pattern, orelse = case.pattern, self._cases(subject, others)
        tests = _tests(pattern, subject)
        binding: list[ast.stmt] = [
            at(pattern, assign(item, copy.deepcopy(value)))
            for item, value in _bindings(pattern, subject).items()
        ]
        if case.guard is None:
            return _if(pattern, tests, [*binding, *case.body], orelse)
        found = self._name("found")
        holds = ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), case.guard))
        guarded = [*binding, at(case.guard, assign(found, holds))]
        return [
            at(pattern, assign(found, constant(False))),
            *_if(pattern, tests, guarded, []),
            at(pattern, ast.If(name(found), case.body, orelse)),
        ]


def _if(
    like: ast.AST, tests: list[ast.expr], body: list[ast.stmt], orelse: list[ast.stmt]
) -> list[ast.stmt]:
    return [at(like, ast.If(_all(tests), body, orelse))] if tests else body


def _all(tests: list[ast.expr]) -> ast.expr:
    if len(tests) < 2:
        return tests[0] if tests else constant(True)
    return ast.BoolOp(ast.And(), tests)


def _tests(pattern: ast.pattern, subject: ast.expr) -> list[ast.expr]:
    """The conditions under which a pattern fits, in their order."""
    value = copy.deepcopy(subject)
    match pattern:
        case ast.MatchValue(value=other):
            return [ast.Compare(value, [ast.Eq()], [other])]
        case ast.MatchSingleton(value=other):
            return [ast.Compare(value, [ast.Is()], [constant(other)])]
        case ast.MatchAs(pattern=inner):
            return [] if inner is None else _tests(inner, subject)
        case ast.MatchOr(patterns=patterns):
            return [ast.BoolOp(ast.Or(), [_all(_tests(item, subject)) for item in patterns])]
        case ast.MatchSequence(patterns=patterns):
            stars = sum(isinstance(item, ast.MatchStar) for item in patterns)
            order, least = (ast.GtE() if stars else ast.Eq()), len(patterns) - stars
            length = _helper("length", copy.deepcopy(subject))
            own = [_helper("is_sequence", value)]
            if least or not stars:
                own.append(ast.Compare(length, [order], [constant(least)]))
        case ast.MatchMapping(keys=keys):
            own = [_helper("is_mapping", value)]
            own += [ast.Compare(key, [ast.In()], [copy.deepcopy(subject)]) for key in keys]
        case ast.MatchClass(cls=kind, patterns=patterns, kwd_attrs=attributes):
            own = [_helper("is_instance", value, kind, constant(len(patterns)))]
            places = [*range(len(patterns)), *attributes]
            own += [
                _helper("has_part", copy.deepcopy(subject), copy.deepcopy(kind), constant(place))
                for place in places
            ]
        case ast.MatchStar():
            return []
        case _:
            raise AssertionError(pattern)
    return [*own, *(test for item, part in _parts(pattern, subject) for test in _tests(item, part))]


def _bindings(pattern: ast.pattern, subject: ast.expr) -> dict[str, ast.expr]:
    """The variables that a pattern that fits binds, and their values."""
    found = dict[str, ast.expr]()
    match pattern:
        case ast.MatchAs(pattern=inner, name=variable):
            found |= {} if inner is None else _bindings(inner, subject)
            found |= {} if variable is None else {variable: subject}
        case ast.MatchStar(name=variable):
            found |= {} if variable is None else {variable: subject}
        case ast.MatchOr(patterns=patterns):
            return _bindings_of_one(patterns, subject)
        case _:
            for item, part in _parts(pattern, subject):
                found |= _bindings(item, part)
    if isinstance(pattern, ast.MatchMapping) and pattern.rest is not None:
        found[pattern.rest] = _helper("rest", subject, *pattern.keys)
    return found


def _bindings_of_one(patterns: list[ast.pattern], subject: ast.expr) -> dict[str, ast.expr]:
    """The variables of the first pattern that fits. All patterns bind the same ones."""
    first, *others = patterns
    found = _bindings(first, subject)
    if not others or not found:
        return found
    rest = _bindings_of_one(others, subject)
    return {
        variable: ast.IfExp(_all(_tests(first, subject)), value, rest[variable])
        for variable, value in found.items()
    }


def _parts(pattern: ast.pattern, subject: ast.expr) -> list[tuple[ast.pattern, ast.expr]]:
    """The patterns inside of a pattern, and what they are compared with."""
    match pattern:
        case ast.MatchSequence(patterns=patterns):
            stars = [n for n, item in enumerate(patterns) if isinstance(item, ast.MatchStar)]
            star = stars[0] if stars else len(patterns)
            behind = len(patterns) - star - 1
            found = list[tuple[ast.pattern, ast.expr]]()
            for place, item in enumerate(patterns):
                if place == star:
                    found.append(
                        (item, _helper("between", subject, constant(star), constant(behind)))
                    )
                else:
                    index = place if place < star else place - len(patterns)
                    found.append((item, ast.Subscript(subject, constant(index), ast.Load())))
            return found
        case ast.MatchMapping(keys=keys, patterns=patterns):
            values = [ast.Subscript(subject, key, ast.Load()) for key in keys]
            return list(zip(patterns, values, strict=True))
        case ast.MatchClass(cls=kind, patterns=patterns, kwd_patterns=named, kwd_attrs=attributes):
            every = [*enumerate(patterns), *zip(attributes, named, strict=True)]
            return [
                (item, _helper("part", subject, kind, constant(place))) for place, item in every
            ]
        case _:
            return []


def _helper(function: str, *arguments: ast.expr) -> ast.expr:
    """A call of a function of `calls/matching.py`."""
    module = ast.Attribute(name(STAGING), "matching", ast.Load())
    given = [copy.deepcopy(item) for item in arguments]
    return ast.Call(ast.Attribute(module, function, ast.Load()), given, [])

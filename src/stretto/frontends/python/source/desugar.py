"""Rewriting of comprehensions, stores among several targets, `match` and generators to simpler
code."""

from __future__ import annotations

import ast
import copy
from typing import Any

from stretto.frontends.python.source.syntax_trees import (
    STAGING,
    assign,
    at,
    constant,
    definition,
    name,
    own_nodes,
)

# ---- Comprehensions as functions, whose loops and conditions are staged like those of statements.
#
#     [g(x) for x in rows if x.sum() > 0]      made = []
#                                              for x in items:
#                                                  if x.sum() > 0:
#                                                      made.append(g(x))
#                                              return made
#
# A generator expression becomes a generator function likewise. The first iterable, which Python
# evaluates outside of the comprehension, is the parameter.


ITEMS = "__stretto_items"
_MADE = "__stretto_made"

Comprehension = ast.ListComp | ast.GeneratorExp


def is_plain(node: Comprehension) -> bool:
    """True if the comprehension can become a function: it binds no variable of the enclosing
    function, and uses no `super`, `locals` or `await`, which depend on it."""
    return not any(item.is_async for item in node.generators) and not any(
        isinstance(item, ast.NamedExpr | ast.Await)
        or (isinstance(item, ast.Name) and item.id in ("super", "locals"))
        for item in ast.walk(node)
    )


def has_control_flow(node: Comprehension) -> bool:
    """True if it, or a comprehension inside, has conditions or more than one loop."""
    inside = [item for item in ast.walk(node) if isinstance(item, Comprehension)]
    return any(len(item.generators) > 1 or bool(item.generators[0].ifs) for item in inside)


def listing(node: ast.ListComp, identifier: str) -> ast.FunctionDef:
    """Return the function that builds the list. `node` is not changed."""
    value = copy.deepcopy(node.elt)
    append = ast.Attribute(name(_MADE), "append", ast.Load())
    collect = at(value, ast.Expr(ast.Call(append, [value], [])))
    empty = assign(_MADE, ast.List([], ast.Load()))
    body = [empty, _loops(node, collect), ast.Return(name(_MADE))]
    return ast.fix_missing_locations(at(node, definition(identifier, [ITEMS], body)))


def yielding(node: ast.GeneratorExp, identifier: str) -> ast.FunctionDef:
    """Return the generator function that yields the values. `node` is not changed."""
    value = copy.deepcopy(node.elt)
    give = at(value, ast.Expr(ast.Yield(value)))
    body = [_loops(node, give)]
    return ast.fix_missing_locations(at(node, definition(identifier, [ITEMS], body)))


def _loops(node: Comprehension, inner: ast.stmt) -> ast.stmt:
    parts: list[Any] = copy.deepcopy(node.generators)
    parts[0].iter = at(parts[0].iter, name(ITEMS))
    for part in reversed(parts):
        for test in reversed(part.ifs):
            inner = at(test, ast.If(test, [inner], []))
        inner = at(part.target, ast.For(part.target, part.iter, [inner], []))
    return inner


# ---- Statements that store into attributes or items among other targets, as single assignments.
#
#     x[0], self.h = y                    __stretto_target_0, __stretto_target_1 = y
#                                         x[0] = __stretto_target_0
#                                         self.h = __stretto_target_1
#
# `control_flow` then turns each such store into a call of `staging`. The order is Python's: unpack
# first, then store from left to right.


_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class TargetLowering(ast.NodeTransformer):
    """Splits the assignments of one function; nested functions are left unchanged."""

    def __init__(self) -> None:
        self._count = 0

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if not _stores_apart(node.targets):
            return node
        value = self._new_name()
        first = assign(value, node.value)
        stores = [s for target in node.targets for s in self._from(value, target, node)]
        return [at(node, first), *stores]

    def visit_For(self, node: ast.For) -> ast.stmt:
        self.generic_visit(node)
        if _has_place(node.target):
            item = self._new_name()
            node.body = [*self._from(item, node.target, node.target), *node.body]
            node.target = at(node.target, ast.Name(item, ast.Store()))
        return node

    def visit_With(self, node: ast.With) -> ast.stmt:
        self.generic_visit(node)
        for item in reversed(node.items):
            if item.optional_vars is not None and _has_place(item.optional_vars):
                target, value = item.optional_vars, self._new_name()
                node.body = [*self._from(value, target, target), *node.body]
                item.optional_vars = at(target, ast.Name(value, ast.Store()))
        return node

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        return [at(node, ast.Delete([target])) for target in _leaves(ast.Tuple(node.targets))]

    def _from(self, value: str, target: ast.expr, like: ast.AST) -> list[ast.stmt]:
        """Return the statements that assign one of our variables to a target."""
        if not isinstance(target, ast.Tuple | ast.List) or not _has_place(target):
            return [at(like, ast.Assign([target], name(value)))]
        stores = list[ast.stmt]()
        names = self._named(target, stores, like)
        return [at(like, ast.Assign([names], name(value))), *stores]

    def _named(self, target: ast.expr, stores: list[ast.stmt], like: ast.AST) -> ast.expr:
        """Return the target with one of our variables in each place; append the stores of these to
        `stores`."""
        match target:
            case ast.Tuple() | ast.List():
                items = [self._named(item, stores, like) for item in target.elts]
                return ast.Tuple(items, ast.Store())
            case ast.Starred():
                return ast.Starred(self._named(target.value, stores, like), ast.Store())
            case _:
                value = self._new_name()
                stores.extend(self._from(value, target, like))
                return ast.Name(value, ast.Store())

    def _new_name(self) -> str:
        self._count += 1
        return f"__stretto_target_{self._count - 1}"


def _stores_apart(targets: list[ast.expr]) -> bool:
    """True if a target among others, or in a tuple, is an attribute or item."""
    if len(targets) == 1 and isinstance(targets[0], ast.Attribute | ast.Subscript):
        return False
    return any(map(_has_place, targets))


def _has_place(target: ast.expr) -> bool:
    return any(isinstance(item, ast.Attribute | ast.Subscript) for item in _leaves(target))


def _leaves(target: ast.expr) -> list[ast.expr]:
    match target:
        case ast.Tuple() | ast.List():
            return [leaf for item in target.elts for leaf in _leaves(item)]
        case ast.Starred():
            return _leaves(target.value)
        case _:
            return [target]


# ---- `match` statements as `if` statements, which compare the subject as Python does.
#
#     match x:                        __stretto_subject_0 = x
#         case 0 | 1:                 if __stretto_subject_0 == 0 or __stretto_subject_0 == 1:
#             f()                         f()
#         case [a, _] if a > 2:       else:
#             g(a)                        __stretto_found_0 = False
#         case _:                         if is_sequence(__stretto_subject_0) and ... == 2:
#             h()                             a = __stretto_subject_0[0]
#                                             __stretto_found_0 = not not a > 2
#                                         if __stretto_found_0: g(a)
#                                         else: h()
#
# The functions that the tests call are in `calls/statements.py`.


class MatchLowering(ast.NodeTransformer):
    """Lowers the `match` statements of one function; nested functions are left unchanged."""

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
    """Return the conditions under which a pattern matches, in order of evaluation."""
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
    """Return the variables that a matching pattern binds, with their values."""
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
    """Return the variables of the first pattern that matches. All patterns bind the same ones."""
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
    """Return the subpatterns of a pattern, each with the part of the subject it is
    compared with."""
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
    """Return a call of a function of `calls/statements.py`."""
    module = ast.Attribute(name(STAGING), "statements", ast.Load())
    given = [copy.deepcopy(item) for item in arguments]
    return ast.Call(ast.Attribute(module, function, ast.Load()), given, [])


# ---- Generator functions as functions that pass each value to their consumer, and the checks which
# form a generator can have.
#
#     for row in rows:                 for row in rows:
#         yield f(row)                     if yield f(row): return
#
# The remaining `yield` is an expression: it runs the consumer's loop body, and is true if that has
# left its loop. The body of a `for` over a generator thus runs in place of the yields, inside of
# the branches and loops of the generator.


_YIELDS = (ast.Yield, ast.YieldFrom)


def is_generator(node: ast.FunctionDef) -> bool:
    return any(isinstance(item, _YIELDS) for item in own_nodes(node))


def can_be_lowered(node: ast.FunctionDef) -> bool:
    """True if each yield is a statement, outside of handlers that would catch exceptions of its
    consumer, and no decorator needs the generator itself."""
    statements = {id(item) for one in own_nodes(node) for item in _yielding(one)}
    every = [item for item in own_nodes(node) if isinstance(item, _YIELDS)]
    tries = [item for item in own_nodes(node) if isinstance(item, ast.Try) and item.handlers]
    caught = {id(item) for one in tries for item in ast.walk(one)}
    return not node.decorator_list and all(
        id(item) in statements and id(item) not in caught for item in every
    )


def can_be_pulled(node: ast.FunctionDef) -> bool:
    """True if no yield is in a `try` with handlers, where a check that fails at run time would
    have to continue, and no decorator needs the generator itself."""
    tries = [item for item in own_nodes(node) if isinstance(item, ast.Try) and item.handlers]
    return not node.decorator_list and not any(map(has_yield, tries))


def has_yield(node: ast.AST) -> bool:
    """True if a statement or expression yields in the function that it is a part of."""
    return isinstance(node, _YIELDS) or any(isinstance(item, _YIELDS) for item in own_nodes(node))


def branches(node: ast.FunctionDef) -> bool:
    """True if conditions decide what is yielded, and nothing is sent to the generator."""
    every = own_nodes(node)
    unused = {id(item.value) for item in every if isinstance(item, ast.Expr)}
    used = [item for item in every if isinstance(item, _YIELDS) and id(item) not in unused]
    tests = [item for item in every if isinstance(item, ast.If | ast.While)]
    return not used and any(
        not isinstance(item.test, ast.Constant) and _decides(item) for item in tests
    )


def _decides(node: ast.If | ast.While) -> bool:
    return any(isinstance(item, (*_YIELDS, ast.Return, ast.Break)) for item in own_nodes(node))


def _yielding(node: ast.AST) -> list[ast.AST]:
    """Return the yield that a statement consists of, as a list; empty for other statements."""
    match node:
        case ast.Expr(value=ast.Yield() | ast.YieldFrom() as found):
            return [found]
        case ast.Assign(value=ast.Yield() as found):
            return [found]
        case _:
            return []


class GeneratorLowering(ast.NodeTransformer):
    """Lowers the yields of one generator function; nested functions are left unchanged."""

    def __init__(self) -> None:
        self._count = 0

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Yield() as given:
                return _handed_over(given, node)
            case ast.YieldFrom(value=items):
                item = f"__stretto_yield_{self._count}"
                self._count += 1
                each = _handed_over(at(node, ast.Yield(name(item))), node)
                target = ast.Name(item, ast.Store())
                return at(node, ast.For(target, items, [each], []))
            case _:
                return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if not isinstance(node.value, ast.Yield):
            return node
        handed = _handed_over(node.value, node)
        node.value = at(node, ast.Constant(None))
        return [handed, node]

    def visit_Return(self, node: ast.Return) -> ast.stmt | list[ast.stmt]:
        """Compute a generator's return value without returning it: no consumer reads it."""
        if node.value is None:
            return node
        value = at(node, assign("__stretto_unseen", node.value))
        return [value, at(node, ast.Return(None))]


def _handed_over(given: ast.Yield, like: ast.AST) -> ast.stmt:
    given.value = given.value or at(like, ast.Constant(None))
    return at(like, ast.If(given, [at(like, ast.Return(None))], []))

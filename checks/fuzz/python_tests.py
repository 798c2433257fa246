"""The part "python-tests": the running interpreter's own tests of the language, inside functions.

A test method is a program twice over. As it is, it runs while a function is captured. With traced
numbers, some of its literals become numbers that follow from a tensor, `3` becomes `(3 + zero)`
with `zero = int(x.sum())`, so that its control flow, containers and classes work on these; such a
program may have only some of the assertions. The tests are read where Python is installed.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import sys
import tempfile
import textwrap
import unittest
from collections.abc import Callable, Generator, Iterator
from contextlib import chdir, closing, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from checks.fuzz import checks
from checks.fuzz.machines import ORACLES
from checks.fuzz.outcome import Outcome
from checks.fuzz.source import load
from checks.fuzz.trial import Made, Note, Program, try_program
from checks.fuzz.workers import Job
from stretto.frontends.python.tracing.locations import is_user_file

MODULES = (
    *("array", "augassign", "binop", "bisect", "bool", "call", "class", "collections", "compare"),
    *("complex", "contains", "context", "contextlib", "copy", "dataclasses", "decorators"),
    *("defaultdict", "deque", "descr", "dict", "dictcomps", "dictviews", "dynamic"),
    *("dynamicclassattribute", "enum", "enumerate", "exceptions", "extcall", "float", "format"),
    *("fractions", "fstring", "funcattrs", "functools", "generators", "generator_stop", "genexps"),
    *("genericclass", "grammar", "hash", "heapq", "index", "int", "int_literal", "isinstance"),
    *("iter", "itertools", "keywordonlyarg", "lambda", "list", "listcomps", "long", "math"),
    *("memoryview", "metaclass", "named_expressions", "numeric_tower", "opcodes", "operator"),
    *("ordered_dict", "patma", "positional_only_arg", "pow", "property", "raise", "range"),
    *("reprlib", "richcmp", "scope", "set", "setcomps", "slice", "sort", "statistics"),
    *("string_literals", "strtod", "structmatch", "subclassinit", "super", "textwrap", "tuple"),
    *("types", "unary", "unpack", "unpack_ex", "userdict", "userlist", "userstring", "weakref"),
    *("weakset", "with", "yield_from"),
)
"""The tests of the language and of the library's modules of plain Python, as `test.test_NAME`."""

ROUNDS = 4
"""Programs of a method: as it is, with traced numbers, and twice with some of its assertions."""
ZERO = "traced_zero_"
MOST_ASSERTIONS = 3
MOST_REPLACED = 5
BIGGEST = 1 << 40
BEYOND = "an int is beyond 64 bits"
"""Begins the error of a run for what Python computes and a program does not."""
MOST_LINES = 10_000
"""Lines of a test that it may run: loops over plain numbers are unrolled in a program."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program made of a method of a test."""

    module: str
    owner: str
    method: str
    round: int

    def __str__(self) -> str:
        return f"{self.module}.{self.owner}.{self.method} {self.round}"


NONE = Case("test", "", "", 0)
"""Tells that there are no tests."""


def test_file(module: str) -> Path | None:
    """The file of a module of tests; None where this Python came without it."""
    if importlib.util.find_spec("test") is None:
        return None
    found = importlib.util.find_spec(f"test.{module}")
    return Path(found.origin) if found is not None and found.origin is not None else None


def python_test_cases() -> list[Case]:
    """All programs of the modules that there are; a single one, which is skipped, without any."""
    return [
        Case(module, owner, method, number)
        for module in (f"test_{name}" for name in MODULES)
        for owner, method in dict.fromkeys(
            (owner.name, method.name) for owner, method in test_methods(module)
        )
        for number in range(ROUNDS)
    ] or [NONE]


def test_methods(module: str) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for owner in parsed(module)[1].body:
        for method in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name.startswith("test"):
                assert isinstance(owner, ast.ClassDef)
                yield owner, method


@cache
def parsed(module: str) -> tuple[str, ast.Module]:
    path = test_file(module)
    text = path.read_text(encoding="utf-8") if path is not None else ""
    return text, ast.parse(text)


def _method(case: Case) -> ast.FunctionDef:
    """The method of that name, of which the last one counts."""
    return [
        method
        for owner, method in test_methods(case.module)
        if (owner.name, method.name) == (case.owner, case.method)
    ][-1]


def method_text(case: Case) -> str:
    """The method as the program of this round has it."""
    method = ast.parse(ast.unparse(_method(case))).body[0]
    assert isinstance(method, ast.FunctionDef)
    if case.round:
        draw = random.Random(str(case))
        if case.round > 1:
            method.body = _with_some_assertions(method.body, draw)
        _trace_numbers(method, draw)
    return ast.unparse(ast.fix_missing_locations(method))


def _with_some_assertions(body: list[ast.stmt], draw: random.Random) -> list[ast.stmt]:
    """The statements without most of the assertions."""
    places = [place for place, statement in enumerate(body) if _is_assertion(statement)]
    kept = draw.sample(places, min(len(places), MOST_ASSERTIONS))
    gone = set(places).difference(kept)
    return [statement for place, statement in enumerate(body) if place not in gone]


def _is_assertion(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))):
            return name.startswith("assert")
        case ast.With(items=[ast.withitem(ast.Call(func=ast.Attribute(attr=name)))]):
            return name.startswith("assert")
        case _:
            return False


def _trace_numbers(method: ast.FunctionDef, draw: random.Random) -> None:
    """Puts numbers that follow from a parameter in the place of some literals."""
    finder = _Literals()
    for statement in method.body:
        finder.visit(statement)
    most = min(len(finder.found), MOST_REPLACED)
    chosen = draw.sample(finder.found, draw.randint(min(1, most), most))
    replacing = _Replacing({id(literal) for literal in chosen})
    method.body = [replacing.visit(statement) for statement in method.body]
    method.args.args.append(ast.arg(ZERO))


class _Literals(ast.NodeVisitor):
    """Finds the numbers that an expression may replace."""

    def __init__(self) -> None:
        self.found: list[ast.Constant] = []

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, int | float) and abs(node.value) < BIGGEST:
            self.found.append(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        pass

    def visit_MatchSingleton(self, node: ast.MatchSingleton) -> None:
        pass

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        pass


class _Replacing(ast.NodeTransformer):
    """Puts expressions in the place of chosen literals."""

    def __init__(self, chosen: set[int]) -> None:
        self.chosen = chosen

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if id(node) not in self.chosen:
            return node
        if isinstance(node.value, bool):
            return ast.parse(f"({ZERO} {'==' if node.value else '!='} 0)", mode="eval").body
        return ast.parse(f"({node.value!r} + {ZERO})", mode="eval").body


def module_text(case: Case) -> str:
    """The module of the test with the method of this round."""
    text, _ = parsed(case.module)
    if case.round == 0:
        return text
    lines = text.split("\n")
    method = _method(case)
    first = min(one.lineno for one in (method, *method.decorator_list)) - 1
    indented = textwrap.indent(method_text(case), " " * method.col_offset)
    lines[first : method.end_lineno] = [indented]
    return "\n".join(lines)


def make(case: Case, folder: Path) -> Made:
    """The program. Each call runs the test's own preparation first."""
    checks_module = load(Path(checks.__file__).read_text(), folder)
    module = load(module_text(case), folder)
    bases = (checks_module.PlainChecks, test_class(module, case.owner))
    kind = type(case.owner, bases, {"__module__": module.__name__})
    test = kind(case.method)

    def calls() -> Generator[tuple[tuple[Any, ...], dict[str, Any]]]:
        for size, value in ((2, 0.0), (2, 0.5), (2, 0.0), (3, 0.0)):
            test.setUp()
            try:
                yield (torch.full((size,), value),), {}
            finally:
                with suppress(Exception):  # a test that has failed may lack what it takes down
                    test.tearDown()
                    test.doCleanups()

    function = checks_module.calling(getattr(test, case.method), case.round > 0)
    return Made(function, calls(), {"test": test})


def test_class(module: ModuleType, owner: str) -> type:
    """The class itself, or the first test that has it as a base."""
    found = getattr(module, owner)
    tests = (
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, found) and issubclass(one, unittest.TestCase)
    )
    return found if issubclass(found, unittest.TestCase) else next(tests, found)


class _TooLongError(BaseException):
    """Ends a test that runs many lines."""


def unfit(call: Callable[[], object], most_lines: int = MOST_LINES) -> str:
    """The reason why a program is not tried: its call in eager raises or takes long."""
    lines = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not is_user_file(frame.f_code.co_filename):
            return None
        lines += event == "line"
        if lines > most_lines:
            raise _TooLongError
        return count

    before = sys.gettrace()
    try:
        with redirect_stdout(StringIO()):
            sys.settrace(count)
            call()
    except _TooLongError:
        return "eager runs many lines"
    except (Exception, SystemExit) as error:  # a test may raise anything
        return f"eager raises {type(error).__name__}"
    finally:
        sys.settrace(before)
    return "eager runs many lines" if lines > most_lines else ""


def _unfit(program: Program, folder: Path) -> str:
    try:
        made = program.make(folder)
        assert isinstance(made.calls, Generator)
        with closing(made.calls):
            args, kwargs = next(made.calls)
            return unfit(lambda: made.function(*args, **kwargs))
    except (Exception, SystemExit) as error:
        return f"eager raises {type(error).__name__}"


def python_tests(cases: list[Case], machines: tuple[str, ...], seconds: float) -> Job[Case]:
    """Each program with zeros, numbers that are not zero, zeros again, and another size."""

    def run(case: Case, note: Note) -> Outcome:
        if case == NONE:
            return Outcome(str(case), "skipped", reason="this Python came without its tests")
        program = Program(
            str(case), lambda folder: make(case, folder), 0, machines or ORACLES, goes_on=True
        )
        note("eager: alone")
        with tempfile.TemporaryDirectory(prefix="stretto-fuzz-") as name, chdir(name):
            reason = _unfit(program, Path(name))
            if reason:
                return Outcome(str(case), "skipped", reason=reason)
            outcome = try_program(program, note)
            if BEYOND in outcome.detail:
                outcome = replace(outcome, verdict="refused", reason=BEYOND)
        return replace(outcome, source="" if outcome.verdict == "equal" else method_text(case))

    return Job(cases, run, str, method_text, seconds)

"""Methods of the running Python's own tests as captured programs, each with what becomes of it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import chdir, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch

import stretto
from checks.fuzz import checks
from checks.fuzz.outcome import refusal_reason
from checks.fuzz.python_tests import parsed, test_class, test_methods, unfit
from checks.fuzz.source import load
from stretto.errors import CaptureError

MOST_LINES = 2000
"""Lines of Python that a method may run."""
LEFT_OUT = {
    "memory and its addresses": "gc getrefcount getsizeof id weakref __del__ cpython_only support",
    "another process or thread": "subprocess threading script_helper assert_python_ok",
    "pickles": "pickle dumps loads copyreg __reduce__ __reduce_ex__",
    "frames and lines": (
        "settrace tb_frame tb_next f_back f_lineno gi_frame gi_code __traceback__ traceback "
        "lineno_after_raise"
    ),
    "limits of Python": ("getrecursionlimit setrecursionlimit recursion RecursionError bigmemtest"),
    "programs as texts": "exec eval compile dedent",
}
"""What methods use that are not tried, by the reason: names in their text."""
_NAMES = {name: reason for reason, names in LEFT_OUT.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class MethodOutcome:
    """right: as in Python. reason: of a refusal, or the error that Python does not raise."""

    name: str
    verdict: Literal["right", "refused", "wrong", "left out"]
    reason: str = ""


def outcomes(name: str, folder: Path, without: Collection[str] = ()) -> Iterator[MethodOutcome]:
    """Yield what becomes of each method of the module `test.test_NAME`. without: names of methods
    that are not tried."""
    text, _ = parsed(f"test_{name}")
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = load(Path(checks.__file__).read_text(), folder)
        module = load(text, folder)
        sys.modules[module.__name__] = module  # its classes are looked up there
        try:
            for owner, method in test_methods(f"test_{name}"):
                shown = f"{name}.{owner.name}.{method.name}"
                if shown not in without:
                    bases = (plain.PlainChecks, test_class(module, owner.name))
                    kind = type(owner.name, bases, {"__module__": module.__name__})
                    reason = left_out(method)
                    yield (
                        MethodOutcome(shown, "left out", reason)
                        if reason
                        else _outcome(shown, kind, method.name, plain)
                    )
        finally:
            del sys.modules[module.__name__]


def left_out(method: ast.FunctionDef) -> str:
    """Return the reason why a method is not tried; an empty text if it is."""
    for node in ast.walk(method):
        named: dict[type, str] = {
            ast.Name: "id",
            ast.Attribute: "attr",
            ast.FunctionDef: "name",
            ast.alias: "name",
        }
        found = getattr(node, named.get(type(node), ""), "")
        if found in _NAMES:
            return _NAMES[found]
    return ""


def _outcome(shown: str, kind: Any, method: str, plain: Any) -> MethodOutcome:
    def run(compiled: bool) -> None:
        test = kind(method)
        test.setUp()
        try:
            function: Any = plain.calling(getattr(test, method), False)
            if compiled:
                function = stretto.compile(function, backend="interpreter")
            function(torch.ones(2))
        finally:
            with suppress(Exception):  # a test that has failed may lack what it takes down
                test.tearDown()
                test.doCleanups()

    start = getattr(kind, "setUpClass", None)
    if start is None:
        return MethodOutcome(shown, "left out", "no test has this method")
    start()
    reason = unfit(lambda: run(False), MOST_LINES)
    if reason:
        return MethodOutcome(shown, "left out", reason)
    try:
        with redirect_stdout(StringIO()):
            run(True)
    except CaptureError as error:
        return MethodOutcome(shown, "refused", refusal_reason(error))
    except (Exception, SystemExit, GeneratorExit) as error:
        return MethodOutcome(shown, "wrong", f"{type(error).__name__}: {error}")
    return MethodOutcome(shown, "right")


def counted(found: list[MethodOutcome]) -> Counter[str]:
    return Counter(outcome.verdict for outcome in found)

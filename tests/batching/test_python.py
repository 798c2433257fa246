"""What the front end models of Python's functions, methods, classes and values does what Python
does, for all their parameters: it gives the same, raises the same, or is refused at its line."""

from __future__ import annotations

import copy
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.batching.frontend.functions import BUILTINS
from stretto.batching.interpreter import interpret
from stretto.batching.markers import concurrent
from stretto.errors import CaptureError
from tests.batching import expressions_of_python
from tests.batching.agree import differs, outcome, program_of

HEAD = """
import builtins, collections, functools, itertools, math, operator
from collections import Counter, defaultdict, deque
from functools import partial, reduce
from itertools import *
def up(a): return a + 1
class P:
    def __init__(self, v): self.v = v
class Q(P): pass
"""
COLUMNS: dict[str, list[Any]] = {
    "i": [2, 0, -1, 5],
    "j": [3, -2, 1, 0],
    "y": [1.5, -2.5, 0.0, 3.0],
    "b": [True, False, True, False],
    "s": ["abc", "", "b", "a b"],
    "xs": [[3, 1, 2, 1], [], [5], [2, 2]],
    "fs": [[1.5, -0.5], [], [0.0, 2.0, 1.0], [4.0]],
    "ts": [(1, 2), (3, 3), (0, -1), (2, 1)],
    "d": [{1: 2, 3: 4}, {2: 0}, {0: 1}, {5: 6, 2: 2}],
    "ws": [["b", "a"], ["a"], ["c", "d", "e"], ["z"]],
    "m": [None, 1, None, 2],
}


def functions_of(
    rows: list[str], head: str, names: str, path: Path
) -> list[tuple[str, Callable[..., Any]]]:
    """The functions that return the rows of a table."""
    lines = [head]
    for number, row in enumerate(rows):
        *before, last = (part.strip() for part in row.removeprefix("! ").split(";"))
        lines += [f"def f{number}({names}):", *(f"    {part}" for part in before)]
        lines.append(f"    return {last}")
    path.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [(row, getattr(module, f"f{number}")) for number, row in enumerate(rows)]


def wrong(row: str, function: Callable[..., Any], columns: list[list[Any]]) -> str | None:
    """What is wrong with a row: it is refused though it should not be, or gives something else."""
    try:
        program = program_of(function, *columns)
    except CaptureError as error:
        location = error.location
        if location is None or location.file != function.__code__.co_filename:
            return f"{row}: refused, not at its line: {error}"
        return None if row.startswith("! ") else f"{row}: refused: {error.message}"
    except Exception as error:
        return f"{row}: {error!r} while it is evaluated"
    if row.startswith("! "):
        return f"{row}: not refused any more"
    for args in zip(*columns, strict=True):
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        wanted = outcome(lambda t=theirs: function(*t))
        found = outcome(lambda o=ours, p=program: interpret(p, o))
        if isinstance(wanted, Exception) or isinstance(found, Exception):
            if type(wanted) is not type(found):
                return f"{row}: {found!r}, not {wanted!r}, for {args}"
        elif differs((wanted, theirs), (found, ours), "result", {}, {}) is not None:
            return f"{row}: {found!r}, not {wanted!r}, for {args}"
    return None


@pytest.mark.parametrize("table", ["FUNCTIONS", "METHODS", "VALUES"])
def test_expressions(table: str, tmp_path: Path) -> None:
    rows = getattr(expressions_of_python, table).strip().splitlines()
    made = functions_of(rows, HEAD, ", ".join(COLUMNS), tmp_path / f"{table.lower()}.py")
    found = [wrong(row, function, list(COLUMNS.values())) for row, function in made]
    assert not (found := [message for message in found if message is not None]), "\n".join(found)


def test_parameters_are_those_of_python() -> None:
    """A handler takes no parameter that Python's function has not, by position or by name."""
    compared = 0
    for function, handler in BUILTINS.items():
        try:
            theirs = inspect.signature(function).parameters
            ours = list(inspect.signature(handler, follow_wrapped=True).parameters.values())[1:]
        except ValueError:
            continue
        if not hasattr(handler, "__wrapped__") or function is concurrent:
            continue
        compared += 1
        for parameter in ours:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                assert len(ours) <= len(theirs), function
            else:
                assert theirs[parameter.name].kind == parameter.kind, (function, parameter)
    assert compared > 30

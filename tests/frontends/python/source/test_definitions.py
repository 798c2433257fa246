"""The definition of a function is found by its block of lines, without the rest of the file."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.frontends.python.source import definitions

TEXT = '''
import functools

def keep(
    number,
):
    def made(function):
        return function
    return made

class Outer:
    __hidden = 3

    @keep(
        1,
    )
    def method(self, x):
        """Text
with lines that begin at the margin."""
        y = (x +
    1)
    # a comment at the depth of the class
        return y + self.__hidden

    class _Inner:
        def method(self, x): return x
        def second(self, x):
            def third():
                if x:
                    return x
                yield x
            return third

def plain(x):
    if x:
        return x
    return
    yield
'''


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, types.FunctionType]:
    path = tmp_path_factory.mktemp("source") / "definitions.py"
    path.write_text(TEXT)
    known: dict[str, Any] = {}
    exec(compile(TEXT, str(path), "exec"), known)
    outer: Any = known["Outer"]
    inner: Any = outer._Inner
    found = [outer.method, inner.method, inner.second, inner().second(1), known["plain"]]
    return {function.__qualname__: function for function in found}


NAMES = {
    "Outer.method": "Outer",
    "Outer._Inner.method": "_Inner",
    "Outer._Inner.second": "_Inner",
    "Outer._Inner.second.<locals>.third": "_Inner",
    "plain": None,
}


@pytest.mark.parametrize(("name", "class_name"), NAMES.items())
def test_as_in_the_whole_file(
    functions: dict[str, types.FunctionType], name: str, class_name: str | None
) -> None:
    code = functions[name].__code__
    found, whole = definitions._definition_at(code), definitions._definition_in_module(code)
    assert found is not None and whole is not None
    assert ast.dump(found[0], include_attributes=True) == ast.dump(
        whole[0], include_attributes=True
    )
    assert found[1] == whole[1] == class_name


def test_lambdas_are_found_in_the_file() -> None:
    double: Callable[[int], int] = lambda x: 2 * x  # noqa: E731
    code = double.__code__  # type: ignore[attr-defined]
    assert definitions._definition_at(code) is None
    found = definitions._definition_in_module(code)
    assert found is not None and isinstance(found[0], ast.Lambda)


def test_another_function_at_the_line(tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    path.write_text("def other(x):\n    return x\n")
    known: dict[str, Any] = {}
    exec(compile("def first(x):\n    return x\n", str(path), "exec"), known)
    assert definitions._definition_at(known["first"].__code__) is None
    assert definitions._definition_in_module(known["first"].__code__) is None


def test_wrapped_functions_have_their_own_lines() -> None:
    @functools.wraps(test_as_in_the_whole_file)
    def wrapper(*args: object) -> object:
        return args

    found = definitions._definition_at(wrapper.__code__)
    assert found is not None and found[0].name == "wrapper"  # type: ignore[union-attr]

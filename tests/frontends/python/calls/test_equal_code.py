"""Functions with equal code, or with one code object, that have other globals and defaults."""

from __future__ import annotations

import builtins
import linecache
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

X = torch.linspace(0.5, 1, 4)
DOWN = """def down(x, n):
    if n <= 0:
        return x
    return down(x * SCALE, n - 1) + 1
"""
SCALED = """def scaled(x):
    return x * SCALE
"""


def made(text: str, file: str, **namespace: Any) -> dict[str, Any]:
    """The namespace of a source, run as notebooks run their cells."""
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), namespace)
    return namespace


def of_equal_texts(text: str, name: str) -> list[Any]:
    return [made(text, f"<{name} {k}>", SCALE=2.0 + k)[name] for k in range(2)]


def of_one_code_object(text: str, name: str) -> list[Any]:
    code = made(text, f"<the only {name}>", SCALE=0.0)[name].__code__
    functions = list[Any]()
    for k in range(2):
        namespace = {"SCALE": 2.0 + k, "__builtins__": builtins}  # C imports modules by the latter
        functions.append(types.FunctionType(code, namespace))
        functions[-1].__globals__[name] = functions[-1]
    return functions


@pytest.mark.parametrize("of", [of_equal_texts, of_one_code_object])
def test_recursive_functions_have_their_own_globals(of: Callable[..., list[Any]]) -> None:
    first, second = of(DOWN, "down")

    def both(x: Tensor, n: Tensor) -> Any:
        return first(x, n), second(x, n), first(x + 1, n)

    fast = stretto.compile(both, backend="interpreter")
    for n in (0, 1, 3):
        assert_same(fast(X, torch.tensor(n)), both(X, torch.tensor(n)))


@pytest.mark.parametrize("of", [of_equal_texts, of_one_code_object])
def test_globals_of_all_of_them_are_guarded(of: Callable[..., list[Any]]) -> None:
    functions = of(SCALED, "scaled")

    def both(x: Tensor) -> Any:
        return [function(x) for function in functions]

    fast = stretto.compile(both, backend="interpreter")
    assert_same(fast(X), both(X))
    for function in reversed(functions):
        function.__globals__["SCALE"] += 5
        assert_same(fast(X), both(X))


def recursive(scale: float, **more: float) -> Callable[..., Tensor]:
    def down(x: Tensor, n: Tensor, s: float = scale, *, t: float = more.get("t", 1.0)) -> Tensor:
        if n <= 0:
            return x
        return BY_SCALE[s, t](x * s, n - 1) + t

    return down


BY_SCALE: dict[tuple[float, float], Callable[..., Tensor]] = {
    (s, t): recursive(s, t=t) for s in (2.0, 3.0) for t in (1.0, 0.5)
}


def test_recursive_functions_have_their_own_defaults() -> None:
    def all_of_them(x: Tensor, n: Tensor) -> Any:
        return [function(x, n) for function in BY_SCALE.values()]

    fast = stretto.compile(all_of_them, backend="interpreter")
    for n in (0, 3):
        assert_same(fast(X, torch.tensor(n)), all_of_them(X, torch.tensor(n)))


def test_errors_name_the_file_of_the_function() -> None:
    text = "def shown(x):\n    return x.numpy()\n"
    for k in range(2):
        file = f"<shown {k}>"
        shown: Callable[..., Any] = made(text, file)["shown"]
        fast = stretto.compile(shown, backend="interpreter")
        with pytest.raises(stretto.CaptureError) as error:
            fast(X)
        assert error.value.location is not None and error.value.location.file == file

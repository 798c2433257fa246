"""Names that bytecode reads, compared with what `dis` finds."""

from __future__ import annotations

import argparse
import dis
import inspect
import types
from collections.abc import Iterator

import pytest
import torch

from stretto.frontends.python.source.syntax_trees import named_instructions, names_read

KINDS = (
    "LOAD_GLOBAL",
    "LOAD_NAME",
    "LOAD_ATTR",
    "LOAD_METHOD",
    "LOAD_SUPER_ATTR",
)


def codes(module: types.ModuleType) -> Iterator[types.CodeType]:
    for value in vars(module).values():
        members = vars(value).values() if inspect.isclass(value) else (value,)
        yield from (item.__code__ for item in members if isinstance(item, types.FunctionType))
    for size in (200, 300):  # names with numbers that need a prefix
        text = "".join(f"g{n}.a{n}(b{n})\n" for n in range(size))
        yield compile(text, "names", "exec")
    yield compile("def f():\n global g\n g = super().h.i\n del g\n", "globals", "exec").co_consts[0]


@pytest.mark.parametrize("module", [torch.nn.functional, argparse, inspect])
def test_the_same_names_as_dis(module: types.ModuleType) -> None:
    for code in codes(module):
        expected = [
            (item.opname, item.argval)
            for item in dis.get_instructions(code)
            if item.opname in KINDS
        ]
        assert list(named_instructions(code)) == expected


def test_names_of_nested_code() -> None:
    def outer() -> object:
        return [getattr(item, "first") for item in torch.nn.functional.second]  # noqa: B009

    found = names_read(outer.__code__)
    assert {"torch", "getattr"} <= found.globals
    assert {"first", "nn", "functional", "second"} <= found.attributes

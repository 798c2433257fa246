"""Lists that outlive the call and grow in traced branches by what no Program holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

X = torch.tensor([1.0, -1.0, 5.5])


def text(x: Tensor, log: list[Any]) -> Tensor:
    if x.sum() > 0:
        log.append("a")
    return x * 2


def mapping_in_a_loop(x: Tensor, log: list[Any]) -> Tensor:
    for v in x:
        if v > 0:
            log.append({"v": v})
    return x * 2


def with_an_early_return(x: Tensor, log: list[Any]) -> Tensor:
    if x.sum() > 0:
        log.append(("a", 1))
        return x
    return x * 3


def in_a_handler(x: Tensor, log: list[Any]) -> Tensor:
    try:
        if x.sum() > 0:
            raise KeyError
        log.append("good")
        log.append("end")
    except KeyError:
        log.append("bad")
    return x


@pytest.mark.parametrize("f", [text, mapping_in_a_loop, with_an_early_return, in_a_handler])
@pytest.mark.parametrize("fallback", [False, True])
def test_nothing_is_lost(f: Callable[..., Any], fallback: bool) -> None:
    compiled = stretto.compile(f, backend="interpreter", fallback=fallback)
    for x in (X, -X, X):
        eager, ours = ["q"], ["q"]
        assert_same(compiled(x, ours), f(x, eager))
        assert_same(ours, eager)

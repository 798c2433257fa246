"""What a program was specialised on changes between two calls; the result is then that of eager.

Each case makes a function, its arguments, and a change; nothing about the arguments' tensors
changes, so that only the watching of everything else can notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.frontends.python.guards import guards
from stretto.frontends.python.interpreter import reads
from stretto.options import Options
from stretto.runtime.probes import ProbeTable, load
from tests.e2e.changes import containers, functions, modules, objects
from tests.e2e.changes.case import CASES, RESTORED, X
from tests.e2e.changes.modules import Affine, doubled, shifted, two_layers
from tests.frontends.python.checks import assert_same

PARTS = (modules, functions, containers, objects)
"""Importing them fills `CASES`."""


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    while RESTORED:
        table, key, value = RESTORED.pop()
        table[key] = value


@pytest.fixture(params=["Python", "native code"])
def _checked_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs on the CPU have native code compare what it can, where there is much of it."""
    if request.param == "native code":
        library = load(Options())
        monkeypatch.setattr(guards, "_MANY", 0)
        made = partial(guards.Guards, native=lambda p: ProbeTable(library, p.rows, p.kept))
        monkeypatch.setattr(reads, "Guards", made)


@pytest.mark.usefixtures("_checked_by")
@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_eager_after_the_change(name: str) -> None:
    torch.manual_seed(0)
    function, change, args = CASES[name]()
    fast = stretto.compile(function, backend="interpreter", options=Options(threads=1))
    before = function(*args)
    assert_same(fast(*args), before)
    assert_same(fast(*args), before)
    change()
    wanted = function(*args)
    assert different(before, wanted), "the change changes nothing"
    assert_same(fast(*args), wanted)
    built = sum(entry.builds for entry in fast.signatures)
    assert_same(fast(*args), wanted)
    assert sum(entry.builds for entry in fast.signatures) == built, "compiled at each call"


def different(one: Any, other: Any) -> bool:
    try:
        assert_same(one, other)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("children", [False, True])
@pytest.mark.parametrize("kind", ["hook", "pre_hook"])
def test_global_module_hooks(kind: str, children: bool) -> None:
    model = two_layers() if children else Affine().eval()
    fast = stretto.compile(model, backend="interpreter")
    before = fast(X)
    if kind == "hook":
        handle = nn.modules.module.register_module_forward_hook(doubled)
    else:
        handle = nn.modules.module.register_module_forward_pre_hook(shifted)
    try:
        wanted = model(X)
        assert different(before, wanted)
        assert_same(fast(X), wanted)
    finally:
        handle.remove()
    assert_same(fast(X), before)


# ---- settings of torch --------------------------------------------------------------------------


def made_from_numbers(x: Tensor) -> tuple[Tensor, torch.dtype]:
    table = torch.tensor([0.1, 0.2, 0.3])
    return x + table, torch.zeros(3).dtype


def test_default_dtype() -> None:
    fast = stretto.compile(made_from_numbers, backend="interpreter")
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert_same(fast(X), made_from_numbers(X))
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast() -> None:
    model = Affine().eval()
    fast = stretto.compile(model, backend="interpreter")
    assert_same(fast(X), model(X))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert fast(X).dtype == model(X).dtype == dtype
            assert_same(fast(X), model(X))
    with torch.autocast("cpu", enabled=False):
        assert_same(fast(X), model(X))
    assert_same(fast(X), model(X))


def asks_for_modes(x: Tensor) -> tuple[Tensor, bool, bool, bool, torch.dtype]:
    scale = 2.0 if torch.is_grad_enabled() else 3.0
    if torch.is_inference_mode_enabled():
        scale *= 5
    return (
        x * scale,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )


def test_modes_that_a_function_asks_for() -> None:
    fast = stretto.compile(asks_for_modes, backend="interpreter")
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.no_grad):
        with mode():
            assert_same(fast(X), asks_for_modes(X))
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(fast(X), asks_for_modes(X))
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(fast(X), asks_for_modes(X))

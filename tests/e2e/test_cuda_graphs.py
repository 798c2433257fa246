"""Programs as captured graphs on the emulated GPU: launches, calls and control in one replay.

Each replay runs the nodes in another random order that the edges allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from benchmarks.models.groups import GROUPS
from stretto.machines.cuda.graphs.graph_executable import GraphExecutable
from stretto.options import Debug, Options
from tests.e2e.machines import CUDA, check, on_cuda, spread
from tests.e2e.test_cuda_plans import CASES, W, X, library, number
from tests.e2e.test_language import FUNCTIONS
from tests.e2e.test_zoo import MODELS, assert_close, made, tensors
from tests.sampling import every, sampled

APART = Options(
    units=3, enqueue="graph", debug=Debug(launches="per_kernel", control="host", unroll=2)
)
STATIC = (
    "googlenet",
    "inception_v3",
    "bert_base",
    "t5_small",
    "nasnet_mobile",
    "deepfm",
    "gpt2_decode",
)
LONG = ("lstm100", "skipnet", "blockdrop_policy", "inception_v3", "nasnet_mobile", "googlenet")
EMULATED_FOR_A_MINUTE = ("inception_v3", "googlenet")
"""Where no operator is a library call."""
STATIC_CASES = [
    (name, library)
    for name in STATIC
    for library in (False, True)
    if library or name not in EMULATED_FOR_A_MINUTE
]
HOSTED = {"in_a_recursion"}
"""Functions that the host calls, since there is a library call in them."""


def graphs(compiled: Any) -> GraphExecutable:
    program = on_cuda(compiled)
    assert isinstance(program, GraphExecutable)
    return program


@pytest.mark.whole
@pytest.mark.parametrize("name", sampled(MODELS, [m for m in MODELS if m not in LONG]))
def test_models_with_control_flow(name: str) -> None:
    model, inputs, wanted = made(name)
    compiled = stretto.compile(model, backend=CUDA, options=APART)
    with spread(), torch.no_grad():
        for _ in range(3):
            assert_close(tensors(compiled(*inputs)), wanted)
    program = graphs(compiled)
    assert program.reads == 0
    assert program.counts.replayed + program.launches > 0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "library"),
    sampled(STATIC_CASES, [case for case in STATIC_CASES if case[0] not in LONG]),
)
def test_static_models(name: str, library: bool) -> None:
    entry = next(group[name] for group in GROUPS.values() if name in group)
    with torch.no_grad():
        function, inputs = entry.make(entry.presets["small"], 0)
        wanted = function(*inputs)
    calls = ("*",) if library else ()
    options = Options(units=3, enqueue="graph", debug=Debug(launches="per_kernel"), library=calls)
    compiled = stretto.compile(function, backend=CUDA, options=options)
    with torch.no_grad():
        for _ in range(2):
            found = compiled(*inputs)
            torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    program = graphs(compiled)
    assert program.counts.replayed >= 2
    assert bool(program.library_runs) == library


@pytest.mark.whole
@pytest.mark.parametrize("function", list(CASES), ids=lambda function: function.__name__)
def test_library_calls(function: Callable[..., Any]) -> None:
    program = graphs(check(function, *CASES[function], backend=CUDA, options=APART))
    assert program.library_runs > 0
    assert program.reads == 0 or function.__name__ in HOSTED | READS


READS = {
    "growing",
    "in_a_loop_of_unknown_length",
    "rotating_before_and_after",
    "in_a_while_loop",
    "in_a_branch_of_a_loop",
}
"""A call uses a buffer that moves, so the host executes it."""


@pytest.mark.parametrize("name", every(4, list(FUNCTIONS)))
def test_language(name: str) -> None:
    function, found = FUNCTIONS[name]
    on_cuda(check(function, *found, backend=CUDA, options=APART))


# ---- what is counted ---------------------------------------------------------------------------


def several(x: Tensor) -> Tensor:
    a, b = torch.tanh(x @ W), torch.relu(x.flip(1) @ W)
    return library(a + 1) + a.cumsum(0) @ W - library(b)


def test_a_replay_for_a_call() -> None:
    program = graphs(check(several, (X,), (-X,), (X,), backend=CUDA, options=APART))
    assert program.counts.replayed == 3
    assert (program.launches, program.reads) == (0, 0)


def test_one_graph_for_all_sizes_of_a_dimension() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.tanh(x @ w), (x * 2).softmax(1)
        return a @ w + b.cumsum(0), b.sum(0)

    options = Options(units=3, enqueue="graph", debug=Debug(launches="per_kernel", fuse=False))
    compiled = stretto.compile(f, backend=CUDA, options=options, dynamic=True)
    w = torch.randn(7, 7) / 3
    with torch.no_grad(), spread():
        for rows in (5, 9, 2, 33, 1, 12, 64):
            x = torch.randn(rows, 7)
            torch.testing.assert_close(compiled(x, w), f(x, w), rtol=1e-4, atol=1e-4)
    program = graphs(compiled)
    assert program.counts.replayed == 7
    # Where a size outgrew the memory of those before, the graph was made again.
    assert program.graph_count == 1 and program.counts.made <= 4


def test_the_order_of_calls_that_draw_is_kept() -> None:
    def f(x: Tensor) -> Tensor:
        a = torch.relu(x @ W).cumsum(0)
        b = a * torch.randn(5, 7) + torch.rand(5, 1)
        return torch.tanh(b @ W) + library(b) + torch.randn(5, 7)

    fast = stretto.compile(f, backend=CUDA, options=APART)
    with torch.no_grad(), spread():
        for seed in range(3):
            torch.manual_seed(seed)
            found = fast(X)
            torch.manual_seed(seed)
            torch.testing.assert_close(found, f(X), rtol=1e-4, atol=1e-4)


@pytest.mark.whole
def test_a_check_that_fails_in_a_loop_ends_the_loop() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        for step in range(100):
            x = torch.tanh(x @ W)[torch.arange(5) - step + n] + library(x)
        return x

    fast = stretto.compile(f, backend=CUDA, options=APART)
    with torch.no_grad(), spread(), pytest.raises(IndexError):
        fast(X, number(0))
    with torch.no_grad(), spread(), pytest.raises(IndexError):
        fast(X, number(3))


def test_a_bad_way_to_enqueue() -> None:
    with pytest.raises(ValueError, match="enqueue"):
        Options(enqueue="graphs")


@pytest.mark.whole
def test_explain_says_how_often_a_graph_was_what_it_had_been() -> None:
    fast = stretto.compile(several, backend=CUDA, options=APART)
    with torch.no_grad(), spread():
        for x in (X, X, -X):
            fast(x)
    text = fast.explain()
    assert "captured graphs" in str(text)
    assert "3 replays" in str(text) and "patched" in str(text)

"""Beam search, a model with early exits and a greedy decode: each call is one replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.machines.cuda.graphs.graph_executable import GraphExecutable
from tests.e2e.machines import CUDA, on_cuda, spread
from tests.machines.cuda.cuda_fakes import FakeCuda
from tests.machines.cuda.graphs.programs import APART, on_fake_gpu

WORDS, WIDTH, BEAMS, STEPS, END = 11, 8, 3, 6, 2
Inputs = tuple[Tensor, Tensor, Tensor]


def beam_search(state: Tensor, embedding: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keeps the best beams of each step; the best one that has ended is remembered, and the search
    stops when none of those that go on can be better (Grape, section 4.3.2 has this shape)."""
    scores = torch.zeros(BEAMS) + torch.tensor([0.0, -1e9, -1e9])
    states = state.expand(BEAMS, WIDTH) + 0.0
    best, ended, step = torch.full((1,), -1e9), torch.zeros(1), 0
    while step < STEPS and (scores.max() > best.max()):
        hidden = torch.tanh(states @ w)
        found = torch.log_softmax(hidden @ embedding.t(), -1) + scores.unsqueeze(1)
        scores, places = found.view(-1).topk(BEAMS)
        words, parents = places % WORDS, places // WORDS
        over = words == END
        if over.any():
            finished = torch.where(over, scores, torch.full_like(scores, -1e9)).max()
            if finished > best[0]:
                best = best * 0 + finished
                ended = ended * 0 + step
            scores = torch.where(over, torch.full_like(scores, -1e9), scores)
        states = hidden[parents] + embedding[words]
        step = step + 1
    return best, ended, scores


def early_exit(x: Tensor, embedding: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Layers until one is sure enough; short repairs between them."""
    depth = torch.zeros(1)
    sure = torch.zeros(1)
    for _ in range(4):
        if sure[0] < 0.3:
            x = torch.tanh(x @ w) + x * 0.5
            if x.abs().amax() > 1.5:
                x = x / x.abs().amax()
            sure = torch.softmax((x @ embedding.t()).sum(0), -1).max().reshape(1)
            depth = depth + 1
    return x @ embedding.t(), depth


def greedy_decode(state: Tensor, embedding: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely word each time, until that is the end or there is no room."""
    words = torch.zeros(STEPS, dtype=torch.int64)
    total, step, word = torch.zeros(1), 0, torch.ones((), dtype=torch.int64)
    while step < STEPS and word != END:
        state = torch.tanh((state + embedding[word]) @ w)
        found = torch.log_softmax(state @ embedding.t(), -1)
        score, word = found[0].max(0)
        if score > -0.7:  # sure of it
            total = total + score
        else:
            total = total + score * 2
        words = torch.where(torch.arange(STEPS) == step, word, words)
        step = step + 1
    return words, total


def inputs_of(function: Callable[..., Any], seed: int) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    is_exit = function is early_exit
    state = torch.randn(5 if is_exit else 1, WIDTH, generator=draw)
    embedding = torch.randn(WORDS, WIDTH, generator=draw) * (0.6 if is_exit else 1.5)
    embedding[END] *= 1 if is_exit else 4  # so that some ends come early
    return state, embedding, torch.randn(WIDTH, WIDTH, generator=draw) / 2


@pytest.mark.parametrize("branches", ["auto", "conditional", "predicated", "unlikely"])
@pytest.mark.parametrize("function", [beam_search, early_exit, greedy_decode])
def test_one_replay_for_a_call(function: Callable[..., Any], branches: str) -> None:
    fast = stretto.compile(
        function,
        backend=CUDA,
        options=replace(APART, debug=replace(APART.debug, branches=branches)),
    )
    lengths: set[float] = set()
    for seed in range(6):
        inputs = inputs_of(function, seed)
        with torch.no_grad(), spread():
            found = fast(*inputs)
        wanted = function(*inputs)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        lengths.add(float(wanted[1].sum()))
    assert len(lengths) > 2  # not each call goes the same way
    run = on_cuda(fast)
    assert isinstance(run, GraphExecutable)
    if branches == "unlikely":
        assert run.counts.replayed >= 6 + run.counts.left > 6
    else:
        assert run.counts.replayed == 6 and run.reads == 0


@pytest.mark.whole
@pytest.mark.parametrize("branches", ["conditional", "predicated"])
@pytest.mark.parametrize("function", [beam_search, early_exit, greedy_decode])
def test_on_the_driver(cuda: FakeCuda, function: Callable[..., Any], branches: str) -> None:
    options = replace(APART, debug=replace(APART.debug, branches=branches))
    gpu = on_fake_gpu(cuda, function, inputs_of(function, 0), options)
    for seed in range(4):
        cuda.library.fake_seed(seed)
        inputs = inputs_of(function, seed)
        found = tuple(gpu(*inputs))
        torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-4)
    assert len(cuda.log("cuGraphLaunch")) == 4 and not cuda.log("cuLaunchKernelEx")

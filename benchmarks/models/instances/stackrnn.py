"""A shift-reduce parser with an RNN over its stack and one over its buffer.

The StackLSTM parser (Dyer et al. 2015) with LSTM cells replaced by RNN cells. The action is
the argmax of scores, if more than one is possible: n tokens always take 2n - 1 actions, 49
on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..entry import Phase
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase
from .sentences import random_sentences

SHIFT, REDUCE_LEFT, REDUCE_RIGHT = range(3)


@dataclass(frozen=True, slots=True)
class StackRNNConfig:
    """Lengths are uniform in `shortest`..`longest`."""

    hidden: int = 256
    shortest: int = 10
    longest: int = 40


@dataclass
class Parse:
    """phrase: the vector of the whole sentence, [hidden]. actions: those of the parser."""

    phrase: Tensor
    actions: list[int]


class StackRNN(nn.Module):
    """Tokens, each [hidden] -> the parse."""

    def __init__(self, config: StackRNNConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.buffer_cell = nn.Linear(2 * hidden, hidden)
        self.stack_cell = nn.Linear(2 * hidden, hidden)
        self.empty = nn.Parameter(torch.empty(hidden))
        self.action = nn.Linear(2 * hidden, 3)
        self.left = nn.Linear(2 * hidden, hidden)
        self.right = nn.Linear(2 * hidden, hidden)

    def forward(self, tokens: list[Tensor]) -> Parse:
        # States of the buffer from its last token on, so that `pop` takes the first one.
        buffer: list[Tensor] = [self.empty]
        for x in reversed(tokens):
            buffer.append(torch.tanh(self.buffer_cell(torch.cat([x, buffer[-1]]))))
        phrases: list[Tensor] = []
        states: list[Tensor] = [self.empty]
        actions: list[int] = []
        shifted = 0
        while shifted < len(tokens) or len(phrases) > 1:
            if len(phrases) < 2:
                action = SHIFT
            else:
                scores = self.action(torch.cat([states[-1], buffer[-1]]))
                if shifted == len(tokens):
                    action = 1 + int(scores[1:].argmax())
                else:
                    action = int(scores.argmax())
            if action == SHIFT:
                phrase = tokens[shifted]
                shifted += 1
                buffer.pop()
            else:
                right = phrases.pop()
                left = phrases.pop()
                states.pop()
                states.pop()
                compose = self.left if action == REDUCE_LEFT else self.right
                phrase = torch.tanh(compose(torch.cat([left, right])))
            phrases.append(phrase)
            states.append(torch.tanh(self.stack_cell(torch.cat([phrase, states[-1]]))))
            actions.append(action)
        return Parse(phrases[0], actions)


def make(config: StackRNNConfig, seed: int = 0) -> StackRNN:
    model = StackRNN(config)
    seed_weights(model, seed, gain=1.2)
    return model


def work(
    config: StackRNNConfig, sentences: Sequence[list[Tensor]], results: Sequence[Parse]
) -> tuple[Phase, ...]:
    tokens = sum(map(len, sentences))
    actions = sum(len(result.actions) for result in results)
    reduced = actions - tokens
    square = config.hidden**2
    longest = max(map(len, sentences), default=0)
    return (
        chain_phase("buffer", 4.0 * tokens * square, 2 * square, longest),
        chain_phase("stack", 4.0 * actions * square, 2 * square, max(0, 2 * longest - 1)),
        chain_phase("reduce", 4.0 * reduced * square, 4 * square, max(0, longest - 1)),
    )


def batched(model: StackRNN, wrap: Wrap) -> ManyFunction:
    """All parsers step together: stacks are rows of one tensor, with a top for each parser."""
    hidden = model.empty.shape[0]
    buffer_weight = model.buffer_cell.weight.t().contiguous()
    stack_weight = model.stack_cell.weight.t().contiguous()
    compose_weights = torch.stack((model.left.weight.t(), model.right.weight.t())).contiguous()
    compose_biases = model.left.bias, model.right.bias
    action_weight = model.action.weight.t().contiguous()
    step, push, compose, scores = wrap(_step), wrap(_push), wrap(_compose), wrap(_scores)

    def buffers(x: Tensor, offsets: list[int], lengths: list[int]) -> Tensor:
        """[sentences, longest + 1, hidden]: the state when n tokens are left."""
        states = x.new_empty(len(lengths), max(lengths) + 1, hidden)
        states[:, 0] = model.empty
        inputs = torch.addmm(model.buffer_cell.bias, x, buffer_weight[:hidden])
        order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        running = len(order)
        h = model.empty.expand(len(order), hidden)
        for n in range(1, max(lengths) + 1):
            while lengths[order[running - 1]] < n:
                running -= 1
            here = order[:running]
            rows = torch.tensor([offsets[i] + lengths[i] - n for i in here])
            h = step(inputs.index_select(0, rows), h[:running], buffer_weight[hidden:])
            states[torch.tensor(here), n] = h
        return states

    def many(sentences: Sequence[list[Tensor]]) -> list[Parse]:
        if not sentences:
            return []
        lengths = [len(tokens) for tokens in sentences]
        offsets = [sum(lengths[:i]) for i in range(len(lengths))]
        x = torch.stack([x for tokens in sentences for x in tokens])
        buffer = buffers(x, offsets, lengths)
        depth = max(lengths) + 1
        # Row 0 of a stack is the empty one; `tops` are counted from there.
        phrases = x.new_empty(len(lengths) * depth, hidden)
        states = x.new_empty(len(lengths) * depth, hidden)
        bottoms = np.arange(len(lengths)) * depth
        states[torch.from_numpy(bottoms)] = model.empty
        tops, left = np.zeros(len(lengths), int), np.array(lengths)
        ends = np.cumsum(lengths)
        history: list[tuple[np.ndarray, np.ndarray]] = []
        live = left.nonzero()[0]
        while len(live):
            chosen = choose(live, tops, left, states, buffer)
            phrase = x.new_empty(len(live), hidden)
            shifts = (chosen == SHIFT).nonzero()[0]
            if len(shifts):
                taken = torch.from_numpy((ends - left)[live[shifts]])
                phrase[torch.from_numpy(shifts)] = x.index_select(0, taken)
            for kind in (REDUCE_LEFT, REDUCE_RIGHT):
                places = (chosen == kind).nonzero()[0]
                if len(places):
                    which = live[places]
                    top = torch.from_numpy((bottoms + tops)[which])
                    phrase[torch.from_numpy(places)] = compose(
                        phrases, top, compose_weights[kind - 1], compose_biases[kind - 1]
                    )
            tops[live] += np.where(chosen == SHIFT, 1, -1)
            left[live] -= chosen == SHIFT
            top = torch.from_numpy((bottoms + tops)[live])
            phrases[top] = phrase
            states[top] = push(phrase, states, top, model.stack_cell.bias, stack_weight)
            history.append((live, chosen))
            live = live[(left[live] > 0) | (tops[live] > 1)]
        actions: list[list[int]] = [[] for _ in lengths]
        for which, taken in history:
            for i, action in zip(which.tolist(), taken.tolist(), strict=True):
                actions[i].append(action)
        firsts = phrases.index_select(0, torch.from_numpy(bottoms + 1)).unbind()
        return [Parse(end, done) for end, done in zip(firsts, actions, strict=True)]

    def choose(
        live: np.ndarray, tops: np.ndarray, left: np.ndarray, states: Tensor, buffer: Tensor
    ) -> np.ndarray:
        chosen = np.zeros(len(live), int)
        places = (tops[live] >= 2).nonzero()[0]
        if not len(places):
            return chosen
        which = live[places]
        depth = buffer.shape[1]
        top = torch.from_numpy(which * depth + tops[which])
        rest = torch.from_numpy(which * depth + left[which])
        found = scores(states, buffer.view(-1, hidden), top, rest, action_weight, model.action.bias)
        found[torch.from_numpy((left[which] == 0).nonzero()[0]), SHIFT] = -torch.inf
        chosen[places] = found.argmax(dim=1).numpy()
        return chosen

    return many


def _step(inputs: Tensor, h: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(torch.addmm(inputs, h, weight))


def _push(phrase: Tensor, states: Tensor, top: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    below = states.index_select(0, top - 1)
    return torch.tanh(torch.addmm(bias, torch.cat((phrase, below), dim=1), weight))


def _compose(phrases: Tensor, top: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    pair = torch.cat((phrases.index_select(0, top - 1), phrases.index_select(0, top)), dim=1)
    return torch.tanh(torch.addmm(bias, pair, weight))


def _scores(
    states: Tensor, buffer: Tensor, top: Tensor, rest: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    both = torch.cat((states.index_select(0, top), buffer.index_select(0, rest)), dim=1)
    return torch.addmm(bias, both, weight)


ENTRY = InstanceEntry(
    "stackrnn",
    "shift-reduce parser, the action is the argmax of scores",
    {
        "small": StackRNNConfig(hidden=8, shortest=1, longest=12),
        "256": StackRNNConfig(hidden=256),
        "512": StackRNNConfig(hidden=512),
    },
    make,
    random_sentences,
    steps=lambda tokens, result: len(result.actions),
    mean_steps=(43.0, 55.0),
    work=work,
    batched=batched,
    decides=True,
)

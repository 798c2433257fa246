"""TorchScript: the model as it is if it can be scripted, else a variant adapted by hand.

Variants are needed because scripting supports neither global constants, nor slices of a module
list, nor recursion.
"""

import warnings
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.jit.frontend import FrontendError

from ..models.rae import RAE
from ..models.seq2seq import EOS, SOS, Seq2Seq
from ..models.skipnet import SkipNet
from .base import Case, Peer, Prepared, Skipped, without_gradients


class ScriptSeq2Seq(nn.Module):
    """Seq2Seq with its token numbers as attributes."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.max_length = model.max_length
        self.start, self.end = SOS, EOS
        self.embedding, self.cell, self.output = model.embedding, model.cell, model.output

    def forward(self, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        token = torch.full((h.shape[0],), self.start, dtype=torch.int64)
        tokens = torch.full((self.max_length, h.shape[0]), self.end, dtype=torch.int64)
        step = 0
        while bool((token != self.end).any()) and step < self.max_length:
            h, c = self.cell(self.embedding(token), h, c)
            token = self.output(h).argmax(dim=-1)
            tokens[step] = token
            step += 1
        return tokens, h


class ScriptSkipNet(nn.Module):
    """SkipNet with its blocks, shortcuts and gates in separate lists."""

    def __init__(self, model: SkipNet) -> None:
        super().__init__()
        self.gate_size = model.gate_size
        self.stem = nn.Sequential(model.conv, model.bn, nn.ReLU(), model.pool)
        self.first = model.blocks[0]
        self.first_shortcut = model.blocks[0].shortcut
        self.blocks = nn.ModuleList(list(model.blocks)[1:])
        self.shortcuts = nn.ModuleList(block.shortcut for block in self.blocks)
        self.gate_inputs = model.gate_inputs
        self.gate_cell, self.gate_output, self.fc = model.gate_cell, model.gate_output, model.fc

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        x = torch.relu(self.first(x) + self.first_shortcut(x))
        h = torch.zeros(x.shape[0], self.gate_size)
        c = torch.zeros(x.shape[0], self.gate_size)
        for block, shortcut, gate_input in zip(self.blocks, self.shortcuts, self.gate_inputs):  # noqa: B905 (TorchScript has no `strict`)
            seen = gate_input(x.mean(dim=(2, 3), keepdim=True)).flatten(1)
            h, c = self.gate_cell(seen, h, c)
            gate = torch.sigmoid(self.gate_output(h[:, :, None, None]))
            identity = shortcut(x)
            if bool(gate > 0.5):
                x = torch.relu(identity + block(x))
            else:
                x = identity
        return self.fc(x.mean(dim=(2, 3)))


class ScriptRAE(nn.Module):
    """RAE without recursion: nodes in the order of their numbers, children first."""

    def __init__(self, model: RAE) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(
        self, leaves: Tensor, left: Tensor, right: Tensor, is_leaf: Tensor, root: Tensor
    ) -> Tensor:
        codes: list[Tensor] = []
        for node in range(int(root) + 1):
            if bool(is_leaf[node]):
                codes.append(leaves[node])
            else:
                children = torch.cat([codes[int(left[node])], codes[int(right[node])]], dim=-1)
                codes.append(torch.tanh(self.encoder(children)))
        return codes[-1]


def adapt(module: nn.Module) -> nn.Module:
    """Return the variant of `module` to script; `module` itself if none is needed."""
    match module:
        case Seq2Seq():
            return ScriptSeq2Seq(module)
        case SkipNet():
            return ScriptSkipNet(module)
        case RAE():
            return ScriptRAE(module)
        case _:
            return module


class TorchScriptPeer(Peer):
    """The model scripted and frozen, which folds batch norms into convolutions."""

    name: ClassVar[str] = "script"

    def prepare(self, case: Case) -> Prepared:
        module = adapt(case.module).eval()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            try:
                scripted = torch.jit.freeze(torch.jit.script(module))
            except (RuntimeError, FrontendError) as error:
                first = str(error).strip().splitlines()[0]
                raise Skipped(f"does not script: {first}") from error
        note = "" if module is case.module else f"adapted by hand: {type(module).__name__}"
        return replace(without_gradients(scripted, case.inputs), note=note)

"""Runs a tree of kernels in program order, every buffer in memory of its own: the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stretto.device.evaluate import Number, evaluate, run_task, task_count
from stretto.device.expr import Buffer, Position
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Call, Conditional, Execution, For, Let, Node, Rotation, Tree


@dataclass
class Activation:
    tensors: dict[str, Tensor]
    registers: dict[str, Number] = field(default_factory=dict[str, Number])

    def elements(self, buffer: Buffer) -> int:
        return self.tensors[buffer.name].numel()

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor:
        return self.tensors[buffer.name][offsets]

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None:
        self.tensors[buffer.name][offsets] = values


def run_tree(tree: Tree[Body], externals: dict[int, Tensor]) -> dict[str, Number]:
    """Changes `externals` (flat, by slot) in place; returns the registers of main."""
    return Runner(tree, externals).main().registers


class Runner(Execution[Body, Activation]):
    def __init__(self, tree: Tree[Body], externals: dict[int, Tensor]) -> None:
        self.tree = tree
        self.externals = {b.name: externals[b.slot] for b in tree.externals}

    def main(self) -> Activation:
        main = self.activation("main", {}, {})
        for leaf, at in self.leaves(self.tree.main.body, main):
            for item in leaf.body:
                if isinstance(item, Kernel):
                    for task in range(task_count(item, at.registers)):
                        run_task(item, task, at.registers, at)
                elif isinstance(item, Let):
                    at.registers[item.reg.name] = evaluate(item.value, at.registers, at)
        return main

    def activation(
        self, name: str, params: dict[str, Tensor], registers: dict[str, Number]
    ) -> Activation:
        memory = {
            b.name: torch.full((b.elements,), torch.nan).to(b.dtype.torch)
            for b in self.tree.function(name).locals
        }
        return Activation(self.externals | memory | params, dict(registers))

    def trips(self, node: For[Body], state: Activation) -> Iterator[None]:
        start, stop = (int(evaluate(e, state.registers, state)) for e in (node.start, node.stop))
        for position in range(start, stop, node.step):
            state.registers[node.index.name] = position
            yield

    def holds(self, node: Conditional[Body], state: Activation, done: int) -> bool:
        return bool(state.registers[node.condition.name])

    def call(self, node: Call[Body], state: Activation) -> Iterator[tuple[Node[Body], Activation]]:
        values = {r.name: evaluate(e, state.registers, state) for r, e in node.registers}
        params: dict[str, Tensor] = {}
        for param, access in node.tensors:
            offset = int(evaluate(Position(access.offset), state.registers, state))
            params[param.name] = state.tensors[access.buffer.name][offset:]
        called = self.activation(node.function, params, values)
        yield self.tree.function(node.function).body, called
        for mine, theirs in node.results:
            state.registers[mine.name] = called.registers[theirs.name]

    def rotate(self, pairs: Rotation, state: Activation) -> None:
        for a, b in pairs:
            tensors = state.tensors
            tensors[a.name], tensors[b.name] = tensors[b.name], tensors[a.name]

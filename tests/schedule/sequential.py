"""Runs a tree of kernels in program order, every buffer in memory of its own: the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stretto.device.evaluate import Number, evaluate, run_task, task_count
from stretto.device.expr import Buffer, Position
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Call, For, If, Leaf, Let, Node, Seq, Tree, While


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
    return Runner(tree, externals).function("main", {}, {}).registers


class Runner:
    def __init__(self, tree: Tree[Body], externals: dict[int, Tensor]) -> None:
        self.tree = tree
        self.externals = {b.name: externals[b.slot] for b in tree.externals}

    def function(
        self, name: str, params: dict[str, Tensor], registers: dict[str, Number]
    ) -> Activation:
        function = self.tree.function(name)
        memory = {
            b.name: torch.full((b.elements,), torch.nan).to(b.dtype.torch) for b in function.locals
        }
        at = Activation(self.externals | memory | params, dict(registers))
        self.node(function.body, at)
        return at

    def node(self, node: Node[Body], at: Activation) -> None:
        match node:
            case Leaf(body):
                for item in body:
                    if isinstance(item, Kernel):
                        for task in range(task_count(item, at.registers)):
                            run_task(item, task, at.registers, at)
                    elif isinstance(item, Let):
                        at.registers[item.reg.name] = evaluate(item.value, at.registers, at)
            case Seq(children):
                for child in children:
                    self.node(child, at)
            case For():
                start, stop = (int(evaluate(e, at.registers, at)) for e in (node.start, node.stop))
                for position in range(start, stop, node.step):
                    at.registers[node.index.name] = position
                    self.node(node.body, at)
                    rotate(node.rotate, at)
            case While():
                self.node(node.head, at)
                while at.registers[node.condition.name]:
                    self.node(node.body, at)
                    rotate(node.rotate, at)
                    self.node(node.head, at)
            case If(condition, then, orelse):
                self.node(then if at.registers[condition.name] else orelse, at)
            case Call(function, registers, tensors, results):
                values = {r.name: evaluate(e, at.registers, at) for r, e in registers}
                params: dict[str, Tensor] = {}
                for param, access in tensors:
                    offset = int(evaluate(Position(access.offset), at.registers, at))
                    params[param.name] = at.tensors[access.buffer.name][offset:]
                called = self.function(function, params, values)
                for mine, theirs in results:
                    at.registers[mine.name] = called.registers[theirs.name]


def rotate(pairs: tuple[tuple[Buffer, Buffer], ...], at: Activation) -> None:
    for a, b in pairs:
        at.tensors[a.name], at.tensors[b.name] = at.tensors[b.name], at.tensors[a.name]

"""Which buffers and registers the text of a function mentions, so that they can be declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stretto.device.expr import Buffer, Expr, Reg, expr_regs, loads
from stretto.device.program import Run, Schedule
from stretto.device.tree import Call, Check, For, If, Leaf, Let, Node, Seq, While, walk


class Operands(Protocol):
    """What a printed kernel wants as arguments, in order."""

    @property
    def buffers(self) -> tuple[Buffer, ...]: ...
    @property
    def regs(self) -> tuple[Reg, ...]: ...


def used(body: Node[Schedule], texts: Mapping[str, Operands]) -> tuple[set[Buffer], set[Reg]]:
    """Buffers and registers that a function's text mentions."""
    buffers: set[Buffer] = set()
    regs: set[Reg] = set()

    def expr(value: Expr) -> None:
        regs.update(expr_regs(value))
        buffers.update(load.access.buffer for load in loads(value))

    for node in walk(body):
        match node:
            case Leaf(schedule):
                for item in (i for items in schedule.units for i in items):
                    match item:
                        case Let(reg, value):
                            regs.add(reg)
                            expr(value)
                        case Check():
                            for value in item.exprs:
                                expr(value)
                        case Run(kernel=name):
                            buffers.update(texts[name].buffers)
                            regs.update(texts[name].regs)
                        case _:
                            pass
            case For(index, start, stop, _, _, rotate):
                regs.add(index)
                expr(start)
                expr(stop)
                buffers.update(b for pair in rotate for b in pair)
            case While(_, condition, _, rotate):
                regs.add(condition)
                buffers.update(b for pair in rotate for b in pair)
            case If(condition):
                regs.add(condition)
            case Call(_, registers, tensors, results):
                for _, value in registers:
                    expr(value)
                for _, access in tensors:
                    buffers.add(access.buffer)
                    regs.update(r for i in access.index for r in i.atoms() if isinstance(r, Reg))
                regs.update(mine for mine, _ in results)
            case Seq():
                pass
    return buffers, regs

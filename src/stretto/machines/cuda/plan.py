"""Executes plans of several launches: library calls between them, and control on the host.

Everything is enqueued on the caller's stream. The host waits only where it has to know a register:
the condition of a branch or loop that has a library call inside, a size that a library call needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from stretto.device.forms import ProgramInterface
from stretto.device.plan import Action, Launch, Plan
from stretto.device.tree import Leaf, Node, Seq, rotating
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.host import Host
from stretto.machines.cuda.launcher import Launcher
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.state import State
from stretto.options import Options
from stretto.runtime.sizes import Values

Order = Callable[[Seq[Action]], Sequence[Node[Action]]]
"""Gives the parts of a sequence in the order in which the host executes them."""


def in_order(sequence: Seq[Action]) -> Sequence[Node[Action]]:
    """As the plan has them."""
    return sequence.children


class PlanExecutable(CudaExecutable):
    """A program of several launches. `reads` counts how often the host has read a register. order:
    of a sequence's parts; another one than the plan's shows whether a graph has all its edges."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[TritonSource],
        interface: ProgramInterface,
        options: Options,
        launcher: Launcher,
    ) -> None:
        super().__init__(plan.program, sources, interface, options, launcher, plan.words["main"])
        self.plan = plan
        body = plan.tree.main.body
        self.is_single = isinstance(body, Leaf) and isinstance(body.body, Launch)
        self.numbers = {id(launch): n for n, (_, launch) in enumerate(plan.launches)}
        self.functions = {function.name: function for function in plan.tree.functions}
        self.moving = {
            function.name: {*function.tensors, *rotating(function.body)}
            for function in plan.tree.functions
        }
        for name, launch in plan.launches:
            self.moving[name].update(launch.program.tree.main.tensors)
        self.frames = dict(plan.program.frames)
        self.order: Order = in_order
        self.reads = 0
        self.library_runs = 0
        if plan.decides_on_host:
            self.waits = True
            self.can_be_captured = False
            self.why_not_captured = "the host decides on values in the midst of it"

    def run(
        self,
        state: State,
        memory: Mapping[int, torch.Tensor],
        capacities: Mapping[int, int],
        sizes: Values,
        stream: int,
    ) -> None:
        if self.is_single:
            super().run(state, memory, capacities, sizes, stream)
            return
        words = self.host(state, memory, capacities, sizes, stream).main().words
        if self.registers:
            known = words.tolist()
            for place in self.registers.values():
                state.words[place] = known[place]

    def host(
        self,
        state: State,
        memory: Mapping[int, torch.Tensor],
        capacities: Mapping[int, int],
        sizes: Values,
        stream: int,
    ) -> Host:
        """What enqueues one run."""
        return Host(self, state, memory, capacities, sizes, stream)

"""A program on the emulator, called with tensors as one on the CPU machine is."""

from __future__ import annotations

from math import prod

import torch

from stretto.kernels.expr import Buffer, Reg
from stretto.kernels.lowered import Lowered, OutputList, OutputTensor
from stretto.kernels.select import Packing
from stretto.options import Options
from stretto.runtime.emulator import Emulator
from stretto.runtime.packing import pack
from stretto.schedule.program import DeviceProgram

FIRST_CAPACITY = 64
"""Items that a list of unknown length has room for at first."""


class EmulatedExecutable:
    """Runs a DeviceProgram unit by unit in random order; races and deadlocks are errors."""

    def __init__(
        self,
        program: DeviceProgram,
        lowered: Lowered,
        packings: tuple[Packing, ...],
        options: Options,
    ) -> None:
        self.program = program
        self.lowered = lowered
        self.emulator = Emulator(program, seed=options.seed, max_depth=options.max_depth)
        self.constants = {slot: t.detach().contiguous().view(-1) for slot, t in lowered.constants.items()}
        for packing in packings:
            packed = pack(packing, lowered.constants[packing.source.slot])
            self.constants[packing.buffer.slot] = packed.view(-1)
        self.results = {reg: n for n, reg in enumerate(program.tree.main.results)}
        self.capacities = {
            b.slot: b.shape[0] if isinstance(b.shape[0], int) else FIRST_CAPACITY
            for b in program.tree.externals
            if b.kind == "list"
        }

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor | list[torch.Tensor]]:
        """Runs once; a list that was full is made larger and the program run again."""
        while True:
            memory = dict(self.constants)
            for buffer, tensor in zip(self.lowered.inputs, inputs, strict=True):
                memory[buffer.slot] = tensor.reshape(-1)
            for buffer in self.program.tree.externals:
                if buffer.kind in ("output", "list"):
                    memory[buffer.slot] = self.allocate(buffer)
            full = self.emulator.run(memory, dict(self.capacities))
            if full.full_list is None:
                return [self.result(o, memory, full.results) for o in self.lowered.outputs]
            self.capacities[full.full_list] *= 4

    def allocate(self, buffer: Buffer) -> torch.Tensor:
        lead = self.capacities.get(buffer.slot, 1) if buffer.kind == "list" else 1
        dynamic = buffer.kind == "list" and not isinstance(buffer.shape[0], int)
        return torch.zeros(buffer.elements * (lead if dynamic else 1), dtype=buffer.dtype.torch)

    def result(
        self, output: OutputTensor | OutputList, memory: dict[int, torch.Tensor], scalars: list[int]
    ) -> torch.Tensor | list[torch.Tensor]:
        flat = memory[output.buffer.slot]
        match output:
            case OutputList(buffer, length):
                item = tuple(d for d in buffer.shape[1:] if isinstance(d, int))
                count = scalars[self.results[length]]
                return list(flat[: count * prod(item)].view(count, *item).clone().unbind(0))
            case OutputTensor(_, shape):
                sizes = [scalars[self.results[d]] if isinstance(d, Reg) else d for d in shape]
                return flat[: prod(sizes)].clone().view(sizes)

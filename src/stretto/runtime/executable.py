"""A program on the CPU machine, ready to be called with tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from stretto.codegen.cpp_program import Source, library_operands
from stretto.kernels.expr import Reg
from stretto.kernels.lowered import Lowered, OutputList, OutputTensor
from stretto.kernels.select import Packing
from stretto.options import Options
from stretto.runtime.compiler import SharedObject, compile_shared
from stretto.runtime.library import LibraryTable
from stretto.runtime.native import Interface, NativeProgram, ProgramStopped, Status, TaskEvent
from stretto.runtime.packing import pack
from stretto.schedule.program import DeviceProgram

FIRST_CAPACITY = 64
"""Items that a list of unknown length has room for at first."""
FIRST_FRAMES = 64
"""Activations of recursive functions that the arena has room for at first."""

Result = torch.Tensor | list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the results of main are found: their buffers' places in the argument block."""

    place: int
    output: OutputTensor | OutputList


class CpuExecutable:
    """Runs a DeviceProgram that was printed as C++. Safe to call from several threads at once."""

    def __init__(
        self,
        program: DeviceProgram,
        source: Source,
        lowered: Lowered,
        packings: tuple[Packing, ...],
        options: Options,
    ) -> None:
        self.source = source
        self.shared: SharedObject = compile_shared(source.text, options)
        self.tensors = constants_of(source, lowered, packings)
        self.results = {reg: n for n, reg in enumerate(program.tree.main.results)}
        places = {buffer.slot: place for place, buffer in enumerate(source.arguments)}
        self.inputs = [places[buffer.slot] for buffer in lowered.inputs]
        self.outputs = [Outputs(places[o.buffer.slot], o) for o in lowered.outputs]
        self.free = [b for b in source.arguments if b.kind != "constant"]
        self.capacities = {
            place: b.shape[0] if isinstance(b.shape[0], int) else FIRST_CAPACITY
            for place, b in enumerate(self.free)
            if b.kind == "list"
        }
        self.static = [
            (place, tuple(d for d in b.shape if isinstance(d, int)), b.dtype.torch)
            for place, b in enumerate(self.free)
            if b.kind == "output"
        ]
        # The common case: the argument block is inputs, results in order, constants.
        self.plain = not self.capacities and [o.place for o in self.outputs] == [
            place for place, _, _ in self.static
        ]
        calls = [(call, library_operands(call)) for call in source.library]
        self.native = NativeProgram(
            self.shared.path,
            self.interface(program, options),
            options,
            constants=[tensor.data_ptr() for tensor in self.tensors],
            library=LibraryTable(calls) if calls else None,
        )

    def interface(self, program: DeviceProgram, options: Options) -> Interface:
        frames = {name: frame.nbytes for name, frame in program.frames}
        deeper = sum(size for name, size in frames.items() if name != "main") * FIRST_FRAMES
        return Interface(
            units=program.units,
            buffers=len(self.source.arguments),
            limits=len(self.free) if self.capacities else 0,
            results=len(self.results),
            arena_bytes=frames["main"] + deeper,
            deep=self.source.recursive,
            max_depth=options.max_depth,
        )

    def __call__(self, inputs: list[torch.Tensor]) -> list[Result]:
        """Runs once. `inputs`: contiguous tensors in the order of main's params."""
        if self.plain:
            made = [torch.empty(shape, dtype=dtype) for _, shape, dtype in self.static]
            self.native.run([tensor.data_ptr() for tensor in inputs + made])
            return made  # pyright: ignore[reportReturnType]
        while True:
            memory = self.allocate(inputs)
            try:
                scalars = self.native.run(*self.arguments(memory))
            except ProgramStopped as stop:
                self.grow(stop)
                continue
            return [self.result(output, memory, scalars) for output in self.outputs]

    def profile(self, inputs: list[torch.Tensor]) -> tuple[list[Result], list[TaskEvent]]:
        """As a call, of a program built with Options(profile=True); also tells when each task ran."""
        self(inputs)
        memory = self.allocate(inputs)
        scalars, events = self.native.profile(*self.arguments(memory))
        return [self.result(output, memory, scalars) for output in self.outputs], events

    def allocate(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """A tensor for every buffer of the argument block but the constants."""
        if not self.capacities and len(inputs) + len(self.static) == len(self.free):
            memory = inputs + [torch.empty(shape, dtype=dtype) for _, shape, dtype in self.static]
            return memory
        memory: list[torch.Tensor] = []
        rest = iter(inputs)
        for place, buffer in enumerate(self.free):
            if buffer.kind == "input":
                memory.append(next(rest))
                continue
            shape = tuple(d for d in buffer.shape if isinstance(d, int))
            if place in self.capacities and not isinstance(buffer.shape[0], int):
                shape = (self.capacities[place], *shape)
            memory.append(torch.empty(shape, dtype=buffer.dtype.torch))
        return memory

    def arguments(self, memory: list[torch.Tensor]) -> tuple[list[int], list[int]]:
        pointers = [tensor.data_ptr() for tensor in memory]
        if not self.capacities:
            return pointers, []
        return pointers, [self.capacities.get(place, 0) for place in range(len(self.free))]

    def grow(self, stop: ProgramStopped) -> None:
        """Makes a list that was full larger; any other stop is raised."""
        place = int(stop.detail)
        if stop.status is not Status.LIST_FULL or place not in self.capacities:
            raise stop
        self.capacities[place] = self.capacities[place] * 4

    def result(self, output: Outputs, memory: list[torch.Tensor], scalars: list[int]) -> Result:
        tensor = memory[output.place]
        match output.output:
            case OutputList(_, length):
                return [item.clone() for item in tensor[: scalars[self.results[length]]]]
            case OutputTensor(_, shape):
                if any(isinstance(dim, Reg) for dim in shape):
                    sizes = [scalars[self.results[d]] if isinstance(d, Reg) else d for d in shape]
                    return tensor.view(-1)[: prod(sizes)].clone().view(sizes)
                return tensor


def constants_of(source: Source, lowered: Lowered, packings: tuple[Packing, ...]) -> list[torch.Tensor]:
    """The tensors of the constants that a program reads, in the order of its argument block."""
    packed = {packing.buffer: packing for packing in packings}
    tensors: list[torch.Tensor] = []
    for buffer in source.arguments:
        if buffer.kind != "constant":
            continue
        if buffer in packed:
            tensors.append(pack(packed[buffer], lowered.constants[packed[buffer].source.slot]))
        else:
            tensors.append(lowered.constants[buffer.slot].detach().contiguous())
    return tensors



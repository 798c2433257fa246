"""A program on the CPU machine, ready to be called with tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stretto.deadline import Deadline
from stretto.device.expr import Buffer, Reg
from stretto.device.forms import OutputList, OutputTensor, ProgramInterface
from stretto.device.program import DeviceProgram
from stretto.machines.cpu.native import Interface, NativeProgram
from stretto.machines.cpu.pool import HEADERS
from stretto.machines.cpu.printer.program import Source
from stretto.machines.machine import Executable, TaskEvent
from stretto.options import Options
from stretto.runtime.compiler import SharedObject, compile_shared
from stretto.runtime.constants import ConstantTable
from stretto.runtime.library import LibraryTable
from stretto.runtime.memory import usable_memory
from stretto.runtime.memory_watch import load as load_memory_watch
from stretto.runtime.probes import load as load_probes
from stretto.runtime.results import GROWTH, Result, first_capacities, grows, item_shape, result
from stretto.runtime.status import Status
from stretto.runtime.stops import ProgramStopped, explained

MOST_ARENA = 1 << 34
"""Bytes of one call's intermediate values, on a machine with plenty of memory."""
FIRST_FRAMES = 64
"""Activations of recursive functions that the arena has room for at first."""


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """A result of main, and the place of its buffer in the argument block."""

    number: int
    output: OutputTensor | OutputList


_empty = torch.empty_strided  # takes two thirds of the time of torch.empty


def _layout(buffer: Buffer) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Shape, strides and dtype of an output that is the same in each call."""
    like = torch.empty(item_shape(buffer), dtype=buffer.dtype.torch, device="meta")
    return tuple(like.shape), like.stride(), like.dtype


def _is_dynamic(place: ResultPlace) -> bool:
    """Whether a result is more than the memory of its buffer."""
    output = place.output
    return isinstance(output, OutputList) or any(isinstance(dim, Reg) for dim in output.shape)


class CpuExecutable(Executable):
    """Runs a DeviceProgram that was printed as C++. Safe to call from several threads at once."""

    def __init__(
        self,
        program: DeviceProgram,
        source: Source,
        interface: ProgramInterface,
        options: Options,
    ) -> None:
        self.source = source
        self.kernels = source.kernels
        self.timeout = options.timeout
        self.shared: SharedObject = compile_shared(source.text, options, HEADERS)
        load_memory_watch(options)
        load_probes(options)
        constants = [buffer for buffer in source.arguments if buffer.kind == "constant"]
        self.constants = ConstantTable(interface, constants, native=True)
        self.copies = self.constants.copies
        self.stops = interface.stops
        self.results = {reg: n for n, reg in enumerate(program.tree.main.results)}
        places = {buffer.slot: place for place, buffer in enumerate(source.arguments)}
        self.outputs = [ResultPlace(places[o.buffer.slot], o) for o in interface.outputs]
        self.free = [b for b in source.arguments if b.kind != "constant"]
        self.capacities = first_capacities(enumerate(self.free))
        self.static = [_layout(b) for b in self.free if b.kind == "output"]
        self.as_they_are = [place.number for place in self.outputs]
        self.is_shaped = any(map(_is_dynamic, self.outputs))
        self.native = NativeProgram(
            self.shared.path,
            self.needs(program, options),
            options,
            constants=[tensor.data_ptr() for tensor in self.constants.tensors.values()],
            library=LibraryTable(source.library) if source.library else None,
        )

    def needs(self, program: DeviceProgram, options: Options) -> Interface:
        frames = {name: frame.nbytes for name, frame in program.frames}
        deeper = sum(size for name, size in frames.items() if name != "main") * FIRST_FRAMES
        return Interface(
            units=program.units,
            buffers=len(self.source.arguments),
            limits=len(self.free) if self.capacities else 0,
            results=len(self.results),
            arena_bytes=frames["main"] + deeper,
            deep=self.source.recursive,
            arena_limit=min(MOST_ARENA, usable_memory() // 2),
            max_depth=options.max_depth,
        )

    def __call__(self, inputs: list[torch.Tensor]) -> list[Result]:
        """Runs once. `inputs`: contiguous tensors in the order of main's params."""
        deadline = 0 if self.timeout is None else Deadline.after(self.timeout).nanoseconds
        while True:
            capacities = dict(self.capacities)
            memory = self.allocate(inputs, capacities)
            try:
                scalars = self.native.run(*self.arguments(memory, capacities), deadline)
            except ProgramStopped as stop:
                self.grow(stop, capacities)
                continue
            return self.shaped(memory, scalars)

    def profile(self, inputs: list[torch.Tensor]) -> tuple[list[Result], list[TaskEvent]]:
        """As a call, of a program built with Options(profile=True); tells when each task ran."""
        self(inputs)
        capacities = dict(self.capacities)
        memory = self.allocate(inputs, capacities)
        scalars, events = self.native.profile(*self.arguments(memory, capacities))
        return self.shaped(memory, scalars), events

    def allocate(
        self, inputs: list[torch.Tensor], capacities: dict[int, int]
    ) -> list[torch.Tensor]:
        """A tensor for every buffer of the argument block but the constants."""
        if not capacities:  # the argument block is inputs and outputs, in this order
            return inputs + [
                _empty(shape, steps, dtype=dtype) for shape, steps, dtype in self.static
            ]
        memory: list[torch.Tensor] = []
        rest = iter(inputs)
        for place, buffer in enumerate(self.free):
            if buffer.kind == "input":
                memory.append(next(rest))
                continue
            lead = (capacities[place],) if grows(buffer) else ()
            memory.append(torch.empty((*lead, *item_shape(buffer)), dtype=buffer.dtype.torch))
        return memory

    def arguments(
        self, memory: list[torch.Tensor], capacities: dict[int, int]
    ) -> tuple[list[int], list[int]]:
        pointers = [tensor.data_ptr() for tensor in memory]
        if not capacities:
            return pointers, []
        return pointers, [capacities.get(place, 0) for place in range(len(self.free))]

    def grow(self, stop: ProgramStopped, capacities: dict[int, int]) -> None:
        """Makes a list that was full larger; any other stop is raised."""
        place = int(stop.detail)
        if stop.status is not Status.LIST_FULL or place not in capacities:
            raise explained(stop, self.stops) from None
        self.capacities[place] = max(self.capacities[place], capacities[place] * GROWTH)

    def shaped(self, memory: list[torch.Tensor], scalars: list[int]) -> list[Result]:
        if not self.is_shaped:
            return [memory[number] for number in self.as_they_are]
        return [
            result(place.output, memory[place.number], scalars, self.results)
            for place in self.outputs
        ]

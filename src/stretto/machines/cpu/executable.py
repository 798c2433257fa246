"""A program on the CPU machine, ready to be called with tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from operator import add
from typing import Any

import torch

from stretto.deadline import Deadline
from stretto.device.expr import Buffer, Reg
from stretto.device.forms import OutputList, OutputTensor, ProgramInterface
from stretto.device.program import DeviceProgram, has_parallel
from stretto.ir.failure import unpacked_detail
from stretto.machines.cpu.calls import NativeCalls
from stretto.machines.cpu.native import Interface, NativeProgram
from stretto.machines.cpu.pool import HEADERS
from stretto.machines.cpu.printer.cpp_file import CppSource
from stretto.machines.machine import Executable, TaskEvent
from stretto.options import Options
from stretto.runtime.call_sizes import Formulas, InputSizes, Values
from stretto.runtime.compiler import SharedObject, compile_shared
from stretto.runtime.constants import LARGE_RESULT, ConstantTable, CopiesAhead, advise_large
from stretto.runtime.library import LibraryTable
from stretto.runtime.memory_watch import load as load_memory_watch
from stretto.runtime.memory_watch import usable_memory
from stretto.runtime.probes import load as load_probes
from stretto.runtime.results import (
    DECIDED_BY_ORDER,
    GROWTH,
    ProgramStopped,
    Result,
    Status,
    explained,
    first_capacities,
    first_rows,
    grows,
    is_kept,
    item_shape,
    result,
    too_large,
)

MOST_ARENA = 1 << 34
"""Limit on the bytes of one call's intermediate values, on a machine with plenty of memory."""
ALIGNMENT = 64
"""Alignment of the memory of lists, in bytes."""
FIRST_FRAMES = 64
"""Number of activations of recursive functions that the first arena has room for."""


@dataclass(frozen=True, slots=True)
class ListMemory:
    """Layout of a call's memory for lists of certain capacities: a tensor for each result, and one
    common tensor for all lists that stay inside the program.

    tensors: for each buffer of the argument block except the constants, the shape, strides and
    dtype of its tensor, None for an input, and () for one in the common tensor. offsets: the byte
    at which it begins there; 0 for others. nbytes: of the common tensor.
    """

    tensors: tuple[tuple[Any, ...] | None, ...]
    offsets: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """A result of main, and the place of its buffer in the argument block."""

    number: int
    output: OutputTensor | OutputList


_empty = torch.empty_strided  # Takes two thirds of the time of torch.empty.


def _layout(buffer: Buffer) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Return the shape, strides and dtype of an output that is the same in each call."""
    like = torch.empty(item_shape(buffer), dtype=buffer.dtype.torch, device="meta")
    return tuple(like.shape), like.stride(), like.dtype


def _grows_alone(buffer: Buffer) -> bool:
    """True if a buffer grows and the size of its rows does not depend on the sizes of a call."""
    return grows(buffer) and not buffer.is_sized


def _is_dynamic(place: ResultPlace) -> bool:
    """True if the shape of a result is known only after the run, or the result is a list."""
    output = place.output
    return isinstance(output, OutputList) or any(isinstance(dim, Reg) for dim in output.shape)


class CpuExecutable(Executable):
    """Executable of a DeviceProgram that was printed as C++. Safe to call from several threads at
    once.

    A program with symbolic sizes is run by the same code: its sizes precede the addresses of its
    buffers in the words of a call. `copies`: copies of constants that were started earlier.
    """

    def __init__(
        self,
        program: DeviceProgram,
        source: CppSource,
        interface: ProgramInterface,
        options: Options,
        copies: CopiesAhead | None = None,
    ) -> None:
        self.source = source
        self.kernels = source.kernels
        self.timeout = options.timeout
        self.shared: SharedObject = compile_shared(
            source.text,
            options,
            HEADERS,
            splits=source.splits,
            straight=source.straight,
            linked=[item.text for item in source.shared],
        )
        load_memory_watch(options)
        load_probes(options)
        if copies is not None:
            copies.wait()
        constants = [buffer for buffer in source.arguments if buffer.kind == "constant"]
        self.constants = ConstantTable(interface, constants, native=True)
        self.copies = self.constants.copies
        self.stops = interface.stops
        self.repeatable = interface.repeatable
        self.results = {reg: n for n, reg in enumerate(program.tree.main.results)}
        places = {buffer.slot: place for place, buffer in enumerate(source.arguments)}
        self.outputs = [ResultPlace(places[o.buffer.slot], o) for o in interface.outputs]
        self.free = [b for b in source.arguments if b.kind != "constant"]
        self.capacities = first_capacities(enumerate(self.free))
        for place, buffer in enumerate(self.free):  # Do not try rows that exceed the memory.
            row = prod(item_shape(buffer)) * buffer.dtype.itemsize if _grows_alone(buffer) else 0
            if row:
                most = usable_memory() // 2 // row
                self.capacities[place] = min(self.capacities[place], most)
        self.list_memory: tuple[tuple[int, ...], ListMemory] | None = None
        lists = [b for b in self.free if b.kind == "list"]
        self.limits = [self.capacities.get(place, 0) for place in range(len(self.free))]
        self.has_fixed_limits = bool(lists) and all(isinstance(b.shape[0], int) for b in lists)
        made = ("output", "list") if self.has_fixed_limits else ("output",)
        results = [b for b in self.free if b.kind in made]
        self.sizes = InputSizes(interface.symbols, interface.inputs)
        self.is_sized = bool(interface.symbols)
        if self.is_sized:
            formulas = Formulas(interface.symbols)
            self.allocate_results = formulas.allocate(results, usable_memory())
        else:
            self.static = [_layout(buffer) for buffer in results]
        self.has_large = any(buffer.nbytes >= LARGE_RESULT for buffer in results)
        self.as_they_are = [place.number for place in self.outputs]
        self.is_shaped = any(map(_is_dynamic, self.outputs))
        self.cuts = [self._cut(place) for place in self.outputs]
        table = LibraryTable(source.library)
        self.native = NativeProgram(
            self.shared.path,
            self.needs(program, options),
            options,
            constants=[tensor.data_ptr() for tensor in self.constants.tensors.values()],
            library=table if source.library else None,
            draws=table.draws if table.draws.generators else None,
            calls=NativeCalls.made(source.library, program, options),
        )
        self.runs_in_turn = has_parallel(program) and not self.native.interface.once

    def needs(self, program: DeviceProgram, options: Options) -> Interface:
        """Return what the program expects in its Context."""
        frames = {name: frame.nbytes * frame.copies for name, frame in program.frames}
        deeper = sum(size for name, size in frames.items() if name != "main") * FIRST_FRAMES
        return Interface(
            units=program.units,
            buffers=len(self.source.arguments),
            limits=len(self.free) if self.capacities else 0,
            results=len(self.results),
            sizes=len(self.sizes.symbols),
            arena_bytes=frames["main"] + deeper,
            deep=self.source.recursive,
            arena_limit=min(MOST_ARENA, usable_memory() // 2),
            max_depth=options.max_depth,
            once=not self.repeatable and any(b.kind == "updated" for b in self.free),
        )

    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        """Run once. `inputs`: contiguous tensors in the order of main's params."""
        deadline = 0 if self.timeout is None else Deadline.after(self.timeout).nanoseconds
        known = self.sizes.bound(inputs) if sizes is None and self.is_sized else sizes or ()
        in_turn = False
        while True:
            capacities = dict(self.capacities)
            memory = self.allocate(inputs, capacities, known)
            words, limits = self.arguments(memory, capacities, known)
            try:
                scalars = self.native.run(words, limits, deadline, in_turn=in_turn)
            except ProgramStopped as stop:
                if self.runs_in_turn and not in_turn and stop.status in DECIDED_BY_ORDER:
                    in_turn = True  # In eager, an earlier iteration may fail first.
                    continue
                self.grow(stop, capacities, known)
                continue
            return self.shaped(memory, scalars, known)

    def expect(self) -> None:
        self.native.expect()

    def profile(self, inputs: list[torch.Tensor]) -> tuple[list[Result], list[TaskEvent]]:
        """As a call, for a program built with Options(profile=True); also return when each task
        ran."""
        results, events, _ = self.traced(inputs)
        return results, events

    def decisions(self, inputs: list[torch.Tensor]) -> list[tuple[str, int, int]]:
        """Return what the branches and loops of a call decided: the title of the node, the arm
        taken, and the unit."""
        taken = self.traced(inputs)[2]
        return [(self.source.decisions[node], way, unit) for node, way, unit in taken]

    def traced(
        self, inputs: list[torch.Tensor]
    ) -> tuple[list[Result], list[TaskEvent], list[tuple[int, int, int]]]:
        """Run a profiled program after a warm-up call; return results, events and decisions."""
        self(inputs)
        sizes = self.sizes.bound(inputs) if self.is_sized else ()
        capacities = dict(self.capacities)
        memory = self.allocate(inputs, capacities, sizes)
        scalars, events, taken = self.native.profile(*self.arguments(memory, capacities, sizes))
        return self.shaped(memory, scalars, sizes), events, taken

    def allocate(
        self, inputs: list[torch.Tensor], capacities: dict[int, int], sizes: Values
    ) -> list[torch.Tensor]:
        """Return a tensor for every buffer of the argument block except the constants."""
        if capacities and not self.has_fixed_limits:
            return self.allocate_lists(inputs, capacities, sizes)
        if not self.is_sized:  # The argument block is inputs, then outputs.
            made = [_empty(shape, steps, dtype=dtype) for shape, steps, dtype in self.static]
            return inputs + (advise_large(made) if self.has_large else made)
        return inputs + self.allocate_results(*sizes)

    def allocate_lists(
        self, inputs: list[torch.Tensor], capacities: dict[int, int], sizes: Values
    ) -> list[torch.Tensor]:
        """As `allocate`, for programs with lists."""
        memory: list[torch.Tensor] = []
        rest = iter(inputs)
        if not sizes:
            made = self.memory_for(capacities)
            inside = _empty((made.nbytes,), (1,), dtype=torch.uint8)
            for layout in made.tensors:
                if layout is None:
                    memory.append(next(rest))
                else:
                    memory.append(_empty(*layout[:2], dtype=layout[2]) if layout else inside)
            return memory
        registers = self.sizes.registers(sizes)
        for place, buffer in enumerate(self.free):
            if buffer.is_input:
                memory.append(next(rest))
                continue
            shape = item_shape(buffer, registers)
            lead = (capacities[place],) if grows(buffer) else ()
            nbytes = prod((*lead, *shape)) * buffer.dtype.itemsize
            if sizes and nbytes > usable_memory():
                shown = self.sizes.shown(sizes)
                raise too_large(f"buffer {buffer.name}", nbytes, usable_memory(), shown)
            memory.append(torch.empty((*lead, *shape), dtype=buffer.dtype.torch))
            if place in capacities and not grows(buffer):
                capacities[place] = shape[0]
        return memory

    def memory_for(self, capacities: dict[int, int]) -> ListMemory:
        """Return the layout of a call's memory for lists of these capacities; the last one is
        cached."""
        key = tuple(capacities.values())
        known = self.list_memory
        if known is None or known[0] != key:
            known = self.list_memory = (key, self._memory_for(capacities))
        return known[1]

    def _memory_for(self, capacities: dict[int, int]) -> ListMemory:
        """Compute the layout of `memory_for`."""
        returned, nbytes = set(self.as_they_are), 0
        tensors = list[tuple[Any, ...] | None]()
        offsets = list[int]()
        for place, buffer in enumerate(self.free):
            shape = item_shape(buffer)
            whole = (capacities[place], *shape) if grows(buffer) else shape
            inside = buffer.kind == "list" and place not in returned
            offsets.append(nbytes if inside else 0)
            if inside:
                nbytes += -(-prod(whole) * buffer.dtype.itemsize // ALIGNMENT) * ALIGNMENT
                tensors.append(())
            elif buffer.is_input:
                tensors.append(None)
            else:
                steps = tuple(prod(whole[axis + 1 :]) for axis in range(len(whole)))
                tensors.append((whole, steps, buffer.dtype.torch))
        return ListMemory(tuple(tensors), tuple(offsets), nbytes)

    def arguments(
        self, memory: list[torch.Tensor], capacities: dict[int, int], sizes: Values
    ) -> tuple[list[int], list[int]]:
        """Return the words and list capacities for a native run."""
        words = [tensor.data_ptr() for tensor in memory]
        if sizes:
            words = [*sizes, *words]
        if not capacities:
            return words, []
        if self.has_fixed_limits:
            return words, self.limits
        if not sizes:
            words = list(map(add, words, self.memory_for(capacities).offsets))
        return words, [capacities.get(place, 0) for place in range(len(self.free))]

    def grow(self, stop: ProgramStopped, capacities: dict[int, int], sizes: Values) -> None:
        """Enlarge a list that was full; raise any other stop."""
        if stop.status is Status.ARENA_FULL and self.is_sized:
            limit = self.native.interface.arena_limit
            what = "the intermediate values"
            raise too_large(what, stop.detail, limit, self.sizes.shown(sizes)) from None
        place, needed = unpacked_detail(int(stop.detail))
        if stop.status is not Status.LIST_FULL or place not in capacities:
            raise explained(stop, self.stops) from stop.__cause__
        buffer = self.free[place]
        row = prod(item_shape(buffer, self.sizes.registers(sizes))) * buffer.dtype.itemsize
        wanted = max(capacities[place] * GROWTH, needed)
        if wanted * row > usable_memory():
            wanted = max(capacities[place] + 1, needed)
        if wanted * row > usable_memory():
            shown = " and ".join(filter(None, (f"{wanted} rows", self.sizes.shown(sizes))))
            raise too_large(f"`{buffer.name}`", wanted * row, usable_memory(), shown) from None
        self.capacities[place] = max(self.capacities[place], wanted)

    def _cut(self, place: ResultPlace) -> Callable[[list[torch.Tensor], list[int]], Result]:
        """Return the function that makes a result from the memory and the registers, for programs
        without symbols."""
        number, output = place.number, place.output
        if not _is_dynamic(place):
            return lambda memory, _: memory[number]
        if isinstance(output, OutputList) or not isinstance(output.shape[0], Reg):
            return lambda memory, scalars: result(output, memory[number], scalars, self.results)
        at = self.results[output.shape[0]]
        rest = tuple(dim for dim in output.shape[1:] if isinstance(dim, int))
        if len(rest) + 1 != len(output.shape):
            return lambda memory, scalars: result(output, memory[number], scalars, self.results)
        room = output.buffer.shape[0]
        if isinstance(room, int) and is_kept(room, 0, rest):
            return lambda memory, scalars: memory[number].resize_((scalars[at], *rest))
        return lambda memory, scalars: first_rows(memory[number], (scalars[at], *rest))

    def shaped(self, memory: list[torch.Tensor], scalars: list[int], sizes: Values) -> list[Result]:
        """Return the results in the shapes that main declares."""
        if not self.is_shaped:
            return [memory[number] for number in self.as_they_are]
        if not sizes:
            return [cut(memory, scalars) for cut in self.cuts]
        registers = self.sizes.registers(sizes)
        return [
            result(place.output, memory[place.number], scalars, self.results, registers)
            for place in self.outputs
        ]

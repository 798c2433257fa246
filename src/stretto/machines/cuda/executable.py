"""A program on a GPU, ready to be called with tensors.

A call enqueues a launch on the caller's current stream and returns; it waits for the end only if
the host needs a value from it: sizes of results, or whether a recursion or a list had enough
memory. Any other failure of a launch is raised by a later call, or by `synchronize()`.

A launch works on a *state*: progress counters, which continue from launch to launch, local buffers,
a stack. There is one per stream, on which launches follow each other, and one per capture, since
the replays of a graph may run concurrently with other launches.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import torch

from stretto.device.evaluate import resolve
from stretto.device.expr import Buffer
from stretto.device.forms import ProgramInterface
from stretto.device.program import DeviceProgram
from stretto.device.regions import call_buffers
from stretto.errors import BuildError, RunError
from stretto.ir.failure import unpacked_detail
from stretto.machines.cuda.launch import Invocation
from stretto.machines.cuda.launcher import Launcher
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.state import (
    ALIGNMENT,
    NO_SIZES,
    Filler,
    Job,
    LaunchState,
    ParameterPlaces,
    StateSizes,
    aligned,
    failure,
    make_state,
)
from stretto.machines.machine import Executable
from stretto.options import Options
from stretto.runtime.call_sizes import InputSizes, Values
from stretto.runtime.constants import Copy, is_plain, pack
from stretto.runtime.memory_watch import regions_of
from stretto.runtime.results import (
    GROWTH,
    ProgramStopped,
    Result,
    Status,
    explained,
    first_capacities,
    grows,
    item_shape,
    result,
    too_large,
)

FIRST_FRAMES = 64
"""Activations of recursive functions for which the arena initially has memory."""
FIRST_STACK_WORDS = 1 << 10
"""Initial words of each unit's stack."""

_KEPT: list[object] = []
"""Objects that captured graphs point to and that nothing else keeps alive; never released, since
the lifetime of a graph is unknown."""


class CudaExecutable(Executable):
    """Runs a DeviceProgram that was printed as Triton kernels. Safe to call from several threads.

    sources: the sources of the launcher's kernels, in its order; a call launches the first. words:
    the positions of registers in the block of words; the results of main come first. `launches`
    counts launches: one per call, and one more each time that memory had to grow.
    """

    def __init__(
        self,
        program: DeviceProgram,
        sources: Sequence[TritonSource],
        interface: ProgramInterface,
        options: Options,
        launcher: Launcher,
        words: Mapping[str, int] | None = None,
    ) -> None:
        self.program = program
        self.sources = tuple(sources)
        self.interface = interface
        self.launcher = launcher
        self.max_depth = options.max_depth
        results = program.tree.main.results
        self.places = [ParameterPlaces.of(source) for source in self.sources]
        self.registers = {reg: words[reg.name] if words else n for n, reg in enumerate(results)}
        self.words = len(words) if words else len(results)
        self.free = [b for b in program.tree.externals if b.kind != "constant"]
        self.capacities = first_capacities(enumerate(self.free))
        self.inputs = [b.slot for b in interface.inputs]
        self.outputs = [o.buffer.slot for o in interface.outputs]
        self.made = [buffer for buffer in self.free if _is_fixed(buffer)]
        self.symbols = InputSizes(interface.symbols, interface.inputs)
        self.recursive = any(source.recursive for source in self.sources)
        self.sized = bool(results or self.capacities)
        self.is_read = self.sized or self.recursive or launcher.synchronous
        self.waits = self.is_read
        self.can_be_captured = not self.is_read
        self.why_not_captured = (
            "its outputs' sizes are read on the host"
            if self.sized
            else "the host must check whether its recursion had enough memory"
        )
        self.sizes = _first_sizes(program, self.sources)
        self.states: dict[int, LaunchState] = {}
        self.captures: dict[int, LaunchState] = {}
        self.launches = 0
        self._lock = threading.Lock()
        self.copies: tuple[Copy, ...] = ()
        self.packings = {packing.buffer.slot: packing for packing in interface.packings}
        with launcher.active(), launcher.relaxed():  # another thread may be capturing
            self._prepare()

    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        """Run once. `inputs`: contiguous tensors in the order of main's params.

        Raises RunError for an input on another device, and for a failure of an earlier call.
        """
        self._check_devices(inputs)
        known = self.symbols.bound(inputs) if self.symbols.symbols and not sizes else sizes or ()
        launcher = self.launcher
        with launcher.active():
            stream = launcher.stream()
            if capture := launcher.capture(stream):
                return self._captured(inputs, known, stream, capture)
            state = self._locked(stream)
            try:
                if state.failed:
                    launcher.synchronize(stream)
                    raise self.failure(state)
                if self.captures:
                    self._check_captures()
                self._reserve(state, known)
                if self.waits:
                    return self._run(inputs, known, state)
                memory = self._memory(inputs, {}, known)
                try:
                    self.run(Job(state, memory, {}, known, stream))
                except ProgramStopped as stop:  # raised by the host during the run
                    raise explained(stop, self.interface.stops) from None
            finally:
                state.lock.release()
            return [launcher.hand_out(memory[slot]) for slot in self.outputs]

    def run(self, job: Job) -> None:
        """Enqueue all GPU work of one call."""
        self.enqueue(self.prepared(0, job), job)

    def prepared(
        self,
        number: int,
        job: Job,
        frame: tuple[torch.Tensor, torch.Tensor] | None = None,
        reached: Sequence[torch.Tensor] = (),
    ) -> Invocation:
        """Return a kernel with its arguments. frame: arena and words, if not the state's. reached:
        tensors that words point to."""
        state = job.state
        invocation = state.invocations.get(number)
        if invocation is None:
            arguments = self._filler.arguments(number, state, self.wanted(state))
            invocation = state.invocations[number] = self.launcher.bind(number, arguments)
        self.places[number].fill(invocation, job, frame)
        invocation.reach(reached)
        return invocation

    def enqueue(self, invocation: Invocation, job: Job) -> None:
        self.launches += 1
        self.launcher.launch(invocation, job.stream, job.state.capture)

    def synchronize(self) -> None:
        """Wait for all calls and replays; raise RunError if one of them failed."""
        with self.launcher.active():
            self.launcher.synchronize()
            self._check_captures()
            for state in list(self.states.values()):
                with state.lock:
                    if state.failed:
                        self.launcher.synchronize(state.stream)
                        raise self.failure(state)

    def arena(self, state: LaunchState) -> torch.Tensor:
        """Return a state's memory for the local buffers of main. Raises as `memory`."""
        return self._filler.arena(state, self.wanted(state))

    def memory(self, count: int) -> torch.Tensor:
        """Allocate bytes for a program itself. Raises RunError if there is not enough memory."""
        return self._filler.memory(count)

    def constant(self, buffer: Buffer) -> torch.Tensor:
        """Return a constant as its kernels read it."""
        return self._filler.constants[buffer.slot]

    def failure(self, state: LaunchState) -> Exception:
        """Return the exception for a failed launch, after all launches have ended."""
        return explained(failure(self.launcher, state, self.max_depth), self.interface.stops)

    def require_running(self, state: LaunchState) -> None:
        """Raise ProgramStopped for a failed launch, after all launches have ended."""
        if state.failed:
            raise failure(self.launcher, state, self.max_depth)

    # ---- calls -------------------------------------------------------------------------------
    def _captured(
        self, inputs: list[torch.Tensor], sizes: Values, stream: int, capture: int
    ) -> list[Result]:
        """Run a call inside a captured graph. Its arena is memory of the graph, which reuses it
        for later work, so every launch has its own."""
        if not self.can_be_captured:
            why = self.why_not_captured
            raise RunError(
                f"the program cannot be captured, because {why}",
                remedy="call it outside of torch.cuda.graph",
            )
        state = self.captures.get(capture) or self._new_state(stream, capture)
        with state.lock:
            self._reserve(state, sizes)
            memory = self._memory(inputs, {}, sizes)
            try:
                self.run(Job(state, memory, {}, sizes, stream))
            finally:
                state.arena = None
                state.invocations.clear()
        return [memory[slot] for slot in self.outputs]

    def _run(self, inputs: list[torch.Tensor], known: Values, state: LaunchState) -> list[Result]:
        """Run, and grow what was too small, until there was enough memory; wait for each run."""
        ended = False
        try:
            while True:
                ended = False
                capacities = dict(self.capacities)
                memory = self._memory(inputs, capacities, known)
                try:
                    self.run(Job(state, memory, capacities, known, state.stream))
                    self.launcher.synchronize(state.stream)
                    if not state.failed:
                        self._settle(state)
                        return self._results(memory, list(state.words), known)
                    stop = failure(self.launcher, state, self.max_depth)
                except ProgramStopped as seen:  # raised by the host during the run
                    stop = seen
                ended = True
                self._grow(state, stop, capacities)
        except BaseException:
            if state.wanted != NO_SIZES:  # release the memory of a recursion that does not end
                state.wanted = NO_SIZES
                self._drop_memory(state)
            if not ended:  # the progress of the units is unknown
                self.states.pop(state.stream, None)
            raise

    def _grow(self, state: LaunchState, stop: ProgramStopped, capacities: dict[int, int]) -> None:
        """Enlarge what was too small; raise any other stop."""
        detail, limit = int(stop.detail), self.launcher.memory() // 2
        now, wanted = state.sizes, self.wanted(state)
        match stop.status:
            case Status.LIST_FULL if (place := unpacked_detail(detail)[0]) in capacities:
                room = max(capacities[place] * GROWTH, unpacked_detail(detail)[1])
                with self._lock:
                    self.capacities[place] = max(self.capacities[place], room)
                return
            case Status.ARENA_FULL if now.arena < min(detail, limit):
                arena = min(aligned(max(2 * now.arena, detail)), aligned(limit))
                state.wanted = wanted.joined(StateSizes(arena, 0))
            case Status.ARENA_FULL | Status.STACK_FULL if detail <= now.arena and (
                0 < now.stack <= limit // 2
            ):
                state.wanted = wanted.joined(StateSizes(0, 2 * now.stack))
            case _:
                raise explained(stop, self.interface.stops) from None
        self._drop_memory(state)

    def _reserve(self, state: LaunchState, sizes: Values) -> None:
        """Ensure an arena for main's local buffers, as large as the largest call so far needed.
        Raises RunError if that is more than a call may have."""
        if not sizes:
            return
        registers = self.symbols.registers(sizes)
        needed = aligned(resolve(self.program.frame("main").end, registers))
        limit = self.launcher.memory() // 2
        if needed > limit:
            what = "the intermediate values"
            raise too_large(what, needed, limit, self.symbols.shown(sizes))
        self._enlarge(StateSizes(needed, 0))
        if 0 < state.sizes.arena < needed:
            self._drop_memory(state)

    def wanted(self, state: LaunchState) -> StateSizes:
        """Return the sizes of what a state allocates next."""
        return self.sizes.joined(state.wanted)

    def _settle(self, state: LaunchState) -> None:
        """Let all states have what a call on one of them needed."""
        if state.wanted != NO_SIZES:
            self._enlarge(state.wanted)
            state.wanted = NO_SIZES

    def _enlarge(self, sizes: StateSizes) -> None:
        """Enlarge the sizes for all states. They never become smaller, because another thread may
        rely on them before it allocates."""
        with self._lock:
            self.sizes = self.sizes.joined(sizes)

    def _drop_memory(self, state: LaunchState) -> None:
        """Release the memory of a state before it gets a larger one."""
        state.invocations.clear()
        state.arena = state.stack = None

    def _memory(
        self, inputs: list[torch.Tensor], capacities: dict[int, int], sizes: Values
    ) -> dict[int, torch.Tensor]:
        """Return a tensor by slot for every buffer of the arguments but the constants."""
        self.launcher.begin_results()
        memory = {
            slot: tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
            for slot, tensor in zip(self.inputs, inputs, strict=True)
        }
        registers = self.symbols.registers(sizes)
        shapes = {buffer: item_shape(buffer, registers) for buffer in self.made}
        for place, room in capacities.items():
            buffer = self.free[place]
            shape = item_shape(buffer, registers)
            shapes[buffer] = (room, *shape) if grows(buffer) else shape
            capacities[place] = shapes[buffer][0]
        if sizes:
            nbytes = sum(prod(shape) * b.dtype.itemsize for b, shape in shapes.items())
            limit = self.launcher.memory()
            if nbytes > limit:
                raise too_large("the results", nbytes, limit, self.symbols.shown(sizes))
        for buffer, shape in shapes.items():
            memory[buffer.slot] = self._filler.output(shape, buffer.dtype.torch)
        return memory

    def _results(
        self, memory: Mapping[int, torch.Tensor], words: Sequence[int], sizes: Values
    ) -> list[Result]:
        registers = self.symbols.registers(sizes)
        made = [
            result(o, memory[o.buffer.slot], words, self.registers, registers)
            for o in self.interface.outputs
        ]
        hand_out = self.launcher.hand_out
        return [hand_out(one) if isinstance(one, torch.Tensor) else one for one in made]

    # ---- checks ------------------------------------------------------------------------------
    def _check_devices(self, inputs: list[torch.Tensor]) -> None:
        device = self.launcher.device
        for tensor in inputs:
            if tensor.device != device:
                found = ", ".join(f"input {n} on {t.device}" for n, t in enumerate(inputs))
                raise RunError(
                    f"the program runs on {device}, but there is {found}",
                    remedy=f"move all inputs there: `.to('{device}')`",
                )

    def _check_captures(self) -> None:
        """Raise the error of a replay that failed."""
        for state in list(self.captures.values()):
            if state.failed:
                self.launcher.synchronize()
                raise self.failure(state)

    # ---- constants and states ----------------------------------------------------------------
    def _prepare(self) -> None:
        """Copy constants and tables to the device, ready for any stream."""
        launcher = self.launcher
        stream = launcher.stream()
        if launcher.capture(stream):
            raise BuildError(
                "a function cannot be compiled while a stream is captured",
                remedy="call it once before the capture",
            )
        constants: dict[int, torch.Tensor] = {}
        used = {buffer for source in self.sources for buffer in source.arguments}
        calls = [kernel.call for kernel in self.program.kernels if kernel.call is not None]
        used.update(buffer for call in calls for buffer in call_buffers(call))
        for buffer in {buffer for buffer in used if buffer.kind == "constant"}:
            constants[buffer.slot] = self._constant(buffer.slot)
        tables = tuple(
            torch.tensor(s.tables or (0,), dtype=torch.int32, device=launcher.device)
            for s in self.sources
        )
        launcher.synchronize(stream)
        self._filler = Filler(launcher, self.sources, constants, tables, self.max_depth)

    def _constant(self, slot: int) -> torch.Tensor:
        """Return a constant on the device: the user's tensor, or a copy that launches can read."""
        packing, device = self.packings.get(slot), self.launcher.device
        own = slot if packing is None else packing.source.slot
        source = self.interface.constants[own].detach()
        is_read_there = source.device == device and is_plain(source)
        if packing is None and is_read_there and source.data_ptr() % ALIGNMENT == 0:
            return source

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if packing is not None:
                tensor = pack(packing, tensor, partial(_empty, tensor.device))
            tensor = tensor.resolve_neg().to(device).contiguous()
            own = tensor.data_ptr() % ALIGNMENT == 0 and tensor.data_ptr() != source.data_ptr()
            return tensor if own else tensor.clone()

        changes = source.is_cpu and own not in self.interface.made
        region = regions_of([source], native=False)[0] if changes else None
        self.copies = (*self.copies, Copy(source, moved, region))
        return self.copies[-1].tensor

    def _locked(self, stream: int) -> LaunchState:
        """Return the state of a stream with its lock held, unless another thread has given the
        state up while this one waited; then a new one."""
        while True:
            state = self.states.get(stream) or self._new_state(stream, 0)
            state.lock.acquire()
            if self.states.get(stream) is state:
                return state
            state.lock.release()

    def _new_state(self, stream: int, capture: int) -> LaunchState:
        states, key = (self.captures, capture) if capture else (self.states, stream)
        with self._lock:
            if key not in states:
                units = self.program.units
                states[key] = made = make_state(self.launcher, stream, capture, units, self.words)
                if capture:
                    _KEPT.append((made, self._copies(), self._filler.tables))
            return states[key]

    def _copies(self) -> list[torch.Tensor]:
        """Return the constants that are not the user's own tensors."""
        mine = self._filler.constants
        theirs = {tensor.data_ptr() for tensor in self.interface.constants.values()}
        return [tensor for tensor in mine.values() if tensor.data_ptr() not in theirs]


def _empty(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _is_fixed(buffer: Buffer) -> bool:
    """Return True for a buffer of fixed size that is allocated for each call."""
    return not buffer.is_input and buffer.kind not in ("list", "constant")


def _first_sizes(program: DeviceProgram, sources: Sequence[TritonSource]) -> StateSizes:
    """Return initial sizes: of a recursive program for some activations; otherwise every function
    is active at most once."""
    recursive = any(source.recursive for source in sources)
    frames = {name: frame.nbytes for name, frame in program.frames}
    others = sum(size for name, size in frames.items() if name != "main")
    arena = frames["main"] + others * (FIRST_FRAMES if recursive else 1)
    stack = FIRST_STACK_WORDS * 8 * program.units if recursive else 0
    return StateSizes(aligned(arena), stack)

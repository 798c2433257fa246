"""Interpret the text of a printed Triton program without a GPU, its units in random order.

A unit is a program instance of the launch, in its own greenlet; one runs at a time. `wait` of the
prelude calls `pause` while its target is not reached, and `fence` once it is; here both switch to
another unit that can continue. If there is none, the error names the units that wait for each
other. Loads and stores are checked against the buffers of the launch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from stretto.errors import RunError, SourceLocation
from stretto.extending.triton_source import located
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.interpreter.memory import (
    AccessObserver,
    Array,
    InterpretedBuffer,
    LaunchMemory,
    OutOfBounds,
)
from stretto.machines.cuda.interpreter.races import Dependences, Race, UnitAccesses
from stretto.machines.cuda.printer.source import (
    ENTRY,
    ERROR,
    PROGRESS,
    KernelParameter,
    TritonSource,
)
from stretto.machines.cuda.toolchain import file_name, require_greenlet, require_triton
from stretto.runtime.results import DeadlockError

if TYPE_CHECKING:
    from stretto.machines.cuda.interpreter.numpy_builder import NumpyBuilder, SharedLanguage

_SWITCH_AFTER_WAIT = 0.5
"""Probability that another unit runs first when a wait is over."""


@dataclass(slots=True)
class _CounterWait:
    """A unit waits until the counters of `count` units from `first` on have reached `target`."""

    first: int
    count: int
    target: int


class InterpretedKernel:
    """One program, interpreted on the CPU. The order of units is drawn from `seed` and the number
    of the launch.

    races: True if threads of one unit are checked against each other (races.py).
    """

    def __init__(self, source: TritonSource, seed: int = 0, races: bool = True) -> None:
        """Raise BuildError if Triton is missing or its version is not supported."""
        require_triton()
        self._greenlet = require_greenlet()
        from stretto.machines.cuda.interpreter import language as triton_language

        self.source = source
        self.seed = seed
        self.launches = 0
        self._language = triton_language
        self.races = races
        self._file = file_name(source.text)
        self._dependences = Dependences(source.text)
        self._module = triton_language.load_module(source.text)

    def launch(self, arguments: Sequence[Tensor | float], reached: Sequence[Tensor] = ()) -> None:
        """Run one launch. `arguments`: those of `source.parameters` in order, pointers as
        contiguous tensors on the CPU, which are changed in place; several may share memory.
        reached: further memory, to which words of the arguments point.

        The status of the run is written to the control block. Raises DeadlockError if no unit can
        continue, and RunError with the printed line for an access outside of a buffer, a race of
        two threads of one unit, or any other error in a unit.
        """
        values: list[Any] = []
        buffers: list[InterpretedBuffer] = []
        for parameter, argument in zip(self.source.parameters, arguments, strict=True):
            if isinstance(argument, Tensor) != parameter.is_pointer:
                raise ValueError(f"{parameter.name} is {parameter.type}, not {type(argument)}")
            if isinstance(argument, Tensor):
                if argument.device.type != "cpu" or not argument.is_contiguous():
                    raise ValueError(f"{parameter.name} must be contiguous memory on the CPU")
                is_constant = self._is_constant(parameter)
                buffer = InterpretedBuffer(
                    parameter.name, argument.data_ptr(), argument.nbytes, is_constant
                )
                buffers.append(buffer)
                values.append(self._language.argument(buffer.address, parameter.type, buffer))
            else:
                values.append(self._language.argument(argument, parameter.type))
        for tensor in reached:
            buffers.append(
                InterpretedBuffer("memory that a word points to", tensor.data_ptr(), tensor.nbytes)
            )
        kinds = [parameter.kind for parameter in self.source.parameters]
        control = values[kinds.index("control")].handle.attr["buffer"].words[8].view(np.int64)
        order = random.Random(self.seed * 1_000_003 + self.launches)
        self.launches += 1
        with self._language.interpreted():
            builder = self._language.BUILDER
            before, builder.memory = builder.memory, LaunchMemory(buffers)
            builder.grid_dim = (self.source.blocks, 1, 1)
            try:
                launch = _Launch(
                    builder, self._module, self._watches(), values, control, order, self._shared()
                )
                launch.run(self._greenlet)
            except _UnitFailed as failed:
                raise self._explained(failed) from failed.__cause__
            finally:
                builder.memory = before

    def _watches(self) -> list[AccessObserver | None]:
        """Return the race checker of each unit; None if races are not checked."""
        if not self.races:
            return [None] * self.source.blocks
        threads = self.source.warps * WARP
        return [
            UnitAccesses(self._file, threads, self._dependences) for _ in range(self.source.blocks)
        ]

    def _shared(self) -> SharedLanguage:
        from stretto.machines.cuda.interpreter.numpy_builder import SharedLanguage, SharedMemory

        size = self.source.shared_bytes
        memories = [SharedMemory(size) for _ in range(self.source.blocks)]
        return SharedLanguage(self._language.BUILDER, memories)

    def _is_constant(self, parameter: KernelParameter) -> bool:
        """Return True if no launch writes to the parameter's memory."""
        arguments = self.source.arguments
        if parameter.kind != "buffer" or parameter.place >= len(arguments):
            return parameter.kind == "tables"
        return arguments[parameter.place].kind == "constant"

    def _explained(self, failed: _UnitFailed) -> RunError:
        """Return the error with the innermost printed line that raised it, or the user's line that
        this comes from."""
        error = failed.__cause__
        assert error is not None
        location: SourceLocation | None = None
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename == self._file:
                location = SourceLocation(self._file, trace.tb_lineno, function=code.co_name)
            trace = trace.tb_next
        if location is not None:
            users = self.source.user_kernels
            found = located(self.source.text, location.line, users)
            location = location if found is None else found[1]
        kind = "" if isinstance(error, OutOfBounds | Race) else f"{type(error).__name__}: "
        return RunError(f"unit {failed.unit}: {kind}{error}", location=location)


class _UnitFailed(Exception):
    """A unit raised an error, which is the cause."""

    def __init__(self, unit: int) -> None:
        self.unit = unit


class _Launch:
    """The units of one launch, and which of them can continue."""

    def __init__(
        self,
        builder: NumpyBuilder,
        module: dict[str, Any],
        watches: Sequence[AccessObserver | None],
        values: list[Any],
        control: Array,
        order: random.Random,
        shared: SharedLanguage,
    ) -> None:
        self.builder = builder
        self.entry: Callable[..., None] = module[ENTRY]
        self.values = values
        self.control = control
        self.order = order
        self.waiting: dict[int, _CounterWait | None] = dict.fromkeys(range(len(watches)))
        self.watches = watches
        self.units: dict[int, Any] = {}
        self.current = 0
        self.hand_over: Callable[[], object] = lambda: None
        self.shared = shared
        shared.put(module)
        module["pause"] = self._pause
        module["fence"] = self._fence

    def run(self, greenlet: Any) -> None:
        self.hand_over = greenlet.getcurrent().switch
        self.units = {unit: greenlet.greenlet(self._run_unit) for unit in self.waiting}
        try:
            while self.units:
                ready = [unit for unit in self.units if self._is_ready(unit)]
                if not ready:
                    raise DeadlockError(f"deadlock: {'; '.join(map(self._text, self.units))}")
                self._advance(self.order.choice(ready))
        finally:
            for unit in self.units.values():
                unit.throw()  # ends a unit that has not finished

    def _advance(self, unit: int) -> None:
        self.current = unit
        self.builder.grid_idx = (unit, 0, 0)
        self.builder.memory.watch = self.watches[unit]
        self.shared.unit = unit
        try:
            self.units[unit].switch()
        except Exception as error:  # the program's text may raise any error
            raise _UnitFailed(unit) from error
        if self.units[unit].dead:
            del self.units[unit]

    def _run_unit(self) -> None:
        with np.errstate(all="ignore"):
            self.entry(*self.values)

    # ---- replacements of the prelude's functions ---------------------------------------------
    def _pause(self, control: Any, first: Any, count: Any, target: Any) -> None:
        self.waiting[self.current] = _CounterWait(_int(first), _int(count), _int(target))
        self.hand_over()

    def _fence(self, control: Any) -> None:
        watch = self.watches[self.current]
        if watch is not None:
            watch.acquire()
        if self.order.random() < _SWITCH_AFTER_WAIT:
            self.hand_over()

    # ---- units that can continue -------------------------------------------------------------
    def _is_ready(self, unit: int) -> bool:
        waiting = self.waiting[unit]
        if waiting is None:
            return True
        start = PROGRESS + waiting.first
        there = self.control[start : start + waiting.count] >= waiting.target
        if waiting.first <= unit < waiting.first + waiting.count:
            there[unit - waiting.first] = True
        if self.control[ERROR] != 0 or there.all():
            self.waiting[unit] = None
            return True
        return False

    def _text(self, unit: int) -> str:
        """Return e.g. `unit 1 waits for unit 0 (at 3, ended) to reach 5`."""
        waiting = self.waiting[unit]
        assert waiting is not None
        missing: list[str] = []
        for other in range(waiting.first, waiting.first + waiting.count):
            progress = int(self.control[PROGRESS + other])
            if progress < waiting.target and other != unit:
                ended = "" if other in self.units else ", ended"
                missing.append(f"unit {other} (at {progress}{ended})")
        return f"unit {unit} waits for {', '.join(missing)} to reach {waiting.target}"


def _int(value: Any) -> int:
    return value if isinstance(value, int) else int(value.handle.data.item())

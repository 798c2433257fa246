"""Calls of a compiled program: the Python side of include/abi.h.

One call is one transition from Python to native code. The data of a call (a Context and the arrays
it points to, the arena) is a frame; frames are created once and reused, and each concurrent caller
gets its own.
"""

import ctypes
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import RunError
from stretto.machines.cpu.calls import CallState, NativeCalls
from stretto.machines.cpu.pool import launcher
from stretto.machines.machine import TaskEvent
from stretto.options import Options
from stretto.runtime.compiler import load_library
from stretto.runtime.constants import PAGE_BYTES, advise
from stretto.runtime.library import Draws
from stretto.runtime.results import ProgramStopped, Status, stopped

LibraryCall = Callable[[int, int], object]
"""`library(call, operands)`: the number of the call, and the address of its array of pointers. It
runs on the thread of the calling unit, with the GIL."""

_FIRST_EVENTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Interface:
    """Contents that a program expects in its Context.

    buffers, limits, results, sizes: lengths of those arrays. `arena_bytes` grows, up to
    `arena_limit`, when the program finds it too small. deep: the program recurses on the native
    stack. wait_limit_ns: a longer wait is an error; 0 is no limit. once: a launch that has begun
    must be finished, because it changes what it reads.
    """

    units: int
    buffers: int
    limits: int = 0
    results: int = 0
    sizes: int = 0
    arena_bytes: int = 0
    arena_limit: int = 1 << 34
    deep: bool = False
    max_depth: int = 100_000
    wait_limit_ns: int = 0
    once: bool = False


class _Event(ctypes.Structure):
    """A traced task, or a decision (negative kernel), as in abi.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("kernel", "task", "start", "end")]


class _NativeContext(ctypes.Structure):
    """The fields of `struct Context` of abi.h, in order."""

    _fields_ = [
        ("buffers", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_int64),
        ("limits", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("progress", ctypes.c_void_p),
        ("units", ctypes.c_int32),
        ("deep", ctypes.c_int32),
        ("stop", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("detail", ctypes.c_int64),
        ("library", ctypes.c_void_p),
        ("poll", ctypes.c_void_p),
        ("switch_unit", ctypes.c_void_p),
        ("has_core", ctypes.c_void_p),
        ("is_small", ctypes.c_void_p),
        ("once", ctypes.c_int64),
        ("in_turn", ctypes.c_int64),
        ("next_poll", ctypes.c_int64),
        ("deadline", ctypes.c_int64),
        ("max_depth", ctypes.c_int64),
        ("wait_limit_ns", ctypes.c_int64),
        ("events", ctypes.c_void_p),
        ("event_capacity", ctypes.c_int64),
        ("event_count", ctypes.c_void_p),
        ("callable", ctypes.c_void_p),
        ("exception", ctypes.c_void_p * 3),
        ("calls", ctypes.c_void_p),
        ("run_call", ctypes.c_void_p),
        ("release_call", ctypes.c_void_p),
        ("clear_calls", ctypes.c_void_p),
        ("sleep", ctypes.c_void_p),
        ("wake", ctypes.c_void_p),
    ]


_PROGRESS_BYTES = 128
WORD_BYTES = 8


class _Memory:
    """Zeroed memory on a page boundary; pages are allocated when they are touched."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # Not shared with a forked child.
        self._pages = mmap.mmap(-1, max(size, 1), flags=flags)
        if size >= 2 * PAGE_BYTES:
            advise(self._pages)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))


class _Frame:
    """Data of one call at a time; the attributes keep alive what `context` points to."""

    def __init__(
        self, interface: Interface, constants: Sequence[int], library: LibraryCall | None
    ) -> None:
        self.words = (ctypes.c_int64 * (interface.sizes + interface.buffers))()
        """The sizes, followed by the addresses of the buffers."""
        if constants:
            self.words[-len(constants) :] = constants
        self.limits = (ctypes.c_int64 * interface.limits)()
        self.results = (ctypes.c_int64 * interface.results)()
        self.event_count = (ctypes.c_int64 * interface.units)()
        self.deadline = 0
        self.progress = _Memory(_PROGRESS_BYTES * interface.units)
        self.library = library
        self.context = context = _NativeContext(
            buffers=ctypes.addressof(self.words) + interface.sizes * WORD_BYTES,
            limits=ctypes.addressof(self.limits),
            sizes=ctypes.addressof(self.words),
            results=ctypes.addressof(self.results),
            progress=self.progress.address,
            units=interface.units,
            deep=interface.deep,
            once=interface.once,
            max_depth=interface.max_depth,
            wait_limit_ns=interface.wait_limit_ns,
            event_count=ctypes.addressof(self.event_count),
            callable=None if library is None else id(library),
        )
        self.pointer = ctypes.c_void_p(ctypes.addressof(context))

    def set_calls(self, state: CallState) -> None:
        """Set the state of library calls without Python."""
        self.calls = state
        self.context.calls = state.address
        self.context.run_call = state.run
        self.context.release_call = state.release
        self.context.clear_calls = state.clear

    def set_arena(self, size: int) -> None:
        """Replace the arena by one of `size` bytes."""
        self.arena = _Memory(1)  # Releases the old arena before the new one is allocated.
        self.arena = _Memory(size)
        self.context.arena = self.arena.address
        self.context.arena_bytes = size

    def set_events(self, capacity: int) -> None:
        """Replace the trace buffer by one with `capacity` events per unit."""
        self.events = (_Event * (capacity * self.context.units))()
        self.context.events = ctypes.addressof(self.events)
        self.context.event_capacity = capacity


class NativeProgram:
    """A compiled program, ready to run, from any number of threads at once.

    path: a shared object that exports `stretto_run` (see abi.h).
    constants: addresses for the last entries of Context.buffers, the same in every run; the
        caller keeps the memory alive.
    library: runs the program's library calls. draws: the generators these draw from. calls: those
        library calls that need no Python.

    `launches` counts the transitions from Python to the program: one per run, and one more each
    time that its arena or a list had to grow.
    """

    def __init__(
        self,
        path: Path,
        interface: Interface,
        options: Options,
        *,
        constants: Sequence[int] = (),
        library: LibraryCall | None = None,
        draws: Draws | None = None,
        calls: NativeCalls | None = None,
    ) -> None:
        self.interface = interface
        self._constants = constants
        self._library = library
        self._draws = draws
        self._calls = calls
        self._shared_object = load_library(path)
        self._entry = ctypes.cast(self._shared_object.stretto_run, ctypes.c_void_p)
        is_small = getattr(self._shared_object, "stretto_is_small", None)
        self._is_small = None if is_small is None else ctypes.cast(is_small, ctypes.c_void_p)
        self._launch, self._expect = launcher(options)
        free = interface.buffers - len(constants)
        self._pack_words = struct.Struct(f"{interface.sizes}q{free}Q").pack_into
        self._pack_limits = struct.Struct(f"{interface.limits}q").pack_into
        self._arena_bytes = interface.arena_bytes
        self._idle: list[_Frame] = []  # Needs no lock: append and pop are atomic.
        self.launches = 0

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena of one call, as far as it has grown so far."""
        return self._arena_bytes

    def expect(self) -> None:
        """Announce a run, so that sleeping threads wake up."""
        self._expect(self.interface.units)

    def run(
        self,
        words: Sequence[int],
        limits: Sequence[int] = (),
        deadline: int = 0,
        *,
        in_turn: bool = False,
    ) -> list[int]:
        """Run the program once; the GIL is released meanwhile. Return Context.results.

        words: Context.sizes, followed by an address for every entry of Context.buffers except the
            constants; the caller keeps the memory alive.
        limits: capacities of the lists.
        deadline: end of the run, in nanoseconds of the monotonic clock; 0 is no deadline.
        in_turn: one unit runs the iterations of parallel loops, in order.

        Raise ProgramStopped (LIST_FULL: run again with a longer list), and whatever a signal
        handler raises, such as KeyboardInterrupt.
        """
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self._new_frame()
        if deadline != frame.deadline:
            frame.deadline = frame.context.deadline = deadline
        if in_turn:
            frame.context.in_turn = 1
        try:
            return self._run(frame, words, limits)
        finally:
            if in_turn:
                frame.context.in_turn = 0
            self._idle.append(frame)

    def profile(
        self, words: Sequence[int], limits: Sequence[int] = ()
    ) -> tuple[list[int], list[TaskEvent], list[tuple[int, int, int]]]:
        """As `run`, for a program built with Options(profile=True). Also return when each task
        ran, and the decisions of each unit in order: the number of the control node, the arm
        taken, and the unit.

        The program runs once before, so that no page of its arena is touched for the first time
        while a task is timed, and again if there were more tasks than expected.
        """
        frame = self._new_frame()
        self._run(frame, words, limits)
        frame.set_events(_FIRST_EVENTS)
        results = self._run(frame, words, limits)
        while (count := max(frame.event_count)) > frame.context.event_capacity:
            frame.set_events(count)
            results = self._run(frame, words, limits)
        events = _events(frame)
        tasks = [event for event in events if event.kernel >= 0]
        taken = [(-1 - e.kernel, e.task, e.unit) for e in events if e.kernel < 0]
        return results, tasks, taken

    def _run(self, frame: _Frame, words: Sequence[int], limits: Sequence[int]) -> list[int]:
        """Run in the given frame; see `run`."""
        self._pack_words(frame.words, 0, *words)
        if limits:
            self._pack_limits(frame.limits, 0, *limits)
        self.launches += 1
        size = frame.arena.size
        try:
            if self._launch(self._entry, frame.pointer) != 0:
                self._grow_and_retry(frame)
            if frame.context.status != Status.OK:
                raise _stopped(frame, self.interface)
        except BaseException as error:
            if self._draws is not None:
                self._draws.end(words, undo=True)
            if frame.arena.size > size:  # An endless recursion must not leave a huge arena.
                frame.set_arena(size)
            stopped_itself = isinstance(error, RunError) or not isinstance(error, Exception)
            if frame.context.status == Status.LIBRARY_FAILED and not stopped_itself:
                raise _stopped(frame, self.interface) from error
            raise
        if self._draws is not None:
            self._draws.end(words, undo=False)
        self._arena_bytes = max(self._arena_bytes, frame.arena.size)
        return frame.results[:]

    def _new_frame(self) -> _Frame:
        frame = _Frame(self.interface, self._constants, self._library)
        frame.context.is_small = self._is_small
        if self._calls is not None:
            frame.set_calls(self._calls.state())
        frame.set_arena(self._arena_bytes)
        return frame

    def _grow_and_retry(self, frame: _Frame) -> None:
        """Enlarge the arena and run again, as long as it is too small and the limit is not
        exceeded.

        If there is no memory for a much larger arena, exactly what is needed is tried once: that is
        enough for a frame whose size the call decides, while a recursion would ask again for each
        level.
        """
        limit = self.interface.arena_limit
        may_be_exact = True
        while frame.context.status == Status.ARENA_FULL and frame.context.detail <= limit:
            size = frame.arena.size
            if size >= limit:
                return
            needed = max(frame.context.detail, size + 1)
            more = (min(max(size * n // 4, needed, mmap.PAGESIZE), limit) for n in (8, 6, 5))
            if not any(_has_arena(frame, wanted) for wanted in more):
                if not (may_be_exact and _has_arena(frame, needed)):
                    return frame.set_arena(size)
                may_be_exact = False
            self.launches += 1
            self._launch(self._entry, frame.pointer)


def _has_arena(frame: _Frame, size: int) -> bool:
    """Allocate an arena of that size. Return False if the process may not have that much (ulimit
    -v)."""
    try:
        frame.set_arena(size)
    except OSError:
        return False
    return True


def _events(frame: _Frame) -> list[TaskEvent]:
    """Return the traced events of all units."""
    capacity = frame.context.event_capacity
    return [
        TaskEvent(unit, event.kernel, event.task, event.start, event.end)
        for unit, count in enumerate(frame.event_count)
        for event in frame.events[unit * capacity : unit * capacity + count]
    ]


def _stopped(frame: _Frame, interface: Interface) -> ProgramStopped:
    status, detail = Status(frame.context.status), int(frame.context.detail)
    return stopped(status, detail, interface.max_depth, frame.arena.size)

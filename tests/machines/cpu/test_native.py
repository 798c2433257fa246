"""NativeProgram: buffers, results, errors, exceptions, interrupts, traces."""

import ctypes
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

from stretto.errors import BuildError, RunError
from stretto.machines.cpu import native, pool
from stretto.machines.cpu.native import NativeProgram
from stretto.options import Options
from stretto.runtime.results import ProgramStopped, Status

Build = Callable[..., NativeProgram]

ENDLESS = "{ uint32_t n = 0; while (back_edge(ctx, unit, n)) {} }"
ADD_ONE = "if (unit == 0) static_cast<float*>(ctx->buffers[0])[0] += 1;"


def check_still_works(build: Build, units: int) -> None:
    """After an error, this process can run programs as before."""
    x = torch.zeros(1)
    build(ADD_ONE, units=units).run([x.data_ptr()])
    assert x.item() == 1


def test_layout_is_that_of_abi_h(build: Build):
    build(ADD_ONE)  # loads the pool
    out = (ctypes.c_int64 * 8)()
    pool.load(Options()).stretto_pool_layout(out)
    context = native._NativeContext
    assert list(out) == [
        ctypes.sizeof(context),
        native._PROGRESS_BYTES,
        ctypes.sizeof(native._Event),
        context.stop.offset,
        context.library.offset,
        context.events.offset,
        context.exception.offset,
        context.wake.offset,
    ]


def test_buffers_constants_limits_and_results(build: Build):
    x, y, weight = torch.tensor([2.0]), torch.zeros(1), torch.tensor([3.0])
    program = build(
        """
        auto at = [&](int i) { return static_cast<float*>(ctx->buffers[i]); };
        at(1)[0] = at(0)[0] * at(2)[0];
        ctx->results[0] = ctx->limits[1];
        ctx->results[1] = -5;
        """,
        buffers=3,
        constants=(weight.data_ptr(),),
        limits=2,
        results=2,
    )
    assert program.run([x.data_ptr(), y.data_ptr()], [7, 8]) == [8, -5]
    assert y.item() == 6
    with pytest.raises(Exception, match="expected 3 items|pack_into expected"):
        program.run([x.data_ptr()], [7, 8])


def test_arena_is_aligned_and_grows_until_it_is_enough(build: Build):
    body = """
    if (!arena_left(ctx, 1000000)) return;
    for (int64_t i = 0; i < 1000000; ++i) ctx->arena[i] = 1;
    ctx->results[0] = reinterpret_cast<intptr_t>(ctx->arena) % 64;
    """
    program = build(body, arena_bytes=100, results=1)
    assert program.run([0]) == [0]
    assert program.arena_bytes == 1_000_000


def test_arena_limit(build: Build):
    program = build(
        "for (int64_t i = 1; arena_left(ctx, i); i += 100) {}", arena_bytes=64, arena_limit=1 << 20
    )
    with pytest.raises(RunError, match="more than 1 MiB") as caught:
        program.run([0])
    assert "base case" in str(caught.value)


@pytest.mark.parametrize("units", [1, 2])
def test_full_list_is_for_the_caller(build: Build, units: int):
    program = build("if (8 >= ctx->limits[1]) fail(ctx, LIST_FULL, 1);", limits=2, units=units)
    program.run([0], [0, 9])
    with pytest.raises(ProgramStopped, match="list 1 is longer") as caught:
        program.run([0], [0, 8])
    assert (caught.value.status, caught.value.detail) == (Status.LIST_FULL, 1)
    program.run([0], [0, 9])


def test_first_error_wins_and_stops_every_unit(build: Build):
    program = build(
        "if (unit == 1) fail(ctx, ASSERTION, 17); else { wait(ctx, unit, 1, 1); "
        "fail(ctx, LIST_FULL, 3); }",
        units=2,
    )
    with pytest.raises(ProgramStopped, match="assertion 17") as caught:
        program.run([0])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, copy.detail, str(copy)) == (Status.ASSERTION, 17, str(caught.value))
    check_still_works(build, 2)


def test_wait_limit(build: Build):
    program = build("if (unit == 0) wait(ctx, 0, 1, 5);", units=2, wait_limit_ns=20_000_000)
    with pytest.raises(ProgramStopped, match="unit 1 to reach step 5 took too long"):
        program.run([0])


# ---- recursion ---------------------------------------------------------------------------------
RECURSE = """
int64_t recurse(Context* ctx, int unit, int64_t depth, int64_t end) {
    volatile char frame[1000];
    frame[depth % 1000] = 1;
    if (!depth_left(ctx, unit, depth)) return 0;
    return depth == end ? 0 : recurse(ctx, unit, depth + 1, end) + frame[depth % 1000];
}
"""


@pytest.mark.parametrize("units", [1, 2])
def test_deep_recursion_on_every_unit(build: Build, units: int):
    depth = 90_000  # times 1000 bytes and more: ten times the usual stack
    body = f"int64_t n = recurse(ctx, unit, 0, {depth}); if (unit == ctx->units - 1) "
    program = build(body + "ctx->results[0] = n;", before=RECURSE, units=units, results=1, deep=1)
    for _ in range(3):
        assert program.run([0]) == [depth]


@pytest.mark.parametrize("units", [1, 2])
def test_recursion_without_end(build: Build, units: int):
    body = "recurse(ctx, unit, 0, -1);"
    program = build(body, before=RECURSE, units=units, deep=1, max_depth=5000)
    with pytest.raises(RunError, match="deeper than 5000 calls") as caught:
        program.run([0])
    assert "max_depth" in str(caught.value)
    program = build(body, before=RECURSE, units=units, deep=1, max_depth=1 << 40)
    with pytest.raises(RunError, match="used up the stack") as caught:
        program.run([0])
    assert "base case" in str(caught.value)
    check_still_works(build, units)


def test_deep_programs_in_several_threads(build: Build):
    body = "ctx->results[0] = recurse(ctx, unit, 0, 20000);"
    program = build(body, before=RECURSE, results=1, deep=1)
    assert in_threads(4, lambda: program.run([0])) == [[20_000]] * 4


# ---- library calls -----------------------------------------------------------------------------
CALL = """
void* operands[2] = {ctx->buffers[0], ctx->buffers[1]};
if (unit == ctx->units - 1 && !call_library(ctx, unit, 12, operands)) return;
"""


@pytest.mark.parametrize("deep", [0, 1])
@pytest.mark.parametrize("units", [1, 2, 3])
def test_library_call(build: Build, units: int, deep: int):
    seen: list[tuple[int, list[int | None]]] = []

    def library(call: int, operands: int) -> None:
        seen.append((call, (ctypes.c_void_p * 2).from_address(operands)[:]))

    program = build(CALL, buffers=2, units=units, deep=deep, library=library)
    program.run([111, 222])
    program.run([333, 444])
    assert seen == [(12, [111, 222]), (12, [333, 444])]


@pytest.mark.parametrize("deep", [0, 1])
@pytest.mark.parametrize("units", [1, 2])
def test_exception_in_a_library_call(build: Build, units: int, deep: int):
    failing = True

    def library(call: int, operands: int) -> None:
        if failing:
            raise ValueError("shapes differ")

    program = build(CALL, buffers=2, units=units, deep=deep, library=library)
    for _ in range(3):
        with pytest.raises(RunError, match="library call 12 failed") as caught:
            program.run([1, 2])
        assert isinstance(caught.value.__cause__, ValueError)
        assert str(caught.value.__cause__) == "shapes differ"
    failing = False
    program.run([1, 2])
    check_still_works(build, units)


CROWDED = (os.cpu_count() or 1) + 1
"""So many units that they run as fibers of the calling thread."""


@pytest.mark.parametrize("units", [2, CROWDED])
def test_exception_in_a_library_call_stops_the_other_units(build: Build, units: int):
    """Also where another one never waits, and comes first."""

    def library(call: int, operands: int) -> None:
        raise ValueError("no")

    program = build(CALL + ENDLESS, buffers=2, units=units, library=library)
    with pytest.raises(RunError, match="library call 12 failed"):
        program.run([1, 2])


def test_keyboard_interrupt_in_a_library_call_is_not_wrapped(build: Build):
    def library(call: int, operands: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(CALL, buffers=2, library=library).run([1, 2])


@pytest.mark.parametrize("deep", [0, 1])
@pytest.mark.parametrize("units", [1, 2])
def test_library_call_that_runs_another_program(build: Build, units: int, deep: int):
    x = torch.zeros(1)
    inner = build(ADD_ONE, units=2, deep=deep)
    program = build(
        CALL, buffers=2, units=units, deep=deep, library=lambda *_: inner.run([x.data_ptr()])
    )
    for _ in range(3):
        program.run([1, 2])
    assert x.item() == 3


# ---- signals -----------------------------------------------------------------------------------
@contextmanager
def later(seconds: float, signal_number: int) -> Generator[None, None, None]:
    """Sends this process a signal after a while; fails if the block takes ten seconds."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal_number))
    timer.start()
    start = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("deep", [0, 1])
@pytest.mark.parametrize("units", [1, 2, 4])
def test_ctrl_c_in_an_endless_loop(build: Build, units: int, deep: int):
    program = build(ENDLESS, units=units, deep=deep)
    for _ in range(2):
        with later(0.1, signal.SIGINT), pytest.raises(KeyboardInterrupt):
            program.run([0])
    check_still_works(build, units)


@pytest.mark.parametrize(
    "body",
    [
        "if (unit == 0) wait(ctx, 0, 1, 1); else " + ENDLESS,  # unit 0 waits in the program
        "if (unit == 1) " + ENDLESS,  # unit 0 is done
    ],
)
def test_ctrl_c_while_another_unit_works(build: Build, body: str):
    program = build(body, units=2)
    with later(0.1, signal.SIGINT), pytest.raises(KeyboardInterrupt):
        program.run([0])
    check_still_works(build, 2)


def test_ctrl_c_while_another_thread_has_the_pool(build: Build):
    stop = torch.zeros(1, dtype=torch.int32)
    body = "auto* go = static_cast<std::atomic<int>*>(ctx->buffers[0]); while (!go->load()) {}"
    program = build(body, units=2)
    other = threading.Thread(target=lambda: program.run([stop.data_ptr()]))
    other.start()
    time.sleep(0.1)
    try:
        with later(0.1, signal.SIGINT), pytest.raises(KeyboardInterrupt):
            build(ENDLESS, units=2).run([stop.data_ptr()])
    finally:
        stop.fill_(1)
        other.join()
    check_still_works(build, 2)


@pytest.mark.parametrize("on_main_thread", [True, False])
@pytest.mark.parametrize("units", [1, 2, 5])
def test_deadline(build: Build, units: int, on_main_thread: bool):
    program = build(ENDLESS, units=units)
    caught: list[ProgramStopped] = []

    def run() -> None:
        with pytest.raises(ProgramStopped, match=r"longer than Options\(timeout=") as error:
            program.run([0], deadline=time.monotonic_ns() + 50_000_000)
        caught.append(error.value)

    if on_main_thread:
        run()
    else:
        in_threads(1, run)
    assert [stop.status for stop in caught] == [Status.TIMEOUT]
    check_still_works(build, units)


def test_signal_handlers_run_and_may_raise(build: Build):
    def handle(number: int, frame: object) -> None:
        raise TimeoutError("too long")

    program = build(ENDLESS, units=2)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with later(0.1, signal.SIGALRM), pytest.raises(TimeoutError, match="too long"):
            program.run([0])
    finally:
        signal.signal(signal.SIGALRM, before)


def test_signal_handler_that_returns_lets_the_program_go_on(build: Build):
    stop = torch.zeros(1, dtype=torch.int32)
    body = """
    auto* go = static_cast<std::atomic<int>*>(ctx->buffers[0]);
    uint32_t n = 0;
    while (!go->load()) if (!back_edge(ctx, unit, n)) return;
    """
    program = build(body, units=2)
    before = signal.signal(signal.SIGALRM, lambda *_: stop.fill_(1))
    try:
        with later(0.1, signal.SIGALRM):
            program.run([stop.data_ptr()])
    finally:
        signal.signal(signal.SIGALRM, before)


# ---- threads, traces ---------------------------------------------------------------------------
def in_threads(count: int, function: Callable[[], object]) -> list[object]:
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(function())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_the_gil_is_released(build: Build):
    stop = torch.zeros(1, dtype=torch.int32)
    body = "auto* go = static_cast<std::atomic<int>*>(ctx->buffers[0]); while (!go->load()) {}"
    program = build(body)
    timer = threading.Timer(0.05, stop.fill_, (1,))
    timer.start()
    program.run([stop.data_ptr()])  # would never end


@pytest.mark.parametrize("units", [1, 2, 3])
def test_concurrent_callers(build: Build, units: int):
    # Each unit adds its part to the caller's own counter, in turn. A run may be begun anew.
    body = """
    auto* sum = static_cast<int64_t*>(ctx->buffers[0]);
    if (unit == 0) *sum = 0;
    for (int64_t i = 1; i <= 20; ++i) {
        int left = (unit + ctx->units - 1) % ctx->units;
        if (unit == 0 ? i > 1 && !wait(ctx, unit, left, i - 1) : !wait(ctx, unit, left, i)) return;
        ctx->arena[0] += 1;
        *sum += 1;
        stretto::signal(ctx, unit, i);
    }
    """
    program = build(body, units=units, arena_bytes=64)

    def call() -> int:
        one, total = torch.zeros(1, dtype=torch.int64), 0
        for _ in range(100):
            program.run([one.data_ptr()])
            total += int(one.item())
        return total

    assert in_threads(4, call) == [units * 20 * 100] * 4


def test_profile(build: Build):
    body = """
    for (int64_t i = 0; i < 20000; ++i) {
        STRETTO_TASK(ctx, unit, 5, i) { ctx->arena[64 * unit] += 1; }
    }
    """
    program = build(body, units=2, arena_bytes=256, profile=True)
    _, events, _ = program.profile([0])
    assert len(events) == 40_000
    first = [event for event in events if event.unit == 1]
    assert [event.task for event in first] == list(range(20_000))
    assert all(event.kernel == 5 and event.start <= event.end for event in events)
    assert all(a.end <= b.start for a, b in pairwise(first))
    program.run([0])  # without a buffer nothing is recorded
    _, events, _ = build(body, units=2, arena_bytes=256).profile([0])
    assert events == []


def test_shared_object_that_cannot_be_loaded(tmp_path, options):
    path = tmp_path / "bad.so"
    path.write_bytes(b"not ELF")
    with pytest.raises(BuildError, match="cannot be loaded") as caught:
        NativeProgram(path, native.Interface(units=1, buffers=0), options)
    assert str(tmp_path) in str(caught.value)

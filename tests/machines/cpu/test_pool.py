"""The worker pool: hand-over between units, more units than cores, fork, processes that end."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stretto.errors import RunError
from stretto.machines.cpu.native import NativeProgram
from stretto.options import Options

Build = Callable[..., NativeProgram]

# As every program, it may be begun anew where another process has the core of a unit.
TOKEN = """
auto* token = static_cast<int64_t*>(ctx->buffers[0]);
if (unit == 0) *token = 0;
const int64_t rounds = ctx->limits[0];
for (int64_t i = 1; i <= rounds; ++i) {
    int left = unit == 0 ? ctx->units - 1 : unit - 1;
    if (!wait(ctx, unit, left, unit == 0 ? i - 1 : i)) return;
    *token += *token % ctx->units == unit ? 1 : 1000000;
    stretto::signal(ctx, unit, i);
}
"""


def pass_token(program: NativeProgram, rounds: int) -> int:
    token = torch.zeros(1, dtype=torch.int64)
    program.run([token.data_ptr()], [rounds])
    return int(token.item())


def test_two_units_hand_a_token_back_and_forth(build: Build):
    assert pass_token(build(TOKEN, units=2, limits=1), 100_000) == 200_000


def test_more_units_than_cores(build: Build):
    units = (os.cpu_count() or 1) + 3
    program = build(TOKEN, units=units, limits=1)
    for _ in range(20):
        assert pass_token(program, 200) == 200 * units


def test_programs_of_different_width_take_turns(build: Build):
    programs = [build(TOKEN, units=units, limits=1) for units in (4, 1, 2, 5, 3)]
    for _ in range(50):
        for program in programs:
            assert pass_token(program, 10) == 10 * program.interface.units


def test_workers_wake_after_they_fell_asleep(build: Build):
    program = build(TOKEN, units=3, limits=1)
    for _ in range(20):
        assert pass_token(program, 5) == 15
        threading.Event().wait(0.005)


def run_in_child(function: Callable[[], bool]) -> int:
    """Exit status of a forked child that runs `function`; it must end within 20 seconds."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if function() else 1
        finally:
            os._exit(code)
    killer = threading.Timer(20, os.kill, (child, 9))
    killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    return status


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_after_fork(build: Build):
    program = build(TOKEN, units=3, limits=1)
    assert pass_token(program, 10) == 30

    def grandchild() -> bool:
        return run_in_child(lambda: pass_token(program, 10) == 30) == 0

    assert run_in_child(lambda: pass_token(program, 10) == 30 and grandchild()) == 0
    assert pass_token(program, 10) == 30


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_fork_while_another_thread_runs_a_program(build: Build):
    stop = torch.zeros(1, dtype=torch.int32)
    busy = build(
        "auto* go = static_cast<std::atomic<int>*>(ctx->buffers[0]); while (!go->load()) {}",
        units=2,
    )
    program = build(TOKEN, units=2, limits=1)
    thread = threading.Thread(target=lambda: busy.run([stop.data_ptr()]))
    thread.start()
    threading.Event().wait(0.05)
    try:
        assert run_in_child(lambda: pass_token(program, 10) == 20) == 0
    finally:
        stop.fill_(1)
        thread.join()


@pytest.mark.whole
def test_process_ends_while_workers_sleep_or_spin(options: Options, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
from stretto.options import Options
from stretto.runtime.compiler import compile_shared
from stretto.machines.cpu.native import Interface, NativeProgram
from stretto.machines.cpu.pool import HEADERS

options = Options(cache_dir={str(options.cache_path())!r})
source = '#include "abi.h"\\nextern "C" void stretto_run(stretto::Context*, int) {{}}'
path = compile_shared(source, options, HEADERS).path
NativeProgram(path, Interface(units=3, buffers=0), options).run([])
print("done")
"""
    )
    result = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


# ---- fibers ------------------------------------------------------------------------------------
WHICH_THREAD = """
auto* threads = static_cast<int64_t*>(ctx->buffers[0]);
threads[unit] = gettid();
if (unit > 0 && !wait(ctx, unit, unit - 1, 1)) return;
stretto::signal(ctx, unit, 1);
"""


def test_more_units_than_cores_share_the_callers_thread(build: Build):
    units = (os.cpu_count() or 1) + 1
    threads = torch.zeros(units, dtype=torch.int64)
    build(WHICH_THREAD, units=units).run([threads.data_ptr()])
    assert threads.tolist() == [threading.get_native_id()] * units


def test_a_second_thread_does_not_wait_for_the_pool(build: Build):
    stop = torch.zeros(1, dtype=torch.int32)
    busy = build(
        "auto* go = static_cast<std::atomic<int>*>(ctx->buffers[0]);"
        "uint32_t n = 0; while (!go->load()) if (!back_edge(ctx, unit, n)) return;",
        units=2,
    )
    program = build(TOKEN, units=2, limits=1)
    thread = threading.Thread(target=lambda: busy.run([stop.data_ptr()]))
    thread.start()
    threading.Event().wait(0.05)
    try:
        assert pass_token(program, 1000) == 2000
    finally:
        stop.fill_(1)
        thread.join()


CROWDED = """
if (unit == 0 && ctx->switch_unit == nullptr) {
    static_cast<int64_t*>(ctx->buffers[0])[0] += 1;
    fail(ctx, CROWDED, 1);
    return;
}
if (unit == 0) static_cast<int64_t*>(ctx->buffers[0])[1] += 1;
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_launch_without_cores_runs_again_as_fibers(build: Build):
    counts = torch.zeros(2, dtype=torch.int64)
    program = build(CROWDED, units=2)
    for _ in range(50):
        program.run([counts.data_ptr()])
    threads, fibers = counts.tolist()
    assert fibers == 50
    assert threads < 50  # after a launch that was given up, threads rest for a while


@pytest.mark.whole
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_threads_come_back_once_their_cores_are_free(build: Build):
    counts = torch.zeros(2, dtype=torch.int64)
    crowded = build(CROWDED, units=2)
    end = time.monotonic() + 30
    while counts[0] == 0 and time.monotonic() < end:
        crowded.run([counts.data_ptr()])
    assert counts[0] == 1
    caller, used = threading.get_native_id(), torch.zeros(2, dtype=torch.int64)
    program = build(WHICH_THREAD, units=2)
    while used[1] in (0, caller) and time.monotonic() < end:
        program.run([used.data_ptr()])
    assert used[0] == caller
    assert used[1] != caller


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_worker_may_run_anywhere_again_once_it_is_awake(build: Build):
    """While it wakes up it is kept off the caller's core."""
    threads = torch.zeros(2, dtype=torch.int64)
    program = build(WHICH_THREAD, units=2)
    for _ in range(20):
        threading.Event().wait(0.005)  # it falls asleep
        program.run([threads.data_ptr()])
        for thread in threads.tolist():
            assert os.sched_getaffinity(thread) == os.sched_getaffinity(0)


ASLEEP = """
if (unit == 1) {
    if (ctx->switch_unit == nullptr) usleep(60000);
    stretto::signal(ctx, unit, 1);
    return;
}
if (!wait(ctx, unit, 1, 1)) return;
static_cast<int64_t*>(ctx->buffers[0])[0] = ctx->switch_unit != nullptr;
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_unit_that_gets_no_processor_time_is_noticed(build: Build):
    as_fibers = torch.zeros(1, dtype=torch.int64)
    build(ASLEEP, units=2).run([as_fibers.data_ptr()])
    assert as_fibers.item() == 1


def test_a_wait_that_no_unit_will_end_is_an_error(build: Build):
    units = (os.cpu_count() or 1) + 1
    program = build("if (unit == 0) wait(ctx, 0, 1, 5);", units=units)
    with pytest.raises(RunError, match="wait for unit 1 to reach step 5"):
        program.run([0])

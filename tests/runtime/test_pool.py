"""The worker pool: hand-over between units, more units than cores, fork, processes that end."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stretto.options import Options
from stretto.runtime.native import NativeProgram

Build = Callable[..., NativeProgram]

TOKEN = """
auto* token = static_cast<int64_t*>(ctx->buffers[0]);
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


def test_process_ends_while_workers_sleep_or_spin(options: Options, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
from stretto.options import Options
from stretto.runtime.compiler import compile_shared
from stretto.runtime.native import Interface, NativeProgram

options = Options(cache_dir={str(options.cache_path())!r})
source = '#include "abi.h"\\nextern "C" void stretto_run(stretto::Context*, int) {{}}'
path = compile_shared(source, options).path
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

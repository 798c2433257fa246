"""What the lease runs, in which processes and when, without running any of it."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.gpu import (
    clock,
    correctness,
    gpu,
    graphs,
    lease,
    peers,
    probes,
    timeline,
    tools,
    turns,
)
from benchmarks.gpu.clock import device_seconds, slopes, spread
from benchmarks.gpu.device import Bench
from benchmarks.gpu.engine import MOST_WORKERS, ROOT, Job, Log, Settings
from benchmarks.gpu.gpu import Gpu, NoGpu
from benchmarks.gpu.prepare import Others, prepare
from benchmarks.gpu.results import Row, WrongValue
from benchmarks.gpu.saved import KINDS, Program, Saved
from benchmarks.gpu.systems import Case
from benchmarks.gpu.systems import prepare as prepare_system
from benchmarks.harness import reference_outputs, relative_error
from benchmarks.models import ZOO
from benchmarks.peers.base import Skipped
from stretto.call.compiler import build
from stretto.frontends.python import capture
from stretto.machines.cuda import device as cuda_device
from stretto.machines.cuda import machine as cuda_machine
from stretto.machines.cuda.compile import compile_source
from stretto.machines.cuda.driver import COMPUTE_MODE, MODE_EXCLUSIVE_PROCESS, MODE_PROHIBITED
from stretto.options import Options
from tests.machines.cuda.cuda_fakes import FakeCuda

EXCLUSIVE = Gpu("a line", "NVIDIA H200", (9, 0), 132, MODE_EXCLUSIVE_PROCESS)


def settings_of(folder: Path, found: Gpu = KINDS["h200"], *chosen: str) -> Settings:
    return Settings(folder, folder, Log(folder / "log.txt"), False, chosen, found)


# ---- which systems run which models ----------------------------------------------------------
def test_systems_by_model(tmp_path: Path) -> None:
    names = [job.name for job in peers.jobs(settings_of(tmp_path))]
    assert len(names) == 2 * len(peers.MODELS) + len(peers.JAX_MODELS)
    assert "lstm jax" in names and "rae jax" not in names
    second = peers.jobs(settings_of(tmp_path), ("skipnet",))
    assert [job.name for job in second] == ["skipnet stretto", "skipnet library"]
    systems = [system for group in peers.GROUPS.values() for system in group]
    assert set(systems) == {
        "stretto", "stretto-graph", "eager", "eager-graph", "cudnn-graph", "jax",
    }  # fmt: skip


def test_all_that_runs_is_prepared(tmp_path: Path) -> None:
    made = lease.programs(False, ())
    assert len(made) == len(set(made))
    assert {Program(model) for model in (*correctness.FULL, *peers.MODELS, "skipnet")} <= set(made)
    assert {tools.checked(model) for model in tools.CHECKED} <= set(made)
    assert {tools.profiled(model) for model in tools.PROFILED} <= set(made)
    count = len(graphs.MODELS) * len(graphs.SETTINGS)
    assert sum(program.system.startswith("graphs/") for program in made) == count
    assert lease.programs(False, ("rae",)) == [
        Program("rae"), Program("rae", "small"), tools.checked("rae"),
    ]  # fmt: skip


def case_of(module: nn.Module, *inputs: torch.Tensor) -> Case:
    return Case(Program("lstm", "small"), Saved(Path()), None, module, inputs, module, inputs)


def test_cudnn_is_captured() -> None:
    module, inputs = ZOO["lstm"].make(ZOO["lstm"].presets["small"], 0)
    ready = prepare_system("cudnn-graph", case_of(module, *inputs), Bench(True))
    assert "captured" in ready.note
    found = ready.outputs(ready.call())
    assert relative_error(found, reference_outputs(module, inputs)) < 1e-5
    with pytest.raises(Skipped, match="cuDNN has no such model"):
        prepare_system("cudnn-graph", case_of(nn.Linear(2, 2)), Bench(True))


# ---- how many processes at once --------------------------------------------------------------
class Processes:
    """In the place of `Running`: workers that are ready when they are first looked at."""

    def __init__(self) -> None:
        self.groups = {"peers": peers.GROUPS, "graphs": graphs.GROUPS}
        self.alive: set[str] = set()
        self.busy: set[str] = set()
        self.most_alive = self.most_busy = 0

    def __call__(self, job: Job, settings: Settings, record: Any, end: float) -> Any:
        self.alive.add(job.name)
        self.busy.add(job.name)
        self.most_alive = max(self.most_alive, len(self.alive))
        self.most_busy = max(self.most_busy, len(self.busy))
        model, _, group = job.name.partition(" ")
        turn = {"kind": "turn", "device": [1e-3], "host": [1e-3], "latency": [1e-3]}
        details = {"kind": "details", "values": {"launches_per_call": 1}}

        def step() -> None:
            if one.serving:
                return
            one.serving = True
            self.busy.discard(job.name)
            for system in self.groups[job.part][group]:
                record(Row(f"{model} {system}", "ok", values={"error": 0.0}))

        def tell(**message: Any) -> None:
            one.answers.append(dict(turn if message["ask"] == "turn" else details))

        worker = SimpleNamespace(tell=tell, kill=lambda: self.alive.discard(job.name), ended=False)
        one = SimpleNamespace(
            job=job, worker=worker, serving=False, over=False, answers=[], step=step
        )
        return one


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes()
    monkeypatch.setattr(turns, "Running", made)
    monkeypatch.setattr(turns, "TICK_S", 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    return made


def drive(folder: Path, found: Gpu) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    settings = settings_of(folder, found, "rae", "lstm")
    peers.drive(settings, lambda row: rows.update({row.name: row}), time.monotonic() + 1000)
    return rows


def test_all_make_ready_a_few_at_once_and_then_take_turns(
    processes: Processes, tmp_path: Path
) -> None:
    rows = drive(tmp_path, KINDS["h200"])
    assert processes.most_alive == 5 and processes.most_busy <= MOST_WORKERS
    assert not processes.alive
    row = rows["lstm jax"]
    assert row.values["in_turns"] and row.values["launches_per_call"] == 1
    assert row.measured_us == pytest.approx(1000.0)


def test_exclusive_process_mode_has_one_worker(processes: Processes, tmp_path: Path) -> None:
    rows = drive(tmp_path, EXCLUSIVE)
    assert processes.most_alive == 1
    assert rows["rae eager"].status == "ok" and rows["rae eager"].values["in_turns"] is False


def test_workers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert settings_of(tmp_path).workers == MOST_WORKERS == 8
    assert settings_of(tmp_path, EXCLUSIVE).workers == 1


# ---- what is made at home --------------------------------------------------------------------
@pytest.mark.whole
def test_a_program_made_at_home_is_what_the_gpu_s_own_build_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    program = Program("rae", "small")
    prepare(tmp_path, [program], Others([], []), ("h100",), tell=lambda line: None)
    folder = Saved(tmp_path / "h100")
    facts = folder.facts(program)
    assert facts["simulated_us"] > 1 and facts["units"] == 132 and facts["target"] == "sm_90"
    lease.make_private(tmp_path)

    h100 = KINDS["h100"]
    there = cuda_device.Gpu(0, h100.name, h100.capability, h100.multiprocessors)
    monkeypatch.setattr(cuda_machine, "find_gpu", lambda place: there)
    monkeypatch.setattr(cuda_machine, "resident_units", lambda kernel, place: 132)
    monkeypatch.setattr(cuda_machine.CudaMachine, "load", lambda self, stages: None)
    module, inputs = ZOO["rae"].make(ZOO["rae"].presets["small"], 0)
    options = program.options(folder.code)
    with torch.no_grad():
        captured = capture(module, inputs, {}, options)
        stages = build(captured.program, cuda_machine.CUDA, options)
    texts = "".join(source.text for source in cuda_machine.gpu_program(stages).sources)
    assert hashlib.sha256(texts.encode()).hexdigest() == facts["texts"]


def test_references_are_used_for_the_same_weights_only(tmp_path: Path) -> None:
    program = Program("attention", "small")
    prepare(tmp_path, [program], None, ("h100",), tell=lambda line: None)
    folder = Saved(tmp_path / "h100")
    entry = ZOO["attention"]
    module, inputs = entry.make(entry.presets["small"], 0)
    wanted = reference_outputs(module, inputs)
    stored, where = folder.reference(program, 0, module, inputs)
    assert where == "stored" and relative_error(stored, wanted) == 0
    other, _ = folder.reference(program, 5, module, inputs)
    assert relative_error(other, wanted) > 1e-3, "each seed has its own"
    with torch.no_grad():
        next(module.parameters()).add_(1.0)
    changed, where = folder.reference(program, 0, module, inputs)
    assert where == "computed here" and relative_error(changed, wanted) > 1e-3


def test_a_folder_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.prepare.MOST_BYTES", 10)
    with pytest.raises(ValueError, match="may travel"):
        prepare(tmp_path, [Program("lstm", "small")], None, ("h100",), tell=lambda line: None)


def test_kernels_of_the_rows_are_made_at_home(tmp_path: Path) -> None:
    made = lease.others()
    assert len({source.text for source in made.sources}) > 15
    assert len(made.functions) > 20
    (stuck,) = [source for source in made.sources if source.units == 3]
    assert compile_source(stuck, "sm_90", Options(cache_dir=str(tmp_path))).binary


# ---- NVIDIA's tools --------------------------------------------------------------------------
SANITIZER = """#!/bin/sh
while [ "$1" != "{python}" ]; do shift; done
{run} || exit 1
echo "========= {summary}"
"""


def checked(folder: Path, monkeypatch: pytest.MonkeyPatch, summary: str, run: str) -> Row:
    """The row of a stand-in for compute-sanitizer. run: what it does with the command that it is
    given."""
    tool = folder / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(SANITIZER.format(python=sys.executable, summary=summary, run=run))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    rows: list[Row] = []
    settings = Settings(folder, folder, Log(folder / "log.txt"), True, ("lstm",))
    monkeypatch.setattr(tools, "CHECKS", ("racecheck",))
    tools.sanitizer(settings, rows.append, time.monotonic() + 200)
    return rows[-1]


@pytest.mark.whole
def test_a_checked_program_without_errors(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / cuda.path.name).symlink_to(cuda.path)
    summary = "RACECHECK SUMMARY: 0 hazards displayed (0 errors)"
    row = checked(tmp_path, monkeypatch, summary, run='"$@"')
    assert (row.name, row.status, row.reason) == ("racecheck lstm", "ok", "")


@pytest.mark.whole
def test_a_checked_program_with_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = checked(tmp_path, monkeypatch, "ERROR SUMMARY: 3 errors", run="true")
    assert row.status == "wrong", row.reason
    assert row.reason.startswith("3 errors, exit code 0")


def test_counters_are_read() -> None:
    text = (
        "==PROF== Connected\n"
        '"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum","other"\n'
        '"","","Mbyte","us","%"\n'
        '"0","stretto_run","1,234.5","227.1","9"\n'
    )
    assert tools.read_counters(text) == {
        "dram__bytes_read.sum": {"value": 1234.5, "unit": "Mbyte"},
        "gpu__time_duration.sum": {"value": 227.1, "unit": "us"},
    }
    with pytest.raises(RuntimeError, match="ncu gave no figures: ==ERROR=="):
        tools.read_counters("==ERROR== no permission\n")


CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true")
def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
"""
MARKED = """
import pytest
@pytest.mark.gpu
def test_on_a_gpu():
    assert {holds}
def test_without():
    assert False
"""


def test_tests_that_need_a_gpu_are_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ROOT / "tests" / "machines" / "cuda" / "test_launches_on_gpu.py"
    assert "pytest.mark.gpu" in own.read_text(), "what the row looks for is there"
    monkeypatch.setattr(correctness, "TESTS", tmp_path)
    reporter: Any = SimpleNamespace(programs=tmp_path / "programs")
    with pytest.raises(Skipped, match="there are no such tests"):
        correctness.marked_tests(reporter)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(MARKED.format(holds=True))
    assert "1 passed, 1 deselected" in correctness.marked_tests(reporter)["summary"]
    (tmp_path / "test_some.py").write_text(MARKED.format(holds=False))
    with pytest.raises(WrongValue, match="1 failed, 1 deselected"):
        correctness.marked_tests(reporter)


def test_notes_of_waits_are_compiled(tmp_path: Path) -> None:
    made = timeline.timed(probes.WAVE.source(4))
    compiled = compile_source(made, "sm_90", Options(cache_dir=str(tmp_path)))
    assert compiled.binary
    with pytest.raises(ValueError, match="substring not found"):
        timeline.timed(replace(made, text="no waits here"))


def test_waits_are_summed_by_unit() -> None:
    notes = torch.zeros(2, timeline.SIZE, dtype=torch.int64)
    notes[0, :5] = torch.tensor([2, 1000, 2000, 5000, 8000])
    notes[1, :3] = torch.tensor([1, 3000, 9000])
    found = timeline.summary(notes)
    assert found["span_us"] == pytest.approx(8.0) and found["waits_per_unit"] == 1.5
    assert found["waiting_us_by_unit"] == [4.0, 6.0]
    assert found["waiting_part"]["median"] == pytest.approx((0.5 + 0.75) / 2)


# ---- the GPU, seen without a context ---------------------------------------------------------
def test_a_worker_looks_at_the_gpu(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=141 << 30,
        L2_cache_size=60 << 20,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr("stretto.machines.cuda.driver.load_driver", cuda.driver)
    cuda.library.fake_attribute(COMPUTE_MODE, MODE_EXCLUSIVE_PROCESS)
    found = gpu.found()
    line = "NVIDIA H200, 132 multiprocessors, 141 GiB, L2 60 MiB"
    assert found == Gpu(line, "NVIDIA H200", (9, 0), 132, 3)
    assert found.exclusive and found.target == "sm_90"
    assert not [line for line in cuda.log() if "Ctx" in line]
    cuda.library.fake_attribute(COMPUTE_MODE, MODE_PROHIBITED)
    with pytest.raises(NoGpu, match="its compute mode is prohibited"):
        gpu.found()


def test_spread_and_slopes() -> None:
    assert spread([3.0, 1.0, 2.0])["median"] == 2.0
    (slope,) = slopes(Bench(True), lambda trips: time.sleep(0.002 * trips), 1, 11, 1)
    assert slope > 0.0015


# ---- times of the GPU alone ------------------------------------------------------------------
class Timeline:
    """A host that enqueues, and a GPU that runs what it finds: both clocks in seconds."""

    def __init__(self, host_s: float, gpu_s: float) -> None:
        self.host_s, self.gpu_s = host_s, gpu_s
        self.host = self.gpu = 0.0
        self.slept: list[int] = []

    def sleep(self, cycles: int) -> None:
        self.slept.append(cycles)
        self.gpu = max(self.gpu, self.host) + cycles * 0.5e-9

    def call(self) -> None:
        self.host += self.host_s
        self.gpu = max(self.gpu, self.host) + self.gpu_s

    def event(self, enable_timing: bool) -> Event:
        return Event(self)


class Event:
    """As torch.cuda.Event, on a Timeline."""

    def __init__(self, line: Timeline) -> None:
        self.line, self.at = line, 0.0

    def record(self) -> None:
        self.at = max(self.line.gpu, self.line.host)

    def query(self) -> bool:
        return self.line.host >= self.at

    def synchronize(self) -> None:
        self.line.host = max(self.line.host, self.at)

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


def start(monkeypatch: pytest.MonkeyPatch, host_s: float, gpu_s: float) -> Timeline:
    made = Timeline(host_s, gpu_s)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep, raising=False)
    return made


def test_a_slow_host_does_not_count_as_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 launches of 30 us keep the host busy for 12 ms; the first sleep is 2 ms."""
    line = start(monkeypatch, host_s=30e-6, gpu_s=2e-6)
    found = device_seconds(Bench(False), line.call, 400, 5)
    assert found == pytest.approx([2e-6] * 5, rel=1e-3)
    assert line.slept[:4] == [clock.QUEUE_CYCLES << n for n in range(4)]
    assert len(set(line.slept[3:])) == 1, "a sleep that was long enough is kept"


def test_a_host_that_never_gets_ahead_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    line = start(monkeypatch, host_s=10e-3, gpu_s=2e-6)
    with pytest.raises(RuntimeError, match="did not get ahead of the GPU by 400 calls"):
        device_seconds(Bench(False), line.call, 400, 5)

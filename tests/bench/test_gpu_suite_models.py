"""What the GPU suite runs, in which processes and when, without running any of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import (
    clock,
    floors,
    gpu,
    graphs,
    models,
    precompile,
    pytest_rows,
    suite,
    summary,
    turns,
)
from benchmarks.gpu.clock import device_seconds
from benchmarks.gpu.device import Bench, about
from benchmarks.gpu.engine import MOST_WORKERS, ROOT, Job, Settings, run_jobs
from benchmarks.gpu.gpu import Gpu, NoGpu
from benchmarks.gpu.results import PartRecord, Row
from benchmarks.gpu.shortened import SHORTENED, config_of, summary_of
from benchmarks.gpu.systems import GROUPS, Case, prepare
from benchmarks.harness import reference_outputs, relative_error
from benchmarks.models import ZOO
from benchmarks.peers.base import Skipped
from stretto.build import build
from stretto.frontends.python import capture
from stretto.machines.cuda import device as cuda_device
from stretto.machines.cuda import machine as cuda_machine
from stretto.machines.cuda.driver import COMPUTE_MODE, MODE_EXCLUSIVE_PROCESS, MODE_PROHIBITED
from stretto.options import Options
from tests.machines.cuda.cuda_fakes import FakeCuda

SHARED = Gpu("a line", "NVIDIA H200", (9, 0), 132, 0)
H100 = Gpu("a line", "NVIDIA H100 80GB HBM3", (9, 0), 132, 0)
EXCLUSIVE = Gpu("a line", "NVIDIA H200", (9, 0), 132, MODE_EXCLUSIVE_PROCESS)


# ---- which systems run which models ----------------------------------------------------------
def test_torch_compile_is_tried_on_shortened_models_only() -> None:
    names = {job.name for job in models.jobs(False, ())}
    for short, of in SHORTENED.items():
        assert {f"{of.model} stretto", f"{of.model} library", f"{short} compile"} <= names
        assert f"{of.model} compile" not in names and f"{short} jax" not in names
        assert config_of(short, False).length == of.steps < config_of(of.model, False).length
    assert {"rae compile", "attention max-autotune"} <= names


def test_what_is_not_tried_says_where_it_is() -> None:
    rows = models.not_tried(False, ("lstm",))
    assert {row.name for row in rows} == {
        "lstm compile",
        "lstm compile-graph",
        "lstm compile-reduce-overhead",
        "lstm compile-max-autotune",
    }
    reason = "it unrolls the 64 steps, so it is tried on lstm-short, with 4 steps"
    assert {(row.status, row.reason) for row in rows} == {("skipped", reason)}
    assert models.models(False, ("lstm",)) == ["lstm", "lstm-short"]


def test_a_shortened_model_is_no_peer_of_the_whole_one(tmp_path: Path) -> None:
    times = {"median": 1.0, "q1": 1.0, "q3": 1.0}
    values = {"device": times, "host": times, "latency": times, "compile_s": 1.0}
    rows = [
        *models.not_tried(False, ("lstm",)),
        Row("lstm stretto", "ok", values=dict(values)),
        Row("lstm-short stretto", "ok", values=dict(values)),
        Row("lstm-short compile", "ok", values=dict(values)),
    ]
    known = {"device": "a GPU", "versions": {}}
    PartRecord("models", False, known, True, 1.0, rows).write(tmp_path)
    text = summary.table(tmp_path)
    assert "lstm       torch.compile: it unrolls the 64 steps" in text
    assert "lstm-short fastest peer compile: 1.00x" in text
    assert "lstm       fastest peer" not in text
    assert summary_of("lstm-short") == "10-layer LSTM, 64 steps, of which 4 are run"
    assert "of which 4 are run | 1.000 ms |  | 1.000 ms compile" in summary.section(tmp_path)


def test_the_floor_of_a_shortened_model_is_less() -> None:
    rates = {"fp32 matmul": 1e15, "copy bandwidth": 1e12, "read bandwidth, L2": 1e12}
    rows = [Row(name, "ok", values={"median": rate}) for name, rate in rates.items()]
    record = PartRecord("ceilings", False, {}, True, 1.0, rows)
    whole, short = (floors.row(model, False, record) for model in ("lstm", "lstm-short"))
    assert short.values["reread_ms"] < whole.values["reread_ms"] / 4


def test_cudnn_is_captured_too() -> None:
    assert "cudnn-graph" in GROUPS["library"]
    module, inputs = ZOO["lstm"].make(ZOO["lstm"].presets["small"], 0)
    case = Case("lstm", None, module, inputs, module, inputs)
    ready = prepare("cudnn-graph", case, Bench(True), "")
    assert "captured" in ready.note
    found = ready.outputs(ready.call())
    assert relative_error(found, reference_outputs(module, inputs)) < 1e-5
    other = Case("rae", None, torch.nn.Linear(2, 2), (), torch.nn.Linear(2, 2), ())
    with pytest.raises(Skipped, match="cuDNN has no such model"):
        prepare("cudnn-graph", other, Bench(True), "")


# ---- how many processes at once --------------------------------------------------------------
class Processes:
    """In the place of `Running`: workers that are ready when they are first looked at."""

    def __init__(self) -> None:
        self.groups = {"models": GROUPS, "graphs": graphs.GROUPS}
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
                record(Row(f"{model} {system}", "ok", values={"compile_s": 1.0, "error": 0.0}))

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
    monkeypatch.setattr(models, "run_jobs", lambda jobs, *rest: None)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    return made


def drive(tmp_path: Path, found: Gpu) -> PartRecord:
    settings = Settings(tmp_path, tmp_path, False, ("rae", "lstm"), found)
    rows: dict[str, Row] = {}
    models.drive(settings, lambda row: rows.update({row.name: row}), end=1e9)
    return PartRecord("models", False, about(found, "abc"), True, 1.0, list(rows.values()))


def test_a_few_workers_at_once(processes: Processes, tmp_path: Path) -> None:
    record = drive(tmp_path, SHARED)
    assert processes.most_busy == MOST_WORKERS
    assert processes.most_alive == len(GROUPS), "a model's processes end before the next model's"
    assert not processes.alive
    row = record.row("lstm-short compile")
    assert row is not None and row.values["in_turns"] and row.values["launches_per_call"] == 1


def test_exclusive_process_mode_has_one_worker(processes: Processes, tmp_path: Path) -> None:
    record = drive(tmp_path, EXCLUSIVE)
    assert processes.most_alive == 1
    row = record.row("rae eager")
    assert row is not None and row.status == "ok" and row.values["in_turns"] is False
    assert record.about["compute_mode"] == "exclusive process"
    record.write(tmp_path)
    assert "not in turns: one process at a time has the GPU" in summary.table(tmp_path)


def test_graphs_take_turns_and_then_memory_is_measured(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []

    def run_jobs(jobs: list[Job], settings: Any, record: Any, end: float, parallel: int) -> None:
        assert not processes.alive, "processes of systems would hold memory"
        told.extend((job.name, parallel) for job in jobs)

    monkeypatch.setattr(graphs, "run_jobs", run_jobs)
    settings = Settings(tmp_path, tmp_path, False, ("deepfm",), SHARED)
    rows: dict[str, Row] = {}
    graphs.drive(settings, lambda row: rows.update({row.name: row}), end=1e9)
    systems = [system for group in graphs.GROUPS.values() for system in group]
    assert list(rows) == [f"deepfm {system}" for system in systems]
    assert {row.values["in_turns"] for row in rows.values()} == {True}
    assert processes.most_alive == len(graphs.GROUPS)
    names = ["stretto", "graph-each", "graph-each-one-pool"]
    assert told == [(f"memory deepfm {name}", 1) for name in names]


def test_workers_of_other_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert Settings(tmp_path, tmp_path, False, (), SHARED).workers == MOST_WORKERS
    assert Settings(tmp_path, tmp_path, False, (), EXCLUSIVE).workers == 1


def test_time_is_dealt_among_the_parts_that_run() -> None:
    assert suite.deal(summary.PARTS, suite.TOTAL_S) == suite.LIMITS_S
    assert suite.deal(("models",), 530.0) == {"models": 530.0}
    assert suite.deal((), 530.0) == {}
    longer = suite.deal(summary.PARTS, 2 * suite.TOTAL_S)
    assert longer["correctness"] == 2 * suite.LIMITS_S["correctness"]


# ---- programs compiled beforehand ------------------------------------------------------------
def test_skipnet_is_compiled_before_models_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Job] = []
    monkeypatch.setattr(models, "run_jobs", lambda jobs, *rest: told.extend(jobs))
    settings = Settings(tmp_path, tmp_path, False, (), SHARED)
    models.compile_beforehand(settings, print, 0.0)
    (job,) = told
    assert job.name == "beforehand skipnet 9 0 132 NVIDIA H200"
    assert job.environment["CUDA_VISIBLE_DEVICES"] == "", "it must hold no context on the GPU"
    told.clear()
    done = Settings(tmp_path, tmp_path, False, (), SHARED, compiled=("skipnet",))
    models.compile_beforehand(done, print, 0.0)
    assert not told


def test_what_the_first_part_has_compiled() -> None:
    rows = [
        Row("zoo full skipnet", "ok"),
        Row("zoo full rae", "failed"),
        Row("zoo small lstm", "ok"),
    ]
    assert suite.compiled(PartRecord("correctness", False, {}, rows=rows)) == ("skipnet",)


def test_a_program_compiled_beforehand_is_what_the_gpu_s_own_build_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    (tmp_path / "programs").mkdir()
    reports: list[dict[str, Any]] = []
    reporter = SimpleNamespace(
        scratch=tmp_path, row=lambda name, limit_s, run: reports.append({"name": name, **run()})
    )
    told = precompile.job("rae", H100).name.removeprefix(f"{precompile.JOB} ")
    precompile.run(reporter, told, "small")  # pyright: ignore[reportArgumentType]
    assert reports[0]["name"] == "rae (compiled beforehand)"
    assert reports[0]["kernels_from_cache"] == [False]

    there = cuda_device.Gpu(0, H100.name, H100.capability, H100.multiprocessors)
    monkeypatch.setattr(cuda_machine, "find_gpu", lambda place: there)
    monkeypatch.setattr(cuda_machine, "resident_units", lambda kernel, place: 132)
    monkeypatch.setattr(cuda_machine.CudaMachine, "load", lambda self, stages: None)
    module, inputs = ZOO["rae"].make(ZOO["rae"].presets["small"], 0)
    options = Options(cache_dir=str(tmp_path / "programs"))
    with torch.no_grad():
        captured = capture(module, inputs, {}, options)
        stages = build(captured.program, cuda_machine.CUDA, options)
    found = cuda_machine.gpu_program(stages).compiled
    assert [kernel.from_cache for kernel in found] == [True]


# ---- the GPU, seen without a context ---------------------------------------------------------
def test_a_process_of_its_own_looks_at_the_gpu(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    monkeypatch.setattr(gpu, "_driver_line", lambda: "")
    cuda.library.fake_attribute(COMPUTE_MODE, MODE_EXCLUSIVE_PROCESS)
    gpu.main()
    found = gpu.parsed("some warning\n" + capsys.readouterr().out)
    assert found == Gpu(
        "NVIDIA H200, 132 multiprocessors, 141 GiB, L2 60 MiB", "NVIDIA H200", (9, 0), 132, 3
    )
    assert found.exclusive and found.target == "sm_90"
    assert not [line for line in cuda.log() if "Ctx" in line]
    cuda.library.fake_attribute(COMPUTE_MODE, MODE_PROHIBITED)
    with pytest.raises(SystemExit, match="its compute mode is prohibited"):
        gpu.main()


def test_a_gpu_that_cannot_be_looked_at() -> None:
    with pytest.raises(NoGpu, match="busy or unavailable"):
        gpu.parsed("", "warning\nCUDA error: CUDA-capable device(s) is/are busy or unavailable\n")
    with pytest.raises(NoGpu, match="it said nothing"):
        gpu.parsed("")
    with pytest.raises(NoGpu):
        gpu.parsed(json.dumps({"name": "x"}))


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


# ---- the tests that need a GPU ---------------------------------------------------------------
def test_the_tests_that_need_a_gpu_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(ROOT / "tests" / "machines" / "cuda" / "test_launches_on_gpu.py")
    assert own in pytest_rows.gpu_tests()
    assert pytest_rows.why_not() == ""
    monkeypatch.setattr(pytest_rows, "NEEDED", ("pytest", "no_such_package"))
    assert pytest_rows.why_not() == "no_such_package is not installed"


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_they_are_rows_of_a_worker(tmp_path: Path) -> None:
    rows: list[Row] = []
    settings = Settings(tmp_path, tmp_path, dry_run=True)
    todo = [Job("correctness", "pytest", 150.0)]
    run_jobs(todo, settings, rows.append, time.monotonic() + 150, 1)
    names = {row.name for row in rows}
    assert {"pytest test_capture_and_replay", "pytest test_two_threads_on_two_streams"} <= names
    reasons = {(row.status, row.reason) for row in rows}
    assert reasons == {("skipped", "no NVIDIA GPU that torch can use")}

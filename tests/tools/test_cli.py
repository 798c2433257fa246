"""The command line: what each command prints, its exit codes, and what it says of wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from stretto.machines.machine import Diagnosis
from stretto.tools.cli import app

RUNNER = CliRunner()
ROOT = Path(__file__).parents[2]


def run(*arguments: str, code: int = 0) -> Result:
    result = RUNNER.invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result


def python(*arguments: str) -> str:
    """What a new interpreter prints that can import stretto, installed or not."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_the_version() -> None:
    assert run("--version").stdout == "stretto 0.1.0\n"


def test_help_lists_the_commands() -> None:
    text = run("--help").stdout
    for command in ("doctor", "demo", "explain", "bench", "cache"):
        assert command in text


def test_help_does_not_import_torch() -> None:
    code = "import sys, stretto.tools.cli; print('torch' in sys.modules)"
    assert python("-c", code) == "False\n"


def test_python_dash_m() -> None:
    assert python("-m", "stretto", "--version") == "stretto 0.1.0\n"


def test_an_unknown_command() -> None:
    assert "No such command 'benhc'" in run("benhc", code=2).output


# ---- doctor ----------------------------------------------------------------------------------


def test_doctor_on_this_machine() -> None:
    text = run("doctor").stdout
    assert "compiler" in text
    assert text.splitlines()[-1].startswith("ok    compile and run")


def test_doctor_fails_where_nothing_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Diagnosis("compiler", "fail", "no C++ compiler [g++]", "install one"),
        Diagnosis("x", "ok", ""),
    ]
    monkeypatch.setattr("stretto.tools.doctor.checks", lambda options: iter(found))
    text = run("doctor", code=1).stdout
    assert "fail  compiler        no C++ compiler [g++]" in text
    assert "install one" in text


def test_doctor_only_warns_of_what_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Diagnosis("peers", "warn", "none", "pip install jax")]
    monkeypatch.setattr("stretto.tools.doctor.checks", lambda options: iter(found))
    assert "warn  peers" in run("doctor").stdout


# ---- explain ---------------------------------------------------------------------------------


def test_explain_a_model_of_the_zoo() -> None:
    text = run("explain", "rae", "--small", "--backend", "emulator", "--threads", "2").stdout
    assert text.startswith("RAE: 1 signature compiled\n")
    assert "launches per call  1" in text


def test_explain_a_function_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n\ndef f(x):\n    return torch.tanh(x)\n\n"
        "def example_inputs():\n    return (torch.ones(3),)\n"
    )
    picture = tmp_path / "run.html"
    text = run("explain", f"{path}:f", "--timeline", str(picture)).stdout
    assert text.startswith("f: 1 signature compiled\n")
    assert picture.is_file()


def test_explain_on_an_emulated_gpu() -> None:
    text = run("explain", "rae", "--small", "--backend", "cuda-emulated", "--units", "3").stdout
    assert "signature 1: backend cuda-emulated" in text
    assert "launches per call  1, the whole program" in text
    assert "units              3 (" in text


def test_explain_for_a_target_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n\ndef f(x):\n    return torch.tanh(x)\n\n"
        "def example_inputs():\n    return (torch.ones(3),)\n"
    )
    text = run("explain", f"{path}:f", "--target", "sm_80").stdout
    assert text.startswith("f: compiled for sm_80, not run\n")
    assert "units              108 (" in text
    text = run("explain", f"{path}:f", "--target", "gfx942", "--units", "7").stdout
    assert "units              7 (" in text


def test_explain_for_a_target_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from stretto.errors import BuildError
    from stretto.machines.cuda import machine

    def missing() -> str:
        raise BuildError("Triton cannot be imported: gone", remedy="pip install 'stretto[cuda]'")

    monkeypatch.setattr(machine, "require_triton", missing)
    result = run("explain", "rae", "--target", "sm_90", code=1)
    assert "BuildError: Triton cannot be imported: gone" in result.stderr
    assert "remedy: pip install 'stretto[cuda]'" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["explain", "rae", "--small"], ["demo", "--small"]])
def test_without_a_gpu(command: list[str]) -> None:
    result = run(*command, "--backend", "cuda", code=1)
    assert "BuildError: " in result.stderr
    assert "without a GPU: --backend cuda-emulated runs it here" in result.stderr
    assert "Traceback" not in result.output


def test_explain_shows_a_capture_error_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n\ndef f(x):\n    return x.split(int(x[0]))\n\n"
        "def example_inputs():\n    return (torch.ones(3),)\n"
    )
    result = run("explain", f"{path}:f", code=1)
    assert "CaptureError: " in result.stderr
    assert "return x.split(int(x[0]))" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "lstmm"], "unknown model 'lstmm'; did you mean 'lstm'? known are lstm,"),
        (["explain", "rae", "--backend", "gpu"], "unknown backend 'gpu'; did you mean 'cpu'?"),
        (["explain", "rae", "--target", "sm90"], "unknown target 'sm90'; did you mean 'sm_90'?"),
        (
            ["explain", "rae", "--target", "sm_90", "--backend", "cpu"],
            "--target only compiles: it does not go with --backend",
        ),
        (
            ["explain", "rae", "--target", "sm_90", "--timeline", "a.html"],
            "--target only compiles: it does not go with --timeline",
        ),
        (["explain", "rae", "--target", "sm_90", "--units", "0"], "Invalid value for '--units'"),
        (["explain", "lstmm", "--target", "sm_90"], "unknown model 'lstmm'"),
        (["explain", "rae", "--preset", "tiny"], "unknown preset 'tiny'; known are full, small"),
        (["demo", "--backend", "gpu"], "unknown backend 'gpu'"),
        (["demo", "--backend", "cuda-emulated"], "cuda-emulated is slow: give --small too"),
        (["explain", "rae", "--timeline", "a.svg"], "unknown kind of timeline '.svg'; known are"),
        (["explain"], "Missing argument"),
        (["explain", "rae", "--threads", "0"], "Invalid value for '--threads'"),
        (["bench", "lstn"], "unknown model 'lstn'; did you mean 'lstm'?"),
        (["bench", "--peers", "eagr"], "unknown peer 'eagr'; did you mean 'eager'?"),
        (["demo", "--threads", "many"], "Invalid value for '--threads'"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    assert message in run(*arguments, code=2).output


def test_a_timeline_of_the_emulator_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "a.html")
    result = run("explain", "rae", "--small", "--backend", "emulator", "--timeline", path, code=1)
    assert "the emulator backend has no timeline" in result.stderr
    assert 'remedy: compile with backend="cpu"' in result.stderr


# ---- bench, demo, cache ----------------------------------------------------------------------


@pytest.mark.whole
def test_bench_writes_a_record_and_a_plot(tmp_path: Path) -> None:
    record, plot = tmp_path / "record.json", tmp_path / "plot.png"
    text = run(
        "bench", "rae", "--peers", "eager,stretto", "--small", "--quick", "--threads", "1",
        "--json", str(record), "--plot", str(plot),
    ).stdout  # fmt: skip
    assert "stretto against the fastest peer" in text
    assert json.loads(record.read_text())["models"][0]["model"] == "rae"
    assert plot.stat().st_size > 1000


@pytest.mark.whole
def test_demo_runs_its_four_models(tmp_path: Path) -> None:
    text = run("demo", "--small", "--threads", "1", "--output", str(tmp_path)).stdout
    for model in ("seq2seq", "blockdrop", "rae", "lstm"):
        assert model in text
    assert (tmp_path / "timeline-lstm.html").is_file()
    assert (tmp_path / "timeline-lstm.png").is_file()


def test_the_cache_is_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_CACHE", str(tmp_path))
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "entry.so").write_bytes(bytes(10))
    assert run("cache").stdout == f"{tmp_path}: 1 programs, 10 B\n"
    assert run("cache", "--clear").stdout == f"removed 1 programs, 10 B, from {tmp_path}\n"
    assert run("cache").stdout == f"{tmp_path}: 0 programs, 0 B\n"

"""The log and the progress line of a compile."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import stretto
from stretto import progress
from stretto.options import Options

X = torch.ones(3)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def interrupted(x: torch.Tensor) -> torch.Tensor:
    threading.Event().wait(0.05)
    raise KeyboardInterrupt


def fast(function: object = doubled) -> stretto.Compiled:
    return stretto.compile(function, backend="interpreter", options=Options(threads=1))  # type: ignore[call-overload,no-any-return]


def test_the_log_names_the_program_and_its_stages(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "stretto"):
        compiled = fast()
        compiled(X)
        messages = [record.getMessage() for record in caplog.records]
        assert messages[0] == "compiling doubled"
        assert messages[-1].startswith("compiled doubled in ")
        stages = [message.split(" took ")[0] for message in messages[1:-1]]
        assert stages[:2] == ["capture", "passes"]
        caplog.clear()
        compiled(X)
        assert not caplog.records, "a call that compiles nothing says nothing"


def test_what_was_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stretto"), pytest.raises(KeyboardInterrupt):
        fast(interrupted)(X)
    assert "interrupted was not compiled: KeyboardInterrupt" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("stream", [io.StringIO, _Terminal])
def test_a_long_compile_shows_its_stage_on_a_terminal(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", screen := stream())
    with progress.compiling("model"), progress.logged_stage("select"):
        for _ in range(250 if stream is _Terminal else 10):
            time.sleep(0.02)
            if screen.getvalue():
                break
    shown = screen.getvalue()
    assert ("stretto is compiling model: select" in shown) == (stream is _Terminal)


def test_a_short_compile_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := _Terminal())
    fast()(X)
    assert screen.getvalue() == ""


def test_ctrl_c_ends_a_compile_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", screen := _Terminal())
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        fast(interrupted)(X)
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.02)
    assert threading.active_count() == before, "the thread that shows the line has ended"
    shown = screen.getvalue()
    time.sleep(0.2)
    assert screen.getvalue() == shown
    assert torch.equal(fast()(X), X * 2)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("level", "said"), [("debug", "stretto: compiled"), ("all", "neither `info` nor `debug`")]
)
def test_the_variable_that_prints_the_log(level: str, said: str) -> None:
    program = (
        "import torch, stretto\nstretto.compile(torch.tanh, backend='interpreter')(torch.ones(2))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "STRETTO_LOG": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said in done.stderr
    assert (" took " in done.stderr) == (level == "debug")
    assert done.stdout == ""

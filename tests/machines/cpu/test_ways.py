# pyright: reportPrivateUsage=false
"""Both ways of a program's library calls are timed, and the faster one is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import stretto
from stretto.machines.cpu import native
from stretto.machines.cpu.ways import TIMED_CALLS, WARM_CALLS, Way, Ways
from stretto.options import Options
from stretto.runtime.library import can_share

CALLS = 2 * (WARM_CALLS + TIMED_CALLS)


def ways(cache: Path, tune: str = "cached", text: str = "text") -> Ways:
    return Ways.of(text, [], Options(cache_dir=cache, tune=tune, threads=2))


def run(known: Ways, monkeypatch: pytest.MonkeyPatch, seconds: dict[Way, float]) -> list[Way]:
    """The ways of so many calls, by a clock on which a call takes as long as it says here."""
    now, taken = [0.0], list[Way]()
    monkeypatch.setattr("stretto.machines.cpu.ways.time.perf_counter", lambda: now[0])

    def call(way: Way) -> None:
        taken.append(way)
        now[0] += seconds[way]

    for _ in range(CALLS + 3):
        known.run(call)
    return taken


@pytest.mark.parametrize("fastest", Way)
def test_the_faster_way_is_kept(fastest: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seconds = {way: 1.0 if way is fastest else 1.5 for way in Way}
    known = ways(tmp_path)
    taken = run(known, monkeypatch, seconds)
    assert all(taken[:CALLS].count(way) == CALLS / 2 for way in Way)
    assert taken[CALLS:] == [fastest] * 3
    assert ways(tmp_path).kept is fastest  # another process knows it
    assert ways(tmp_path, text="another program").kept is None
    assert ways(tmp_path, tune="off").kept is None
    assert str(known).startswith(fastest.value)


def test_a_small_difference_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seconds = {Way.SIDE_BY_SIDE: 1.0, Way.ONE_BY_ONE: 1.01}
    assert run(ways(tmp_path), monkeypatch, seconds)[-1] is Way.ONE_BY_ONE


def test_without_tuning_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = ways(tmp_path, tune="off")
    run(known, monkeypatch, dict.fromkeys(Way, 1.0))
    assert known.kept is Way.ONE_BY_ONE
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_raises_does_not_count(tmp_path: Path):
    known = ways(tmp_path)

    def fail(way: Way) -> None:
        raise ValueError(way)

    for _ in range(CALLS):
        with pytest.raises(ValueError, match="SIDE_BY_SIDE"):
            known.run(fail)
    assert known.kept is None


def branches(x: Tensor) -> Tensor:
    def branch(y: Tensor) -> Tensor:
        for _ in range(3):
            y = torch.relu(y @ x)
        return y

    return torch.cat([branch(x.neg()), branch(x.exp() / 64), branch(x.sin()), branch(x.cos())])


@pytest.mark.skipif(not can_share(), reason="torch does not compute on OpenMP's threads here")
def test_a_program_runs_in_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    taken: list[int] = []
    inner = native.NativeProgram._run

    def noted(self: native.NativeProgram, frame: native._Frame, *arguments: object) -> object:
        taken.append(int(frame.context.one_thread))
        return inner(self, frame, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(native.NativeProgram, "_run", noted)
    x = torch.randn(48, 48) / 7
    options = Options(library=("*",), calls="auto", threads=2, cache_dir=tmp_path)
    compiled = stretto.compile(branches, options=options)
    for _ in range(CALLS + 2):
        torch.testing.assert_close(compiled(x), branches(x), rtol=1e-4, atol=1e-5)
    assert taken[:CALLS] == [0, 1] * (CALLS // 2)
    assert taken[CALLS] == taken[CALLS + 1]
    assert "measured: side by side" in str(compiled.explain())


def test_native_kernels_keep_all_units(tmp_path: Path):
    """One after the other, calls would run on one thread with them."""

    def mixed(x: Tensor) -> Tensor:
        return torch.cat([(x @ x).relu(), (x.T @ x).relu(), x.exp() @ x])

    x = torch.randn(256, 256)
    options = Options(library=("aten.relu",), calls="auto", threads=2, cache_dir=tmp_path)
    compiled = stretto.compile(mixed, options=options)
    torch.testing.assert_close(compiled(x), mixed(x), rtol=1e-3, atol=1e-2)
    text = str(compiled.explain())
    assert "left to torch" in text
    assert "both ways" not in text

"""Tests of the harness on a tiny model: what it records, and that failures are kept apart."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks import harness
from benchmarks.__main__ import main
from benchmarks.floor import FloorError, Rates
from benchmarks.harness import relative_error, run
from benchmarks.measure import Protocol
from benchmarks.models import Made, Phase, ZooEntry
from benchmarks.peers import PEERS, Case, Peer, Prepared, Skipped
from benchmarks.peers.base import without_gradients
from benchmarks.record import Record
from benchmarks.report import publish, reasons

QUICK = replace(Protocol.quick(), rounds=2, prepare_limit_s=0.2)
RATES = Rates(1, 1e9, 4e9, 2e9, 1e9, l2_bytes=1 << 20, l3_bytes=1 << 24)


@pytest.fixture(autouse=True)
def _rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of this machine take seconds to measure; `test_measure.py` does so once."""
    monkeypatch.setattr(harness, "measure_rates", lambda threads: RATES)


@dataclass(frozen=True, slots=True)
class TinyConfig:
    size: int = 4
    batch: int = 1


def make_tiny(config: TinyConfig, seed: int) -> Made:
    torch.manual_seed(seed)
    return nn.Linear(config.size, config.size).eval(), (torch.ones(config.batch, config.size),)


TINY = ZooEntry(
    "tiny",
    "one linear layer",
    make_tiny,
    {"full": TinyConfig()},
    lambda config: (Phase("all", 2.0 * config.size**2, 4.0 * config.size**2, 64.0),),
)


class WrongPeer(Peer):
    name: ClassVar[str] = "wrong"

    def prepare(self, case: Case) -> Prepared:
        return without_gradients(lambda x: case.module(x) + 1.0, case.inputs)


class BrokenPeer(Peer):
    name: ClassVar[str] = "broken"

    def prepare(self, case: Case) -> Prepared:
        raise RuntimeError("no kernel for that\nand more")


class AbsentPeer(Peer):
    name: ClassVar[str] = "absent"

    def prepare(self, case: Case) -> Prepared:
        raise Skipped("absent is not installed")


class ForetoldPeer(Peer):
    """Predicts its time."""

    name: ClassVar[str] = "foretold"
    seconds: ClassVar[float | None] = 2e-3

    def prepare(self, case: Case) -> Prepared:
        return replace(without_gradients(case.module, case.inputs), predicted=self.predicted)

    def predicted(self) -> float:
        if self.seconds is None:
            raise Skipped("nobody knows")
        return self.seconds


class SilentPeer(ForetoldPeer):
    """Says why it does not predict its time."""

    name: ClassVar[str] = "silent"
    seconds: ClassVar[float | None] = None


class StuckPeer(Peer):
    name: ClassVar[str] = "stuck"
    releases: int = 0

    def prepare(self, case: Case) -> Prepared:
        while True:
            time.sleep(0.01)

    def release(self) -> None:
        self.releases += 1


class LatePeer(Peer):
    """Works while it is prepared and breaks while it is timed."""

    name: ClassVar[str] = "late"
    released: bool = False

    def prepare(self, case: Case) -> Prepared:
        calls: list[int] = []

        def function(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            if len(calls) > 4:
                raise RuntimeError("out of luck")
            return case.module(x)

        return without_gradients(function, case.inputs)

    def release(self) -> None:
        self.released = True


def run_tiny(*peers: Peer) -> Record:
    systems = {"eager": PEERS["eager"], **{peer.name: peer for peer in peers}}
    names = tuple(systems)
    return run(["tiny"], names, 1, protocol=QUICK, zoo={"tiny": TINY}, systems=systems)


def test_json_has_all_that_a_reader_needs(tmp_path: Path) -> None:
    run_tiny().write_json(tmp_path / "deep" / "record.json")
    data = json.loads((tmp_path / "deep" / "record.json").read_text())
    assert {"date", "commit", "machine", "versions", "threads", "protocol", "rates"} <= set(data)
    assert {"python", "torch"} <= set(data["versions"])
    (model,) = data["models"]
    assert model["config"] == {"size": 4, "batch": 1}
    assert model["fastest_peer"] == "eager"
    (system,) = model["systems"]
    assert system["status"] == "ok"
    assert system["error"] < 1e-6
    assert system["compile_s"] >= 0
    assert system["speedup_over_eager"] == 1.0
    assert system["timing"]["runs"] == 4
    assert 0 < system["timing"]["q1_ms"] <= system["timing"]["median_ms"]
    assert system["timing"]["median_ms"] <= system["timing"]["q3_ms"]


@pytest.mark.parametrize(
    ("peer", "status", "reason"),
    [
        (WrongPeer, "wrong", "is above 1e-04"),
        (BrokenPeer, "failed", "RuntimeError: no kernel for that"),
        (AbsentPeer, "skipped", "absent is not installed"),
        (StuckPeer, "skipped", "preparing takes too long: no result after 0.2 s"),
        (LatePeer, "failed", "RuntimeError: out of luck"),
    ],
)
def test_a_peer_that_fails_is_recorded_with_its_reason(
    peer: Callable[[], Peer], status: str, reason: str
) -> None:
    record = run_tiny(peer())
    eager, other = record.models[0].systems
    assert eager.status == "ok" and eager.timing is not None
    assert other.status == status
    assert reason in other.reason and "\n" not in other.reason
    assert other.timing is None
    assert record.models[0].fastest_peer() == "eager"
    assert reasons(record) == [f"tiny: {other.system} {status}: {other.reason}"]


def test_predictions_stand_beside_what_was_measured() -> None:
    record = run_tiny(ForetoldPeer(), SilentPeer())
    eager, foretold, silent = record.models[0].systems
    assert eager.predicted_ms is None and eager.prediction_error is None
    assert foretold.predicted_ms == 2.0 and foretold.timing is not None
    assert foretold.prediction_error == pytest.approx(2.0 / foretold.timing.median_ms - 1)
    assert silent.predicted_ms is None and "no prediction: nobody knows" in silent.note


def test_peers_are_released() -> None:
    peer = LatePeer()
    run_tiny(peer)
    assert peer.released


def test_a_peer_that_is_cut_off_is_released_before_the_others_are_timed() -> None:
    peer = StuckPeer()
    run_tiny(peer)
    assert peer.releases == 2  # and once more behind the model


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown model 'lstn'; known are lstm, lstm100"):
        run(["lstn"], ["eager"])
    with pytest.raises(ValueError, match="unknown peer 'egaer'; known are eager, compile"):
        run(["lstm"], ["egaer"])
    with pytest.raises(ValueError, match="model tiny has no preset 'huge'"):
        run(["tiny"], ["eager"], preset="huge", protocol=QUICK, zoo={"tiny": TINY})


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    run_tiny()
    assert torch.get_num_threads() == before


def test_the_floor_is_of_the_best_rates_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    after = replace(RATES, flops_per_s=2e9, l2_bytes_per_s=1e9)
    measured = iter([RATES, after])
    monkeypatch.setattr(harness, "measure_rates", lambda threads: next(measured))
    record = run_tiny()
    assert record.rates == replace(RATES, flops_per_s=2e9)
    assert record.models[0].floor_ms == pytest.approx(1e3 * 64.0 / 4e9)
    assert next(measured, None) is None


def test_without_rates_there_is_no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(threads: int) -> Rates:
        raise FloorError("no compiler")

    monkeypatch.setattr(harness, "measure_rates", fail)
    record = run_tiny()
    assert record.rates is None and record.models[0].floor_ms is None
    assert record.models[0].systems[0].status == "ok"


def test_publish_prints_and_draws(tmp_path: Path) -> None:
    console = Console(record=True, width=120, file=(tmp_path / "out.txt").open("w"))
    publish(run_tiny(WrongPeer()), console, tmp_path / "r.json", tmp_path / "r.png")
    text = console.export_text()
    assert "tiny: wrong wrong: error" in text
    assert "median ms" in text and "eager" in text
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "r.json").is_file()


def test_command_line(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    main(["rae", "--peers", "eager", "--preset", "small", "--quick", "--json", str(path)])
    data = json.loads(path.read_text())
    assert [model["model"] for model in data["models"]] == ["rae"]


def test_the_limit_of_preparing_is_an_option(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    limited = ["--quick", "--prepare-limit", "7", "--json", str(path)]
    main(["rae", "--peers", "eager", "--preset", "small", *limited])
    assert json.loads(path.read_text())["protocol"]["prepare_limit_s"] == 7.0


def test_batch_leaves_out_models_without_one() -> None:
    record = run(["rae", "attention"], ["eager"], 1, preset="small", batch=2, protocol=QUICK)
    assert [model.model for model in record.models] == ["attention"]
    assert record.models[0].config.batch == 2


def test_relative_error() -> None:
    one = np.array([1.0, 100.0])
    assert relative_error([one], [one]) == 0
    assert relative_error([np.array([1.0, 101.0])], [one]) == pytest.approx(0.01)
    assert relative_error([np.array([1.0, np.nan])], [one]) == float("inf")
    assert relative_error([one[:1]], [one]) == float("inf")
    assert relative_error([], [one]) == float("inf")
    assert relative_error([np.array([1, 2])], [np.array([1, 3])]) == float("inf")
    assert relative_error([np.array([1, 3], np.int32)], [np.array([1, 3])]) == 0

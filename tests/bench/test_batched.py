"""Tests of the benchmark of models written for one instance: what it runs, checks and refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from benchmarks import harness
from benchmarks.batched import run
from benchmarks.floor import Rates
from benchmarks.measure import Protocol
from benchmarks.models.instances.trees import SHAPES_VARIABLE
from benchmarks.peers import Case, Peer, Prepared
from benchmarks.peers.instances import INSTANCE_PEERS, StrettoInstances
from benchmarks.record import Record
from stretto.tools.cli import app

QUICK = replace(Protocol.quick(), rounds=1, runs=1, short_runs=1)
RATES = Rates(1, 1e9, 4e9, 2e9, 1e9, l2_bytes=1 << 20, l3_bytes=1 << 24)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "measure_rates", lambda threads: RATES)
    monkeypatch.delenv(SHAPES_VARIABLE, raising=False)


class Changed(Peer):
    """Eager, with the results of the batch changed."""

    name: ClassVar[str] = "changed"

    def prepare(self, case: Case) -> Prepared:
        eager = INSTANCE_PEERS["eager"].prepare(case)
        return replace(eager, call=lambda: self.change(eager.call()))

    def change(self, results: list) -> list:
        raise NotImplementedError


class Reversed(Changed):
    def change(self, results: list) -> list:
        return results[::-1]


class OneStepMore(Changed):
    """Adds 1 to the last of the integers that a result has beside its tensor."""

    def change(self, results: list) -> list:
        last, (tensor, steps) = len(results) - 1, results[-1]
        return [*results[:last], (tensor, [*steps[:-1], steps[-1] + 1])]


class OneMissing(Changed):
    def change(self, results: list) -> list:
        return results[:-1]


def measured(model: str, *peers: str, batch: int = 3, systems: object = None) -> Record:
    known = {**INSTANCE_PEERS, **({systems.name: systems} if isinstance(systems, Peer) else {})}
    return run([model], peers, 1, batch=batch, small=True, protocol=QUICK, systems=known)


@pytest.mark.parametrize("batch", [1, 5])
def test_systems_are_checked_and_timed(batch: int, tmp_path: Path) -> None:
    record = measured("treelstm", "eager", "hand", batch=batch)
    assert record.batch == batch
    (model,) = record.models
    assert model.model == "treelstm:small"
    assert model.floor_ms is not None and model.floor_ms > 0
    for system in model.systems:
        assert system.status == "ok" and system.timing is not None
        assert system.error is not None and system.error < 1e-5
    record.write_json(tmp_path / "record.json")
    config = json.loads((tmp_path / "record.json").read_text())["models"][0]["config"]
    assert config["batch"] == batch and config["trees"] == "random"
    assert config["model"]["hidden"] == 8


@pytest.mark.parametrize("change", [Reversed, OneStepMore, OneMissing])
def test_results_that_are_wrong_have_no_time(change: type[Changed]) -> None:
    record = measured("nestedrnn", "eager", "changed", systems=change())
    eager, changed = record.models[0].systems
    assert eager.status == "ok"
    assert changed.status == "wrong" and changed.timing is None
    assert "is above 1e-04" in changed.reason


def test_stretto_compiles_a_program_per_structure() -> None:
    record = measured("dagrnn", "eager", "stretto_each", batch=2)
    assert [system.status for system in record.models[0].systems] == ["ok", "ok"]


def test_fewer_instances_are_measured_where_compiling_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StrettoInstances, "limit_s", 0.0)
    (each,) = measured("dagrnn", "stretto_each", batch=4).models[0].systems
    assert each.status == "ok" and each.timing is not None
    assert each.note.startswith("the first 1 of 4 instances, compiled in ")


def test_what_is_not_there_is_skipped_with_a_reason() -> None:
    (hand,) = measured("expression", "hand").models[0].systems
    assert hand.status == "skipped"
    assert hand.reason == "nothing is written by hand for a batch of this model"
    (each,) = measured("treelstm", "stretto_each").models[0].systems
    assert each.status == "skipped"
    assert each.reason == "instances without tensors are constants of their programs"


def test_a_model_is_measured_in_all_of_its_sizes_or_in_one() -> None:
    record = run(["expression"], ["eager"], 1, batch=1, protocol=QUICK)
    assert [model.model for model in record.models] == ["expression:256", "expression:512"]
    record = run(["expression:512"], ["eager"], 1, batch=1, protocol=QUICK)
    assert [model.model for model in record.models] == ["expression:512"]


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="unknown model 'treelstn'; known are treelstm, mvrnn"):
        run(["treelstn"])
    with pytest.raises(ValueError, match="treelstm has no size '1': small, 256, 512"):
        run(["treelstm:1"])
    with pytest.raises(ValueError, match="unknown peer 'hnd'; known are eager, stretto_each"):
        run(["treelstm"], ["hnd"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["treelstn"], "unknown model 'treelstn'; did you mean 'treelstm'?"),
        (["lstm"], "unknown model 'lstm'"),
        (["treelstm:257"], "unknown size '257'; did you mean '256'?"),
        (["--peers", "hnd"], "unknown peer 'hnd'; did you mean 'hand'?"),
    ],
)
def test_wrong_arguments_of_the_command(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--batched", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_command_writes_a_record_and_a_plot(tmp_path: Path) -> None:
    record, plot = tmp_path / "record.json", tmp_path / "plot.png"
    arguments = ["bench", "--batched", "birnn", "experts", "--peers", "eager,hand", "--small"]
    more = ["--quick", "--threads", "1", "--batch", "4", "--json", str(record)]
    result = CliRunner().invoke(app, [*arguments, *more, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    models = json.loads(record.read_text())["models"]
    assert [model["model"] for model in models] == ["birnn:small", "experts:small"]
    assert all(model["config"]["batch"] == 4 for model in models)
    assert plot.stat().st_size > 1000

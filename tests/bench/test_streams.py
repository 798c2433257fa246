"""Streams of calls with other sizes each time, and the models that people have."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.harness import relative_error
from benchmarks.measure import Protocol
from benchmarks.models.counted import counted_work
from benchmarks.models.entry import generator
from benchmarks.models.real import REAL, MissingPackage, RealConfig
from benchmarks.peers.base import tensors_to_numpy
from benchmarks.streams import memory, shapes, suite
from benchmarks.streams.models import STREAMS, made
from benchmarks.streams.systems import SYSTEMS
from benchmarks.streams.worker import StreamResult, measure


@pytest.mark.parametrize("name", STREAMS)
def test_the_programs_take_any_size_and_agree_with_float64(name: str) -> None:
    stream = STREAMS[name]
    module = made(stream, small=True)
    precise = copy.deepcopy(module).double()
    sizes = stream.sizes(50, small=True)
    assert len(set(sizes)) > 10 and all(stream.low <= size <= stream.high for size in sizes)
    assert sizes == stream.sizes(50, small=True)
    for size in (stream.low, sizes[0]):
        inputs = stream.inputs(module, size, generator(0))
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        with torch.no_grad():
            got, wanted = tensors_to_numpy(module(*inputs)), tensors_to_numpy(precise(*wide))
        assert relative_error(got, wanted) < 1e-5


@pytest.mark.parametrize("system", ["eager", "onnxruntime", "jax"])
@pytest.mark.parametrize("name", STREAMS)
def test_the_peers_agree_with_eager(name: str, system: str) -> None:
    result = measure(name, system, calls=3, threads=1, small=True)
    if result.reason:
        assert "installed" in result.reason or (name, system) == ("images", "jax"), result.reason
        pytest.skip(result.reason)
    assert result.error < 1e-5
    assert result.total_s >= result.slowest_s > 0
    assert result.memory[0] > 0


@pytest.mark.whole
def test_stretto_runs_a_stream() -> None:
    result = measure("batches", "stretto", calls=4, threads=1, small=True)
    assert result.reason == "" and result.error < 1e-5
    assert result.compilations is not None and result.compilations >= 1


def test_a_system_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setitem(SYSTEMS, "eager", broken)  # type: ignore[arg-type]
    assert measure("tagger", "eager", 2, 1, small=True).reason == "ValueError: no such thing"


@pytest.mark.whole
def test_a_record_of_processes_in_turns(tmp_path: Path) -> None:
    record = suite.run(["tagger"], ["eager"], calls=3, rounds=2, threads=1, small=True)
    assert [run.reason for run in record.runs] == ["", ""]
    suite.publish(record, Console(record=True), tmp_path / "record.json")
    written = json.loads((tmp_path / "record.json").read_text())
    assert len(written["runs"]) == 2 and written["runs"][0]["calls"] == 3


def test_ratios_are_of_the_same_round() -> None:
    own = StreamResult("tagger", "stretto", 10, 1.0, 0.5, 0.1, 2)
    slow = replace(own, system="eager", steady_s=1.0)
    record = suite.StreamRecord("", None, "", {}, 1, (slow, own, replace(slow, steady_s=1.5), own))
    console = Console(record=True, width=160)
    console.print(suite.table(record))
    shown = console.export_text()
    assert "2.00 3.00" in shown and "1.00 1.00" in shown


@pytest.mark.parametrize("name", ["bert_base", "gpt2_decode", "t5_small", "resnet18", "vit_b_16"])
def test_models_that_people_have(name: str) -> None:
    entry = REAL[name]
    try:
        module, inputs = entry.make(entry.presets["small"], 0)
    except MissingPackage as missing:
        pytest.skip(str(missing))
    with torch.no_grad():
        first, again = module(*inputs), entry.make(entry.presets["small"], 0)[0](*inputs)
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        precise = copy.deepcopy(module).double()(*wide)
    assert relative_error(tensors_to_numpy(first), tensors_to_numpy(again)) == 0
    assert relative_error(tensors_to_numpy(first), tensors_to_numpy(precise)) < 1e-4


@pytest.mark.whole
@pytest.mark.parametrize("name", shapes.SMALL)
def test_a_dynamic_program_beside_those_for_one_size(name: str) -> None:
    quick = Protocol.quick()
    results = shapes.measure(name, 1, quick, small=True)
    assert [result.reason for result in results] == ["", "", ""]
    assert all(result.programs == 1 and result.ratio > 0 for result in results)
    console = Console(record=True, width=120)
    console.print(shapes.table(results))
    assert "geometric mean" in console.export_text()


def test_the_floor_of_a_model_is_counted_from_its_products() -> None:
    def tied(config: RealConfig, seed: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
        return layers, (torch.randn(config.size, 3, generator=generator(seed)),)

    first, second = counted_work(tied, RealConfig(7))
    assert (first.flops, first.bytes) == (2 * 7 * 3 * 5, 4 * (3 * 5 + 5))
    assert (second.flops, second.bytes) == (2 * 7 * 5 * 2, 4 * (5 * 2 + 2))
    assert first.resident == 4 * (3 * 5 + 5 + 5 * 2 + 2)


def test_memory_is_measured_after_each_number_of_sizes() -> None:
    found = memory.grown("batches", "eager", [1, 3], threads=1, small=True)
    assert len(found) == 2 and all(abs(value) < 1000 for value in found)

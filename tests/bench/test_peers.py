"""Tests of the hand-written peer programs: each computes what eager does, also for a batch."""

from dataclasses import replace

import pytest
from torch import nn

from benchmarks.harness import TOLERANCE, reference_outputs, relative_error
from benchmarks.models import CORE, ZOO
from benchmarks.peers import PEERS, Case, Skipped

PACKAGES = {"eager": "torch", "script": "torch", "onnxruntime": "onnxruntime", "jax": "jax"}
BATCHED = [name for name in CORE if ZOO[name].batched and name != "lstm100"]


def check(peer: str, name: str, batch: int = 1) -> None:
    pytest.importorskip(PACKAGES[peer], reason=f"{PACKAGES[peer]} is not installed")
    config = ZOO[name].presets["small"]
    config = replace(config, batch=batch) if batch > 1 else config
    module, inputs = ZOO[name].make(config, 0)
    prepared = PEERS[peer].prepare(Case(name, config, module, inputs, 1))
    wanted = reference_outputs(module, inputs)
    for _ in range(2):
        assert relative_error(prepared.outputs(prepared.call()), wanted) <= TOLERANCE
    PEERS[peer].release()


@pytest.mark.parametrize("peer", PACKAGES)
@pytest.mark.parametrize("name", [name for name in CORE if name != "lstm100"])
@pytest.mark.rotating(3)
def test_peer_agrees_with_eager(peer: str, name: str) -> None:
    check(peer, name)


@pytest.mark.parametrize("peer", ["script", "onnxruntime", "jax"])
@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.rotating(3)
def test_peer_agrees_with_eager_on_a_batch(peer: str, name: str) -> None:
    check(peer, name, batch=3)


@pytest.mark.parametrize("peer", ["onnxruntime", "jax"])
def test_a_model_without_a_program_is_skipped(peer: str) -> None:
    pytest.importorskip(PACKAGES[peer], reason=f"{PACKAGES[peer]} is not installed")
    with pytest.raises(Skipped, match="is written for Identity"):
        PEERS[peer].prepare(Case("identity", None, nn.Identity(), (), 1))

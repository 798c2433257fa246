"""Tests of the peers: hand-written programs compute what eager does, also for a batch; what
torch.compile made is kept where the user says so."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from benchmarks.harness import TOLERANCE, reference_outputs, relative_error
from benchmarks.models import CORE, ZOO
from benchmarks.peers import PEERS, Case, Skipped
from benchmarks.peers.torch_peers import drop_waiting_compilations, kept_cache_folder

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
def test_peer_agrees_with_eager(peer: str, name: str) -> None:
    check(peer, name)


@pytest.mark.parametrize("peer", ["script", "onnxruntime", "jax"])
@pytest.mark.parametrize("name", BATCHED)
def test_peer_agrees_with_eager_on_a_batch(peer: str, name: str) -> None:
    check(peer, name, batch=3)


def test_a_model_without_a_program_is_skipped() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with pytest.raises(Skipped, match="is written for Identity"):
        PEERS["onnxruntime"].prepare(Case("identity", None, nn.Identity(), (), 1))


def test_compiled_code_is_kept_only_in_a_folder_that_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.delenv(folder, raising=False)
    assert kept_cache_folder() is None
    monkeypatch.setenv(folder, default_cache_dir())  # as torch itself sets it
    assert kept_cache_folder() is None
    monkeypatch.setenv(folder, str(tmp_path))
    assert kept_cache_folder() == str(tmp_path)


@pytest.mark.whole
def test_autotune_finds_its_code_in_a_kept_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    module, inputs = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.ones(2, 4),)
    for first in (True, False):
        peer = PEERS["autotune"]
        prepared = peer.prepare(Case("tiny", None, module, inputs, 1))
        wanted = reference_outputs(module, inputs)
        assert relative_error(prepared.outputs(prepared.call()), wanted) <= TOLERANCE
        assert prepared.note == f"compiled with the kept cache folder {tmp_path}"
        hits = counters["inductor"]["fxgraph_cache_hit"]
        assert hits == (0 if first else 1)
        peer.release()


@pytest.mark.whole
def test_compilations_of_a_preparation_that_was_cut_off_are_dropped() -> None:
    from torch._inductor.async_compile import AsyncCompile

    started, ran = threading.Event(), list[int]()

    def first() -> None:
        started.set()
        time.sleep(0.2)

    pool = AsyncCompile.pool()
    pool.submit(first)
    started.wait()
    waiting = [pool.submit(time.sleep, 0.2) for _ in range(50)]
    waiting.append(pool.submit(ran.append, 1))
    drop_waiting_compilations()
    assert waiting[-1].cancelled() and not ran
    AsyncCompile.pool().submit(ran.append, 2).result()
    assert ran == [2]

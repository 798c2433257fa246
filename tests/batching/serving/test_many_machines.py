"""Batchers on the workers of a Ray cluster, started on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stretto
from stretto.batching.serving import (
    InstanceCall,
    InstanceFailure,
    InstanceResult,
    Outcome,
    Streaming,
)

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[data,serve]'")
pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'ray[serve]'")

import ray
from ray import serve
from ray.data import ActorPoolStrategy, DataContext

from examples import many_machines as example

TEXTS = [f"(1 {i % 100} (2 {(3 * i) % 100} (7 4 {i // 4})))" for i in range(200)]
DEADLY = "(99 98 97)"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


PORT = _free_port()


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    DataContext.get_current().enable_progress_bars = False
    yield
    serve.shutdown()
    ray.shutdown()


class Eager(Streaming):
    """A batcher that runs the model instance by instance; `mark` is where it dies, once."""

    def __init__(self, model: torch.nn.Module, mark: str = "", always: bool = False) -> None:
        self.model, self.mark, self.always = model, mark, always

    def __call__(self, trees: list[example.Node]) -> list[Any]:
        with torch.no_grad():
            return [self._one(tree) for tree in trees]

    def run_calls(self, calls: Any) -> list[Outcome]:
        return [self._outcome(call) for call in calls]

    def _outcome(self, call: InstanceCall) -> Outcome:
        try:
            return InstanceResult(self._one(*call.args))
        except Exception as error:
            return InstanceFailure(error)

    def _one(self, tree: example.Node) -> torch.Tensor:
        if tree.word == 99 and self.mark and (self.always or not os.path.exists(self.mark)):
            Path(self.mark).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return self.model(tree)


def model() -> example.TreeScore:
    torch.manual_seed(0)
    return example.TreeScore(width=16).eval()


def expected(text: str) -> float:
    with torch.no_grad():
        return float(model()(example.parsed(text)))


def batched() -> Any:
    return stretto.batch(model(), options=stretto.Options(threads=1))


def test_a_corpus() -> None:
    scores = example.score_corpus(batched(), TEXTS, workers=2)
    assert set(scores) == set(TEXTS)
    for text, score in scores.items():
        assert score == pytest.approx(expected(text), abs=1e-4)


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    many = Eager(model(), str(tmp_path / "mark"))
    scores = example.score_corpus(many, [*TEXTS, DEADLY], workers=2)
    assert (tmp_path / "mark").exists()
    assert scores[DEADLY] == pytest.approx(expected(DEADLY), abs=1e-4)
    assert set(scores) == {*TEXTS, DEADLY}


def corpus_without_restarts(many: Any, errors: int) -> list[dict[str, Any]]:
    context = DataContext.get_current().copy()
    context.max_errored_blocks = errors
    with DataContext.current(context):
        rows = [{"tree": text} for text in [*TEXTS, DEADLY]]
        corpus = ray.data.from_items(rows, override_num_blocks=8)
        return corpus.map_batches(
            example.Scorer,
            fn_constructor_args=(many,),
            batch_size=4,
            compute=ActorPoolStrategy(size=2),
            max_restarts=0,
            max_task_retries=0,
        ).take_all()


def test_the_error_names_a_worker_that_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ray.exceptions.ActorDiedError) as found:
        corpus_without_restarts(Eager(model(), str(mark), always=True), errors=0)
    assert "Scorer" in str(found.value) and f"pid: {mark.read_text()}" in str(found.value)


def test_the_rest_finishes_where_the_block_of_a_killed_worker_may_be_lost(tmp_path: Path) -> None:
    many = Eager(model(), str(tmp_path / "mark"), always=True)
    rows = corpus_without_restarts(many, errors=1)
    lost = {*TEXTS, DEADLY} - {row["tree"] for row in rows}
    assert DEADLY in lost and 1 <= len(lost) <= 26  # the block of that row, of 8


def test_a_service() -> None:
    app = example.Service.bind(batched())
    handle: Any = serve.run(app, name="trees", route_prefix="/trees")
    replies = [handle.score.remote(text) for text in TEXTS]
    bad = handle.score.remote("(1 500 2)")
    for text, reply in zip(TEXTS, replies, strict=True):
        assert reply.result(timeout_s=60) == pytest.approx(expected(text), abs=1e-4)
    with pytest.raises(Exception, match="500|out of (bounds|range)"):
        bad.result(timeout_s=60)
    assert max(handle.batch_sizes.remote().result(timeout_s=60)) > 1
    address = f"http://127.0.0.1:{PORT}/trees"
    with urllib.request.urlopen(address, TEXTS[0].encode(), timeout=60) as reply:
        assert json.load(reply)["score"] == pytest.approx(expected(TEXTS[0]), abs=1e-4)


def test_a_replica_that_is_killed_is_named_and_others_answer(tmp_path: Path) -> None:
    many = Eager(model(), str(tmp_path / "mark"), always=True)
    handle: Any = serve.run(example.Service.bind(many), name="deadly", route_prefix=None)
    deadly = handle.score.remote(DEADLY)
    with pytest.raises(ray.exceptions.RayError) as found:
        deadly.result(timeout_s=60)
    killed = (tmp_path / "mark").read_text()
    assert "Service" in str(found.value) and f"pid: {killed}" in str(found.value)
    for text in TEXTS:
        reply = handle.score.remote(text)
        assert reply.result(timeout_s=60) == pytest.approx(expected(text), abs=1e-4)

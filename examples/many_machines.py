"""One batcher on many machines, by Ray: a corpus with Ray Data, a service with Ray Serve.

Run it: `python examples/many_machines.py`

It needs Ray: `pip install "ray[data,serve]"`.

Ray starts on this machine alone. On a cluster, say where it is: `RAY_ADDRESS=auto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray import serve
from ray.data import ActorPoolStrategy
from torch import Tensor, nn

import stretto

WORDS = 100
MAX_BATCH = 64


@dataclass
class Node:
    """A node of a parse tree; a leaf has no children. `word` is a row of the embedding."""

    left: Node | None
    right: Node | None
    word: int


class TreeScore(nn.Module):
    """A tree -> its score, []."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.join = nn.Linear(2 * width, width)
        self.score = nn.Linear(width, 1)

    def encode(self, node: Node) -> Tensor:
        x = self.embedding.weight[node.word]
        if node.left is None or node.right is None:
            return x
        children = torch.cat([self.encode(node.left), self.encode(node.right)])
        return torch.tanh(self.join(children) + x)

    def forward(self, tree: Node) -> Tensor:
        return self.score(self.encode(tree))[0]


def parsed(text: str) -> Node:
    """Parse a tree: `3` is the leaf with word 3, `(5 LEFT RIGHT)` a node with word 5."""
    stack: list[list[Node]] = [[]]
    words: list[int] = []
    for part in text.replace("(", " ( ").replace(")", " ) ").split():
        if part == "(":
            stack.append([])
            words.append(-1)
        elif part == ")":
            left, right = stack.pop()
            stack[-1].append(Node(left, right, words.pop()))
        elif words and words[-1] < 0:
            words[-1] = int(part)
        else:
            stack[-1].append(Node(None, None, int(part)))
    (root,) = stack[0]
    return root


# ---- a corpus: Ray Data ------------------------------------------------------------------------


class Scorer:
    """A worker. Ray pickles the batcher for it: the model and the options, without compiled
    programs."""

    def __init__(self, many: Any) -> None:
        self.many = many

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        scores = self.many([parsed(text) for text in rows["tree"]])
        return {**rows, "score": np.array([float(score) for score in scores])}


def score_corpus(many: Any, texts: Sequence[str], workers: int) -> dict[str, float]:
    """Return the score of each text. A worker that dies is replaced, and its rows are read
    again."""
    corpus = ray.data.from_items([{"tree": text} for text in texts])
    scored = corpus.map_batches(
        Scorer,
        fn_constructor_args=(many,),
        batch_size=MAX_BATCH,
        compute=ActorPoolStrategy(size=workers),
        num_cpus=1,  # as many as the batcher has threads
    )
    return {row["tree"]: row["score"] for row in scored.take_all()}


# ---- a service: Ray Serve ----------------------------------------------------------------------


@serve.deployment(
    num_replicas=2,
    max_ongoing_requests=4 * MAX_BATCH,  # with Ray's default of 5, batches have at most 5 requests
    ray_actor_options={"num_cpus": 1},
)
class Service:
    """A replica: requests that reach it at about the same time are answered by one batch."""

    def __init__(self, many: Any) -> None:
        self.requests = many.stream(max_batch=MAX_BATCH, max_wait_ms=2)

    async def score(self, text: str) -> float:
        return float(await self.requests.asubmit(parsed(text)))

    async def __call__(self, request: Any) -> dict[str, float]:
        """HTTP: the body of the request is the text."""
        return {"score": await self.score((await request.body()).decode())}

    async def batch_sizes(self) -> dict[int, int]:
        return dict(self.requests.metrics().batch_sizes)


def main() -> None:
    torch.manual_seed(0)
    model = TreeScore(width=64).eval()
    many = stretto.batch(model, options=stretto.Options(threads=1))
    texts = [f"(1 {i % WORDS} (2 {(3 * i) % WORDS} (7 4 {i // 4})))" for i in range(256)]
    with torch.no_grad():
        expected = {text: float(model(parsed(text))) for text in texts}

    ray.init(include_dashboard=False)
    scores = score_corpus(many, texts, workers=2)
    assert all(abs(scores[text] - expected[text]) < 1e-4 for text in texts)
    print(f"corpus: {len(scores)} trees on 2 workers, same as eager")

    handle = serve.run(Service.bind(many))
    replies = [handle.score.remote(text) for text in texts]
    assert all(abs(r.result() - expected[t]) < 1e-4 for r, t in zip(replies, texts, strict=True))
    print(f"service: {len(replies)} requests, same as eager; batches of one replica by size:")
    print(handle.batch_sizes.remote().result())
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

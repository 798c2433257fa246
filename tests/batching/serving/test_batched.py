"""Streams of what `stretto.batch` makes, against eager PyTorch."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.batching.serving.fakes import LIMIT_S, in_thread, joined


@dataclass
class Node:
    left: Node | None
    right: Node | None
    word: int


class Encoder(nn.Module):
    """A tree -> [4]. A word that the embedding does not have raises."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.join = nn.Linear(8, 4)

    def encode(self, node: Node) -> Tensor:
        if node.word >= 10:
            raise ValueError("an unknown word")
        x = self.embedding.weight[node.word]
        if node.left is None or node.right is None:
            return x
        return torch.tanh(self.join(torch.cat([self.encode(node.left), self.encode(node.right)])))

    def forward(self, tree: Node, scale: float = 1.0) -> Tensor:
        return scale * self.encode(tree)


def tree(number: int) -> Node:
    """Trees of several shapes, by number."""
    leaf = Node(None, None, number % 10)
    root = leaf
    for step in range(number % 4):
        other = Node(None, None, (number + step) % 10)
        root = Node(root, other, step) if number % 2 else Node(other, root, step)
    return root


@pytest.fixture(scope="module")
def model() -> Encoder:
    torch.manual_seed(0)
    return Encoder().eval()


@pytest.fixture(scope="module", autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def many(model: Encoder) -> Any:
    made = stretto.batch(model, options=stretto.Options(threads=2))
    made([tree(number) for number in range(8)])
    return made


def test_requests_from_threads_are_those_of_eager(model: Encoder, many: Any) -> None:
    wrong = list[int]()

    def call(first: int) -> None:
        with torch.no_grad():
            futures = [stream.submit(tree(first + step)) for step in range(20)]
            for step, future in enumerate(futures):
                expected = model(tree(first + step))
                if not torch.allclose(future.result(LIMIT_S), expected, rtol=1e-4, atol=1e-5):
                    wrong.append(first + step)

    with many.stream(max_batch=7, max_wait_ms=1) as stream:
        joined(*(in_thread(lambda n=n: call(100 * n)) for n in range(4)))  # type: ignore[misc]
    assert wrong == [] and stream.metrics().finished == 80


def test_a_request_that_fails_does_so_alone(model: Encoder, many: Any) -> None:
    bad = Node(tree(1), Node(None, None, 11), 0)
    with many.stream(max_batch=8, max_wait_ms=1e6) as stream:
        trees = [tree(1), bad, tree(2), tree(3), bad, tree(5)]
        futures = [stream.submit(each) for each in trees]
    for each, future in zip(trees, futures, strict=True):
        if each is bad:
            assert isinstance(future.exception(), ValueError)
            assert "an unknown word" in str(future.exception())
        else:
            torch.testing.assert_close(future.result(), model(each), rtol=1e-4, atol=1e-5)


def test_data_of_a_wrong_type_fails_alone(model: Encoder, many: Any) -> None:
    with many.stream(max_batch=4, max_wait_ms=1e6) as stream:
        futures = [stream.submit(each) for each in (tree(1), 3, tree(2))]
    assert futures[1].exception() is not None
    for number, future in ((1, futures[0]), (2, futures[2])):
        torch.testing.assert_close(future.result(), model(tree(number)), rtol=1e-4, atol=1e-5)


def test_keywords_and_asyncio(model: Encoder, many: Any) -> None:
    async def ask() -> list[Tensor]:
        async with many.stream(max_batch=8, max_wait_ms=1) as stream:
            asked = [stream.asubmit(tree(n), scale=float(1 + n % 2)) for n in range(12)]
            return await asyncio.gather(*asked)

    for number, found in enumerate(asyncio.run(ask())):
        expected = model(tree(number), scale=float(1 + number % 2))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_pickled_batcher_is_rebuilt(model: Encoder, many: Any) -> None:
    many.submit(tree(1)).result(LIMIT_S)  # has a stream by now, which is not pickled
    with pickle.loads(pickle.dumps(many)) as copy:
        found = copy.submit(tree(7)).result(LIMIT_S)
        torch.testing.assert_close(found, model(tree(7)), rtol=1e-4, atol=1e-5)
        assert copy.metrics().submitted == 1

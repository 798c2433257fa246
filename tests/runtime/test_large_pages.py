"""Memory for packed constants in large pages."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import stretto
from stretto.runtime.constants import (
    CHUNK_BYTES,
    LARGE_PAGES,
    LARGE_RESULT,
    LEAST_BYTES,
    LargePages,
    advise_large,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_have_what_was_asked_for(dtype: torch.dtype) -> None:
    for shape in ((0,), (3, 0, 64), (7,), (1, 5, 511, 64), (12, 768, 64), (3, 64 << 10, 64)):
        made = LARGE_PAGES.empty(shape, dtype)
        assert made.shape == shape and made.dtype == dtype and made.is_contiguous()
        assert made.data_ptr() % 64 == 0


def test_tensors_are_apart() -> None:
    """Also those that threads ask for at the same time, and those that fill a chunk."""
    count = LEAST_BYTES // 4
    sizes = [count + n * 7919 for n in range(60)] + [CHUNK_BYTES // 4 + 5, count, count + 1]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda size: LARGE_PAGES.empty((size,), torch.float32), sizes))
    for number, tensor in enumerate(made):
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(made))


@pytest.mark.whole
def test_a_chunk_goes_with_its_last_tensor() -> None:
    memory = LargePages()
    first, second = (memory.empty((LEAST_BYTES,), torch.uint8) for _ in range(2))
    assert memory.current is not None
    pages = weakref.ref(memory.current.pages)
    memory.empty((CHUNK_BYTES,), torch.uint8)
    del first
    gc.collect()
    assert pages() is not None
    second.fill_(1)
    del second
    gc.collect()
    assert pages() is None


def test_large_results_are_as_they_were() -> None:
    tensors = [torch.empty(LARGE_RESULT // 4 + 3), torch.empty(3), torch.empty(0)]
    assert advise_large(tensors) is tensors


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_of_any_size_are_right(dynamic: bool) -> None:
    fast = stretto.compile(lambda x: x + 1, backend="cpu", dynamic=dynamic)
    for rows in (2, 1023, 1024, 3000):
        x = torch.randn(rows, 1024)
        assert torch.equal(fast(x), x + 1)

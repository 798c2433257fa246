"""Weights that change between calls, in ways that torch's version counters see and do not see."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stretto
from stretto.call.compiled import Compiled
from stretto.options import Options
from stretto.runtime import memory_watch

SIZE = 96


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


# ---- ways to change a tensor -----------------------------------------------------------------


def fused_step(w: Tensor) -> None:
    parameter = nn.Parameter(w)
    assert parameter.data_ptr() == w.data_ptr()
    parameter.grad = torch.ones_like(w)
    torch.optim.Adam([parameter], lr=0.5, fused=True).step()


def averaged(w: Tensor) -> None:
    mean = torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1))
    mean.module.weight.data = w
    mean.module.weight.data.lerp_(torch.ones_like(w), 0.5)


def in_inference_mode(w: Tensor) -> None:
    with torch.inference_mode():
        w.data.add_(1)


def one_byte(w: Tensor) -> None:
    w.data.view(-1).view(torch.uint8)[-1] ^= 0x40


WAYS: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda w: w.mul_(2),
    "data.mul_": lambda w: w.data.mul_(2),
    "data.neg_": lambda w: w.data.neg_(),
    "data.copy_": lambda w: w.data.copy_(torch.randn_like(w)),
    "rows swapped": lambda w: w.data.copy_(w.data.roll(1, 0)),
    "numpy": lambda w: w.numpy().__setitem__((3, 5), 7.0),
    "storage": lambda w: w.untyped_storage().copy_(torch.randn_like(w).untyped_storage()),
    "another view": lambda w: w.data.view(-1)[5:].zero_(),
    "merged": lambda w: w.data.add_(torch.randn(SIZE, 2) @ torch.randn(2, SIZE)),
    "fused optimizer": fused_step,
    "averaged": averaged,
    "inference mode": in_inference_mode,
    "one byte": one_byte,
    "data replaced": lambda w: setattr(w, "data", torch.randn_like(w)),
}


def packed(w: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.tanh(x @ w)


def packed_view(w: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: F.linear(x[:, :50], w[32:, 40:90])


def folded(w: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x + (w * 2 + 1).sum(0)


def joined(w: Tensor) -> Callable[[Tensor], list[Tensor]]:
    half = SIZE // 2
    return lambda x: [torch.tanh(x @ w[:, :half]), torch.sigmoid(x @ w[:, half:])]


def read_in_place(w: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x * w[3] + F.embedding(x.argmax(1), w)


def contiguous_copy(w: Tensor) -> Callable[[Tensor], Tensor]:
    turned = w.t()
    return lambda x: x * turned[5]


USES = [packed, packed_view, folded, joined, read_in_place, contiguous_copy]


def everything(w: Tensor) -> Callable[[Tensor], list[Any]]:
    functions = [use(w) for use in USES]
    return lambda x: [function(x) for function in functions]


def follows(function: Callable[..., Any], change: Callable[[], Any], backend: str) -> Compiled:
    """Compiled and eager agree before a change and after it, and after it was made once more."""
    compiled = stretto.compile(function, backend=backend, options=Options(threads=2, units=2))
    x = torch.randn(3, SIZE)
    for _ in range(3):
        for _ in range(2):
            for found, wanted in zip(leaves(compiled(x)), leaves(function(x)), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
        change()
    return compiled


def leaves(found: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(found)


ELSEWHERE = [
    (way, backend)
    for way in ("data.mul_", "fused optimizer", "numpy")
    for backend in ("emulator", "interpreter")
]
"""These machines look at the bytes, whatever has changed them."""


@pytest.mark.parametrize(("way", "backend"), [*((way, "cpu") for way in WAYS), *ELSEWHERE])
def test_weights_that_change(way: str, backend: str) -> None:
    w = torch.randn(SIZE, SIZE)
    follows(everything(w), lambda: WAYS[way](w), backend)


def test_weights_that_change_on_the_emulated_gpu() -> None:
    w = torch.randn(SIZE, SIZE)
    follows(everything(w), lambda: w.data.mul_(0.5), "cuda-emulated")


def test_tensors_made_in_inference_mode() -> None:
    with torch.inference_mode():
        w = torch.randn(SIZE, SIZE)

        def change() -> None:
            with torch.inference_mode():
                w.mul_(0.5)

        follows(everything(w), change, "cpu")


def test_a_number_that_was_read_while_capturing() -> None:
    limit = torch.tensor(3)
    follows(lambda x: x * int(limit), lambda: limit.data.add_(1), "cpu")


def test_memory_of_several_processes_and_of_files(tmp_path: Any) -> None:
    """Where the system does not tell what was written, all bytes are compared."""
    shared = torch.randn(SIZE, SIZE).share_memory_()
    other_view = torch.frombuffer(memoryview(shared.numpy()).cast("B"), dtype=torch.float32)
    follows(everything(shared), lambda: other_view.mul_(0.5), "cpu")
    path = tmp_path / "weights"
    path.write_bytes(torch.randn(SIZE, SIZE).numpy().tobytes())
    mapped = torch.from_file(str(path), shared=True, size=SIZE * SIZE).view(SIZE, SIZE)
    private = torch.from_file(str(path), shared=False, size=SIZE * SIZE).view(SIZE, SIZE)
    writer = torch.from_file(str(path), shared=True, size=SIZE * SIZE)
    follows(everything(mapped), lambda: writer.mul_(0.5), "cpu")
    follows(everything(private), lambda: private.data.mul_(0.5), "cpu")


# ---- what a change costs ---------------------------------------------------------------------


def test_packed_weights_are_packed_again_without_a_new_capture() -> None:
    w = torch.randn(SIZE, SIZE)
    compiled = follows(packed(w), lambda: w.data.mul_(0.5), "cpu")
    (entry,) = compiled.signatures
    assert entry.builds == 1


def test_weights_that_are_read_in_place_cost_nothing() -> None:
    w = torch.randn(SIZE, SIZE)
    compiled = follows(read_in_place(w), lambda: w.data.mul_(0.5), "cpu")
    (entry,) = compiled.signatures
    assert entry.builds == 1 and not entry.executable.copies


@pytest.mark.whole
def test_signatures_share_packed_weights() -> None:
    module = nn.Sequential(nn.Linear(SIZE, 128), nn.Tanh(), nn.Linear(128, 16)).eval()
    compiled = stretto.compile(module, backend="cpu", options=Options(threads=1), dynamic=False)
    rows = [1, 3, 70]
    for count in rows:
        compiled(torch.randn(count, SIZE))
    groups = [entry.executable.copies for entry in compiled.signatures]
    weights = {copy.tensor.data_ptr() for group in groups for copy in group}
    assert len(groups) == 3 and len(weights) == 2
    module[0].weight.data.mul_(0.5)
    for count in rows:
        x = torch.randn(count, SIZE)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)


def test_copies_go_with_the_last_program() -> None:
    w = torch.randn(SIZE, SIZE)
    compiled = follows(packed(w), lambda: None, "cpu")
    (entry,) = compiled.signatures
    before = len(memory_watch._REGIONS)
    assert entry.executable.copies
    del compiled, entry
    gc.collect()
    assert len(memory_watch._REGIONS) < before


# ---- the watch itself ------------------------------------------------------------------------


def test_overlapping_regions_all_learn_of_a_write() -> None:
    whole = torch.zeros(1 << 16)
    parts = [whole, whole[: 1 << 15], whole[1 << 14 :], whole[5:9]]
    looks = [memory_watch.RegionSet(memory_watch.regions_of([part], native=True)) for part in parts]
    for place, expected in [(0, [1, 1, 0, 0]), (1 << 14, [1, 1, 1, 0]), (6, [1, 1, 0, 1])]:
        whole.data[place] += 1
        assert [look.finds_changes() for look in looks] == [bool(item) for item in expected]
        assert [look.finds_changes() for look in looks] == [bool(item) for item in expected]
        for look in looks:
            look.accept(look.generations())
        assert not any(look.finds_changes() for look in looks)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("count", [1, 31, 1000, 5000, 1 << 15])
def test_every_byte_counts(count: int, native: bool) -> None:
    data = torch.zeros(count, dtype=torch.uint8)
    look = memory_watch.RegionSet(memory_watch.regions_of([data], native))
    for place in sorted({0, count // 3, count // 2, count - 1}):
        data[place] ^= 128
        assert look.finds_changes()
        look.accept(look.generations())
    data.data.copy_(data.clone())  # the same bytes again are no change
    assert not look.finds_changes()


def test_equal_changes_do_not_cancel_out() -> None:
    data = torch.arange(1, 1 << 14, dtype=torch.float64)
    look = memory_watch.RegionSet(memory_watch.regions_of([data], native=True))
    for change in (data.neg_, lambda: data[512:1024].neg_(), lambda: data[[600, 616]].neg_()):
        change()
        swapped = data[600:608].clone()
        data[600:608] = data[616:624]
        data[616:624] = swapped
        assert look.finds_changes()
        look.accept(look.generations())


def test_a_forked_child_sees_its_own_writes() -> None:
    w = torch.randn(SIZE, SIZE)
    function = packed(w)
    compiled = stretto.compile(function, backend="cpu", options=Options(threads=1))
    x = torch.randn(3, SIZE)
    compiled(x)
    child = os.fork()
    if child == 0:
        same = torch.allclose(compiled(x), function(x), atol=1e-4)
        w.data.mul_(3)
        changed = torch.allclose(compiled(x), function(x), atol=1e-4)
        os._exit(0 if same and changed else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
    w.data.mul_(2)
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)


def test_regions_near_each_other_are_told_apart() -> None:
    """Linux is asked once about those that are not large; what lies between does not count."""
    storage = torch.zeros(4_000_000)
    places = [0, 13_000, 26_000, 40_000, 60_000, 900_000, 915_000, 2_000_000, 2_020_000]
    parts = [storage[place : place + 12_000] for place in places]
    parts += [storage[1_000_000:1_900_000], torch.zeros(5), torch.zeros(12_000)]
    look = memory_watch.RegionSet(memory_watch.regions_of(parts, native=True))
    order = {region.address: number for number, region in enumerate(look.regions)}
    for part in reversed(parts):
        assert not look.finds_changes()
        before = look.generations()
        storage[58_000] += 1  # near some of them
        part[len(part) // 2] += 1
        assert look.finds_changes()
        after = look.generations()
        changed = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        assert changed == [order[part.data_ptr()]]
        look.accept(after)

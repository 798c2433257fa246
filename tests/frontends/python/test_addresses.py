"""The memory of tensors is watched by native code, however a tensor gets another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils import swap_tensors

from stretto.frontends.python.results.watch import places, probe_addresses
from stretto.options import Options
from stretto.runtime.probes import ProbeTable, load


def test_the_words_of_this_torch_are_found() -> None:
    found = places()
    assert found is not None
    assert len({found.storage, found.position}) == 2


def _data(x: Tensor) -> None:
    x.data = x.data.clone()


def _set(x: Tensor) -> None:
    x.set_(torch.zeros(100)[3:7])  # pyright: ignore[reportArgumentType]


def _position(x: Tensor) -> None:
    """The same storage, further on."""
    at = int(x.storage_offset()) + 1
    x.set_(torch.empty(0).set_(x.untyped_storage())[at : at + 2])  # pyright: ignore[reportArgumentType]


def _storage(x: Tensor) -> None:
    x.untyped_storage().resize_(1 << 24)


def _swapped(x: Tensor) -> None:
    swap_tensors(x, torch.zeros(4))


@pytest.mark.parametrize("change", [_data, _set, _position, _storage, _swapped])
@pytest.mark.parametrize("is_view", [False, True])
def test_other_memory_is_noticed(change: Callable[[Tensor], None], is_view: bool) -> None:
    tensors = [torch.zeros(4), torch.zeros(100)[40:44] if is_view else torch.zeros(4)]
    probes, left = probe_addresses(tensors, [x.data_ptr() for x in tensors])
    assert left == []
    check = ProbeTable(load(Options()), probes.rows, probes.kept)
    assert check()
    tensors[1].add_(1)
    assert check()
    kept = tensors[1].detach()  # so that its memory is not given to others
    change(tensors[1])
    assert not check()
    assert kept.numel() == 4


def test_an_address_that_was_never_right() -> None:
    x = torch.zeros(4)
    probes, _ = probe_addresses([x], [x.data_ptr() + 4])
    assert not ProbeTable(load(Options()), probes.rows, probes.kept)()


def test_tensors_without_memory_of_their_own_are_left_over() -> None:
    class Own(Tensor): ...

    tensors = [
        torch.zeros(0),
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.zeros(3).as_subclass(Own),
        torch.zeros(3),
    ]
    _, left = probe_addresses(tensors, [0] * len(tensors))
    assert left == [0, 1, 2, 3]

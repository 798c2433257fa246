"""Transfers that share bandwidth, against times computed by hand; which buffers a cache holds."""

from __future__ import annotations

from math import inf

import pytest

from stretto.simulator.work import Channel, Residency
from tests.schedule.programs import OUT, A, X, kernel
from tests.schedule.trees import EAGER


def ends(channel: Channel, begins: list[tuple[float, float]]) -> list[float]:
    """When transfers end that begin at a time with so many bytes, by their numbers."""
    found = [inf] * len(begins)
    for unit, (time, nbytes) in enumerate(begins):
        while channel.next_end <= time:
            now = channel.next_end
            found[channel.end(now)] = now
        channel.begin(time, unit, nbytes)
    while (now := channel.next_end) < inf:
        found[channel.end(now)] = now
    return found


def test_a_transfer_alone_gets_what_one_unit_may_have() -> None:
    assert ends(Channel(10, 4), [(1.0, 8)]) == [3.0]


def test_transfers_share_the_whole() -> None:
    # One unit gets 4; three get 10 / 3 each.
    assert ends(Channel(10, 4), [(0.0, 10)] * 3) == pytest.approx([3.0] * 3)


def test_who_comes_later_slows_down_who_is_there() -> None:
    # 4 bytes until 1, both at half from there: the second has 2 bytes, the first 4 left.
    assert ends(Channel(4, 4), [(0.0, 8), (1.0, 2)]) == pytest.approx([2.5, 2.0])


def test_a_gap_between_transfers_is_no_progress() -> None:
    assert ends(Channel(2, 2), [(0.0, 2), (5.0, 2)]) == pytest.approx([1.0, 6.0])


def test_a_program_that_fits_finds_everything_in_the_cache() -> None:
    cache = Residency(1 << 10, EAGER, [kernel("k", A, X), kernel("o", OUT, A)])
    assert cache.touch([("x", 16), ("a", 16)], 2) == frozenset()


def test_what_was_not_used_for_longest_goes() -> None:
    cache = Residency(64, EAGER, [kernel("k", A, X), kernel("o", OUT, A)])  # 32 bytes each
    assert cache.touch([("x", 16), ("a", 16)], 2) == {"x", "a"}
    assert cache.touch([("x", 16)], 2) == frozenset()
    assert cache.touch([("out", 16)], 2) == {"out"}
    assert cache.touch([("x", 16)], 2) == frozenset()
    assert cache.touch([("a", 16)], 2) == {"a"}

"""The search for the style in which most weights stay in registers, with a made-up ptxas."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stretto.device.plan import Plan
from stretto.machines.cuda import styles
from stretto.machines.cuda.compile import CompiledTriton, Resources
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.printer.triton_module import Style
from stretto.machines.cuda.styles import (
    LEAST_KEPT,
    PATIENCE,
    SHARED_KEPT,
    USUAL_KEPT,
    GpuProgram,
    compile_plan,
)
from stretto.options import Options
from stretto.schedule.plan import make_plan
from tests.schedule.programs import chain


@dataclass
class Ptxas:
    """A program whose loop would hold `wanted` bytes of weights, on a machine with `room` registers
    of a thread for them. seconds: of a compilation. own: bytes of shared memory that Triton needs.
    shared: bytes that a text would hold there. tried: warps and registers; shares: bytes of shared
    memory that were asked for."""

    wanted: int
    room: int
    seconds: float = 1.0
    own: int = 0
    shared: int = 0
    tried: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    shares: list[int] = field(default_factory=list[int])

    def print_launch(self, launch: Any, words: Any, style: Style, kept: Any) -> TritonSource:
        held = min(self.wanted, style.registers * 4 * WARP * style.warps)
        shared = min(self.wanted - held, style.shared, self.shared)
        text = f"{style} {held}" if style.inline else f"{style.warps} {held} {shared}"
        return TritonSource(
            text, (), (), 4, style.warps,
            kept=held, lacking=self.wanted - held - shared, shared_bytes=shared,
        )  # fmt: skip

    def compile_source(self, source: TritonSource, *_: Any) -> CompiledTriton:
        registers = source.kept // (4 * WARP * source.warps)
        self.tried.append((source.warps, registers))
        self.shares.append(source.shared_bytes)
        total = self.own + source.shared_bytes
        short = max(registers - self.room, 0) * 4
        needs = Resources(255, 0, 3 * short, short, source.warps, 1, "registers")
        return CompiledTriton(
            b"", "sm_90", "k", (), 0, 0, total, source.warps, needs, self.seconds, False
        )

    def search(self, monkeypatch: pytest.MonkeyPatch, target: str = "sm_90") -> TritonSource:
        monkeypatch.setattr(styles, "print_launch", self.print_launch)
        monkeypatch.setattr(styles, "compile_source", self.compile_source)
        plan: Plan = make_plan(chain())
        made = compile_plan(GpuProgram(plan), target, Options())
        return made.sources[0]


def test_four_warps_where_they_hold_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    ptxas = Ptxas(100 * 512, 120)
    assert ptxas.search(monkeypatch).lacking == 0
    assert ptxas.tried == [(4, 100)]


def test_eight_warps_where_four_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    ptxas = Ptxas(160 * 512, 120)
    assert ptxas.search(monkeypatch).lacking == 0
    assert ptxas.tried == [(4, 160), (8, 80)]


def test_no_part_of_the_weights_with_fewer_warps_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ptxas = Ptxas(1000 * 512, 250)
    found = ptxas.search(monkeypatch)
    assert ptxas.tried == [(8, USUAL_KEPT)]
    assert found.kept == USUAL_KEPT * 1024 and found.lacking


@pytest.mark.parametrize("room", [132, 101, 40, 25])
def test_as_many_registers_as_ptxas_leaves(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says by its stack how many were too many."""
    ptxas = Ptxas(1000 * 512, room)
    found = ptxas.search(monkeypatch)
    assert [warps for warps, _ in ptxas.tried] == [8, 8]
    assert max(LEAST_KEPT, room - styles.STEP) <= found.kept / 1024 <= room


def test_shared_memory_for_what_registers_have_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where registers spill, what they hold less of shared memory holds more of."""
    ptxas = Ptxas(250 << 10, 100, shared=1 << 20)
    found = ptxas.search(monkeypatch)
    assert not found.lacking and found.kept <= 100 << 10
    assert found.shared_bytes == (250 << 10) - found.kept
    assert ptxas.shares == [(250 - USUAL_KEPT) << 10, found.shared_bytes]


@pytest.mark.parametrize("own", [0, 32 << 10, 40 << 10, 100_000])
def test_as_much_shared_memory_as_triton_leaves(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ptxas = Ptxas(1000 << 10, 250, own=own, shared=1 << 20)
    found = ptxas.search(monkeypatch)
    most = (227 << 10) - own
    assert found.shared_bytes == min(SHARED_KEPT, most)
    assert len(ptxas.tried) == (1 if most >= SHARED_KEPT else 2)


def test_a_target_with_less_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    ptxas = Ptxas(1000 << 10, 250, own=1024, shared=1 << 20)
    found = ptxas.search(monkeypatch, "sm_86")
    assert found.shared_bytes == (99 << 10) - 1024
    assert ptxas.search(monkeypatch, "gfx942").shared_bytes == 0


def test_without_weights_where_there_is_hardly_a_register(monkeypatch: pytest.MonkeyPatch) -> None:
    ptxas = Ptxas(1000 * 512, 5)
    assert ptxas.search(monkeypatch).kept == 0
    assert ptxas.tried == [(8, USUAL_KEPT), (8, 0)]


def test_no_more_tries_than_there_is_patience_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Ptxas(1000 * 512, 100, PATIENCE + 1)
    assert slow.search(monkeypatch).kept == USUAL_KEPT * 1024
    assert len(slow.tried) == 1
    once = replace(slow, seconds=0.6 * PATIENCE, tried=[])
    assert once.search(monkeypatch).kept == 0
    assert once.tried == [(8, USUAL_KEPT), (8, 0)]

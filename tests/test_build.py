"""The stages of a machine in order: what is verified, and what happens if there are too many
units."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from stretto.call.compiler import build
from stretto.errors import VerifyError
from stretto.ir.core import Program
from stretto.machines import registry
from stretto.machines.cuda.machine import EmulatedCudaMachine
from stretto.machines.machine import HOST, BuildStage, FewerUnitsError, Stages
from stretto.machines.registry import default_machine, find_machine
from stretto.options import Options
from tests.support import program_of

TEXT = """
    func @main(%x: f32[64, 8]) -> (f32[64]) {
      %a = aten.tanh.default(%x) : f32[64, 8]
      %b = aten.sum.dim_IntList(%a, (1)) : f32[64]
      return %b
    }
"""


@dataclass(frozen=True)
class Smaller(EmulatedCudaMachine):
    """A machine that turns out to hold fewer units than it reported, as a GPU may when kernels are
    compiled."""

    rooms: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)

    def load(self, stages: Stages) -> None:
        self.tried.append(stages.units)
        if self.rooms:
            raise FewerUnitsError("too many units", self.rooms.pop(0))
        super().load(stages)


def test_a_machine_that_holds_fewer_units_gets_another_program() -> None:
    machine = Smaller("smaller", rooms=[2])
    stages = build(program_of(TEXT), machine, Options())
    assert machine.tried == [5, 2]
    assert stages.device is not None and stages.device.units == 2
    x = torch.linspace(-1.0, 1.0, 512).view(64, 8)
    assert stages.executable is not None
    (found,) = stages.executable([x])
    torch.testing.assert_close(found, torch.tanh(x).sum(1))


def test_a_machine_that_never_has_enough_units_is_an_error() -> None:
    machine = Smaller("smaller", rooms=[2, 1])
    with pytest.raises(FewerUnitsError, match="too many units"):
        build(program_of(TEXT), machine, Options())
    assert machine.tried == [5, 2]


def test_the_captured_program_is_verified() -> None:
    broken = program_of(TEXT)
    first, second = broken.main.body.ops
    broken.main.body.ops = [second, first]
    with pytest.raises(VerifyError, match="breaks the rule"):
        build(broken, default_machine(), Options())


def test_each_stage_has_its_seconds() -> None:
    stages = build(program_of(TEXT), find_machine("emulator"), Options())
    assert list(stages.seconds) == [stage.name for stage in stages.machine.stages]
    assert stages.place == HOST and all(seconds >= 0 for seconds in stages.seconds.values())


def test_a_machine_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by the entry points of the group."""
    foreign = replace(find_machine("interpreter"), name="foreign")

    @dataclass
    class Point:
        def load(self) -> Any:
            return foreign

    asked: list[str] = []

    def entry_points(group: str) -> list[Point]:
        asked.append(group)
        return [Point()]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry._points.cache_clear()
    try:
        assert find_machine("foreign") is foreign
        assert asked == ["stretto.machines"]
    finally:
        monkeypatch.undo()
        registry._points.cache_clear()
    with pytest.raises(KeyError):
        find_machine("foreign")


def test_a_stage_that_fails_keeps_its_error() -> None:
    class Stop(Exception):
        pass

    def fail(stages: Stages) -> None:
        raise Stop

    @dataclass(frozen=True)
    class Failing(EmulatedCudaMachine):
        @property
        def stages(self) -> tuple[BuildStage, ...]:
            return (BuildStage("fail", fail),)

    with pytest.raises(Stop):
        build(Program({}), Failing("failing"), Options())

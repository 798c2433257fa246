"""The estimate of what loops keep on chip, and what it changes in choices between plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from stretto.device.program import DeviceProgram
from stretto.device.tree import is_loop, walk
from stretto.machines.cuda.styles import kept_constants
from stretto.options import Debug, Options
from stretto.schedule.plan import make_plan
from stretto.schedule.plan_cost import plan_seconds
from stretto.simulator.devices import H200, cpu_device
from stretto.simulator.work import Kept, kept_in_loops
from stretto.tools.models import Model
from stretto.tools.simulate import device_machine, scheduled_program

WIDTH = 256


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.before = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = torch.tanh(self.before(x))
        while turns.sum() > 0:
            x = torch.tanh(self.first(x))
            if x.sum() > 0:
                x = torch.tanh(self.second(x))
            turns = turns - 1
        return x


def scheduled(units: int = 132) -> DeviceProgram:
    torch.manual_seed(0)
    model = Loop().requires_grad_(False)
    machine, _, options = device_machine("h200", units, Options(debug=Debug(unroll=0)))
    inputs = torch.randn(1, WIDTH), torch.tensor(2)
    return scheduled_program(Model("loop", model, inputs), machine, options)


def constants(kept: Kept) -> dict[str, set[str]]:
    return {kernel: {*part.shares} for kernel, part in kept.items()}


def test_weights_of_every_iteration_count() -> None:
    """Not those before the loop, nor those of a branch inside of it."""
    machine, _, _ = device_machine("h200", None, Options())
    program = scheduled()
    kept = kept_in_loops(program, H200, machine.costs)
    weights = {name for names in constants(kept).values() for name in names if "weight" in name}
    assert weights == {"first.weight"}
    assert all(set(part.shares.values()) == {1.0} for part in kept.values())
    printed = constants(kept_constants(program))
    assert printed == {kernel: constants(kept)[kernel] for kernel in printed} and printed


def test_no_more_than_there_is_room_for() -> None:
    machine, _, _ = device_machine("h200", None, Options())
    program = scheduled()

    def shares(registers: int, shared: int) -> tuple[float, int]:
        device = replace(H200, kept_registers=registers, kept_shared=shared)
        (part,) = kept_in_loops(program, device, machine.costs).values()
        (share,) = {*part.shares.values()}
        return share, part.shared_bytes

    whole, _ = shares(1 << 20, 0)
    assert whole == 1.0
    half, _ = shares(1024, 0)
    assert 0 < half < 1
    assert shares(1024, 1024)[0] == pytest.approx(2 * half)
    assert shares(1024, 1024)[1] == pytest.approx(1024, abs=1)
    assert not kept_in_loops(program, replace(H200, kept_registers=0), machine.costs)
    assert not kept_in_loops(program, cpu_device(4), machine.costs)


def test_units_with_several_tasks_keep_nothing() -> None:
    machine, _, _ = device_machine("h200", None, Options())
    assert not kept_in_loops(replace(scheduled(), units=3), H200, machine.costs)


def test_plans_are_compared_with_what_their_launches_keep() -> None:
    """A loop in a launch keeps its weights; where the host executes it, nothing is kept."""
    machine, _, _ = device_machine("h200", None, Options())
    program, costs = scheduled(), machine.costs
    whole = make_plan(program)
    bare = replace(H200, kept_registers=0)
    slow = replace(H200, cache_bandwidth=1e11), replace(bare, cache_bandwidth=1e11)
    kept, read = (plan_seconds(whole, device, costs) for device in slow)
    assert kept < read
    kept, read = (plan_seconds(whole, device, costs, captured=True) for device in slow)
    assert kept < read
    loops = frozenset(id(node) for node in walk(program.tree.main.body) if is_loop(node))
    apart = make_plan(program, cuts=loops)
    kept, read = (plan_seconds(apart, device, costs) for device in slow)
    assert kept == read

"""Costs that were fitted to the device decide where there are any, and where the options say so."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from pathlib import Path

import pytest
import torch

import stretto
from stretto.machines.cpu.costs import CPU_COSTS, host_costs
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.machine import TaskEvent
from stretto.options import Options
from stretto.simulator.devices import cpu_device
from stretto.tools import calibrate as calibrating
from stretto.tools import calibrate as probes
from stretto.tools.calibrate import Timed, calibrate, waits
from stretto.tools.doctor import check_measurements
from stretto.tuning import Database, this_cpu

MACHINE = CpuMachine("cpu")


def _kept(folder: Path, **parameters: float) -> Options:
    options = Options(threads=2, cache_dir=folder)
    Database(folder).put_parameters(this_cpu(options), parameters)
    return options


def test_without_measurements_the_source_decides(tmp_path: Path) -> None:
    assert MACHINE.tuned(Options(cache_dir=tmp_path)) is MACHINE
    assert list(tmp_path.iterdir()) == []


def test_fitted_parameters_decide(tmp_path: Path) -> None:
    options = _kept(tmp_path, flops=5e10, wait_seconds=1e-6, nonsense=3.0, **{"factor.rows": 2.5})
    tuned = MACHINE.tuned(options)
    expected = replace(host_costs(), flops=5e10, wait_seconds=1e-6, factors=(("rows", 2.5),))
    assert tuned.costs == expected
    assert tuned.tuned(options) is tuned
    assert MACHINE.tuned(replace(options, tune="off")) is MACHINE


def test_costs_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    options = _kept(tmp_path, flops=5e10)
    spread = CpuMachine("cpu", costs=CPU_COSTS.spread())
    assert spread.tuned(options) is spread


def test_a_program_follows_its_parameters(tmp_path: Path) -> None:
    """A product is worth two units only where it takes longer than waking one."""

    def units(options: Options) -> int:
        fast = stretto.compile(torch.mm, (x, x), backend="cpu", options=options)
        assert torch.allclose(fast(x, x), x @ x, atol=1e-4)
        program = fast.signatures[0].stages.device
        assert program is not None
        return program.units

    x = torch.rand(64, 64)
    slow = _kept(tmp_path, flops=1e9, wake_seconds=1e-6)
    assert units(slow) == 2
    quick = _kept(tmp_path, flops=1e13, wake_seconds=1.0)
    assert units(quick) == 1
    assert units(replace(slow, tune="off")) == units(Options(threads=2))


def test_the_simulated_device_has_the_fitted_figures(tmp_path: Path) -> None:
    options = _kept(tmp_path, stream_bandwidth=3e10, launch_seconds=4e-6, call_seconds=7e-6)
    device = cpu_device(2, MACHINE.tuned(options).costs)
    assert (device.unit_bandwidth, device.memory_bandwidth) == (3e10, 6e10)
    assert (device.launch_seconds, device.call_seconds) == (4e-6, 7e-6)


def test_doctor_says_what_was_measured(tmp_path: Path) -> None:
    options = Options(threads=2, cache_dir=tmp_path)
    check = check_measurements(options)
    assert check.status == "warn"
    assert "never calibrated" in check.detail
    assert "stretto calibrate" in check.remedy
    check = check_measurements(_kept(tmp_path, flops=1e11, bandwidth=1e11))
    assert check.status == "ok"
    assert "2 parameters; calibrated 20" in check.detail


# ---- calibration -------------------------------------------------------------------------------
def test_a_wait_is_from_the_last_end_to_the_start_of_who_waited() -> None:
    """Unit 1 ends first, and begins 400 ns after unit 0 has ended; unit 0 goes on after 50 ns."""
    events: list[TaskEvent] = []
    for step in range(5):
        at = 10_000 * step
        events += [
            TaskEvent(0, 0, 0, at + 50, at + 10_000),
            TaskEvent(1, 0, 1, at + 400, at + 9000),
        ]
    timed = Timed(None, (), (), {}, [events, events[:1]])  # pyright: ignore[reportArgumentType]
    assert isclose(waits(timed)["wait_seconds"], 400e-9)
    nobody = replace(timed, runs=[[event for event in events if event.unit == 0]])
    assert waits(nobody) == {}


def test_the_probe_of_functions_counts_as_the_model_does() -> None:
    """Otherwise what is fitted is not what the model multiplies with."""
    x = torch.rand(32)
    y = probes.polynomial(x)
    assert bool(((y > 0) & (y < 1)).all())


@pytest.mark.whole
def test_calibration_fits_and_keeps_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "SECONDS", 0.1)
    monkeypatch.setattr(calibrating, "CALLS", 20)
    options = Options(threads=2, cache_dir=tmp_path)
    fitted = calibrate(options)
    names = {one.name for one in fitted}
    assert {"flops", "bandwidth", "element_seconds", "launch_seconds", "factor.pixels"} <= names
    assert Database(tmp_path).parameters(this_cpu(options)) == {f.name: f.value for f in fitted}
    assert MACHINE.tuned(options).costs != CPU_COSTS

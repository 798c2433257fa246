"""Costs of a GPU machine on devices other than the usual one."""

from __future__ import annotations

import pytest

from stretto.device.costs import HOST_COSTS
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.simulator.devices import (
    A100,
    GPUS,
    H100,
    H200,
    RTX4090,
    SHARES,
    V100,
    Device,
    costs_on,
    device_for,
    gpu_like,
)


def test_the_usual_gpu_keeps_its_costs() -> None:
    same = costs_on(H200, CUDA_COSTS)
    assert same == CUDA_COSTS and device_for(same, 7) is H200


@pytest.mark.parametrize("device", GPUS.values(), ids=lambda device: device.name)
def test_choices_are_simulated_on_the_device_of_the_costs(device: Device) -> None:
    costs = costs_on(device, CUDA_COSTS)
    assert device_for(costs, 7) is device
    assert costs_on(H200, costs).flops == pytest.approx(CUDA_COSTS.flops)


def test_rates_are_shares_of_units() -> None:
    costs = costs_on(A100, CUDA_COSTS)
    share = (A100.memory_bandwidth / A100.units) / (H200.memory_bandwidth / H200.units)
    assert costs.bandwidth == pytest.approx(CUDA_COSTS.bandwidth * share)
    assert costs.wait_seconds == A100.wait_seconds


def test_a_cpu_is_its_own_device() -> None:
    assert device_for(HOST_COSTS, 3).units == 3


@pytest.mark.parametrize(
    ("name", "capability", "device"),
    [
        ("NVIDIA H200", (9, 0), H200),
        ("NVIDIA H100 80GB HBM3", (9, 0), H100),
        ("NVIDIA GH200 480GB", (9, 0), H200),
        ("NVIDIA A100-SXM4-80GB", (8, 0), A100),
        ("NVIDIA A30", (8, 0), A100),
        ("NVIDIA RTX A1000", (8, 6), RTX4090),
        ("NVIDIA GeForce RTX 4090", (8, 9), RTX4090),
        ("NVIDIA GeForce RTX 5090", (12, 0), RTX4090),
        ("NVIDIA B200", (10, 0), H200),
        ("Tesla V100-SXM2-16GB", (7, 0), V100),
        ("", (8, 0), A100),
    ],
)
def test_a_gpu_has_the_figures_of_the_device_most_like_it(
    name: str, capability: tuple[int, int], device: Device
) -> None:
    assert gpu_like(name, capability) is device


DATA_SHEETS = {
    "h200": 4.8e12,
    "h100": 3.35e12,
    "a100": 2.039e12,
    "v100": 9e11,
    "rtx4090": 1.008e12,
    "mi300x": 5.3e12,
}
"""Bytes per second from memory."""


@pytest.mark.parametrize("device", GPUS.values(), ids=lambda device: device.name)
def test_no_unit_has_more_than_its_share_of_the_peak(device: Device) -> None:
    costs = costs_on(device, CUDA_COSTS)
    assert device.memory_bandwidth < DATA_SHEETS[device.name]
    for name, rate in SHARES.items():
        assert getattr(costs, name) * device.units <= getattr(device, rate) * (1 + 1e-9), name

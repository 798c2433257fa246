"""Machines are found by name, and by name only."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import stretto
from stretto.errors import BuildError
from stretto.machines.machine import HOST, Machine
from stretto.machines.registry import (
    default_machine,
    find_machine,
    known_machines,
    register,
    registered,
    unregister,
)
from stretto.remarks import Remarks

SOURCE = Path(__file__).parents[2] / "src" / "stretto"
TORCH_DEVICES = ("cpu", "cuda")
"""Names of machines that are also types of torch devices, which a frontend may mean."""


def test_each_folder_gives_its_machines() -> None:
    assert list(known_machines()) == ["cpu", "cuda", "cuda-emulated", "emulator", "interpreter"]
    assert all(machine.name == name for name, machine in known_machines().items())
    assert all(machine.summary for machine in known_machines().values())


def test_one_default_for_each_type_of_device() -> None:
    assert default_machine() is find_machine("cpu")
    assert default_machine("cuda") is find_machine("cuda")
    with pytest.raises(KeyError):
        default_machine("mps")


@pytest.mark.whole
def test_machines_behind_the_one_that_is_looked_for_are_not_imported() -> None:
    code = """
import sys
from stretto.machines.registry import default_machine, find_machine
assert default_machine() is find_machine("cpu")
names = "stretto.machines.cpu.machine", "stretto.machines.cuda.machine"
print(*(name for name in names if name in sys.modules))
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "stretto.machines.cpu.machine"


def test_a_registered_machine_is_a_backend() -> None:
    register(replace(find_machine("interpreter"), name="mine"))
    try:
        fast = stretto.compile(lambda x: x + 1, (torch.zeros(2),), backend="mine")
        assert fast(torch.ones(2)).tolist() == [2, 2]
        assert fast.explain().splitlines()[2] == "signature 1: backend mine, 1 call"
    finally:
        unregister("mine")
    with pytest.raises(ValueError, match="backend must be one of auto, cpu, .*, not 'mine'"):
        stretto.compile(lambda x: x, backend="mine")
    with pytest.raises(KeyError):
        unregister("mine")


def test_a_machine_that_is_gone_when_it_is_needed() -> None:
    with registered(replace(find_machine("interpreter"), name="mine")):
        fast = stretto.compile(lambda x: x + 1, backend="mine")
    with pytest.raises(ValueError, match="backend must be one of auto, .*, not 'mine'"):
        fast(torch.ones(2))


def test_a_machine_that_is_registered_for_a_while() -> None:
    costs = replace(find_machine("cpu").costs, wait_seconds=1.0)
    with registered(replace(find_machine("cpu"), costs=costs)):
        assert find_machine("cpu").costs is costs
        assert default_machine().costs is costs
    assert find_machine("cpu").costs is not costs


def test_a_machine_without_kernels_says_so() -> None:
    machine = find_machine("interpreter")
    assert machine.device() == HOST
    with pytest.raises(BuildError, match="interpreter runs no kernels"):
        machine.select(None, 1, stretto.Options(), Remarks())  # type: ignore[arg-type]


@pytest.mark.whole
def test_no_code_but_its_own_names_a_machine() -> None:
    """What depends on the machine is asked of its record; only frontends mean torch's devices."""
    names = set(known_machines())
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} names {node.value!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "options.py"  # means folders of the Linux kernel
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and node.value in names
        and not _may_name(path.relative_to(SOURCE), str(node.value))
    ]
    assert not found, "\n".join(found)


def _may_name(path: Path, name: str) -> bool:
    """Whether a file is of a machine of that name, or means a type of torch device."""
    folder = path.parts[1] if path.parts[0] == "machines" else ""
    machines: dict[str, Machine] = known_machines()
    if folder and type(machines[name]).__module__.split(".")[2] == folder:
        return True
    return name in TORCH_DEVICES and (
        path.parts[0] in ("frontends", "machines")
        or path.parts[:2] in (("batching", "frontend"), ("batching", "serving"))
    )

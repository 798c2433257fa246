"""The GPU as the parent process knows it, which must hold no context on it itself.

In exclusive-process mode a context of the parent would keep every worker out. So a process of its
own looks, says what there is, and ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
LOOK_LIMIT_S = 120.0
MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
"""CUcomputemode."""


class NoGpu(Exception):
    """There is none that this process may use; the text says why."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """line: for people. capability: (9, 0). mode: CUcomputemode."""

    line: str
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    mode: int

    @property
    def target(self) -> str:
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def exclusive(self) -> bool:
        return self.mode == 3

    @property
    def mode_name(self) -> str:
        return MODES.get(self.mode, f"number {self.mode}")


def why_no_gpu() -> str:
    """Empty where torch has a GPU to use."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch (built for CUDA {torch.version.cuda}) finds no GPU that it can use"
    return ""


def look() -> Gpu:
    """Asks a process of its own. Raises NoGpu where that one cannot use the GPU."""
    command = [sys.executable, "-m", f"{__package__}.gpu"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=LOOK_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NoGpu(f"it did not answer within {LOOK_LIMIT_S:.0f} s") from error
    return parsed(done.stdout, done.stderr)


def parsed(output: str, errors: str = "") -> Gpu:
    """The last line of what the process wrote, as a Gpu."""
    lines = output.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
        found["capability"] = tuple(found["capability"])
        return Gpu(**found)
    except (IndexError, ValueError, TypeError, KeyError) as error:
        said = errors.strip().splitlines() or lines or ["it said nothing"]
        raise NoGpu(said[-1][:300]) from error


def facts() -> Gpu:
    """What the looking process finds. Raises NoGpu for a GPU that no process may use."""
    from stretto.machines.cuda.driver import COMPUTE_MODE, MODE_PROHIBITED, load_driver

    mode = load_driver().attribute(0, COMPUTE_MODE)
    if mode == MODE_PROHIBITED:
        raise NoGpu("its compute mode is prohibited: `nvidia-smi --compute-mode=DEFAULT`")
    properties = torch.cuda.get_device_properties(0)
    line = (
        f"{properties.name}, {properties.multi_processor_count} multiprocessors, "
        f"{properties.total_memory / 2**30:.0f} GiB, "
        f"L2 {getattr(properties, 'L2_cache_size', 0) >> 20} MiB{_driver_line()}"
    )
    capability = (properties.major, properties.minor)
    return Gpu(line, properties.name, capability, properties.multi_processor_count, mode)


def _driver_line() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    driver, _, clock = done.stdout.strip().splitlines()[0].partition(",")
    return f", driver {driver.strip()}, SM clock up to {clock.strip()}"


def main() -> None:
    try:
        print(json.dumps(asdict(facts())))
    except Exception as error:
        raise SystemExit(" ".join(str(error).split())) from error


if __name__ == "__main__":
    main()

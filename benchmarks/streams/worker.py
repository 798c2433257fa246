"""One stream on one system, in a separate process: prints its times, as JSON.

Everything is counted from the first call on: compiling (`onnxruntime`: exporting) and all
calls. `steady_s` is the time of the same calls again, none of which compiles.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..harness import relative_error
from ..measure import limit_cpus
from ..models.entry import generator
from ..peers.base import Skipped, tensors_to_numpy
from .models import SEED, STREAMS, made
from .systems import SYSTEMS

_CHECKED = 5


@dataclass(frozen=True, slots=True)
class StreamResult:
    """Seconds and bytes of one stream on one system.

    total_s: preparing and all calls. steady_s: all calls once more. slowest_s: the
    longest call. error: the largest difference from eager, relative. memory: resident
    bytes before the first call, after the calls, and after they were repeated. reason:
    why there are no figures.
    """

    stream: str
    system: str
    calls: int
    total_s: float = 0.0
    steady_s: float = 0.0
    slowest_s: float = 0.0
    compilations: int | None = None
    error: float = 0.0
    memory: tuple[int, int, int] = (0, 0, 0)
    peak: int = 0
    reason: str = ""


def measure(name: str, system: str, calls: int, threads: int, small: bool) -> StreamResult:
    """Run the stream `name`. An error of the system is recorded as the `reason`."""
    stream = STREAMS[name]
    module = made(stream, small)
    source = generator(SEED + 1)
    drawn = [stream.inputs(module, size, source) for size in stream.sizes(calls, small)]
    torch.set_num_threads(threads)
    with torch.no_grad():
        for inputs in drawn[:3]:
            module(*inputs)
        before = resident()
        try:
            start = time.perf_counter()
            running = SYSTEMS[system](stream, module, drawn[0], threads)
            times = [_timed(running.call, inputs) for inputs in drawn]
            total = time.perf_counter() - start
            after = resident()
            again = [_timed(running.call, inputs) for inputs in drawn]
            last = resident()
            error = max(
                relative_error(
                    running.outputs(running.call(*inputs)), tensors_to_numpy(module(*inputs))
                )
                for inputs in drawn[:: max(calls // _CHECKED, 1)]
            )
        except Skipped as reason:
            return StreamResult(name, system, calls, reason=str(reason))
        except Exception as problem:  # any exception of a system is a result, and recorded
            text = f"{type(problem).__name__}: {problem}".splitlines()[0]
            return StreamResult(name, system, calls, reason=text[:300])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return StreamResult(
        *(name, system, calls, total, sum(again), max(times)),
        *(running.compilations(), error, (before, after, last), peak),
    )


def _timed(call: Callable[..., object], inputs: tuple[Tensor, ...]) -> float:
    start = time.perf_counter()
    call(*inputs)
    return time.perf_counter() - start


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    name, system, calls, threads, small = sys.argv[1:]
    with limit_cpus(int(threads)):
        result = measure(name, system, int(calls), int(threads), small == "small")
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()

"""Memory of programs that have served more and more sizes: python -m benchmarks.streams.memory.

A system that makes a program, or records a graph, for each size grows with the number of
sizes; one program for all of them does not. The largest size comes first, so that later
growth is not the memory of values. CUDA graphs are not run here but computed: Grape (MICRO
'23), Table 1, measured 20 MB of GPU memory for each graph of a step of GPT-2 small.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..machine import git_commit, machine_line
from ..measure import limit_cpus
from ..models.entry import generator
from .models import SEED, STREAMS, made
from .systems import SYSTEMS
from .worker import resident

GRAPH_MB = 20.0
SERVED = ("stretto", "compile", "static")


def grown(stream: str, system: str, counts: list[int], threads: int, small: bool) -> list[float]:
    """Return the resident megabytes after `counts` sizes, each called twice, beyond those
    before the first.

    `static` is torch.compile with a program for each size.
    """
    chosen = STREAMS[stream]
    module, source = made(chosen, small), generator(SEED)
    torch.set_num_threads(threads)
    high = min(chosen.high, chosen.low + 40) if small else chosen.high
    with torch.no_grad():
        inputs = chosen.inputs(module, high, source)
        module(*inputs)
        before = _settled()
        if system == "static":
            torch._dynamo.config.recompile_limit = counts[-1] + 1
            torch._dynamo.config.allow_rnn = True
            call = torch.compile(module, dynamic=False)
        else:
            call = SYSTEMS[system](chosen, module, inputs, threads).call
        found = list[float]()
        for number in range(counts[-1]):
            inputs = chosen.inputs(module, high - number, source)
            for _ in range(2):
                call(*inputs)
            if number + 1 in counts:
                found.append((_settled() - before) / 1e6)
    return found


def _settled() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", nargs="*", default=["bert", "decode"], metavar="STREAM")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--systems", default=",".join(SERVED))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    counts, systems = sorted(options.sizes), options.systems.split(",")
    if options.one:
        with limit_cpus(options.threads):
            found = grown(options.streams[0], systems[0], counts, options.threads, options.small)
        print(json.dumps(found))
        return
    shared = ["--sizes", *map(str, counts), "--threads", str(options.threads)]
    shared += ["--small"] if options.small else []
    rows = {
        stream: {system: _in_process(stream, system, shared) for system in systems}
        for stream in options.streams
    }
    console = Console()
    for stream, values in rows.items():
        console.print(_table(stream, counts, values))
    record = {"commit": git_commit(), "machine": machine_line(options.threads)}
    if options.json is not None:
        text = json.dumps({**record, "sizes": counts, "grown_mb": rows}, indent=1)
        options.json.write_text(text + "\n")


def _in_process(stream: str, system: str, shared: list[str]) -> list[float]:
    command = [sys.executable, "-m", __spec__.name, stream, "--systems", system, "--one", *shared]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _table(stream: str, counts: list[int], rows: dict[str, list[float]]) -> Table:
    table = Table(title=f"{stream}: MB after so many sizes", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("system")
    for count in counts:
        table.add_column(str(count), justify="right")
    for system, values in rows.items():
        table.add_row(system, *(f"{value:.0f}" for value in values))
    on_paper = (f"{GRAPH_MB * count:.0f}" for count in counts)
    table.add_row("CUDA graphs, on paper", *on_paper)
    return table


if __name__ == "__main__":
    main()

"""Programs whose sizes data decide: stretto beside eager PyTorch and torch.compile.

    python -m benchmarks.streams.decided [PROGRAM ...] [--threads N] [--json FILE]

Each program runs on several inputs, which decide other sizes; the systems take turns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import stretto

from ..measure import Protocol, Timing, interleave, limit_cpus

INPUTS = 4
"""Number of inputs of each program, which a run uses in turn."""


class Experts(nn.Module):
    """Each token goes through the expert that a gate chooses for it."""

    def __init__(self, width: int, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, choice = torch.softmax(self.gate(x), 1).max(1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens = (choice == number).nonzero().squeeze(1)
            out.index_add_(0, tokens, expert(x[tokens]) * weight[tokens, None])
        return out


class Collapse(nn.Module):
    """The labels that a network trained by CTC outputs: without repetitions and blanks."""

    def forward(self, logits: Tensor) -> Tensor:
        best = logits.argmax(1)
        runs = torch.unique_consecutive(best)
        return runs[runs != 0]


class NextToken(nn.Module):
    """Scores of the next token after the last ones; `depth` layers refine the first guess."""

    def __init__(self, tokens: int, window: int, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.first = nn.Linear(window * width, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.last = nn.Linear(width, tokens)

    def forward(self, windows: Tensor) -> Tensor:
        x = torch.tanh(self.first(self.embedding(windows).flatten(-2)))
        for layer in self.layers:
            x = x + 0.2 * layer(x)
        return self.last(x)


class Speculative(nn.Module):
    """Accept the tokens that a small model drafts as long as a large one would choose them, too."""

    def __init__(
        self,
        tokens: int = 256,
        window: int = 4,
        width: int = 128,
        drafts: int = 4,
        length: int = 64,
    ) -> None:
        super().__init__()
        self.window, self.drafts, self.length = window, drafts, length
        self.target = NextToken(tokens, window, width, 4)
        self.draft = NextToken(tokens, window, width, 0)
        # The small model is the first layer of the large one, so that it is often right.
        self.draft.load_state_dict(self.target.state_dict(), strict=False)

    def forward(self, prompt: Tensor) -> Tensor:
        n = prompt.shape[0]
        out = prompt.new_zeros(self.length + self.drafts + 1)
        out[:n] = prompt
        while n < self.length:
            for k in range(self.drafts):
                out[n + k] = self.draft(out[n + k - self.window : n + k]).argmax(0)
            read = out[n - self.window : n + self.drafts]
            chosen = self.target(read.unfold(0, self.window, 1)).argmax(1)
            right = (chosen[:-1] == out[n : n + self.drafts]).long().cumprod(0)
            accepted = int(right.sum())
            out[n + accepted] = chosen[accepted]
            n = n + accepted + 1
        return out[: self.length]


@dataclass(frozen=True, slots=True)
class Program:
    """A module, and a function that draws an input of it."""

    make: Callable[[], nn.Module]
    input: Callable[[], Tensor]


def speech(steps: int, labels: int) -> Tensor:
    """Draw scores in which each label lasts for some steps, and half of the steps are blank."""
    classes = torch.randint(1, labels, (steps,)) * (torch.rand(steps) < 0.5)
    lasting = classes.repeat_interleave(torch.randint(1, 5, (steps,)))[:steps]
    return torch.randn(steps, labels) + 5 * nn.functional.one_hot(lasting, labels)


PROGRAMS: Mapping[str, Program] = {
    "experts-256": Program(lambda: Experts(256), lambda: torch.randn(64, 256)),
    "experts-512": Program(lambda: Experts(512), lambda: torch.randn(64, 512)),
    "ctc-32": Program(Collapse, lambda: speech(200, 32)),
    "ctc-64": Program(Collapse, lambda: speech(200, 64)),
    "speculative": Program(Speculative, lambda: torch.randint(0, 256, (8,))),
}


@dataclass(frozen=True, slots=True)
class DecidedResult:
    """Medians in milliseconds of one program; reasons of the systems that cannot run it."""

    program: str
    median_ms: dict[str, float]
    reasons: dict[str, str]

    def ratio(self, system: str) -> float:
        """Time of a system divided by stretto's."""
        return self.median_ms.get(system, math.nan) / self.median_ms.get("stretto", math.nan)


def measure(name: str, threads: int, protocol: Protocol, systems: list[str]) -> DecidedResult:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    program = PROGRAMS[name]
    module = program.make().eval()
    inputs = [program.input() for _ in range(INPUTS)]
    made: dict[str, Callable[[Tensor], Any]] = {"eager": module}
    calls: dict[str, Callable[[], object]] = {}
    reasons: dict[str, str] = {}
    with torch.no_grad():
        if "stretto" in systems:
            options = stretto.Options(threads=threads)
            made["stretto"] = stretto.compile(module, backend="cpu", options=options)
        if "compile" in systems:
            torch._dynamo.reset()
            made["compile"] = torch.compile(module)
        for system, function in made.items():
            try:
                for x in inputs:
                    torch.testing.assert_close(function(x), module(x), rtol=1e-3, atol=1e-4)
            except Exception as error:  # a system that cannot run the program is a result
                reasons[system] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            calls[system] = _all_inputs(function, inputs)
        times = interleave(calls, protocol)
    medians = {system: _median_ms(times[system]) / INPUTS for system in calls}
    return DecidedResult(name, medians, reasons)


def _all_inputs(function: Callable[[Tensor], Any], inputs: list[Tensor]) -> Callable[[], None]:
    def run() -> None:
        for x in inputs:
            function(x)

    return run


def _median_ms(timing: Timing | Exception) -> float:
    if isinstance(timing, Exception):
        raise timing
    return timing.median_ms


def table(results: list[DecidedResult]) -> Table:
    systems = [s for s in ("eager", "compile") if any(s in r.median_ms for r in results)]
    made = Table("program", "stretto ms", *(f"{s} ms" for s in systems), *systems, "declined")
    for result in results:
        times = [f"{result.median_ms.get(s, math.nan):.4f}" for s in ("stretto", *systems)]
        ratios = [f"{result.ratio(s):.2f}x" for s in systems]
        declined = "; ".join(f"{s}: {reason}" for s, reason in result.reasons.items())
        made.add_row(result.program, *times, *ratios, declined)
    return made


def main(
    programs: Annotated[list[str] | None, typer.Argument()] = None,
    threads: int = 2,
    rounds: int = 5,
    compiled: bool = True,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    systems = ["stretto", "compile"] if compiled else ["stretto"]
    with limit_cpus(threads):
        results = [
            measure(name, threads, Protocol(rounds=rounds), systems)
            for name in programs or PROGRAMS
        ]
    Console().print(table(results))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

"""Programs of several launches, and executables of them that replay graphs."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import stretto
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.graphs.graph_builder import arrangements
from stretto.machines.cuda.graphs.graph_executable import GraphExecutable
from stretto.machines.cuda.machine import gpu_program
from stretto.options import Debug, Options
from tests.e2e.machines import CUDA, spread
from tests.machines.cuda.cuda_fakes import FakeCuda, FakeGpu

APART = Options(
    units=3,
    enqueue="graph",
    debug=Debug(
        launches="per_kernel", control="host", branches="conditional", unroll=0, fuse=False
    ),
)
"""A launch per kernel, loops and branches in the graph."""


def side_by_side(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Three ways through that need nothing of each other, and their sum."""
    a = torch.tanh(x @ w).cumsum(0)
    b = torch.relu(x.flip(0) @ w).amax(1, keepdim=True)
    c = (x * 2).softmax(1)
    return a @ c.t() + b, b.sum(0)


def until_large(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A loop with a branch in it, and a loop of five trips behind; carried values trade places."""
    total = torch.zeros_like(x)
    while (x * x).sum() < 500:
        x = x * 1.5 + 0.1
        total = total + torch.tanh(x @ w) if x.mean() > 0.2 else total - x
    for step in range(5):
        total = total @ w + step
    return total, x


def with_library(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two library calls beside each other, in the midst of launches."""
    a = torch.cummax(x @ w, 1)[0]
    b = torch.cummax(x.tanh(), 0)[0]
    return (a + b) @ w, a.sum(0)


def library_in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    for step in range(3):
        x = torch.cummax(x @ w, 1)[0] * 0.5 + step
    return x


def library_and_draws(x: Tensor, w: Tensor) -> Tensor:
    """A call that draws random numbers stands between two graphs."""
    a = torch.relu(x @ w).cumsum(0) + (x @ w).amax(0)
    b = torch.cummax(a * torch.randint(1, 2, (4,))[:1], 1)[0]
    return torch.tanh(b @ w) + b.amin(1, keepdim=True)


PROGRAMS = (side_by_side, until_large, with_library, library_in_a_loop)


def arguments(seed: int, rows: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=draw), torch.randn(8, 8, generator=draw) / 3


@dataclass
class OnFakeGpu:
    """A program on the stand-in for a GPU. may_refuse: its library calls need not be captured."""

    run: Any
    machine: FakeGpu
    may_refuse: bool = False

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        self.machine.fake.know(*inputs)
        try:
            found = self.run(list(inputs))
        except BaseException:
            if self.machine.error is not None:
                raise self.machine.error from None
            raise
        refusals = getattr(self.run, "refusals", ())
        assert self.may_refuse or not refusals, refusals
        return [result for result in found if isinstance(result, Tensor)]


def on_fake_gpu(
    cuda: FakeCuda,
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    options: Options = APART,
    *,
    dynamic: bool | None = None,
) -> OnFakeGpu:
    """What the emulated GPU would run, on the driver's graphs."""
    fast = stretto.compile(function, backend=CUDA, options=options, dynamic=dynamic)
    with torch.no_grad(), spread():
        fast(*inputs)
    (entry,) = fast.signatures
    made = gpu_program(entry.stages)
    assert made.as_graph
    machine = FakeGpu(cuda, made.sources)
    interface = entry.stages.runnable()[1]
    machine.fake.know(*interface.constants.values())
    ways = arrangements(made.plan, CUDA_COSTS)
    run = GraphExecutable(made.plan, made.sources, interface, options, machine, ways)
    filler = run._filler  # pyright: ignore
    machine.fake.know(*filler.constants.values(), *filler.tables)
    cuda.clear()
    return OnFakeGpu(run, machine)


def random_branches(seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A program of branches in branches and in loops, drawn: its source says what it computes. Some
    arms are empty, some loops make no trip, and most values pass through several arms."""
    draw = random.Random(seed)
    lines = ["def program(x, w):", "    y = x @ w"]

    def statement(indent: str) -> None:
        a, b = draw.choice(("x", "y")), draw.choice(("x", "y"))
        lines.append(f"{indent}{a} = " + draw.choice((
            f"torch.tanh({b} @ w)", f"{b} * 0.7 - {a}", f"{a}.cumsum(0) * 0.3 + {b}",
            f"{b}.flip(0) - 0.2", f"torch.relu({a}) - {b}.amax(1, keepdim=True)",
        )))  # fmt: skip

    def branch(indent: str, depth: int) -> None:
        name, place = draw.choice(("x", "y")), draw.randrange(5)
        lines.append(f"{indent}if {name}[{place} % {name}.shape[0], {draw.randrange(7)}] > 0:")
        block(indent + "    ", depth - 1)
        if draw.random() < 0.6:
            lines.append(f"{indent}else:")
            block(indent + "    ", depth - 1)

    def block(indent: str, depth: int) -> None:
        statement(indent)
        for _ in range(draw.randrange(1, 3)):
            kind = draw.random()
            if depth and kind < 0.55:
                branch(indent, depth)
            elif depth and kind < 0.75:
                lines.append(f"{indent}for step in range({draw.choice((0, 1, 3))}):")
                lines.append(f"{indent}    x = x * 0.9 - step")
                block(indent + "    ", depth - 1)
            else:
                statement(indent)

    block("    ", 2)
    branch("    ", 2)
    block("    ", 1)
    lines.append("    return x * 0.5 + y")
    source = "\n".join(lines)
    name = f"<random branches {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(source, name, "exec"), space)
    return space["program"]

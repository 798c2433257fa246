"""Small persistent kernels that use the prelude's `wait` and `signal`, launched as programs are.

Each repeats something `trips` times, so that the difference of two launches is the time of
a trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent, indent

from torch import Tensor

from stretto.machines.cuda.printer.source import (
    ENTRY,
    ERROR,
    PROGRESS,
    KernelParameter,
    TritonSource,
)
from stretto.machines.cuda.printer.triton_module import HEADER, library_text

from .device import Bench
from .results import WrongValue

POLLS = 1 << 22
"""Polls of a counter before a wait gives up: seconds, so that a probe that hangs still ends."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel's text. body: statements that may use `unit`, `base`, `ok` and `trips`. memory:
    names and Triton types of its pointers. joint: units wait for each other."""

    name: str
    body: str
    memory: tuple[tuple[str, str], ...] = ()
    warps: int = 4
    joint: bool = True

    def source(self, units: int) -> TritonSource:
        parameters = (
            KernelParameter("control", "*i64", "control"),
            KernelParameter("polls", "i64", "polls"),
            KernelParameter("trips", "i64", "limit"),
            *(KernelParameter(name, kind, "buffer") for name, kind in self.memory),
        )
        names = ", ".join(parameter.name for parameter in parameters)
        body = f"""
            unit = tl.program_id(0)
            base = tl.load(control + {PROGRESS} + unit)
            ok = stopped(control) == 0
        """
        body = dedent(body) + dedent(self.body).replace("UNITS", str(units))
        entry = f"@triton.jit\ndef {ENTRY}({names}):{indent(body, '    ')}"
        text = "\n\n".join([HEADER, library_text(), entry])
        busy = 0 if self.joint else units
        return TritonSource(text, parameters, (), units, self.warps, joint=self.joint, busy=busy)


class Loaded:
    """A probe loaded on the machine, with its memory. `run(trips)` enqueues one launch."""

    def __init__(
        self,
        bench: Bench,
        probe: Probe,
        folder: str,
        memory: Sequence[Tensor] = (),
        units: int | None = None,
    ) -> None:
        self.bench = bench
        self.units = units or bench.units
        source = probe.source(self.units)
        compiled = bench.compiled(source, folder)
        self.from_cache = compiled is not None and compiled.from_cache
        self.launcher = bench.launcher([source], [compiled])
        words = PROGRESS + self.units
        self.control, self.host = self.launcher.aside(lambda: self.launcher.control(words))
        arguments = [self.control, POLLS, 1, *memory]
        self.invocation = bench.bind(self.launcher, arguments)

    def run(self, trips: int) -> None:
        self.invocation.set(2, trips)
        self.launcher.launch(self.invocation, self.bench.stream(), 0)

    def check(self) -> None:
        """Raise WrongValue if a wait of any launch so far gave up."""
        self.bench.synchronize()
        status = int(self.control[ERROR])
        if status:
            raise WrongValue(f"the probe stopped with status {status}")


PING_PONG = Probe(
    "ping-pong",
    """
    for trip in range(trips):
        if unit == 0:
            signal(control, unit, base + trip + 1)
            ok = wait(control, unit, UNITS - 1, 1, base + trip + 1, polls, ok, 1)
        elif unit == UNITS - 1:
            ok = wait(control, unit, 0, 1, base + trip + 1, polls, ok, 1)
            signal(control, unit, base + trip + 1)
    """,
)
"""The first unit and the last one signal each other: two waits per trip."""

WAVE = Probe(
    "wave",
    """
    for trip in range(trips):
        signal(control, unit, base + trip + 1)
        ok = wait(control, unit, 0, UNITS, base + trip + 1, polls, ok, 256)
    """,
)
"""Every unit waits for all others."""

EXCHANGE = Probe(
    "exchange",
    """
    lanes = tl.arange(0, 256)
    there = lanes < UNITS
    for trip in range(trips):
        page = board + (trip % 2) * UNITS * 256
        tl.store(page + unit * 256 + lanes, (base + trip) * 1000 + unit + lanes * 0)
        signal(control, unit, base + trip + 1)
        ok = wait(control, unit, 0, UNITS, base + trip + 1, polls, ok, 256)
        if ok:
            place = (unit * 7 + trip) % 256
            seen = tl.load(page + lanes * 256 + place, mask=there, other=0)
            wrong = there & (seen != (base + trip) * 1000 + lanes)
            tl.atomic_add(errors + lanes * 0, 1, mask=wrong)
    """,
    (("board", "*i64"), ("errors", "*i32")),
)
"""A wave after which every unit reads what each unit has just written, by a different thread of
it."""

BARRIER = Probe(
    "barrier",
    """
    for trip in range(trips):
        tl.debug_barrier()
    """,
)
"""The barrier between two stages of a task."""

EMPTY = Probe("empty", "")

CHASE = Probe(
    "chase",
    """
    place = unit * 64
    for trip in range(trips):
        place = tl.load(ring + place)
    tl.store(found + unit, place)
    """,
    (("ring", "*i32"), ("found", "*i32")),
)
"""Dependent loads: each load's address is the value of the previous one."""


def stream(block: int, warps: int) -> Probe:
    """The units read all of `data`, `count` blocks, `trips` times; in each trip a unit reads a
    different part, so that no part stays in a first-level cache."""
    body = f"""
    lanes = tl.arange(0, {block})
    total = tl.zeros([{block}], tl.float32)
    mine = tl.load(count)
    for trip in range(trips):
        first = ((unit + trip) % UNITS).to(tl.int32)
        for number in range(first, mine, UNITS):
            total += tl.load(data + number.to(tl.int64) * {block} + lanes)
    tl.store(found + unit, tl.sum(total, axis=0))
    """
    memory = (("data", "*fp32"), ("count", "*i32"), ("found", "*fp32"))
    return Probe(f"stream {block}x{warps}", body, memory, warps)


def arithmetic(step: str, block: int, kind: str = "tl.float32") -> Probe:
    """`step`, with `{x}` for its operand, applied to each of four independent blocks x0 ... x3."""
    lines = "\n".join(f"        x{n} = {step.format(x=f'x{n}')}" for n in range(4))
    starts = "\n".join(f"    x{n} = seed + {n}" for n in range(4))
    body = f"""
    lanes = tl.arange(0, {block})
    seed = (tl.load(found + lanes) * 0.001 + 0.5).to({kind})
{starts}
    for trip in range(trips):
{lines}
    total = (x0 + x1 + x2 + x3).to(tl.float32)
    tl.store(found + lanes, total, mask=(unit == 0) & (total > 1e30))
    """
    return Probe(step, body, (("found", "*fp32"),))


def products(kind: str, precision: str, rows: int, columns: int, depth: int) -> Probe:
    """A product of blocks per trip, from memory that stays in the caches."""
    body = f"""
    high = tl.arange(0, {rows})
    wide = tl.arange(0, {columns})
    deep = tl.arange(0, {depth})
    total = tl.zeros([{rows}, {columns}], tl.float32)
    for trip in range(trips):
        part = (trip % 4).to(tl.int32) * {depth}
        a = tl.load(left + high[:, None] * {4 * depth} + part + deep[None, :])
        b = tl.load(right + (part + deep[:, None]) * {columns} + wide[None, :])
        total = tl.dot(a, b, total, input_precision="{precision}")
    tl.store(found + high[:, None] * {columns} + wide[None, :], total, mask=unit == 0)
    """
    memory = (("left", f"*{kind}"), ("right", f"*{kind}"), ("found", "*fp32"))
    return Probe(f"dot {kind} {precision} {rows}x{columns}x{depth}", body, memory)

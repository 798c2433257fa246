"""Times at which each unit of a program begins and ends each wait, by the GPU's %globaltimer.

The prelude's `poll`, which all waits call, is replaced by one of the same name that calls
it and records the time before and after. Word 3 of the control block, which programs do not
use, has the address of the records. The timer is coarse, and recording takes time itself:
use the proportions of a row, not its times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.cuda.machine import gpu_program
from stretto.machines.cuda.printer.source import TritonSource

from ..harness import relative_error
from ..peers.base import Skipped
from .clock import spread
from .device import TOLERANCE, Bench
from .results import WrongValue
from .saved import SEEDS, Program, entry_of, load
from .systems import on_host

if TYPE_CHECKING:
    from .worker import Reporter

NOTES_WORD = 3
MOST_WAITS = 4096
"""Number of waits recorded per unit; later ones are not."""
UNTIMED = "def poll("
TIMED = """

@triton.jit
def timer():
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit(noinline=True)
def poll(control, unit, first, count, target, polls, ok, LANES: tl.constexpr):
    begin = timer()
    ok = untimed_poll(control, unit, first, count, target, polls, ok, LANES)
    notes = tl.load(control + {word}).to(tl.pointer_type(tl.int64)) + unit * {size}
    done = tl.load(notes)
    if done < {most}:
        tl.store(notes + 1 + 2 * done, begin)
        tl.store(notes + 2 + 2 * done, timer())
        tl.debug_barrier()
        tl.store(notes, done + 1)
    tl.debug_barrier()
    return ok
"""
SIZE = 1 + 2 * MOST_WAITS


def timed(source: TritonSource) -> TritonSource:
    """Return the kernel with the recording `poll`."""
    place = source.text.index("\n@triton.jit", source.text.index(UNTIMED))
    own = TIMED.format(word=NOTES_WORD, size=SIZE, most=MOST_WAITS)
    text = source.text[:place] + own + source.text[place:]
    return replace(source, text=text.replace(UNTIMED, "def untimed_poll(", 1))


@torch.no_grad()
def measure(reporter: Reporter, bench: Bench, model: str) -> dict[str, Any]:
    """Measure one launch of a model, in microseconds: the whole launch, and by unit the time in
    waits."""
    program = Program(model)
    module, inputs = entry_of(model).make(entry_of(model).presets[program.preset], SEEDS[0])
    module, inputs = bench.place(module, inputs)
    fast = load(program, module, bench, reporter.saved)
    wanted = fast(*inputs)
    stages = fast.signatures[0].stages
    made, (_, interface) = gpu_program(stages), stages.runnable()
    if len(made.sources) != 1:
        raise Skipped(f"{model} is {len(made.sources)} launches, and one is looked at")
    sources = [timed(source) for source in made.sources]
    compiled = [bench.compiled(source, str(reporter.programs)) for source in sources]
    launcher = bench.launcher(sources, compiled)
    notes = torch.zeros(made.plan.program.units, SIZE, dtype=torch.int64, device=bench.device)
    own = launcher.control

    def control(words: int) -> tuple[Tensor, Tensor]:
        block, host = own(words)
        block[NOTES_WORD] = notes.data_ptr()
        return block, host

    launcher.control = control
    execute = PlanExecutable(made.plan, sources, interface, stages.options, launcher)
    execute(list(inputs))
    notes[:, 0] = 0
    found = execute(list(inputs))
    bench.synchronize()
    error = relative_error(on_host(found), on_host(wanted))
    if not error <= TOLERANCE:
        raise WrongValue(f"the noted program gives something else: error {error:.1e}")
    known = reporter.saved.facts(program)
    return summary(notes.cpu()) | {"simulated_us": known.get("simulated_us")}


def summary(notes: Tensor) -> dict[str, Any]:
    """Evaluate the records [units, SIZE]: seconds of the launch from the first record to the last,
    of each wait, of all waits of each unit, and their share of its time."""
    waits: list[float] = []
    by_unit: list[float] = []
    first, last = min(int(row[1]) for row in notes), 0
    for row in notes:
        count = int(row[0])
        times = row[1 : 1 + 2 * count].view(count, 2)
        seconds = ((times[:, 1] - times[:, 0]) * 1e-9).tolist()
        waits += seconds
        by_unit.append(sum(seconds))
        last = max(last, int(times[-1, 1]) if count else 0)
    span = (last - first) * 1e-9
    return {
        "span_us": span * 1e6,
        "waits_per_unit": len(waits) / len(notes),
        "wait": spread(waits),
        "waiting_part": spread([seconds / span for seconds in by_unit], unit=""),
        "waiting_us_by_unit": [round(seconds * 1e6, 2) for seconds in by_unit],
    }

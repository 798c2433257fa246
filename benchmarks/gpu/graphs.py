"""The part `graphs`: models with branches of launches that may run side by side, batch 1.

First the ways to run a model, in turns (`turns`): eager, captured and compiled by torch, and
stretto's program as one persistent kernel, as launches on several streams, and as captured graphs.
Then the memory that graphs of several shapes hold (`shapes`).

Two systems ask what it is worth that a captured graph finds its inputs where they lay. Both run the
program of `stretto-per-kernel`, whose own inputs stay: `stretto-inputs-moved` has them at another
address each time, so that launches are patched; `stretto-inputs-copied` copies them to where they
lay before, as frameworks do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from ..harness import relative_error
from ..peers.base import Skipped
from . import shapes, turns
from .correctness import on_host
from .device import TOLERANCE, Bench
from .engine import Job, Settings, run_jobs
from .results import Row
from .systems import Case, Ready, compiled, own_system, prepare, without_gradients
from .turns import Lineup
from .worker import Reporter, WrongValue

MODELS = (
    "deepfm",
    "gpt2_decode",
    "t5_small",
    "bert_base",
    "googlenet",
    "nasnet_mobile",
    "inception_v3",
)
"""What is compiled fastest comes first, so that its time that is left goes to the others."""
DRY_MODELS = ("deepfm",)
SETTINGS: dict[str, dict[str, Any]] = {
    "stretto": {"launches": "one"},
    "stretto-streams": {"enqueue": "streams"},
    "stretto-parallel": {"enqueue": "graph"},
    "stretto-per-kernel": {"enqueue": "graph", "launches": "per_kernel"},
    "stretto-library": {"enqueue": "graph", "library": ("*",)},
}
"""Of the options of stretto, by system."""
MOVED, COPIED = "stretto-inputs-moved", "stretto-inputs-copied"
PROGRAMS = {MOVED: "stretto-per-kernel", COPIED: "stretto-per-kernel"}
"""Systems that run the program of another one."""
GROUPS: dict[str, tuple[str, ...]] = {
    "stretto": ("stretto",),
    "launches": ("stretto-parallel", "stretto-streams"),
    "per-kernel": ("stretto-per-kernel", MOVED, COPIED),
    "library-calls": ("stretto-library",),
    "library": ("eager", "eager-graph"),
    "reduce-overhead": ("compile-reduce-overhead",),
    "max-autotune": ("compile-max-autotune",),
}
DRY_GROUPS = ("stretto", "launches", "per-kernel", "library-calls", "library")
SHARES = {"googlenet": 2.0, "nasnet_mobile": 3.0, "inception_v3": 3.0}
"""Of the part's time, relative to other models: they have the most launches."""
TURNS_SHARE = 0.75
"""Of the part's time; what is left is for the memory of several shapes."""
PLACES = 4
"""Where inputs lie that move, one after the other."""
COUNTED_CALLS = 20


def models(dry_run: bool, chosen: tuple[str, ...]) -> list[str]:
    return [name for name in (DRY_MODELS if dry_run else MODELS) if not chosen or name in chosen]


def jobs(dry_run: bool, chosen: tuple[str, ...], scratch: str = "") -> list[Job]:
    """Those whose systems take turns."""
    groups = DRY_GROUPS if dry_run else tuple(GROUPS)
    pairs = ((model, group) for model in models(dry_run, chosen) for group in groups)
    return lineup().jobs(pairs, dry_run, scratch)


def lineup() -> Lineup:
    return Lineup("graphs", GROUPS, SHARES, Programs().prepare)


def run(reporter: Reporter, bench: Bench) -> None:
    """In a worker."""
    kind, _, told = reporter.job.partition(" ")
    if kind == shapes.JOB:
        shapes.run(reporter, bench, told)
    else:
        turns.serve(lineup(), reporter, bench)


def drive(settings: Settings, record: Callable[[Row], None], end: float) -> None:
    """The whole part, until the time `end`."""
    start = time.monotonic()
    todo = jobs(settings.dry_run, settings.chosen, str(settings.scratch))
    turns.drive(lineup(), todo, settings, record, start + TURNS_SHARE * (end - start))
    memory = shapes.jobs(settings.dry_run, settings.chosen)
    run_jobs(memory, settings, record, end, 1)  # others would use memory of the GPU meanwhile


# ---- systems -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Programs:
    """Prepares the systems of one worker; those that run the same program share it."""

    made: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])

    def prepare(self, system: str, case: Case, bench: Bench, cache: str) -> Ready:
        """Raises Skipped for a system that does not run the model."""
        name = PROGRAMS.get(system, system)
        if name not in SETTINGS:
            return prepare(system, case, bench, cache)
        key = case.name, name
        if key not in self.made:
            self.made[key] = compiled(case, bench, cache, **SETTINGS[name])
        fast = self.made[key]
        call = without_gradients(fast, case.inputs)
        if system in PROGRAMS:
            call()
            require_replays(fast)
            call = moved(fast, case.inputs) if system == MOVED else copied(fast, case.inputs)
        ready = own_system(fast, case.inputs, call)
        count = 2 if bench.dry_run else COUNTED_CALLS

        def details() -> dict[str, Any]:
            values = ready.details()
            values.pop("launches_per_call")  # a replay is none; the profiler counts its kernels
            return values | replays(fast, call, count)

        return replace(ready, details=details)


def require_replays(fast: Any) -> None:
    """Raises Skipped for a program that has replayed no graph."""
    if not any(counts.replayed for counts in shapes.counts_of(fast)):
        raise Skipped("the program is one launch, which is not captured")


def replays(fast: Any, call: Callable[[], Any], calls: int) -> dict[str, Any]:
    """What became of captured graphs in so many calls, after one that is not counted.

    as_they_were: the part of replays that found all arguments as the graph had them, None without
    replays. patched_per_call: launches whose arguments were changed. Empty for a program that is
    not captured.
    """
    call()
    before = [replace(counts) for counts in shapes.counts_of(fast)]
    if not before:
        return {}
    for _ in range(calls):
        call()
    after = shapes.counts_of(fast)

    def more(name: str) -> int:
        return sum(getattr(b, name) - getattr(a, name) for a, b in zip(before, after, strict=True))

    replayed = more("replayed")
    return {
        "replays_per_call": replayed / calls,
        "as_they_were": more("as_they_were") / replayed if replayed else None,
        "patched_per_call": more("patched") / calls,
        "graphs_made_per_call": more("made") / calls,
    }


# ---- where inputs lie --------------------------------------------------------------------------


def cloned(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies; a tensor that is there twice is one tensor twice again."""
    made = {id(tensor): tensor.clone() for tensor in inputs}
    return tuple(made[id(tensor)] for tensor in inputs)


def write(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies each source to its target, one that is there twice once."""
    pairs = {id(target): (target, source) for target, source in zip(targets, sources, strict=True)}
    for target, source in pairs.values():
        target.copy_(source)


@torch.no_grad()
def moved(fast: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Calls whose inputs lie elsewhere than in the call before. Raises WrongValue where a call does
    not use the inputs that it is given."""
    places = [inputs, *(cloned(inputs) for _ in range(PLACES - 1))]
    values = cloned(inputs)
    expected = on_host(fast(*inputs))
    for here in places:
        for place in places:
            for tensor in place:
                tensor.zero_()
        write(here, values)
        error = relative_error(on_host(fast(*here)), expected)
        if not error <= TOLERANCE:
            raise WrongValue(f"error {error:.1e} with inputs that have moved")
    for place in places:
        write(place, values)
    turn = cycle(places)

    @torch.no_grad()
    def call() -> Any:
        return fast(*next(turn))

    return call


def copied(fast: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Calls with fixed tensors, to which inputs are copied that lie elsewhere each time."""
    places = [inputs, *(cloned(inputs) for _ in range(PLACES - 1))]
    fixed = cloned(inputs)
    turn = cycle(places)

    @torch.no_grad()
    def call() -> Any:
        write(fixed, next(turn))
        return fast(*fixed)

    return call

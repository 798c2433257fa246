"""The stage `graphs`: models with branches of launches that may run concurrently, batch 1.

The ways to run a model take turns (`turns`): eager, captured by torch, and stretto's
program as one persistent kernel, as launches on several streams, and as captured graphs.

Two systems measure the gain when a captured graph finds its inputs at the same addresses.
Both run the program of `stretto-per-kernel`, whose own inputs stay: `stretto-inputs-moved`
passes them at another address each time, so that launches are patched; `stretto-inputs-
copied` copies them to their former addresses first, as frameworks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from ..harness import relative_error
from ..peers.base import Skipped
from . import shapes, turns
from .device import TOLERANCE, Bench
from .engine import Job, Settings
from .results import Keep, WrongValue
from .saved import Program
from .systems import Case, Ready, loaded, on_host, own_system, prepare, without_gradients
from .turns import Lineup
from .worker import Reporter

MODELS = ("deepfm", "gpt2_decode", "bert_base", "googlenet")
DRY_MODELS = ("deepfm",)
AUTOTUNED = ("gpt2_decode", "bert_base")
"""Models that torch.compile tunes in the second command: it takes longer than the stage allows."""
SETTINGS: dict[str, tuple[tuple[str, Any], ...]] = {
    "stretto": (("launches", "one"),),
    "stretto-parallel": (("enqueue", "graph"),),
    "stretto-per-kernel": (("enqueue", "graph"), ("launches", "per_kernel")),
    "stretto-library": (("enqueue", "graph"), ("library", ("*",))),
}
"""Options of stretto, by system."""
MOVED, COPIED = "stretto-inputs-moved", "stretto-inputs-copied"
PROGRAMS = {MOVED: "stretto-per-kernel", COPIED: "stretto-per-kernel"}
"""Systems that run the program of another one."""
GROUPS: dict[str, tuple[str, ...]] = {
    "stretto": ("stretto", "stretto-parallel"),
    "per-kernel": ("stretto-per-kernel", MOVED, COPIED),
    "library": ("stretto-library", "eager", "eager-graph"),
    "max-autotune": ("compile-max-autotune",),
}
PLACES = 4
"""Number of places of moving inputs, used in turn."""
COUNTED_CALLS = 20


def models(dry_run: bool, chosen: tuple[str, ...]) -> list[str]:
    return [name for name in (DRY_MODELS if dry_run else MODELS) if not chosen or name in chosen]


def program(model: str, system: str, dry_run: bool) -> Program:
    """Return the program that a system of stretto runs."""
    system = PROGRAMS.get(system, system)
    return Program(model, "small" if dry_run else "full", f"graphs/{system}", SETTINGS[system])


def programs(dry_run: bool, chosen: tuple[str, ...]) -> list[Program]:
    return [program(m, system, dry_run) for m in models(dry_run, chosen) for system in SETTINGS]


def jobs(settings: Settings, *, tuned: bool = False) -> list[Job]:
    """Return the jobs whose systems take turns. tuned: torch.compile alone, on the models that it
    tunes."""
    groups = ("max-autotune",) if tuned else tuple(g for g in GROUPS if g != "max-autotune")
    pairs = (
        (model, group)
        for model in models(settings.dry_run, settings.chosen)
        for group in groups
        if not tuned or model in AUTOTUNED
    )
    return lineup().jobs(pairs, settings.dry_run, str(settings.scratch))


def lineup() -> Lineup:
    return Lineup("graphs", GROUPS, Programs().prepare)


def run(reporter: Reporter, bench: Bench) -> None:
    """Serve the parent's questions, in a worker."""
    turns.serve(lineup(), reporter, bench)


def drive(settings: Settings, record: Keep, end: float) -> None:
    turns.drive(lineup(), jobs(settings), settings, record, end)


# ---- systems -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Programs:
    """Prepares the systems of one worker; those that run the same program share it."""

    made: dict[Program, Any] = field(default_factory=dict[Program, Any])

    def prepare(self, system: str, case: Case, bench: Bench) -> Ready:
        """Make a system ready. Raises Skipped if it does not run the model."""
        if PROGRAMS.get(system, system) not in SETTINGS:
            return prepare(system, case, bench)
        wanted = program(case.program.model, system, bench.dry_run)
        if wanted not in self.made:
            self.made[wanted] = loaded(case, wanted, bench)
        fast = self.made[wanted]
        call = without_gradients(fast, case.inputs)
        call()
        require_none_refused(fast)
        if system in PROGRAMS:
            require_replays(fast)
            call = moved(fast, case.inputs) if system == MOVED else copied(fast, case.inputs)
        ready = own_system(wanted, case, fast, call)
        count = 2 if bench.dry_run else COUNTED_CALLS

        def details() -> dict[str, Any]:
            values = ready.details()
            values.pop("launches_per_call")  # replays do not count; the profiler counts kernels
            require_none_refused(fast)
            return values | replays(fast, call, count)

        return replace(ready, details=details)


def require_none_refused(fast: Any) -> None:
    """Raise WrongValue if torch refused to capture a library call: from then on the host executes
    it."""
    refused = [
        str(reason)
        for entry in fast.signatures
        for reason in getattr(entry.executable, "refusals", ())
    ]
    if refused:
        raise WrongValue(f"{len(refused)} library calls cannot be captured: {refused[0]}")


def require_replays(fast: Any) -> None:
    """Raise Skipped if the program has replayed no graph."""
    if not any(counts.replayed for counts in shapes.counts_of(fast)):
        raise Skipped("the program is one launch, which is not captured")


def replays(fast: Any, call: Callable[[], Any], calls: int) -> dict[str, Any]:
    """Return statistics of captured graphs in `calls` calls, after one that is not counted.

    as_they_were: the share of replays that found all arguments unchanged, None without
    replays. patched_per_call: launches whose arguments were changed. Empty for a program
    that is not captured.
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


# ---- the addresses of inputs -------------------------------------------------------------------


def cloned(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copy tensors; a tensor that occurs twice is copied once."""
    made = {id(tensor): tensor.clone() for tensor in inputs}
    return tuple(made[id(tensor)] for tensor in inputs)


def write(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target; a target that occurs twice is written once."""
    pairs = {id(target): (target, source) for target, source in zip(targets, sources, strict=True)}
    for target, source in pairs.values():
        target.copy_(source)


@torch.no_grad()
def moved(fast: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Return a call whose inputs are at other addresses than in the previous call. Raises
    WrongValue if a call does not use the inputs that it is given."""
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
    """Return a call on fixed tensors, to which it copies inputs from other addresses each time."""
    places = [inputs, *(cloned(inputs) for _ in range(PLACES - 1))]
    fixed = cloned(inputs)
    turn = cycle(places)

    @torch.no_grad()
    def call() -> Any:
        write(fixed, next(turn))
        return fast(*fixed)

    return call

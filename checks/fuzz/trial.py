"""Runs one program on the backends and against eager.

A program is made anew for each run (`Program.make`): a function or module, the arguments of one
call after the other, and the globals that calls may change. All calls of a run are made by one
compiled function, so that what one leaves behind is what the next one finds.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import stretto
from checks.fuzz.compare import differences, within
from checks.fuzz.machines import MACHINES, STANDARD, TrialMachine, spread
from checks.fuzz.observe import (
    Call,
    observe,
    observe_generators,
    observe_globals,
    recorded,
)
from checks.fuzz.outcome import REFUSALS, Outcome, outcome_of_error, worst
from checks.fuzz.reference import Counting, EndlessError, Noise, Wide, run_in
from stretto.errors import RunError

NOISY_RUNS = 8

CASE = "case_"
"""What the names of the modules of cases begin with."""

COPIED = "view size is not compatible with input tensor's size and stride"
"""What eager raises for a view of an argument that is not contiguous. A compiled function copies
such arguments, so that there the view exists."""

Note = Callable[[str], None]
"""Told what is being done, so that a run that does not end can say where."""


class RefusedCall(Exception):
    """The compiler refused a call; `__cause__` says why."""

    def __init__(self, done: Sequence[Call]) -> None:
        super().__init__()
        self.done = done
        """The calls before it."""


@dataclass(frozen=True, slots=True)
class Made:
    """A program, ready to run once. Each of `calls` is (args, kwargs)."""

    function: Callable[..., Any]
    calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]
    namespace: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Program:
    """How to make a program. `make` may write files into the folder it is given. dynamic: as
    `stretto.compile` takes it. goes_on: calls share nothing, so that those behind one that raises
    are made, too. compile: makes a compiled function of one, called as `stretto.compile` is."""

    name: str
    make: Callable[[Path], Made]
    seed: int = 0
    machines: tuple[str, ...] = STANDARD
    dynamic: bool | None = None
    goes_on: bool = False
    compile: Callable[..., Callable[..., Any]] = stretto.compile


def run_calls(made: Made, function: Callable[..., Any], *, goes_on: bool = False) -> list[Call]:
    """All calls, one after the other; an exception ends them if they do not go on. Raises
    RefusedCall."""
    done: list[Call] = []
    for args, kwargs in made.calls:
        result, error = None, None
        said: list[str] = []
        try:
            with recorded(said):
                result = function(*args, **kwargs)
        except EndlessError:
            raise
        except REFUSALS as caught:
            raise RefusedCall(done) from caught
        except Exception as caught:  # eager raises it as well, or it is an internal error
            error = caught
        state = observe(args), observe(dict(kwargs)), observe_globals(made.namespace)
        state = *state, observe_generators(), said
        done.append(Call(observe(result), error, state))
        if error is not None and not goes_on:
            break
    return done


def try_program(program: Program, note: Note = lambda _: None) -> Outcome:
    """The verdict on a program."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="stretto-fuzz-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _Trial(program, Path(name), note).run()
    return replace(found, seconds=time.perf_counter() - start)


class _Trial:
    """One program, with what eager gives for it."""

    def __init__(self, program: Program, folder: Path, note: Note) -> None:
        self.program = program
        self.name = program.name
        self.folder = folder
        self.note = note
        self.narrow: list[Call] = []
        self.others: list[list[Call]] | None = None

    def eager(self, mode: Counting) -> list[Call]:
        def run() -> list[Call]:
            made = self.program.make(self.folder)
            return run_calls(made, made.function, goes_on=self.program.goes_on)

        return run_in(mode, run)

    def run(self) -> Outcome:
        self.note("eager")
        try:
            self.narrow = self.eager(Counting())
        except EndlessError:
            return Outcome(self.name, "skipped", reason="eager does not end")
        outcomes: list[Outcome] = []
        for key in self.program.machines:
            self.note(key)
            outcomes.append(self.on(MACHINES[key]))
            if outcomes[-1].verdict == "refused" and "capture" in outcomes[-1].detail:
                break  # all backends say the same
        return worst(outcomes)

    def on(self, machine: TrialMachine) -> Outcome:
        try:
            with torch.no_grad(), spread() if machine.spread else nullcontext():
                made = self.program.make(self.folder)
                cache = str(self.folder / "cache")
                seed, dynamic = self.program.seed, self.program.dynamic
                compiled = machine.compile(
                    made.function, seed, cache, dynamic, self.program.compile
                )
                found = run_calls(made, compiled, goes_on=self.program.goes_on)
        except RefusedCall as refused:
            assert refused.__cause__ is not None
            before = self.compare(machine, refused.done)
            refusal = outcome_of_error(self.name, machine.name, refused.__cause__)
            return worst([before, refusal])
        return self.compare(machine, found)

    def compare(self, machine: TrialMachine, found: Sequence[Call]) -> Outcome:
        """Call by call; after one that rounding decides, the state is no longer the same."""
        for number, (one, wanted) in enumerate(zip(found, self.narrow, strict=False)):
            if one.error is not None or wanted.error is not None:
                outcome = self.compare_errors(machine, number, one, wanted)
                same = next(differences(one.state[2], wanted.state[2]), None) is None
                if outcome.verdict != "equal" or not self.program.goes_on or not same:
                    return outcome  # eager has written to globals before it raised
                continue
            what = next(differences(one.result, wanted.result), None) or next(
                differences(one.state, wanted.state, place="state"), None
            )
            if what is None:
                continue
            if self.is_open(number, one):
                return Outcome(self.name, "skipped", machine.name, "decided by rounding")
            kind = "numbers" if " differ, " in what.what else "structure or type"
            place = "state" if what.place.startswith("state") else "result"
            when = "first call" if number == 0 else "later call"
            reason = f"{kind} of the {place}, {when}"
            return Outcome(self.name, "wrong", machine.name, reason, f"call {number}, {what}")
        return Outcome(self.name, "equal")

    def compare_errors(
        self, machine: TrialMachine, number: int, one: Call, wanted: Call
    ) -> Outcome:
        """The compiled program raises where eager does, an error of the same class or RunError."""
        if any(_NO_MEMORY in str(error) for error in (one.error, wanted.error)):
            return Outcome(self.name, "skipped", machine.name, "there is not enough memory")
        if one.error is None:
            if COPIED in str(wanted.error):
                return Outcome(self.name, "equal", reason="a view of a copied argument")
            if self.is_open(number, one):
                return Outcome(self.name, "skipped", machine.name, "decided by rounding")
            kind = type(wanted.error).__name__
            return Outcome(self.name, "wrong", machine.name, f"no {kind}", f"{wanted.error}")
        if _is_expected(one.error, wanted.error):
            return Outcome(self.name, "equal", reason="raises")
        if self.is_open(number, one):
            return Outcome(self.name, "skipped", machine.name, "decided by rounding")
        if isinstance(one.error, RunError):
            return Outcome(self.name, "wrong", machine.name, "needless RunError", f"{one.error}")
        if wanted.error is not None:
            reason = f"{type(one.error).__name__} instead of {type(wanted.error).__name__}"
            return Outcome(self.name, "wrong", machine.name, reason, f"{one.error}")
        return outcome_of_error(self.name, machine.name, one.error)

    def is_open(self, number: int, found: Call) -> bool:
        """Whether eager itself, under rounding noise, gives or raises what was found."""
        if self.others is None:
            self.note("eager with rounding noise")
            self.others = []
            for mode in (Wide(), *(Noise(seed) for seed in range(NOISY_RUNS))):
                try:
                    self.others.append(self.eager(mode))
                except EndlessError:
                    continue
        runs = [run[number] for run in (self.narrow, *self.others) if number < len(run)]
        if found.error is not None:
            return any(_is_expected(found.error, run.error) for run in runs)
        good = [run for run in runs if run.error is None]
        return (
            bool(good)
            and within(found.result, [run.result for run in good])
            and within(found.state, [run.state for run in good])
        )


_NO_MEMORY = "can't allocate memory"


def _is_expected(found: BaseException, wanted: BaseException | None) -> bool:
    """Classes that the program itself defines are others in each run of it, with the same name."""
    if wanted is None or isinstance(found, RunError):
        return wanted is not None
    is_own = type(wanted).__module__.startswith(CASE)
    names = [kind.__name__ for kind in type(found).__mro__]
    return type(wanted).__name__ in names if is_own else isinstance(found, type(wanted))

"""Systems of a model in turns: the common part of the stages `peers` and `graphs`.

Every group of systems of a model has a separate process. First all of them get ready, a few
at a time; then, model by model and with nothing else running, the systems take turns on the
GPU. In exclusive-process mode there is one process at a time, and so no turns.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from ..harness import relative_error
from ..measure import Protocol, once
from ..models.real import MissingPackage
from ..peers.base import Skipped
from .clock import Turn, spread, take_turn
from .device import TOLERANCE, Bench
from .engine import TICK_S, Job, Message, Running, Settings, not_reached
from .results import Keep, Row, WrongValue
from .saved import SEEDS, Program, Saved, entry_of
from .systems import Case, Ready, environment, launches, prepare
from .worker import Reporter, one_line

PREPARE_SHARE = 0.55
"""Share of a stage's time for getting ready; a system that is not ready by then has no result."""
TURN_LIMIT_S = 25.0
DETAILS_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Lineup:
    """The systems that a stage compares.

    groups: the systems of one process, by the group's name. prepare: makes a system
    ready in a worker; raises Skipped if it does not run the model.
    """

    part: str
    groups: Mapping[str, tuple[str, ...]]
    prepare: Callable[[str, Case, Bench], Ready] = prepare

    def jobs(self, chosen: Iterable[tuple[str, str]], dry_run: bool, scratch: str) -> list[Job]:
        """Return a job for each (model, group), with separate caches in `scratch`."""
        found: list[Job] = []
        for model, group in chosen:
            own = f"{scratch}/{self.part}-{model}-{group}"
            folders = {"TORCHINDUCTOR_CACHE_DIR": f"{own}/inductor"}
            folders["TRITON_CACHE_DIR"] = f"{own}/triton"
            settings = environment(dry_run) | folders
            found.append(Job(self.part, f"{model} {group}", 200.0, settings))
        return found


# ---- in a worker -----------------------------------------------------------------------------


def serve(lineup: Lineup, reporter: Reporter, bench: Bench) -> None:
    """Make the systems of one group ready, then answer the parent's questions."""
    model, _, group = reporter.job.partition(" ")
    ready: dict[str, Ready] = {}
    try:
        case, reference = case_of(model, bench, reporter.saved)
    except MissingPackage as error:
        for system in lineup.groups[group]:
            reporter.row(f"{model} {system}", 200.0, partial(_skip, str(error)))
    else:
        for system in lineup.groups[group]:
            prepare = partial(lineup.prepare, system, case, bench)
            make = partial(_prepare, bench, system, prepare, reference, ready)
            reporter.row(f"{model} {system}", 200.0, make)
    reporter.send("serving", systems=list(ready))
    while (message := reporter.listen()) is not None and message["ask"] != "stop":
        _answer(reporter, bench, message, ready[message["system"]])


def case_of(model: str, bench: Bench, saved: Saved) -> tuple[Case, list[Any]]:
    """Return a model on the device, and its expected results."""
    program = Program(model, "small" if bench.dry_run else "full")
    entry = entry_of(model)
    config = entry.presets[program.preset]
    module, inputs = entry.make(config, SEEDS[0])
    reference, _ = saved.reference(program, SEEDS[0], module, inputs)
    placed, values = bench.place(copy.deepcopy(module), inputs)
    return Case(program, saved, config, placed, values, module, inputs), reference


def _skip(reason: str) -> dict[str, Any]:
    raise Skipped(reason)


def _prepare(
    bench: Bench,
    system: str,
    prepare: Callable[[], Ready],
    reference: list[Any],
    ready: dict[str, Ready],
) -> dict[str, Any]:
    """Prepare a system and check its accuracy. Return the seconds until the second call has ended,
    minus two steady calls."""
    start = time.perf_counter()
    found = prepare()
    outputs = found.outputs(found.call())
    found.call()
    bench.synchronize()
    spent = time.perf_counter() - start
    steady = once(lambda: (found.call(), bench.synchronize()))
    error = relative_error(outputs, reference)
    again = relative_error(found.outputs(found.call()), reference)
    values = {"error": error, "ready_s": max(0.0, spent - 2 * steady), "note": found.note}
    values["simulated_us"] = found.simulated_us
    if not max(error, again) <= TOLERANCE:
        raise WrongValue(f"error {error:.1e}, in a later call {again:.1e}")
    ready[system] = found
    return values


def _answer(reporter: Reporter, bench: Bench, message: Message, ready: Ready) -> None:
    try:
        if message["ask"] == "turn":
            turn = _turn(bench, ready, message["runs"])
            reporter.send("turn", **asdict(turn))
        else:
            values = ready.details()
            if ready.several is None and "launches_per_call" not in values:
                values["launches_per_call"] = launches(ready, bench)
            reporter.send("details", values=values)
    except Exception as error:
        reporter.send("trouble", reason=one_line(error))


def _turn(bench: Bench, ready: Ready, runs: int) -> Turn:
    if ready.several is None:
        return take_turn(bench, ready.call, runs)
    ready.call()
    latency = [once(ready.call) for _ in range(min(runs, 10))]
    count = max(runs // 5, 1)
    blocks = [once(partial(ready.several, count)) / count for _ in range(min(runs, 5))]
    return Turn(blocks, blocks, latency)


# ---- in the parent ---------------------------------------------------------------------------


@dataclass(slots=True)
class _System:
    """A system that is ready, and its times so far."""

    row: Row
    running: Running
    name: str
    runs: int = 0
    device: list[float] = field(default_factory=list[float])
    host: list[float] = field(default_factory=list[float])
    latency: list[float] = field(default_factory=list[float])


def drive(
    lineup: Lineup, todo: Sequence[Job], settings: Settings, record: Keep, end: float
) -> None:
    """Run all jobs of a stage, until the time `end` of the monotonic clock."""
    rows: dict[str, Row] = {}

    def keep(row: Row) -> None:
        rows[row.name] = row
        record(row)

    batches = [[job] for job in todo] if settings.alone else [list(todo)]
    for number, batch in enumerate(batches):
        start = time.monotonic()
        until = start + (end - start) / (len(batches) - number)
        _measure(lineup, batch, settings, rows, keep, until)


def _measure(
    lineup: Lineup,
    batch: Sequence[Job],
    settings: Settings,
    rows: Mapping[str, Row],
    keep: Keep,
    end: float,
) -> None:
    """Make systems ready, let those of each model take turns, and end their processes, by the time
    `end`."""
    start = time.monotonic()
    running = _make_ready(batch, settings, keep, start + PREPARE_SHARE * (end - start), end)
    try:
        models = list(dict.fromkeys(_model(one.job) for one in running))
        for number, model in enumerate(models):
            begin = time.monotonic()
            until = begin + (end - begin) / (len(models) - number)
            systems = [
                _System(row, one, name)
                for one in running
                if _model(one.job) == model
                for name in lineup.groups[one.job.name.partition(" ")[2]]
                if (row := rows.get(f"{model} {name}")) is not None and row.status == "ok"
            ]
            details_s = min(DETAILS_LIMIT_S, 0.3 * (until - begin))
            _take_turns(systems, settings, keep, until - details_s)
            _ask_details(systems, keep, until)
    finally:
        for one in running:
            one.worker.kill()


def _model(job: Job) -> str:
    return job.name.partition(" ")[0]


def _make_ready(
    todo: Sequence[Job], settings: Settings, keep: Keep, ready_by: float, end: float
) -> list[Running]:
    """Start all jobs, a few at a time, until `ready_by`; return those that serve by then."""
    waiting = list(todo)
    running: list[Running] = []
    while time.monotonic() < ready_by:
        busy = [one for one in running if not one.serving and not one.over]
        if not busy and not waiting:
            break
        while waiting and len(busy) < settings.workers:
            one = Running(waiting.pop(0), settings, keep, end)
            running.append(one)
            busy.append(one)
        for one in busy:
            one.step()
        time.sleep(TICK_S)
    for job in waiting:
        keep(not_reached(job))
    for one in running:
        if not one.serving and not one.over:
            seconds = time.monotonic() - one.row_start
            one.worker.kill()
            late = f"not ready after {seconds:.0f} s: killed"
            name = one.row or f"{one.job.name}: start"
            keep(Row(name, "failed", late, seconds, job=one.job.name))
    return [one for one in running if one.serving]


def _take_turns(systems: list[_System], settings: Settings, keep: Keep, end: float) -> None:
    """Run rounds in which every system has a turn. The first round only finds the number of runs
    for the others."""
    protocol = Protocol.quick() if settings.dry_run else Protocol()
    for turn in range(protocol.rounds + 1):
        if turn > 1 and time.monotonic() > end:
            break
        for system in systems:
            if system.row.status == "ok":
                _one_turn(system, protocol, turn, keep)
    for system in systems:
        if system.row.status == "ok":
            keep(_timed(system, in_turns=not settings.alone))


def _one_turn(system: _System, protocol: Protocol, turn: int, keep: Keep) -> None:
    runs = system.runs if turn else 3
    answer = _ask(system, TURN_LIMIT_S, ask="turn", runs=runs)
    if answer["kind"] != "turn":
        system.row.status, system.row.reason = "failed", f"while it was timed: {answer['reason']}"
        keep(system.row)
    elif turn == 0:
        system.runs = protocol.runs_per_round(min(answer["device"]))
    else:
        system.device += answer["device"]
        system.host += answer["host"]
        system.latency += answer["latency"]


def _ask(system: _System, limit_s: float, **question: Any) -> Message:
    """Return the worker's answer; one of kind `trouble` if it is gone or too late."""
    running = system.running
    try:
        running.worker.tell(system=system.name, **question)
    except OSError:
        return {"kind": "trouble", "reason": running.worker.last_words()}
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        running.step()
        if running.answers:
            return running.answers.pop(0)
        if running.over or running.worker.ended:
            return {"kind": "trouble", "reason": running.worker.last_words()}
        time.sleep(0.002)
    running.worker.kill()
    return {"kind": "trouble", "reason": f"no answer after {limit_s:.0f} s: killed"}


def _timed(system: _System, in_turns: bool) -> Row:
    """Return the row with its times in milliseconds. in_turns: in turns with the model's other
    systems."""
    values = system.row.values
    values["in_turns"] = in_turns
    values["device"] = spread(system.device, 1e3, "ms")
    values["host"] = spread(system.host, 1e3, "ms")
    values["latency"] = spread(system.latency, 1e3, "ms")
    return system.row


def _ask_details(systems: list[_System], keep: Keep, end: float) -> None:
    """Ask all workers at once for details; done last, since a profiler may slow down a process for
    good."""
    groups: dict[int, list[_System]] = {}
    for system in systems:
        if system.row.status == "ok":
            groups.setdefault(id(system.running), []).append(system)

    def ask(group: list[_System]) -> list[Message]:
        limit = min(DETAILS_LIMIT_S, max(end - time.monotonic(), 1.0)) / len(group)
        return [_ask(system, limit, ask="details") for system in group]

    with ThreadPoolExecutor(max(len(groups), 1)) as pool:
        answers = list(pool.map(ask, groups.values()))
    for group, found in zip(groups.values(), answers, strict=True):
        for system, answer in zip(group, found, strict=True):
            if answer["kind"] == "details":
                system.row.values |= answer["values"]
            else:
                system.row.values["no_details"] = answer["reason"]
            keep(system.row)

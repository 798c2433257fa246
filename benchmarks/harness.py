"""The benchmark: prepare every system on every model, check it, time all of them in turns.

>>> record = run(["lstm"], ["eager", "stretto"], threads=2)
>>> record.models[0].speedup("stretto")  # over eager
"""

import copy
import datetime
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from .floor import FloorError, Rates, best_rates, floor_seconds, measure_rates
from .machine import git_commit, machine_line, versions
from .measure import (
    Protocol,
    TimeLimitError,
    Timing,
    interleave,
    limit_cpus,
    once,
    time_limit,
)
from .models import CORE, ZOO, Phase, ZooEntry
from .models.groups import GROUPS
from .models.real import MissingPackage
from .peers import DEFAULT, PEERS, Case, Peer, Prepared, Skipped
from .peers.base import tensors_to_numpy
from .record import ModelResult, Record, SystemResult

ALL: Mapping[str, ZooEntry] = ZOO | {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}
TOLERANCE = 1e-4
SEED = 0

# Called with the current step, and the fraction of the models that is done.
Observer = Callable[[str, float], None]


def run(
    models: Sequence[str] = CORE,
    peers: Sequence[str] = DEFAULT,
    threads: int = 2,
    *,
    preset: str = "full",
    batch: int = 1,
    protocol: Protocol | None = None,
    zoo: Mapping[str, ZooEntry] = ALL,
    systems: Mapping[str, Peer] = PEERS,
    observe: Observer = lambda text, done: None,
) -> Record:
    """Measure `peers` on `models` and give the record. Raises ValueError for unknown names.

    `batch` changes the models that take a batch; the others are left out if it is not 1.
    """
    require_known("model", models, zoo)
    require_known("peer", peers, systems)
    chosen = [zoo[name] for name in models if batch == 1 or zoo[name].batched]
    subjects = [_subject(entry, preset, batch) for entry in chosen]
    measured = [systems[name] for name in peers]
    return measure(subjects, measured, threads, batch, protocol or Protocol(), observe)


@dataclass(frozen=True, slots=True)
class Problem:
    """A case to measure, with eager's results in float64 and the work that no system can avoid.
    `first(n)` returns the reference of the first n instances, for models of instances."""

    case: Case
    reference: list[np.ndarray]
    work: tuple[Phase, ...]
    first: Callable[[int], list[np.ndarray]] | None = None

    def reference_of(self, prepared: Prepared) -> list[np.ndarray]:
        if prepared.instances is None:
            return self.reference
        assert self.first is not None
        return self.first(prepared.instances)

    def scale(self, prepared: Prepared) -> float:
        """Return the factor from the time of a prepared call to that of all instances."""
        return len(self.case.inputs) / prepared.instances if prepared.instances else 1.0


@dataclass(frozen=True, slots=True)
class Subject:
    """One model in one configuration. `make(threads)` may raise MissingPackage."""

    name: str
    summary: str
    preset: str
    config: Any
    make: Callable[[int], Problem]


def measure(
    subjects: Sequence[Subject],
    peers: Sequence[Peer],
    threads: int,
    batch: int,
    protocol: Protocol,
    observe: Observer = lambda text, done: None,
) -> Record:
    """Measure `peers` on `subjects`, one after the other."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with limit_cpus(threads):
            observe("measuring the physical floor", 0.0)
            before = _rates_or_none(threads, observe)
            results: list[tuple[ModelResult, tuple[Phase, ...]]] = []
            for subject in subjects:
                tell = partial(_tell, observe, subject.name, len(results) / len(subjects))
                settings = _Settings(peers, threads, protocol, tell)
                results.append(_measure_subject(subject, settings))
            observe("measuring the physical floor again", 1.0)
            rates = before and best_rates(before, measure_rates(threads))
    finally:
        torch.set_num_threads(threads_before)
    return Record(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=git_commit(),
        machine=machine_line(threads),
        versions=versions(),
        threads=threads,
        batch=batch,
        protocol=protocol,
        tolerance=TOLERANCE,
        rates=rates,
        models=tuple(_with_floor(rates, result, work) for result, work in results),
    )


@dataclass(frozen=True, slots=True)
class _Settings:
    """Parameters for measuring one model; `tell` reports each step."""

    peers: Sequence[Peer]
    threads: int
    protocol: Protocol
    tell: Callable[[str], None]


def _tell(observe: Observer, model: str, done: float, step: str) -> None:
    observe(f"{model}: {step}", done)


def _with_floor(rates: Rates | None, result: ModelResult, work: tuple[Phase, ...]) -> ModelResult:
    if rates is None or not work:
        return result
    return replace(result, floor_ms=1e3 * floor_seconds(work, rates))


def _subject(entry: ZooEntry, preset: str, batch: int) -> Subject:
    config = _configured(entry, preset, batch)

    def make(threads: int) -> Problem:
        module, inputs = entry.make(config, SEED)
        case = Case(entry.name, config, module, inputs, threads)
        return Problem(case, reference_outputs(module, inputs), entry.work(config))

    return Subject(entry.name, entry.summary, preset, config, make)


def _measure_subject(
    subject: Subject, settings: _Settings
) -> tuple[ModelResult, tuple[Phase, ...]]:
    result = ModelResult(subject.name, subject.summary, subject.preset, subject.config, None, ())
    settings.tell("computing what is right")
    try:
        problem = subject.make(settings.threads)
    except MissingPackage as missing:
        skipped = tuple(SystemResult(p.name, "skipped", str(missing)) for p in settings.peers)
        return replace(result, systems=skipped), ()
    try:
        systems = _measure_systems(problem, settings)
    finally:
        for peer in settings.peers:
            peer.release()
    return replace(result, systems=systems), problem.work


def _measure_systems(problem: Problem, settings: _Settings) -> tuple[SystemResult, ...]:
    results: dict[str, SystemResult] = {}
    calls: dict[str, Callable[[], object]] = {}
    scales: dict[str, float] = {}
    for peer in settings.peers:
        settings.tell(f"preparing {peer.name}")
        results[peer.name], prepared = _prepare(peer, problem, settings.protocol)
        if prepared is not None:
            calls[peer.name] = prepared.call
            scales[peer.name] = problem.scale(prepared)
            if prepared.predicted is not None:
                results[peer.name] = _with_prediction(results[peer.name], prepared.predicted)
    timings = interleave(calls, settings.protocol, lambda name: settings.tell(f"timing {name}"))
    for name, timing in timings.items():
        if isinstance(timing, Timing):
            results[name] = replace(results[name], timing=timing.scaled(scales[name]))
        else:
            results[name] = replace(results[name], status="failed", reason=_one_line(timing))
    return tuple(results.values())


def _prepare(
    peer: Peer, problem: Problem, protocol: Protocol
) -> tuple[SystemResult, Prepared | None]:
    """Prepare and check one system; the second value is None unless it is fit to be timed."""
    try:
        with time_limit(protocol.prepare_limit_s):
            start = time.perf_counter()
            prepared = peer.prepare(problem.case)
            outputs = prepared.outputs(prepared.call())
            prepared.call()
            spent = time.perf_counter() - start
            compile_s = max(0.0, spent - 2 * once(prepared.call))
            error = relative_error(outputs, problem.reference_of(prepared))
    except Skipped as reason:
        return SystemResult(peer.name, "skipped", str(reason)), None
    except TimeLimitError as reason:
        peer.release()
        text = f"preparing takes too long: {reason}"
        return SystemResult(peer.name, "skipped", text), None
    except Exception as reason:  # any exception of a system is a result, and recorded
        return SystemResult(peer.name, "failed", _one_line(reason)), None
    result = SystemResult(peer.name, "ok", "", prepared.note, error, compile_s)
    if error > TOLERANCE:
        reason = f"error {error:.1e} is above {TOLERANCE:.0e}"
        return replace(result, status="wrong", reason=reason), None
    return result, prepared


def _with_prediction(result: SystemResult, predicted: Callable[[], float]) -> SystemResult:
    """Return the result with the system's prediction; without one, the note gives the reason."""
    try:
        return replace(result, predicted_ms=1e3 * predicted())
    except Skipped as reason:
        return replace(result, note=f"{result.note} no prediction: {reason}".strip())


def reference_outputs(module: nn.Module, inputs: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Compute eager's results in float64."""
    precise = copy.deepcopy(module).double()
    wide = (x.double() if x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        return tensors_to_numpy(precise(*wide))


def relative_error(outputs: list[np.ndarray], reference: list[np.ndarray]) -> float:
    """Largest difference relative to the largest value of each output; infinite where the number
    of outputs, a shape, an integer or a NaN does not match."""
    if len(outputs) != len(reference):
        return float("inf")
    worst = 0.0
    for got, wanted in zip(outputs, reference, strict=True):
        if got.shape != wanted.shape:
            return float("inf")
        if not np.issubdtype(wanted.dtype, np.floating):
            worst = max(worst, 0.0 if np.array_equal(got, wanted) else float("inf"))
        elif wanted.size:
            scale = max(float(np.abs(wanted).max()), 1e-30)
            error = float(np.abs(got.astype(np.float64) - wanted).max()) / scale
            worst = max(worst, error if error == error else float("inf"))
    return worst


def _configured(entry: ZooEntry, preset: str, batch: int) -> Any:
    if preset not in entry.presets:
        raise ValueError(f"model {entry.name} has no preset {preset!r}: {sorted(entry.presets)}")
    config = entry.presets[preset]
    return replace(config, batch=batch) if batch != 1 else config


def require_known(kind: str, names: Sequence[str], known: Mapping[str, object]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {kind} {name!r}; known are {', '.join(known)}")


def _rates_or_none(threads: int, observe: Observer) -> Rates | None:
    try:
        return measure_rates(threads)
    except FloorError as error:
        observe(f"no physical floor: {error}", 0.0)
        return None


def _one_line(error: Exception) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.splitlines()[0][:300]

"""Runs cases in worker processes, each with a time limit.

Workers are forked from this process, so that what a case needs is imported once. A worker that
takes too long for a case, or dies, is replaced, and the case counts as a hang or a crash.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Generic, TypeVar

import torch

from stretto.tools.fuzz.outcome import Outcome
from stretto.tools.fuzz.trial import Note

CASES_PER_WORKER = 200
"""After so many a worker is replaced, for the memory of what it has loaded."""
MOST_BYTES = 8 << 30

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """What to run: `run(case, note)` in a worker. `name` of a case, should it not come back."""

    cases: Sequence[T]
    run: Callable[[T, Note], Outcome]
    name: Callable[[T], str]
    source: Callable[[T], str] = lambda _: ""
    seconds: float = 60.0


@dataclass
class _Worker:
    process: ForkProcess
    pipe: Connection
    case: int | None = None
    since: float = 0.0
    done: int = 0
    doing: str = field(default="start")


def run_all(job: Job[Any], jobs: int) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each case with its number, as they come. Stops all workers at the end."""
    waiting = list(range(len(job.cases)))[::-1]
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.case is not None for worker in workers):
            workers = [worker for worker in workers if not _is_spent(worker)]
            while waiting and len(workers) < jobs:
                workers.append(_start(job))
            for worker in workers:
                if worker.case is None and waiting:
                    _give(worker, waiting.pop())
            wait([worker.pipe for worker in workers], timeout=0.5)
            for worker in list(workers):
                number = worker.case
                outcome = _receive(worker, job)
                if outcome is not None and number is not None:
                    yield number, outcome
                if worker.process.exitcode is not None or not worker.process.is_alive():
                    workers.remove(worker)
    finally:
        for worker in workers:
            _kill(worker)


def _is_spent(worker: _Worker) -> bool:
    if worker.case is not None or worker.done < CASES_PER_WORKER:
        return False
    _kill(worker)
    return True


def _start(job: Job[Any]) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, number: int) -> None:
    worker.case, worker.since, worker.doing = number, time.monotonic(), "start"
    with contextlib.suppress(BrokenPipeError):
        worker.pipe.send(number)


def _receive(worker: _Worker, job: Job[Any]) -> Outcome | None:
    """The outcome of the worker's case where there is one by now."""
    if worker.case is None:
        return None
    case = job.cases[worker.case]
    try:
        while worker.pipe.poll():
            message = worker.pipe.recv()
            if isinstance(message, Outcome):
                worker.case, worker.done = None, worker.done + 1
                return message
            worker.doing = message
    except (EOFError, OSError):
        _kill(worker)
        code = worker.process.exitcode
        ended = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit {code}"
        return _lost(job, case, worker, "internal error", f"the process died: {ended}")
    if time.monotonic() - worker.since > job.seconds:
        _kill(worker)
        if worker.doing.startswith("eager"):
            return _lost(job, case, worker, "skipped", "eager takes too long")
        return _lost(job, case, worker, "hang", f"no end after {job.seconds:.0f} s")
    return None


def _lost(job: Job[Any], case: Any, worker: _Worker, verdict: Any, reason: str) -> Outcome:
    worker.case = None
    seconds = time.monotonic() - worker.since
    return Outcome(
        job.name(case), verdict, worker.doing, reason, seconds=seconds, source=job.source(case)
    )


def _kill(worker: _Worker) -> None:
    """Ends the worker and the compilers that it started."""
    if worker.process.pid is not None and worker.process.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
    worker.process.join(10)
    worker.pipe.close()


def _serve(job: Job[Any], pipe: Connection) -> None:
    """The worker: runs cases by number until the pipe ends."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            number: int = pipe.recv()
        except (EOFError, OSError):
            return
        case = job.cases[number]
        try:
            outcome = job.run(case, pipe.send)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # capture stops itself with exceptions that are no Exception
            detail = "".join(traceback.format_exception(error))[-6000:]
            reason = f"the fuzzer failed: {type(error).__name__}: {str(error)[:100]}"
            outcome = Outcome(job.name(case), "internal error", "fuzzer", reason, detail)
        pipe.send(outcome)

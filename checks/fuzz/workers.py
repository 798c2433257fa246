"""Runs cases in worker processes, each with a time limit.

Workers are forked from this process, so that what a case needs is imported once. A worker that
takes too long for a case, or dies, is replaced, and the case counts as a hang or a crash.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from checks.fuzz.outcome import Outcome
from checks.fuzz.trial import Note

WRITING = "eager: writing"
"""A worker says this while it writes the source of a case."""

CASES_PER_WORKER = 200
"""After so many a worker is replaced, for the memory of what it has loaded."""
MOST_BYTES = 8 << 30
"""That a worker may have beyond what this process had when it was forked."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """What to run: `run(case, note)` in a worker, on cases that can be pickled. `name` and `source`
    are of a case that does not come back."""

    cases: Sequence[T]
    run: Callable[[T, Note], Outcome]
    name: Callable[[T], str]
    source: Callable[[T], str] = lambda _: ""
    seconds: float = 60.0


@dataclass
class _Worker:
    process: ForkProcess
    pipe: Connection
    case: Any = None
    is_busy: bool = False
    since: float = 0.0
    done: int = 0
    doing: str = field(default="start")


class Workers:
    """Processes that run the cases of one job; closed at the end of a `with`."""

    def __init__(self, job: Job[Any], jobs: int) -> None:
        self.job = job
        self.jobs = jobs
        self.workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            _kill(worker)

    def run(self, cases: Sequence[Any]) -> Iterator[Outcome]:
        """The outcome of each case, as they come."""
        waiting = list(cases)[::-1]
        while waiting or any(worker.is_busy for worker in self.workers):
            self.workers = [worker for worker in self.workers if not _is_spent(worker)]
            while waiting and len(self.workers) < self.jobs:
                self.workers.append(_start(self.job))
            for worker in self.workers:
                if not worker.is_busy and waiting:
                    _give(worker, waiting.pop())
            wait([worker.pipe for worker in self.workers if worker.is_busy], timeout=0.5)
            for worker in list(self.workers):
                outcome = _receive(worker, self.job)
                if not worker.process.is_alive():
                    self.workers.remove(worker)
                if outcome is not None:
                    yield outcome


def run_all(job: Job[Any], jobs: int) -> Iterator[Outcome]:
    """The outcome of each case of the job, as they come."""
    with Workers(job, jobs) as workers:
        yield from workers.run(job.cases)


def _is_spent(worker: _Worker) -> bool:
    if worker.is_busy or worker.done < CASES_PER_WORKER:
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


def _give(worker: _Worker, case: Any) -> None:
    worker.case, worker.is_busy = case, True
    worker.since, worker.doing = time.monotonic(), "start"
    with contextlib.suppress(BrokenPipeError):
        worker.pipe.send(case)


def _receive(worker: _Worker, job: Job[Any]) -> Outcome | None:
    """The outcome of the worker's case where there is one by now."""
    if not worker.is_busy:
        return None
    case = worker.case
    try:
        while worker.pipe.poll():
            message = worker.pipe.recv()
            if isinstance(message, Outcome):
                worker.is_busy, worker.done = False, worker.done + 1
                return message
            worker.doing = message
    except (EOFError, OSError):
        _kill(worker)
        return _died(job, case, worker)
    if time.monotonic() - worker.since > job.seconds:
        _kill(worker)
        if worker.process.exitcode not in (None, -signal.SIGKILL):  # it was ending, slowly
            return _died(job, case, worker)
        if worker.doing.startswith("eager"):
            return _lost(job, case, worker, "skipped", "eager takes too long")
        return _lost(job, case, worker, "hang", f"no end after {job.seconds:.0f} s")
    return None


def _died(job: Job[Any], case: Any, worker: _Worker) -> Outcome:
    code = worker.process.exitcode
    ended = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit {code}"
    return _lost(job, case, worker, "internal error", f"the process died: {ended}")


def _lost(job: Job[Any], case: Any, worker: _Worker, verdict: Any, reason: str) -> Outcome:
    worker.is_busy = False
    seconds = time.monotonic() - worker.since
    is_written = worker.doing != WRITING  # else it would not end here, either
    source = job.source(case) if is_written else ""
    return Outcome(job.name(case), verdict, worker.doing, reason, seconds=seconds, source=source)


def _kill(worker: _Worker) -> None:
    """Ends the worker and the compilers that it started."""
    if worker.process.pid is not None and worker.process.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
    worker.process.join(10)
    worker.pipe.close()


def _die_at_once() -> None:
    """Makes a fatal signal end this process without anything that takes time: neither the handlers
    that libraries have installed (LLVM's looks up the symbols of a stack trace), nor a core dump.
    A limit of one byte also keeps the kernel from starting the program that collects dumps."""
    faulthandler.disable()
    for fatal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(fatal, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def _data_bytes() -> int:
    """Of this process, as RLIMIT_DATA counts them: all that it may write, touched or not."""
    found = re.search(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _serve(job: Job[Any], pipe: Connection) -> None:
    """The worker: runs cases until the pipe ends."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    most = _data_bytes() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    _die_at_once()
    parent = os.getppid()
    while True:
        # Other workers hold the pipe open, too, so its end does not tell of the parent's.
        while not pipe.poll(1.0):
            if os.getppid() != parent:
                return
        try:
            case = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            outcome = job.run(case, pipe.send)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # capture stops itself with exceptions that are no Exception
            detail = "".join(traceback.format_exception(error))[-6000:]
            reason = f"the fuzzer failed: {type(error).__name__}: {str(error)[:100]}"
            outcome = Outcome(job.name(case), "internal error", "fuzzer", reason, detail)
        pipe.send(outcome)

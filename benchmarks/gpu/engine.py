"""Jobs in separate processes: a job that crashes or hangs loses only the row it was in.

A worker reports which row it starts and how long that may take, and its result. One that
ends without a result, or takes too long, is killed with all processes it started; the row
is recorded as failed, and a new worker continues with the row after it.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .gpu import Gpu
from .results import Keep, Row

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 90.0
"""Time to import torch and to find the GPU."""
MOST_RESTARTS = 12
MOST_WORKERS = 8
"""Maximum number of workers at a time: each holds a GPU context, and uses two cores of sixteen."""
BROKEN = 86
"""Exit code of a worker that reported an error which made its GPU context unusable."""
TICK_S = 0.05
DRY_FACTOR = 5.0
MOST_LOG_BYTES = 12 << 20
"""Below the limit for files that a lent machine returns, 16 MiB each."""
LAST_LINES = 60
LINE_BYTES = 2000

Message = dict[str, Any]


class Log:
    """A file with the workers' output other than messages, up to a maximum size."""

    def __init__(self, path: Path, most: int = MOST_LOG_BYTES) -> None:
        self.path, self.left = path, most
        self._lock = threading.Lock()

    def write(self, who: str, line: str) -> None:
        text = f"[{who}] {line.rstrip()}\n"
        with self._lock:
            if self.left <= 0:
                return
            self.left -= len(text.encode())
            if self.left <= 0:
                text = "[the log is full]\n"
            with self.path.open("a") as file:
                file.write(text)


@dataclass(frozen=True, slots=True)
class Job:
    """Rows that one worker runs in order. part: the module whose `run` does so. limit_s: time for
    all of them."""

    part: str
    name: str
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that a lease passes to all workers. scratch: a folder for caches, deleted at the
    end. saved: the folder prepared for this kind of GPU. chosen: models; all if empty. gpu:
    None in a dry run."""

    scratch: Path
    saved: Path
    log: Log
    dry_run: bool
    chosen: tuple[str, ...] = ()
    gpu: Gpu | None = None

    @property
    def alone(self) -> bool:
        """True if only one process at a time may use the GPU."""
        return self.gpu is not None and self.gpu.exclusive

    def limit(self, seconds: float) -> float:
        """Return the limit of a row or job that has this many seconds on a GPU. A dry run
        multiplies it, since it interprets kernels on a host that may be busy; only the limits
        of stages stay."""
        return seconds * DRY_FACTOR if self.dry_run else seconds

    @property
    def workers(self) -> int:
        """Maximum number of workers at a time."""
        return max(1, min(1 if self.alone else MOST_WORKERS, os.cpu_count() or 1))


class Worker:
    """One worker process. `poll` returns its new messages; `ended` is True once it is gone."""

    def __init__(self, job: Job, settings: Settings, skip: Sequence[str]) -> None:
        self.job = job
        self.log = settings.log
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        told = {
            "part": job.part,
            "job": job.name,
            "dry_run": settings.dry_run,
            "scratch": str(settings.scratch),
            "saved": str(settings.saved),
            "chosen": list(settings.chosen),
            "skip": list(skip),
        }
        package = __package__ or "benchmarks.gpu"
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{package}.worker", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=_environment(job),
            start_new_session=True,
        )
        self.ended = False
        self.messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.logger = threading.Thread(target=self._keep_log, daemon=True)
        self.logger.start()

    def _keep_log(self) -> None:
        assert self.process.stderr is not None
        while line := self.process.stderr.readline(LINE_BYTES):
            if line.strip():
                self.lines.append(line)
                self.log.write(f"{self.job.part} {self.job.name}", line)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.messages.put(json.loads(line))
            except ValueError:
                continue  # printed by a library, not a message
        self.messages.put(None)

    def poll(self) -> list[Message]:
        found: list[Message] = []
        while not self.messages.empty():
            message = self.messages.get()
            if message is None:
                self.ended = True
            else:
                found.append(message)
        return found

    def tell(self, **message: Any) -> None:
        """Send a message to the process. Raises OSError if it is gone."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End the process and all that it has started, which share its session."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # A process that is stuck in the driver cannot be killed; do not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)

    def last_words(self) -> str:
        """Return how the process ended, and the last line that it wrote other than messages."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self.logger.join(timeout=1)
        how = "did not end" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        last = self.lines[-1].strip() if self.lines else ""
        return f"the process ended: {how}{': ' + last[:300] if last else ''}"

    def log_text(self) -> str:
        return "".join(self.lines)


def _environment(job: Job) -> dict[str, str]:
    found = dict(os.environ)
    path = [str(ROOT / "src"), str(ROOT), found.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    found["PYTHONUNBUFFERED"] = "1"
    found.setdefault("OMP_NUM_THREADS", "2")  # many workers compute their references at once
    return found | job.environment


@dataclass(slots=True)
class Running:
    """A job in progress: its worker, the row that it is in, and the rows that are done.

    serving: all its rows are done, and it waits for questions; `answers` are its replies.
    """

    job: Job
    settings: Settings
    record: Keep
    end: float
    worker: Worker = field(init=False)
    row: str = ""
    row_limit: float = START_LIMIT_S
    row_start: float = 0.0
    done: list[str] = field(default_factory=list[str])
    restarts: int = 0
    serving: bool = False
    over: bool = False
    answers: list[Message] = field(default_factory=list[Message])

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.row, self.row_limit, self.row_start = "", START_LIMIT_S, time.monotonic()
        self.worker = Worker(self.job, self.settings, self.done)

    def step(self) -> None:
        """Process the worker's messages, and restart or end a worker that has ended or is late."""
        for message in self.worker.poll():
            self._hear(message)
        now = time.monotonic()
        if self.over or (self.serving and not self.worker.ended):
            return
        if now > self.end:
            self._stop("no result: the time of the job or its stage was over", again=False)
        elif self.worker.ended:
            self._stop(self.worker.last_words(), again=True)
        elif now > self.row_start + self.row_limit:
            self._stop(f"no result after {self.row_limit:.0f} s: killed", again=True)

    def _hear(self, message: Message) -> None:
        match message["kind"]:
            case "start":
                self.row, self.row_limit = message["row"], self.settings.limit(message["limit"])
                self.row_start = time.monotonic()
            case "row":
                row = Row(**message["row"], job=self.job.name)
                self.done.append(row.name)
                self.record(row)
                self.row, self.row_start = "", time.monotonic()
                self.row_limit = START_LIMIT_S
            case "serving":
                self.serving = True
            case "end":
                self.over = True
                self.worker.kill()
            case _:
                self.answers.append(message)

    def _stop(self, reason: str, again: bool) -> None:
        """Kill a worker that ended early or was late; continue with the rows after its current one
        if `again`."""
        self.worker.kill()
        if self.row:
            self._fail(self.row, reason)
            self.done.append(self.row)
        elif self.worker.process.returncode != BROKEN:
            self._fail(f"{self.job.name}: the rest", reason)
            again = False
        self.restarts += 1
        if again and self.restarts <= MOST_RESTARTS:
            self._start()
            return
        if again:
            self._fail(f"{self.job.name}: the rest", f"given up after {MOST_RESTARTS} restarts")
        self.over = True

    def _fail(self, name: str, reason: str) -> None:
        seconds = time.monotonic() - self.row_start
        log = self.worker.log_text()[-2000:]
        self.record(Row(name, "failed", reason, seconds, {"log": log}, job=self.job.name))


def run_jobs(
    jobs: Sequence[Job],
    settings: Settings,
    record: Keep,
    end: float,
    parallel: int,
    done: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Run all jobs, up to `parallel` at a time, until the time `end` of the monotonic clock. done:
    by job, names of rows to skip."""
    waiting = list(jobs)
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < parallel and time.monotonic() < end:
                job = waiting.pop(0)
                limit = min(time.monotonic() + settings.limit(job.limit_s), end)
                skip = list(done.get(job.name, ())) if done else []
                running.append(Running(job, settings, record, limit, done=skip))
            for one in running:
                one.step()
            running = [one for one in running if not one.over]
            if time.monotonic() >= end:
                for job in waiting:
                    record(not_reached(job))
                waiting.clear()
            time.sleep(TICK_S)
    finally:
        for one in running:
            one.worker.kill()


def not_reached(job: Job) -> Row:
    reason = "not reached: the time of the stage was over"
    return Row(f"{job.name}: all", "failed", reason, job=job.name)

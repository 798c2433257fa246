"""The part "sanitizers": printed C++ built with UBSan and with ASan, run in processes of its own.

What runs are the functions of the language tests (`tests/e2e/language.py`, where this is a clone of
the repository) and random functions. Reports are sorted by what they say.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from checks.fuzz.outcome import Outcome, normalised
from checks.fuzz.trial import Note
from checks.fuzz.workers import Job
from stretto.runtime.compiler import find_compiler

ROOT = Path(__file__).parents[4]
"""Of the clone, if this is one."""

SANITIZERS = {
    "ubsan": "-fsanitize=undefined,float-cast-overflow -g1",
    "asan": "-fsanitize=address -g1",
}
REPORT = re.compile(r"(?:runtime error: .*|ERROR: AddressSanitizer: .*)")
CASE = "stretto-fuzz case: "
SEEDS_PER_CASE = 10


@dataclass(frozen=True, slots=True)
class Sanitized:
    """What to run under which sanitizer: a topic of the language tests, or random functions."""

    sanitizer: str
    targets: tuple[str, ...]

    def __str__(self) -> str:
        shown = self.targets[0] if len(self.targets) == 1 else f"{self.targets[0]}, ..."
        return f"{self.sanitizer} {shown}"


@cache
def topics() -> tuple[str, ...]:
    """The language tests; none where this is not a clone."""
    if not (ROOT / "tests" / "e2e" / "language.py").exists():
        return ()
    sys.path.insert(0, str(ROOT))
    try:
        from tests.e2e.language import CASES  # pyright: ignore
    finally:
        sys.path.remove(str(ROOT))
    return tuple(f"language:{topic}" for topic in CASES)  # pyright: ignore


def sanitized_cases(first: int, count: int) -> list[Sanitized]:
    """All topics and `count` random functions, under each sanitizer."""
    seeds = [f"seed:{seed}" for seed in range(first, first + count)]
    groups = [(topic,) for topic in topics()]
    groups += [tuple(seeds[n : n + SEEDS_PER_CASE]) for n in range(0, count, SEEDS_PER_CASE)]
    return [Sanitized(sanitizer, group) for sanitizer in SANITIZERS for group in groups]


def environment(sanitizer: str, cache_folder: str) -> dict[str, str]:
    """Of a process whose programs are built with the sanitizer."""
    compiler = find_compiler().command[0]
    env = {
        **os.environ,
        "CXX": f"{compiler} {SANITIZERS[sanitizer]}",
        "STRETTO_CACHE": cache_folder,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "UBSAN_OPTIONS": "print_stacktrace=0",
        "OMP_NUM_THREADS": "1",
    }
    if sanitizer == "asan":
        asked = [compiler, "-print-file-name=libasan.so"]
        library = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        env["LD_PRELOAD"] = str(Path(library).resolve())
        env["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=0"
    return env


def run_sanitized(case: Sanitized, note: Note) -> Outcome:
    """Runs a process and reads what the sanitizer says."""
    note(case.sanitizer)
    command = [sys.executable, "-m", "checks.fuzz.sanitized", *case.targets]
    with tempfile.TemporaryDirectory(prefix="stretto-fuzz-") as folder:
        env = environment(case.sanitizer, folder)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    current, found = "", list[tuple[str, str]]()
    for line in done.stderr.splitlines():
        if line.startswith(CASE):
            current = line.removeprefix(CASE)
        elif report := REPORT.search(line):
            found.append((report[0], current))
    if found:
        reason, where = found[0]
        places = "\n".join(f"{place}: {text}" for text, place in dict.fromkeys(found))
        name = f"{case.sanitizer} {where}"
        return Outcome(name, "wrong", case.sanitizer, normalised(reason), places)
    if done.returncode:
        detail = done.stderr[-3000:]
        return Outcome(str(case), "internal error", case.sanitizer, f"{current}: exit", detail)
    return Outcome(str(case), "equal")


def sanitizers(first: int, count: int, seconds: float) -> Job[Sanitized]:
    return Job(sanitized_cases(first, count), run_sanitized, str, seconds=seconds)

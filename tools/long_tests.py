"""Writes which tests take long, of which `make test` runs a part (tests/sampling.py).

    make whole ARGS="--durations=0 --durations-min=1" | tee LOG
    python tools/long_tests.py LOG

A test is listed with the seconds of its longest case, setup included, if these are `LEAST` or more.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

LEAST = 1.0
LIST = Path(__file__).parents[1] / "tests" / "long_tests.txt"
LINE = re.compile(r"([\d.]+)s (?:call|setup|teardown)\s+(\S+::[\w:]+)(\S*)")


def long_tests(text: str) -> dict[str, float]:
    """Seconds of each test that takes so long, from what pytest prints with --durations."""
    cases: dict[tuple[str, str], float] = defaultdict(float)
    for found in LINE.finditer(text):
        cases[found[2], found[3]] += float(found[1])
    longest: dict[str, float] = defaultdict(float)
    for (test, _), seconds in cases.items():
        longest[test] = max(longest[test], seconds)
    return {test: seconds for test, seconds in sorted(longest.items()) if seconds >= LEAST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    found = long_tests(parser.parse_args().log.read_text(errors="replace"))
    LIST.write_text("".join(f"{seconds:.0f} {test}\n" for test, seconds in found.items()))
    print(f"{len(found)} tests, {sum(found.values()):.0f} s")


if __name__ == "__main__":
    main()

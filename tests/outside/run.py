"""`make outside`: runs every program in a process of its own, and writes the table of models.md.

A program that is refused is run again with `fallback=True`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.outside.judge import Row
from tests.outside.registry import Program, programs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- outside: begin -->", "<!-- outside: end -->"


def run(name: str, backend: str, seconds: float, folder: Path) -> Row:
    """The verdict on one program; its log is a file of the folder."""
    row = _run_once(name, backend, "", seconds, folder)
    if row.verdict not in ("refused", "internal error"):
        return row
    again = _run_once(name, backend, "fallback", seconds, folder)
    if row.verdict == "refused" or again.verdict != "by fallback":
        return again
    return row


def _run_once(name: str, backend: str, fallback: str, seconds: float, folder: Path) -> Row:
    command = [sys.executable, "-W", "ignore", "-m", "tests.outside.judge", name, backend, fallback]
    with open(folder / f"{name}{fallback and '.fallback'}.log", "w") as log:
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, timeout=seconds, text=True
            )
        except subprocess.TimeoutExpired:
            return Row(name, "hang", f"no end after {seconds:.0f} s")
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return Row(name, "internal error", f"the process ended with code {done.returncode}")
    return Row(**json.loads(lines[-1]))


def table(known: dict[str, Program], rows: Sequence[Row]) -> str:
    """The rows in Markdown, with a sentence that counts them."""
    counts = Counter(row.verdict for row in rows)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    lines = [f"{len(rows)} programs: {counted}.", ""]
    lines += ["| program | package | verdict | why | first call, s |", "|---|---|---|---|---|"]
    for row in rows:
        package = known[row.name].package
        reason = row.reason.replace("|", "\\|").replace("<", "\\<")
        lines += [f"| {row.name} | {package} | {row.verdict} | {reason} | {row.seconds} |"]
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Replaces what the page has between the two markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; without any all run, for the table")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--seconds", type=float, default=400, help="limit of one program")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "outside")
    options = parser.parse_args()
    known = programs()
    names = options.names or list(known)
    options.out.mkdir(parents=True, exist_ok=True)

    def judge(name: str) -> Row:
        row = run(name, options.backend, options.seconds, options.out)
        print(json.dumps(asdict(row)), flush=True)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(judge, names))
    (options.out / "rows.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    if not options.names and options.backend == "cpu":
        write(PAGE, table(known, rows))
    sys.exit(any(row.verdict in ("wrong", "internal error", "hang") for row in rows))


if __name__ == "__main__":
    main()

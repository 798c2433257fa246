"""`make outside`: runs every program in a process of its own, and writes the table of results.

A program that is refused is run again with `fallback=True`. The folder keeps the last row of each
program, as soon as it is known: a run that was interrupted goes on with `--missing`, programs that
are run again by their names get new rows, and the table has the rows of all.
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
PAGE = ROOT / "benchmarks" / "results" / "README.md"
JOURNAL = "rows.jsonl"
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


def kept(folder: Path) -> dict[str, Row]:
    """The last row of each program that ran with this folder."""
    journal = folder / JOURNAL
    lines = journal.read_text().splitlines() if journal.exists() else []
    return {row.name: row for row in (Row(**json.loads(line)) for line in lines)}


def write(page: Path, text: str) -> None:
    """Replaces what the page has between the two markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; without any all run")
    parser.add_argument("--missing", action="store_true", help="only programs without a row")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--seconds", type=float, default=400, help="limit of one program")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "outside")
    options = parser.parse_args()
    known = programs()
    folder = options.out / options.backend
    folder.mkdir(parents=True, exist_ok=True)
    before = kept(folder) if options.missing else {}
    names = [name for name in options.names or known if name not in before]

    def judge(name: str) -> Row:
        row = run(name, options.backend, options.seconds, folder)
        line = json.dumps(asdict(row))
        print(line, flush=True)
        with open(folder / JOURNAL, "a") as journal:
            journal.write(line + "\n")
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(judge, names))
    found = kept(folder)
    if options.backend == "cpu" and found.keys() >= known.keys():
        write(PAGE, table(known, [found[name] for name in known]))
    sys.exit(any(row.verdict in ("wrong", "internal error", "hang") for row in rows))


if __name__ == "__main__":
    main()

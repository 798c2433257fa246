"""The file of `--json`: one line of JSON for each outcome, written when it comes.

A run that is interrupted keeps what it has found. A run with the same file tries only the cases
that the file does not have yet for its machines.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import asdict
from pathlib import Path

from checks.fuzz.outcome import Outcome


class Journal:
    """The outcomes in a file. `machines`: the backends that this run was asked for."""

    def __init__(self, path: Path, machines: tuple[str, ...] = ()) -> None:
        self.path = path
        self.machines = ",".join(machines)
        self._found = read(path)

    def parts(self) -> list[str]:
        """The parts of which there are outcomes, in the order in which they were first tried."""
        return list(dict.fromkeys(part for part, _, _ in self._found))

    def outcomes(self, part: str) -> list[Outcome]:
        """All outcomes of a part, those for other machines too."""
        return [found for (one, _, _), found in self._found.items() if one == part]

    def known(self, part: str, case: str) -> Outcome | None:
        """The outcome of a case on the machines of this run, if it has been tried."""
        return self._found.get((part, self.machines, case))

    def add(self, part: str, outcome: Outcome) -> None:
        self._found[part, self.machines, outcome.name] = outcome
        line = {"part": part, "machines": self.machines, **asdict(outcome)}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> dict[tuple[str, str, str], Outcome]:
    """Outcomes by part, machines and case. A last line without an end, which a run has left that
    was killed while it wrote, is taken away."""
    if not path.exists():
        return {}
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        text = file.read()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    found: dict[tuple[str, str, str], Outcome] = {}
    for line in whole.splitlines():
        record = json.loads(line)
        part, machines = record.pop("part"), record.pop("machines")
        found[part, machines, record["name"]] = Outcome(**record)
    return found

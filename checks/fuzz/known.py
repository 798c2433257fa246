"""The refusals that are known: of an operator, module or program, and the reasons they are given.

Kept beside this file as JSON. A case of one of torch's databases may be refused for a reason that
the list has; any other refusal counts as a failure. `--update-known` rewrites the list.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from checks.fuzz.outcome import Outcome

PATH = Path(__file__).with_name("known_refusals.json")

Known = dict[str, dict[str, list[str]]]
"""Per part and reason, the names of what is refused for it."""


@cache
def known_refusals() -> Known:
    return json.loads(PATH.read_text())


def entry_name(case: str) -> str:
    """The operator's or module's name, without dtype and number of the sample."""
    return case.split(" ")[0]


def is_known(part: str, outcome: Outcome) -> bool:
    """Whether a refusal is in the list."""
    names = known_refusals().get(part, {}).get(outcome.reason, [])
    return entry_name(outcome.name) in names


def unknown_refusals(part: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The refusals that are not in the list."""
    return [
        replace(outcome, reason=f"not a known refusal: {outcome.reason}")
        for outcome in outcomes
        if outcome.verdict == "refused" and not is_known(part, outcome)
    ]


def update_known(part: str, outcomes: Sequence[Outcome]) -> None:
    """Replaces the list of a part by the refusals of a whole run."""
    found: dict[str, set[str]] = defaultdict(set)
    for outcome in outcomes:
        if outcome.verdict == "refused":
            found[outcome.reason].add(entry_name(outcome.name))
    known = dict(known_refusals())
    known[part] = {reason: sorted(names) for reason, names in sorted(found.items())}
    PATH.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")

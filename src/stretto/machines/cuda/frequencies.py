"""Branch frequencies, stored in the database of measurements between compilations of a program.

A branch is identified by the text of the optimised program and the name of its condition. The
stored value is (n + 1/2) / (N + 1) for n of N runs that took the first arm, so that a few calls do
not give "never".
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.ir.text import print_program
from stretto.machines.cuda.graphs.words import BranchCount
from stretto.machines.machine import Stages
from stretto.options import Options
from stretto.runtime.cache import content_key
from stretto.schedule.plan_cost import Frequencies
from stretto.tuning import Database, KernelTime, MeasuredDevice

PROGRAMS = MeasuredDevice("branches of programs", "branches", 0)
"""Pseudo-device of the entries: frequencies depend on a program and its inputs, not on a device."""


def known_frequencies(stages: Stages, conditions: list[str]) -> Frequencies:
    """Return the frequencies of these branches from earlier runs of the program."""
    database = _database(stages.options)
    if database is None or not conditions or not database.path.exists():
        return {}
    keys = {name: _key(stages, name) for name in conditions}
    found = database.kernels(PROGRAMS, keys.values())
    return {name: found[key].seconds for name, key in keys.items() if key in found}


def keep_frequencies(stages: Stages, counts: Mapping[str, BranchCount]) -> None:
    """Store frequencies for later compilations of the program."""
    database = _database(stages.options)
    came = {name: one for name, one in counts.items() if one.total}
    if database is not None and came:
        shares = {
            _key(stages, name): KernelTime((one.first + 0.5) / (one.total + 1), one.total)
            for name, one in came.items()
        }
        database.put_kernels(PROGRAMS, shares)


def _database(options: Options) -> Database | None:
    return None if options.tune == "off" else Database(options.cache_path())


def _key(stages: Stages, condition: str) -> str:
    return content_key("branch", print_program(stages.program), condition)

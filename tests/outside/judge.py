"""Runs one program and says what became of it: compiled calls are compared with eager ones.

Results, types, dtypes, changed arguments, changed state and the state of the generator must agree.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

import stretto
from checks.fuzz.compare import differences
from checks.fuzz.observe import observe
from checks.fuzz.outcome import REFUSALS
from stretto.errors import StrettoError
from stretto.failures import is_reportable_bug
from tests.outside.registry import Case, Program, programs


@dataclass(frozen=True)
class Row:
    """The verdict on a program, as `make outside` keeps it. seconds: of the first compiled call."""

    name: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0


def judged(program: Program, backend: str, fallback: bool) -> Row:
    """Compares the program compiled with the program run by eager PyTorch."""
    _made(program)  # a package may keep something with the first object of a class
    wanted_case, found_case = _made(program), _made(program)
    fast = stretto.compile(found_case.function, backend=backend, fallback=fallback)
    wanted, found = _calls(wanted_case, wanted_case.function), _calls(found_case, fast)
    seconds = 0.0
    for number, expected in enumerate(wanted):
        begun = time.perf_counter()
        try:
            actual = next(found)
        except Exception as error:
            traceback.print_exc()
            return Row(program.name, _verdict(error), _first_line(error), round(seconds, 1))
        if number == 0:
            seconds = time.perf_counter() - begun
        if difference := next(differences(actual, expected), None):
            reason = f"call {number + 1}, {difference}"
            return Row(program.name, "wrong", reason, round(seconds, 1))
    refused = fast._fallback.reasons if fast._fallback is not None else {}
    if refused:
        return Row(
            program.name,
            "by fallback",
            _first_line(next(iter(refused.values()))),
            round(seconds, 1),
        )
    return Row(program.name, "right", "", round(seconds, 1))


def _made(program: Program) -> Case:
    _seed()
    return program.make()


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def _calls(case: Case, function: Callable[..., Any]) -> Iterator[Any]:
    for args in (case.first, case.second, case.first):
        own = copy.deepcopy(args)
        _seed()
        result = function(*own)
        drawn = torch.get_rng_state()
        state = case.function if case.state is None else case.state
        yield observe({"result": result, "arguments": own, "state": state, "drawn": drawn})


def _verdict(error: Exception) -> str:
    if isinstance(error, REFUSALS) and not (
        isinstance(error, StrettoError) and is_reportable_bug(error)
    ):
        return "refused"
    return "internal error"


def _first_line(error: Exception) -> str:
    message = error.message if isinstance(error, StrettoError) else str(error)
    kind = "" if isinstance(error, REFUSALS) else f"{type(error).__name__}: "
    return kind + message.partition("\n")[0]


def main() -> None:
    name, backend, fallback = sys.argv[1:]
    torch.set_grad_enabled(False)
    print(json.dumps(asdict(judged(programs()[name], backend, fallback == "fallback"))))


if __name__ == "__main__":
    main()

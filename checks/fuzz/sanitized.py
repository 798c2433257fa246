"""Runs functions on the CPU machine with two units; `sanitizers.py` starts it as a process.

Whether results are right is not looked at: other parts do that.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import warnings
from pathlib import Path

import torch

import stretto
from checks.fuzz.machines import spread
from checks.fuzz.sanitizers import CASE
from checks.fuzz.source import Source
from checks.fuzz.trial import RefusedCall, run_calls
from checks.fuzz.writer import write
from stretto.errors import StrettoError
from stretto.machines.registry import default_machine
from stretto.options import Debug, Options


def run_topic(topic: str) -> None:
    """Every function of a topic of the language tests, with its calls."""
    from tests.e2e.language import CASES  # pyright: ignore

    for function, calls in CASES[topic].items():  # pyright: ignore
        announce(f"language:{topic} {function.__name__}")
        options = Options(threads=2, debug=Debug(unroll=2), check=False)
        compiled = stretto.compile(function, backend=default_machine().name, options=options)
        for arguments in calls:  # pyright: ignore
            compiled(*copy.deepcopy(arguments))


def run_seed(seed: int, folder: Path) -> None:
    """A random function; it may be refused or raise."""
    announce(f"seed:{seed}")
    made = Source("", write("functions", seed), seed).make(folder)
    options = Options(threads=2, debug=Debug(unroll=seed % 4), check=False)
    try:
        run_calls(
            made, stretto.compile(made.function, backend=default_machine().name, options=options)
        )
    except (StrettoError, RefusedCall):
        return


def announce(case: str) -> None:
    print(f"{CASE}{case}", file=sys.stderr, flush=True)


def main(targets: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with spread(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for target in targets:
            kind, _, name = target.partition(":")
            if kind == "language":
                run_topic(name)
            else:
                run_seed(int(name), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])

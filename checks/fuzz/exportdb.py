"""The part "exportdb": the programs with which torch.export documents what it supports."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from checks.fuzz.outcome import Outcome
from checks.fuzz.source import load
from checks.fuzz.trial import Made, Note, Program, try_program
from checks.fuzz.workers import Job


def database() -> dict[str, Any]:
    from torch._export.db.examples import all_examples

    return dict(all_examples())


def exportdb(names: list[str], machines: tuple[str, ...], seconds: float) -> Job[str]:
    """Each program with its example inputs, twice, and its extra inputs."""

    def run(name: str, note: Note) -> Outcome:
        case = database()[name]

        def make(folder: Path) -> Made:
            calls = [(case.example_args, case.example_kwargs)] * 2
            if case.extra_args:
                calls.append((case.extra_args, {}))
            # A copy of its file is code of a user's; what stands in torch's folder is not.
            text = Path(inspect.getfile(type(case.model))).read_text()
            return Made(
                load(text, folder).model, pytree.tree_map_only(torch.Tensor, torch.clone, calls)
            )

        return try_program(Program(name, make, 0, machines), note)

    return Job(names, run, str, seconds=seconds)

"""Data made at home for a GPU that is elsewhere: programs, references and simulated times.

A folder has KIND/facts.json for each kind of GPU, with the facts of each program: its
simulated time, units, target, and digests of its texts and weights; and a file of each
program, saved for that kind, which runs there with nothing captured, scheduled or compiled.
`programs` has machine code of kernels that belong to no model, found by its text, and
references.safetensors has eager's results in float64 from home. Weights are not stored:
they are made again from their seed, and a digest tells if they are the same there.

`prepare` fills the folder. `load` is the one place where a program becomes something to
call on the GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import StrettoWarning
from stretto.options import Options

from ..harness import reference_outputs
from ..models import ZOO
from ..models.entry import ZooEntry
from ..models.groups import GROUPS
from .device import Bench
from .gpu import Gpu
from .results import WrongValue

KINDS = {
    "h100": Gpu("", "NVIDIA H100 80GB HBM3", (9, 0), 132, 0),
    "h200": Gpu("", "NVIDIA H200", (9, 0), 132, 0),
}
SEEDS = 0, 5
"""Seeds of the inputs that are checked; the weights have the first one."""
REFERENCES, FACTS, CODE = "references.safetensors", "facts.json", "programs"


@dataclass(frozen=True, slots=True)
class Program:
    """A model run by one variant of stretto. settings: its options. units: if fewer than the GPU
    has. dynamic: True for one program for all sizes."""

    model: str
    preset: str = "full"
    system: str = "stretto"
    settings: tuple[tuple[str, Any], ...] = ()
    units: int | None = None
    dynamic: bool | None = None

    @property
    def name(self) -> str:
        few = f" on {self.units} units" if self.units else ""
        return f"{self.model} {self.preset} {self.system}{few}"

    @property
    def is_checked(self) -> bool:
        """True for a program that the stage `correctness` calls, with the inputs of all seeds."""
        return self.system == "stretto" and self.units is None

    def options(self, folder: Path) -> Options:
        return Options.of({"cache_dir": str(folder), "units": self.units, **dict(self.settings)})


def entry_of(model: str) -> ZooEntry:
    """A model of the zoo or of one of its groups. Raises KeyError for an unknown name."""
    for models in (ZOO, *GROUPS.values()):
        if model in models:
            return models[model]
    raise KeyError(f"there is no model {model!r}")


@dataclass(frozen=True)
class Saved:
    """The folder of one kind of GPU."""

    folder: Path

    @property
    def code(self) -> Path:
        return self.folder.parent / CODE

    @cached_property
    def known(self) -> dict[str, dict[str, Any]]:
        """The facts of each program; empty for a folder that was not prepared."""
        path = self.folder / FACTS
        return json.loads(path.read_text()) if path.is_file() else {}

    def file(self, program: Program) -> Path:
        """Return the path of a saved program, which may not exist."""
        name = re.sub(r"\W+", "-", program.name)
        return self.folder / f"{name}.stretto"

    def facts(self, program: Program) -> dict[str, Any]:
        return self.known.get(program.name, {})

    def reference(
        self, program: Program, seed: int, module: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[list[np.ndarray], str]:
        """Return eager's results in float64, and their origin: stored, or computed here if the
        seed's weights differ here, for example with another version of a package."""
        known = self.facts(program)
        if known.get("weights") != digest_of(module):
            return reference_outputs(module, inputs), "computed here"
        from safetensors.numpy import load_file

        stored = load_file(self.folder.parent / REFERENCES)
        prefix = f"{program.model} {program.preset} {seed} "
        found = {int(k.removeprefix(prefix)): v for k, v in stored.items() if k.startswith(prefix)}
        if not found:
            return reference_outputs(module, inputs), "computed here"
        return [found[number].astype(np.float64) for number in sorted(found)], "stored"


def load(program: Program, module: nn.Module, bench: Bench, saved: Saved) -> Any:
    """Load the program for a module that is on the device; if it is not in the folder, compile it.
    Raises WrongValue if a saved one would be built again."""
    path = saved.file(program)
    if not path.is_file():
        options = program.options(saved.code)
        return stretto.compile(
            module, backend=bench.backend, options=options, dynamic=program.dynamic
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", StrettoWarning)
        try:
            tensors = module.state_dict()
            return stretto.load(path, backend=bench.backend, device=bench.device, tensors=tensors)
        except StrettoWarning as built:
            raise WrongValue(f"the saved program does not run as it is: {built}") from built


def digest_of(module: nn.Module) -> str:
    """Return a digest of all weights and their names."""
    found = hashlib.sha256()
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in sorted(named.items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()

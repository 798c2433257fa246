"""`stretto opt`: continues the build of a program from a dump in any form."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from stretto.call.compiler import begin, run_stages
from stretto.device.expr import known_dims
from stretto.errors import StrettoError
from stretto.ir.core import Program
from stretto.ir.sizes import Size, Symbol
from stretto.machines.machine import BuildStage, Form, Machine
from stretto.machines.stages import CAPTURED, OPTIMISED
from stretto.options import Options
from stretto.passes.manager import Pass
from stretto.passes.pipeline import passes_by_name, pipeline
from stretto.tools.names import UsageError, require_known, suggestion


@dataclass(frozen=True, slots=True)
class MissingTensors:
    """The tensors that no text contains: given ones by name, others drawn from the name and a
    seed, so that they are equal in every form of a program."""

    given: Mapping[str, torch.Tensor]
    seed: int
    place: torch.device

    def constant(self, name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        found = self.given.get(name)
        if found is None:
            return self.drawn(name, shape, dtype)
        if (found.shape, found.dtype) != (shape, dtype):
            raise UsageError(
                f"the constant {name} is {found.dtype}{list(found.shape)} in the file, but "
                f"{dtype}{list(shape)} in the program"
            )
        return found.to(self.place)

    def drawn(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return normally distributed numbers; for integers and flags, zeros and ones."""
        generator = torch.Generator().manual_seed(self.seed + crc32(name.encode()))
        if dtype.is_floating_point:
            drawn = torch.randn(tuple(shape), generator=generator)
        else:
            drawn = torch.randint(0, 2, tuple(shape), generator=generator)
        return drawn.to(self.place, dtype)


class Optimiser:
    """A program that was read from a file, and the remaining build stages of its machine."""

    def __init__(
        self,
        file: Path,
        machine: Machine,
        options: Options,
        *,
        source: str | None = None,
        passes: Sequence[str] = (),
        constants: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Read a file in the form `source`; None recognises it by its first word.

        passes: the only ones to run on a Program. Raises UsageError for unknown names, and the
        error of the form, with the line of the file, for wrong text.
        """
        self.file = file
        self.forms = forms_of(machine)
        place = machine.device()
        self.tensors = MissingTensors(constants or {}, options.debug.seed, place)
        self.stages = begin(Program({}), machine, options, place)
        text = _text_of(file)
        self.source = self._named(source) if source is not None else self._found(text)
        self.target = self.source
        if passes:
            self.stages.passes = _passes_of(passes)
            if self.source not in (CAPTURED, OPTIMISED):
                raise UsageError(f"passes run on a Program; this is of the form {self.source.name}")
            self.source, self.target = CAPTURED, OPTIMISED
        if self.source.read is None:
            raise UsageError(f"the form {self.source.name} cannot be read back")
        try:
            self.source.read(self.stages, text, self.tensors.constant)
        except StrettoError as error:
            error.message = _at_line(file, error.message)
            raise

    def to(self, target: str | None) -> str:
        """Return the text of the form `target`, after all stages up to it; None: the form that was
        read, or with passes the optimised Program."""
        wanted = self._named(target) if target is not None else self.target
        steps = self.steps()
        if wanted is not self.source:
            made = [step.form for step in steps]
            if wanted not in made:
                raise UsageError(f"the form {wanted.name} comes before {self.source.name}")
            run_stages(self.stages, steps[: made.index(wanted) + 1])
        return "\n".join(wanted.texts(self.stages))

    def run(self, inputs: Sequence[torch.Tensor] | None = None) -> list[object]:
        """Return the results of one call, with drawn inputs if none are given."""
        run_stages(self.stages, self.steps())
        executable = self.stages.executable
        assert executable is not None
        wanted = self._inputs()
        if inputs is None:
            inputs = [self.tensors.drawn(f"input {n}", *kind) for n, kind in enumerate(wanted)]
        found = [(tuple(tensor.shape), tensor.dtype) for tensor in inputs]
        if found != wanted:
            shown = (", ".join(f"{d}{list(s)}" for s, d in kinds) for kinds in (wanted, found))
            raise UsageError("the program takes {}; given are {}".format(*shown))
        results: list[object] = list(executable([x.to(self.tensors.place) for x in inputs]))
        executable.synchronize()
        return results

    def steps(self) -> Sequence[BuildStage]:
        """Return the stages after the form that was read."""
        steps = self.stages.machine.stages
        made = [step.form for step in steps]
        return steps[made.index(self.source) + 1 :] if self.source in made else steps

    def _inputs(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of each input. Symbolic dims get some size in their range."""
        if self.stages.scheduled is not None:
            _, interface = self.stages.runnable()
            return [(_some_shape(known_dims(b)), b.dtype.torch) for b in interface.inputs]
        params = self.stages.captured.main.params
        return [(_some_shape(p.tensor.shape), p.tensor.dtype.torch) for p in params]

    def _named(self, name: str) -> Form:
        require_known(f"form of {self.stages.machine.name}", [name], self.forms)
        return self.forms[name]

    def _found(self, text: str) -> Form:
        word = text.split(None, 1)[0] if text.strip() else ""
        for form in self.forms.values():
            if word and word == form.word:
                return form
        known = ", ".join(form.word for form in self.forms.values() if form.word)
        raise UsageError(
            f"{self.file}:1: the form cannot be seen from the first word {word!r}; those of "
            f"{self.stages.machine.name} begin with {known}. --from names the form"
        )


def forms_of(machine: Machine) -> dict[str, Form]:
    """Return the forms that a program has on its way to a machine, by name, in order."""
    made = [step.form for step in machine.stages if step.form is not None]
    return {form.name: form for form in (CAPTURED, *made)}


def _passes_of(names: Sequence[str]) -> tuple[Pass, ...]:
    known = passes_by_name(pipeline())
    for name in names:
        if name not in known:
            raise UsageError(f"unknown pass {name!r}{suggestion(name, list(known))}")
    return tuple(known[name] for name in names)


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error


def load_inputs(file: Path) -> list[torch.Tensor]:
    """Return the tensors of a list written by `torch.save`."""
    found = _loaded(file)
    if not isinstance(found, list | tuple) or not all(map(torch.is_tensor, found)):
        raise UsageError(f"{file} is no list of tensors")
    return list(found)


def load_constants(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a dict by name, as of a state dict, written by `torch.save`."""
    found = _loaded(file)
    if not isinstance(found, dict) or not all(map(torch.is_tensor, found.values())):
        raise UsageError(f"{file} is no dict of tensors by name")
    return dict(found)


def _loaded(file: Path) -> Any:
    try:
        return torch.load(file, weights_only=True)
    except (OSError, pickle.UnpicklingError, RuntimeError) as error:
        raise UsageError(f"cannot read tensors from {file}: {error}") from error


def _at_line(file: Path, message: str) -> str:
    """Add the file's name to a message of a parser that begins with `line 3`."""
    if message.startswith("line "):
        return f"{file}:{message.removeprefix('line ')}"
    return f"{file}: {message}"


_SOME_SIZE = 5


def _some_shape(dims: Sequence[int | Size]) -> tuple[int, ...]:
    def size(symbol: Symbol) -> int:
        return max(symbol.low, min(_SOME_SIZE, symbol.high or _SOME_SIZE))

    return tuple(dim if isinstance(dim, int) else dim.evaluate(size) for dim in dims)

"""The part "python": random functions of Python's constructs and data model (`constructs.py`)."""

from __future__ import annotations

from dataclasses import replace

import torch

from checks.fuzz.constructs import FAMILIES, IMPORTS
from checks.fuzz.family import Family
from checks.fuzz.machines import ORACLES
from checks.fuzz.outcome import Outcome
from checks.fuzz.scope import Scope
from checks.fuzz.source import Source
from checks.fuzz.statements import FunctionWriter, Setting, returned
from checks.fuzz.trial import Note, try_program
from checks.fuzz.workers import WRITING, Job
from checks.fuzz.writer import ModuleWriter

START = ("n1 = int(x.sum().nan_to_num().clamp(-9, 9)) % 4", "p1 = x.reshape(-1)[0].item()")
"""Numbers that depend on a tensor, so that most slots have one."""
GRAD_MODE = "    torch.set_grad_enabled(True)\n"


class PythonWriter(ModuleWriter):
    """Writes a function of two or three families of constructs."""

    def text(self) -> str:
        names = self.random.sample(sorted(FAMILIES), self.random.choice((1, 2, 2, 3)))
        families = [FAMILIES[name] for name in names]
        self.define(IMPORTS)
        for family in families:
            self.define(family.module)
        arguments = self.arguments()
        self.parts.append(self.python_function(arguments, families))
        self.python_calls(arguments, "gradients" in names)
        return "\n\n".join(part for part in self.parts if part)

    def arguments(self) -> dict[str, tuple[str, int]]:
        """Dtype and rank by the name of each argument; numbers have the rank -1."""
        found = {"x": ("float32", self.random.choice((1, 1, 1, 2)))}
        if self.random.random() < 0.5:
            found["y"] = (self.random.choice(("int64", "float32", "float64", "bool", "int32")), 1)
        if self.random.random() < 0.25:
            found["n"] = (self.random.choice(("int", "float", "str")), -1)
        return found

    def python_function(self, arguments: dict[str, tuple[str, int]], families: list[Family]) -> str:
        scope = self.scope()
        scope.locals = {
            name: scope.evaluate(self.argument(*kind, (3, 3)[: max(kind[1], 0)]))
            for name, kind in arguments.items()
        }
        scope.numbers = sum((family.numbers for family in families), scope.numbers[:8])
        scope.tests = sum((family.tests * 2 for family in families), scope.tests[:8])
        setting = Setting(
            constructs=sum((family.statements for family in families), ()),
            start=sum((family.start for family in families), START),
            most_lines=14,
        )
        return f"def f({', '.join(arguments)}):\n{self.body(scope, setting)}"

    def body(self, scope: Scope, setting: Setting) -> str:
        """The lines of the function; shorter than those of functions on tensors alone."""
        writer = FunctionWriter(scope, setting)
        for line in setting.start:
            if scope.execute(line):
                writer.write(line)
        writer.result = "x" if self.random.random() < 0.15 else None
        writer.block(2, 5)
        writer.write(f"return {returned(scope, self.random.randint(3, 6), ['x'])},")
        return "\n".join(writer.lines) + "\n"

    def argument(self, dtype: str, rank: int, shape: tuple[int, ...], special: bool = False) -> str:
        """The text of an argument."""
        if rank >= 0:
            return self.tensor_of(shape, dtype, special=special)
        values = {"int": ("1", "2", "3", "0"), "float": ("0.5", "0.1"), "str": ("'a'", "'1'")}
        return self.random.choice(values[dtype])

    def python_calls(self, arguments: dict[str, tuple[str, int]], gradients: bool) -> None:
        """Calls with A, B, A, special values, and of another size."""
        calls: list[str] = []
        for number, size in enumerate((3, 3, 3, 3, 5)):
            texts = [
                self.argument(*kind, (3, size)[-kind[1] :] if kind[1] > 0 else (), number == 3)
                for kind in arguments.values()
            ]
            calls.append(f"    yield ({', '.join(texts)},)\n")
        calls[2] = calls[0]
        self.parts.append("def calls():\n" + GRAD_MODE * gradients + "".join(calls))


def write_python(seed: int) -> str:
    """The module of a seed."""
    torch.manual_seed(seed)
    return PythonWriter(seed).text()


def random_python(first: int, count: int, machines: tuple[str, ...], seconds: float) -> Job[int]:
    """Functions of the seeds from `first` on."""

    def run(seed: int, note: Note) -> Outcome:
        note(WRITING)
        source = Source(f"seed {seed}", write_python(seed), seed, machines or ORACLES)
        outcome = try_program(source.program(), note)
        return replace(outcome, source="" if outcome.verdict == "equal" else source.text)

    return Job(range(first, first + count), run, lambda seed: f"seed {seed}", write_python, seconds)

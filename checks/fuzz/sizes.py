"""Random functions over sizes: one compiled function called with many sizes.

`write_sized(seed)` gives a Python module with a function `f`, whose arguments are tensors of sizes
`a` and `b` and Python numbers, and `calls()`: the same types, and other sizes in each call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from checks.fuzz import sized_templates, templates
from checks.fuzz.functions import machines_of
from checks.fuzz.outcome import Outcome
from checks.fuzz.reference import Counting, EndlessError
from checks.fuzz.scope import is_float, is_number, is_tensor, is_tensors
from checks.fuzz.source import Source
from checks.fuzz.trial import Note, try_program
from checks.fuzz.workers import WRITING, Job
from checks.fuzz.worlds import SLOT, Fitting, Worlds, same_types
from checks.fuzz.writer import HEADER

SAMPLES = ({"a": 5, "b": 3}, {"a": 8, "b": 7}, {"a": 2, "b": 6})
"""Sizes for which expressions are tried while they are written."""
SMALL = (0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 16, 17, 31)
LARGE = (67, 128, 257)
INDENT = "    "

ARGUMENTS = (
    ("rand(a, 4, seed=s)", 3), ("rand(b, 4, seed=s)", 2), ("rand(a, b, seed=s)", 2),
    ("rand(a, seed=s)", 2), ("rand(b, seed=s)", 1), ("rand(b, a, seed=s).t()", 1),
    ("rand(2, a, 4, seed=s)", 1), ("rand(a + 1, 4, seed=s)[1:]", 1), ("rand(4, seed=s)", 1),
    ("rand(2 * a, 2, seed=s)", 1),
)  # fmt: skip
OTHERS = (
    "ints(a, seed=s)", "ints(b, seed=s)", "rand(a, seed=s) > 0", "rand(b, seed=s) > 0.3",
    "a", "b", "a // 2", "b + 1", "s % 5", "a - 1",
)  # fmt: skip


@dataclass
class SizedWriter:
    """Writes the lines of a function."""

    worlds: Worlds
    lines: list[str] = field(default_factory=list[str])
    indent: int = 1
    depth: int = 0
    counters: list[int] = field(default_factory=lambda: [0])

    @property
    def random(self) -> random.Random:
        return self.worlds.random

    def write(self, line: str) -> None:
        self.lines.append(INDENT * self.indent + line)

    def fresh(self, letter: str) -> str:
        self.counters[0] += 1
        return f"{letter}{self.counters[0]}"

    def nested(self) -> SizedWriter:
        return SizedWriter(
            self.worlds.inner(), self.lines, self.indent + 1, self.depth + 1, self.counters
        )

    def block(self, least: int, most: int) -> None:
        before = len(self.lines)
        for _ in range(self.random.randint(least, most)):
            self.statement()
        if len(self.lines) == before:
            self.write("pass")

    def statement(self) -> None:
        choices = [*[self.value] * 4, *[self.assign] * 4, *[self.in_place] * 2, self.number]
        choices += [self.lists, self.lists, self.grow]
        if self.depth < 2 and len(self.lines) < 16:
            choices += [*[self.loop] * 4, *[self.branch] * 3, self.shrinking]
        self.random.choice(choices)()

    def assigned(self, name: str, found: Fitting) -> None:
        self.write(f"{name} = {found.text}")
        self.worlds.define(name, found.values)

    def value(self) -> None:
        test = is_float if self.random.random() < 0.7 else is_tensor
        found = self.worlds.expression(test, 3)
        if found.text not in self.worlds.locals[0]:
            self.assigned(self.fresh("v"), found)

    def assign(self) -> None:
        """A variable gets another value of its own type, which depends on its last one."""
        names = self.worlds.names(is_float)
        if not names:
            return
        name = self.random.choice(names)
        for _ in range(8):
            way = self.random.choice(sized_templates.ASSIGNMENTS)
            found = self.worlds.filled(way, 2, {"v": name})
            if found is not None and same_types(found.values, self.worlds.values(name)):
                return self.assigned(name, found)

    def in_place(self) -> None:
        group = (*sized_templates.IN_PLACE, *sized_templates.IN_PLACE, *templates.IN_PLACE)
        names = self.worlds.names(is_float)
        for _ in range(8):
            text = self.random.choice(group).replace("{x}", self.random.choice(names))
            operand = self.worlds.expression(is_float).text
            text = SLOT.sub(
                lambda m, o=operand: o if m[1] == "e" else self.worlds.slot(m[1], 1), text
            )
            if self.worlds.execute(text):
                return self.write(text)

    def number(self) -> None:
        text = self.worlds.number(2)
        values = self.worlds.evaluate(text)
        if values is not None:
            self.assigned(self.fresh("n"), Fitting(text, values))

    def lists(self) -> None:
        names = self.worlds.names(is_tensors)
        if not names or self.random.random() < 0.4:
            found = self.worlds.filled(self.random.choice(sized_templates.LISTS), 1)
            if found is not None and all(map(is_tensors, found.values)):
                self.assigned(self.fresh("l"), found)
            return
        name = self.random.choice(names)
        way = self.random.choice(sized_templates.LIST_CHANGES).replace("{l}", name)
        way = SLOT.sub(lambda m: self.worlds.slot(m[1], 1), way)
        if self.worlds.execute(way):
            self.write(way)

    def grow(self) -> None:
        """A tensor gets longer."""
        names = self.worlds.names(is_float)
        if not names:
            return
        name = self.random.choice(names)
        for _ in range(5):
            found = self.worlds.filled(self.random.choice(sized_templates.GROWN), 1, {"v": name})
            if found is not None:
                return self.assigned(name, found)

    def branch(self) -> None:
        self.write(f"if {self.worlds.test()}:")
        self.nested().block(1, 3)
        if self.random.random() < 0.5:
            self.write("else:")
            self.nested().block(1, 3)

    def loop(self) -> None:
        names = {letter: self.fresh(letter) for letter in "irq"}
        for _ in range(6):
            head, _, source = self.random.choice(sized_templates.LOOPS).partition(" in ")
            found = self.worlds.filled(f"list({source})", 1)
            if found is None or any(not 0 < len(items) <= 24 for items in found.values):
                continue
            head = SLOT.sub(lambda m: names[m[1]], head)
            inner = self.nested()
            targets = head.split(", ")
            for number, target in enumerate(targets):
                items = [v[-1] if len(targets) == 1 else v[-1][number] for v in found.values]
                inner.worlds.define(target, items)
            self.write(f"for {head} in {found.text[5:-1]}:")
            inner.block(1, 3)
            if self.random.random() < 0.15:
                inner.write(f"if {inner.worlds.test()}:")
                inner.write(INDENT + self.random.choice(("break", "continue")))
            return

    def shrinking(self) -> None:
        """A loop that ends when a tensor has become small, or a number."""
        names = self.worlds.names(lambda v: is_float(v) and v.dim() > 0)
        if not names:
            return
        name = self.random.choice(names)
        ways = (
            (f"len({name}) > 1", f"{name} = {name}[1:]"),
            (f"{name}.shape[0] > 2", f"{name} = {name}[: {name}.shape[0] // 2]"),
            (f"{name}.shape[0] > 1", f"{name} = {name}[::2] * 0.5"),
        )
        test, last = self.random.choice(ways)
        self.write(f"while {test}:")
        inner = self.nested()
        inner.block(0, 2)
        if inner.lines[-1].strip() == "pass":
            inner.lines.pop()
        inner.write(last)


def write_sized(seed: int) -> str:
    """The first module of this seed whose function eager can call with most of the sizes."""
    for attempt in range(8):
        text = _written(random.Random(f"{seed}.{attempt}"))
        if _good_calls(text):
            return text
    return text  # pyright: ignore[reportPossiblyUnboundVariable]


def _written(draw: random.Random) -> str:
    namespace: dict[str, Any] = {}
    weights = "W = rand(4, 4, seed=1)\nU = rand(4, seed=2)\nV = rand(3, 4, seed=3)\n"
    exec(HEADER + weights, namespace)
    parts = [HEADER, weights]
    kinds = draw.choices([t for t, _ in ARGUMENTS], [w for _, w in ARGUMENTS], k=draw.randint(1, 3))
    kinds += draw.sample(OTHERS, draw.randint(0, 3))
    names = "xyzuvwpq"[: len(kinds)]
    locals: list[dict[str, Any]] = []
    for number, sizes in enumerate(SAMPLES):
        given = [eval(kind, namespace, {**sizes, "s": number}) for kind in kinds]
        locals.append(dict(zip(names, given, strict=True)))
    worlds = Worlds(
        draw, namespace, locals, ("W", "W", "U", "V", "W[:2]", "W.t()"), draw.random() < 0.4
    )
    if draw.random() < 0.25:
        parts.append(_recursive(draw, worlds))
    writer = SizedWriter(worlds)
    writer.block(1, 4)
    last = _returned(worlds)
    parts.append(
        "\n".join([f"def f({', '.join(names)}):", *writer.lines, f"    return {last}", ""])
    )
    lines = "".join(writer.lines)
    small, large = (SMALL[:7], SMALL[7:9]) if "r(" in lines or "while " in lines else (SMALL, LARGE)
    calls = _calls(draw, kinds, small, large[:1] if "for " in lines else large)
    return "\n\n".join([*parts, calls])


def _recursive(draw: random.Random, worlds: Worlds) -> str:
    """A recursive function `r` of a tensor, which the worlds may call from now on."""
    one = draw.choice(("x", "x * 2", "torch.tanh(x)", "x @ W", "x + U", "torch.tanh(x @ W + U)"))
    text = draw.choice(sized_templates.RECURSIVE).format(
        one=one, row=draw.choice(("0.5", "U", "x[0].sigmoid()"))
    )
    exec(text, worlds.globals)
    worlds.helpers = ("r({f}[:9])", "r(torch.zeros({n} % 7, 4) + {c})")
    return text


def _returned(worlds: Worlds) -> str:
    names = worlds.names(lambda v: is_tensor(v) or is_number(v) or is_tensors(v))
    chosen = worlds.random.sample(names, min(len(names), 4))
    return ", ".join(dict.fromkeys([*chosen, *names[-2:]])) + ","


def _calls(
    draw: random.Random, kinds: list[str], small: Sequence[int], large: Sequence[int]
) -> str:
    """Small sizes with 0 and 1 among them, and large ones."""
    pairs = [(5, 3), (7, 4), (1, 3), (6, 1), (0, 5), (4, 0), (4, 4), (1, 1)]
    pairs += [(draw.choice(small), draw.choice(small)) for _ in range(3)]
    pairs += [(draw.choice(large), draw.choice(small))]
    if draw.random() < 0.5:
        draw.shuffle(pairs)
    lines = ["def calls():", f"    for s, (a, b) in enumerate({pairs!r}):"]
    return "\n".join([*lines, f"        yield ({', '.join(kinds)},)", ""])


def _good_calls(text: str) -> bool:
    """Whether eager computes most of the calls."""
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    failed = 0
    with torch.no_grad():
        for args in namespace["calls"]():
            try:
                with Counting():
                    namespace["f"](*args)
            except EndlessError:
                return False
            except Exception:  # whatever a function raises for sizes that do not fit
                failed += 1
    return failed <= 4


def random_sizes(first: int, count: int, machines: tuple[str, ...], seconds: float) -> Job[int]:
    """Functions over sizes of the seeds from `first` on; every third one makes only those sizes
    symbols that have been seen to differ."""

    def run(seed: int, note: Note) -> Outcome:
        note(WRITING)
        source = sized_source(seed, machines_of(seed, machines))
        outcome = try_program(source.program(), note)
        return replace(outcome, source="" if outcome.verdict == "equal" else source.text)

    return Job(range(first, first + count), run, lambda seed: f"seed {seed}", write_sized, seconds)


def sized_source(seed: int, machines: tuple[str, ...], text: str | None = None) -> Source:
    """The function of a seed, or what is left of it."""
    dynamic = None if seed % 3 == 0 else True
    text = write_sized(seed) if text is None else text
    return Source(f"seed {seed}", text, seed, machines, dynamic, goes_on=True)

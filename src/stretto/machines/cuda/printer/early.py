"""Splits the text of a kernel in two: loads of constants, and the rest.

What a task loads of constants at places that only its number decides can be loaded before the task
may begin: ahead of its wait, so that the load is under way meanwhile, or ahead of the loop around
it, so that the weights stay in the registers of the unit that uses them in every iteration. Each
line of a printed kernel at the top level gives a name to one value, so the split is one of lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from stretto.machines.cuda.printer.kernel import TritonKernel

LEAST_BYTES = 2048
"""Less than this of a unit is not worth a text of its own."""
INDENT = "    "
_LINE = re.compile(r"    ([A-Za-z_]\w*) = (.*)")
_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*) [+]?= ")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_ARANGE = re.compile(r"tl\.arange\(0, (\d+)\)(\[:, None\]|\[None, :\])?")
_LOAD = re.compile(r"(?:\()?tl\.load\((\w+)\b")
_WORDS = ("tl", "None", "True", "False", "float", "mask", "other")
_EFFECTS = ("tl.load", "stretto_checked", "tl.atomic", "control")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EarlyKernel:
    """A kernel in two functions.

    early: text from the parameter list on, (constants ..., task), returns `values`. body: the rest,
    (buffers ..., registers ..., control, task, values ...). constants: the arguments of `early`, as
    places in the kernel's buffers. nbytes: what the values take in registers.
    """

    early: str
    body: str
    constants: tuple[int, ...]
    values: tuple[str, ...]
    nbytes: int


def split_early(kernel: TritonKernel) -> EarlyKernel | None:
    """The two functions of a kernel; None where it has nothing to load early."""
    head, *lines = kernel.body.rstrip("\n").split("\n")
    parameters = [name.strip() for name in head[1 : head.index(")")].split(",")]
    constants = {
        name: place
        for place, (name, buffer) in enumerate(zip(parameters, kernel.buffers, strict=False))
        if buffer.kind == "constant"
    }
    shapes: dict[str, Shape] = {"task": (), **dict.fromkeys(constants, ())}
    once = Counter(found.group(1) for line in lines if (found := _ASSIGNED.match(line)))
    pure: dict[str, str] = {}
    chosen: dict[str, str] = {}
    nbytes = 0
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        name, text = found.groups()
        used = names_in(text)
        if once[name] > 1 or not used <= shapes.keys():
            continue
        shape = _shape(text, used, shapes)
        if not any(effect in text for effect in _EFFECTS):
            shapes[name] = shape
            pure[name] = text
            continue
        load = _LOAD.match(text)
        if load is not None and load.group(1) in constants and text.count("tl.load") == 1:
            chosen[name] = text
            itemsize = kernel.buffers[constants[load.group(1)]].dtype.itemsize
            nbytes += prod(shape) * max(itemsize, 4)
    if nbytes < LEAST_BYTES:
        return None
    needed = _closure(chosen.values(), pure)
    sources = {name for text in chosen.values() for name in names_in(text) & constants.keys()}
    places = tuple(sorted(constants[name] for name in sources))
    arguments = ", ".join([*(parameters[place] for place in places), "task"])
    early = [f"({arguments}):"]
    early += [f"{INDENT}{name} = {text}" for name, text in pure.items() if name in needed]
    early += [f"{INDENT}{name} = {text}" for name, text in chosen.items()]
    early.append(f"{INDENT}return {', '.join(chosen)}")
    rest = [line for line in lines if not _is_one_of(line, chosen)]
    body = [f"({', '.join([*parameters, *chosen])}):", *rest]
    return EarlyKernel(
        "\n".join(early) + "\n", "\n".join(body) + "\n", places, tuple(chosen), nbytes
    )


def names_in(text: str) -> set[str]:
    """The names of an expression, without those of Triton and of functions."""
    return {n for n in _NAME.findall(text) if n not in _WORDS and not n.startswith("stretto_")}


def _is_one_of(line: str, chosen: dict[str, str]) -> bool:
    found = _LINE.fullmatch(line)
    return found is not None and chosen.get(found.group(1)) == found.group(2)


def _shape(text: str, used: set[str], shapes: dict[str, Shape]) -> Shape:
    """The shape of an expression: what its names and ranges broadcast to."""
    found = [shapes[name] for name in used]
    for size, axis in _ARANGE.findall(text):
        match axis:
            case "[:, None]":
                found.append((int(size), 1))
            case "[None, :]":
                found.append((1, int(size)))
            case _:
                found.append((int(size),))
    rank = max((len(shape) for shape in found), default=0)
    full = [(1,) * (rank - len(shape)) + shape for shape in found]
    return tuple(max(sizes) for sizes in zip(*full, strict=True))


def _closure(texts: Iterable[str], pure: dict[str, str]) -> set[str]:
    """The names of `pure` that some texts need, by others too."""
    found: set[str] = set()
    waiting = [name for text in texts for name in names_in(text) if name in pure]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [n for n in names_in(pure[name]) if n in pure]
    return found


@dataclass(slots=True)
class EarlyLoads:
    """What is loaded early at a point of the text.

    budget: bytes of registers for it. names: by kernel, the variables that hold its values. most:
    kernels that may still be split, since each is text of its own wherever it runs.
    """

    budget: int = 0
    most: int = 24
    splits: dict[str, EarlyKernel] = field(default_factory=dict[str, EarlyKernel])
    names: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def values(self, kernel: str) -> list[str] | None:
        return self.names.get(kernel)

    def take(self, text: TritonKernel, kernel: str) -> EarlyKernel | None:
        """A kernel's two functions, where there are registers for its values."""
        if kernel not in self.splits:
            made = split_early(text) if self.most else None
            if made is None:
                return None
            self.splits[kernel] = made
            self.most -= 1
        split = self.splits[kernel]
        return split if split.nbytes <= self.budget else None

    def hold(self, kernel: str, names: list[str]) -> None:
        self.names[kernel] = names
        self.budget -= self.splits[kernel].nbytes

    def drop(self, kept: Iterable[str]) -> None:
        """All but the kernels `kept` give their registers back."""
        for kernel in [name for name in self.names if name not in set(kept)]:
            del self.names[kernel]
            self.budget += self.splits[kernel].nbytes

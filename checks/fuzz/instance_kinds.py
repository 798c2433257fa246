"""Kinds of data in random programs for one instance, and random classes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Plain:
    """int, float, bool or str."""

    name: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor; `rows`: its first dim has a length of each instance's own, before `shape`."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point


@dataclass(frozen=True, slots=True)
class Listed:
    item: Kind


@dataclass(frozen=True, slots=True)
class Pair:
    items: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A dict from ints."""

    item: Kind


@dataclass(frozen=True, slots=True)
class Maybe:
    item: Kind


@dataclass(frozen=True, slots=True)
class Record:
    """An object of a class of the module."""

    name: str


@dataclass(frozen=True, slots=True)
class Either:
    """An object of one of several classes."""

    names: tuple[str, ...]


Kind = Plain | Tensor | Listed | Pair | Table | Maybe | Record | Either

INT, FLOAT, BOOL, STR = (Plain(name) for name in ("int", "float", "bool", "str"))
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool)
SHAPES = ((), (3,), (4,), (1,), (2, 3), (3, 2), (0,), (2, 0), (1, 3))
VECTOR = Tensor(torch.float32, (3,))


@dataclass(frozen=True, slots=True)
class Class:
    """A class; `style` is "dataclass", "frozen", "named" (a named tuple) or "object"."""

    name: str
    style: str
    fields: dict[str, Kind]

    def source(self) -> str:
        held = [f"    {name}: {annotation(kind)!r}" for name, kind in self.fields.items()]
        if self.style == "named":
            return "\n".join([f"class {self.name}(NamedTuple):", *held])
        if self.style == "object":
            names = ", ".join(self.fields)
            stored = [f"        self.{name} = {name}" for name in self.fields]
            return "\n".join([f"class {self.name}:", f"    def __init__(self, {names}):", *stored])
        argument = "(frozen=True, eq=False)" if self.style == "frozen" else "(eq=False)"
        return "\n".join([f"@dataclass{argument}", f"class {self.name}:", *held])


def annotation(kind: Kind) -> str:
    match kind:
        case Plain(name) | Record(name):
            return name
        case Tensor():
            return "torch.Tensor"
        case Listed(item):
            return f"list[{annotation(item)}]"
        case Pair(items):
            return f"tuple[{', '.join(map(annotation, items))}]"
        case Table(item):
            return f"dict[int, {annotation(item)}]"
        case Maybe(item):
            return f"{annotation(item)} | None"
        case Either(names):
            return " | ".join(names)


def random_tensor(rng: random.Random) -> Tensor:
    if rng.random() < 0.1:
        return Tensor(torch.float32, (3,), rows=True)
    dtype = torch.float32 if rng.random() < 0.6 else rng.choice(DTYPES)
    return Tensor(dtype, (3,) if rng.random() < 0.4 else rng.choice(SHAPES))


def random_kind(rng: random.Random, names: tuple[str, ...], depth: int = 2) -> Kind:
    """A kind of data; `names`: classes that it may hold, below what may be empty."""
    draw = rng.random()
    if depth == 0 or draw < 0.35:
        return rng.choice((INT, INT, FLOAT, BOOL, STR))
    if draw < 0.6:
        return random_tensor(rng)
    if draw < 0.75:
        if names and rng.random() < 0.5:
            return Listed(random_class(rng, names))
        return Listed(random_kind(rng, names, depth - 1))
    if draw < 0.8:
        return Pair(tuple(random_kind(rng, (), depth - 1) for _ in range(rng.randint(1, 3))))
    if draw < 0.84:
        return Table(random_kind(rng, (), depth - 1))
    if names:
        return Maybe(random_class(rng, names))
    inner = random_kind(rng, (), depth - 1)
    return inner if isinstance(inner, Maybe) else Maybe(inner)


def random_class(rng: random.Random, names: tuple[str, ...]) -> Kind:
    if len(names) > 1 and rng.random() < 0.5:
        return Either(tuple(rng.sample(names, 2)))
    return Record(rng.choice(names))


def random_classes(rng: random.Random) -> dict[str, Class]:
    """Classes, each of which may hold all of them."""
    names = ("Alpha", "Beta", "Gamma")[: rng.randint(1, 3)]
    found: dict[str, Class] = {}
    for name in names:
        fields = {f"f{n}": random_kind(rng, names) for n in range(rng.randint(2, 4))}
        if rng.random() < 0.8:
            fields["h"] = VECTOR
        if rng.random() < 0.7:
            fields["next"] = Maybe(random_class(rng, names))
        found[name] = Class(
            name, rng.choice(("dataclass", "dataclass", "frozen", "named", "object")), fields
        )
    return found


def parts(
    kind: Kind, classes: dict[str, Class], text: str, depth: int
) -> Iterator[tuple[str, Kind]]:
    """Expressions for what a value surely holds, and what they are."""
    yield text, kind
    if depth == 0:
        return
    if isinstance(kind, Record):
        for name, held in classes[kind.name].fields.items():
            yield from parts(held, classes, f"{text}.{name}", depth - 1)
    elif isinstance(kind, Pair):
        for place, held in enumerate(kind.items):
            yield from parts(held, classes, f"{text}[{place}]", depth - 1)


def make(kind: Kind, depth: str = "d") -> str:
    """The expression that makes a value at random: `r` draws, `depth` levels may follow."""
    match kind:
        case Plain("int"):
            return "r.randint(-3, 5)"
        case Plain("float"):
            return "r.randint(-8, 8) / 4"
        case Plain("bool"):
            return "(r.random() < 0.5)"
        case Plain():
            return "r.choice(('a', 'bc', ''))"
        case Tensor(dtype, shape, rows):
            length = "r.choice((0, 1, 2, 5)), " if rows else ""
            sizes = "".join(f"{size}, " for size in shape)
            return f"tensor(r, {dtype}, ({length}{sizes}))"
        case Listed(item):
            most = "(r.randint(0, 3) if d > 0 else 0)" if nested(item) else "r.randint(0, 3)"
            return f"[{make(item, depth)} for _ in range({most})]"
        case Pair(items):
            return f"({''.join(make(item, depth) + ', ' for item in items)})"
        case Table(item):
            return f"{{k: {make(item, depth)} for k in r.sample(range(4), r.randint(0, 3))}}"
        case Maybe(item):
            chance = "d <= 0 or r.random() < 0.25" if nested(item) else "r.random() < 0.4"
            return f"(None if {chance} else {make(item, depth)})"
        case Record(name):
            return f"make{name}(r, {depth} - 1)"
        case Either(names):
            return f"r.choice(({', '.join(f'make{name}' for name in names)}))(r, {depth} - 1)"


def nested(kind: Kind) -> bool:
    """Whether a value of this kind holds objects."""
    match kind:
        case Record() | Either():
            return True
        case Listed(item) | Table(item) | Maybe(item):
            return nested(item)
        case _:
            return False

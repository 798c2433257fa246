"""Random classes for programs of one instance: what their fields hold, and how objects are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.fuzz.choices import Choices

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
SHAPES = ((), (3,), (4,), (1,), (2, 3), (3, 2), (0,), (2, 0), (1, 3))
STYLES = ("dataclass", "dataclass", "frozen", "named", "object")
PLAIN = {
    "int": ("r.randint(-3, 5)", "0"),
    "float": ("r.randint(-8, 8) / 4", "0.5"),
    "bool": ("(r.random() < 0.5)", "True"),
    "str": ("r.choice(('a', 'bc', ''))", "'a'"),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """Data that a field holds. make: an expression that makes a value at random, with `r` to draw
    and `d` levels below. plain: a value. nested: it holds objects of classes of the program."""

    annotation: str
    make: str
    plain: str
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Class:
    """A class; `style` is one of STYLES."""

    name: str
    style: str
    fields: dict[str, Kind]

    def source(self) -> str:
        held = [f"    {name}: {kind.annotation!r}" for name, kind in self.fields.items()]
        if self.style == "named":
            return "\n".join([f"class {self.name}(NamedTuple):", *held])
        if self.style == "object":
            names = ", ".join(self.fields)
            stored = [f"        self.{name} = {name}" for name in self.fields]
            return "\n".join([f"class {self.name}:", f"    def __init__(self, {names}):", *stored])
        argument = "(frozen=True, eq=False)" if self.style == "frozen" else "(eq=False)"
        return "\n".join([f"@dataclass{argument}", f"class {self.name}:", *held])

    def maker(self) -> str:
        """A function that makes an object at random; it may be one made before, which several
        instances of a batch then share."""
        given = ", ".join(kind.make for kind in self.fields.values())
        return (
            f"def make{self.name}(r, d):\n"
            f"    if r.random() < 0.12 and {self.name!r} in MADE:\n"
            f"        return r.choice(MADE[{self.name!r}])\n"
            f"    found = {self.name}({given})\n"
            f"    MADE.setdefault({self.name!r}, []).append(found)\n"
            f"    return found\n"
        )


def tensor(dtype: str, shape: Sequence[int], rows: bool = False) -> Kind:
    """A tensor; rows: its first dim has a length of each instance's own, before `shape`."""
    sizes = "".join(f"{size}, " for size in shape)
    length = "r.choice((0, 1, 2, 5)), " if rows else ""
    plain = f"torch.zeros(({'2, ' * rows}{sizes}), dtype=torch.{dtype})"
    return Kind("torch.Tensor", f"tensor(r, torch.{dtype}, ({length}{sizes}))", plain)


VECTOR = tensor("float32", (3,))


def random_kind(draw: Choices, names: Sequence[str], depth: int = 2) -> Kind:
    """A kind of data; `names`: classes that it may hold, below what may be empty."""
    sort = draw.number(0, 99)
    if depth == 0 or sort < 35:
        annotation = draw.one_of(("int", "int", "float", "bool", "str"))
        return Kind(annotation, *PLAIN[annotation])
    if sort < 60:
        if draw.chance(0.1):
            return tensor("float32", (3,), rows=True)
        dtype = draw.one_of(DTYPES) if draw.chance(0.4) else "float32"
        return tensor(dtype, draw.one_of(SHAPES) if draw.chance(0.6) else (3,))
    if sort < 75:
        of_objects = names and draw.chance(0.5)
        inner = random_object(draw, names) if of_objects else random_kind(draw, names, depth - 1)
        most = "(r.randint(0, 3) if d > 0 else 0)" if inner.nested else "r.randint(0, 3)"
        make = f"[{inner.make} for _ in range({most})]"
        return Kind(f"list[{inner.annotation}]", make, "[]", inner.nested)
    if sort < 80:
        items = [random_kind(draw, (), depth - 1) for _ in range(draw.number(1, 3))]
        make = f"({''.join(item.make + ', ' for item in items)})"
        plain = f"({''.join(item.plain + ', ' for item in items)})"
        return Kind(f"tuple[{', '.join(item.annotation for item in items)}]", make, plain)
    if sort < 84:
        inner = random_kind(draw, (), depth - 1)
        make = f"{{k: {inner.make} for k in r.sample(range(4), r.randint(0, 3))}}"
        return Kind(f"dict[int, {inner.annotation}]", make, "{}")
    return maybe(random_object(draw, names) if names else random_kind(draw, (), depth - 1))


def random_object(draw: Choices, names: Sequence[str]) -> Kind:
    """An object of one class, or of one of two."""
    chosen = draw.sample(names, 2 if len(names) > 1 and draw.chance(0.5) else 1)
    makers = [f"make{name}" for name in chosen]
    maker = makers[0] if len(makers) == 1 else f"r.choice(({', '.join(makers)}))"
    return Kind(" | ".join(chosen), f"{maker}(r, d - 1)", "None", True)


def maybe(kind: Kind) -> Kind:
    """A kind of data, or None."""
    if kind.annotation.endswith("None"):
        return kind
    chance = "d <= 0 or r.random() < 0.25" if kind.nested else "r.random() < 0.4"
    make = f"(None if {chance} else {kind.make})"
    return Kind(f"{kind.annotation} | None", make, "None", kind.nested)


def random_classes(draw: Choices) -> list[Class]:
    """Classes, each of which may hold all of them."""
    names = ("Alpha", "Beta", "Gamma")[: draw.number(1, 3)]
    found: list[Class] = []
    for name in names:
        fields = {f"f{n}": random_kind(draw, names) for n in range(draw.number(2, 4))}
        if draw.chance(0.8):
            fields["h"] = VECTOR
        if draw.chance(0.7):
            fields["next"] = maybe(random_object(draw, names))
        found.append(Class(name, draw.one_of(STYLES), fields))
    return found

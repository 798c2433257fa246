"""Writes random programs for one instance: `main(item, n)` over random classes, and batches of
instances for it.

A program has recursion over what instances hold, loops, branches on values of tensors, stacks,
closures, `match`, early returns, and gives data of any structure. It does not change its instance,
which a batch refuses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from checks.fuzz.instance_expressions import Expressions
from checks.fuzz.instance_kinds import (
    BOOL,
    INT,
    VECTOR,
    Class,
    Either,
    Kind,
    Listed,
    Maybe,
    Pair,
    Record,
    Tensor,
    make,
    parts,
    random_class,
    random_classes,
    random_kind,
)

INDENT = "    "

PRELUDE = '''
from __future__ import annotations
import random
from dataclasses import dataclass
from typing import NamedTuple
import torch

def tensor(r, dtype, shape):
    """A tensor at random: contiguous, a view with an offset, transposed, or one made before."""
    key = dtype, shape
    if key in MADE and r.random() < 0.2:
        return r.choice(MADE[key])
    kind = r.randrange(4)
    count = torch.Size(shape).numel()
    values = [r.randint(-8, 8) / (4 if dtype.is_floating_point else 1) for _ in range(count + 2)]
    flat = torch.tensor(values).to(dtype)
    if kind == 0 and len(shape) > 1:
        found = flat[2:].reshape(shape[::-1]).permute(*reversed(range(len(shape))))
    elif kind == 1:
        found = flat[2:].view(shape)
    elif kind == 2 and shape and shape[0] > 0:
        found = flat[:1].expand(shape)
    else:
        found = flat[2:].reshape(shape).clone()
    MADE.setdefault(key, []).append(found)
    return found

MADE = {}
'''


@dataclass
class Writer(Expressions):
    """Writes functions."""

    lines: list[str] = field(default_factory=list[str])
    indent: int = 0
    depth: int = 0
    loops: int = 0
    count: int = 0
    result: Kind = INT
    """What the function returns."""

    def line(self, text: str) -> None:
        self.lines.append(INDENT * self.indent + text)

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        """What is inside; names that it binds are not known behind it."""
        self.line(head)
        self.indent, self.depth = self.indent + 1, self.depth + 1
        before, start = dict(self.scope), len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.indent, self.depth = self.indent - 1, self.depth - 1
        self.scope = before

    @contextmanager
    def loop(self, head: str, bound: dict[str, Kind]) -> Generator[None]:
        self.loops += 1
        before = dict(self.scope)
        self.scope |= bound
        with self.block(head):
            yield
        self.scope = before
        self.loops -= 1

    # ---- statements

    def body(self, length: int) -> None:
        for _ in range(length):
            self.statement()

    def statement(self) -> None:
        options = [self.assignment] * 6 + [self.appending] * 2 + [self.update] * 3
        if self.depth < 3:
            options += [self.branch] * 3 + [self.for_loop] * 3 + [self.while_loop, self.stack]
            options += [self.closure, self.unwrapped, self.unwrapped, self.match, self.match]
            options += [self.early_return]
        if self.loops:
            options.append(self.jump)
        self.random.choice(options)()

    def new_kind(self) -> Kind:
        names = tuple(self.classes)
        draw = self.random.random()
        if draw < 0.25:
            return VECTOR
        if draw < 0.35 and self.scope:
            return self.random.choice(list(self.scope.values()))
        if draw < 0.45:
            return random_class(self.random, names)
        if draw < 0.55:
            return Listed(VECTOR)
        return random_kind(self.random, names, 2)

    def assignment(self) -> None:
        kind, name = self.new_kind(), self.fresh()
        self.line(f"{name} = {self.of(kind, 3)}")
        self.scope[name] = kind

    def update(self) -> None:
        """Another value for a variable, as loops have it."""
        names = [n for n in self.scope if n.startswith("v")]
        if not names:
            return self.assignment()
        name = self.random.choice(names)
        kind = self.scope[name]
        text = self.of(kind, 2)
        if kind == VECTOR:
            text = f"torch.tanh({name} + {text})"
        elif kind == INT:
            text = f"({name} + {text}) % 11"
        self.line(f"{name} = {text}")

    def own_list(self) -> tuple[str, Kind]:
        """A list that the function has made."""
        kind = self.random.choice((VECTOR, INT, self.new_kind()))
        name = self.fresh()
        self.line(f"{name} = [{self.of(kind, 1)}]")
        self.scope[name] = Listed(kind)
        return name, kind

    def appending(self) -> None:
        name, kind = self.own_list()
        head = self.random.choice(
            (f"for _ in range({self.of(INT)} % 4):", f"if {self.of(BOOL)}:", "for _ in range(2):")
        )
        with self.block(head):
            self.line(f"{name}.append({self.of(kind)})")
        if self.random.random() < 0.3:
            self.line(f"{name}.reverse()")

    def stack(self) -> None:
        """A stack that is worked off; what is pushed decides how long."""
        name, kind = self.own_list()
        count, item = self.fresh(), self.fresh()
        self.line(f"{count} = 0")
        with self.loop(f"while {name} and {count} < 5:", {}):
            self.line(f"{count} += 1")
            self.line(f"{item} = {name}.pop()")
            self.scope |= {item: kind, count: INT}
            with self.block(f"if {self.of(BOOL)}:"):
                self.line(f"{name}.append({self.of(kind)})")
            self.body(self.random.randint(0, 2))
        self.scope[count] = INT

    def branch(self) -> None:
        with self.block(f"if {self.of(BOOL)}:"):
            self.body(self.random.randint(1, 3))
        if self.random.random() < 0.3:
            with self.block(f"elif {self.of(BOOL)}:"):
                self.body(1)
        if self.random.random() < 0.6:
            with self.block("else:"):
                self.body(self.random.randint(1, 2))

    def unwrapped(self) -> None:
        """What may be None, where it is not."""
        maybe = self.some(Maybe)
        if not isinstance(maybe, Maybe):
            return self.branch()
        name = self.fresh()
        self.line(f"{name} = {self.of(maybe, 0)}")
        with self.block(f"if {name} is not None:"):
            self.scope[name] = maybe.item
            self.body(self.random.randint(1, 3))
        if self.random.random() < 0.4:
            with self.block("else:"):
                self.body(1)
        return None

    def match(self) -> None:
        either = self.some(Either)
        if not isinstance(either, Either):
            return self.branch()
        subject = self.of(either, 0)
        with self.block(f"match {subject}:"):
            for name in self.random.sample(either.names, len(either.names)):
                fields = self.classes[name].fields
                chosen = self.random.sample(
                    list(fields), min(len(fields), self.random.randint(0, 2))
                )
                bound = {self.fresh(): fields[key] for key in chosen}
                given = ", ".join(f"{k}={v}" for k, v in zip(chosen, bound, strict=True))
                guard = f" if {self.of(BOOL, 1)}" if self.random.random() < 0.2 else ""
                with self.block(f"case {name}({given}){guard}:"):
                    self.scope |= bound
                    self.body(self.random.randint(1, 2))
            if self.random.random() < 0.7:
                with self.block("case _:"):
                    self.body(1)
        return None

    def for_loop(self) -> None:
        rng = self.random
        name, other = self.fresh(), self.fresh()
        held = self.some(Listed, Listed(VECTOR))
        assert isinstance(held, Listed)
        text = f"{self.of(held, 1)}[:3]"
        rows = Tensor(torch.float32, (3,), rows=True)
        heads: list[tuple[str, dict[str, Kind]]] = [
            (f"for {name} in range({self.of(INT)} % 4):", {name: INT}),
            (f"for {name} in {text}:", {name: held.item}),
            (f"for {name} in reversed({text}):", {name: held.item}),
            (f"for {name}, {other} in enumerate({text}):", {name: INT, other: held.item}),
            (f"for {name}, {other} in zip({text}, {text}):", {name: held.item, other: held.item}),
            (f"for {name} in {self.of(rows, 1)}:", {name: VECTOR}),
        ]
        state = self.fresh()
        self.line(f"{state} = {self.of(VECTOR)}")
        self.scope[state] = VECTOR
        head, bound = rng.choice(heads)
        with self.loop(head, bound):
            self.body(rng.randint(1, 2))
            self.line(f"{state} = torch.tanh(L33({state}) + {self.of(VECTOR)})")
        if rng.random() < 0.15:
            with self.block("else:"):
                self.body(1)

    def while_loop(self) -> None:
        """Ends by a value of a tensor, or by its count."""
        state, count = self.fresh(), self.fresh()
        self.line(f"{state} = {self.of(VECTOR)}")
        self.line(f"{count} = 0")
        self.scope |= {state: VECTOR, count: INT}
        with self.loop(f"while {state}.abs().sum() > 0.75 and {count} < 4:", {}):
            self.line(f"{count} += 1")
            self.body(self.random.randint(0, 2))
            self.line(f"{state} = {state} * 0.5 + {self.of(VECTOR)} * 0.125")

    def early_return(self) -> None:
        with self.block(f"if {self.of(BOOL)}:"):
            self.line(f"return {self.of(self.result)}")

    def jump(self) -> None:
        with self.block(f"if {self.of(BOOL)}:"):
            self.line(self.random.choice(("break", "continue")))

    def closure(self) -> None:
        """A function that reads what is around it."""
        name, parameter = self.fresh(), self.fresh()
        takes, gives = self.random.choice((VECTOR, INT)), self.random.choice((VECTOR, INT, BOOL))
        outer = self.loops, self.result, self.functions
        self.loops, self.result = 0, gives
        with self.block(f"def {name}({parameter}):"):
            self.scope[parameter] = takes
            self.body(self.random.randint(0, 2))
            self.line(f"return {self.of(gives)}")
        self.loops, self.result, functions = outer
        if self.depth == 1:  # it is bound from here on
            self.functions = {**functions, name: ((takes,), gives)}


def recursive(
    writer: Writer, name: str, kind: Kind, result: Kind, classes: dict[str, Class]
) -> None:
    """A function that calls itself on what its instance holds. It ends by the second parameter."""
    rng = writer.random
    top = dict(writer.functions)
    writer.line(f"def {name}(item, n):")
    writer.indent, writer.depth, writer.result = 1, 1, result
    writer.scope = {"item": kind, "n": INT}
    writer.line("if n <= 0:")
    writer.line(f"    return {writer.of(result, 1)}")
    if isinstance(kind, Maybe):
        writer.line("if item is None:")
        writer.line(f"    return {writer.of(result, 1)}")
        writer.scope["item"] = kind.item
    writer.body(rng.randint(0, 1))
    kinds = [writer.scope["item"]]
    if isinstance(kinds[0], Either):
        chosen = rng.choice(kinds[0].names)
        writer.line(f"if not isinstance(item, {chosen}):")
        writer.line(f"    return {writer.of(result, 1)}")
        kinds = [Record(chosen)]
        writer.scope["item"] = kinds[0]
    inner = kind.item if isinstance(kind, Maybe) else kind
    for text, part in list(parts(kinds[0], classes, "item", 1)):
        if part in (kind, inner):
            if text != "item":
                found = writer.fresh()
                writer.line(f"{found} = {name}({text}, n - 1)")
                writer.scope[found] = result
        elif isinstance(part, Listed) and part.item in (kind, inner):
            found = writer.fresh()
            writer.line(f"{found} = [{name}(e, n - 1) for e in {text}]")
            writer.scope[found] = Listed(result)
    writer.body(rng.randint(0, 2))
    writer.line(f"return {writer.of(result, 3)}")
    writer.indent = writer.depth = 0
    writer.functions = {**top, name: ((kind, INT), result)}
    writer.line("")


def makers(classes: dict[str, Class]) -> Iterator[str]:
    """A function per class that makes an object at random; it may be one made before, which
    several instances of a batch then share."""
    for name, one in classes.items():
        given = ", ".join(make(kind) for kind in one.fields.values())
        yield (
            f"def make{name}(r, d):\n"
            f"    if r.random() < 0.12 and {name!r} in MADE:\n"
            f"        return r.choice(MADE[{name!r}])\n"
            f"    found = {name}({given})\n"
            f"    MADE.setdefault({name!r}, []).append(found)\n"
            f"    return found\n"
        )


def weights(body: str) -> Iterator[str]:
    """The tensors and layers that the functions name, with values that floats have exactly."""
    yield "torch.manual_seed(0)"
    for name in sorted(set(re.findall(r"\b[WL]\d\d\b", body))):
        rows, columns = int(name[1]), int(name[2])
        if name[0] == "W":
            yield f"{name} = torch.randint(-4, 5, ({rows}, {columns})) / 4"
        else:
            yield f"{name} = torch.nn.Linear({rows}, {columns}).requires_grad_(False)"
    yield "WORDS = torch.nn.Embedding(5, 3).requires_grad_(False)"
    for name in sorted(set(re.findall(r"\bC_[a-z0-9_]+", body))):
        dtype, *sizes = name.removeprefix("C_").split("_")
        shape = ", ".join(sizes)
        yield f"{name} = (torch.randint(-3, 4, ({shape}{',' * bool(sizes)})) / 2).to(torch.{dtype})"


def batches(kind: Kind, seed: int, sizes: Sequence[int]) -> str:
    """`calls()`: batches of new instances, the first in another order, too."""
    return f"""
def calls():
    r = random.Random({seed})
    MADE.clear()
    first = None
    for size in {tuple(sizes)}:
        d = 3
        items = [{make(kind)} for _ in range(size)]
        numbers = [r.randint(0, 3) for _ in range(size)]
        yield items, numbers
        if first is None:
            first = items, numbers
            order = r.sample(range(size), size)
            yield [items[k] for k in order], [numbers[k] for k in order]
        if r.random() < 0.5:
            MADE.clear()
    yield first
"""


def write_instances(seed: int, sizes: tuple[int, ...] = (7, 1, 2, 0, 33)) -> str:
    """The source of a module: `main` for one instance, and `calls()`, which gives batches, as a
    tuple of columns each: of these sizes, the first of them in another order, too."""
    rng = random.Random(seed)
    classes = random_classes(rng)
    writer = Writer(rng, classes)
    names = tuple(classes)
    for number in range(rng.choice((0, 1, 1, 2))):
        held = [k for c in classes.values() for k in c.fields.values() if isinstance(k, Maybe)]
        held = [k for k in held if isinstance(k.item, Record | Either)]
        kind = rng.choice(held) if held and rng.random() < 0.7 else random_class(rng, names)
        result = VECTOR if rng.random() < 0.6 else random_kind(rng, names, 1)
        recursive(writer, f"walk{number}", kind, result, classes)
    kind = random_class(rng, names)
    writer.line("def main(item, n):")
    writer.indent, writer.depth = 1, 1
    writer.scope = {"item": kind, "n": INT}
    held = [
        k for k in (VECTOR, INT, random_kind(rng, names), writer.new_kind()) if rng.random() < 0.8
    ]
    writer.result = Pair(tuple(held))
    writer.body(rng.randint(1, 4))
    ends = [writer.of(writer.result, 2), *rng.sample(list(writer.scope), min(5, len(writer.scope)))]
    writer.line(f"return ({', '.join(ends)},)")
    body = "\n".join(writer.lines)
    written = [one.source() + "\n" for one in classes.values()]
    ends_with = batches(kind, seed, sizes)
    return "\n".join([PRELUDE, *written, *makers(classes), *weights(body), "", body, ends_with])

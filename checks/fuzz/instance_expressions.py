"""Random expressions of a kind, for programs of one instance."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from checks.fuzz.instance_kinds import (
    BOOL,
    FLOAT,
    FLOATS,
    INT,
    STR,
    Class,
    Either,
    Kind,
    Listed,
    Maybe,
    Pair,
    Plain,
    Record,
    Table,
    Tensor,
    parts,
    random_kind,
    random_tensor,
)

Option = Callable[[], str]

UNARY = ("torch.tanh", "torch.sigmoid", "torch.relu", "torch.abs", "torch.neg", "torch.cos")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
WIDTHS = (1, 3, 4)
"""Sizes between which the module has weights."""


def constant(kind: Tensor) -> str:
    """The global tensor of this kind."""
    return "_".join(["C", str(kind.dtype).removeprefix("torch."), *map(str, kind.shape)])


@dataclass
class Expressions:
    """What is in scope, and expressions of it. `functions`: the kinds of what each takes, then of
    what it gives."""

    random: random.Random
    classes: dict[str, Class]
    scope: dict[str, Kind] = field(default_factory=dict[str, Kind])
    functions: dict[str, tuple[tuple[Kind, ...], Kind]] = field(
        default_factory=dict[str, tuple[tuple[Kind, ...], Kind]]
    )

    def of(self, kind: Kind, depth: int = 2) -> str:
        """An expression of this kind: something at hand, a call, or something made."""
        held = [
            text
            for name, its in self.scope.items()
            for text, part in parts(its, self.classes, name, 2)
            if part == kind
        ]
        if held and (depth <= 0 or self.random.random() < 0.6):
            return self.random.choice(held)
        calls = [n for n, (_, result) in self.functions.items() if result == kind]
        if calls and depth > 0 and self.random.random() < 0.3:
            return self.call(self.random.choice(calls), depth - 1)
        if depth > 0 and self.random.random() < 0.1:
            test, one, other = self.of(BOOL, 1), self.of(kind, depth - 1), self.of(kind, depth - 1)
            return f"({one} if {test} else {other})"
        return self.made(kind, depth - 1)

    def call(self, name: str, depth: int) -> str:
        given = [self.of(kind, depth) for kind in self.functions[name][0]]
        return f"{name}({', '.join(given)})"

    def pick(self, options: list[Option]) -> str:
        return self.random.choice(options)()

    def made(self, kind: Kind, depth: int) -> str:
        match kind:
            case Plain("int"):
                return self.integer(depth)
            case Plain("float"):
                return self.number(depth)
            case Plain("bool"):
                return self.truth(depth)
            case Plain():
                return self.string(depth)
            case Tensor():
                return self.rows(kind, depth) if kind.rows else self.tensor(kind, depth)
            case Listed(item):
                return self.listed(item, depth)
            case Pair(items):
                return f"({''.join(self.of(item, depth) + ', ' for item in items)})"
            case Table(item):
                return self.table(item, depth)
            case Maybe(item):
                return (
                    "None"
                    if depth < 0
                    else self.pick([lambda: "None", lambda: self.of(item, depth)])
                )
            case Record(name):
                given = [self.of(held, depth) for held in self.classes[name].fields.values()]
                return f"{name}({', '.join(given)})"
            case Either(names):
                return self.of(Record(self.random.choice(names)), depth)

    # ---- numbers

    def integer(self, depth: int) -> str:
        rng = self.random
        if depth < 0:
            return str(rng.randint(-2, 4))
        tensor = self.some_tensor()
        lists = self.some(Listed) or Listed(random_kind(rng, (), 1))
        return self.pick(
            [
                lambda: f"({self.of(INT, depth)} {rng.choice('+-')} {self.of(INT, depth)})",
                lambda: f"(({self.of(INT, depth)} * {self.of(INT, depth)}) % 13)",
                lambda: f"({self.of(INT, depth)} // {self.of(INT, depth)})",
                lambda: f"len({self.of(lists, depth)})",
                lambda: (
                    f"{rng.choice(('min', 'max'))}({self.of(INT, depth)}, {self.of(INT, depth)})"
                ),
                lambda: (
                    f"int({self.of(tensor, depth)}.{rng.choice(('sum()', 'numel()', 'dim()'))})"
                ),
                lambda: f"{self.of(Tensor(torch.float32, (3,)), depth)}.argmax().item()",
                lambda: f"(({self.of(Tensor(torch.int64, ()), depth)}).item() % 7)",
                lambda: f"sum({self.of(Listed(INT), depth)})",
                lambda: f"{self.of(Listed(INT), depth)}[{self.of(INT, 0)}]",
                lambda: f"{self.of(Tensor(torch.float32, (3,), True), depth)}.shape[0]",
                lambda: f"len([e for e in {self.of(lists, depth)} if {self.of(BOOL, 0)}])",
                lambda: str(rng.randint(-2, 4)),
            ]
        )

    def number(self, depth: int) -> str:
        rng = self.random
        if depth < 0:
            return str(rng.randint(-8, 8) / 4)
        return self.pick(
            [
                lambda: f"({self.of(INT, depth)} / 2)",
                lambda: f"({self.of(FLOAT, depth)} {rng.choice('+-*')} {self.of(FLOAT, depth)})",
                lambda: f"float({self.of(Tensor(torch.float64, (3,)), depth)}.sum())",
                lambda: f"{self.of(Tensor(torch.float64, ()), depth)}.item()",
                lambda: f"max({self.of(FLOAT, depth)}, 0.5)",
                lambda: f"abs({self.of(FLOAT, depth)})",
            ]
        )

    def truth(self, depth: int) -> str:
        rng = self.random
        if depth < 0:
            return f"{self.of(INT, 0)} > {rng.randint(-1, 2)}"
        tensor = self.some_tensor()
        options: list[Option] = [
            lambda: f"({self.of(INT, depth)} {rng.choice(COMPARISONS)} {self.of(INT, depth)})",
            lambda: f"({self.of(FLOAT, depth)} {rng.choice(('<', '>='))} {self.of(FLOAT, depth)})",
            lambda: f"({self.of(BOOL, depth)} {rng.choice(('and', 'or'))} {self.of(BOOL, depth)})",
            lambda: f"(not {self.of(BOOL, depth)})",
            lambda: f"({self.of(STR, depth)} == {self.of(STR, depth)})",
            lambda: f"{self.of(STR, depth)} in ('a', 'bc')",
            lambda: f"bool({self.of(tensor, depth)}.sum() > {self.of(INT, 0)})",
            lambda: f"bool(({self.of(Tensor(torch.float32, (3,)), depth)} > 0.125).all())",
        ]
        if (maybe := self.some(Maybe)) is not None:
            options += [lambda: f"({self.of(maybe, 0)} is {rng.choice(('', 'not '))}None)"] * 2
        if (either := self.some(Either)) is not None:
            assert isinstance(either, Either)
            options += [lambda: f"isinstance({self.of(either, 0)}, {rng.choice(either.names)})"] * 2
        return self.pick(options)

    def string(self, depth: int) -> str:
        if depth < 0:
            return repr(self.random.choice(("a", "bc", "")))
        return f"('a' if {self.of(BOOL, depth)} else {self.of(STR, depth)})"

    # ---- containers

    def listed(self, item: Kind, depth: int) -> str:
        if depth < 0:
            return "[]"
        length = self.random.randint(1, 3)

        def mapped() -> str:
            source = self.some(Listed, Listed(item))
            assert isinstance(source, Listed)
            given = self.of(source, depth)
            with_item = Expressions(
                self.random, self.classes, {**self.scope, "e": source.item}, self.functions
            )
            test = f" if {with_item.of(BOOL, 1)}" if self.random.random() < 0.3 else ""
            return f"[{with_item.of(item, depth)} for e in {given}{test}]"

        return self.pick(
            [
                lambda: f"[{', '.join(self.of(item, depth) for _ in range(length))}]",
                mapped,
                mapped,
                lambda: f"({self.of(Listed(item), depth)} + {self.of(Listed(item), depth)})",
                lambda: (
                    f"{self.of(Listed(item), depth)}[{self.random.choice(('1:', ':2', '::-1'))}]"
                ),
                lambda: f"list(reversed({self.of(Listed(item), depth)}))",
            ]
        )

    def table(self, item: Kind, depth: int) -> str:
        if depth < 0:
            return f"{{1: {self.of(item, 0)}}}"
        return f"{{e: {self.of(item, depth)} for e in {self.of(Listed(INT), depth)}}}"

    def some(self, sort: type[Kind], otherwise: Kind | None = None) -> Kind | None:
        """A kind of this sort that something in scope has."""
        found = [
            part
            for name, kind in self.scope.items()
            for _, part in parts(kind, self.classes, name, 2)
            if isinstance(part, sort)
        ]
        return self.random.choice(found) if found else otherwise

    def some_tensor(self) -> Tensor:
        found = self.some(Tensor) if self.random.random() < 0.7 else None
        return found if isinstance(found, Tensor) else random_tensor(self.random)

    # ---- tensors

    def rows(self, kind: Tensor, depth: int) -> str:
        row = Tensor(kind.dtype, kind.shape)
        if depth < 0:
            return "torch.ones(2, 3)"
        return self.pick(
            [
                lambda: f"torch.stack([{self.of(row, depth)}, {self.of(row, depth)}])",
                lambda: f"torch.tanh({self.of(kind, depth)})",
                lambda: f"({self.of(kind, depth)} @ W33)",
                lambda: f"({self.of(kind, depth)} + {self.of(row, depth)})",
                lambda: f"({self.of(kind, depth)} * {self.of(FLOAT, depth)})",
                lambda: f"torch.softmax({self.of(kind, depth)}, {self.random.choice('01')})",
                lambda: f"{self.of(kind, depth)}[1:]",
            ]
        )

    def tensor(self, kind: Tensor, depth: int) -> str:
        dtype, shape = kind.dtype, kind.shape
        rng = self.random
        if depth < 0:
            if rng.random() < 0.3:
                return f"torch.{rng.choice(('zeros', 'ones'))}({shape}, dtype={dtype})"
            return constant(kind)
        rows = Tensor(dtype, (3,), rows=True)

        def same() -> str:
            return self.of(kind, depth)

        def stacked() -> str:
            return f"torch.stack([{same()}, *{self.of(Listed(kind), depth)}])"

        options: list[Option] = [
            *self.structural(kind, depth),
            lambda: f"({self.of(Tensor(self.other(dtype), shape), depth)}).to({dtype})",
        ]
        if dtype is torch.bool:
            source = Tensor(rng.choice((torch.float32, torch.int64)), shape)
            options += [
                lambda: (
                    f"({self.of(source, depth)} {rng.choice(COMPARISONS)} {self.of(source, depth)})"
                ),
                lambda: f"({same()} {rng.choice('&|^')} {same()})",
                lambda: f"(~{same()})",
                lambda: f"({self.of(source, depth)} > {self.of(INT, depth)})",
            ]
            return self.pick(options)
        mask = Tensor(torch.bool, shape)
        scalar = Tensor(dtype, ())
        options += [
            lambda: f"({same()} {rng.choice('+-*')} {same()})",
            lambda: f"({same()} {rng.choice('+-*')} {self.of(scalar, depth)})",
            lambda: f"({same()} {rng.choice('+-*')} {self.of(INT, depth)})",
            lambda: f"torch.where({self.of(mask, depth)}, {same()}, {same()})",
            lambda: f"torch.maximum({same()}, {same()})",
            lambda: f"{same()}.clamp(-2, 3)",
        ]
        if kind.is_float:
            options += [lambda: f"{rng.choice(UNARY)}({same()})"] * 3
            options += [lambda: f"({same()} * {self.of(FLOAT, depth)})"]
            options += [lambda: f"({self.of(FLOAT, depth)} - {same()})"]
        if dtype is torch.float32 and shape and shape[-1] in WIDTHS:
            width = rng.choice(WIDTHS)
            source = Tensor(dtype, (*shape[:-1], width))
            options += [
                lambda: f"({self.of(source, depth)} @ W{width}{shape[-1]})",
                lambda: f"torch.tanh(L{width}{shape[-1]}({self.of(source, depth)}))",
                lambda: f"torch.softmax({same()}, -1)",
            ] * 2
        if kind == Tensor(torch.float32, (3,)):
            options += [
                lambda: f"WORDS({self.of(Tensor(torch.int64, ()), depth)} % 5)",
                lambda: f"WORDS.weight[{self.of(INT, depth)} % 5]",
                lambda: f"sum({self.of(Listed(kind), depth)}, torch.zeros(3))",
                lambda: f"{stacked()}.{rng.choice(('sum(0)', 'mean(0)', 'max(0).values'))}",
                lambda: f"{self.of(rows, depth)}.{rng.choice(('sum(0)', 'mean(0)'))}",
                lambda: f"{self.of(rows, depth)}[{self.of(INT, 0)}]",
                lambda: (
                    f"torch.cat([{self.of(Tensor(dtype, (1,)), depth)}, "
                    f"{self.of(Tensor(dtype, (4,)), depth)}])[2:]"
                ),
            ]
        return self.pick(options)

    def other(self, dtype: torch.dtype) -> torch.dtype:
        if dtype in FLOATS:
            return self.random.choice((torch.float32, torch.int64, torch.bool))
        return self.random.choice((torch.int64, torch.int32, torch.bool))

    def structural(self, kind: Tensor, depth: int) -> list[Option]:
        """What takes elements out of larger tensors, or puts them together."""
        dtype, shape = kind.dtype, kind.shape
        more = self.random.randint(1, 3)
        larger = Tensor(dtype, (more, *shape))
        index = self.random.randrange(-more, more)
        found: list[Option] = [
            lambda: f"{self.of(larger, depth)}[{index}]",
            lambda: f"{self.of(larger, depth)}[{self.of(INT, depth)} % {more}]",
            lambda: f"{self.of(kind, depth)}.unsqueeze(0)[0]",
            lambda: f"{self.of(kind, depth)}.clone()",
        ]
        if dtype is not torch.bool and dtype is not torch.int32:
            found += [
                lambda: f"{self.of(larger, depth)}.sum(0)",
                lambda: f"{self.of(larger, depth)}.max(0).values",
                lambda: f"{self.of(Tensor(dtype, (*shape, 3)), depth)}.sum(-1)",
            ]
        if not shape and kind.is_float:
            vector = Tensor(dtype, (3,))
            found += [
                lambda: f"({self.of(vector, depth)} * {self.of(vector, depth)}).sum()",
                lambda: f"{self.of(vector, depth)}.mean()",
            ]
        if shape and 0 < shape[0] <= 3:
            row = Tensor(dtype, shape[1:])
            found.append(
                lambda: f"torch.stack([{', '.join(self.of(row, depth) for _ in range(shape[0]))}])"
            )
        if shape:
            longer = Tensor(dtype, (shape[0] + 1, *shape[1:]))
            found += [
                lambda: f"{self.of(longer, depth)}[1:]",
                lambda: f"{self.of(kind, depth)}.flip(0)",
            ]
        if len(shape) == 2:
            turned = Tensor(dtype, shape[::-1])
            found += [
                lambda: f"{self.of(turned, depth)}.t()",
                lambda: f"{self.of(turned, depth)}.reshape({shape})",
            ]
        return found

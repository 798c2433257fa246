# ruff: noqa
"""Random functions for one instance, as source text, and random instances for them.

A function takes a tree of `Node`s (or None) and a number. It has loops, branches, early returns,
recursion, closures and every kind of data; most of what it does is right, some raises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PRELUDE = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Any, NamedTuple
import torch

@dataclass
class Node:
    value: int
    left: "Node | None"
    right: "Node | None"
    h: torch.Tensor
    items: list[int]

    def size(self):
        return 1 + (self.left.size() if self.left is not None else 0)

    @property
    def double(self):
        return self.value * 2

class Pair(NamedTuple):
    a: int
    b: int

WEIGHT = torch.tensor([[0.5, -0.25, 1.0], [0.125, 0.75, -0.5], [1.5, -1.0, 0.25]])

def describe(v):
    if v is None:
        return 0
    if isinstance(v, bool):
        return 1 if v else 2
    if isinstance(v, (int, float)):
        return int(v) % 13
    if isinstance(v, str):
        return len(v)
    match v:
        case Node(value=k, left=None):
            return k
        case Node(value=k):
            return k + 1
        case list():
            return len(v) + 20
        case (a, b):
            return a - b
    return 50
"""

KINDS = ("int", "float", "bool", "str", "list", "tensors", "tensor", "node", "opt", "pair", "dict")


class Writer:
    """Writes one function."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.indent = 0
        self.scope: dict[str, str] = {}
        self.loops = 0
        self.functions: dict[str, tuple[str, ...]] = {}
        self.count = 0
        self.depth = 0
        self.returns = "int"

    # ---- text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.indent += 1
        before = dict(self.scope)
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.indent -= 1
        risky = self.rng.random() < 0.1
        self.scope = {
            name: kind if before.get(name, kind) == kind else "mixed"
            for name, kind in self.scope.items()
            if name in before or risky
        }

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind[0]}{self.count}"

    def pick(self, *options: Callable[[], str]) -> str:
        return self.rng.choice(options)()

    def variable(self, kind: str) -> str | None:
        names = [name for name, its in self.scope.items() if its == kind]
        return self.rng.choice(names) if names else None

    # ---- expressions

    def of(self, kind: str, depth: int = 2) -> str:
        name = self.variable(kind)
        if name is not None and (depth <= 0 or self.rng.random() < 0.45):
            return name
        return getattr(self, f"_{kind}")(depth - 1)

    def _int(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0:
            return str(rng.randint(-2, 4))
        options = [
            lambda: f"({self.of('int', depth)} {rng.choice('+-')} {self.of('int', depth)})",
            lambda: f"({self.of('int', depth)} * {self.of('int', depth)}) % 97",
            lambda: f"({self.of('int', depth)} // {self.of('int', depth)})",
            lambda: f"len({self.of(rng.choice(['list', 'tensors', 'dict', 'str']), depth)})",
            lambda: f"{self.of('list', depth)}[{self.of('int', 0)}]",
            lambda: f"{self.of('node', depth)}.{rng.choice(['value', 'double', 'size()'])}",
            lambda: (
                f"({self.of('int', depth)} if {self.of('bool', depth)} else {self.of('int', depth)})"
            ),
            lambda: (
                f"{rng.choice(['min', 'max'])}({self.of('int', depth)}, {self.of('int', depth)})"
            ),
            lambda: f"sum({self.of('list', depth)})",
            lambda: f"{self.of('dict', depth)}.get({self.of('int', depth)}, {self.of('int', 0)})",
            lambda: f"int({self.of('tensor', depth)}.sum())",
            lambda: f"{self.of('tensor', depth)}.argmax().item()",
            lambda: f"{self.of('pair', depth)}[{rng.choice('01')}]",
            lambda: f"({self.of('int', depth)} or {self.of('int', depth)})",
            lambda: f"describe({self.of(rng.choice(KINDS[:4] + ('list', 'opt', 'pair')), depth)})",
            lambda: f"(abs({self.of('int', depth)}) + int({self.of('bool', depth)}))",
            lambda: f"sum(x * 2 for x in {self.of('list', depth)} if x > {self.of('int', 0)})",
            lambda: str(rng.randint(-2, 4)),
        ]
        if self.variable("mixed"):
            options.append(lambda: f"describe({self.variable('mixed')})")
        calls = [n for n, kinds in self.functions.items() if kinds[0] == "int"]
        if calls:
            options += [lambda: self._call(rng.choice(calls), depth)] * 2
        return rng.choice(options)()

    def _call(self, name: str, depth: int) -> str:
        _, *kinds = self.functions[name]
        given = [self.of(kind, depth) for kind in kinds]
        return f"{name}({', '.join(given)})"

    def _float(self, depth: int) -> str:
        return self.pick(
            lambda: f"({self.of('int', depth)} / 2)",
            lambda: f"({self.of('float', depth)} + {self.of('int', depth)})",
            lambda: f"({self.of('float', depth)} * 0.5)",
            lambda: f"float({self.of('tensor', depth)}.mean())",
            lambda: f"max({self.of('float', depth)}, {self.of('int', depth)}) * 1.0",
            lambda: "1.5",
        )

    def _bool(self, depth: int) -> str:
        rng = self.rng
        return self.pick(
            lambda: (
                f"({self.of('int', depth)} {rng.choice(['<', '<=', '==', '!=', '>'])} {self.of('int', depth)})"
            ),
            lambda: (
                f"({self.of('int', depth)} < {self.of('int', depth)} <= {self.of('int', depth)})"
            ),
            lambda: (
                f"({self.of('bool', depth)} {rng.choice(['and', 'or'])} {self.of('bool', depth)})"
            ),
            lambda: f"(not {self.of('bool', depth)})",
            lambda: (
                f"({self.of('int', depth)} {rng.choice(['in', 'not in'])} {self.of('list', depth)})"
            ),
            lambda: f"({self.of('opt', depth)} is {rng.choice(['', 'not '])}None)",
            lambda: f"bool({self.of('tensor', depth)}.sum() > {self.of('int', 0)})",
            lambda: f"({self.of('str', depth)} == {self.of('str', depth)})",
            lambda: f"({self.of('pair', depth)} == {self.of('pair', depth)})",
            lambda: f"any(x > {self.of('int', 0)} for x in {self.of('list', depth)})",
            lambda: f"({self.of('list', depth)} == {self.of('list', depth)})",
            lambda: f"bool({self.of('list', depth)})",
            lambda: rng.choice(["True", "False"]),
        )

    def _str(self, depth: int) -> str:
        return self.pick(
            lambda: f"({self.of('str', depth)} + {self.of('str', 0)})",
            lambda: f"('a' if {self.of('bool', depth)} else 'bc')",
            lambda: "'b'",
        )

    def _list(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0:
            return rng.choice(["[]", "[1, 2]", "[3]"])
        return self.pick(
            lambda: f"[{self.of('int', depth)}, {self.of('int', depth)}]",
            lambda: f"({self.of('list', depth)} + {self.of('list', depth)})",
            lambda: f"{self.of('list', depth)}[{rng.choice([':2', '1:', '::-1', ':-1', '-2:'])}]",
            lambda: f"[x + {self.of('int', depth)} for x in {self.of('list', depth)}]",
            lambda: (
                f"[i for i, x in enumerate({self.of('list', depth)}) if x != {self.of('int', 0)}]"
            ),
            lambda: f"[y * x for x in {self.of('list', depth)} for y in range(x % 3)]",
            lambda: f"sorted({self.of('list', depth)})",
            lambda: f"list(reversed({self.of('list', depth)}))",
            lambda: f"list(range({self.of('int', depth)} % 5))",
            lambda: f"{self.of('node', depth)}.items",
            lambda: f"({self.of('list', depth)} or {self.of('list', depth)})",
            lambda: (
                f"({self.of('list', depth)} if {self.of('bool', depth)} else {self.of('list', depth)})"
            ),
            lambda: f"[a - b for a, b in zip({self.of('list', depth)}, {self.of('list', depth)})]",
            lambda: f"list({self.of('dict', depth)})",
        )

    def _tensors(self, depth: int) -> str:
        return self.pick(
            lambda: f"[{self.of('tensor', depth)}]",
            lambda: f"[{self.of('tensor', depth)}, {self.of('tensor', depth)}]",
            lambda: f"[x * 0.5 for x in {self.of('tensors', depth)}]" if depth > 0 else "[]",
        )

    def _tensor(self, depth: int) -> str:
        if depth <= 0:
            return "torch.ones(3)"
        return self.pick(
            lambda: f"({self.of('tensor', depth)} + {self.of('tensor', depth)})",
            lambda: f"({self.of('tensor', depth)} * {self.of('int', depth)})",
            lambda: f"torch.tanh({self.of('tensor', depth)} @ WEIGHT)",
            lambda: f"{self.of('node', depth)}.h",
            lambda: f"WEIGHT[{self.of('int', depth)} % 3]",
            lambda: (
                f"({self.of('tensor', depth)} if {self.of('bool', depth)} else {self.of('tensor', depth)})"
            ),
            lambda: f"{self.of('tensors', depth)}[-1]",
            lambda: f"sum({self.of('tensors', depth)}, torch.zeros(3))",
            lambda: (
                f"torch.stack([{self.of('tensor', depth)}, {self.of('tensor', depth)}]).max(0).values"
            ),
            lambda: "torch.zeros(3)",
        )

    def _node(self, depth: int) -> str:
        return self.pick(
            lambda: (
                f"Node({self.of('int', depth)}, {self.of('opt', depth)}, None, {self.of('tensor', 0)}, {self.of('list', depth)})"
            ),
            lambda: (
                f"({self.of('opt', 0)} or Node({self.of('int', depth)}, None, None, torch.ones(3), []))"
            ),
        )

    def _opt(self, depth: int) -> str:
        return self.pick(
            lambda: (
                f"{self.of('node', depth)}.{self.rng.choice(['left', 'right'])}"
                if depth > 0
                else "None"
            ),
            lambda: self.of("node", depth) if depth > 0 else "None",
            lambda: "None",
        )

    def _pair(self, depth: int) -> str:
        return self.pick(
            lambda: f"({self.of('int', depth)}, {self.of('int', depth)})",
            lambda: f"Pair({self.of('int', depth)}, {self.of('int', depth)})[:2]",
            lambda: (
                f"({self.of('pair', depth)} if {self.of('bool', depth)} else {self.of('pair', depth)})"
                if depth > 0
                else "(1, 2)"
            ),
        )

    def _dict(self, depth: int) -> str:
        return self.pick(
            lambda: f"{{{self.of('int', depth)}: {self.of('int', depth)}}}",
            lambda: f"{{x: i for i, x in enumerate({self.of('list', depth)})}}",
        )

    def _mixed(self, depth: int) -> str:
        return self.of(
            self.rng.choice(("int", "list", "str", "opt", "pair", "bool", "float")), depth
        )

    # ---- statements

    def body(self, length: int) -> None:
        for _ in range(length):
            self.statement()

    def statement(self) -> None:
        rng = self.rng
        options: list[tuple[int, Callable[[], None]]] = [
            (8, self.assignment),
            (4, self.mutation),
            (3, self.augmented),
            (1, self.unpacking),
        ]
        if self.depth < 3:
            options += [
                (5, self.branch),
                (4, self.for_loop),
                (2, self.while_loop),
                (1, self.closure),
                (1, self.match),
            ]
        if self.loops:
            options.append((1, lambda: self.jump(rng.choice(["break", "continue"]))))
        options.append((1, lambda: self.jump(f"return {self.of(self.returns)}")))
        weights = [weight for weight, _ in options]
        rng.choices([run for _, run in options], weights)[0]()

    @contextmanager
    def nested(self, head: str) -> Iterator[None]:
        self.depth += 1
        with self.block(head):
            yield
        self.depth -= 1

    def assignment(self) -> None:
        kind = self.rng.choice(KINDS)
        text = self.of(kind, 3)
        draw = self.rng.random()
        if draw < 0.5 or not self.scope:
            name = self.fresh(kind)
        else:
            name = self.rng.choice(list(self.scope))
            if self.scope[name] != kind and (self.loops or self.depth or name in ("node", "n")):
                kind = self.scope[name]
                text = self.of(kind, 3)
        self.line(f"{name} = {text}")
        self.scope[name] = kind

    def mutation(self) -> None:
        of = self.of
        options = [
            lambda: f"{of('list', 1)}.append({of('int')})",
            lambda: f"{of('list', 1)}.pop()",
            lambda: f"{of('list', 1)}.insert(0, {of('int')})",
            lambda: f"{of('list', 1)}.extend({of('list')})",
            lambda: f"{of('list', 1)}.reverse()",
            lambda: f"{of('tensors', 1)}.append({of('tensor')})",
            lambda: f"{of('dict', 1)}[{of('int')}] = {of('int')}",
            lambda: f"{of('node', 1)}.value = {of('int')}",
            lambda: f"{of('node', 1)}.left = {of('opt', 1)}",
            lambda: f"{of('node', 1)}.items = {of('list')}",
            lambda: f"{of('node', 1)}.items.append({of('int')})",
            lambda: f"{of('node', 1)}.h = {of('tensor')}",
        ]
        lists = self.variable("list")
        if lists:
            options.append(lambda: f"{lists}[{of('int', 0)}] = {of('int')}")
        self.line(self.rng.choice(options)())

    def augmented(self) -> None:
        name = self.variable("int")
        draw = self.rng.random()
        if name and draw < 0.5:
            self.line(f"{name} {self.rng.choice(['+=', '-='])} {self.of('int')}")
            return
        name = self.variable("list")
        if name and draw < 0.8:
            self.line(f"{name} += {self.of('list')}")
            return
        self.line(f"{self.of('node', 1)}.value += {self.of('int')}")

    def unpacking(self) -> None:
        a, b = self.fresh("int"), self.fresh("int")
        self.line(f"{a}, {b} = {self.of('pair')}")
        self.scope |= {a: "int", b: "int"}

    def jump(self, text: str) -> None:
        with self.nested(f"if {self.of('bool')}:"):
            self.line(text)

    def branch(self) -> None:
        with self.nested(f"if {self.of('bool')}:"):
            self.body(self.rng.randint(1, 3))
        if self.rng.random() < 0.3:
            with self.nested(f"elif {self.of('bool')}:"):
                self.body(1)
        if self.rng.random() < 0.6:
            with self.nested("else:"):
                self.body(self.rng.randint(1, 2))

    def for_loop(self) -> None:
        rng = self.rng
        name = self.variable("int") if rng.random() < 0.2 else None
        name = name or self.fresh("int")
        heads = [
            (f"for {name} in range({self.of('int')} % 4):", {name: "int"}),
            (f"for {name} in {self.of('list')}[:4]:", {name: "int"}),
            (f"for {name} in range(3):", {name: "int"}),
            (f"for {name} in reversed({self.of('list')}[:4]):", {name: "int"}),
        ]
        other = self.fresh("int")
        heads.append(
            (
                f"for {name}, {other} in enumerate({self.of('list')}[:3]):",
                {name: "int", other: "int"},
            )
        )
        tensor = self.fresh("tensor")
        heads.append((f"for {tensor} in {self.of('tensors')}[:3]:", {tensor: "tensor"}))
        head, bound = rng.choice(heads)
        outer, self.loops = self.loops, self.loops + 1
        before = dict(self.scope)
        self.scope |= bound
        with self.nested(head):
            self.body(rng.randint(1, 3))
        self.loops = outer
        if rng.random() > 0.15:
            self.scope = {n: k for n, k in self.scope.items() if n in before}
        if rng.random() < 0.15:
            with self.nested("else:"):
                self.body(1)

    def while_loop(self) -> None:
        name = self.fresh("k")
        self.line(f"{name} = {self.rng.randint(0, 4)}")
        outer, self.loops = self.loops, self.loops + 1
        with self.nested(f"while {name} > 0 and {self.of('bool')}:"):
            self.line(f"{name} -= 1")
            self.body(self.rng.randint(1, 3))
        self.loops = outer

    def match(self) -> None:
        with self.nested(f"match {self.of('mixed')}:"):
            for pattern in self.rng.sample(
                ["int()", "[x, *rest]", "None", "'a' | 'b'", "Node(value=0)", "(1, y)", "True"], 3
            ):
                with self.block(f"case {pattern}:"):
                    self.body(1)
            with self.block("case _:"):
                self.body(1)

    def closure(self) -> None:
        name = self.fresh("f")
        outer = self.loops, self.returns, dict(self.functions)
        self.loops, self.returns = 0, "int"
        before = dict(self.scope)
        parameter = self.fresh("int")
        with self.nested(f"def {name}({parameter}):"):
            # Reads what is around it; assigns variables of its own alone.
            kept, self.scope = self.scope, {**before, parameter: "int"}
            own = self.fresh("int")
            self.line(f"{own} = {self.of('int')}")
            self.scope[own] = "int"
            if self.rng.random() < 0.5:
                self.line(f"{self.of('list', 1)}.append({own})")
            if self.rng.random() < 0.5:
                with self.block(f"if {self.of('bool')}:"):
                    self.line(f"return {self.of('int')}")
            self.line(f"return {self.of('int')} + {own}")
            self.scope = kept
        self.loops, self.returns, functions = outer
        self.scope = before
        self.functions = {**functions, name: ("int", "int")}


def function(
    rng: random.Random, name: str, functions: dict[str, tuple[str, ...]], last: bool
) -> str:
    """The source of one function; it may call itself and those before it."""
    writer = Writer(rng)
    writer.functions = dict(functions)
    kinds = ("opt", "int") if rng.random() < 0.6 or last else ("opt", "int", "list")
    names = ("node", "n", "found")[: len(kinds)]
    writer.line(f"def {name}({', '.join(names)}):")
    writer.indent = 1
    writer.scope = dict(zip(names, kinds, strict=True))
    writer.line("if n <= 0 or node is None:")
    writer.line(f"    return {writer.of('int', 1)}")
    writer.scope["node"] = "node"
    writer.body(rng.randint(3, 7))
    if rng.random() < 0.7:
        more = [f", {writer.of('list', 1)}"] if len(kinds) == 3 else [""]
        writer.line(f"r = {name}(node.{rng.choice(['left', 'right'])}, n - 1{more[0]})")
        writer.scope["r"] = "mixed" if last else "int"
    writer.body(rng.randint(0, 3))
    results = [n for n, k in writer.scope.items() if k != "mixed"]
    if last:
        chosen = rng.sample(results, min(len(results), 4))
        writer.line(f"return ({', '.join(chosen)},)")
        return "\n".join(writer.lines)
    writer.line(f"return {writer.of('int')}")
    return "\n".join(writer.lines)


def program(seed: int) -> str:
    """The source of a module whose `main(node, n)` is the function for one instance."""
    rng = random.Random(seed)
    parts = [PRELUDE]
    functions: dict[str, tuple[str, ...]] = {}
    for number in range(rng.randint(0, 2)):
        name = f"walk{number}"
        text = function(rng, name, functions, last=False)
        parts.append(text)
        functions[name] = (
            "int",
            *(("opt", "int", "list")[: text.split("(")[1].split(")")[0].count(",") + 1]),
        )
    parts.append(function(rng, "main", functions, last=True))
    return "\n\n".join(parts) + "\n"


def instances(seed: int, space: dict[str, Any], count: int) -> tuple[list[Any], list[int]]:
    """Random arguments of `main`: trees, some of whose nodes are shared, and numbers."""
    import torch

    rng = random.Random(seed)
    node = space["Node"]

    def tree(depth: int) -> Any:
        if depth == 0 or rng.random() < 0.2:
            return None
        left, right = tree(depth - 1), tree(depth - 1)
        if rng.random() < 0.15:
            right = left
        items = [rng.randint(-2, 4) for _ in range(rng.randint(0, 3))]
        h = torch.tensor([rng.randint(-8, 8) / 8 for _ in range(3)])
        return node(rng.randint(-2, 4), left, right, h, items)

    return [tree(3) for _ in range(count)], [rng.randint(0, 3) for _ in range(count)]

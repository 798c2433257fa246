"""Writes blocks of statements from the templates of a grammar."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from checks.fuzz.scope import (
    GONE,
    Misfit,
    Scope,
    Values,
    is_number,
    is_plain,
    is_tensor,
    is_tensors,
    same_types,
)

INDENT = "    "
HEAD = re.compile(r"(for|while|if|elif|else|match|case|def)\b.*:$")
LEAVES = re.compile(r"(break|continue|return\b.*|pass)$")

Node = tuple[str, list["Node"]]
"""A line of a template and what is indented below it."""


def parsed(template: str) -> list[Node]:
    """The lines of a template as a tree."""
    root: list[Node] = []
    levels = [root]
    for line in template.splitlines():
        text = line.lstrip(" ")
        depth = (len(line) - len(text)) // len(INDENT)
        node: Node = (text, [])
        levels[depth].append(node)
        levels[depth + 1 :] = [node[1]]
    return root


@dataclass
class FunctionWriter:
    """Writes the body of one function. Every loop ends, but for those that rounding keeps up."""

    scope: Scope
    lines: list[str] = field(default_factory=list[str])
    indent: int = 1
    in_loop: bool = False
    counter: list[int] = field(default_factory=lambda: [0])

    def write(self, line: str) -> None:
        self.lines.append(INDENT * self.indent + line)

    def nested(self, scope: Scope, *, in_loop: bool = False) -> FunctionWriter:
        return replace(self, scope=scope, indent=self.indent + 1, in_loop=in_loop or self.in_loop)

    def block(self, least: int, most: int) -> None:
        """At least one line."""
        before = len(self.lines)
        self.scope.choices.several(least, most, self.statement)
        if len(self.lines) == before:
            self.write("pass")

    def fresh(self, letter: str) -> str:
        self.counter[0] += 1
        return f"{letter.lower()}{self.counter[0]}"

    # ---- one statement ---------------------------------------------------------------------------
    def statement(self) -> None:
        """One of those that may stand here, unless none of a few fits."""
        groups = [
            (name, group)
            for name, (weight, group) in self.scope.grammar.statements.items()
            if self._may_stand(name, group[0])
            for _ in range(weight)
        ]
        for _ in range(5):
            if self.scope.choices.part(lambda: self._attempt(groups)):
                return

    def _may_stand(self, name: str, template: str) -> bool:
        limits = self.scope.grammar
        if "{block}" in template:
            return self.indent <= limits.most_depth and len(self.lines) < limits.most_lines
        if name == "jump":
            return self.in_loop
        return name != "return" or (self.indent > 1 and bool(self.scope.result))

    def _attempt(self, groups: Sequence[tuple[str, Sequence[str]]]) -> bool:
        """Writes a statement; says whether it fits."""
        name, group = self.scope.choices.one_of(groups)
        start, samples = len(self.lines), [dict(names) for names in self.scope.samples]
        template = self.scope.choices.one_of(group)
        chosen = {letter: self.fresh(letter) for letter in "URQKu" if f"{{{letter}}}" in template}
        try:
            if "{block}" in template or name in ("jump", "return"):
                self.tree(parsed(template), chosen)
            else:
                self.simple(template, chosen, name)
        except Misfit:
            del self.lines[start:]
            self.scope.restore(samples)
            return False
        return True

    def simple(self, template: str, chosen: dict[str, str], group: str = "") -> None:
        """A statement without further ones inside."""
        self.scope.risky = self.scope.grammar.lenient and self.scope.choices.chance(0.5)
        text = self.scope.fill(template, 3 if template.startswith("{U} = ") else 1, chosen)
        if text.split(" = ")[0] in self.scope.attributes and "." not in text.split(" = ")[0]:
            raise Misfit  # it would become a local variable
        name, _, value = text.partition(" = ")
        if name.isidentifier() and group != "construct" and "\n" not in text:
            if value == name or (name == chosen.get("U") and value in self.scope.samples[0]):
                raise Misfit
            values = self.scope.evaluate(value)
            if group == "assign" and not same_types(values, self.scope.values(name)):
                raise Misfit
            self.scope.define(name, values)
        else:
            self.scope.execute(text)
        self.scope.risky = False
        for line in text.splitlines():
            self.write(line)

    # ---- statements with blocks ------------------------------------------------------------------
    def tree(self, nodes: Sequence[Node], chosen: dict[str, str], subject: str = "") -> None:
        """The lines of a template with what is below them. subject: what is matched."""
        arm: list[str] = []
        for text, below in nodes:
            if text == "{block}":
                self.block(1, 4)
            elif text == "{again}":
                self.lines += arm
            elif not HEAD.match(text):
                if LEAVES.match(text):
                    self.write(self.scope.fill(text, 1, chosen))
                else:
                    self.simple(text, chosen)
            else:
                head = self.scope.fill(text, 1, chosen)
                inner = self.inside(head, subject)
                start = len(self.lines)
                self.write(head)
                matched = head[6:-1] if head.startswith("match ") else ""
                inner.tree(below, chosen, matched)
                arm = _first_ones(self.lines[start + 1 :])
                if head.startswith("def "):
                    self.scope.execute(textwrap.dedent("\n".join(self.lines[start:])))

    def inside(self, head: str, subject: str) -> FunctionWriter:
        """A writer of what stands below a line, with the samples that come there."""
        scope, kind = self.scope, head.split(" ")[0]
        if kind == "for":
            return self.nested(scope.inner(self._bound(head)), in_loop=True)
        if kind == "def":
            return replace(self.nested(self._called(head)), in_loop=False)
        if kind in ("if", "while", "elif"):
            values = scope.evaluate(head.partition(" ")[2][:-1])
            held = zip(scope.samples, values, strict=True)
            samples = [names for names, value in held if _is_true(value)]
        elif kind == "case":
            samples = self._matched(head, subject)
        else:
            samples = None
        return self.nested(scope.inner(samples), in_loop=kind == "while")

    def _bound(self, head: str) -> list[dict[str, Any]]:
        """Samples with the last item that a loop has."""
        targets, _, source = head[4:-1].partition(" in ")
        names = targets.split(", ")
        found: list[dict[str, Any]] = []
        items: Values = self.scope.evaluate(f"list({source})")
        for sample, values in zip(self.scope.samples, items, strict=True):
            if len(values) > self.scope.grammar.most_trips:
                raise Misfit
            if values:
                last = values[-1] if len(names) > 1 else (values[-1],)
                found.append({**sample, **dict(zip(names, last, strict=True))})
        if not found and source.startswith("range"):
            found = [{**sample, names[0]: 1} for sample in self.scope.samples]
        if not found or (len(found) < len(items) and not self.scope.grammar.lenient):
            raise Misfit
        return found

    def _called(self, head: str) -> Scope:
        """The names in a function inside of the function: its parameter is a vector or an int."""
        name = head[:-2].partition("(")[2]
        inner = self.scope.inner()
        inner.define(name, inner.evaluate("2" if name[0] == "k" else "torch.ones(3)"))
        inner.result, inner.outer = (), frozenset(self.scope.samples[0])
        return inner

    def _matched(self, head: str, subject: str) -> list[dict[str, Any]]:
        """The samples that a case takes, with what it binds."""
        code = f"match {subject}:\n    {head}\n        matched = True"
        found: list[dict[str, Any]] = []
        for sample in self.scope.samples:
            names = {**self.scope.globals, **sample}
            exec(code, names)
            if names.pop("matched", False):
                bound = re.findall(r"=(\w+)", head)
                found.append({**sample, **{name: names[name] for name in bound}})
        if not found:
            raise Misfit
        return found


def _is_true(value: Any) -> bool:
    try:
        return value is not GONE and bool(value)
    except (RuntimeError, ValueError) as error:  # of several elements
        raise Misfit from error


def _first_ones(lines: Sequence[str]) -> list[str]:
    """The lines before the first one with a block, or one that leaves."""
    for number, line in enumerate(lines):
        if HEAD.match(line.strip()) or LEAVES.match(line.strip()):
            return list(lines[:number])
    return list(lines)


def returned(scope: Scope, count: int, fixed: Sequence[str] = ()) -> str:
    """Names for the return of a function, by commas."""
    kinds = (is_tensor, is_number, is_tensors, is_plain)
    names = [n for n in scope.names(lambda v: any(kind(v) for kind in kinds)) if n.isidentifier()]
    chosen = [*fixed]
    for _ in range(count * bool(names)):
        chosen.append(scope.choices.one_of(names[-2 * count :]))
    return ", ".join(dict.fromkeys(chosen))

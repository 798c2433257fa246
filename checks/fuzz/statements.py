"""Random statements: assignments, writes in place, lists, branches, loops, jumps, calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from checks.fuzz import templates
from checks.fuzz.scope import (
    Scope,
    Text,
    is_float,
    is_number,
    is_plain,
    is_tensor,
    is_tensors,
)

INDENT = "    "


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a block stands, and what it may do."""

    depth: int = 0
    in_loop: bool = False
    may_return: bool = True
    attributes: tuple[str, ...] = ()
    """Expressions for buffers and other state that may be assigned and changed."""
    helpers: tuple[str, ...] = ()
    """Calls of other functions as templates."""
    objects: tuple[str, ...] = ()
    """Statements that change Python objects, as templates."""
    constructs: tuple[str, ...] = ()
    """Statements of families of constructs, as templates (`constructs.py`)."""
    start: tuple[str, ...] = ()
    """The first lines of the function."""
    most_lines: int = 45
    """Longer functions get no further branches and loops."""


@dataclass
class FunctionWriter:
    """Writes the body of one function. Every loop ends, but for those that rounding keeps up."""

    scope: Scope
    setting: Setting
    lines: list[str] = field(default_factory=list[str])
    indent: int = 1
    counters: list[int] = field(default_factory=lambda: [0])
    result: str | None = None
    """What an early return gives; all returns give the same types."""
    conditions: list[str] = field(default_factory=list[str])
    """Names of conditions, which several branches may have."""

    @property
    def random(self) -> Any:
        return self.scope.random

    def write(self, line: str) -> None:
        self.lines.append(INDENT * self.indent + line)

    def fresh(self, letter: str) -> str:
        self.counters[0] += 1
        return f"{letter}{self.counters[0]}"

    def nested(self, *, in_loop: bool = False) -> FunctionWriter:
        """A writer of a block inside, whose new names end with it."""
        setting = self.setting
        inner = replace(setting, depth=setting.depth + 1, in_loop=in_loop or setting.in_loop)
        return FunctionWriter(
            self.scope.inner(),
            inner,
            self.lines,
            self.indent + 1,
            self.counters,
            self.result,
            [*self.conditions],
        )

    def block(self, least: int, most: int) -> None:
        """At least one line."""
        before = len(self.lines)
        for _ in range(self.random.randint(least, most)):
            self.statement()
        if len(self.lines) == before:
            self.write("pass")

    # ---- the choice ------------------------------------------------------------------------------
    def statement(self) -> None:
        setting = self.setting
        choices: list[Any] = [*[self.assign] * 5, *[self.change] * 3, *[self.fresh_value] * 3]
        choices += [self.view_of, self.view_of, self.write_in_place, self.write_in_place]
        choices += [self.number, self.list_statement, self.list_statement, self.tuple_statement]
        if setting.depth < 3 and len(self.lines) < setting.most_lines:
            choices += [*[self.branch] * 6, *[self.loop] * 6]
        if setting.in_loop:
            choices += [self.jump, self.jump]
        if setting.may_return and setting.depth and self.result:
            choices += [self.early_return]
        if setting.helpers:
            choices += [self.call, self.call]
        if setting.objects:
            choices += [self.object_statement, self.object_statement]
        if setting.attributes:
            choices += [self.attribute, self.attribute]
        if setting.constructs:
            choices += [self.construct] * (2 * len(choices))
        self.random.choice(choices)()

    # ---- values ----------------------------------------------------------------------------------
    def assign(self) -> None:
        """A variable that is there gets a value of its own type."""
        names = self.scope.names(is_tensor)
        if not names:
            return self.fresh_value()
        name = self.random.choice(names)
        found = self.scope.like(self.scope.locals[name])
        self.write(f"{name} = {found.text}")
        self.scope.locals[name] = found.value
        return None

    def change(self) -> None:
        """A float variable is damped, so that loops do not run away."""
        names = self.scope.names(is_float)
        if not names:
            return self.fresh_value()
        name = self.random.choice(names)
        ways = ("{x} = {x} * 0.5", "{x} = torch.tanh({x})", "{x} = {x} - {x}.mean()", "{x} += {c}")
        way = self.random.choice(ways).replace("{x}", name)
        way = way.replace("{c}", self.scope.slot("c", 0))
        if self.scope.execute(way):
            self.write(way)
        return None

    def fresh_value(self) -> None:
        found = self.scope.expression(lambda _: True, 3)
        if isinstance(found.value, torch.Tensor):
            name = self.fresh("v")
            self.write(f"{name} = {found.text}")
            self.scope.locals[name] = found.value

    def view_of(self) -> None:
        """A view of a variable, a weight or a buffer, to be read or changed later."""
        bases = [*self.scope.names(is_tensor), *self.scope.weights, *self.setting.attributes]
        for _ in range(4):
            base = self.random.choice(bases)
            template = self.random.choice(templates.WEIGHT_VIEWS[3:])
            found = self.scope.filled(template, 0, {"v": base})
            if found is not None and is_tensor(found.value):
                name = self.fresh("v")
                self.write(f"{name} = {found.text}")
                self.scope.locals[name] = found.value
                return

    def write_in_place(self) -> None:
        targets = [*self.scope.names(is_tensor)]
        targets += [*self.setting.attributes] * 2
        for _ in range(5):
            name = self.random.choice(targets) if targets else "v0"
            template = self.random.choice(templates.IN_PLACE).replace("{x}", name)
            text = self._with_operand(template)
            if text is not None and self.scope.execute(text):
                self.write(text)
                return

    def _with_operand(self, template: str) -> str | None:
        """Slots filled; `{e}` is any expression that broadcasts."""
        if "{e}" in template:
            operand = self.scope.expression(is_tensor)
            template = template.replace("{e}", operand.text)
        for letter in "cn":
            while "{" + letter + "}" in template:
                template = template.replace("{" + letter + "}", self.scope.slot(letter, 0), 1)
        return template

    def number(self) -> None:
        names = self.scope.names(is_number)
        found = self.scope.number_expression()
        same = [name for name in names if type(self.scope.locals[name]) is type(found.value)]
        loop = [name for name in same if name[0] not in "ik"]  # those count the trips of loops
        if loop and self.random.random() < 0.6:
            name = self.random.choice(loop)
        elif self.random.random() < 0.5 and (ints := [n for n in names if n.startswith("n")]):
            name = self.random.choice(ints)
            found = Text(f"{name} + {self.random.randint(1, 3)}", self.scope.locals[name] + 1)
        else:
            name = self.fresh("n")
        self.write(f"{name} = {found.text}")
        self.scope.locals[name] = found.value

    # ---- containers ------------------------------------------------------------------------------
    def list_statement(self) -> None:
        names = self.scope.names(is_tensors)
        if not names or self.random.random() < 0.15:
            name = self.fresh("l")
            items = [self.scope.leaf(is_float)]
            items += [self.scope.like(items[0].value) for _ in range(self.random.randint(0, 2))]
            self.write(f"{name} = [{', '.join(item.text for item in items)}]")
            self.scope.locals[name] = [item.value for item in items]
            return
        name = self.random.choice(names)
        items = self.scope.locals[name]
        ways = [f"{name}.append({self.scope.like(items[0]).text})"] * 3
        ways += [f"{name}[{self.random.choice((0, -1))}] = {self.scope.like(items[0]).text}"]
        ways += [f"{name}[0] = {name}[-1]", f"{name}[-1].mul_(0.5)"]
        if len(items) > 1:
            ways += [f"{name}.pop()", f"{name}[0], {name}[1] = {name}[1], {name}[0]"]
        ways += [
            f"{name} = [torch.tanh(item) for item in {name}]",
            f"{name} = {name} + [{name}[0]]",
            f"{name}.insert(0, {name}[-1])",
            f"{name}.extend([{name}[0] * 2])",
            f"{name} = {name}[::-1]",
            f"{name}.reverse()",
        ]
        text = self.random.choice(ways)
        if self.scope.execute(text):
            self.write(text)

    def tuple_statement(self) -> None:
        names = self.scope.names(is_float)
        pairs = [
            (one, other)
            for one in names
            for other in names
            if one < other and self._alike(one, other)
        ]
        if pairs:
            one, other = self.random.choice(pairs)
            self.write(f"{one}, {other} = {other}, {one}")

    def _alike(self, one: str, other: str) -> bool:
        first, second = self.scope.locals[one], self.scope.locals[other]
        return first.shape == second.shape and first.dtype == second.dtype

    # ---- control ---------------------------------------------------------------------------------
    def branch(self) -> None:
        self.write(f"if {self.condition()}:")
        begin = len(self.lines)
        self.nested().block(1, 3)
        then = self.lines[begin:]
        if self.random.random() < 0.2:
            self.write(f"elif {self.scope.test()}:")
            self.nested().block(1, 2)
        if self.random.random() < 0.5:
            self.write("else:")
            if self.random.random() < 0.3:  # it begins as the first arm does
                self.lines += then[: self._whole(then)]
            self.nested().block(1, 3)

    def condition(self) -> str:
        """A test, or one that has a name, which other branches may have, too."""
        if self.random.random() < 0.6:
            return self.scope.test()
        if not self.conditions or self.random.random() < 0.3:
            name = self.fresh("f")
            self.write(f"{name} = {self.scope.test(0)}")
            self.conditions.append(name)
        name = self.random.choice(self.conditions)
        return self.random.choice((name, name, f"not {name}"))

    def _whole(self, lines: Sequence[str]) -> int:
        """How many lines there are before the first one with a block, or one that leaves."""
        for number, line in enumerate(lines):
            if line.endswith(":") or line.split()[0] in ("return", "break", "continue"):
                return number
        return len(lines)

    def loop(self) -> None:
        self.random.choice(
            (self.for_range, self.for_range, self.for_each, self.while_loop, self.while_loop)
        )()

    def for_range(self) -> None:
        bounds = ["3", "2", "4", "0", "1", "1, 4", "3, 0, -1", "0, 6, 2", "10"]
        bounds += [f"{self.scope.number(1)} % 4", "int({f}.abs().sum().clamp(0, 5))", "len({l})"]
        bounds += ["int({i}.abs().sum()) % 5", "{t}.shape[0]"]
        found = self.scope.filled(f"list(range({self.random.choice(bounds)}))", 0)
        if found is None or len(found.value) > 12:
            return
        name = self.fresh("i")
        self.write(f"for {name} in {found.text[5:-1]}:")
        inner = self.nested(in_loop=True)
        inner.scope.locals[name] = 1
        inner.block(1, 4)

    def for_each(self) -> None:
        tensors = [n for n in self.scope.names(is_tensor) if self.scope.locals[n].dim()]
        lists = self.scope.names(is_tensors)
        sources = [*tensors, *lists, *[f"{weight}" for weight in self.scope.weights]]
        if not sources:
            return
        source, name = self.random.choice(sources), self.fresh("r")
        sample = self.scope.evaluate(source)
        if (is_tensor(sample) and not sample.dim()) or not 0 < len(sample) <= 12:
            return
        counter = self.fresh("i")
        kind = self.random.randint(0, 4)
        heads = {
            0: f"for {name} in {source}:",
            1: f"for {counter}, {name} in enumerate({source}):",
            2: f"for {name} in reversed({source}):",
            3: f"for {name}, {name}b in zip({source}, {source}):",
            4: f"for {name} in {source}[1:]:",
        }
        if source in lists and kind in (0, 1, 2, 3):
            heads = {key: head.replace(source, f"list({source})") for key, head in heads.items()}
        if kind == 2 and source in tensors:
            heads[2] = f"for {name} in {source}.unbind(0)[::-1]:"
        self.write(heads[kind])
        inner = self.nested(in_loop=True)
        inner.scope.locals[name] = sample[0]
        if kind == 3:
            inner.scope.locals[f"{name}b"] = sample[0]
        if kind == 1:
            inner.scope.locals[counter] = 1
        inner.block(1, 3)

    def while_loop(self) -> None:
        counter, most = self.fresh("k"), self.random.randint(1, 6)
        self.write(f"{counter} = 0")
        kind = self.random.randint(0, 3)
        tests = {
            0: f"{counter} < {most}",
            1: f"{counter} < {most} and {self.scope.test(0)}",
            2: f"{self.scope.test(0)} and {counter} < {most}",
            3: "True",
        }
        inner = self.nested(in_loop=True)
        self.write(f"while {tests[kind]}:")
        inner.write(f"{counter} += 1")
        inner.scope.locals[f"{counter}"] = 1
        if kind == 3:
            inner.write(f"if {counter} > {most} or {self.scope.test(0)}:")
            inner.write(INDENT + "break")
        inner.block(1, 4)

    def jump(self) -> None:
        self.write(f"if {self.scope.test(0)}:")
        self.write(INDENT + self.random.choice(("break", "continue")))

    def early_return(self) -> None:
        self.write(f"if {self.scope.test(0)}:")
        self.write(f"{INDENT}return {self.result}")

    # ---- calls and state -------------------------------------------------------------------------
    def call(self) -> None:
        """A call of another function or of a submodule."""
        for _ in range(3):
            found = self.scope.filled(self.random.choice(self.setting.helpers), 1)
            if found is not None and is_tensor(found.value):
                name = self.fresh("v")
                self.write(f"{name} = {found.text}")
                self.scope.locals[name] = found.value
                return

    def attribute(self) -> None:
        """A buffer or a global is read under a name, changed in place, or replaced."""
        target = self.random.choice(self.setting.attributes)
        value = self.scope.evaluate(target)
        match self.random.randint(0, 3):
            case 0:
                name = self.fresh("v")
                self.write(f"{name} = {target}")
                self.scope.locals[name] = value
            case 1 if target.startswith("self."):
                self.write(f"{target} = {self.scope.like(value).text}")
            case 2:
                self.write(f"{target}.copy_({self.scope.like(value).text})")
            case _:
                self.write(f"{target}.mul_(0.5).add_({self.scope.slot('c', 0)})")

    def object_statement(self) -> None:
        template = self.random.choice(self.setting.objects)
        found = self.scope.expression(is_float, 1)
        text = template.replace("{e}", found.text)
        if self.scope.execute(text):
            self.write(text)

    def construct(self) -> None:
        """A statement of one of the families. Its names are known behind it."""
        for _ in range(4):
            template = self.random.choice(self.setting.constructs)
            text = self.scope.fill(template, 1, {"u": self.fresh("u")})
            if self.scope.execute(text):
                for line in text.splitlines():
                    self.write(line)
                return


def returned(scope: Scope, count: int, fixed: Sequence[str] = ()) -> str:
    """A tuple of names for the return of a function."""
    kinds = (is_tensor, is_number, is_tensors, is_plain)
    names = [name for name, value in scope.locals.items() if any(kind(value) for kind in kinds)]
    chosen = [*fixed, *(scope.random.choice(names[-2 * count :]) for _ in range(count))]
    return ", ".join(dict.fromkeys(name for name in chosen if name != "self"))

"""Writes random Python modules: constants, classes, helper functions, a function, and its calls.

`write(kind, seed)` gives the text of a module for a kind of programs and a seed. Which choices are
made is up to hypothesis, so that `smallest` can make fewer and simpler ones. `trial.py` runs it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import reject

from checks.fuzz import choices, templates
from checks.fuzz.choices import Choices
from checks.fuzz.constructs import FAMILIES, IMPORTS
from checks.fuzz.grammar import FUNCTIONS, INSTANCES, RECURSIVE, SIZES, Grammar
from checks.fuzz.records import DTYPES, SHAPES, Class, random_classes, random_object
from checks.fuzz.reference import Counting, EndlessError
from checks.fuzz.scope import Misfit, Scope, is_float, is_object, is_vector, signature
from checks.fuzz.statements import FunctionWriter, returned

HEADER = """\
import torch
from torch import nn
import torch.nn.functional as F

inf, nan = float("inf"), float("nan")


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ints(*shape, seed=0, high=7):
    return torch.randint(-high, high, shape, generator=torch.Generator().manual_seed(seed))
"""

CACHE = """\
class Cache:
    def __init__(self):
        self.n = 0
        self.items = []
        self.h = {tensor}
        self.d = {{}}


C = Cache()
"""
OBJECTS = (
    "C.n += 1", "C.items.append({f})", "C.h = torch.tanh(C.h + ({f}).sum())", "C.d['h'] = {f}",
    "C.h = C.h * 0.5", "C.items = C.items[-2:]",
)  # fmt: skip

SPECIAL = ("1.0", "-0.0", "inf", "nan", "-inf", "0.0", "-2.5", "3e38")
EXTREMES = ("0", "-1", "9223372036854775807", "-9223372036854775808", "2147483648", "3")
SIDES = (3, 2, 1, 3, 4, 4, 5, 7, 8)
RARE_SIDES = (0, 16, 17, 33)
DTYPES_OF_FLOATS = (*["float32"] * 4, "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int64", "int32", "uint8", "int16", "int8")
SUBMODULES = {
    "linear": ("nn.Linear({n}, {n})", "self.linear({f})"),
    "wide": ("nn.Linear({n}, 5, bias=False)", "self.wide({f})"),
    "norm": ("nn.LayerNorm({n})", "self.norm({f})"),
    "gru": ("nn.GRUCell({n}, {n})", "self.gru({f}, {f})"),
    "lstm": ("nn.LSTM({n}, 3, batch_first=True)", "self.lstm({f}[None])[0]"),
    "conv": ("nn.Conv1d({n}, 2, 1)", "self.conv({f}.t()[None])"),
    "table": ("nn.Embedding(5, {n})", "self.table({i}.abs() % 5)"),
    "attention": (
        "nn.MultiheadAttention({n}, 1, batch_first=True)",
        "self.attention({f}[None], {f}[None], {f}[None])[0]",
    ),
    "batchnorm": ("nn.BatchNorm1d({n})", "self.batchnorm({f})"),
    "layers": (
        "nn.ModuleList([nn.Linear({n}, {n}) for _ in range(3)])",
        "self.layers[{k}]({f})",
    ),
}


HELPERS = replace(FUNCTIONS, most_depth=2)


class ModuleWriter:
    """The text of one module, with the names that are defined so far."""

    def __init__(self, draw: Choices) -> None:
        self.draw = draw
        self.parts: list[str] = []
        self.namespace: dict[str, Any] = {}

    def define(self, text: str, *, show: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(text, self.namespace)
        if show:
            self.parts.append(text)

    def scope(self, grammar: Grammar, *samples: dict[str, Any], **held: Any) -> Scope:
        return Scope(self.draw, grammar, self.namespace, list(samples) or [{}], **held)

    def value(self, text: str, **names: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(text, {**self.namespace, **names})

    def text(self) -> str:
        """The module of this writer's kind."""
        raise NotImplementedError


class FunctionsWriter(ModuleWriter):
    """Functions and modules on tensors, with any operators, control flow and state."""

    def __init__(self, draw: Choices) -> None:
        super().__init__(draw)
        self.define(HEADER)
        self.weights: list[str] = []
        sides = (*SIDES, *RARE_SIDES) if draw.chance(0.25) else SIDES
        self.rows, self.columns = draw.one_of(sides), draw.one_of(sides)

    # ---- constants -------------------------------------------------------------------------------
    def tensor(self, ranks: Sequence[int], dtype: str | None = None) -> str:
        """The text of a tensor of one of the ranks."""
        rows, columns = self.rows, self.columns
        shapes: tuple[Sequence[tuple[int, ...]], ...] = (
            [()],
            [(columns,), (columns,), (rows,)],
            [(rows, columns), (columns, columns), (columns, rows), (rows, rows)],
            [(3, columns, columns), (4, rows, columns), (2, columns, rows)],
        )
        shape = self.draw.one_of(shapes[self.draw.one_of(ranks)])
        return self.tensor_of(shape, dtype or self.draw.one_of(DTYPES_OF_FLOATS))

    def tensor_of(self, shape: tuple[int, ...], dtype: str, *, special: bool = False) -> str:
        seed = self.draw.number(0, 99)
        dims = "".join(f"{size}, " for size in shape)
        if dtype == "bool":
            return f"rand({dims}seed={seed}) > 0"
        values = EXTREMES if "int" in dtype else SPECIAL
        text = f"{'ints' if 'int' in dtype else 'rand'}({dims}seed={seed})"
        if special:
            text = _repeated(values, self.draw.number(0, len(values) - 1), shape)
        if "int" in dtype:
            cast = "" if dtype == "int64" else f".to(torch.{dtype})"
            return f"{text}{'.abs()' * (dtype == 'uint8')}{cast}"
        if len(shape) == 2 and not special and self.draw.chance(0.1):
            text = f"rand({shape[1]}, {shape[0]}, seed={seed}).t()"
        text += self.draw.one_of(("", "", " * 3", " * 0.1", " + 1", " - 1"))
        return text if dtype == "float32" else f"({text}).to(torch.{dtype})"

    def constants(self) -> None:
        """Global weights: plain, stacked, slices of others, tied and transposed ones."""
        views = ("[1:]", ".t()", "[0]", ".flatten()", "", ".mT", "[:, 1:]")
        for number in range(self.draw.number(1, 3)):
            text = self.tensor((1, 2, 2, 3), "float32")
            if self.weights and self.draw.chance(0.35):
                text = self.draw.one_of(self.weights) + self.draw.one_of(views)
            with contextlib.suppress(Exception):  # whatever a view raises that there is not
                self.define(f"W{number} = {text}")
                self.weights.append(f"W{number}")

    # ---- functions -------------------------------------------------------------------------------
    def helper(self) -> str | None:
        """A function of one tensor; the template of its call."""
        sample = self.value(self.tensor((1, 2), "float32"))
        scope = self.scope(HELPERS, {"a": sample}, weights=tuple(self.weights), result=("a",))
        body = FunctionWriter(scope)
        body.block(1, 4)
        last = scope.like(scope.values("a")).text
        lines = ["def g(a):", *body.lines, f"    return {last}", ""]
        return self.function_of("\n".join(lines), f"g(torch.zeros({list(sample.shape)}))", "g({f})")

    def recursive(self) -> str | None:
        """A function that calls itself until a number or a tensor ends it."""
        sample = self.value(self.tensor((1, 2), "float32"))
        on_tensor = self.draw.chance(0.5)
        tests = ("n <= 0",) if on_tensor else ("n == 0", "n <= 0 or a.sum() > 5", "n < 1")
        scope = self.scope(HELPERS, {"a": sample, "n": 2}, weights=tuple(self.weights))
        body = FunctionWriter(scope)
        body.write(f"if {self.draw.one_of(tests)}:")
        body.write(f"    return {scope.like(scope.values('a')).text}")
        body.block(1, 3)
        call = f"r({scope.like([sample]).text}, n - 1)"
        ways = (call, f"torch.tanh({call} + a)", f"{call} * 0.5 + r(a, n - 2)", f"a - {call}")
        body.write(f"return {self.draw.one_of(ways)}\n")
        depth, how = "2", self.draw.one_of("123")
        if on_tensor:
            depth, how = "torch.tensor(2)", "{i}.reshape(-1)[0].abs() % 4"
        return self.function_of(
            "\n".join(["def r(a, n):", *body.lines]),
            f"r(torch.zeros({list(sample.shape)}), {depth})",
            f"r({{f}}, {how})",
        )

    def function_of(self, text: str, call: str, template: str) -> str | None:
        """Defines a function that can be called; the template of calls."""
        try:
            self.define(text, show=False)
            with torch.no_grad(), Counting():
                self.value(call)
        except Exception:  # whatever a function raises that cannot be called with this
            return None
        self.parts.append(text)
        return template

    def state(self) -> tuple[list[str], tuple[str, ...]]:
        """Globals that calls change: expressions for tensors, and statements on objects."""
        attributes: list[str] = []
        if self.draw.chance(0.15):
            self.define(f"S = {self.tensor((1,), 'float32')}\n")
            attributes.append("S")
        if not self.draw.chance(0.12):
            return attributes, ()
        self.define(CACHE.format(tensor=self.tensor((1,), "float32")))
        return [*attributes, "C.h"], OBJECTS

    def text(self) -> str:
        self.constants()
        helpers = [self.helper() if self.draw.chance(0.3) else None]
        helpers.append(self.recursive() if self.draw.chance(0.2) else None)
        attributes, objects = self.state()
        parameters: dict[str, str] = {}
        for number in range(self.draw.number(1, 3)):
            dtype = self.draw.one_of((*INTEGERS, "bool")) if self.draw.chance(0.25) else None
            ranks = (0, 1, 1, 2, 2, 2, 3) if number else (1, 2, 2)
            parameters["xyz"[number]] = self.tensor(ranks, dtype if number else "float32")
        calls = [one for one in helpers if one is not None]
        is_module = self.draw.chance(0.35)
        if is_module:
            text, weights, own, submodules = self.module()
            self.define(text, show=False)
            self.namespace["self"] = self.namespace["M"]().eval()
            calls, attributes = calls + submodules, attributes + own
            objects += ("self.n += 1", "self.k = {f}") * self.draw.chance(0.2)
            function = f"{text}\n    def forward(self, {', '.join(parameters)}):\n"
        else:
            weights, function = [], f"def f({', '.join(parameters)}):\n"
        scope = self.scope(
            with_state(FUNCTIONS, calls, attributes, objects),
            {name: self.value(text) for name, text in parameters.items()},
            weights=(*self.weights, *weights),
            attributes=tuple(attributes),
            helpers=tuple(calls),
        )
        indent = 2 if is_module else 1
        self.parts.append(function + "\n".join(self.body(scope, indent)) + "\n")
        self.parts += ["f = M().eval()\n"] * is_module
        self.calls(parameters)
        return "\n\n".join(self.parts)

    def body(self, scope: Scope, indent: int) -> list[str]:
        """The lines of the function that is compiled."""
        body = FunctionWriter(scope, indent=indent)
        if self.draw.chance(0.5):
            body.simple("n0 = 0", {})
        early = tuple(scope.names(is_float)[:2])
        scope.result = early if self.draw.chance(0.4) else ()
        body.indent = 1
        inner = replace(body, lines=list[str]())
        inner.block(2, 10)
        names = returned(scope, self.draw.number(2, 5))
        last = ", ".join(scope.result) if scope.result else names
        inner.write(f"return {last or 'None'}")
        return [*body.lines, *["    " * (indent - 1) + line for line in inner.lines]]

    def module(self) -> tuple[str, list[str], list[str], list[str]]:
        """A class with parameters, buffers and submodules, its weights, buffers and calls."""
        lines = ["class M(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        weights: list[str] = []
        own: list[str] = []
        calls: list[str] = []
        for number in range(self.draw.number(1, 3)):
            text = self.tensor((1, 2, 2, 3), "float32")
            lines.append(f"        self.w{number} = nn.Parameter({text}, requires_grad=False)")
            weights.append(f"self.w{number}")
        for number in range(self.draw.number(0, 2)):
            text = self.tensor((0, 1, 2), "float32")
            lines.append(f"        self.register_buffer('h{number}', {text})")
            own.append(f"self.h{number}")
        for name in self.draw.sample(sorted(SUBMODULES), self.draw.number(0, 3)):
            text, call = SUBMODULES[name]
            lines.append(f"        self.{name} = {text.replace('{n}', str(self.columns or 1))}")
            calls.append(call)
            weights += [f"self.{name}.weight"] * (name in ("linear", "wide"))
        lines += ["        self.n = 0", "        self.k = None"]
        return "\n".join(lines) + "\n", weights, own, calls

    def calls(self, parameters: dict[str, str]) -> None:
        """Calls with the same types and other values; special ones among them."""
        lines = ["def calls():", f"    yield ({', '.join(parameters.values())},)"]
        samples = [self.value(text) for text in parameters.values()]
        for number in range(1, self.draw.number(3, 5)):
            special = number > 1 and self.draw.chance(0.3)
            texts = [
                self.tensor_of(tuple(one.shape), str(one.dtype).partition(".")[2], special=special)
                for one in samples
            ]
            lines.append(f"    yield ({', '.join(texts)},)")
        self.parts.append("\n".join(lines) + "\n")


def with_state(
    base: Grammar, calls: Sequence[str], attributes: Sequence[str], objects: tuple[str, ...]
) -> Grammar:
    """The grammar with statements on state, and with calls."""
    ways = ("{U} = {a}", "{a}.copy_({like})", "{a}.mul_(0.5).add_({c})")
    if any("." in name for name in attributes):
        ways = (*ways, "{a} = {like}")
    groups = {
        "call": (2, ("{U} = {call}",) * bool(calls)),
        "attribute": (2, ways * bool(attributes)),
        "object": (2, objects),
    }
    kept = {name: group for name, group in groups.items() if group[1]}
    return replace(base, statements=base.statements | kept)


def _repeated(values: Sequence[str], start: int, shape: tuple[int, ...]) -> str:
    """The text of a tensor of the values in turn, from the one at `start` on."""
    stop = start + int(torch.Size(shape).numel())
    repeats = -(-stop // len(values))
    return f"torch.tensor([{', '.join(values)}]).repeat({repeats})[{start}:{stop}].view({shape})"


# ---- Python's constructs ---------------------------------------------------------------------
START = ("n1 = int(x.sum().nan_to_num().clamp(-9, 9)) % 4", "p1 = x.reshape(-1)[0].item()")
"""Numbers that depend on a tensor, so that most slots have one."""
GRAD_MODE = "    torch.set_grad_enabled(True)\n"
NUMBERS = {"int": ("1", "2", "3", "0"), "float": ("0.5", "0.1"), "str": ("'a'", "'1'")}


class PythonWriter(FunctionsWriter):
    """Functions of two or three families of constructs."""

    def text(self) -> str:
        names = self.draw.sample(sorted(FAMILIES), self.draw.one_of((1, 2, 2, 3)))
        families = [FAMILIES[name] for name in names]
        self.define(IMPORTS)
        ends = {"cycle": lambda items: iter([*items] * 50)}  # writing has to end
        self.namespace["itertools"] = SimpleNamespace(**{**vars(itertools), **ends})
        for family in families:
            self.define(family.module)
        arguments = {"x": ("float32", self.draw.one_of((1, 1, 1, 2)))}
        if self.draw.chance(0.5):
            arguments["y"] = (
                self.draw.one_of(("int64", "float32", "float64", "bool", "int32")),
                1,
            )
        if self.draw.chance(0.25):
            arguments["n"] = (self.draw.one_of(("int", "float", "str")), -1)
        constructs = sum((family.statements for family in families), ())
        weight = 2 * sum(weight for weight, _ in FUNCTIONS.statements.values())
        scope = self.scope(
            replace(
                FUNCTIONS,
                numbers=sum((family.numbers for family in families), templates.NUMBERS[:8]),
                tests=(sum((family.tests * 2 for family in families), templates.TESTS[:8]),),
                statements={"construct": (weight, constructs), **FUNCTIONS.statements},
                most_lines=14,
            ),
            {
                name: self.value(self.argument(*kind, (3, 3)[: max(kind[1], 0)]))
                for name, kind in arguments.items()
            },
        )
        body = FunctionWriter(scope)
        for line in (*START, *[line for family in families for line in family.start]):
            with contextlib.suppress(Misfit):
                scope.execute(line)
                body.write(line)
        scope.result = ("x",) if self.draw.chance(0.15) else ()
        body.block(2, 7)
        body.write(f"return {returned(scope, self.draw.number(3, 6), ['x'])},")
        self.parts.append("\n".join([f"def f({', '.join(arguments)}):", *body.lines, ""]))
        self.parts.append(f"def calls():\n{GRAD_MODE * ('gradients' in names)}")
        self.parts[-1] += self.python_calls(arguments)
        return "\n\n".join(part for part in self.parts if part)

    def python_calls(self, arguments: dict[str, tuple[str, int]]) -> str:
        """Calls with A, B, A, special values, and of another size."""
        calls: list[str] = []
        for number, size in enumerate((3, 3, 3, 5)):
            texts = [
                self.argument(*kind, (3, size)[-kind[1] :] if kind[1] > 0 else (), number == 2)
                for kind in arguments.values()
            ]
            calls.append(f"    yield ({', '.join(texts)},)\n")
        return "".join([*calls[:2], calls[0], *calls[2:]])

    def argument(self, dtype: str, rank: int, shape: tuple[int, ...], special: bool = False) -> str:
        """The text of an argument; numbers have the rank -1."""
        if rank >= 0:
            return self.tensor_of(shape, dtype, special=special)
        return self.draw.one_of(NUMBERS[dtype])


# ---- sizes -----------------------------------------------------------------------------------
CHOICES_OF_SIZES = ({"a": 5, "b": 3}, {"a": 8, "b": 7}, {"a": 2, "b": 6})
"""Sizes for which expressions are tried while they are written."""
SMALL = (0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 16, 17, 31)
LARGE = (67, 128, 257)
SIZED_WEIGHTS = "W = rand(4, 4, seed=1)\nU = rand(4, seed=2)\nV = rand(3, 4, seed=3)\n"
ARGUMENTS = (
    *["rand(a, 4, seed=s)"] * 3, *["rand(b, 4, seed=s)"] * 2, *["rand(a, b, seed=s)"] * 2,
    *["rand(a, seed=s)"] * 2, "rand(b, seed=s)", "rand(b, a, seed=s).t()", "rand(2, a, 4, seed=s)",
    "rand(a + 1, 4, seed=s)[1:]", "rand(4, seed=s)", "rand(2 * a, 2, seed=s)",
)  # fmt: skip
OTHERS = (
    "ints(a, seed=s)", "ints(b, seed=s)", "rand(a, seed=s) > 0", "rand(b, seed=s) > 0.3",
    "a", "b", "a // 2", "b + 1", "s % 5", "a - 1",
)  # fmt: skip
ONES = ("x", "x * 2", "torch.tanh(x)", "x @ W", "x + U", "torch.tanh(x @ W + U)")


class SizesWriter(ModuleWriter):
    """Functions of tensors of sizes `a` and `b`, called with the same types and other sizes."""

    def text(self) -> str:
        draw = self.draw
        self.define(HEADER)
        self.define(SIZED_WEIGHTS)
        kinds = [draw.one_of(ARGUMENTS) for _ in range(draw.number(1, 3))]
        kinds += draw.sample(OTHERS, draw.number(0, 3))
        names = "xyzuvwpq"[: len(kinds)]
        samples = [
            dict(zip(names, [self.value(kind, **sizes, s=n) for kind in kinds], strict=True))
            for n, sizes in enumerate(CHOICES_OF_SIZES)
        ]
        drawn = SIZES
        if draw.chance(0.4):  # data decide sizes, too
            expressions = (*SIZES.expressions, templates.DECIDED)
            numbers = SIZES.numbers + templates.DECIDED_NUMBERS
            drawn = replace(SIZES, expressions=expressions, numbers=numbers)
        if draw.chance(0.25):
            row = draw.one_of(("0.5", "U", "x[0].sigmoid()"))
            body = draw.one_of(RECURSIVE).format(one=draw.one_of(ONES), row=row)
            lines = "".join(f"    {line}\n" for line in body.splitlines())
            self.define(f"def r(x{', n=3' * ('n - 1' in body)}):\n{lines}")
            calls = ("r({f}[:9])", "r(torch.zeros({n} % 7, 4) + {c})")
            drawn = replace(drawn, expressions=(*drawn.expressions, *[calls] * 3))
        weights = ("W", "W", "U", "V", "W[:2]", "W.t()")
        scope = self.scope(drawn, *samples, weights=weights)
        body = FunctionWriter(scope)
        body.block(1, 6)
        body.write(f"return {returned(scope, 4)},")
        self.parts.append("\n".join([f"def f({', '.join(names)}):", *body.lines, ""]))
        lines = "".join(body.lines)
        small, large = SMALL, LARGE
        if "r(" in lines or "while " in lines:
            small, large = SMALL[:7], SMALL[7:9]
        self.parts.append(self.calls(kinds, small, large[:1] if "for " in lines else large))
        text = "\n\n".join(self.parts)
        if not _eager_calls(text):
            raise Misfit
        return text

    def calls(self, kinds: Sequence[str], small: Sequence[int], large: Sequence[int]) -> str:
        """Small sizes with 0 and 1 among them, and large ones."""
        draw = self.draw
        pairs = [(5, 3), (7, 4), (1, 3), (6, 1), (0, 5), (4, 0), (4, 4), (1, 1)]
        pairs += [(draw.one_of(small), draw.one_of(small)) for _ in range(3)]
        pairs += [(draw.one_of(large), draw.one_of(small))]
        if draw.chance(0.5):
            pairs = draw.sample(pairs, len(pairs))
        lines = ["def calls():", f"    for s, (a, b) in enumerate({pairs!r}):"]
        return "\n".join([*lines, f"        yield ({', '.join(kinds)},)", ""])


def _eager_calls(text: str) -> bool:
    """True where eager computes most of the calls."""
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    failed = 0
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in namespace["calls"]():
            try:
                with Counting():
                    namespace["f"](*args)
            except EndlessError:
                return False
            except Exception:  # whatever a function raises for sizes that do not fit
                failed += 1
    return failed <= 4


# ---- one instance ----------------------------------------------------------------------------
PRELUDE = '''
from __future__ import annotations
import random
from dataclasses import dataclass
from typing import NamedTuple
import torch
import torch.nn.functional as F

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

def quarters(*shape):
    """Numbers that floats have exactly."""
    return (torch.arange(torch.Size(shape).numel()) * 7 % 9 - 4).reshape(shape) / 4

def linear(rows, columns):
    made = torch.nn.Linear(rows, columns).requires_grad_(False)
    made.weight.copy_(quarters(columns, rows))
    made.bias.copy_(quarters(columns))
    return made

MADE = {}
WORDS = torch.nn.Embedding.from_pretrained(quarters(5, 3))
'''
PAIRS = [(rows, columns) for rows in (1, 3, 4) for columns in (1, 3, 4)]
DEFINED = {
    "WORDS": "",
    **{f"W{rows}{columns}": f"quarters({rows}, {columns})" for rows, columns in PAIRS},
    **{f"L{rows}{columns}": f"linear({rows}, {columns})" for rows, columns in PAIRS},
    **{
        "_".join(["C", dtype, *map(str, shape)]): f"quarters(*{shape}).to(torch.{dtype})"
        for dtype in DTYPES
        for shape in SHAPES
    },
}
"""Tensors and layers that the functions may name."""
CALLS = """
def calls():
    r = random.Random({seed})
    MADE.clear()
    first = None
    for size in (7, 1, 2, 0, 33):
        d = 3
        items = [{make} for _ in range(size)]
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
LEVELS = (1, 2, 3, 2, 3, 3, 1)
"""Of the instances that expressions are tried for."""


class InstancesWriter(ModuleWriter):
    """`main(item, n)` for one instance of random classes, and batches of instances for it.

    A program does not change its instance, which a batch refuses.
    """

    def text(self) -> str:
        draw = self.draw
        self.define(PRELUDE)
        classes = random_classes(draw)
        for one in classes:
            self.define(one.source() + "\n")
        for one in classes:
            self.define(one.maker())
        for name, text in DEFINED.items():
            self.define(f"{name} = {text}" if text else "", show=False)
        self.grammar = self.grammar_of(classes)
        names = [one.name for one in classes]
        held = [kind for one in classes for kind in one.fields.values()]
        held = [kind for kind in held if kind.nested and kind.annotation.endswith("None")]
        functions: list[str] = []
        for number in range(draw.one_of((0, 1, 1, 2))):
            kind = draw.one_of(held) if held and draw.chance(0.7) else random_object(draw, names)
            functions.append(self.walk(f"walk{number}", kind.make))
        kind = random_object(draw, names)
        functions.append(self.main(kind.make))
        body = "\n".join(functions)
        named = [n for n, text in DEFINED.items() if text and re.search(rf"\b{n}\b", body)]
        self.parts += [f"{name} = {DEFINED[name]}" for name in named]
        self.parts += [body, CALLS.format(seed=draw.number(0, 999), make=kind.make)]
        return "\n".join(self.parts)

    def grammar_of(self, classes: Sequence[Class]) -> Grammar:
        """Constructors of the classes, and statements that tell them apart."""
        draw, made, held = self.draw, list[str](), dict[str, tuple[str, frozenset[str]]]()
        r = random.Random(0)
        for one in classes:
            given = ", ".join(f"{{:{one.name}.{name}}}" for name in one.fields)
            made.append(f"{one.name}({given})")
            for name, kind in one.fields.items():
                values = [self.value(kind.make, r=r, d=3) for _ in range(20)]
                held[f"{one.name}.{name}"] = kind.plain, frozenset(map(signature, values))
        matches: list[str] = []
        for _ in range(6):
            lines = ["match {y}:"]
            for one, new in zip(draw.sample(classes, 2), "UR", strict=False):
                names = draw.sample(list(one.fields), draw.number(0, 1))
                guard = " if {test}" * draw.chance(0.2)
                given = ", ".join(f"{name}={{{new}}}" for name in names)
                lines += [f"    case {one.name}({given}){guard}:", "        {block}"]
            lines += ["    case _:", "        {block}"] * draw.chance(0.7)
            matches.append("\n".join(lines))
        tests = tuple(f"isinstance({{y}}, {one.name})" for one in classes)
        return replace(
            INSTANCES,
            expressions=(*INSTANCES.expressions, tuple(made)),
            statements={
                **INSTANCES.statements,
                "match": (2, tuple(matches)),
                "make": (1, tuple(f"{{U}} = {text}" for text in made)),
            },
            tests=(INSTANCES.tests[0], INSTANCES.tests[0], (*INSTANCES.tests[0][-4:], *tests)),
            constants=tuple(name for name in DEFINED if name[0] == "C"),
            samples=held,
        )

    def instance_scope(self, make: str) -> Scope:
        r = random.Random(1)
        samples = [{"item": self.value(make, r=r, d=d), "n": n % 4} for n, d in enumerate(LEVELS)]
        return self.scope(self.grammar, *samples)

    def walk(self, name: str, make: str) -> str:
        """A function that calls itself on what its instance holds. It ends by the second
        parameter."""
        scope = self.instance_scope(make)
        body, isolated = FunctionWriter(scope), scope.inner()
        result = isolated.expression(is_vector if self.draw.chance(0.6) else _is_given, 1).text
        self.define(f"def {name}(item, n):\n    return {result}\n", show=False)  # for samples

        def leave(test: str) -> None:
            body.write(f"if {test}:")
            body.write(f"    return {self.similar(body.scope, result)}")

        def narrow(test: Callable[[Any], bool]) -> None:
            body.scope = body.scope.inner([s for s in body.scope.samples if test(s["item"])])

        leave("n <= 0")
        if any(sample["item"] is None for sample in scope.samples):
            leave("item is None")
            narrow(_is_given)
        body.block(1, 2)
        kinds = sorted({type(sample["item"]).__name__ for sample in body.scope.samples})
        if len(kinds) > 1:
            chosen = self.draw.one_of(kinds)
            leave(f"not isinstance(item, {chosen})")
            narrow(lambda item: type(item).__name__ == chosen)
        for held in list(body.scope.held()):
            if held.text.startswith("item.") and held.text.count(".") == 1:
                if all(value is None or is_object(value) for value in held.values):
                    self.recursion(body, f"{name}({held.text}, n - 1)")
                elif all(isinstance(v, list) and all(map(is_object, v)) for v in held.values):
                    self.recursion(body, f"[{name}(e, n - 1) for e in {held.text}]")
        body.block(1, 3)
        body.write(f"return {self.similar(body.scope, result)}\n")
        text = "\n".join([f"def {name}(item, n):", *body.lines])
        self.define(text, show=False)
        calls = (f"{name}({{y}}, {{n}} % 4)", f"{name}({{M}}, {{n}} % 4)")
        self.grammar = replace(self.grammar, expressions=(*self.grammar.expressions, calls))
        return text

    def recursion(self, body: FunctionWriter, call: str) -> None:
        with contextlib.suppress(Misfit):
            body.simple(f"{{U}} = {call}", {"U": body.fresh("U")})

    def similar(self, scope: Scope, text: str) -> str:
        """An expression of the type of another one; else that one."""
        with contextlib.suppress(Misfit):
            return scope.like(scope.values(text)).text
        return text

    def main(self, make: str) -> str:
        scope = self.instance_scope(make)
        body = FunctionWriter(scope)
        held = [one.text for one in scope.held()]
        result = [*scope.names(is_vector)[:1], "n", *self.draw.sample(held, 2)]
        scope.result = tuple(result[: self.draw.number(2, 4)])
        body.block(1, 5)
        names = [name for name in scope.samples[0] if name.isidentifier()]
        ends = [self.similar(scope, one) for one in scope.result]
        ends += self.draw.sample(names, 5)
        return "\n".join(["def main(item, n):", *body.lines, f"    return ({', '.join(ends)},)\n"])


def _is_given(value: Any) -> bool:
    return value is not None


WRITERS: dict[str, Callable[[Choices], ModuleWriter]] = {
    "functions": FunctionsWriter,
    "python": PythonWriter,
    "sizes": SizesWriter,
    "instances": InstancesWriter,
}
"""By the part of the fuzzer."""


def _write(kind: str, draw: Choices) -> str:
    with torch.random.fork_rng(), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(0)
        try:
            return WRITERS[kind](draw).text()
        except Misfit:
            reject()


def write(kind: str, seed: int) -> str:
    """The module of a seed."""
    return choices.drawn(lambda draw: _write(kind, draw), seed)


def smallest(kind: str, seed: int, fails: Callable[[str], bool], seconds: float = 240.0) -> str:
    """The smallest module that fails as the one of the seed does."""
    return choices.smallest(lambda draw: _write(kind, draw), seed, fails, seconds)

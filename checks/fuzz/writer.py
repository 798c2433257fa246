"""Random Python modules: constants, helper functions, classes, the function `f` and its calls.

Everything follows from the seed. `write_source(seed)` gives the text; `trial.py` runs it.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from checks.fuzz.scope import Scope, is_float, is_tensor
from checks.fuzz.statements import FunctionWriter, Setting, returned

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

SPECIAL = ("1.0", "-0.0", "inf", "nan", "-inf", "0.0", "-2.5", "3e38")
EXTREMES = ("0", "-1", "9223372036854775807", "-9223372036854775808", "2147483648", "3")
SIZES = (1, 2, 3, 3, 4, 4, 5, 7, 8)
RARE_SIZES = (0, 16, 17, 33)
DTYPES = ("float32", "float32", "float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int64", "int32", "uint8", "int16", "int8")


class ModuleWriter:
    """The text of one module, with the names that are defined so far."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.parts: list[str] = [HEADER]
        self.namespace: dict[str, Any] = {}
        self.define(HEADER, show=False)
        self.weights: list[str] = []
        sizes = (*SIZES, *RARE_SIZES) if self.random.random() < 0.25 else SIZES
        self.rows, self.columns = self.random.choice(sizes), self.random.choice(sizes)

    def define(self, text: str, *, show: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(text, self.namespace)
        if show:
            self.parts.append(text)

    def scope(self, weights: list[str] | None = None) -> Scope:
        found = self.weights if weights is None else weights
        return Scope(self.random, self.namespace, tuple(found))

    # ---- constants -------------------------------------------------------------------------------
    def shape(self, rank: int) -> tuple[int, ...]:
        rows, columns = self.rows, self.columns
        shapes = {
            0: [()],
            1: [(columns,), (columns,), (rows,)],
            2: [(rows, columns), (columns, columns), (columns, rows), (rows, rows)],
            3: [(3, columns, columns), (4, rows, columns), (2, columns, rows)],
        }
        return self.random.choice(shapes[rank])

    def tensor(self, rank: int, *, dtype: str | None = None, special: bool = False) -> str:
        """The text of a tensor."""
        shape = self.shape(rank)
        return self.tensor_of(shape, dtype or self.random.choice(DTYPES), special=special)

    def tensor_of(self, shape: tuple[int, ...], dtype: str, *, special: bool = False) -> str:
        seed = self.random.randint(0, 99)
        dims = "".join(f"{size}, " for size in shape)
        if dtype == "bool":
            return f"rand({dims}seed={seed}) > 0"
        if "int" in dtype:
            text = f"ints({dims}seed={seed})"
            if special:
                text = _repeated(EXTREMES, self.random.randint(0, 5), shape)
            return (
                f"{text}.abs().to(torch.{dtype})"
                if dtype == "uint8"
                else (text if dtype == "int64" else f"{text}.to(torch.{dtype})")
            )
        text = f"rand({dims}seed={seed})"
        if special:
            text = _repeated(SPECIAL, self.random.randint(0, 7), shape)
        scale = self.random.choice(("", "", " * 3", " * 0.1", " + 1", " - 1"))
        if len(shape) == 2 and self.random.random() < 0.1 and not special:
            text = f"rand({shape[1]}, {shape[0]}, seed={seed}).t()"
        text = f"{text}{scale}"
        return text if dtype == "float32" else f"({text}).to(torch.{dtype})"

    def constants(self) -> None:
        """Global weights: plain, stacked, slices of others, tied and transposed ones."""
        lines: list[str] = []
        for number in range(self.random.randint(1, 3)):
            name = f"W{number}"
            text = self.tensor(self.random.choice((1, 2, 2, 3)), dtype="float32")
            if self.weights and self.random.random() < 0.35:
                other = self.random.choice(self.weights)
                view = self.random.choice(
                    ("[1:]", ".t()", "[0]", ".flatten()", "", ".mT", "[:, 1:]")
                )
                text = f"{other}{view}"
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    value = eval(text, self.namespace)
            except Exception:  # whatever a constant raises that cannot be made
                continue
            self.namespace[name] = value
            self.weights.append(name)
            lines.append(f"{name} = {text}")
        self.parts.append("\n".join(lines) + "\n")

    # ---- functions -------------------------------------------------------------------------------
    def parameters(self) -> dict[str, str]:
        """Names and texts of the first call's arguments."""
        found: dict[str, str] = {}
        for number in range(self.random.randint(1, 3)):
            kind = self.random.random()
            dtype = None if kind < 0.75 else self.random.choice((*INTEGERS, "bool"))
            rank = self.random.choice((0, 1, 1, 2, 2, 2, 3))
            if number == 0:
                dtype, rank = "float32", self.random.choice((1, 2, 2))
            found["xyz"[number]] = self.tensor(rank, dtype=dtype)
        return found

    def helper(self, name: str) -> str | None:
        """A function of one or two tensors; the template of its call."""
        scope = self.scope()
        template = self.tensor(self.random.choice((1, 2)), dtype="float32")
        scope.locals = {"a": scope.evaluate(template)}
        body = FunctionWriter(scope, Setting(depth=1))
        body.result = "a"
        body.block(1, 4)
        last = scope.like(scope.locals["a"])
        text = "\n".join([f"def {name}(a):", *body.lines, f"    return {last.text}", ""])
        shape = list(scope.locals["a"].shape)
        try:
            self.define(text, show=False)
            scope.evaluate(f"{name}(torch.zeros({shape}))")
        except Exception:  # whatever a function raises that cannot be called with this
            return None
        self.parts.append(text)
        return f"{name}({{f}})"

    def recursive(self, name: str) -> str | None:
        """A function that calls itself until a number or a tensor ends it."""
        scope = self.scope()
        sample = scope.evaluate(self.tensor(self.random.choice((1, 2)), dtype="float32"))
        scope.locals = {"a": sample, "n": 2}
        on_tensor = self.random.random() < 0.5
        test = (
            "n <= 0"
            if on_tensor
            else self.random.choice(("n == 0", "n <= 0 or a.sum() > 5", "n < 1"))
        )
        lines = [
            f"def {name}(a, n):",
            f"    if {test}:",
            f"        return {scope.like(sample).text}",
        ]
        body = FunctionWriter(scope, Setting(depth=2))
        body.block(0, 2)
        argument = scope.like(sample).text
        call = f"{name}({argument}, n - 1)"
        ways = (call, f"torch.tanh({call} + a)", f"{call} * 0.5 + {name}(a, n - 2)", f"a - {call}")
        lines += [*body.lines, f"    return {self.random.choice(ways)}", ""]
        text = "\n".join(lines)
        depth = "torch.tensor(2)" if on_tensor else "2"
        try:
            self.define(text, show=False)
            scope.evaluate(f"{name}(torch.zeros({list(sample.shape)}), {depth})")
        except Exception:  # whatever a function raises that cannot be called with this
            return None
        self.parts.append(text)
        how = "{i}.reshape(-1)[0].abs() % 4" if on_tensor else self.random.choice("123")
        return f"{name}({{f}}, {how})"

    def helpers(self) -> list[str]:
        found: list[str | None] = []
        if self.random.random() < 0.3:
            found.append(self.helper("g"))
        if self.random.random() < 0.2:
            found.append(self.recursive("r"))
        return [template for template in found if template is not None]

    def state(self) -> tuple[list[str], list[str]]:
        """Globals that calls change: expressions for tensors, and statements on objects."""
        attributes: list[str] = []
        objects: list[str] = []
        if self.random.random() < 0.15:
            self.define(f"S = {self.tensor(1, dtype='float32')}\n")
            attributes.append("S")
        if self.random.random() < 0.12:
            self.define(CACHE.format(tensor=self.tensor(1, dtype="float32")))
            attributes.append("C.h")
            objects += [
                "C.n += 1",
                "C.items.append({e})",
                "C.h = torch.tanh(C.h + ({e}).sum())",
                "C.d['h'] = {e}",
                "C.h = C.h * 0.5",
                "C.items = C.items[-2:]",
            ]
        return attributes, objects

    def function(self) -> None:
        """`f`, a plain function or a module, and `calls`."""
        helpers = self.helpers()
        attributes, objects = self.state()
        parameters = self.parameters()
        if self.random.random() < 0.35:
            self.module(parameters, helpers, attributes, objects)
            return
        scope = self.scope()
        scope.locals = {name: scope.evaluate(text) for name, text in parameters.items()}
        setting = Setting(
            attributes=tuple(attributes), helpers=tuple(helpers), objects=tuple(objects)
        )
        self.parts.append(f"def f({', '.join(parameters)}):\n" + self.body(scope, setting))
        self.calls(parameters)

    def body(self, scope: Scope, setting: Setting) -> str:
        """The lines of the function that is compiled."""
        start = FunctionWriter(scope, setting)
        if self.random.random() < 0.5:
            start.write("n0 = 0")
            scope.locals["n0"] = 0
        for _ in range(self.random.randint(0, 2)):
            start.fresh_value()
        floats = scope.names(is_float)
        start.result = ", ".join(dict.fromkeys(floats[:2])) or "None"
        early = self.random.random() < 0.4
        body = FunctionWriter(
            scope, setting, start.lines, 1, start.counters, start.result if early else None
        )
        body.block(3, 7)
        fixed = [start.result] if early else []
        last = start.result if early else returned(scope, self.random.randint(2, 5), fixed)
        body.write(f"return {last or 'None'}")
        return "\n".join(body.lines) + "\n"

    def module(
        self,
        parameters: dict[str, str],
        helpers: list[str],
        attributes: list[str],
        objects: list[str],
    ) -> None:
        """A class with parameters, buffers and submodules, and its `forward`."""
        lines = ["class M(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        weights = list(self.weights)
        own = list(attributes)
        helpers = list(helpers)
        size = self.columns or 1
        for number in range(self.random.randint(1, 3)):
            text = self.tensor(self.random.choice((1, 2, 2, 3)), dtype="float32")
            lines.append(f"        self.w{number} = nn.Parameter({text}, requires_grad=False)")
            weights.append(f"self.w{number}")
        for number in range(self.random.randint(0, 2)):
            text = self.tensor(self.random.choice((0, 1, 2)), dtype="float32")
            lines.append(f"        self.register_buffer('h{number}', {text})")
            own.append(f"self.h{number}")
        submodules = {
            "linear": (f"nn.Linear({size}, {size})", "self.linear({f})"),
            "wide": (f"nn.Linear({size}, 5, bias=False)", "self.wide({f})"),
            "norm": (f"nn.LayerNorm({size})", "self.norm({f})"),
            "gru": (f"nn.GRUCell({size}, {size})", "self.gru({f}, {f})"),
            "lstm": (f"nn.LSTM({size}, 3, batch_first=True)", "self.lstm({f}[None])[0]"),
            "conv": (f"nn.Conv1d({size}, 2, 1)", "self.conv({f}.t()[None])"),
            "table": (f"nn.Embedding(5, {size})", "self.table({i}.abs() % 5)"),
            "attention": (
                f"nn.MultiheadAttention({size}, 1, batch_first=True)",
                "self.attention({f}[None], {f}[None], {f}[None])[0]",
            ),
            "batchnorm": (f"nn.BatchNorm1d({size})", "self.batchnorm({f})"),
            "layers": (
                f"nn.ModuleList([nn.Linear({size}, {size}) for _ in range(3)])",
                "self.layers[{k}]({f})",
            ),
        }
        for name in self.random.sample(sorted(submodules), self.random.randint(0, 3)):
            text, call = submodules[name]
            lines.append(f"        self.{name} = {text}")
            helpers.append(call)
            if name in ("linear", "wide"):
                weights.append(f"self.{name}.weight")
        lines += ["        self.n = 0", "        self.k = None"]
        text = "\n".join(lines) + "\n"
        self.define(text, show=False)
        scope = self.scope(weights)
        scope.globals["self"] = self.namespace["M"]().eval()
        scope.locals = {name: scope.evaluate(text) for name, text in parameters.items()}
        if self.random.random() < 0.2:
            objects = [*objects, "self.n += 1", "self.k = {e}"]
        setting = Setting(attributes=tuple(own), helpers=tuple(helpers), objects=tuple(objects))
        body = self.body(scope, setting)
        indented = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
        self.parts.append(f"{text}\n    def forward(self, {', '.join(parameters)}):\n{indented}")
        self.parts.append("f = M().eval()\n")
        self.calls(parameters)

    def calls(self, parameters: dict[str, str]) -> None:
        """Calls with the same types and other values; special ones among them."""
        samples = {name: eval(text, self.namespace) for name, text in parameters.items()}
        lines = ["def calls():"]
        for number in range(self.random.randint(3, 5)):
            special = number > 1 and self.random.random() < 0.3
            texts: list[str] = []
            for name, sample in samples.items():
                if number == 0:
                    texts.append(parameters[name])
                elif is_tensor(sample):
                    dtype = str(sample.dtype).removeprefix("torch.")
                    texts.append(self.tensor_of(tuple(sample.shape), dtype, special=special))
            lines.append(f"    yield ({', '.join(texts)},)")
        self.parts.append("\n".join(lines) + "\n")

    def text(self) -> str:
        self.constants()
        self.function()
        return "\n\n".join(self.parts)


def _repeated(values: Sequence[str], start: int, shape: tuple[int, ...]) -> str:
    """The text of a tensor of the values in turn, from the one at `start` on."""
    stop = start + int(torch.Size(shape).numel())
    repeats = -(-stop // len(values))
    return f"torch.tensor([{', '.join(values)}]).repeat({repeats})[{start}:{stop}].view({shape})"


def write_source(seed: int) -> str:
    """The module of a seed."""
    torch.manual_seed(seed)
    return ModuleWriter(seed).text()

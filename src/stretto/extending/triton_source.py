"""Extraction of a user's Triton function, with everything that it refers to, as text for
any module; and the errors of that text.

    BLOCK = tl.constexpr(64)                    BLOCK_3fa2 = tl.constexpr(64)

    @triton.jit                                 @triton.jit
    def half(x):                                def half_3fa2(x):
        return x * 0.5                              return x * 0.5
                                      becomes
    @triton.jit                                 @triton.jit
    def tile(i, x, out):                        def tile_3fa2(i, x, out):
        at = i.begin + tl.arange(0, BLOCK)          at = i.begin + tl.arange(0, BLOCK_3fa2)
        ...                                         ...

The suffix is a digest of the whole text, so that no other name in a module collides
with these, and code compiled from other text is never mistaken for this one. Lines
correspond one to one, so that a line of the text identifies the user's line.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from stretto.device.operator import Kernel
from stretto.device.user_kernels import TritonCode, TritonPart, UserKernel, called_kernels
from stretto.errors import BuildError, SourceLocation

_ABSENT: Any = object()
PROGRAM_ONLY = ("program_id", "num_programs")
"""Names of Triton that concern the whole program, which a part of it must not use."""


def read_triton(
    function: Any, before: Sequence[str], numbers: Sequence[str], result: str
) -> TritonCode:
    """Return the text of a function of `triton.jit`, which will be called with indices and
    tensors (`before`), numbers, and the result.

    Raises ValueError, with the user's line, if `function` is something else, if its
    parameters differ from these, and if it refers to a value that Triton would not accept.
    """
    if not _is_jit_function(function):
        raise ValueError(f"`triton` must be a function of triton.jit, and not {function!r}")
    arguments = (*before, *numbers, result)
    text = "\n".join(part.text for part in _Extractor("").read(function, arguments, numbers).parts)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return _Extractor(f"_{digest}").read(function, arguments, numbers)


def _is_jit_function(value: Any) -> bool:
    """Return True for functions of triton.jit, compiled or (with TRITON_INTERPRET) interpreted."""
    kinds = ("JITFunction", "InterpretedFunction")
    return type(value).__name__ in kinds and inspect.isfunction(getattr(value, "fn", None))


@dataclass(slots=True)
class _Extractor:
    """Collects the definitions that a function needs. names: new names, by the identity of the
    value. suffix: appended to all names. kept: the values, so that identities are not reused."""

    suffix: str
    names: dict[int, str] = field(default_factory=dict[int, str])
    parts: dict[str, TritonPart] = field(default_factory=dict[str, TritonPart])
    kept: list[Any] = field(default_factory=list[Any])

    def read(self, function: Any, arguments: Sequence[str], numbers: Sequence[str]) -> TritonCode:
        source = _Source.of(function.fn)
        given = source.node.args
        named = [*given.posonlyargs, *given.args]
        plain = not (given.vararg or given.kwarg or given.kwonlyargs or given.defaults)
        if not plain or len(named) != len(arguments):
            source.refuse(
                source.node,
                f"it is called with ({', '.join(arguments)}): give it one parameter for each",
            )
        pairs = list(zip(named, arguments, strict=True))
        known = {name for node, name in pairs if _is_constexpr(node.annotation)}
        for node, name in pairs:
            if name in known and name not in numbers:
                source.refuse(node, f"`{node.arg}` is no number, so it is no tl.constexpr")
        entry = self.function(function)
        return TritonCode(entry, tuple(self.parts.values()), frozenset(known))

    def function(self, function: Any) -> str:
        """Return the new name of a function, and add it to the parts, after everything that it
        refers to."""
        if id(function) in self.names:
            return self.names[id(function)]
        name = self.name(function, function.fn.__name__)
        source = _Source.of(function.fn)
        edits = _Edits(self, source)
        edits.visit_function()
        body = source.edited(edits.found, name)
        options = "(noinline=True)" if getattr(function, "noinline", False) else ""
        self.parts[name] = TritonPart(name, f"@triton.jit{options}\n{body}\n", source.location)
        return name

    def constant(self, value: Any, hint: str, text: str) -> str:
        """Return the new name of a number of the user, and add it to the parts."""
        if id(value) not in self.names:
            name = self.name(value, hint)
            self.parts[name] = TritonPart(name, f"{name} = tl.constexpr({text})\n")
        return self.names[id(value)]

    def module(self, value: ModuleType) -> str:
        """Return the name of a module of Triton, which is imported if necessary."""
        if value.__name__ in ("triton", "triton.language"):
            return {"triton": "triton", "triton.language": "tl"}[value.__name__]
        self.parts[value.__name__] = TritonPart(value.__name__, f"import {value.__name__}\n")
        return value.__name__

    def name(self, value: Any, hint: str) -> str:
        self.kept.append(value)  # an identity is unique only while its object lives
        known = {*self.names.values()}
        base, number, name = hint, 1, f"{hint}{self.suffix}"
        while name in known:
            number += 1
            name = f"{base}_{number}{self.suffix}"
        self.names[id(value)] = name
        return name


# ---- the source of a function --------------------------------------------------------------------

_Edit = tuple[tuple[int, int], tuple[int, int], str]
"""A replacement: from (line, column in bytes), to (line, column), and the new text."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The lines of a function from its `def` on, with their positions in `node`."""

    function: Any
    lines: tuple[str, ...]
    node: ast.FunctionDef
    location: SourceLocation

    @staticmethod
    def of(function: Any) -> _Source:
        try:
            lines, first = inspect.getsourcelines(function)
            file = inspect.getsourcefile(function) or function.__code__.co_filename
        except (OSError, TypeError) as error:
            raise ValueError(
                f"the source of {function.__name__} cannot be read: {error}"
            ) from error
        text = textwrap.dedent("".join(lines))
        node = ast.parse(text).body[0]
        if not isinstance(node, ast.FunctionDef):
            raise ValueError(f"{function.__name__} is no function with a `def`")
        place = SourceLocation(file, first + node.lineno - 1, function=function.__name__)
        return _Source(function, tuple(text.splitlines()), node, place)

    def refuse(self, node: Any, reason: str) -> NoReturn:
        line = self.location.line + node.lineno - self.node.lineno
        raise ValueError(
            f"the Triton function {self.function.__name__} "
            f"({self.location.file}, line {line}): {reason}"
        )

    def scope(self) -> Mapping[str, Any]:
        return {**self.function.__globals__, **inspect.getclosurevars(self.function).nonlocals}

    def edited(self, edits: Sequence[_Edit], name: str) -> str:
        """Return the text with its edits, and with the function renamed."""
        lines = [line.encode() for line in self.lines]
        for (line, column), (last, end), text in sorted(edits, reverse=True):
            rest = lines[last - 1][end:]
            # The replaced text had line ends only inside brackets; lines must keep their numbers.
            ends = b"\n" * (last - line)
            lines[line - 1] = lines[line - 1][:column] + text.encode() + ends + rest
            del lines[line:last]
        first, last = self.node.lineno - 1, self.node.end_lineno or len(lines)
        removed = len(self.lines) - len(lines)
        text = b"\n".join(lines[first : last - removed]).decode()
        return re.sub(rf"^(\s*def\s+){self.node.name}\b", rf"\g<1>{name}", text)


class _Edits(ast.NodeVisitor):
    """Finds the names in a function that are not local to it, and their replacements."""

    def __init__(self, reader: _Extractor, source: _Source) -> None:
        self.reader, self.source, self.scope = reader, source, source.scope()
        self.found: list[_Edit] = []
        nodes = list(ast.walk(source.node))
        self.own = {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.own |= {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    def visit_function(self) -> None:
        node = self.source.node
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.annotation(argument.annotation)
        self.annotation(node.returns)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def annotation(self, node: ast.expr | None) -> None:
        """Replace an annotation, of which Triton reads `tl.constexpr` only."""
        if node is None or isinstance(node, ast.Constant):
            return
        self.replace(node, "tl.constexpr" if _is_constexpr(node) else "None")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.source.refuse(node, "Triton takes no function in a function")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id not in self.own:
            value = self.value(node)
            if value is not _ABSENT:
                self.replace(node, self.text(node, value, node.id))
            elif not hasattr(builtins, node.id):
                self.source.refuse(node, f"`{node.id}` is not defined")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        holder = self.value(node.value)
        if isinstance(holder, ModuleType) and not _is_of_triton(holder):
            value = getattr(holder, node.attr, _ABSENT)
            self.replace(node, self.text(node, value, node.attr, is_attribute=True))
        else:
            if _is_of_triton(holder) and node.attr in PROGRAM_ONLY:
                self.refuse_program(node, node.attr)
            self.generic_visit(node)

    def value(self, node: ast.expr) -> Any:
        """Return the value of a global name, or of a name in a module; _ABSENT if it is local or
        undefined."""
        match node:
            case ast.Name(id=name) if name not in self.own:
                return self.scope.get(name, _ABSENT)
            case ast.Attribute(value=inner, attr=name):
                holder = self.value(inner)
                is_module = isinstance(holder, ModuleType) and not _is_of_triton(holder)
                return getattr(holder, name, _ABSENT) if is_module else _ABSENT
            case _:
                return _ABSENT

    def text(self, node: ast.expr, value: Any, hint: str, is_attribute: bool = False) -> str:
        """Return the text that represents a value in the new module."""
        if type(value).__name__ == "constexpr":
            return self.number(node, value, value.value, hint)
        if is_attribute and isinstance(value, int | float):  # as math.pi
            return self.number(node, value, value, hint)
        found = self.path(value) if _is_of_triton(value) else None
        if found is not None and found.rpartition(".")[2] in PROGRAM_ONLY:
            self.refuse_program(node, hint)
        if found is not None:
            return found
        if _is_jit_function(value):
            name = self.reader.names.get(id(value))
            if name is not None and name not in self.reader.parts:
                self.source.refuse(node, f"`{hint}` calls itself, which Triton cannot")
            return self.reader.function(value)
        if isinstance(value, bool | int | float | str):
            self.source.refuse(
                node, f"Triton reads a global such as `{hint}` only as {hint} = tl.constexpr(...)"
            )
        self.source.refuse(node, f"`{hint}` is nothing that a Triton function can refer to")

    def refuse_program(self, node: ast.expr, name: str) -> NoReturn:
        self.source.refuse(
            node,
            f"`{name}` is that of the whole program: use the ranges, which a task has to compute",
        )

    def number(self, node: ast.expr, owner: Any, value: Any, hint: str) -> str:
        if isinstance(value, float) and not isfinite(value):
            return self.reader.constant(owner, hint, f'float("{value}")')
        if isinstance(value, bool | int | float | str | None):
            return self.reader.constant(owner, hint, repr(value))
        found = self.path(value) if _is_of_triton(value) else None
        if found is None:
            self.source.refuse(node, f"`{hint}` is {value!r}: a constant is a number or a dtype")
        return self.reader.constant(owner, hint, found)

    def path(self, value: Any) -> str | None:
        """Return the qualified name of a value of Triton, or None if it has none."""
        if isinstance(value, ModuleType):
            return self.reader.module(value)
        home = getattr(value, "__module__", "")
        for module in ("triton.language", "triton", "triton.language.math", home):
            holder = sys.modules.get(module)
            for name, other in vars(holder).items() if holder is not None else ():
                if other is value and isinstance(holder, ModuleType):
                    return f"{self.reader.module(holder)}.{name}"
        return None

    def replace(self, node: ast.expr, text: str) -> None:
        source = self.source
        first, last = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        lines = source.lines[node.lineno - 1 : node.end_lineno]
        written = ast.get_source_segment("\n".join(source.lines), node)
        if written == text:
            return
        is_there = len(lines) > 1 or (isinstance(written, str) and _equal(written, node))
        if last[0] is None or last[1] is None or not is_there:
            source.refuse(node, f"`{ast.unparse(node)}` cannot be replaced there: move it out")
        if text.partition(".")[0] in self.own:
            source.refuse(node, f"a variable must not be called {text.partition('.')[0]}")
        self.found.append((first, (last[0], last[1]), text))


def _is_constexpr(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    return str(text).rpartition(".")[2] == "constexpr"


def _equal(written: str, node: ast.expr) -> bool:
    """Return True if a text is the source of a node. In an f-string Python 3.11 gives wrong
    positions."""
    try:
        return ast.unparse(ast.parse(written, mode="eval").body) == ast.unparse(node)
    except SyntaxError:
        return False


def _is_of_triton(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and (name == "triton" or name.startswith("triton."))


# ---- The text in a module, and errors in it.

TYPES = Path(__file__).parent / "tile.py"


def definitions(kernels: Iterable[UserKernel]) -> list[str]:
    """Return the text that a module needs to call them: their types, and the users' functions."""
    codes = [kernel.triton for kernel in kernels if kernel.triton is not None]
    if not codes:
        return []
    text = TYPES.read_text()
    types = "from typing import Any, NamedTuple\n\n" + text[text.index("# ---- ") :]
    return [types, *dict.fromkeys(part.text for code in codes for part in code.parts)]


def user_names(kernels: Iterable[Kernel]) -> set[str]:
    """Return the names that the users' Triton source defines in a module."""
    codes = (kernel.triton for kernel in called_kernels(kernels))
    return {part.name for code in codes if code is not None for part in code.parts}


def located(
    text: str, line: int, kernels: Iterable[UserKernel]
) -> tuple[UserKernel, SourceLocation] | None:
    """Return the user's line that a line of a module comes from, or the user's function that it
    calls, and the kernel; None if it is neither."""
    for kernel in kernels:
        for part in kernel.triton.parts if kernel.triton is not None else ():
            place = text.find(part.text)
            if place < 0 or part.location is None:
                continue
            ahead = line - (text.count("\n", 0, place) + 2)  # the decorator takes a line
            if 0 <= ahead < part.text.count("\n") - 1:
                return kernel, replace(part.location, line=part.location.line + ahead)
    called = text.splitlines()[line - 1]
    for kernel in kernels:
        for part in kernel.triton.parts if kernel.triton is not None else ():
            if part.location is not None and f"{part.name}(" in called:
                return kernel, part.location
    return None


def rejected(reason: str, text: str, line: int, kernels: Iterable[UserKernel]) -> BuildError | None:
    """Return the error for a line that is the user's; None for any other line."""
    found = located(text, line, kernels)
    if found is None:
        return None
    kernel, place = found
    return BuildError(
        f"the Triton of the kernel of {kernel.name} does not compile: {reason}",
        location=place,
        remedy="correct the source; the docs of stretto.kernel list the function's arguments",
        op=place.source().strip(),
    )

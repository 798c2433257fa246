"""Value names for the printer of Programs; the tokens, types and sizes for its parser."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from stretto.errors import VerifyError
from stretto.ir.core import Function, Value, Variable
from stretto.ir.data import InstanceFunction
from stretto.ir.rewrite import defined_values
from stretto.ir.size_bounds import at_most, maximum, minimum, with_maximum_outside
from stretto.ir.sizes import Size, Symbol
from stretto.ir.types import (
    NEVER,
    DictType,
    Dim,
    DType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorListType,
    TensorType,
    TupleType,
    union,
)
from stretto.reader import Reader
from stretto.text import caret

# ---- Parsing of sizes, such as `2*n + 1` or `max(0, n - 3)` ---------------------------------


def parse_size(text: str, symbols: Mapping[str, Symbol] | None = None) -> int | Size:
    """Return the size for `text`; a name that is not in `symbols` becomes a symbol of the
    default range.

    Raise VerifyError if the text is not a formula over names.
    """
    known = symbols or {}
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise VerifyError(f"the size `{text}` is not a name or a formula over names") from None
    return with_maximum_outside(_read(tree, known)).dim


_CALLS: dict[str, Callable[..., Size]] = {"max": maximum, "min": minimum}


def _read(node: ast.expr, known: Mapping[str, Symbol]) -> Size:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return Size(const=value)
        case ast.Name(id=name):
            return Size.of(known.get(name) or Symbol(name))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand, known)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _read(left, known) + _read(right, known)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _read(left, known) - _read(right, known)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _read(left, known) * _read(right, known)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod() as op, right=right):
            divisor = _read(right, known)
            if not at_most(1, divisor):
                raise VerifyError(f"the divisor in the size `{ast.unparse(node)}` may be 0")
            size = _read(left, known)
            return size // divisor if isinstance(op, ast.FloorDiv) else size % divisor
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as items, keywords=[]):
            if name in _CALLS:
                return _CALLS[name](*(_read(item, known) for item in items))
        case _:
            pass
    raise VerifyError(f"`{ast.unparse(node)}` is not a formula that sizes may have")


PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""Names of functions and values that need no quotes."""

_TYPES: dict[str, DType] = {item.value: item for item in DType}
_SCALARS: dict[str, Scalar] = {item.value: item for item in Scalar}


class ObjectNames:
    """Names of static objects in texts, and the objects by name."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def name(self, item: Any) -> str:
        """Return the name of an object with its `$`; different objects have different names."""
        if id(item) not in self._names:
            base = re.sub(r"[^A-Za-z0-9_.]", "_", _title(item)).strip("_") or "object"
            name, repeat = base, 0
            while name in self.objects:
                repeat += 1
                name = f"{base}_{repeat}"
            self.objects[name] = item
            self._names[id(item)] = name
        return f"${self._names[id(item)]}"


def _title(item: Any) -> str:
    if isinstance(item, torch.Tensor):
        return f"{str(item.dtype).removeprefix('torch.')}.{'x'.join(map(str, item.shape))}"
    return getattr(item, "__name__", type(item).__name__)


class PrintedNames:
    """The printed name of each value of a function. blocks: True if nested blocks are printed.
    objects: the names of static objects. has_jumps: True if jumps may leave blocks."""

    def __init__(
        self, function: Function, *, blocks: bool = True, objects: ObjectNames | None = None
    ) -> None:
        self.blocks = blocks
        self.objects = ObjectNames() if objects is None else objects
        self.has_jumps = isinstance(function, InstanceFunction)
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._numbered = 0
        for value in defined_values(function.body):
            if value not in self._names:
                self._names[value] = self._choose(value.hint)

    def __getitem__(self, value: Value) -> str:
        """Return the name with its `%`; a value that the function does not define becomes
        `%undefined.*`."""
        name = self._names.get(value)
        return f"%{name}" if name is not None else f"%undefined.{value.hint or 'value'}"

    def __contains__(self, value: Value) -> bool:
        """Return True for a value that the function defines."""
        return value in self._names

    def all(self, values: Iterable[Value]) -> str:
        return ", ".join(self[value] for value in values)

    def _choose(self, hint: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_.]", "_", hint)
        if not base:
            self._numbered += 1
            return str(self._numbered - 1)
        base = base if PLAIN_NAME.fullmatch(base) else f"v{base}"
        name, repeat = base, self._repeats.get(base, 0)
        while name in self._taken:
            repeat += 1
            name = f"{base}_{repeat}"
        self._repeats[base] = repeat
        self._taken.add(name)
        return name


class ProgramReader(Reader):
    """Parses one function after another; an error is a VerifyError with line and caret.

    symbols: those that the current function declares. scope: the values that may be used here.
    """

    token = re.compile(
        r"""(?P<value>%[A-Za-z0-9_.]+)
        | (?P<function>@(?:[A-Za-z_][A-Za-z0-9_.]*|"(?:[^"\\]|\\.)*"))
        | (?P<string>"(?:[^"\\]|\\.)*")
        | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?))
        | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
        | `(?P<symbol>[^`]*)`
        | \$(?P<object>[A-Za-z0-9_.]+)
        | (?P<punctuation>->|[(){}\[\]<>,:=|#?])""",
        re.VERBOSE,
    )
    space = re.compile(r"(?:\s|//[^\n]*)*")

    def __init__(self, text: str, objects: Mapping[str, Any] | None = None) -> None:
        self.objects = objects or {}
        super().__init__(text)
        self.begin_function()

    def begin_function(self) -> None:
        """Clear the symbols and values of the previous function."""
        self.symbols: dict[str, Symbol] = {}
        self.scope: dict[str, Value] = {}
        self._names: set[str] = set()
        self.has_jumps = False

    def object(self, name: str) -> Any:
        """Return the static object of a name."""
        return self.objects[name] if name in self.objects else self.fail(f"no object ${name}")

    def error(self, message: str, line: int, column: int, source: str) -> VerifyError:
        place = f"line {line}, column {column}"
        return VerifyError(f"{place}: {message}\n{source}\n{caret(source, column - 1)}")

    def define(self, name: str, type: Any) -> Value:
        """Define a value; fail if the function already has one of that name, except a variable of
        this type."""
        if self.has_jumps and name in self.scope and str(self.scope[name].type) == str(type):
            return self.scope[name]
        if name in self._names:
            self.fail(f"{name} is defined twice")
        self._names.add(name)
        hint = "" if name[1:].isdecimal() else name[1:]
        value = Variable(hint, type) if self.has_jumps else Value(type, hint)
        self.scope[name] = value
        return value

    def use(self) -> Value:
        """Parse the name of a value in scope."""
        name = self.next("value", "a value")
        if name not in self.scope:
            self.fail(f"{name} is not defined here")
        return self.scope[name]

    def type(self) -> Any:
        """Parse a type."""
        found = [self._one_type()]
        while self.accept("|"):
            found.append(self._one_type())
        return union(found) if len(found) > 1 else found[0]

    def _one_type(self) -> Any:
        if self.peek() == "(":
            return TupleType(self.items(self.type))
        word = self.next("word", "a type")
        if word in ("list", "tuple", "dict") and self.accept("<"):
            found = self._container(word)
            self.expect(">")
            return found
        if word in _TYPES and self.peek() == "[":
            return self._tensor(_TYPES[word])
        if word in _SCALARS:
            return _SCALARS[word]
        if word == "never":
            return NEVER
        if word.startswith("record") and word[6:].isdecimal():
            return RecordType(int(word[6:]))
        return self.fail(f"`{word}` is not a type")

    def _container(self, word: str) -> TensorListType | ListType | DictType:
        if word == "dict":
            key = self.next("word", "the type of keys")
            self.expect(",")
            return DictType(_SCALARS[key], int(self.next("number", "a cell")))
        if (cell := self.take("number")) is not None:
            return ListType(int(cell), word == "tuple")
        element = self.type()
        if not isinstance(element, TensorType):
            self.fail("a list holds tensors")
        return TensorListType(element)

    def _tensor(self, dtype: DType) -> TensorType | RowsType:
        here = self.position
        self.expect("[")
        if not self.accept("?"):
            self.move(here)
            return TensorType(dtype, self._dims())
        dims: list[int] = []
        while self.accept(","):
            dims.append(int(self.next("number", "a dim")))
        self.expect("]")
        return RowsType(TensorType(dtype, tuple(dims)))

    def _dims(self) -> tuple[Dim, ...]:
        self.expect("[")
        depth, end = 0, self.position
        pieces = [end]
        while end < len(self.text) and (depth or self.text[end] != "]"):
            depth += {"(": 1, ")": -1}.get(self.text[end], 0)
            if self.text[end] == "," and not depth:
                pieces.append(end + 1)
            end += 1
        texts = [
            self.text[first : last - 1].strip()
            for first, last in zip(pieces, [*pieces[1:], end + 1], strict=True)
        ]
        self.move(end)
        self.expect("]")
        if texts == [""]:
            return ()
        if "" in texts:
            self.fail("a dim is missing")
        return tuple(self.size(item) for item in texts)

    def size(self, text: str) -> Dim:
        """Parse a size over the declared symbols; undeclared ones get the default range."""
        if text.isdecimal():
            return int(text)
        try:
            return parse_size(text, self.symbols)
        except VerifyError as error:
            self.fail(error.message)

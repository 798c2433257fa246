"""Reads the text that `ir.printer` writes. A mistake is a VerifyError with line and caret."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch

from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.failure import Failure
from stretto.ir.ops import (
    Argument,
    CallOp,
    CheckOp,
    ConstantOp,
    ForOp,
    IfOp,
    ListExtendOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    LiteralOp,
    SizeOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.scanner import Scanner
from stretto.ir.sizes import Size, Symbol
from stretto.ir.types import INDEX, Type

_ATTRIBUTES: dict[str, Argument] = {"None": None, "True": True, "False": False}


def parse_program(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Program:
    """The Program that the text says, with the tensors its `constant` ops name."""
    scanner = Scanner(text)
    functions: dict[str, Function] = {}
    while not scanner.at_end():
        function = _FunctionParser(scanner).function()
        if function.name in functions:
            scanner.fail(f"function @{function.name} is defined twice")
        functions[function.name] = function
    return Program(functions, dict(constants or {}))


def parse_type(text: str) -> Type:
    """A type as it is printed, as `f32[2, s0]` or `list<f32[]>`."""
    scanner = Scanner(text)
    found = scanner.type()
    if not scanner.at_end():
        scanner.fail("expected the end of the type")
    return found


class _FunctionParser:
    """One function: the values that are in scope, and a method per piece of syntax."""

    def __init__(self, scanner: Scanner) -> None:
        self.scan = scanner
        self.scope: dict[str, Value] = {}
        self.names: set[str] = set()

    def function(self) -> Function:
        scan = self.scan
        scan.keyword("func")
        name = self.function_name()
        scan.symbols = self.declarations() if scan.accept("[") else {}
        scan.expect("(")
        params = scan.separated(self.parameter, ")")
        scan.expect("->")
        scan.expect("(")
        types = scan.separated(scan.type, ")")
        function = Function(name, self.block(params, "return"))
        if function.result_types != types:
            scan.fail(f"@{name} does not return the types that its first line says")
        return function

    def declarations(self) -> dict[str, Symbol]:
        """`0 <= n <= 64, 2 <= m usually 9]`: the symbols of which something is known."""
        return {symbol.name: symbol for symbol in self.scan.separated(self.declaration, "]")}

    def declaration(self) -> Symbol:
        scan = self.scan
        low = int(scan.next("number", "the smallest value of a size"))
        self.at_most()
        name = scan.next("word", "the name of a size")
        high = None
        if scan.accept("<"):
            scan.expect("=")
            high = int(scan.next("number", "the largest value of a size"))
            if high < low:
                scan.fail(f"no value of {name} is in its range")
        usual = None
        if scan.take("word", "usually") is not None:
            usual = int(scan.next("number", "a usual size"))
        return Symbol(name, low, high, usual)

    def at_most(self) -> None:
        self.scan.expect("<")
        self.scan.expect("=")

    def function_name(self) -> str:
        name = self.scan.next("function", "a function's name")[1:]
        return json.loads(name) if name.startswith('"') else name

    def parameter(self) -> Value:
        name = self.scan.next("value", "a value's name")
        self.scan.expect(":")
        return self.define(name, self.scan.type())

    def define(self, name: str, type: Type) -> Value:
        if name in self.names:
            self.scan.fail(f"{name} is defined twice")
        self.names.add(name)
        value = Value(type, "" if name[1:].isdecimal() else name[1:])
        self.scope[name] = value
        return value

    def use(self) -> Value:
        name = self.scan.next("value", "a value")
        if name not in self.scope:
            self.scan.fail(f"{name} is not defined here")
        return self.scope[name]

    def block(self, params: tuple[Value, ...], last: str) -> Block:
        """Ops up to `yield` or `return`, in braces. Names defined inside are forgotten after it."""
        scan = self.scan
        scan.expect("{")
        ops: list[Op] = []
        while scan.take("word", last) is None:
            ops.append(self.op())
        yields: list[Value] = []
        while not scan.accept("}"):
            yields.append(self.use())
            if not scan.accept(","):
                scan.expect("}")
                break
        return Block(params, ops, tuple(yields))

    def nested(self, params: Callable[[], tuple[Value, ...]]) -> Block:
        outside = dict(self.scope)
        block = self.block(params(), "yield")
        self.scope = outside
        return block

    def op(self) -> Op:
        scan = self.scan
        names: list[str] = []
        starts: list[int] = []
        while (name := scan.take("value")) is not None:
            names.append(name)
            starts.append(scan.start)
            if not scan.accept(","):
                scan.expect("=")
        word = scan.next("word", "an operator")
        op = _SYNTAX[word](self) if word in _SYNTAX else self.tensor(word)
        types: tuple[Type, ...] = ()
        if names:
            scan.expect(":")
            types = (scan.type(), *(self.another_type() for _ in names[1:]))
        results: list[Value] = []
        for name, start, type in zip(names, starts, types, strict=True):
            scan.start = start
            results.append(self.define(name, type))
        op.results = tuple(results)
        return op

    def another_type(self) -> Type:
        self.scan.expect(",")
        return self.scan.type()

    def tensor(self, target: str) -> Op:
        if "." not in target:
            self.scan.fail(f"`{target}` is not an operator")
        self.scan.expect("(")
        args: list[Argument] = []
        kwargs: list[tuple[str, Argument]] = []
        while not self.scan.accept(")"):
            key = self.keyword_of_argument()
            if key is None:
                args.append(self.argument())
            else:
                kwargs.append((key, self.argument()))
            if not self.scan.accept(","):
                self.scan.expect(")")
                break
        return TensorOp(target, tuple(args), tuple(kwargs))

    def keyword_of_argument(self) -> str | None:
        before = self.scan.position
        word = self.scan.take("word")
        if word is not None and self.scan.accept("="):
            return word
        self.scan.position = before
        return None

    def argument(self) -> Argument:
        scan = self.scan
        if scan.accept("("):
            return scan.separated(self.argument, ")")
        if (text := scan.take("string")) is not None:
            return str(json.loads(text))
        if (text := scan.take("number")) is not None:
            return _number(text)
        if (text := scan.take("symbol")) is not None:
            return scan.size(text)
        if (word := scan.take("word")) is not None:
            return self.word(word)
        return self.use()

    def word(self, word: str) -> Argument:
        if word in _ATTRIBUTES:
            return _ATTRIBUTES[word]
        if word.startswith("torch."):
            dtype = getattr(torch, word.removeprefix("torch."), None)
            if isinstance(dtype, torch.dtype):
                return dtype
        if "." in word:
            self.scan.fail(f"`{word}` is not an argument")
        return self.scan.size(word)

    def operands(self) -> tuple[Value, ...]:
        self.scan.expect("(")
        return self.scan.separated(self.use, ")")

    def bound(self) -> int | Size | Value:
        found = self.argument()
        if isinstance(found, bool) or not isinstance(found, int | Size | Value):
            self.scan.fail("expected an int, a size or a value")
        return found


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _constant(parser: _FunctionParser) -> Op:
    return ConstantOp(json.loads(parser.scan.next("string", "the key of a constant")))


def _literal(parser: _FunctionParser) -> Op:
    value = parser.argument()
    if not isinstance(value, bool | int | float):
        parser.scan.fail("expected a number")
    return LiteralOp(value)


def _size(parser: _FunctionParser) -> Op:
    size = parser.argument()
    if not isinstance(size, Size) or size.symbol is None:
        parser.scan.fail("expected the name of a size")
    most = None
    if parser.scan.accept("<"):
        parser.scan.expect("=")
        most = parser.argument()
        if not isinstance(most, Size):
            parser.scan.fail("expected a size")
    parser.scan.expect("=")
    return SizeOp(parser.use(), size, most)


def _fixed(make: Callable[..., Op], count: int) -> Callable[[_FunctionParser], Op]:
    """An op written as `name(%a, %b)` with that many operands."""

    def parse(parser: _FunctionParser) -> Op:
        operands = parser.operands()
        if len(operands) != count:
            parser.scan.fail(f"expected {count} operands, found {len(operands)}")
        return make(*operands)

    return parse


def _call(parser: _FunctionParser) -> Op:
    name = parser.function_name()
    return CallOp(name, parser.operands())


def _check(parser: _FunctionParser) -> Op:
    scan = parser.scan
    condition = parser.use()
    scan.expect(",")
    error = json.loads(scan.next("string", "the class of an error"))
    scan.expect(",")
    message = json.loads(scan.next("string", "the message of an error"))
    detail = parser.use() if scan.accept(",") else None
    return CheckOp(condition, Failure(error, message), detail)


def _if(parser: _FunctionParser) -> Op:
    condition = parser.use()
    then = parser.nested(tuple)
    parser.scan.keyword("else")
    return IfOp(condition, then, parser.nested(tuple))


def _for(parser: _FunctionParser) -> Op:
    scan = parser.scan
    index, index_type = _name_and_type(parser)
    scan.keyword("in")
    scan.expect("(")
    start = parser.bound()
    scan.expect(",")
    stop = parser.bound()
    scan.expect(",")
    step = parser.bound()
    if not isinstance(step, int):
        scan.fail("the step is an int")
    scan.expect(")")
    independent, parallel = (scan.take("word", w) is not None for w in ("independent", "parallel"))
    scan.keyword("carry")
    carried = _carried(parser)

    def params() -> tuple[Value, ...]:
        first = parser.define(index, index_type or INDEX)
        return (first, *(parser.define(name, type) for name, type, _ in carried))

    inits = tuple(init for *_, init in carried)
    body = parser.nested(params)
    return ForOp(start, stop, step, inits, body, independent=independent, parallel=parallel)


def _while(parser: _FunctionParser) -> Op:
    carried = _carried(parser)
    inits = tuple(init for *_, init in carried)
    condition = parser.nested(lambda: tuple(parser.define(name, type) for name, type, _ in carried))
    parser.scan.keyword("do")
    parser.scan.expect("(")
    named = parser.scan.separated(lambda: _name_and_type(parser), ")")
    if len(named) != len(inits):
        parser.scan.fail(f"expected {len(inits)} carried values, found {len(named)}")

    def params() -> tuple[Value, ...]:
        pairs = zip(named, inits, strict=True)
        return tuple(parser.define(name, type or init.type) for (name, type), init in pairs)

    return WhileOp(inits, condition, parser.nested(params))


def _carried(parser: _FunctionParser) -> tuple[tuple[str, Type, Value], ...]:
    """`(%a = %x, %b: f32[2] = %y)`: names and types of the parameters, and their start values."""

    def one() -> tuple[str, Type, Value]:
        name, type = _name_and_type(parser)
        parser.scan.expect("=")
        init = parser.use()
        return name, type or init.type, init

    parser.scan.expect("(")
    return parser.scan.separated(one, ")")


def _name_and_type(parser: _FunctionParser) -> tuple[str, Type | None]:
    name = parser.scan.next("value", "a value's name")
    return name, parser.scan.type() if parser.scan.accept(":") else None


_SYNTAX: dict[str, Callable[[_FunctionParser], Op]] = {
    "constant": _constant,
    "literal": _literal,
    "size": _size,
    "call": _call,
    "check": _check,
    "if": _if,
    "for": _for,
    "while": _while,
    "list.new": lambda parser: ListNewOp(parser.operands()),
    "list.push": _fixed(ListPushOp, 2),
    "list.extend": _fixed(ListExtendOp, 2),
    "list.get": _fixed(ListGetOp, 2),
    "list.set": _fixed(ListSetOp, 3),
    "list.pop": _fixed(ListPopOp, 1),
    "list.length": _fixed(ListLengthOp, 1),
    "list.stack": _fixed(ListStackOp, 1),
}

"""Printing of a Program as readable text, and parsing of the same text.

Names come from the values' hints and are unique in a function; values without hint are numbered
in order. The tensors of `constant` ops and the source locations are not part of the text. An
error in a text is a VerifyError with line and caret.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch

from stretto.grammar import Language, Syntax, flag, indented, items, pair
from stretto.ir.core import Argument, Block, Function, Op, Program, Value, argument_fields
from stretto.ir.failure import Failure
from stretto.ir.ops import (
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
from stretto.ir.scanner import PLAIN_NAME, PrintedNames, ProgramReader
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import symbols_of_block
from stretto.ir.types import INDEX, Type
from stretto.reader import number

# ---- The syntax of ops, blocks and functions: one pattern each, which both prints and parses.
#
# A new op class needs only a pattern in `OPS`. Without one, an op whose fields are all operands
# is still printed, but cannot be parsed.


_WORDS: dict[str, Argument] = {"None": None, "True": True, "False": False}
_RESERVED = frozenset({*_WORDS, "inf", "nan"})
"""Words with a meaning in arguments: a symbol with such a name is quoted."""


# ---- names, strings and numbers --------------------------------------------------------------
VALUE: Syntax[Value] = Syntax(PrintedNames.__getitem__, ProgramReader.use)
TYPE: Syntax[Type] = Syntax(lambda _, type: str(type), ProgramReader.type)
record = Language({Value: VALUE}).record


def string(what: str) -> Syntax[str]:
    return Syntax(
        lambda _, text: json.dumps(text), lambda given: json.loads(given.next("string", what))
    )


def integer(what: str) -> Syntax[int]:
    return Syntax(lambda _, value: str(value), lambda given: int(given.next("number", what)))


def _show_function_name(_: PrintedNames, name: str) -> str:
    return f"@{name}" if PLAIN_NAME.fullmatch(name) else f"@{json.dumps(name)}"


def _read_function_name(given: ProgramReader) -> str:
    name = given.next("function", "a function's name")[1:]
    return json.loads(name) if name.startswith('"') else name


FUNCTION_NAME = Syntax(_show_function_name, _read_function_name)


# ---- arguments -------------------------------------------------------------------------------
def _show_argument(names: PrintedNames, argument: Argument) -> str:
    match argument:
        case Value():
            return names[argument]
        case tuple():
            text = ", ".join(_show_argument(names, item) for item in argument)
            return f"({text},)" if len(argument) == 1 else f"({text})"
        case str():
            return json.dumps(argument)
        case Size():
            name = str(argument)
            plain = name.isidentifier() and name.isascii() and name not in _RESERVED
            return name if plain else f"`{name}`"
        case torch.dtype():
            return str(argument)
        case None | bool() | int() | float():
            return repr(argument)
        case _:
            raise TypeError(f"{argument!r} cannot be an argument of a tensor op")


def _read_argument(given: ProgramReader) -> Argument:
    if given.peek() == "(":
        return given.items(lambda: _read_argument(given))
    if (text := given.take("string")) is not None:
        return str(json.loads(text))
    if (text := given.take("number")) is not None:
        return number(text)
    if (text := given.take("symbol")) is not None:
        return given.size(text)
    word = given.take("word")
    if word is None:
        return given.use()
    if word in _WORDS:
        return _WORDS[word]
    dtype = getattr(torch, word.removeprefix("torch."), None) if "." in word else None
    if word.startswith("torch.") and isinstance(dtype, torch.dtype):
        return dtype
    return given.fail(f"`{word}` is not an argument") if "." in word else given.size(word)


def _argument(holds: Callable[[Argument], bool], message: str) -> Syntax[Any]:
    """Return the syntax of an argument that must satisfy `holds`; `message` is the error."""

    def read(given: ProgramReader) -> Argument:
        found = _read_argument(given)
        return found if holds(found) else given.fail(message)

    return Syntax(_show_argument, read)


def _is_int(item: Argument) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


NUMBER = _argument(lambda item: isinstance(item, bool | int | float), "expected a number")
SIZE = _argument(lambda item: isinstance(item, Size), "expected a size")
SIZE_NAME = _argument(
    lambda item: isinstance(item, Size) and item.symbol is not None, "expected the name of a size"
)
BOUND = _argument(
    lambda item: _is_int(item) or isinstance(item, Size | Value),
    "expected an int, a size or a value",
)
STEP = _argument(_is_int, "the step is an int")


# ---- ops without blocks ----------------------------------------------------------------------
def _plain(make: type[Op]) -> Syntax[Op]:
    """Return the syntax of an op that is printed as its name and its operands."""
    count = len(argument_fields(make))
    operands = items(VALUE)

    def read(given: ProgramReader) -> Op:
        given.expect(make.name)
        found = operands.read(given)
        if len(found) != count:
            given.fail(f"expected {count} operands, found {len(found)}")
        return cast("type[Any]", make)(*found)

    return Syntax(lambda names, op: op.name + operands.show(names, op.operands), read)


def _show_tensor(names: PrintedNames, op: TensorOp) -> str:
    args = [_show_argument(names, item) for item in op.args]
    args += [f"{key}={_show_argument(names, item)}" for key, item in op.kwargs]
    return f"{op.target}({', '.join(args)})"


def _read_tensor(given: ProgramReader) -> TensorOp:
    target = given.next("word", "an operator")
    if "." not in target:
        given.fail(f"`{target}` is not an operator")
    found = given.items(lambda: (_keyword(given), _read_argument(given)))
    args = tuple(item for key, item in found if key is None)
    return TensorOp(target, args, tuple((key, item) for key, item in found if key is not None))


def _keyword(given: ProgramReader) -> str | None:
    here = given.position
    word = given.take("word")
    if word is not None and given.accept("="):
        return word
    given.move(here)
    return None


# ---- blocks ----------------------------------------------------------------------------------
def _show_block(names: PrintedNames, block: Block, last: str = "yield") -> str:
    if not names.blocks:
        return "{ ... }"
    ops = (OP.show(names, op) for op in block.ops)
    end = () if names.has_jumps else (f"{last} {names.all(block.yields)}".rstrip(),)
    return "\n".join(("{", *ops, *end, "}"))


def _read_block(given: ProgramReader, params: tuple[Value, ...], last: str) -> Block:
    """Parse ops up to `yield` or `return`, in braces. Blocks that jumps may leave have neither."""
    given.expect("{")
    ops: list[Op] = []
    if given.has_jumps:
        while not given.accept("}"):
            ops.append(OP.read(given))
        return Block(params, ops)
    while not given.accept(last):
        ops.append(OP.read(given))
    yields: list[Value] = []
    while not given.accept("}"):
        yields.append(given.use())
        if not given.accept(","):
            given.expect("}")
            break
    return Block(params, ops, tuple(yields))


def _nested(params: Callable[[ProgramReader], Iterable[tuple[str, Type]]]) -> Syntax[Block]:
    """Return the syntax of an op's nested block. Names defined in it are out of scope after it."""

    def read(given: ProgramReader) -> Block:
        outside = dict(given.scope)
        values = tuple(given.define(name, type) for name, type in params(given))
        block = _read_block(given, values, "yield")
        given.scope = given.scope if given.has_jumps else outside
        return block

    return Syntax(_show_block, read)


# ---- loops -----------------------------------------------------------------------------------
_Param = tuple[Any, Type | None]
"""A block parameter, and its type if that differs from the usual one (else None). It is printed
from a Value and parsed as a name, which is defined where the block begins."""


def _param(value: Value, usual: Type | None) -> _Param:
    return value, None if value.type == usual else value.type


def _show_param(names: PrintedNames, param: _Param) -> str:
    value, type = param
    return names[value] if type is None else f"{names[value]}: {type}"


def _read_param(given: ProgramReader) -> _Param:
    name = given.next("value", "a value's name")
    return name, given.type() if given.accept(":") else None


PARAM = Syntax(_show_param, _read_param)
_CARRIED = items(pair("{left} = {right}", PARAM, VALUE))


def _carried(params: tuple[Value, ...], inits: tuple[Value, ...]) -> tuple[object, ...]:
    return tuple((_param(p, init.type), init) for p, init in zip(params, inits, strict=False))


def _read_carried(given: ProgramReader) -> tuple[Value, ...]:
    """Parse the start values, and set the field `carried` to the names and types of the
    parameters."""
    fields = given.fields
    found = _CARRIED.read(given)
    fields["carried"] = [(name, type or init.type) for (name, type), init in found]
    return tuple(init for _, init in found)


INITS: Syntax[Any] = Syntax(_CARRIED.show, _read_carried)


def _index(op: ForOp) -> tuple[Value, ...]:
    return op.body.params[:1]  # empty only in an invalid Program, which errors must still print


def _show_index(names: PrintedNames, index: tuple[Value, ...]) -> str:
    return "".join(f" {_show_param(names, _param(value, INDEX))}" for value in index)


def _for_params(given: ProgramReader) -> list[tuple[str, Type]]:
    name, type = given.fields["index"]
    return [(name, type or INDEX), *given.fields["carried"]]


FOR = record(
    ForOp,
    "for{index} in ({start}, {stop}, {step}){independent}{parallel} carry {inits} {body}",
    shown=lambda op: {"index": _index(op), "inits": _carried(op.carried, op.inits)},
    index=Syntax(_show_index, _read_param),
    start=BOUND,
    stop=BOUND,
    step=STEP,
    independent=flag("independent"),
    parallel=flag("parallel"),
    inits=INITS,
    body=_nested(_for_params),
)


def _shown_while(op: WhileOp) -> dict[str, object]:
    usual = [*(value.type for value in op.inits), *(None for _ in op.body.params)]
    params = tuple(map(_param, op.body.params, usual))
    return {"inits": _carried(op.condition.params, op.inits), "params": params}


def _while_params(given: ProgramReader) -> list[tuple[str, Type]]:
    params, inits = given.fields["params"], given.fields["inits"]
    if len(params) != len(inits):
        given.fail(f"expected {len(inits)} carried values, found {len(params)}")
    return [(name, type or init.type) for (name, type), init in zip(params, inits, strict=True)]


WHILE = record(
    WhileOp,
    "while {inits} {condition} do {params} {body}",
    shown=_shown_while,
    inits=INITS,
    condition=_nested(lambda given: given.fields["carried"]),
    params=items(PARAM),
    body=_nested(_while_params),
)


# ---- ops -------------------------------------------------------------------------------------
ARM = _nested(lambda _: ())
FAILURE = record(
    Failure,
    "{error}, {message}",
    error=string("the class of an error"),
    message=string("the message of an error"),
)
_LIST_OPS = (ListPushOp, ListExtendOp, ListGetOp, ListSetOp, ListPopOp, ListLengthOp, ListStackOp)
OPS: dict[type[Op], Syntax[Any]] = {
    ConstantOp: record(ConstantOp, "constant {key}", key=string("the key of a constant")),
    LiteralOp: record(LiteralOp, "literal {value}", value=NUMBER),
    TensorOp: Syntax(_show_tensor, _read_tensor),
    SizeOp: record(SizeOp, "size {size}[ <= {most}] = {number}", size=SIZE_NAME, most=SIZE),
    ListNewOp: record(ListNewOp, "list.new{items}"),
    **{kind: _plain(kind) for kind in _LIST_OPS},
    CheckOp: record(CheckOp, "check {condition}, {failure}[, {detail}]", failure=FAILURE),
    IfOp: record(IfOp, "if {condition} {then} else {orelse}", then=ARM, orelse=ARM),
    WhileOp: WHILE,
    ForOp: FOR,
    CallOp: record(CallOp, "call {function}{arguments}", function=FUNCTION_NAME),
}
_BY_WORD = {kind.name: syntax for kind, syntax in OPS.items() if kind is not TensorOp}
_FINISH: dict[type[Op], Callable[[Any], None]] = {}


def add_syntax(
    kind: type[Op],
    syntax: Syntax[Any],
    words: Iterable[str] = (),
    finish: Callable[[Any], None] | None = None,
) -> None:
    """Add the syntax of an op class. words: those that its text may begin with, or their
    beginnings up to a dot; its name if none are given. finish: completes an op that has been read,
    when its results are known."""
    OPS[kind] = syntax
    _BY_WORD.update(dict.fromkeys(words or (kind.name,), syntax))
    if finish is not None:
        _FINISH[kind] = finish


def _show_op(names: PrintedNames, op: Op) -> str:
    kind = type(op)
    text = (OPS[kind] if kind in OPS else _plain(kind)).show(names, op)
    if not op.results:
        return text
    types = ", ".join(str(value.type) for value in op.results)
    return f"{names.all(op.results)} = {text} : {types}"


def _read_op(given: ProgramReader) -> Op:
    named: list[tuple[str, int]] = []
    while (name := given.take("value")) is not None:
        named.append((name, given.start))
        if not given.accept(","):
            given.expect("=")
    word = given.peek()
    family = _BY_WORD.get(f"{word.partition('.')[0]}.", OPS[TensorOp])
    op = _BY_WORD.get(word, family).read(given)
    types: list[Type] = []
    for _ in named:
        given.expect("," if types else ":")
        types.append(given.type())
    results: list[Value] = []
    for (name, start), its in zip(named, types, strict=True):
        given.start = start
        results.append(given.define(name, its))
    op.results = tuple(results)
    if type(op) in _FINISH:
        _FINISH[type(op)](op)
    return op


OP = Syntax(_show_op, _read_op)


# ---- functions -------------------------------------------------------------------------------
SYMBOL = record(
    Symbol,
    "{low} <= {name}[ <= {high}][ usually {usual}]",
    low=integer("the smallest value of a size"),
    name=Syntax(lambda _, name: name, lambda given: given.next("word", "the name of a size")),
    high=integer("the largest value of a size"),
    usual=integer("a usual size"),
)


def _read_symbol(given: ProgramReader) -> Symbol:
    symbol = SYMBOL.read(given)
    if symbol.high is not None and symbol.high < symbol.low:
        given.fail(f"no value of {symbol.name} is in its range")
    given.symbols[symbol.name] = symbol
    return symbol


def _declared(function: Function) -> tuple[Symbol, ...]:
    """Return the symbols whose range or usual size must be declared."""
    found = (item for item in symbols_of_block(function.body) if not item.is_default)
    return tuple(sorted(found, key=lambda symbol: SYMBOL.show(None, symbol)))


def _read_parameter(given: ProgramReader) -> Value:
    name = given.next("value", "a value's name")
    given.expect(":")
    return given.define(name, given.type())


def _read_body(given: ProgramReader) -> Block:
    name, params, types = (given.fields[field] for field in ("name", "params", "result_types"))
    body = _read_block(given, params, "return")
    if tuple(value.type for value in body.yields) != types:
        given.fail(f"@{name} does not return the types that its first line says")
    return body


PARAMETERS = items(Syntax(lambda names, v: f"{names[v]}: {v.type}", _read_parameter))
FUNCTION = record(
    Function,
    "func {name}[{sizes}]{params} -> {result_types} {body}",
    {"sizes": ()},
    shown=lambda function: {"sizes": _declared(function)},
    name=FUNCTION_NAME,
    sizes=items(Syntax(SYMBOL.show, _read_symbol), "[", "]"),
    params=PARAMETERS,
    result_types=items(TYPE),
    body=Syntax(lambda names, block: _show_block(names, block, "return"), _read_body),
)


FUNCTIONS: dict[type[Function], Syntax[Any]] = {Function: FUNCTION}
"""The syntax of each class of functions."""


RETURNED_BODY: Syntax[Block] = Syntax(
    lambda names, block: _show_block(names, block, "return"),
    lambda given: _read_block(given, given.fields["params"], "return"),
)
"""The body of a function that ends by returning values."""


def print_program(program: Program) -> str:
    """Return the text of the Program; `parse_program` turns it into an equal Program."""
    return "\n".join(print_function(item) for item in program.functions.values())


def print_function(function: Function) -> str:
    """Return the text of one function."""
    return indented(FUNCTIONS[type(function)].show(PrintedNames(function), function))


def print_op(op: Op, function: Function) -> str:
    """Return the text of one op with its names in `function`; its blocks are shown as `{ ... }`."""
    return OP.show(PrintedNames(function, blocks=False), op)


def parse_program(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Program:
    """Return the Program for the text. `constants`: the tensors of its `constant` ops."""
    given = ProgramReader(text)
    functions: dict[str, Function] = {}
    while not given.at_end():
        given.begin_function()
        function = FUNCTION.read(given)
        if function.name in functions:
            given.fail(f"function @{function.name} is defined twice")
        functions[function.name] = function
    return Program(functions, dict(constants or {}))


def parse_type(text: str) -> Type:
    """Return the type for its printed form, such as `f32[2, s0]` or `list<f32[]>`."""
    given = ProgramReader(text)
    found = given.type()
    given.end("the end of the type")
    return found

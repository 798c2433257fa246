"""A Program as text that a person can read and `ir.parser` reads back to the same Program.

Names come from the values' hints and are unique in a function; values without hint are numbered
in order. The tensors of `constant` ops and the source locations are not part of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

import torch

from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import (
    Argument,
    CallOp,
    CheckOp,
    ConstantOp,
    ForOp,
    IfOp,
    LiteralOp,
    SizeOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.rewrite import defined_values
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import symbols_of_block
from stretto.ir.types import INDEX
from stretto.text import Writer

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""What a function or value may be called without quotes."""

WORDS = frozenset({"None", "True", "False", "inf", "nan"})
"""Words with a meaning in arguments, so that a symbol of that name is quoted."""


def print_program(program: Program) -> str:
    """The whole Program; `parse_program` of it gives an equal Program."""
    return "\n".join(print_function(item) for item in program.functions.values())


def print_function(function: Function) -> str:
    names = Names(function)
    results = ", ".join(str(type) for type in function.result_types)
    params = ", ".join(f"{names[value]}: {value.type}" for value in function.params)
    out = Writer()
    sizes = _declarations(function)
    out.write(f"func {function_name(function.name)}{sizes}({params}) -> ({results}) {{")
    with out.indent():
        _print_block(function.body, "return", names, out)
    out.write("}")
    return out.text()


def _declarations(function: Function) -> str:
    """The symbols of which something is known."""
    found = (item for item in symbols_of_block(function.body) if not item.is_default)
    texts = sorted(_declaration(item) for item in found)
    return f"[{', '.join(texts)}]" if texts else ""


def _declaration(symbol: Symbol) -> str:
    return symbol.declaration + (f" usually {symbol.usual}" if symbol.usual else "")


def print_op(op: Op, function: Function) -> str:
    """One op with the names it has in its function, its blocks shown as `{ ... }`."""
    names = Names(function)
    out = Writer()
    _print_op(op, names, out, blocks=False)
    return out.text().rstrip("\n")


class Names:
    """The printed name of each value of a function."""

    def __init__(self, function: Function) -> None:
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._numbered = 0
        for value in defined_values(function.body):
            if value not in self._names:
                self._names[value] = self._choose(value.hint)

    def __getitem__(self, value: Value) -> str:
        """The name with its `%`; a value that the function does not define is marked as such."""
        name = self._names.get(value)
        return f"%{name}" if name is not None else f"%undefined.{value.hint or 'value'}"

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


def function_name(name: str) -> str:
    return f"@{name}" if PLAIN_NAME.fullmatch(name) else f"@{json.dumps(name)}"


def print_argument(argument: Argument, names: Names) -> str:
    """An argument of a tensor op."""
    match argument:
        case Value():
            return names[argument]
        case tuple():
            items = ", ".join(print_argument(item, names) for item in argument)
            return f"({items},)" if len(argument) == 1 else f"({items})"
        case str():
            return json.dumps(argument)
        case Size():
            name = str(argument)
            plain = name.isidentifier() and name.isascii() and name not in WORDS
            return name if plain else f"`{name}`"
        case torch.dtype():
            return str(argument)
        case None | bool() | int() | float():
            return repr(argument)
        case _:
            raise TypeError(f"{argument!r} cannot be an argument of a tensor op")


def _print_block(block: Block, last: str, names: Names, out: Writer) -> None:
    for op in block.ops:
        _print_op(op, names, out, blocks=True)
    out.write(f"{last} {names.all(block.yields)}".rstrip())


def _print_op(op: Op, names: Names, out: Writer, *, blocks: bool) -> None:
    head = f"{names.all(op.results)} = " if op.results else ""
    types = ", ".join(str(value.type) for value in op.results)
    tail = f" : {types}" if op.results else ""
    pieces = _HEADS.get(type(op), _plain)(op, names)
    if not op.blocks:
        out.write(f"{head}{pieces[0]}{tail}")
        return
    if not blocks:
        bodies = "".join(f"{piece} {{ ... }} " for piece in pieces).rstrip()
        out.write(f"{head}{bodies}{tail}")
        return
    lead = head
    for piece, block in zip(pieces, op.blocks, strict=True):
        out.write(f"{lead}{piece} {{")
        with out.indent():
            _print_block(block, "yield", names, out)
        lead = "} "
    out.write(f"}}{tail}")


def _plain(op: Op, names: Names) -> tuple[str, ...]:
    return (f"{op.name}({names.all(op.operands)})",)


def _constant(op: ConstantOp, names: Names) -> tuple[str, ...]:
    return (f"constant {json.dumps(op.key)}",)


def _literal(op: LiteralOp, names: Names) -> tuple[str, ...]:
    return (f"literal {op.value!r}",)


def _size(op: SizeOp, names: Names) -> tuple[str, ...]:
    most = "" if op.most is None else f" <= {print_argument(op.most, names)}"
    return (f"size {print_argument(op.size, names)}{most} = {names[op.number]}",)


def _tensor(op: TensorOp, names: Names) -> tuple[str, ...]:
    args = [print_argument(item, names) for item in op.args]
    args += [f"{key}={print_argument(item, names)}" for key, item in op.kwargs]
    return (f"{op.target}({', '.join(args)})",)


def _call(op: CallOp, names: Names) -> tuple[str, ...]:
    return (f"call {function_name(op.function)}({names.all(op.arguments)})",)


def _check(op: CheckOp, names: Names) -> tuple[str, ...]:
    what = f"{json.dumps(op.failure.error)}, {json.dumps(op.failure.message)}"
    detail = "" if op.detail is None else f", {names[op.detail]}"
    return (f"check {names[op.condition]}, {what}{detail}",)


def _if(op: IfOp, names: Names) -> tuple[str, ...]:
    return (f"if {names[op.condition]}", "else")


def _for(op: ForOp, names: Names) -> tuple[str, ...]:
    start, stop = (print_argument(item, names) for item in (op.start, op.stop))
    if not op.body.params:  # not valid, but errors about it must print
        return (f"for in ({start}, {stop}, {op.step})",)
    index = _typed(op.index, op.index.type != INDEX, names)
    carried = _carried(op.carried, op.inits, names)
    kinds = {"independent": op.independent, "parallel": op.parallel}
    kind = "".join(f"{word} " for word, holds in kinds.items() if holds)
    return (f"for {index} in ({start}, {stop}, {op.step}) {kind}carry ({carried})",)


def _while(op: WhileOp, names: Names) -> tuple[str, ...]:
    types = [value.type for value in op.inits]
    params = (
        _typed(value, position >= len(types) or value.type != types[position], names)
        for position, value in enumerate(op.body.params)
    )
    header = _carried(op.condition.params, op.inits, names)
    return (f"while ({header})", f"do ({', '.join(params)})")


def _carried(params: tuple[Value, ...], inits: tuple[Value, ...], names: Names) -> str:
    """`%a = %x, ...`; a parameter whose type is not that of its start value shows it."""
    return ", ".join(
        f"{_typed(param, param.type != init.type, names)} = {names[init]}"
        for param, init in zip(params, inits, strict=False)
    )


def _typed(value: Value, shown: bool, names: Names) -> str:
    return f"{names[value]}: {value.type}" if shown else names[value]


# Each head takes its own op class, which a dict cannot say.
_HEADS: dict[type[Op], Callable[..., tuple[str, ...]]] = {
    ConstantOp: _constant,
    LiteralOp: _literal,
    SizeOp: _size,
    TensorOp: _tensor,
    CallOp: _call,
    CheckOp: _check,
    IfOp: _if,
    ForOp: _for,
    WhileOp: _while,
}

"""The syntax of the `data` dialect (`ir/data.py`): patterns for its ops, its functions, and for the
static objects in them.

Static objects (torch functions, modules, tensors, classes) are not part of a text: it has a name
for each, such as `$linear`, and the parser gets a table of them.
"""

from __future__ import annotations

import json
from typing import Any, cast

import torch

from stretto.grammar import Syntax, items, pattern
from stretto.ir.core import Block, Function, Literal, Op, Operand, Value, Variable
from stretto.ir.data import (
    PRIMITIVES,
    AssignOp,
    BreakOp,
    ContinueOp,
    ForkLoopOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    LeaveOp,
    LoopOp,
    OperandPlaceholder,
    OperateOp,
    Operation,
    PhaseOp,
    RaiseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    RowCount,
    ScopeOp,
)
from stretto.ir.scanner import PrintedNames, ProgramReader
from stretto.ir.text import (
    ARM,
    FUNCTION_NAME,
    FUNCTIONS,
    PARAMETERS,
    RETURNED_BODY,
    TYPE,
    add_syntax,
    integer,
    record,
)
from stretto.ir.types import DataType, RowsType, TensorType
from stretto.reader import number

_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False, "Ellipsis": ...}


# ---- operands --------------------------------------------------------------------------------
def _show_operand(names: PrintedNames, operand: Operand) -> str:
    if isinstance(operand, Value):
        return names[operand]
    return json.dumps(operand.value) if isinstance(operand.value, str) else repr(operand.value)


def _read_operand(given: ProgramReader) -> Operand:
    if given.at("value"):
        return cast(Variable, given.use())
    if (text := given.take("string")) is not None:
        return Literal(json.loads(text))
    if (text := given.take("number")) is not None:
        return Literal(number(text))
    word = given.next("word", "an operand")
    return Literal(_WORDS[word]) if word in _WORDS else given.fail(f"`{word}` is no operand")


OPERAND: Syntax[Operand] = Syntax(_show_operand, _read_operand)
OPERANDS = items(OPERAND)


# ---- static values: what is the same for all instances ---------------------------------------
#
# In the arguments of an `Operation`, the place of an operand is printed as that operand; a literal
# as `#1`, to tell it from a static number.


def _show_static(names: PrintedNames, item: Any, operands: tuple[Operand, ...] = ()) -> str:
    def several(parts: Any) -> str:
        return ", ".join(_show_static(names, part, operands) for part in parts)

    match item:
        case OperandPlaceholder(place):
            operand = operands[place]
            shown = _show_operand(names, operand)
            return f"#{shown}" if isinstance(operand, Literal) else shown
        case RowCount(place, factor, offset):
            return f"rows({several((place, factor, offset))})"
        case tuple() if type(item) is tuple:
            return f"({several(item)},)" if len(item) == 1 else f"({several(item)})"
        case list() if type(item) is list:
            return f"[{several(item)}]"
        case dict() if type(item) is dict:
            pairs = (f"{several((key,))}: {several((value,))}" for key, value in item.items())
            return f"{{{', '.join(pairs)}}}"
        case slice():
            return f"slice({several((item.start, item.stop, item.step))})"
        case _ if item is ...:
            return "Ellipsis"
        case None | bool() | int() | float() | str() if type(item) in _PLAIN:
            return json.dumps(item) if isinstance(item, str) else repr(item)
        case torch.dtype():
            return str(item)
        case _ if isinstance(item, DataType):
            return f"type({item})"
        case _:
            return names.objects.name(item)


_PLAIN = (type(None), bool, int, float, str)


def _read_static(given: ProgramReader, operands: list[Operand]) -> Any:
    def one() -> Any:
        return _read_static(given, operands)

    if given.at("value") or given.accept("#"):
        operand = _read_operand(given)
        if operand not in operands:
            operands.append(operand)
        return OperandPlaceholder(operands.index(operand))
    match given.peek():
        case "(":
            return given.items(one)
        case "[":
            return list(given.items(one, "[", "]"))
        case "{":
            return dict(given.items(lambda: _read_pair(given, operands), "{", "}"))
        case _:
            pass
    if (text := given.take("string")) is not None:
        return json.loads(text)
    if (text := given.take("number")) is not None:
        return number(text)
    if (name := given.take("object")) is not None:
        return given.object(name)
    word = given.next("word", "a static value")
    if word == "slice":
        return slice(*given.items(one))
    if word == "rows":
        return RowCount(*given.items(one))
    if word == "type":
        (found,) = given.items(given.type)
        return found
    if word.startswith("torch."):
        return getattr(torch, word.removeprefix("torch."))
    return _WORDS[word] if word in _WORDS else given.fail(f"`{word}` is no static value")


def _read_pair(given: ProgramReader, operands: list[Operand]) -> tuple[Any, Any]:
    key = _read_static(given, operands)
    given.expect(":")
    return key, _read_static(given, operands)


STATIC: Syntax[Any] = Syntax(_show_static, lambda given: _read_static(given, []))


# ---- ops -------------------------------------------------------------------------------------
def _show_assign(names: PrintedNames, op: AssignOp) -> str:
    detail = "" if op.detail is None else f" with {STATIC.show(names, op.detail)}"
    return f"{_PREFIX}{op.op}{OPERANDS.show(names, op.args)}{detail}"


_PREFIX = "data."


def _read_assign(given: ProgramReader) -> AssignOp:
    primitive = given.next("word", "a primitive").removeprefix(_PREFIX)
    if primitive not in PRIMITIVES:
        given.fail(f"`{primitive}` is not a primitive")
    args = OPERANDS.read(given)
    return AssignOp(primitive, args, STATIC.read(given) if given.accept("with") else None)


def _show_operate(names: PrintedNames, op: OperateOp) -> str:
    operation = op.operation
    args = [_show_static(names, item, op.inputs) for item in operation.args]
    args += [f"{key}={_show_static(names, item, op.inputs)}" for key, item in operation.kwargs]
    return f"operate {names.objects.name(operation.function)}({', '.join(args)})"


def _read_operate(given: ProgramReader) -> OperateOp:
    given.expect("operate")
    function = given.object(given.next("object", "a function"))
    operands: list[Operand] = []

    def argument() -> tuple[str | None, Any]:
        here = given.position
        word = given.take("word")
        if word is None or not given.accept("="):
            given.move(here)
            word = None
        return word, _read_static(given, operands)

    found = given.items(argument)
    args = tuple(item for key, item in found if key is None)
    kwargs = tuple((key, item) for key, item in found if key is not None)
    return OperateOp(Operation(function, args, kwargs, ()), tuple(operands))


def _with_results(op: Op) -> None:
    """Complete an operate op: its operation has the types of its results."""
    if isinstance(op, OperateOp):
        types = tuple(value.type for value in op.targets)
        found = tuple(type for type in types if isinstance(type, TensorType | RowsType))
        old = op.operation
        op.operation = Operation(old.function, old.args, old.kwargs, found)


def _show_raise(names: PrintedNames, op: RaiseOp) -> str:
    parts = (
        json.dumps(part)
        if isinstance(part, str)
        else f"{_show_operand(names, part)}"
        if isinstance(part, Value)
        else f"#{_show_operand(names, part)}"
        for part in op.message
    )
    return f"raise {names.objects.name(op.exception)}({', '.join(parts)})"


def _read_raise(given: ProgramReader) -> RaiseOp:
    given.expect("raise")
    exception = given.object(given.next("object", "an exception"))

    def part() -> str | Operand:
        if given.accept("#"):
            return _read_operand(given)
        text = given.take("string")
        return _read_operand(given) if text is None else json.loads(text)

    return RaiseOp(exception, given.items(part))


def _show_bodies(names: PrintedNames, bodies: tuple[Block, ...]) -> str:
    return " and ".join(ARM.show(names, body) for body in bodies)


def _read_bodies(given: ProgramReader) -> tuple[Block, ...]:
    found = [ARM.read(given)]
    while given.accept("and"):
        found.append(ARM.read(given))
    return tuple(found)


def _show_private(names: PrintedNames, private: tuple[Operand, ...]) -> str:
    """Show the private variables of a loop, without those that nothing assigns any more."""
    kept = (item for item in private if isinstance(item, Value) and item in names)
    return OPERANDS.show(names, tuple(kept))


_PRIVATE = Syntax(_show_private, OPERANDS.read)
add_syntax(AssignOp, Syntax(_show_assign, _read_assign), [_PREFIX])
add_syntax(OperateOp, Syntax(_show_operate, _read_operate), finish=_with_results)
add_syntax(
    RecordOp,
    record(
        RecordOp,
        "record {block}{inputs}[ after {after}]",
        block=integer("the number of a block"),
        inputs=OPERANDS,
        after=OPERANDS,
    ),
)
add_syntax(
    InvokeOp,
    record(
        InvokeOp,
        "invoke {function}{args}",
        function=FUNCTION_NAME,
        args=OPERANDS,
    ),
)
add_syntax(ReadOp, record(ReadOp, "read {tensor}", tensor=OPERAND))
add_syntax(LoopOp, record(LoopOp, "loop {body}", body=ARM))
add_syntax(ScopeOp, record(ScopeOp, "scope {label} {body}", label=integer("a label"), body=ARM))
add_syntax(LeaveOp, record(LeaveOp, "leave {label}", label=integer("a label")))
add_syntax(BreakOp, record(BreakOp, "break"))
add_syntax(ContinueOp, record(ContinueOp, "continue"))
add_syntax(ReturnOp, record(ReturnOp, "return {value}", value=OPERAND))
add_syntax(RaiseOp, Syntax(_show_raise, _read_raise))
add_syntax(ForkOp, record(ForkOp, "fork {bodies}", bodies=Syntax(_show_bodies, _read_bodies)))
add_syntax(
    ForkLoopOp,
    record(
        ForkLoopOp,
        "fork_loop {head} do {body} then {tail} private {private}",
        head=ARM,
        body=ARM,
        tail=ARM,
        private=_PRIVATE,
    ),
)
add_syntax(PhaseOp, record(PhaseOp, "phase {number}", number=integer("the number of a phase")))


# ---- functions -------------------------------------------------------------------------------
BLOCK = pattern(
    "block {name}{params} {body}",
    lambda function: {"name": function.name, "params": function.params, "body": function.body},
    lambda found: Function(found["name"], found["body"]),
    {"name": FUNCTION_NAME, "params": PARAMETERS, "body": RETURNED_BODY},
)
"""A straight-line function of operators, which returns some of its values."""
_INSTANCE_FUNCTION = record(
    InstanceFunction,
    "instance func {name}{params} -> {result} {body}",
    name=FUNCTION_NAME,
    params=PARAMETERS,
    result=TYPE,
    body=RETURNED_BODY,
)


def _read_instance_function(given: ProgramReader) -> InstanceFunction:
    given.has_jumps = True
    return _INSTANCE_FUNCTION.read(given)


FUNCTIONS[InstanceFunction] = Syntax(_INSTANCE_FUNCTION.show, _read_instance_function)

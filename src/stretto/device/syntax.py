"""The text patterns of all records that occur in the forms of a program.

`text.py` prints and parses whole forms. A new kind of record needs only a pattern here;
a new kind of control node is one more case of `tree_node`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from stretto.device.expr import Access, Buffer, Expr, Extent, Reg
from stretto.device.expr_text import ExprParser, ExprPrinter, name_text, number_text
from stretto.device.forms import LeafItem, OutputList, OutputTensor, Packing, ProgramInterface
from stretto.device.operator import (
    Combine,
    Kernel,
    LibraryArgument,
    LibraryCall,
    Operator,
    Span,
    Stage,
    TileDim,
)
from stretto.device.plan import Guard
from stretto.device.program import (
    FrameLayout,
    Item,
    Placement,
    Run,
    Schedule,
    Signal,
    SizedPlacement,
    Small,
    Wait,
)
from stretto.device.regions import Statement
from stretto.device.tree import Call, Check, For, If, Leaf, Let, Node, Seq, TreeFunction, While
from stretto.errors import ScheduleError, SourceLocation
from stretto.grammar import (
    Language,
    Syntax,
    block,
    choice,
    converted,
    either,
    flag,
    headed,
    items,
    later,
    lines,
    pair,
)
from stretto.ir.failure import Failure, Stop
from stretto.ir.sizes import Size

# ---- The syntax of the small values in the device language, and of the fields of its records.


MARK = "\0"
"""Placeholder for the declarations of buffers until all buffers of a text are known."""

NAME: Syntax[str] = Syntax(lambda _, value: name_text(value), ExprParser.name)
STRING: Syntax[str] = Syntax(lambda _, value: json.dumps(value), ExprParser.string)
INTEGER: Syntax[int] = Syntax(lambda _, value: str(value), ExprParser.integer)
NUMBER: Syntax[Any] = Syntax(lambda _, value: number_text(value), ExprParser.number)
BUFFER = Syntax(ExprPrinter.buffer, ExprParser.buffer)
REGISTER = Syntax(ExprPrinter.register, ExprParser.register)
SIZE = Syntax(ExprPrinter.size, ExprParser.size)
EXTENT = Syntax(ExprPrinter.extent, ExprParser.extent)
ACCESS = Syntax(ExprPrinter.access, ExprParser.access)
EXPR = Syntax(ExprPrinter.expr, ExprParser.expr)
DECLARATIONS: Syntax[None] = Syntax(lambda _printer, _value: MARK, ExprParser.declarations)
"""The place in a text where all buffers that it names are declared."""

record = Language(
    {
        str: NAME,
        int: INTEGER,
        float: converted(NUMBER, float, float),
        Buffer: BUFFER,
        Reg: REGISTER,
        Extent: EXTENT,
        Access: ACCESS,
        Expr: EXPR,
    }
).record


L = TypeVar("L")


# ---- operators and kernels -------------------------------------------------------------------
def _argument_text(printer: ExprPrinter, argument: LibraryArgument) -> str:
    match argument:
        case Buffer():
            return f"&{printer.buffer(argument)}"
        case Reg():
            return printer.register(argument)
        case tuple():
            return ARGUMENTS.show(printer, argument)
        case str():
            return STRING.show(printer, argument)
        case None:
            return "none"
        case bool() | int() | float():
            return number_text(argument)
        case torch.dtype():
            return str(argument)
        case Size():
            return f"size {printer.index(argument)}"
        case _:
            raise ScheduleError(f"a library call has the argument {argument!r}")


def _read_argument(given: ExprParser) -> LibraryArgument:
    if given.accept("&"):
        return given.buffer()
    if given.peek() == "$":
        return given.register()
    if given.peek() == "(":
        return ARGUMENTS.read(given)
    if given.at("string"):
        return given.string()
    if given.accept("none"):
        return None
    if given.accept("size"):
        return given.index()
    if given.peek().startswith("torch."):
        return getattr(torch, given.name().removeprefix("torch."))
    return given.number()


ARGUMENT: Syntax[LibraryArgument] = Syntax(_argument_text, _read_argument)
ARGUMENTS: Syntax[tuple[LibraryArgument, ...]] = items(ARGUMENT)

LIBRARY_CALL = record(
    LibraryCall,
    "{name} {target} {args} {kwargs} -> {outs}\n  reason {reason} source {source}[ of {origin}]",
    args=ARGUMENTS,
    kwargs=items(pair("{left} = {right}", NAME, ARGUMENT)),
    reason=STRING,
    source=STRING,
    origin=NAME,
)
OPERATOR = record(
    Operator,
    "{name} {dims}[ reduce {combine} {reduce}]{accumulate}[ source {source}][ of {origin}]\n"
    "  {out} = {value}",
    defaults={"combine": Combine.NONE, "reduce": ()},
    accumulate=flag("accumulate"),
    source=STRING,
    origin=NAME,
)
record(Span, "{extent}[ @ {grid}][ + {offset}]")


@dataclass(frozen=True, slots=True)
class _StageText:
    template: str
    choices: tuple[tuple[str, int], ...]
    packed: Buffer | None
    box: tuple[Span, ...]
    operator: Operator


_STAGE_TEXT = record(
    _StageText,
    "stage {template}{choices}[ packed {packed}] box {box}\n  {operator}",
    defaults={"packed": None},
)


def _show_stage(printer: ExprPrinter, stage: Stage) -> str:
    template = stage.template
    text = _StageText(template.name, template.choices, template.packed, stage.box, stage.operator)
    return _STAGE_TEXT.show(printer, text)


def _read_stage(given: ExprParser) -> Stage:
    text = _STAGE_TEXT.read(given)
    if text.template not in given.templates:
        given.fail(f"the machine has no template {text.template}")
    try:
        template = given.templates[text.template].parsed(
            text.operator, dict(text.choices), text.packed
        )
    except ValueError as error:
        given.fail(f"template {text.template}: {error}")
    return Stage(text.operator, text.box, template)


STAGE = Syntax(_show_stage, _read_stage, _STAGE_TEXT.first)
TILE_DIM = record(TileDim, "{extent}/{tile}[ in {parts}]")
KERNEL = record(
    Kernel,
    "kernel {name} {seconds} grid {grid} {{\n{stages}\n[library {call}]\n}}",
    stages=lines(STAGE),
)

# ---- leaves ----------------------------------------------------------------------------------
LET = record(Let, "let {reg} = {value}")
CHECK = record(Check, "check {code} {subject} = {condition}[ detail {detail}]")
RUN = record(Run, "run {kernel} {first} count {count}[ by {stride}]", count=either("all", INTEGER))
WAIT = record(Wait, "wait {unit}[ count {count}] step {step}")
SIGNAL = record(Signal, "signal {step}")
ITEM: Syntax[Item] = choice({Run: RUN, Wait: WAIT, Signal: SIGNAL, Let: LET, Check: CHECK})

OPERATORS: Syntax[tuple[LeafItem, ...]] = block(
    choice(
        {
            Operator: headed("operator", OPERATOR),
            LibraryCall: headed("library", LIBRARY_CALL),
            Let: LET,
            Check: CHECK,
        }
    )
)
KERNELS: Syntax[tuple[Statement, ...]] = block(choice({Kernel: KERNEL, Let: LET, Check: CHECK}))
SCHEDULE = record(
    Schedule,
    "{steps} {{\n{units}\n}}",
    units=lines(headed("unit", block(ITEM))),
)

# ---- the control tree ------------------------------------------------------------------------


def tree_node(leaf: Syntax[L]) -> Syntax[Node[L]]:
    """Return the syntax of a tree node, given that of leaves."""
    node: Syntax[Any] = later(lambda: found)
    found: Syntax[Node[L]] = choice(
        {
            Leaf: record(Leaf, "leaf {body}", body=leaf),
            Seq: record(Seq, "seq {children}", children=block(node)),
            For: record(
                For,
                "for {index} = {start} .. {stop} step {step}[ rotate {rotate}]"
                "[ independent {independent}]{parallel} {{\n{body}\n}}",
                body=node,
                parallel=flag("parallel"),
            ),
            While: record(
                While,
                "while {condition}[ rotate {rotate}] {{\n{head}\n{body}\n}}",
                head=node,
                body=node,
            ),
            If: record(
                If,
                "if {condition}[ as {branching}] {{\n{then}\n{orelse}\n}}",
                then=node,
                orelse=node,
            ),
            Call: record(Call, "call {function} {registers} {tensors} {results}"),
        }
    )
    return found


def tree_function(leaf: Syntax[L]) -> Syntax[TreeFunction[L]]:
    return record(
        TreeFunction,
        "function {name} {{[\nparams {params}][\nresults {results}][\ntensors {tensors}]"
        "[\nwritten {written}][\nlocals {locals}]\n{body}\n}}",
        defaults=dict.fromkeys(("params", "results", "tensors", "written", "locals"), ()),
        body=tree_node(leaf),
    )


SMALL = record(Small, "calls {work} below {limit}", work=SIZE)
PLACEMENT = record(Placement, "{offset} size {nbytes}[ copies {copies}]")
SIZED_PLACEMENT = record(
    SizedPlacement,
    "slot {slot}[ + {offset}] size {nbytes}",
    defaults={"offset": 0},
    offset=SIZE,
    nbytes=SIZE,
)
FRAME = pair(
    "frame {left} {right}",
    NAME,
    record(
        FrameLayout,
        "{nbytes} {placements}[ slots {slots} {sized}][ copies {copies}]",
        placements=block(pair("{left} at {right}", NAME, PLACEMENT)),
        slots=items(SIZE),
        sized=block(pair("{left} at {right}", NAME, SIZED_PLACEMENT)),
    ),
)


# ---- plans -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LaunchText:
    """A launch by the names of the frame, kernels and functions that it takes from the whole
    program."""

    frame: str
    kernels: tuple[str, ...]
    calls: tuple[str, ...]
    rotated: tuple[Buffer, ...]
    guards: tuple[Guard, ...]
    main: TreeFunction[Schedule]


@dataclass(frozen=True, slots=True)
class LibraryText:
    """A library call by the name of its kernel."""

    kernel: str


GUARD = record(Guard, "{register}{negated}", negated=flag("negated"))
ActionText = LaunchText | LibraryText
ACTION: Syntax[ActionText] = choice(
    {
        LibraryText: record(LibraryText, "library {kernel}"),
        LaunchText: record(
            LaunchText,
            "launch frame {frame} kernels {kernels}[ calls {calls}][ rotated {rotated}]"
            "[ guards {guards}] {{\n{main}\n}}",
            defaults={"calls": (), "rotated": (), "guards": ()},
            guards=items(GUARD),
            main=tree_function(SCHEDULE),
        ),
    }
)
HOST_FUNCTION = pair(
    "host words {left}\n{right}",
    items(pair("{left} = {right}", NAME, INTEGER)),
    tree_function(ACTION),
)

# ---- the interface of all forms --------------------------------------------------------------
record(
    SourceLocation,
    "{file} {line}[ column {column}][ to {end_column}][ in {function}][ module {module}]",
    file=STRING,
    function=STRING,
    module=STRING,
)
record(Failure, "{error} {message}[ added {added}]", message=STRING)
STOP = record(Stop, "stop {failure}[ at {location}]", defaults={"location": None})
STRIDED = pair("{left} by {right}", INTEGER, INTEGER)
PACKING = record(
    Packing,
    "packing {buffer} of {source} from {start} outer {outer} columns {columns} depth {depth} "
    "lanes {lanes}[ tile {tile}][ group {group}][ line {line}]",
    outer=items(STRIDED),
    columns=STRIDED,
    depth=items(STRIDED),
)
OUTPUT = choice(
    {
        OutputTensor: record(OutputTensor, "tensor {buffer} {shape}"),
        OutputList: record(OutputList, "list {buffer} {length}"),
    }
)
INTERFACE = record(
    ProgramInterface,
    "inputs {inputs}\noutputs {outputs}\n{stops}[\nmade {made}]\n{packings}",
    outputs=items(OUTPUT),
    stops=lines(STOP),
    made=converted(items(INTEGER), frozenset, lambda made: tuple(sorted(made))),
    packings=lines(PACKING),
)

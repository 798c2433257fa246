"""InstancePrograms as text, and parsing of the same text.

    class $Node object("left": 0, "right": 0, "word": 1)
    cell None | record0
    cell int
    block @leaf(%0: int) {
      %1 = operate $embed(%0) : f32[4]
      return %1
    }
    instance func @forward(%node: record0) -> f32[4] {
      %word = data.get(%node) with "word" : int
      %h = record 0(%word) : f32[4]
      return %h
    }

Classes and cells are numbered in the order of the text, and so are blocks. Static
objects (classes, torch functions, tensors) are not part of the text, only their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.batching.instance_program import (
    BlockStep,
    ClassInfo,
    Composition,
    InstanceProgram,
    StaticBlock,
)
from stretto.grammar import indented, items, pair
from stretto.ir.core import Block, Function, Op, Variable
from stretto.ir.data import InstanceFunction, OperateOp
from stretto.ir.data_text import BLOCK
from stretto.ir.scanner import ObjectNames, PrintedNames, ProgramReader
from stretto.ir.text import FUNCTIONS, integer, string

_FIELDS = items(pair("{left}: {right}", string("a field"), integer("a cell")))
_NAMES = items(string("a name"))
_APART = "apart"
"""The first word of a program whose products of one operand are not joined."""


def print_program(program: InstanceProgram) -> str:
    """Return the text of a whole program."""
    return program_text(program)[0]


def program_text(program: InstanceProgram) -> tuple[str, dict[str, Any]]:
    """Return the text of a whole program, and its static objects by their names in the text."""
    objects = ObjectNames()
    lines = [] if program.joins else [_APART]
    lines += [_class(objects, info) for info in program.classes]
    lines += [f"cell {type_}" for type_ in program.cells]
    lines += [_block(objects, block) for block in program.blocks]
    lines += [_function(objects, function) for function in program.functions.values()]
    return indented("\n".join(lines)), objects.objects


def print_function(function: InstanceFunction) -> str:
    """Return the text of one function."""
    return indented(_function(ObjectNames(), function))


def print_block(block: StaticBlock) -> str:
    """Return the text of a block."""
    return indented(_block(ObjectNames(), block))


def parse_program(text: str, objects: Mapping[str, Any]) -> InstanceProgram:
    """Return the program of a text. objects: the static objects by their names in the text."""
    given = ProgramReader(text, objects)
    program = InstanceProgram({}, joins=not given.accept(_APART))
    while not given.at_end():
        given.begin_function()
        match given.peek():
            case "class":
                program.classes.append(_read_class(given))
            case "cell":
                given.expect("cell")
                program.cells.append(given.type())
            case "block":
                program.blocks.append(_static_block(BLOCK.read(given)))
            case _:
                function = FUNCTIONS[InstanceFunction].read(given)
                program.functions[function.name] = function
    return program


def function_name(function: Any) -> str:
    """Return the name of a torch function, or of the class of a module."""
    if isinstance(function, Composition):
        return ", ".join(function_name(step.function) for step in function.steps)
    return getattr(function, "__name__", type(function).__name__).strip("_")


def _function(objects: ObjectNames, function: InstanceFunction) -> str:
    return FUNCTIONS[type(function)].show(PrintedNames(function, objects=objects), function)


def _class(objects: ObjectNames, info: ClassInfo) -> str:
    fields = _FIELDS.show(None, tuple(zip(info.fields, info.cells, strict=True)))
    absent = f" absent {_NAMES.show(None, info.absent)}" if info.absent else ""
    return f"class {objects.name(info.python)} {info.kind} {fields}{absent}"


def _read_class(given: ProgramReader) -> ClassInfo:
    given.expect("class")
    python = given.object(given.next("object", "a class"))
    kind = given.next("word", "the kind of a class")
    fields = _FIELDS.read(given)
    absent = _NAMES.read(given) if given.accept("absent") else ()
    names = tuple(name for name, _ in fields)
    return ClassInfo(python, kind, names, tuple(cell for _, cell in fields), absent)


# ---- static blocks, as functions of operators ------------------------------------------------
def _block(objects: ObjectNames, block: StaticBlock) -> str:
    values = [Variable("", type_) for type_ in block.types]
    count = len(block.inputs)
    ops: list[Op] = []
    for step in block.steps:
        made = count + len(step.operation.results)
        inputs = tuple(values[number] for number in step.operands)
        ops.append(OperateOp(step.operation, inputs, results=tuple(values[count:made])))
        count = made
    outputs = tuple(values[number] for number in block.outputs)
    body = Block(tuple(values[: len(block.inputs)]), ops, outputs)
    function = Function(block.name, body)
    return BLOCK.show(PrintedNames(function, objects=objects), function)


def _static_block(function: Function) -> StaticBlock:
    numbers = {value: number for number, value in enumerate(function.params)}
    steps: list[BlockStep] = []
    for op in function.body.ops:
        assert isinstance(op, OperateOp)
        operands = tuple(numbers[value] for value in op.operands)
        steps.append(BlockStep(op.operation, operands))
        numbers.update({value: len(numbers) + n for n, value in enumerate(op.results)})
    inputs: list[Any] = [value.type for value in function.params]
    outputs = tuple(numbers[value] for value in function.body.yields)
    return StaticBlock(function.name, tuple(inputs), tuple(steps), outputs)

"""InstancePrograms as text: for `explain()`, for errors and for tests.

    class 0 Node(left: cell 0, right: cell 0, word: cell 1)
    cell 0: None | record0
    block 0 cell(%0: f32[4], %1: f32[4]) -> (%3: f32[4])
      %2: f32[8] = cat([%0, %1])
      %3: f32[4] = tanh(%2)
    function 0 main(%node: record0) -> f32[4]
      %left: None | record0 = get(%node) "left"
      if %is_none:
        ...

Variables of one function that have the same name are distinguished by a suffix. There is no
parser for this text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

import torch

from stretto.batching.instance_program import (
    AssignStatement,
    Body,
    BreakStatement,
    CallStatement,
    Composition,
    ContinueStatement,
    ForkLoopStatement,
    ForkStatement,
    IfStatement,
    InstanceFunction,
    InstanceProgram,
    LeaveStatement,
    Literal,
    LoopStatement,
    Operand,
    OperandPlaceholder,
    OperateStatement,
    Operation,
    PhaseStatement,
    RaiseStatement,
    ReadStatement,
    RecordStatement,
    ReturnStatement,
    ScopeStatement,
    Statement,
    StaticBlock,
    Variable,
)

_INDENT = "  "


def print_program(program: InstanceProgram) -> str:
    """Return the text of a whole program."""
    lines: list[str] = []
    for number, info in enumerate(program.classes):
        fields = zip(info.fields, info.cells, strict=True)
        shown = ", ".join(f"{name}: cell {cell}" for name, cell in fields)
        lines.append(f"class {number} {info.python.__name__}({shown})")
    lines += [f"cell {number}: {type_}" for number, type_ in enumerate(program.cells)]
    if not program.joins:
        lines.append("products of one operand stay apart")
    for number, block in enumerate(program.blocks):
        lines += _block_lines(block, number)
    for number, function in enumerate(program.functions):
        lines += _FunctionPrinter(program).lines(function, number)
    return "\n".join(lines) + "\n"


def print_function(program: InstanceProgram, number: int) -> str:
    """Return the text of function number `number`."""
    return "\n".join(_FunctionPrinter(program).lines(program.functions[number], number)) + "\n"


def print_block(block: StaticBlock, number: int) -> str:
    """Return the text of a block."""
    return "\n".join(_block_lines(block, number)) + "\n"


def show_operation(operation: Operation, operands: Iterable[str]) -> str:
    """Return the text of a call of a torch function, with the operands' texts in their places."""
    shown = list(operands)
    args = [_show(arg, shown) for arg in operation.args]
    args += [f"{name}={_show(arg, shown)}" for name, arg in operation.kwargs]
    return f"{function_name(operation.function)}({', '.join(args)})"


def function_name(function: Any) -> str:
    """Return the name of a torch function, or of the class of a module."""
    if isinstance(function, Composition):
        return ", ".join(function_name(step.function) for step in function.steps)
    return getattr(function, "__name__", type(function).__name__).strip("_")


def _show(item: Any, operands: list[str]) -> str:
    match item:
        case OperandPlaceholder(number):
            return operands[number]
        case tuple():
            return f"({', '.join(_show(part, operands) for part in item)})"
        case list():
            return f"[{', '.join(_show(part, operands) for part in item)}]"
        case dict():
            return f"{{{', '.join(f'{k!r}: {_show(v, operands)}' for k, v in item.items())}}}"
        case slice():
            parts = (item.start, item.stop, item.step)
            return ":".join("" if part is None else _show(part, operands) for part in parts)
        case torch.Tensor():
            return _tensor(item)
        case _ if isinstance(item, bool | int | float | str | None | torch.dtype):
            return repr(item)
        case _:
            return function_name(item)


def _tensor(tensor: torch.Tensor) -> str:
    dims = ", ".join(map(str, tensor.shape))
    return f"<{str(tensor.dtype).removeprefix('torch.')}[{dims}]>"


def _block_lines(block: StaticBlock, number: int) -> Iterator[str]:
    types = block.types
    inputs = ", ".join(f"%{n}: {type_}" for n, type_ in enumerate(block.inputs))
    outputs = ", ".join(f"%{n}: {types[n]}" for n in block.outputs)
    yield f"block {number} {block.name}({inputs}) -> ({outputs})"
    value = len(block.inputs)
    for step in block.steps:
        made = range(value, value + len(step.operation.results))
        value = made.stop
        targets = ", ".join(f"%{n}: {types[n]}" for n in made)
        call = show_operation(step.operation, [f"%{n}" for n in step.operands])
        yield f"{_INDENT}{targets} = {call}"


def _name(items: Sequence[StaticBlock] | Sequence[InstanceFunction], number: int) -> str:
    """Return the name of a block or function, "?" for a bad number: the verifier prints invalid
    programs."""
    return items[number].name if 0 <= number < len(items) else "?"


class _FunctionPrinter:
    """Printer of one function, with the unique names given to its variables so far."""

    def __init__(self, program: InstanceProgram) -> None:
        self._program = program
        self._names: dict[Variable, str] = {}
        self._taken: dict[str, int] = {}

    def lines(self, function: InstanceFunction, number: int) -> Iterator[str]:
        parameters = ", ".join(self._target(variable) for variable in function.parameters)
        result = function.result
        yield f"function {number} {function.name}({parameters}) -> {result}"
        yield from self._body(function.body, _INDENT)

    def _name(self, variable: Variable) -> str:
        if variable not in self._names:
            count = self._taken.get(variable.name, 0)
            self._taken[variable.name] = count + 1
            self._names[variable] = f"%{variable.name}" + (f"'{count}" if count else "")
        return self._names[variable]

    def _target(self, variable: Variable) -> str:
        """Return a variable's name, with its type at the first mention."""
        known = variable in self._names
        name = self._name(variable)
        return name if known else f"{name}: {variable.type}"

    def _operand(self, operand: Operand) -> str:
        return repr(operand.value) if isinstance(operand, Literal) else self._name(operand)

    def _operands(self, operands: Iterable[Operand]) -> str:
        return ", ".join(map(self._operand, operands))

    def _targets(self, targets: Iterable[Variable]) -> str:
        shown = ", ".join(map(self._target, targets))
        return f"{shown} = " if shown else ""

    def _body(self, body: Body, indent: str) -> Iterator[str]:
        if not body:
            yield f"{indent}pass"
        for statement in body:
            yield from self._statement(statement, indent)

    def _statement(self, statement: Statement, indent: str) -> Iterator[str]:
        inner = indent + _INDENT
        match statement:
            case IfStatement(condition, then, orelse):
                negated = bool(orelse and not then)
                yield f"{indent}if {'not ' if negated else ''}{self._operand(condition)}:"
                yield from self._body(orelse if negated else then, inner)
                if orelse and not negated:
                    yield f"{indent}else:"
                    yield from self._body(orelse, inner)
            case LoopStatement(body):
                yield f"{indent}loop:"
                yield from self._body(body, inner)
            case ScopeStatement(label, body):
                yield f"{indent}scope {label}:"
                yield from self._body(body, inner)
            case ForkStatement(several):
                for place, body in enumerate(several):
                    yield f"{indent}{'and' if place else 'fork'}:"
                    yield from self._body(body, inner)
            case ForkLoopStatement(head, body, tail):
                for word, part in (("fork loop", head), ("fork", body), ("then", tail)):
                    yield f"{indent}{word}:"
                    yield from self._body(part, inner)
            case _:
                yield indent + self._simple(statement)

    def _simple(self, statement: Statement) -> str:
        """Return the line of a statement that has no bodies."""
        match statement:
            case AssignStatement(target, op, args, detail):
                shown = "" if detail is None else f" {self._detail(op, detail)}"
                call = f"{op}({self._operands(args)}){shown}"
                return self._targets(() if target is None else (target,)) + call
            case OperateStatement(targets, operation, operands):
                # Operands come first: a target shows its type only at its first mention.
                call = show_operation(operation, map(self._operand, operands))
                return self._targets(targets) + call
            case RecordStatement(targets, number, operands, after=after):
                call = f"block {number} {_name(self._program.blocks, number)}"
                call = f"{call}({self._operands(operands)})"
                call += f" after {self._operands(after)}" if after else ""
                return self._targets(targets) + call
            case CallStatement(target, number, args):
                call = f"call {number} {_name(self._program.functions, number)}"
                call = f"{call}({self._operands(args)})"
                return self._targets(() if target is None else (target,)) + call
            case ReadStatement(target, tensor):
                call = f"read({self._operand(tensor)})"
                return self._targets((target,)) + call
            case LeaveStatement(label):
                return f"leave {label}"
            case BreakStatement():
                return "break"
            case ContinueStatement():
                return "continue"
            case ReturnStatement(value):
                return f"return {self._operand(value)}"
            case RaiseStatement(exception, parts):
                shown = (repr(p) if isinstance(p, str) else self._operand(p) for p in parts)
                return f"raise {exception.__name__}({', '.join(shown)})"
            case PhaseStatement(number):
                return f"phase {number}"
            case (
                IfStatement()
                | LoopStatement()
                | ScopeStatement()
                | ForkStatement()
                | ForkLoopStatement()
            ):
                raise AssertionError(statement)
            case _:
                assert_never(statement)

    def _detail(self, op: str, detail: Any) -> str:
        match op:
            case "shared":
                return _tensor(detail)
            case "cast":
                return str(detail)
            case "has_type":
                return " | ".join(sorted(map(str, detail)))
            case "expect":
                return str(detail[0])
            case "record":
                number, fields = detail
                name = self._program.classes[number].python.__name__
                return f"{name}({', '.join(fields)})"
            case "get" | "has" | "set":
                return str(detail)
            case _:
                return repr(detail)

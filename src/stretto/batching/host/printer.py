"""Print an InstanceProgram as C++: a C++ function per function, which records blocks as it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from stretto.batching.host.cpp_expressions import (
    C_TYPES,
    CppTerm,
    Expressions,
    call,
    form_of,
    number_literal,
    truth,
    zero,
)
from stretto.batching.host.descriptor import descriptor
from stretto.batching.host.tables import BlockLayout, ProgramLayout
from stretto.batching.instance_program import (
    AssignStatement,
    Body,
    BreakStatement,
    CallStatement,
    ContinueStatement,
    ForkLoopStatement,
    ForkStatement,
    IfStatement,
    InstanceFunction,
    InstanceProgram,
    LeaveStatement,
    LoopStatement,
    Operand,
    OperateStatement,
    PhaseStatement,
    RaiseStatement,
    ReadStatement,
    RecordStatement,
    ReturnStatement,
    ScopeStatement,
    Statement,
    Variable,
    bodies,
)
from stretto.batching.types import InstanceTensorType, RowsType, Scalar
from stretto.errors import CodegenError, SourceLocation
from stretto.text import Writer


@dataclass(frozen=True, slots=True)
class HostSource:
    """The C++ of a program. sites: the statements that may fail; errors have their positions."""

    text: str
    sites: tuple[Statement, ...]


def print_program(program: InstanceProgram, layout: ProgramLayout) -> HostSource:
    """Return the C++ of a program. Raises CodegenError for an operator that is in no block, an
    unknown primitive, and a body of a fork that is left by a jump."""
    printer = _Printer(program, layout)
    functions = Writer()
    for number in range(len(program.functions)):
        printer.function(number, functions)
    text = Writer()
    text.write('#include "primitives.h"')
    text.write("using namespace stretto;")
    text.write("namespace {")
    for line in printer.strings.lines:
        text.write(line)
    for number, block in enumerate(layout.blocks):
        _print_block(number, block, text)
    for number in range(len(program.functions)):
        text.write(f"{printer.head(number)};")
    text.write(functions.text().rstrip("\n"))
    text.write(descriptor(program, layout, printer.reads))
    text.write("}  // namespace")
    text.write('extern "C" const ProgramInfo* stretto_host_program() { return &info; }')
    return HostSource(text.text(), tuple(printer.sites))


def _print_block(number: int, block: BlockLayout, out: Writer) -> None:
    """Write the function that records a block: `Made<n> record<n>(run, after, operands)`."""
    forms = [_operand_type(type_) for type_ in block.inputs]
    results = ["Tensor" if item.length_of is None else "Value" for item in block.outputs]
    fields = "".join(f" {type_} r{n};" for n, type_ in enumerate(results))
    out.write(f"struct Made{number} {{{fields} }};")
    taken = "".join(f", {type_} a{n}" for n, type_ in enumerate(forms))
    out.write(f"inline Made{number} record{number}(Run& run, int64_t after{taken}) {{")
    with out.indent():
        out.write("int64_t level = later(run.phase, after);")
        for n, pool in enumerate(block.pools):
            if pool is not None:
                out.write(f"level = later(level, run.level_of(a{n}));")
        counts = [
            "1" if item.length_of is None else f"uint64_t{{a{item.length_of}->length}}"
            for item in block.outputs
        ]
        out.write(f"run.reserve({len(forms)}, {' + '.join(counts) or '0'});")
        kind = str(number)
        if block.rows:
            lengths = ", ".join(f"a{n}->length" for n in block.rows)
            out.write(f"const uint32_t lengths[] = {{{lengths}}};")
            kind = f"kind_of_lengths(run, {number}, lengths)"
        out.write(f"int64_t* at = run.note({kind}, level, {len(forms)});")
        for n in range(len(forms)):
            out.write(f"at[{n}] = word(a{n});")
        out.write(f"Made{number} made;")
        for n, item in enumerate(block.outputs):
            if item.length_of is None:
                out.write(f"made.r{n} = run.result({item.pool}, level + 1);")
            else:
                length = f"a{item.length_of}->length"
                out.write(f"made.r{n} = run.rows_result({item.pool}, level + 1, {length});")
        out.write("return made;")
    out.write("}")


def _operand_type(type_: InstanceTensorType | RowsType | Scalar) -> str:
    match type_:
        case InstanceTensorType():
            return "Tensor"
        case RowsType():
            return "const Rows*"
        case Scalar.FLOAT:
            return "double"
        case _:
            return "int64_t"


@dataclass(slots=True)
class _Strings:
    """String literals: each is a static object of the program."""

    lines: list[str] = field(default_factory=list[str])
    known: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, text: str) -> str:
        if text not in self.known:
            name = f"text{len(self.known)}"
            data = text.encode("utf-8")
            letters = "".join(f"\\{byte:03o}" for byte in data)
            self.lines.append(
                f"const struct {{ Object head; char text[{len(data) + 1}]; }} {name} = "
                f'{{{{kStr, 0, -1, {len(data)}}}, "{letters}"}};'
            )
            self.known[text] = name
        return f"box(&{self.known[text]}.head)"


class _Printer:
    """Printer of functions. `sites` and `strings` collect what all of them need."""

    def __init__(self, program: InstanceProgram, layout: ProgramLayout) -> None:
        self.program = program
        self.layout = layout
        self.sites = list[Statement]()
        self.strings = _Strings()
        self.reads = False
        self._names: dict[Variable, str] = {}
        self._private: dict[Variable, str] = {}
        """C++ text of each private variable of concurrent loops."""
        self._loops = 0
        self._break = "break;"
        self._labels: list[tuple[int, str]] = []
        self._label_count = 0
        self._result = "v"
        self._expressions = Expressions(program, layout, self._operand)

    def head(self, number: int) -> str:
        function = self.program.functions[number]
        taken = [
            f"{C_TYPES[form_of(parameter.type)]} p{n}"
            for n, parameter in enumerate(function.parameters)
        ]
        result = C_TYPES[form_of(function.result)]
        return f"{result} f{number}({', '.join(('Run& run', *taken))})"

    def function(self, number: int, out: Writer) -> None:
        function = self.program.functions[number]
        self._names = {}
        self._result = form_of(function.result)
        body = Writer()
        with body.indent():
            self._body(function.body, body)
        out.write(f"{self.head(number)} {{  // {_comment(function)}")
        with out.indent():
            out.write("check_stack(run);")
            given = {id(parameter): n for n, parameter in enumerate(function.parameters)}
            for parameter in function.parameters:
                self._name(parameter)
            for variable, name in self._names.items():
                form = form_of(variable.type)
                first = f"p{given[id(variable)]}" if id(variable) in given else zero(form)
                out.write(f"{C_TYPES[form]} {name} = {first};")
        out.write(body.text().rstrip("\n"))
        with out.indent():
            out.write(f"return {zero(self._result)};")
        out.write("}")

    def _name(self, variable: Variable) -> str:
        if variable in self._private:
            return self._private[variable]
        return self._names.setdefault(variable, f"v{len(self._names)}")

    def _operand(self, operand: Operand) -> CppTerm:
        if isinstance(operand, Variable):
            return CppTerm(self._name(operand), form_of(operand.type))
        value = operand.value
        if value is None:
            return CppTerm("none()", "v")
        if isinstance(value, str):
            return CppTerm(self.strings.of(value), "v")
        return number_literal(value)

    def _site(self, statement: Statement) -> int:
        self.sites.append(statement)
        return len(self.sites) - 1

    def _body(self, body: Body, out: Writer) -> None:
        for statement in body:
            self._statement(statement, out)

    def _block(self, head: str, body: Body, out: Writer, tail: str = "}") -> None:
        out.write(head)
        with out.indent():
            self._body(body, out)
        out.write(tail)

    def _statement(self, statement: Statement, out: Writer) -> None:
        match statement:
            case AssignStatement(target):
                term = self._expressions.of(statement, self._site(statement))
                self._assign(target, term, out)
            case RecordStatement():
                self._record(statement, out)
            case CallStatement(target, function, args):
                parameters = self.program.functions[function].parameters
                given = [
                    self._operand(arg).to(form_of(parameter.type))
                    for arg, parameter in zip(args, parameters, strict=True)
                ]
                result = form_of(self.program.functions[function].result)
                self._assign(target, CppTerm(call(f"f{function}", "run", *given), result), out)
            case ReadStatement():
                self._read(statement, out)
            case IfStatement(condition, then, orelse):
                self._block(f"if ({truth(self._operand(condition))}) {{", then, out, "}")
                if orelse:
                    self._block("else {", orelse, out)
            case LoopStatement(body):
                outer, self._break = self._break, "break;"
                self._block("for (;;) {", body, out)
                self._break = outer
            case ScopeStatement():
                self._scope(statement, out)
            case LeaveStatement(label):
                name = next(name for number, name in reversed(self._labels) if number == label)
                out.write(f"goto {name};")
            case BreakStatement():
                out.write(self._break)
            case ContinueStatement():
                out.write("continue;")
            case ReturnStatement(value):
                out.write(f"return {self._operand(value).to(self._result)};")
            case RaiseStatement(_, parts):
                shown = [self._operand(x).to("v") for x in parts if not isinstance(x, str)]
                out.write(call("fail", "run", str(self._site(statement)), "kPython", *shown) + ";")
            case ForkStatement(several):
                self._fork(several, out)
            case ForkLoopStatement():
                self._fork_loop(statement, out)
            case PhaseStatement(number):
                out.write(f"run.phase = later(run.phase, INT64_C({number}) << 32);")
            case OperateStatement(_, operation):
                raise CodegenError(
                    f"operator `{operation.function}` is in no block", location=operation.location
                )
            case _:
                assert_never(statement)

    def _assign(self, target: Variable | None, term: CppTerm, out: Writer) -> None:
        if target is None:
            out.write(f"(void)({term.text});")
        else:
            out.write(f"{self._name(target)} = {term.to(form_of(target.type))};")

    def _record(self, statement: RecordStatement, out: Writer) -> None:
        block = self.layout.blocks[statement.block]
        given = list[str]()
        after = "0"
        for ghost in statement.after:
            after = call("later", after, self._operand(ghost).to("i"))
        for operand, type_ in zip(statement.operands, block.inputs, strict=True):
            term = self._operand(operand)
            match _operand_type(type_):
                case "Tensor":
                    given.append(term.to("t"))
                case "double":
                    given.append(term.to("f"))
                case "int64_t":
                    given.append(term.to("i"))
                case _:
                    given.append(f"as_rows({term.to('v')})")
        out.write("{")
        with out.indent():
            out.write(
                f"const auto made = {call(f'record{statement.block}', 'run', after, *given)};"
            )
            for n, (target, output) in enumerate(
                zip(statement.targets, block.outputs, strict=True)
            ):
                form = "t" if output.length_of is None else "v"
                self._assign(target, CppTerm(f"made.r{n}", form), out)
        out.write("}")

    def _read(self, statement: ReadStatement, out: Writer) -> None:
        self.reads = True
        tensor = self._operand(statement.tensor).to("t")
        match statement.target.type:
            case Scalar.BOOL:
                term = CppTerm(call("read_bool", "run", tensor), "b")
            case Scalar.INT:
                term = CppTerm(call("read_int", "run", str(self._site(statement)), tensor), "i")
            case Scalar.FLOAT:
                term = CppTerm(call("read_float", "run", tensor), "f")
            case other:
                raise CodegenError(
                    f"a value that is read has type {other}", location=statement.location
                )
        self._assign(statement.target, term, out)

    def _scope(self, statement: ScopeStatement, out: Writer) -> None:
        name = f"end{self._label_count}"
        self._label_count += 1
        self._labels.append((statement.label, name))
        self._block("{", statement.body, out)
        self._labels.pop()
        out.write(f"{name}:;")

    def _fork(self, several: tuple[Body, ...], out: Writer) -> None:
        for body in several:
            if _leaves(body, in_loop=False, labels=()):
                raise CodegenError(
                    "a body that runs concurrently is left by a jump",
                    location=_first_location(body),
                )
        out.write("fork_all(run")
        with out.indent():
            for body in several:
                self._block(", [&]() {", body, out)
        out.write(");")

    def _fork_loop(self, statement: ForkLoopStatement, out: Writer) -> None:
        """Write a concurrent loop; a struct holds the private variables of an iteration."""
        for part, in_loop in ((statement.head, True), (statement.body, False)):
            if _leaves(part, in_loop, labels=()) or _leaves(statement.tail, False, labels=()):
                raise CodegenError(
                    "an iteration that runs concurrently is left by a jump",
                    location=_first_location(statement.body),
                )
        own = f"own{self._loops}"
        self._loops += 1
        fields = list[str]()
        for number, variable in enumerate(statement.private):
            form = form_of(variable.type)
            fields.append(f"{C_TYPES[form]} v{number} = {zero(form)};")
            self._private[variable] = f"{own}.v{number}"
        out.write("{")
        with out.indent():
            out.write(f"struct Own {{ {' '.join(fields)} }};")
            out.write("fork_loop<Own>(run,")
            outer, self._break = self._break, "return false;"
            with out.indent():
                out.write(f"[&](Own& {own}) -> bool {{")
                with out.indent():
                    self._body(statement.head, out)
                    out.write("return true;")
                out.write("},")
                self._block(f"[&](Own& {own}) {{", statement.body, out, "},")
                self._block(f"[&](Own& {own}) {{", statement.tail, out, "});")
            self._break = outer
        out.write("}")


def _leaves(body: Body, in_loop: bool, labels: Sequence[int]) -> bool:
    """Return True if a statement jumps out of the body. labels: of the scopes inside it."""
    for statement in body:
        match statement:
            case ReturnStatement():
                return True
            case BreakStatement() | ContinueStatement() if not in_loop:
                return True
            case LeaveStatement(label) if label not in labels:
                return True
            case _:
                inside = in_loop or isinstance(statement, LoopStatement | ForkLoopStatement)
                known = (
                    (*labels, statement.label) if isinstance(statement, ScopeStatement) else labels
                )
                if any(_leaves(inner, inside, known) for inner in bodies(statement)):
                    return True
    return False


def _first_location(body: Body) -> SourceLocation | None:
    found = (getattr(statement, "location", None) for statement in body)
    return next((location for location in found if location), None)


def _comment(function: InstanceFunction) -> str:
    """Return the name of a function, which may have any characters, in a form that fits in a line
    comment."""
    return function.name.encode("unicode_escape").decode().replace("\\", "/")

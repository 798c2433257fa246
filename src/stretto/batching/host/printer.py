"""Print an InstanceProgram as C++: a C++ function per function, which records blocks as it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

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
from stretto.batching.instance_program import InstanceProgram, first_location
from stretto.batching.passes.uses import leaves
from stretto.errors import CodegenError
from stretto.ir.core import Block, Op, Operand, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    ContinueOp,
    ForkLoopOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    LeaveOp,
    LoopOp,
    OperateOp,
    PhaseOp,
    RaiseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    ScopeOp,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import RowsType, Scalar, TensorType
from stretto.text import Writer


@dataclass(frozen=True, slots=True)
class HostSource:
    """The C++ of a program. sites: the statements that may fail; errors have their positions."""

    text: str
    sites: tuple[Op, ...]


def print_program(program: InstanceProgram, layout: ProgramLayout) -> HostSource:
    """Return the C++ of a program. Raises CodegenError for an operator that is in no block, an
    unknown primitive, and a body of a fork that is left by a jump."""
    printer = _Printer(program, layout)
    functions = Writer()
    for name in program.functions:
        printer.function(name, functions)
    text = Writer()
    text.write('#include "primitives.h"')
    text.write("using namespace stretto;")
    text.write("namespace {")
    for line in printer.strings.lines:
        text.write(line)
    for number, block in enumerate(layout.blocks):
        _print_block(number, block, text)
    for name in program.functions:
        text.write(f"{printer.head(name)};")
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


def _operand_type(type_: TensorType | RowsType | Scalar) -> str:
    match type_:
        case TensorType():
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
        self.sites = list[Op]()
        self.strings = _Strings()
        self.reads = False
        self.called = {name: f"f{number}" for number, name in enumerate(program.functions)}
        """The C++ name of each function."""
        self._names: dict[Variable, str] = {}
        self._private: dict[Variable, str] = {}
        """C++ text of each private variable of concurrent loops."""
        self._loops = 0
        self._break = "break;"
        self._labels: list[tuple[int, str]] = []
        self._label_count = 0
        self._result = "v"
        self._expressions = Expressions(program, layout, self._operand)

    def head(self, name: str) -> str:
        function = self.program.functions[name]
        taken = [
            f"{C_TYPES[form_of(parameter.type)]} p{n}"
            for n, parameter in enumerate(function.parameters)
        ]
        result = C_TYPES[form_of(function.result)]
        return f"{result} {self.called[name]}({', '.join(('Run& run', *taken))})"

    def function(self, name: str, out: Writer) -> None:
        function = self.program.functions[name]
        self._names = {}
        self._result = form_of(function.result)
        body = Writer()
        with body.indent():
            self._body(function.body, body)
        out.write(f"{self.head(name)} {{  // {_comment(function)}")
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

    def _site(self, statement: Op) -> int:
        self.sites.append(statement)
        return len(self.sites) - 1

    def _body(self, body: Block, out: Writer) -> None:
        for statement in body.ops:
            self._statement(statement, out)

    def _block(self, head: str, body: Block, out: Writer, tail: str = "}") -> None:
        out.write(head)
        with out.indent():
            self._body(body, out)
        out.write(tail)

    def _statement(self, statement: Op, out: Writer) -> None:
        match statement:
            case AssignOp(target):
                term = self._expressions.of(statement, self._site(statement))
                self._assign(target, term, out)
            case RecordOp():
                self._record(statement, out)
            case InvokeOp(target, function, args):
                parameters = self.program.functions[function].parameters
                given = [
                    self._operand(arg).to(form_of(parameter.type))
                    for arg, parameter in zip(args, parameters, strict=True)
                ]
                result = form_of(self.program.functions[function].result)
                made = call(self.called[function], "run", *given)
                self._assign(target, CppTerm(made, result), out)
            case ReadOp():
                self._read(statement, out)
            case IfOp(Variable() as condition, then, orelse):
                self._block(f"if ({truth(self._operand(condition))}) {{", then, out, "}")
                if orelse.ops:
                    self._block("else {", orelse, out)
            case LoopOp(body):
                outer, self._break = self._break, "break;"
                self._block("for (;;) {", body, out)
                self._break = outer
            case ScopeOp():
                self._scope(statement, out)
            case LeaveOp(label):
                name = next(name for number, name in reversed(self._labels) if number == label)
                out.write(f"goto {name};")
            case BreakOp():
                out.write(self._break)
            case ContinueOp():
                out.write("continue;")
            case ReturnOp(value):
                out.write(f"return {self._operand(value).to(self._result)};")
            case RaiseOp(_, parts):
                shown = [self._operand(x).to("v") for x in parts if not isinstance(x, str)]
                out.write(call("fail", "run", str(self._site(statement)), "kPython", *shown) + ";")
            case ForkOp(several):
                self._fork(several, out)
            case ForkLoopOp():
                self._fork_loop(statement, out)
            case PhaseOp(number):
                out.write(f"run.phase = later(run.phase, INT64_C({number}) << 32);")
            case OperateOp(_, operation):
                raise CodegenError(
                    f"operator `{operation.function}` is in no block", location=operation.location
                )
            case _:
                raise AssertionError(statement)

    def _assign(self, target: Variable | None, term: CppTerm, out: Writer) -> None:
        if target is None:
            out.write(f"(void)({term.text});")
        else:
            out.write(f"{self._name(target)} = {term.to(form_of(target.type))};")

    def _record(self, statement: RecordOp, out: Writer) -> None:
        block = self.layout.blocks[statement.block]
        given = list[str]()
        after = "0"
        for ghost in statement.after:
            after = call("later", after, self._operand(ghost).to("i"))
        for operand, type_ in zip(statement.inputs, block.inputs, strict=True):
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

    def _read(self, statement: ReadOp, out: Writer) -> None:
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

    def _scope(self, statement: ScopeOp, out: Writer) -> None:
        name = f"end{self._label_count}"
        self._label_count += 1
        self._labels.append((statement.label, name))
        self._block("{", statement.body, out)
        self._labels.pop()
        out.write(f"{name}:;")

    def _fork(self, several: tuple[Block, ...], out: Writer) -> None:
        for body in several:
            if _is_left(body):
                raise CodegenError(
                    "a body that runs concurrently is left by a jump",
                    location=first_location(body.ops),
                )
        out.write("fork_all(run")
        with out.indent():
            for body in several:
                self._block(", [&]() {", body, out)
        out.write(");")

    def _fork_loop(self, statement: ForkLoopOp, out: Writer) -> None:
        """Write a concurrent loop; a struct holds the private variables of an iteration."""
        if _is_left(statement.head, 1) or _is_left(statement.body) or _is_left(statement.tail):
            raise CodegenError(
                "an iteration that runs concurrently is left by a jump",
                location=first_location(statement.body.ops),
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


def _is_left(body: Block, loops: int = 0) -> bool:
    """Return True if an op jumps out of the body. loops: those around it that it may leave."""
    returns = any(isinstance(op, ReturnOp) for op in body.walk())
    return returns or any(leaves(op, loops) for op in body.ops)


def _comment(function: InstanceFunction) -> str:
    """Return the name of a function, which may have any characters, in a form that fits in a line
    comment."""
    return (function.title or function.name).encode("unicode_escape").decode().replace("\\", "/")

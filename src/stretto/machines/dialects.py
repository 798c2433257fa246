"""Writes statements down: as Python, which Triton programs are, or as C++. It decides nothing."""

from __future__ import annotations

from stretto.errors import CodegenError
from stretto.machines import statements as code
from stretto.machines.terms import Term, call, filled, prefix, separated
from stretto.text import Writer


def python_function(name: str, function: code.Function) -> str:
    """The definition of a function."""
    out = Writer("    ")
    out.write(f"def {name}({separated(function.parameters).text}):")
    _python_block(function.body, out)
    return out.text()


def _python_block(block: code.Block, out: Writer) -> None:
    with out.indent():
        if not write_python(block, out):
            out.write("pass")


def write_python(block: code.Block, out: Writer) -> bool:
    """Writes statements; says whether there were any."""
    written = False
    for statement in block:
        if isinstance(statement, code.Section):
            written |= write_python(statement.body, out)
        else:
            _write_python(statement, out)
            written = True
    return written


def _write_python(statement: code.Statement, out: Writer) -> None:
    match statement:
        case code.Assign(target, value, _, operator):
            out.write(f"{target.text} {operator} {value.text}" if target.names else value.text)
        case code.Store(_, target, value, mask):
            out.write(call("tl.store", target, value, mask=mask).text)
        case code.Do(value) | code.Signal(value):
            out.write(value.text)
        case code.Guard(value, Term() as target) | code.Wait(value, Term() as target):
            out.write(f"{target.text} = {value.text}")
        case code.If(condition, then, orelse, note):
            out.write(f"if {condition.text}:" + (f"  # {note}" if note else ""))
            _python_block(then, out)
            if orelse:
                out.write("else:")
                _python_block(orelse, out)
        case code.For(variable, first, last, step, body):
            bounds = [first, last] if step.text == "1" else [first, last, step]
            out.write(f"for {variable.text} in {call('range', *bounds).text}:")
            _python_block(body, out)
        case code.Loop(condition, _, body, None):
            out.write(f"while {condition.text}:")
            _python_block(body, out)
        case code.Loop(condition, head, body, Term() as flag, Term() as guard):
            out.write(f"{flag.text} = {guard.text}")
            out.write(f"while {flag.text}:")
            again = code.If(flag, (*body, code.Assign(flag, guard)))
            _python_block((*head, code.Assign(flag, guard & condition), again), out)
        case code.Return(values):
            out.write(f"return {separated(values).text}".rstrip())
        case _:
            raise CodegenError(f"Python has no {statement}")


# ---- C++ ---------------------------------------------------------------------------------------
def cpp_signature(head: str, function: code.Function) -> str:
    return f"{head}({separated(function.parameters).text})"


def write_cpp_function(head: str, function: code.Function, out: Writer) -> None:
    """The definition of a function; `head` is what stands before its parameters."""
    out.write(cpp_signature(head, function))
    _cpp_block(function.body, out)


def _cpp_block(block: code.Block, out: Writer) -> None:
    with out.block():
        for statement in block:
            _write_cpp(statement, out)


def _write_cpp(statement: code.Statement, out: Writer) -> None:
    match statement:
        case code.Assign(Term(names=(a, b)), Term(names=(c, d))) if (a, b) == (d, c):
            out.write(f"stretto::swap({a}, {b});")
        case code.Assign(target, value, kind, operator):
            out.write(f"{kind} {target.text} {operator} {value.text};".lstrip())
        case code.Store(_, target, value, None):
            out.write(f"{target.text} = {value.text};")
        case code.Do(value) | code.Signal(value):
            out.write(f"{value.text};")
        case code.Guard(value) | code.Wait(value):
            out.write(f"if (!{value.text}) return false;")
        case code.If(condition, (code.Return() as only,), ()):
            out.write(f"if ({condition.text}) {_cpp_return(only)}")
        case code.If(condition, then, orelse):
            out.write(f"if ({condition.text})")
            _cpp_block(then, out)
            if orelse:
                out.write("else")
                _cpp_block(orelse, out)
        case code.For(variable, first, last, step, body, pragma):
            if pragma:
                out.write(pragma)
            name = variable.text
            advance = f"++{name}" if step.text == "1" else f"{name} += {step.text}"
            out.write(f"for (int64_t {name} = {first.text}; {name} < {last.text}; {advance})")
            _cpp_block(body, out)
        case code.Loop(condition, (), body):
            out.write(f"while ({condition.text})")
            _cpp_block(body, out)
        case code.Loop(condition, head, body):
            out.write("for (;;)")
            leaves = code.Raw(filled("if ({}) break;", prefix("!", condition)))
            _cpp_block((*head, leaves, *body), out)
        case code.Section(body, head):
            if head is not None:
                out.write(head.text)
            _cpp_block(body, out)
        case code.Return():
            out.write(_cpp_return(statement))
        case code.Raw(text):
            out.write(text.text)
        case _:
            raise CodegenError(f"C++ has no {statement}")


def _cpp_return(statement: code.Return) -> str:
    return f"return {separated(statement.values).text};".replace(" ;", ";")

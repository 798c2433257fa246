"""Primitives of an InstanceProgram as C++ expressions (include/primitives.h)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isinf, isnan

import torch

from stretto.batching.host.tables import ProgramLayout
from stretto.batching.instance_program import InstanceProgram
from stretto.errors import CodegenError
from stretto.ir.core import Literal, Operand
from stretto.ir.data import AssignOp
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
)

# ---- C++ expressions of the host program, each with the form of its value.
#
# A form is one letter: b bool, i int64_t, f double, t Tensor (its number in the run), v Value (a
# tagged value), n void.


C_TYPES = {"b": "bool", "i": "int64_t", "f": "double", "t": "Tensor", "v": "Value"}
NUMBERS = "bif"
INTEGERS = "bi"


@dataclass(frozen=True, slots=True)
class CppTerm:
    """A C++ expression. Unless it is a call, it may be printed several times: it has no effects."""

    text: str
    form: str

    def to(self, form: str) -> str:
        """Return the text converted to another form. The types of the program guarantee that the
        value has that form at run time."""
        if self.form == form:
            return self.text
        match self.form, form:
            case "n", _:
                return f"({self.text}, {_ZERO[form]})"
            case _, "v":
                return f"box({self.text})"
            case "v", "b":
                return f"(({self.text}).i != 0)"
            case "v", "i":
                return f"({self.text}).i"
            case "v", "f":
                return f"as_float({self.text})"
            case "v", "t":
                return f"as_tensor({self.text})"
            case (("b" | "i" | "f"), ("b" | "i" | "f")):
                return f"static_cast<{C_TYPES[form]}>({self.text})"
            case _:  # unreachable at run time: the value does not have the variable's type
                return f"({self.text}, {_ZERO[form]})"


_ZERO = {"b": "false", "i": "int64_t{0}", "f": "0.0", "t": "Tensor{0}", "v": "none()"}


def zero(form: str) -> str:
    """Return the text of a value of a form, for variables before they are assigned."""
    return _ZERO[form]


def form_of(type_: DataType) -> str:
    """Return the form in which a variable of a type is stored."""
    match type_:
        case Scalar.BOOL:
            return "b"
        case Scalar.INT:
            return "i"
        case Scalar.FLOAT:
            return "f"
        case TensorType():
            return "t"
        case _:
            return "v"


def number_literal(value: bool | int | float) -> CppTerm:
    """Return a number as a C++ literal. Floats are exact."""
    if isinstance(value, bool):
        return CppTerm("true" if value else "false", "b")
    if isinstance(value, int):
        if value == -(2**63):
            return CppTerm("(-INT64_C(9223372036854775807) - 1)", "i")
        return CppTerm(f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))", "i")
    if isnan(value):
        return CppTerm('__builtin_nan("")', "f")
    if isinf(value):
        return CppTerm("__builtin_inf()" if value > 0 else "(-__builtin_inf())", "f")
    return CppTerm(f"({value.hex()})", "f")


def call(name: str, *args: str) -> str:
    return f"{name}({', '.join(args)})"


_SCALAR_KINDS = {
    Scalar.NONE: "kNone",
    Scalar.BOOL: "kBool",
    Scalar.INT: "kInt",
    Scalar.FLOAT: "kFloat",
    Scalar.STR: "kStr",
}
_FORM_SCALARS = {"b": Scalar.BOOL, "i": Scalar.INT, "f": Scalar.FLOAT}
_ARITHMETIC = {"add", "sub", "mul", "truediv", "floordiv", "mod", "pow"}
_BITS = {"and": "bit_and", "or": "bit_or", "xor": "bit_xor"}
_SHIFTS = {"lshift", "rshift"}
_UNARY = {"neg", "abs", "to_int", "round"}
_ORDER = {"lt", "le", "gt", "ge"}
_MATH_FLOAT = (
    "sqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "fabs",
    "erf",
    "erfc",
    "cbrt",
)
_MATH_TWO = ("atan2", "copysign", "fmod", "hypot", "pow")
_MATH_INT = ("floor", "ceil", "trunc")
_MATH_BOOL = ("isnan", "isinf", "isfinite")

# name -> (forms of the arguments, form of the result). Each is a C++ function of that name that
# takes the run and the site before the arguments. Form I: an int, checked at run time if needed.
_CALLS: dict[str, tuple[str, str]] = {
    "len": ("v", "i"),
    "at": ("vI", "v"),
    "put": ("vIv", "n"),
    "append": ("vv", "n"),
    "insert": ("vIv", "n"),
    "extend": ("vv", "n"),
    "slice": ("vvvv", "v"),
    "concat": ("vv", "v"),
    "repeat": ("vI", "v"),
    "reverse": ("v", "n"),
    "contains": ("vv", "b"),
    "index": ("vv", "i"),
    "clear": ("v", "n"),
    "rows": ("v", "v"),
    "sorted_ints": ("v", "v"),
    "lookup": ("vv", "v"),
    "lookup_or": ("vvv", "v"),
    "store": ("vvv", "n"),
    "remove": ("vv", "v"),
    "keys": ("v", "v"),
    "values": ("v", "v"),
    "join_str": ("vv", "v"),
    "join_all": ("v", "v"),
    "characters": ("v", "v"),
    "ord": ("v", "i"),
    "repr": ("v", "v"),
    "text": ("v", "v"),
    "round_to": ("fi", "f"),
}
_RENAMED = {"len": "length", "index": "index_of", "ord": "code_point"}


@dataclass(frozen=True, slots=True)
class Expressions:
    """Printer of the primitives of one program. `operand` prints an operand."""

    program: InstanceProgram
    layout: ProgramLayout
    operand: Callable[[Operand], CppTerm]

    def of(self, statement: AssignOp, site: int) -> CppTerm:
        """Return the value that an Assign computes; `site` is its number in errors."""
        op, detail = statement.op, statement.detail
        args = [self.operand(arg) for arg in statement.args]
        where = ("run", str(site))
        if op in _CALLS:
            forms, result = _CALLS[op]
            given = [_as(arg, form, site) for arg, form in zip(args, forms, strict=True)]
            return CppTerm(call(_RENAMED.get(op, op), *where, *given), result)
        match op:
            case "copy" | "cast":
                return args[0]
            case "unset":
                assert statement.target is not None
                form = form_of(statement.target.type)
                return CppTerm(zero(form), form)
            case "ready":
                level = f"later(run.phase, run.level_of({args[0].to('t')}))"
                return CppTerm(f"({level} + {detail})", "i")
            case "shared":
                return CppTerm(f"Tensor{{{self._shared(detail)}}}", "t")
            case "pop":
                rest = [_as(arg, "I", site) for arg in args[1:]]
                return CppTerm(call("pop", *where, args[0].to("v"), *rest), "v")
            case "has_type":
                return CppTerm(self.test(args[0], detail), "b")
            case "expect":
                test = self.test(args[0], tuple(alternatives(detail[0])))
                fail = call("fail", *where, "kPython", args[0].to("v"))
                return CppTerm(f"({test} ? (void)0 : {fail}, {args[0].text})", args[0].form)
            case "record":
                return self._record(detail, args)
            case "tuple" | "list" | "dict":
                return CppTerm(_made(op, detail, args), "v")
            case "to_list":
                kind = "kTuple" if detail else "kList"
                return CppTerm(call("to_list", *where, args[0].to("v"), kind), "v")
            case "get":
                return self._get(statement.args[0], args[0], detail, site)
            case "has":
                return self._has(statement.args[0], args[0], detail)
            case "set":
                return self._set(statement.args[0], args, detail, site)
            case "item":
                return _item(statement.args[0], args[0], detail, site)
            case _:
                return _scalar(statement, args, site)

    def test(self, term: CppTerm, types: Sequence[DataType]) -> str:
        """Return a C++ test that a value has one of some types."""
        found = [item for type_ in types for item in alternatives(type_)]
        if term.form in _FORM_SCALARS:
            return "true" if _FORM_SCALARS[term.form] in found else "false"
        tests = [self._is(term.to("v"), item) for item in found]
        return f"({' || '.join(tests)})" if tests else "false"

    def _is(self, value: str, type_: DataType) -> str:
        match type_:
            case Scalar():
                return f"{value}.kind == {_SCALAR_KINDS[type_]}"
            case TensorType():
                pool = self.layout.pool(type_)
                place = f"run.tensors[({value}).i].pool"
                return (
                    "false" if pool is None else f"({value}.kind == kTensor && {place} == {pool})"
                )
            case RowsType(row):
                pool = self.layout.pool(row)
                return (
                    "false"
                    if pool is None
                    else f"({value}.kind == kRows && {value}.type == {pool})"
                )
            case RecordType(number):
                return f"({value}.kind == kRecord && {value}.type == {number})"
            case TupleType(items):
                return f"({value}.kind == kTuple && {value}.object->length == {len(items)})"
            case ListType(_, is_tuple):
                return f"{value}.kind == {'kTuple' if is_tuple else 'kList'}"
            case _:
                assert isinstance(type_, DictType)
                return f"{value}.kind == kDict"

    def _shared(self, tensor: torch.Tensor) -> int:
        """Return the number of a shared tensor in a run; shared tensors come first."""
        for number, item in enumerate(self.layout.shared):
            if item.tensor is tensor:
                return number
        raise AssertionError("the layout has all shared tensors")

    def _places(self, operand: Operand, name: str) -> tuple[list[tuple[int, int]], bool]:
        """Return class number and position of a field in each class that a record may have, and
        True if the value may also be something without this field."""
        types = () if isinstance(operand, Literal) else tuple(alternatives(operand.type))
        found = list[tuple[int, int]]()
        for type_ in types:
            if isinstance(type_, RecordType):
                fields = self.program.classes[type_.number].fields
                if name in fields:
                    found.append((type_.number, fields.index(name)))
        return sorted(found), len(found) < len(types) or not found

    def _record(self, detail: tuple[int, tuple[str, ...]], args: list[CppTerm]) -> CppTerm:
        """Return a new object; fields that are not given are unset."""
        number, names = detail
        given = dict(zip(names, (arg.to("v") for arg in args), strict=True))
        fields = self.program.classes[number].fields
        items = (given.get(name, "unset()") for name in fields)
        return CppTerm(call("record_of", "run", str(number), *items), "v")

    def _get(self, operand: Operand, record: CppTerm, name: str, site: int) -> CppTerm:
        places, is_partial = self._places(operand, name)
        if not is_partial and len({place for _, place in places}) == 1:
            where = ("run", str(site), record.text, str(places[0][1]))
            return CppTerm(call("field_of", *where), "v")
        cases = "".join(
            f"case {number}: return field_of(run, {site}, r, {place}); " for number, place in places
        )
        fail = call("fail", "run", str(site), "kPython", "r")
        switch = f"if (r.kind == kRecord) switch (r.type) {{ {cases}}} {fail};"
        return CppTerm(f"[&](Value r) -> Value {{ {switch} }}({record.to('v')})", "v")

    def _has(self, operand: Operand, record: CppTerm, name: str) -> CppTerm:
        places, _ = self._places(operand, name)
        cases = "".join(
            f"case {number}: return field(r, {place}).kind != kUnset; " for number, place in places
        )
        switch = f"if (r.kind == kRecord) switch (r.type) {{ {cases}}} return false;"
        return CppTerm(f"[&](Value r) -> bool {{ {switch} }}({record.to('v')})", "b")

    def _set(self, operand: Operand, args: list[CppTerm], name: str, site: int) -> CppTerm:
        places, _ = self._places(operand, name)
        frozen = ("namedtuple",)
        cases = "".join(
            f"case {number}: writable(run, {site}, r); as_tuple(r)->items[{place}] = x; return; "
            for number, place in places
            if self.program.classes[number].kind not in frozen
        )
        fail = call("fail", "run", str(site), "kPython", "r", "x")
        switch = f"if (r.kind == kRecord) switch (r.type) {{ {cases}}} {fail};"
        given = f"{args[0].to('v')}, {args[1].to('v')}"
        return CppTerm(f"[&](Value r, Value x) {{ {switch} }}({given})", "n")


def _as(term: CppTerm, form: str, site: int) -> str:
    """Return the text in a form. Form I is an int, checked at run time if its type is not known."""
    if form != "I":
        return term.to(form)
    return call("integer", "run", str(site), term.text) if term.form == "v" else term.to("i")


def _made(op: str, detail: object, args: list[CppTerm]) -> str:
    items = [arg.to("v") for arg in args]
    name = "tuple" if op == "list" and detail else op
    return call(f"{name}_of", "run", *items)


def _item(operand: Operand, value: CppTerm, place: int, site: int) -> CppTerm:
    types = () if isinstance(operand, Literal) else tuple(alternatives(operand.type))
    known = all(isinstance(x, TupleType) and 0 <= place < len(x.items) for x in types)
    if known and types:
        return CppTerm(call("field", value.text, str(place)), "v")
    return CppTerm(call("at", "run", str(site), value.to("v"), f"INT64_C({place})"), "v")


def _scalar(statement: AssignOp, args: list[CppTerm], site: int) -> CppTerm:
    """Return the term of arithmetic, comparisons and other primitives on scalars. Raises
    CodegenError for an unknown primitive."""
    op, forms = statement.op, "".join(arg.form for arg in args)
    where = ("run", str(site))
    known = all(form in NUMBERS for form in forms)
    integers = all(form in INTEGERS for form in forms)
    values = [arg.to("v") for arg in args]
    ints = [arg.to("i") for arg in args] if integers else []
    floats = [arg.to("f") for arg in args] if known else []

    def generic(name: str, using: str = "dispatch") -> CppTerm:
        names = [f"x{n}" for n in range(len(args))]
        inner = f"return {call(name, *where, *names)};"
        taken = ", ".join(f"auto {name}" for name in names)
        return CppTerm(call(using, *where, *values, f"[&]({taken}) {{ {inner} }}"), "v")

    match op:
        case _ if op in _ARITHMETIC:
            if not known:
                return generic(op)
            if not integers:
                return CppTerm(call(op, *where, *floats), "f")
            return CppTerm(call(op, *where, *ints), {"truediv": "f", "pow": "v"}.get(op, "i"))
        case _ if op in _BITS:
            if forms == "bb":
                return CppTerm(f"({call(_BITS[op], *where, *ints)} != 0)", "b")
            term = CppTerm(call(_BITS[op], *where, *ints), "i")
            return term if integers else generic(_BITS[op], "dispatch_bits")
        case _ if op in _SHIFTS:
            return CppTerm(call(op, *where, *(_as(arg, "I", site) for arg in args)), "i")
        case "invert":
            return CppTerm(f"(~{_as(args[0], 'I', site)})", "i")
        case "to_float":
            text = call("number", *where, *values)
            return CppTerm(args[0].to("f") if known else text, "f")
        case _ if op in _UNARY:
            if not known:
                return generic(op)
            is_int = integers or op in ("to_int", "round")
            return CppTerm(call(op, *where, *(ints or floats)), "i" if is_int else "f")
        case "min" | "max":
            return _extreme(op, args, site)
        case "math":
            return _math(statement, args, site)
        case _ if op in _ORDER:
            return CppTerm(call(op, *where, *(_plain(args) if known else values)), "b")
        case "eq" | "ne":
            test = f"order({', '.join(_plain(args))}) == 0" if known else ""
            test = test or call("equal", *where, *values)
            return CppTerm(f"({test})" if op == "eq" else f"(!({test}))", "b")
        case "is":
            return _identity(statement, args)
        case "not" | "truth":
            return CppTerm(f"({'!' if op == 'not' else ''}{truth(args[0])})", "b")
        case _:
            raise CodegenError(f"no primitive `{op}`", location=statement.location)


def truth(term: CppTerm) -> str:
    """Return the text of bool(x)."""
    match term.form:
        case "b":
            return term.text
        case "i" | "f":
            return f"({term.text} != 0)"
        case "t":
            return "true"
        case _:
            return call("truth", "run", term.text)


def _plain(args: list[CppTerm]) -> list[str]:
    """Return the texts of numbers, bools converted to ints."""
    return [arg.to("i") if arg.form == "b" else arg.text for arg in args]


def _extreme(op: str, args: list[CppTerm], site: int) -> CppTerm:
    """Return the term of min or max: as in Python, the second only if it is less (greater) than
    the first."""
    first, second = args
    test = "lt" if op == "min" else "gt"
    if first.form == second.form and first.form in NUMBERS:
        compared = call(test, "run", str(site), *reversed(_plain(args)))
        return CppTerm(f"({compared} ? {second.text} : {first.text})", first.form)
    a, b = first.to("v"), second.to("v")
    return CppTerm(f"({call(test, 'run', str(site), b, a)} ? {b} : {a})", "v")


def _identity(statement: AssignOp, args: list[CppTerm]) -> CppTerm:
    for arg, other in zip(args, reversed(statement.args), strict=True):
        if isinstance(other, Literal) and other.value is None:
            return CppTerm(f"({arg.text}.kind == kNone)" if arg.form == "v" else "false", "b")
    first, second = args
    if first.form == second.form and first.form in INTEGERS:
        return CppTerm(f"({first.text} == {second.text})", "b")
    return CppTerm(call("is_same", first.to("v"), second.to("v")), "b")


def _math(statement: AssignOp, args: list[CppTerm], site: int) -> CppTerm:
    name = statement.detail
    where = ("run", str(site))
    if name in _MATH_INT and args[0].form in INTEGERS:
        return CppTerm(args[0].to("i"), "i")
    floats = [arg.to("f") if arg.form != "v" else call("number", *where, arg.text) for arg in args]
    match len(args):
        case 1 if name in _MATH_FLOAT:
            return CppTerm(call("math", *where, call(f"std::{name}", *floats), *floats), "f")
        case 2 if name in _MATH_TWO:
            return CppTerm(call("math", *where, call(f"std::{name}", *floats), *floats), "f")
        case 1 if name in _MATH_INT:
            inner = call("integral", *where, "x", call(f"std::{name}", "x"))
            if args[0].form == "f":
                return CppTerm(f"[&](double x) {{ return {inner}; }}({floats[0]})", "i")
            given = args[0].to("v")
            whole = f"is_integer(a) ? a.i : [&](double x) {{ return {inner}; }}"
            return CppTerm(
                f"[&](Value a) {{ return {whole}({call('number', *where, 'a')}); }}({given})", "i"
            )
        case 1 if name in _MATH_BOOL:
            return CppTerm(call(f"std::{name}", *floats), "b")
        case _:
            raise CodegenError(
                f"math.{name} of {len(args)} numbers cannot be computed per instance",
                location=statement.location,
                remedy="use another function of `math`, or one of torch",
            )

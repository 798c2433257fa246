"""Terms and statements: how they are written, and what analyses find in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from stretto.device.expr import Buffer
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.statements import python_function, write_cpp_function
from stretto.machines.terms import (
    Term,
    call,
    every,
    filled,
    infix,
    joined,
    literal,
    prefix,
    separated,
    total,
    variable,
)
from stretto.text import Writer

A, B, C, D, OK = (variable(name) for name in ("a", "b", "c", "d", "ok"))
GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (A + B * C, "a + b * c"),
        ((A + B) * C, "(a + b) * c"),
        (A - (B - C), "a - (b - c)"),
        (A - B - C, "a - b - c"),
        (A * (B * C), "a * (b * c)"),
        (infix(A + B, "//", 3), "(a + b) // 3"),
        (prefix("-", A + B), "-(a + b)"),
        ((A + B).to("tl.int64"), "(a + b).to(tl.int64)"),
        (A & B & C, "a & b & c"),
        (A & infix(B, "<", C), "a & (b < c)"),
        (infix(A & B, "==", C), "(a & b) == c"),
        (infix(infix(A, "<", B), "==", C), "(a < b) == c"),
        (infix(A, "|", B & C), "a | (b & c)"),
        (infix(A, "<", B + 1), "a < b + 1"),
        (total(A, None, B + C, literal(2)), "a + b + c + 2"),
        (every(None, A, infix(B, "<", 2)), "a & (b < 2)"),
        (call("f", A, 1, mask=None, other=B), "f(a, 1, other=b)"),
        (filled("{} ? {} : {}", A, B, 0), "a ? b : 0"),
    ],
)
def test_terms_have_the_parentheses_they_need(term: Term, text: str) -> None:
    assert term.text == text
    assert set(term.names) == {n.id for n in _names(text)} - {"f", "tl"}


def _names(text: str) -> list[ast.Name]:
    text = text.replace(" ? ", ", ").replace(" : ", ", ")
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]


def test_terms_know_what_they_are_made_of() -> None:
    weights = Buffer("w", DType.F32, (4,), "constant", 0)
    load = Term(("tl.load(", ")"), ("p",), axes=1, reads=(weights,))
    both = load + variable("x", 2)
    assert both.axes == 3 and both.reads == (weights,) and both.names == ("p", "x")
    assert not both.effect and call("f", call("g", effect=True)).effect


BODY: code.Statements = (
    code.Assign(A, B),
    code.Branch(C, (code.Assign(D, A),), (code.Do(call("f", D)),)),
    code.CountedLoop(variable("i"), literal(0), B, body=(code.Store(None, A, variable("i")),)),
)


def test_what_is_live() -> None:
    nothing = frozenset[str]()
    assert code.live(BODY, nothing) == {"b", "c", "d"}
    assert code.live(BODY, frozenset({"d", "e"})) == {"b", "c", "d", "e"}
    assert code.live_behind(BODY, nothing) == [{"a", "b", "c", "d"}, {"a", "b"}, nothing]


def test_what_an_iteration_leaves_to_the_next_is_live() -> None:
    loop = code.WhileLoop(
        OK & C, body=(code.Do(call("f", A)), code.Assign(A, B), code.Assign(B, literal(0)))
    )
    assert code.live((loop,), frozenset()) == {"ok", "c", "a", "b"}
    flagged = code.WhileLoop(
        C, (code.Assign(C, D),), (code.Assign(D, A),), flag=variable("going"), guard=OK
    )
    assert code.live((flagged,), frozenset()) == {"ok", "d", "a"}


def test_what_may_not_be_assigned_stays_live() -> None:
    assert code.live((code.CountedLoop(A, literal(0), B),), frozenset({"a"})) == {"a", "b"}
    assert code.live((code.Section((code.Assign(A, B),)),), frozenset({"a"})) == {"b"}


def test_names_and_new_names() -> None:
    assert list(code.mentioned(BODY)) == ["a", "b", "c", "d", "i"]
    found = code.renamed(code.FunctionDefinition((B,), BODY), {"b": "z", "i": "j"})
    assert list(code.mentioned(found.body)) == ["a", "z", "c", "d", "j"]
    assert found.parameters == (variable("z"),)
    assert found != code.FunctionDefinition((B,), BODY) == code.renamed(found, {"z": "b", "j": "i"})


def test_python() -> None:
    loop = code.WhileLoop(
        C,
        (code.CheckedCall(call("g", A), OK),),
        (code.Assign(A, literal(1), operator="+="),),
        D,
        OK,
    )
    function = code.FunctionDefinition(
        (A, B), (*BODY, loop, code.Branch(C, ()), code.Return((A, OK)))
    )
    assert python_function("f", function) == (
        "def f(a, b):\n"
        "    a = b\n"
        "    if c:\n"
        "        d = a\n"
        "    else:\n"
        "        f(d)\n"
        "    for i in range(0, b):\n"
        "        tl.store(a, i)\n"
        "    d = ok\n"
        "    while d:\n"
        "        ok = g(a)\n"
        "        d = ok & c\n"
        "        if d:\n"
        "            a += 1\n"
        "            d = ok\n"
        "    if c:\n"
        "        pass\n"
        "    return a, ok\n"
    )


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.triton")), ids=lambda path: path.stem)
def test_functions_take_what_they_use(path: Path) -> None:
    """What statements say of their variables is what Python finds in the text."""
    module = ast.parse(path.read_text())
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    library = {"tl", "range", "float", "wait", "signal", "stopped", "require", "packed_detail"}
    library |= {"wait_for_each", "wait_by", "signal_by"}
    outside = library | {function.name for function in functions}
    for function in functions:
        names = [n for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name)]
        known = outside | {argument.arg for argument in function.args.args}
        known |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
        unknown = {name.id for name in names} - known
        assert not {name for name in unknown if not name.startswith("stretto_")}, function.name


def test_cpp() -> None:
    loop = code.WhileLoop(C, (code.CheckedCall(call("g", A)),), (code.Assign(A, B, operator="+="),))
    counted = code.CountedLoop(
        variable("i"), literal(0), B, literal(4), (code.Store(None, A, B),), "#line"
    )
    swap = code.Assign(separated((A, B)), separated((B, A)))
    leave = code.Branch(infix(A, "<", B), (code.Return((literal("false"),)),))
    section = code.Section((code.Assign(D, A, "const int"),), literal("case 1:"))
    body = (loop, counted, swap, leave, section, code.WaitCall(call("wait")), code.Return())
    writer = Writer()
    write_cpp_function("static bool f", code.FunctionDefinition((joined("int ", A),), body), writer)
    assert writer.text() == (
        "static bool f(int a)\n{\n"
        "  for (;;)\n  {\n"
        "    if (!g(a)) return false;\n"
        "    if (!c) break;\n"
        "    a += b;\n"
        "  }\n"
        "  #line\n"
        "  for (int64_t i = 0; i < b; i += 4)\n  {\n"
        "    a = b;\n"
        "  }\n"
        "  stretto::swap(a, b);\n"
        "  if (a < b) return false;\n"
        "  case 1:\n  {\n"
        "    const int d = a;\n"
        "  }\n"
        "  if (!wait()) return false;\n"
        "  return;\n}\n"
    )

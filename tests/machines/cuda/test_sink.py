"""Assignments of constants stand where they are needed first."""

from __future__ import annotations

from stretto.machines import statements as code
from stretto.machines.cuda.printer.outline import sink_assignments
from stretto.machines.statements import python_function
from stretto.machines.terms import call, infix, literal, variable

A, B, X = map(variable, ("a", "b", "x"))
ASSIGNMENTS = [code.Assign(A, literal(1)), code.Assign(B, literal(2))]


def use(*names: str) -> code.Do:
    return code.Do(call("use", *map(variable, names)))


def text(*block: code.Statement) -> list[str]:
    body = sink_assignments(ASSIGNMENTS, block)
    return [
        line[4:]
        for line in python_function("f", code.FunctionDefinition((), body)).splitlines()[1:]
    ]


def test_before_the_first_statement_that_needs_them() -> None:
    expected = ["use(x)", "b = 2", "use(b)", "a = 1", "use(b, a)"]
    assert text(use("x"), use("b"), use("b", "a")) == expected


def test_nobody_needs_them() -> None:
    assert text(use("x")) == ["use(x)"]


def test_one_arm_needs_them_or_both() -> None:
    branch = code.Branch(X, (use("x"), use("a")), (use("b"),))
    assert text(branch) == [
        "if x:", "    use(x)", "    a = 1", "    use(a)", "else:", "    b = 2", "    use(b)",
    ]  # fmt: skip
    both = code.Branch(X, (use("a"), use("b")), (use("a"),))
    assert text(both)[:3] == ["a = 1", "if x:", "    use(a)"]


def test_behind_the_branch_they_are_needed_too() -> None:
    branch = code.Branch(X, (use("a"),))
    assert text(branch, use("a")) == ["a = 1", "if x:", "    use(a)", "use(a)"]
    again = code.Branch(X, (use("a"),))
    assert text(use("a"), again) == ["a = 1", "use(a)", "if x:", "    use(a)"]


def test_the_condition_of_a_branch_needs_them() -> None:
    branch = code.Branch(infix(A, "<", 3), (use("a"),))
    assert text(branch)[:2] == ["a = 1", "if a < 3:"]


def test_branches_inside_of_an_arm() -> None:
    inner = code.Branch(X, (use("a"),), (use("x"),))
    outer = code.Branch(X, (inner, use("b")))
    assert text(outer) == [
        "if x:", "    if x:", "        a = 1", "        use(a)", "    else:", "        use(x)",
        "    b = 2", "    use(b)",
    ]  # fmt: skip


def test_loops_are_not_entered() -> None:
    loop = code.WhileLoop(X, body=(code.Branch(X, (use("a"),)), use("b")))
    assert text(loop)[:3] in (["a = 1", "b = 2", "while x:"], ["b = 2", "a = 1", "while x:"])

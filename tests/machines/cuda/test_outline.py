"""Sections of the entry as functions: what they take and give, and equal ones are one."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.machines import statements as code
from stretto.machines.cuda.printer.outline import Outliner, outline, outlined_sections
from stretto.machines.statements import python_function
from stretto.machines.terms import call, infix, literal, separated, variable


def loop(step: int = 1) -> code.Statements:
    names = "early unit ok at stop row first task base weights state other"
    early, unit, ok, at, stop, row, first, task, base, weights, state, other = map(
        variable, names.split()
    )
    return (
        code.Assign(early, call("e_x", weights, call("tl.minimum", unit, 3))),
        code.WhileLoop(
            ok & infix(at, "<", stop),
            body=(
                code.CountedLoop(
                    row,
                    literal(0),
                    literal(9),
                    literal(3),
                    (
                        code.Assign(first, call("tl.load", variable("tables") + row, effect=True)),
                        code.WaitCall(call("wait", unit, first, ok), ok),
                    ),
                ),
                code.Assign(task, unit),
                code.Branch(
                    ok & infix(task, "<", 4),
                    (code.Do(call("k_x", state, weights, other, task, early)),),
                ),
                code.Assign(base, literal(step), operator="+="),
                code.Assign(separated((state, other)), separated((other, state))),
                code.Assign(at, literal(1), operator="+="),
            ),
        ),
    )


def test_takes_what_it_reads_and_gives_what_is_read_behind_it() -> None:
    piece = outline(loop(), frozenset({"ok", "base", "state", "unit", "elsewhere"}))
    assert set(piece.parameters) == {
        "weights", "unit", "ok", "at", "stop", "tables", "base", "state", "other",
    }  # fmt: skip
    assert piece.results == ("ok", "state", "base")


def test_gives_what_a_loop_may_not_have_assigned() -> None:
    body = (code.WhileLoop(variable("ok"), body=(code.Assign(variable("r"), literal(1)),)),)
    assert outline(body, frozenset({"r"})).parameters == ("ok", "r")
    assert outline(body, frozenset()).parameters == ("ok",)


def test_loops_that_differ_in_names_are_one_function() -> None:
    names: Mapping[str, str] = {"state": "state_7", "weights": "weights_9", "at": "at_11"}
    first = outline(loop(), frozenset({"state"}))
    second = outline(code.renamed(loop(), names), frozenset({"state_7"}))
    assert first.function == second.function
    assert first.parameters != second.parameters
    assert first.function != outline(loop(step=2), frozenset({"state"})).function


def test_words_that_are_no_variables_keep_their_names() -> None:
    infinity = call("tl.where", variable("x"), 'float("inf")', 'float("-inf")')
    body = (code.Assign(variable("x"), infinity),)
    piece = outline(body, frozenset({"x"}))
    assert piece.parameters == ("x",)
    assert 'tl.where(x0, float("inf"), float("-inf"))' in python_function("f", piece.function)


def test_long_sections_become_calls() -> None:
    defined: list[code.FunctionDefinition] = []

    def define(hint: str, function: code.FunctionDefinition) -> str:
        defined.append(function)
        return f"{hint}_{len(defined)}"

    x, y, pointer = variable("x"), variable("y"), variable("pointer")
    section = code.Section(
        (code.Assign(x, y), code.Assign(y, literal(2)), code.Assign(pointer, pointer + 1)), least=3
    )
    block = (
        section,
        code.Section(section.body, least=4),
        code.Assign(variable("z"), x + y),
        code.Do(call("use", variable("z"), pointer)),
    )
    found = Outliner(define, frozenset({"pointer"})).outlined(block, frozenset())
    lines = python_function("f", code.FunctionDefinition((), found)).splitlines()
    assert lines[1:3] == [
        "    y, pointer = piece_main_1(y, pointer)",
        "    pointer = tl.multiple_of(pointer, 16)",
    ]
    assert len(defined) == 1 and lines[3:6] == [
        "    x = y",
        "    y = 2",
        "    pointer = pointer + 1",
    ]


def printed(
    sections: Mapping[str, code.Statements], addresses: Mapping[str, tuple[str, int]]
) -> str:
    """Sections as functions, and what calls them, in one text."""
    defined: dict[code.FunctionDefinition, str] = {}

    def define(hint: str, function: code.FunctionDefinition) -> str:
        return defined.setdefault(function, f"{hint}_{len(defined)}")

    block = tuple(code.Section(body, least=1) for body in sections.values())
    main = outlined_sections(block, define, frozenset(), addresses)
    functions = [python_function(name, function) for function, name in defined.items()]
    return "\n".join([*functions, python_function("main", code.FunctionDefinition((), main))])


def use(*names: str) -> code.Statements:
    return (code.Do(call("use", *map(variable, names))),)


FOUR = {"b_1": ("arena", 0), "b_2": ("arena", 64), "b_3": ("arena", 512), "b_4": ("arena", 576)}


def test_addresses_at_the_same_distances_are_one_parameter() -> None:
    sections = {"first": use("b_1", "x_1", "b_2"), "second": use("b_3", "x_2", "b_4")}
    lines = [line.strip() for line in printed(sections, FOUR).splitlines()]
    assert [line for line in lines if line] == [
        "def piece_main_0(b0, x1):",
        "b2 = b0 + 64",
        "use(b0, x1, b2)",
        "return",
        "def main():",
        "piece_main_0(b_1, x_1)",
        "piece_main_0(b_3, x_2)",
    ]


def test_addresses_at_other_distances_are_parameters_each() -> None:
    text = printed({"first": use("b_1", "b_2"), "second": use("b_3", "b_2")}, FOUR)
    assert text.count("def piece_main") == 1
    assert "piece_main_0(b_1, b_2)" in text and "piece_main_0(b_3, b_2)" in text


def test_addresses_of_several_types_and_those_that_change_have_no_distance() -> None:
    addresses = {"b_1": ("arena_float32", 0), "b_2": ("arena_int64", 64)}
    text = printed({"only": use("b_1", "b_2", "moving")}, addresses)
    assert "piece_main_0(b_1, b_2, moving)" in text


def test_a_section_in_a_section_takes_fewer_addresses_too() -> None:
    def nested(first: str, second: str) -> code.Statements:
        inner = code.Section(use(first, second) * 3, least=2)
        return (code.Section((*use(first), inner, *use("n"), *use(first)), least=3),)

    defined: dict[code.FunctionDefinition, str] = {}

    def define(hint: str, function: code.FunctionDefinition) -> str:
        return defined.setdefault(function, f"{hint}_{len(defined)}")

    block = (*nested("b_1", "b_2"), *nested("b_3", "b_4"))
    main = outlined_sections(block, define, frozenset(), FOUR)
    text = python_function("main", code.FunctionDefinition((), main))
    assert len(defined) == 2
    assert "piece_main_1(b_1, n)" in text and "piece_main_1(b_3, n)" in text
    inner, outer = (python_function(name, function) for function, name in defined.items())
    assert "b1 = b0 + 64" in inner and "64" not in outer

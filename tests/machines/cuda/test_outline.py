"""Sections of the entry as functions: what they take and give, and equal ones are one."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.machines import statements as code
from stretto.machines.cuda.printer.outline import Outliner, outline
from stretto.machines.dialects import python_function
from stretto.machines.terms import call, infix, literal, separated, variable


def loop(step: int = 1) -> code.Block:
    names = "early unit ok at stop row first task base weights state other"
    early, unit, ok, at, stop, row, first, task, base, weights, state, other = map(
        variable, names.split()
    )
    return (
        code.Assign(early, call("e_x", weights, call("tl.minimum", unit, 3))),
        code.Loop(
            ok & infix(at, "<", stop),
            body=(
                code.For(
                    row,
                    literal(0),
                    literal(9),
                    literal(3),
                    (
                        code.Assign(first, call("tl.load", variable("tables") + row, effect=True)),
                        code.Wait(call("wait", unit, first, ok), ok),
                    ),
                ),
                code.Assign(task, unit),
                code.If(
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
    assert set(piece.takes) == {
        "weights", "unit", "ok", "at", "stop", "tables", "base", "state", "other",
    }  # fmt: skip
    assert piece.gives == ("ok", "state", "base")


def test_gives_what_a_loop_may_not_have_assigned() -> None:
    body = (code.Loop(variable("ok"), body=(code.Assign(variable("r"), literal(1)),)),)
    assert outline(body, frozenset({"r"})).takes == ("ok", "r")
    assert outline(body, frozenset()).takes == ("ok",)


def test_loops_that_differ_in_names_are_one_function() -> None:
    names: Mapping[str, str] = {"state": "state_7", "weights": "weights_9", "at": "at_11"}
    first = outline(loop(), frozenset({"state"}))
    second = outline(code.renamed(loop(), names), frozenset({"state_7"}))
    assert first.function == second.function
    assert first.takes != second.takes
    assert first.function != outline(loop(step=2), frozenset({"state"})).function


def test_words_that_are_no_variables_keep_their_names() -> None:
    infinity = call("tl.where", variable("x"), 'float("inf")', 'float("-inf")')
    body = (code.Assign(variable("x"), infinity),)
    piece = outline(body, frozenset({"x"}))
    assert piece.takes == ("x",)
    assert 'tl.where(x0, float("inf"), float("-inf"))' in python_function("f", piece.function)


def test_long_sections_become_calls() -> None:
    defined: list[code.Function] = []

    def define(hint: str, function: code.Function) -> str:
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
    lines = python_function("f", code.Function((), found)).splitlines()
    assert lines[1:3] == [
        "    y, pointer = piece_main_1(y, pointer)",
        "    pointer = tl.multiple_of(pointer, 16)",
    ]
    assert len(defined) == 1 and lines[3:6] == [
        "    x = y",
        "    y = 2",
        "    pointer = pointer + 1",
    ]

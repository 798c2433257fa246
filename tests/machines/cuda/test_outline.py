"""Sections of the entry as functions: what they take and give, and equal ones are one."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.machines.cuda.printer.outline import Outliner, outline
from stretto.machines.dialects import python_function
from stretto.machines.statements import (
    Assign,
    Block,
    Do,
    For,
    Function,
    If,
    Loop,
    Section,
    Wait,
    call,
    infix,
    literal,
    renamed,
    separated,
    variable,
)


def loop(step: int = 1) -> Block:
    names = "early unit ok at stop row first task base weights state other"
    early, unit, ok, at, stop, row, first, task, base, weights, state, other = map(
        variable, names.split()
    )
    return (
        Assign(early, call("e_x", weights, call("tl.minimum", unit, 3))),
        Loop(
            ok & infix(at, "<", stop),
            body=(
                For(
                    row,
                    literal(0),
                    literal(9),
                    literal(3),
                    (
                        Assign(first, call("tl.load", variable("tables") + row, effect=True)),
                        Wait(call("wait", unit, first, ok), ok),
                    ),
                ),
                Assign(task, unit),
                If(
                    ok & infix(task, "<", 4),
                    (Do(call("k_x", state, weights, other, task, early)),),
                ),
                Assign(base, literal(step), operator="+="),
                Assign(separated((state, other)), separated((other, state))),
                Assign(at, literal(1), operator="+="),
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
    body = (Loop(variable("ok"), body=(Assign(variable("r"), literal(1)),)),)
    assert outline(body, frozenset({"r"})).takes == ("ok", "r")
    assert outline(body, frozenset()).takes == ("ok",)


def test_loops_that_differ_in_names_are_one_function() -> None:
    names: Mapping[str, str] = {"state": "state_7", "weights": "weights_9", "at": "at_11"}
    first = outline(loop(), frozenset({"state"}))
    second = outline(renamed(loop(), names), frozenset({"state_7"}))
    assert first.function == second.function
    assert first.takes != second.takes
    assert first.function != outline(loop(step=2), frozenset({"state"})).function


def test_words_that_are_no_variables_keep_their_names() -> None:
    infinity = call("tl.where", variable("x"), 'float("inf")', 'float("-inf")')
    body = (Assign(variable("x"), infinity),)
    piece = outline(body, frozenset({"x"}))
    assert piece.takes == ("x",)
    assert 'tl.where(x0, float("inf"), float("-inf"))' in python_function("f", piece.function)


def test_long_sections_become_calls() -> None:
    defined: list[Function] = []

    def define(hint: str, function: Function) -> str:
        defined.append(function)
        return f"{hint}_{len(defined)}"

    x, y, pointer = variable("x"), variable("y"), variable("pointer")
    section = Section((Assign(x, y), Assign(y, literal(2)), Assign(pointer, pointer + 1)), least=3)
    block = (
        section,
        Section(section.body, least=4),
        Assign(variable("z"), x + y),
        Do(call("use", variable("z"), pointer)),
    )
    found = Outliner(define, frozenset({"pointer"})).outlined(block, frozenset())
    lines = python_function("f", Function((), found)).splitlines()
    assert lines[1:3] == [
        "    y, pointer = piece_main_1(y, pointer)",
        "    pointer = tl.multiple_of(pointer, 16)",
    ]
    assert len(defined) == 1 and lines[3:6] == [
        "    x = y",
        "    y = 2",
        "    pointer = pointer + 1",
    ]

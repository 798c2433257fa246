"""Pieces of the entry as functions: what they take and give, and equal ones are one."""

from __future__ import annotations

from stretto.machines.cuda.printer.outline import assigned, outline

LOOP = """early_v1 = e_x(p3_w, tl.minimum(unit, 3))
while ok & (at_2 < stop_2):
    for row in range(tl.load(tables + 0 + unit), 9, 3):
        first = tl.load(tables + row + 0)
        ok = wait(control, unit, first, 2, base + 1, polls, ok, 64)
    task = unit
    if ok & (task < 4):
        k_x(b_h, p3_w, b_g, control, task, early_v1)
    base += 1
    b_h, b_g = b_g, b_h
    at_2 += 1
"""


def test_what_a_piece_assigns() -> None:
    assert assigned(LOOP) == {"early_v1", "ok", "base", "b_h", "b_g", "at_2"}


def test_takes_and_gives() -> None:
    piece = outline(LOOP, {"ok", "base", "b_h", "b_g", "at_2", "stop_2", "unit"})
    assert set(piece.takes) == {
        "p3_w", "unit", "ok", "at_2", "stop_2", "tables", "control", "base", "polls", "b_h", "b_g",
    }  # fmt: skip
    assert set(piece.gives) == {"ok", "at_2", "base", "b_h", "b_g"}
    assert "mask" not in piece.takes and "task" not in piece.takes


def test_loops_that_differ_in_names_are_one_function() -> None:
    other = (
        LOOP.replace("b_h", "b_state_7").replace("p3_w", "p9_w").replace("at_2", "at_11")
        .replace("stop_2", "stop_11").replace("early_v1", "early_v1_4")
    )  # fmt: skip
    outside = {"ok", "base", "unit"}
    first = outline(LOOP, outside | {"b_h", "b_g", "at_2", "stop_2"})
    second = outline(other, outside | {"b_state_7", "b_g", "at_11", "stop_11"})
    assert first.text == second.text
    assert first.takes != second.takes


def test_an_unlike_loop_is_another_function() -> None:
    outside = {"ok", "base", "b_h", "b_g", "at_2", "stop_2", "unit"}
    changed = LOOP.replace("base += 1", "base += 2")
    assert outline(LOOP, outside).text != outline(changed, outside).text


def test_infinities_and_not_a_number_are_no_variables() -> None:
    """They are printed as words in quotes."""
    text = 'b_h = tl.where(b_h > 0, float("inf"), float("-inf"))\nb_h = b_h + float("nan")\n'
    piece = outline(text, {"b_h"})
    assert piece.takes == ("b_h",)
    assert all(word in piece.text for word in ('float("inf")', 'float("-inf")', 'float("nan")'))

"""Each form of a program has a verifier: a change of its text that makes it wrong is rejected."""

from __future__ import annotations

from functools import cache

import pytest

from stretto.device.forms import Form, Lowered, Planned, Scheduled, Selected
from stretto.device.text import parse_form, print_form
from stretto.device.verifier import verify_form
from stretto.errors import VerifyError
from tests.device.test_forms import TEMPLATES, forms, loop


@cache
def made() -> dict[type[Form], Form]:
    """The last form of each kind: for a GPU of three units, in one launch."""
    return {type(form): form for form in forms(loop())}


@cache
def plan_of_many() -> Form:
    return next(form for form in forms(loop()) if isinstance(form, Planned))


def rejected(form: Form, old: str, new: str, reason: str) -> None:
    text = print_form(form)
    assert old in text
    source = made()[Selected]
    assert isinstance(source, Selected)
    changed = parse_form(text.replace(old, new, 1), templates=TEMPLATES)
    with pytest.raises(VerifyError, match=reason):
        verify_form(changed, None if isinstance(form, Lowered | Selected) else source.tree)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("= in0[i0, i1]", "= in0[i0 + 1, i1]", "accesses in0 out of range"),
        ("= in0[i0, i1]", "= in0[i0]", "accesses in0 with 1 indices"),
        ("= in0[i0, i1]", "= in0[i0, i2]", "uses variable 2 of 2"),
        ("= in0[i0, i1]", "= main.b.2[i0, i1]", "may not be written before"),
        ("= in0[i0, i1]", "= in0{4, 9}[i0, i1]", "sees in0 as larger than it is"),
        ("operator init (4, 8)", "operator init (3, 8)", "reads main.b.1, of which a part may not"),
        ("let $main.j.3 = 0:i64", "let $other = 0:i64", "register main.j.3 may be used before"),
        ("tanh(main.product", "tanh:f64(main.product", "calls tanh of f32 as f64"),
        ("mul(main.b.1[i0, i2], in1", "mul(main.b.1[i0, i2], <i0>, in1", "mul with 3 arguments"),
        ("out1[] = <$main.j.3>", "out1[] = 1.5:f32", "stores f32 into out1, i64"),
        ("out1[] = ", "bias[i0] = ", "uses variable 0 of 0"),
        ("out0[i0, i1] = ", "in0{8}[i1] = ", "writes the input in0"),
        ("rotate (main.b.1 = main.b.2)", "rotate (main.b.1 = bias)", "differ in type"),
        ("locals (main.b.1, main.b.2, ", "locals (main.b.1, ", "not both local"),
        ("outputs (tensor out0", "outputs (tensor main.b.1", "no external buffer"),
        ("inputs (in0", "inputs (out0", "input out0 is no input buffer"),
        (
            "<$main.j.3 + 1>",
            "checked(<$main.j.3>, 9:i64, 0:i64)",
            "raises failure 0, which is missing",
        ),
        ("seq {\n    leaf", "seq {\n    call f () () ()\n    leaf", "there is no function f"),
    ],
)
def test_operators(old: str, new: str, reason: str) -> None:
    rejected(made()[Lowered], old, new, reason)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("grid (4/4, 8/8)", "grid (3/3, 8/8)", "compute 24 of the 32 elements of operator init"),
        ("box (4 @ 0, 8 @ 1)", "box (4 @ 0, 8 @ 2)", "has no grid dim 2"),
        ("box (4 @ 0, 8 @ 1)", "box (4 @ 0)", "other dims than its operator"),
        ("box (4 @ 0, 8 @ 1)", "box (4 @ 0, 8 @ 1 + 1)", "computes more than its operator has"),
        ("grid (4/4, 8/8)", "grid (4/0, 8/8)", "a dim of no tiles"),
        ("kernel add", "kernel mm", "two kernels have one name"),
        ("= tanh(main.product.5[i0, i1])", "= tanh(main.b.2[i0, i1])", "may not be written"),
    ],
)
def test_kernels(old: str, new: str, reason: str) -> None:
    rejected(made()[Selected], old, new, reason)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("leaf 1 {", "leaf 0 {", "publishes nothing at its end"),
        ("main.b.2 at 128", "main.b.2 at 64", "overlap"),
        ("run init 0", "run init 1", "no tasks 1"),
        ("inputs (in0", "inputs (out0", "input out0 is no input buffer"),
    ],
)
def test_schedules(old: str, new: str, reason: str) -> None:
    rejected(made()[Scheduled], old, new, reason)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("main.j.3 = 2, main.while.4 = 3", "main.j.3 = 2, main.while.4 = 2", "not numbered"),
        (
            "main.j.3 = 2, main.while.4 = 3",
            "main.j.3 = 2, other = 3",
            "main.while.4 of function main has no word",
        ),
        ('"&main.b.1" = 0', "other = 0", "the address of main.b.1 has no word"),
        ("results ($main.j.3)", "results ()", "main.j.3 may be read before it is written"),
        ("params ($main.j.3)", "params ()", "reads register main.j.3 but does not take it"),
        ("rotated (main.b.1, main.b.2)", "rotated (main.b.1)", "not those that its loops rotate"),
        ("leaf launch frame main kernels (add)", "leaf launch frame main kernels (n)", "no kernel"),
    ],
)
def test_plans(old: str, new: str, reason: str) -> None:
    rejected(plan_of_many(), old, new, reason)


def test_a_plan_that_leaves_a_launch_out_does_not_do_what_its_source_does() -> None:
    text = print_form(plan_of_many())
    start = text.index("    leaf launch frame main kernels (add)")
    end = text.index("    leaf launch frame main kernels (n)")
    source = made()[Selected]
    assert isinstance(source, Selected)
    changed = parse_form(text[:start] + text[end:], templates=TEMPLATES)
    with pytest.raises(VerifyError, match="a leaf does not run kernel add"):
        verify_form(changed, source.tree)


def test_launches_in_another_order_are_rejected() -> None:
    text = print_form(plan_of_many())
    init = text.index("    leaf launch frame main kernels (init)")
    loop_start = text.index("    leaf launch frame main kernels (mm)")
    after = text.index("    leaf launch frame main kernels (add)")
    swapped = text[:init] + text[loop_start:after] + text[init:loop_start] + text[after:]
    with pytest.raises(VerifyError):
        verify_form(parse_form(swapped, templates=TEMPLATES))

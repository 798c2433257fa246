"""Simplification: each rule, and what only looks like one."""

import pytest
import torch

from stretto.interp.interpreter import run
from stretto.ir.text import print_op
from stretto.passes.manager import run_passes
from stretto.passes.simplify import Simplify
from tests.support import assert_same, check_pass, check_unchanged, program_of

SIMPLIFY = Simplify()

HEAD = """func @main(%x: f32[3], %m: f32[2, 3], %h: f16[3], %i: i64[3], %b: bool[], %k: i64[],
    %l: list<f32[3]>, %s: f32[s0, 3], %y: f32[3]) -> ()"""


def simplified(lines: str) -> str:
    """What the pass makes of the last of these lines, and of those before it."""
    result = lines.splitlines()[-1].split("=")[0].strip()
    type = lines.rsplit(" : ", 1)[1]
    head = HEAD.replace("-> ()", f"-> ({type})")
    program = program_of(f"{head} {{ {lines}\n return {result} }}")
    after = run_passes(program, [SIMPLIFY])
    (found,) = after.main.body.yields
    maker = next((op for op in after.main.body.ops if found in op.results), None)
    if maker is None:
        return f"%{found.hint}"
    return print_op(maker, after.main).split(" = ")[1].rsplit(" : ", 1)[0]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("%r = aten.mul.Tensor(%x, 1) : f32[3]", "%x"),
        ("%r = aten.mul.Scalar(%x, 1.0) : f32[3]", "%x"),
        ("%o = literal 1.0 : f32[] \n %r = aten.mul.Tensor(%o, %x) : f32[3]", "%x"),
        ("%r = aten.add.Tensor(%x, -0.0) : f32[3]", "%x"),
        ("%r = aten.add.Tensor(%i, 0) : i64[3]", "%i"),
        ("%r = aten.sub.Tensor(%x, 0.0) : f32[3]", "%x"),
        ("%r = aten.sub.Tensor(%i, 0) : i64[3]", "%i"),
        ("%r = aten.div.Tensor(%x, 1) : f32[3]", "%x"),
        ("%r = aten.pow.Tensor_Scalar(%x, 1) : f32[3]", "%x"),
        ("%n = aten.neg.default(%x) : f32[3] \n %r = aten.neg.default(%n) : f32[3]", "%x"),
        (
            "%n = aten.logical_not.default(%b) : bool[]\n"
            "%r = aten.logical_not.default(%n) : bool[]",
            "%b",
        ),
        ("%t = literal True : bool[] \n %r = aten.logical_and.default(%t, %b) : bool[]", "%b"),
        (
            "%t = literal False : bool[]\n%r = aten.logical_and.default(%t, %b) : bool[]",
            "literal False",
        ),
        ("%t = literal False : bool[] \n %r = aten.logical_or.default(%b, %t) : bool[]", "%b"),
        ("%r = aten.bitwise_and.Tensor(%b, %b) : bool[]", "%b"),
        ("%t = literal True : bool[] \n %r = aten.where.self(%t, %x, %y) : f32[3]", "%x"),
        ("%t = literal False : bool[] \n %r = aten.where.self(%t, %x, %y) : f32[3]", "%y"),
        ("%r = aten.where.self(%b, %x, %x) : f32[3]", "%x"),
    ],
)
def test_arithmetic(lines: str, expected: str) -> None:
    assert simplified(lines) == expected


@pytest.mark.parametrize(
    "line",
    [
        "%r = aten.add.Tensor(%x, 0) : f32[3]",
        "%r = aten.add.Tensor(%x, 0.0) : f32[3]",
        "%r = aten.sub.Tensor(%x, -0.0) : f32[3]",
        "%r = aten.mul.Tensor(%x, 0) : f32[3]",
        "%r = aten.mul.Tensor(%i, 1.0) : f32[3]",
        "%r = aten.div.Tensor(%i, 1) : f32[3]",
        "%r = aten.add.Tensor(%x, -0.0, alpha=2) : f32[3]",
        "%r = aten.rsub.Scalar(%x, 0) : f32[3]",
        "%r = aten.sub.Tensor(%x, %x) : f32[3]",
        "%o = literal 1.0 : f32[] \n %r = aten.div.Tensor(%o, %x) : f32[3]",
        "%o = aten.ones.default((2, 3)) : f32[2, 3] \n %r = aten.mul.Tensor(%x, %o) : f32[2, 3]",
        "%r = aten.dropout.default(%x, 0.5, True) : f32[3]",
        "%r = aten.constant_pad_nd.default(%x, (1, -1)) : f32[3]",
        "%r = aten.flip.default(%x, (0,)) : f32[3]",
    ],
)
def test_what_changes_a_value_or_its_type_stays(line: str) -> None:
    type = line.rsplit(" : ", 1)[1]
    check_unchanged(f"{HEAD.replace('-> ()', f'-> ({type})')} {{ {line} return %r }}", SIMPLIFY)


def test_rules_hold_for_nan_infinities_and_zeros() -> None:
    lines = "\n".join(
        f"%r{i} = {text} : f32[3]"
        for i, text in enumerate(
            (
                "aten.mul.Tensor(%x, 1)",
                "aten.add.Tensor(%x, -0.0)",
                "aten.sub.Tensor(%x, 0.0)",
                "aten.div.Tensor(%x, 1.0)",
                "aten.pow.Tensor_Scalar(%x, 1.0)",
            )
        )
    )
    types = ", ".join(["f32[3]"] * 5)
    results = ", ".join(f"%r{i}" for i in range(5))
    program = program_of(f"func @main(%x: f32[3]) -> ({types}) {{ {lines} return {results} }}")
    after = run_passes(program, [SIMPLIFY])
    assert not after.main.body.ops
    for values in ((float("nan"), float("inf"), -0.0), (-float("inf"), 1e-45, 0.0)):
        inputs = (torch.tensor(values),)
        assert_same(run(after, inputs), run(program, inputs))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("%r = aten.clone.default(%x) : f32[3]", "%x"),
        ("%r = aten.contiguous.default(%x) : f32[3]", "%x"),
        ("%r = aten.alias.default(%x) : f32[3]", "%x"),
        ("%r = aten.detach.default(%x) : f32[3]", "%x"),
        ("%r = aten._to_copy.default(%x, dtype=torch.float32) : f32[3]", "%x"),
        ("%r = aten.expand.default(%x, (3,)) : f32[3]", "%x"),
        ("%r = aten.expand.default(%s, (s0, 3)) : f32[s0, 3]", "%s"),
        ("%r = aten.view.default(%m, (2, -1)) : f32[2, 3]", "%m"),
        ("%r = aten.slice.Tensor(%m, 1, 0, 99) : f32[2, 3]", "%m"),
        ("%r = aten.slice.Tensor(%s, 0) : f32[s0, 3]", "%s"),
        ("%r = aten.squeeze.dim(%x, 0) : f32[3]", "%x"),
        ("%r = aten.dropout.default(%x, 0.5, False) : f32[3]", "%x"),
        ("%r = aten.cat.default((%x,)) : f32[3]", "%x"),
        ("%r = aten.constant_pad_nd.default(%x, (0, 0)) : f32[3]", "%x"),
        ("%r = aten.permute.default(%m, (0, 1)) : f32[2, 3]", "%m"),
        ("%r = aten.transpose.int(%m, 1, -1) : f32[2, 3]", "%m"),
        ("%r = aten.t.default(%x) : f32[3]", "%x"),
        (
            "%t = aten.t.default(%m) : f32[3, 2]\n"
            "%r = aten.permute.default(%t, (1, 0)) : f32[2, 3]",
            "%m",
        ),
        (
            "%u = aten.unsqueeze.default(%m, 0) : f32[1, 2, 3]\n"
            "%t = aten.permute.default(%u, (1, 2, 0)) : f32[2, 3, 1] \n"
            " %r = aten.transpose.int(%t, 0, 1) : f32[3, 2, 1]",
            "aten.permute.default(%u, (2, 1, 0))",
        ),
        (
            "%t = aten.view.default(%m, (6,)) : f32[6]\n"
            "%r = aten.view.default(%t, (3, 2)) : f32[3, 2]",
            "aten.view.default(%m, (3, 2))",
        ),
        (
            "%t = aten.unsqueeze.default(%x, 0) : f32[1, 3]\n%r = aten.squeeze.dim(%t, 0) : f32[3]",
            "%x",
        ),
        (
            "%t = aten.view.default(%s, (-1,)) : f32[3*s0]\n"
            "%r = aten.view.default(%t, (s0, 3)) : f32[s0, 3]",
            "%s",
        ),
        (
            "%t = aten.expand.default(%x, (2, 3)) : f32[2, 3]\n"
            "%r = aten.expand.default(%t, (4, 2, 3)) : f32[4, 2, 3]",
            "aten.expand.default(%x, (4, 2, 3))",
        ),
        (
            "%t = aten._to_copy.default(%h, dtype=torch.float32) : f32[3]\n"
            "%r = aten._to_copy.default(%t, dtype=torch.float16) : f16[3]",
            "%h",
        ),
        (
            "%t = aten._to_copy.default(%h, dtype=torch.float32) : f32[3]\n"
            "%r = aten._to_copy.default(%t, dtype=torch.float64) : f64[3]",
            "aten._to_copy.default(%h, dtype=torch.float64)",
        ),
    ],
)
def test_copies_and_views(lines: str, expected: str) -> None:
    assert simplified(lines) == expected


@pytest.mark.parametrize(
    "lines",
    [
        "%t = aten._to_copy.default(%x, dtype=torch.float16) : f16[3]\n"
        "%r = aten._to_copy.default(%t, dtype=torch.float32) : f32[3]",
        "%t = aten._to_copy.default(%i, dtype=torch.float32) : f32[3]\n"
        "%r = aten._to_copy.default(%t, dtype=torch.int64) : i64[3]",
    ],
)
def test_a_cast_that_loses_digits_stays(lines: str) -> None:
    type = lines.rsplit(" : ", 1)[1]
    check_unchanged(f"{HEAD.replace('-> ()', f'-> ({type})')} {{ {lines} return %r }}", SIMPLIFY)


CAT = "%c = aten.cat.default((%m, %m), 1) : f32[2, 6] \n"
STACK = "%c = aten.stack.default((%x, %y), 1) : f32[3, 2] \n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (CAT + "%r = aten.slice.Tensor(%c, 1, 3, 6) : f32[2, 3]", "%m"),
        (CAT + "%r = aten.slice.Tensor(%c, 1, 4, 6) : f32[2, 2]", "aten.slice.Tensor(%m, 1, 1, 3)"),
        (CAT + "%r = aten.slice.Tensor(%c, 1, -6, -3) : f32[2, 3]", "%m"),
        (CAT + "%r = aten.slice.Tensor(%c, 1, 2, 4) : f32[2, 2]", "aten.slice.Tensor(%c, 1, 2, 4)"),
        (CAT + "%r = aten.slice.Tensor(%c, 0, 0, 1) : f32[1, 6]", "aten.slice.Tensor(%c, 0, 0, 1)"),
        (CAT + "%r = aten.select.int(%c, 1, 4) : f32[2]", "aten.select.int(%m, 1, 1)"),
        (CAT + "%r = stretto.narrow(%c, 1, 3, 3) : f32[2, 3]", "%m"),
        (CAT + "%r = stretto.narrow(%c, 1, 2, 3) : f32[2, 3]", "aten.slice.Tensor(%c, 1, 2, 5)"),
        (CAT + "%r = stretto.narrow(%c, 1, %k, 3) : f32[2, 3]", "stretto.narrow(%c, 1, %k, 3)"),
        (STACK + "%r = aten.select.int(%c, 1, 1) : f32[3]", "%y"),
        (STACK + "%r = aten.select.int(%c, -1, -2) : f32[3]", "%x"),
        (STACK + "%r = aten.select.int(%c, 0, 1) : f32[2]", "aten.select.int(%c, 0, 1)"),
        (
            "%c = aten.unsqueeze.default(%m, 1) : f32[2, 1, 3]\n"
            "%r = aten.select.int(%c, 1, 0) : f32[2, 3]",
            "%m",
        ),
        (
            "%c = aten.slice.Tensor(%m, 1, 1, 3) : f32[2, 2]\n"
            "%r = aten.select.int(%c, 1, 1) : f32[2]",
            "aten.select.int(%m, 1, 2)",
        ),
        (
            "%c = aten.slice.Tensor(%m, 1, 1, 3) : f32[2, 2]\n"
            "%r = aten.slice.Tensor(%c, 1, 1, 9) : f32[2, 1]",
            "aten.slice.Tensor(%m, 1, 2, 3)",
        ),
        (
            "%z = aten.zeros.default((9,)) : f32[9]\n"
            "%c = aten.slice.Tensor(%z, 0, 1, 9, 2) : f32[4] \n"
            " %r = aten.slice.Tensor(%c, 0, 1, 4, 2) : f32[2]",
            "aten.slice.Tensor(%z, 0, 3, 8, 4)",
        ),
        (
            "%c = aten.slice.Tensor(%m, 1, 1, 3) : f32[2, 2]\n"
            "%r = aten.slice.Tensor(%c, 0, 1, 2) : f32[1, 2]",
            "aten.slice.Tensor(%c, 0, 1, 2)",
        ),
    ],
)
def test_parts(lines: str, expected: str) -> None:
    assert simplified(lines) == expected


def test_unbinding_a_stack() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %y: f32[3]) -> (f32[3], f32[3]) {
          %s = aten.stack.default((%x, %y), 1) : f32[3, 2]
          %a, %b = aten.unbind.int(%s, -1) : f32[3], f32[3]
          return %b, %a
        }
        """,
        SIMPLIFY,
        """
        func @main(%x: f32[3], %y: f32[3]) -> (f32[3], f32[3]) {
          %s = aten.stack.default((%x, %y), 1) : f32[3, 2]
          return %y, %x
        }
        """,
    )


LIST = "%n = list.new(%x, %y) : list<f32[3]> \n %p = list.push(%n, %x) : list<f32[3]> \n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (LIST + "%j = literal 1 : i64[] \n %r = list.get(%p, %j) : f32[3]", "%y"),
        (LIST + "%j = literal -1 : i64[] \n %r = list.get(%p, %j) : f32[3]", "%x"),
        (
            LIST + "%j = literal -1 : i64[]\n"
            "%q = list.set(%p, %j, %y) : list<f32[3]>\n"
            "%r = list.get(%q, %j) : f32[3]",
            "%y",
        ),
        (LIST + "%r = list.get(%p, %k) : f32[3]", "list.get(%p, %k)"),
        (
            "%p = list.push(%l, %y) : list<f32[3]>\n"
            "%j = literal -1 : i64[]\n"
            "%r = list.get(%p, %j) : f32[3]",
            "%y",
        ),
        (
            "%p = list.push(%l, %y) : list<f32[3]>\n"
            "%j = literal 0 : i64[]\n"
            "%r = list.get(%p, %j) : f32[3]",
            "list.get(%p, %j)",
        ),
        (LIST + "%r = list.length(%p) : i64[]", "literal 3"),
        ("%r = list.length(%l) : i64[]", "list.length(%l)"),
        (LIST + "%r = list.stack(%p) : f32[3, 3]", "aten.stack.default((%x, %y, %x), 0)"),
        (
            "%p = list.push(%l, %y) : list<f32[3]>\n%t, %r = list.pop(%p) : list<f32[3]>, f32[3]",
            "%y",
        ),
    ],
)
def test_lists(lines: str, expected: str) -> None:
    lines = lines.replace("%t, %r = list.pop", "%t, %r = list.pop")
    if "list.pop" in lines:
        check_pass(
            "func @main(%l: list<f32[3]>, %y: f32[3]) -> (f32[3], list<f32[3]>) {"
            " %p = list.push(%l, %y) : list<f32[3]>"
            " %t, %r = list.pop(%p) : list<f32[3]>, f32[3] return %r, %t }",
            SIMPLIFY,
            "func @main(%l: list<f32[3]>, %y: f32[3]) -> (f32[3], list<f32[3]>) {"
            " %p = list.push(%l, %y) : list<f32[3]> return %y, %l }",
        )
        return
    assert simplified(lines) == expected


def test_a_position_past_the_end_stays() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %n = list.new(%x) : list<f32[3]>
          %j = literal 1 : i64[]
          %f = literal False : bool[]
          %g = aten.ne.Tensor(%c, %c) : bool[]
          %r = if %g {
            %o = list.get(%n, %j) : f32[3]
            yield %o
          } else {
            yield %x
          } : f32[3]
          return %r
        }
        """,
        SIMPLIFY,
    )


def test_items_of_a_list_stacked_one_by_one() -> None:
    check_pass(
        """
        func @main(%x: f32[3]) -> (f32[2, 3]) {
          %l = list.new() : list<f32[3]>
          %m = for %i in (0, 2, 1) carry (%a = %l) {
            %s = aten.mul.Scalar(%x, %i) : f32[3]
            %b = list.push(%a, %s) : list<f32[3]>
            yield %b
          } : list<f32[3]>
          %z = literal 0 : i64[]
          %o = literal 1 : i64[]
          %p = list.get(%m, %z) : f32[3]
          %q = list.get(%m, %o) : f32[3]
          %r = aten.stack.default((%p, %q)) : f32[2, 3]
          return %r
        }
        """,
        SIMPLIFY,
        """
        func @main(%x: f32[3]) -> (f32[2, 3]) {
          %l = list.new() : list<f32[3]>
          %m = for %i in (0, 2, 1) carry (%a = %l) {
            %s = aten.mul.Scalar(%x, %i) : f32[3]
            %b = list.push(%a, %s) : list<f32[3]>
            yield %b
          } : list<f32[3]>
          %z = literal 0 : i64[]
          %o = literal 1 : i64[]
          %p = list.get(%m, %z) : f32[3]
          %q = list.get(%m, %o) : f32[3]
          %r = list.stack(%m) : f32[2, 3]
          return %r
        }
        """,
    )


def test_an_if_whose_arms_agree_or_yield_the_condition() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3], i64[], bool[], f32[3]) {
          %a, %b, %d, %e = if %c {
            %o = literal 1 : i64[]
            %t = literal True : bool[]
            %s = aten.sin.default(%x) : f32[3]
            yield %x, %o, %t, %s
          } else {
            %p = literal 1 : i64[]
            %f = literal False : bool[]
            yield %x, %p, %f, %x
          } : f32[3], i64[], bool[], f32[3]
          return %a, %b, %d, %e
        }
        """,
        SIMPLIFY,
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3], i64[], bool[], f32[3]) {
          %e = if %c {
            %o = literal 1 : i64[]
            %t = literal True : bool[]
            %s = aten.sin.default(%x) : f32[3]
            yield %s
          } else {
            %p = literal 1 : i64[]
            %f = literal False : bool[]
            yield %x
          } : f32[3]
          %b = literal 1 : i64[]
          return %x, %b, %c, %e
        }
        """,
    )


def test_carried_values_that_no_iteration_changes() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %y: f32[3], %n: i64[]) -> (f32[3], f32[3], f32[3]) {
          %z = literal 0 : i64[]
          %a, %b = for %i in (0, %n, 1) carry (%p = %x, %q = %y) {
            %s = aten.add.Tensor(%p, %q) : f32[3]
            yield %s, %q
          } : f32[3], f32[3]
          %d, %e, %f = while (%j = %z, %k = %n, %g = %y) {
            %c = aten.lt.Tensor(%j, %k) : bool[]
            yield %c
          } do (%t, %u, %v) {
            %w = aten.add.Tensor(%t, 1) : i64[]
            yield %w, %u, %y
          } : i64[], i64[], f32[3]
          return %a, %b, %f
        }
        """,
        SIMPLIFY,
        """
        func @main(%x: f32[3], %y: f32[3], %n: i64[]) -> (f32[3], f32[3], f32[3]) {
          %z = literal 0 : i64[]
          %a = for %i in (0, %n, 1) carry (%p = %x) {
            %s = aten.add.Tensor(%p, %y) : f32[3]
            yield %s
          } : f32[3]
          %d = while (%j = %z) {
            %c = aten.lt.Tensor(%j, %n) : bool[]
            yield %c
          } do (%t) {
            %w = aten.add.Tensor(%t, 1) : i64[]
            yield %w
          } : i64[]
          return %a, %y, %y
        }
        """,
    )


def test_inside_a_recursive_function() -> None:
    check_pass(
        """
        func @main(%n: i64[], %x: f32[s0]) -> (f32[s0]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %y = aten.clone.default(%x) : f32[s0]
            %z = call @main(%m, %y) : f32[s0]
            %w = aten.mul.Tensor(%z, 1) : f32[s0]
            yield %w
          } else {
            yield %x
          } : f32[s0]
          return %r
        }
        """,
        SIMPLIFY,
        """
        func @main(%n: i64[], %x: f32[s0]) -> (f32[s0]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %z = call @main(%m, %x) : f32[s0]
            yield %z
          } else {
            yield %x
          } : f32[s0]
          return %r
        }
        """,
    )

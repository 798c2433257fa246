"""Copying, renaming and counting."""

import pytest

from stretto.ir.core import Op, Program, Value
from stretto.ir.ops import ForOp, IfOp, TensorOp, WhileOp
from stretto.ir.rewrite import (
    Definitions,
    Replacement,
    clone_op,
    clone_program,
    defined_values,
    free_values,
    free_values_of_op,
    inline_block,
    narrow,
    rewrite_block,
    substitute,
    users,
    uses,
)
from stretto.ir.text import parse_program, print_program
from stretto.ir.verifier import verify
from stretto.ops.infer import tensor_op

TEXT = """\
func @main(%x: f32[3], %n: i64[], %c: bool[]) -> (f32[3]) {
  %y = aten.neg.default(%x) : f32[3]
  %r, %k = for %i in (0, %n, 1) carry (%a = %x, %j = %n) {
    %b = if %c {
      %d = aten.add.Tensor(%a, %y) : f32[3]
      yield %d
    } else {
      yield %y
    } : f32[3]
    yield %b, %i
  } : f32[3], i64[]
  %w = while (%e = %r) {
    yield %c
  } do (%f) {
    yield %f
  } : f32[3]
  return %w
}
"""


def program() -> Program:
    found = parse_program(TEXT)
    verify(found)
    return found


def named(found: Program) -> dict[str, Value]:
    return {value.hint: value for value in defined_values(found.main.body)}


def test_a_clone_shares_no_value() -> None:
    original = program()
    copy = clone_program(original)
    assert print_program(copy) == TEXT
    assert not set(defined_values(original.main.body)) & set(defined_values(copy.main.body))
    verify(copy)


def test_a_cloned_op_reads_what_the_mapping_says() -> None:
    original = program()
    values = named(original)
    other = Value(values["x"].type, "other")
    mapping = {values["x"]: other}
    loop = clone_op(original.main.body.ops[1], mapping)
    assert isinstance(loop, ForOp) and loop.inits == (other, values["n"])
    assert mapping[values["d"]] is not values["d"]
    assert loop.stop is values["n"]


def test_free_values_are_those_from_outside() -> None:
    original = program()
    values = named(original)
    loop = original.main.body.ops[1]
    assert isinstance(loop, ForOp)
    assert free_values(loop.body) == (values["c"], values["y"])
    expected = (values["n"], values["x"], values["c"], values["y"])
    assert free_values_of_op(loop) == expected
    assert free_values(original.main.body) == ()


def test_uses_count_operands_and_yields_at_every_depth() -> None:
    original = program()
    values = named(original)
    counts = uses(original.main.body)
    assert counts[values["x"]] == 2
    assert counts[values["y"]] == 2
    assert counts[values["c"]] == 2
    assert counts[values["n"]] == 2
    assert values["k"] not in counts
    readers = users(original.main.body)
    assert [op.name for op in readers[values["y"]]] == ["if", "tensor"]
    assert [op.name for op in readers[values["x"]]] == ["tensor", "for"]


def test_substitute_reaches_nested_blocks_and_yields() -> None:
    original = program()
    values = named(original)
    substitute(original.main.body, {values["y"]: values["x"], values["w"]: values["r"]})
    text = print_program(original)
    assert "aten.add.Tensor(%a, %x)" in text and "yield %x\n" in text and "return %r" in text


def test_inlining_a_block_replaces_its_parameters() -> None:
    original = program()
    values = named(original)
    loop = original.main.body.ops[1]
    assert isinstance(loop, ForOp)
    ops, results = inline_block(loop.body, (values["n"], values["y"], values["n"]))
    assert [op.name for op in ops] == ["if"]
    assert results == (ops[0].result, values["n"])
    assert values["d"] not in {value for op in ops[0].blocks[0].ops for value in op.results}


@pytest.mark.parametrize(
    ("place", "keep", "line"),
    [
        (0, (False, True), "%k = for %i in (0, %n, 1) carry (%j = %n) {"),
        (1, (True, False), "%r = for %i in (0, %n, 1) carry (%a = %x) {"),
    ],
)
def test_narrowing_a_loop(place: int, keep: tuple[bool, ...], line: str) -> None:
    original = program()
    loop = original.main.body.ops[1]
    assert isinstance(loop, ForOp)
    narrow(loop, keep)
    assert line in print_program(original)


def test_narrowing_an_if_and_a_while() -> None:
    original = program()
    loop, last = original.main.body.ops[1:]
    assert isinstance(last, WhileOp)
    narrow(last, (False,))
    assert (last.results, last.inits, last.condition.params, last.body.params) == ((), (), (), ())
    inner = loop.blocks[0].ops[0]
    assert isinstance(inner, IfOp)
    narrow(inner, (False,))
    assert (inner.results, inner.then.yields, inner.orelse.yields) == ((), (), ())


def test_rewriting_renames_what_follows() -> None:
    original = program()

    def double(op: Op, definitions: Definitions) -> Replacement | None:
        assert all(value in definitions for value in op.operands if value.hint in {"y", "r"})
        if isinstance(op, TensorOp) and op.target == "aten.neg.default":
            new = tensor_op("aten.mul.Tensor", op.args[0], 2.0)
            return [new], new.results
        return None

    assert rewrite_block(original.main.body, double)
    verify(original)
    text = print_program(original)
    assert "%0 = aten.mul.Tensor(%x, 2.0)" in text and "aten.add.Tensor(%a, %0)" in text
    assert not rewrite_block(original.main.body, lambda op, definitions: None)

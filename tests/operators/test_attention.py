"""Attention as one operator: what is made of it, and what the verifier asks of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.device.expr import Apply, Const, Position, Var
from stretto.device.forms import Lowered
from stretto.device.operator import Combine, Operator
from stretto.device.text import parse_form, print_form
from stretto.device.tree import leaves, map_tree
from stretto.device.verifier import verify_form
from stretto.errors import VerifyError
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.lowering.lower_program import lower
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates.attention import Fused
from stretto.operators.attention import plain_attention
from tests.backends import check
from tests.support import program_of

HEADS = """
func @main(
  %q: f32[2, {rows}, 8], %k: f32[2, 70, 8], %v: f32[2, 70, 16], %m: bool[1, {rows}, 70]
) -> (f32[2, {rows}, 16]) {{
  %y = aten.scaled_dot_product_attention.default(%q, %k, %v, %m) : f32[2, {rows}, 16]
  return %y
}}
"""


def lowered(rows: int = 50) -> Lowered:
    return lower(program_of(HEADS.format(rows=rows)))


def attention(form: Lowered) -> Operator:
    found = [item for leaf in leaves(form.tree.main.body) for item in leaf]
    (one,) = [x for x in found if isinstance(x, Operator) and x.combine is Combine.ATTENTION]
    return one


def templates(rows: int) -> list[str]:
    kernels = [item for leaf in leaves(select(lowered(rows), 2).tree.main.body) for item in leaf]
    return [stage.template.name for kernel in kernels for stage in getattr(kernel, "stages", ())]


def test_one_operator_whose_text_is_read_back() -> None:
    form = lowered()
    assert print_form(parse_form(print_form(form))) == print_form(form)
    assert attention(form).reduce == (70, 8)


def test_many_rows_have_one_kernel_and_few_have_products() -> None:
    assert templates(50) == [Fused.name]
    assert Fused.name not in templates(1)


def test_products_and_a_softmax() -> None:
    tree = plain_attention(lowered().tree, keep=lambda operator: False)
    (leaf,) = leaves(tree.main.body)
    names = [item.name.split(".")[-1] for item in leaf if isinstance(item, Operator)]
    assert names == ["scores", "top", "weights", "total", "sums", "attention"]
    assert plain_attention(tree, keep=lambda operator: True) == tree


@pytest.mark.parametrize("rows", [50, 1])
def test_results(rows: int) -> None:
    check(HEADS.format(rows=rows), native=(), fuse=(True,))


def changed(one: Operator) -> list[tuple[Operator, str]]:
    """Operators that are no attention, and what is wrong."""
    value = one.value
    assert isinstance(value, Apply)
    product, scale, bias, values = value.args
    depth = Apply("cast", (Position(Size.of(Var(len(one.dims) + 1))),), DType.F32)

    def of(*args: object) -> Operator:
        return replace(one, value=replace(value, args=args))

    return [
        (replace(one, combine=Combine.SUM), "without scores"),
        (replace(one, value=product), "without scores"),
        (replace(one, value=Apply("neg", (value,), DType.F32)), "without scores"),
        (of(product, scale, depth, values), "depends on the depth"),
        (of(product, scale, bias, depth), "depends on the depth"),
        (of(product, values, bias, values), "not a constant"),
        (of(product, Const(1.0, DType.F64), bias, values), "calls attend of"),
    ]


@pytest.mark.parametrize("number", range(7))
def test_the_verifier_knows_the_parts(number: int) -> None:
    form = lowered()
    verify_form(form)
    one = attention(form)
    wrong, reason = changed(one)[number]
    tree = map_tree(form.tree, lambda items: tuple(wrong if x == one else x for x in items))
    with pytest.raises(VerifyError, match=reason):
        verify_form(replace(form, tree=tree))

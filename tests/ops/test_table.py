"""The table of operators: complete and consistent for all that torch has, with torch as oracle."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from stretto.errors import VerifyError
from stretto.ir.ops import TensorOp
from stretto.lowering.rules import RULES
from stretto.ops.infer import parameters, resolve
from stretto.ops.properties import Properties, is_random, properties
from stretto.ops.table import (
    TABLE,
    Aliases,
    AllDims,
    Cost,
    ElementByElement,
    Fails,
    Reach,
    ShiftDims,
    load_families,
)
from stretto.passes import cse, hoist

Tag = torch.Tag


@cache
def overloads() -> dict[str, Any]:
    """Every overload of ATen, and stretto's own operators, that this torch can call."""
    load_families()
    found: dict[str, Any] = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        target = f"{namespace}.{packet}.{overload or 'default'}"
        if namespace in ("aten", "stretto"):
            try:
                found[target] = resolve(target)
            except VerifyError:
                continue  # for machines that this build is not for
    return found


def functional() -> list[Properties]:
    return [properties(name) for name, op in overloads().items() if not op._schema.is_mutable]


def test_all_operators_have_properties() -> None:
    assert len(overloads()) > 2000
    for name in overloads():
        properties(name)


def test_each_entry_is_of_an_operator_that_torch_has() -> None:
    known = {name.rpartition(".")[0] for name in overloads()} | overloads().keys()
    ours = [name for name in TABLE if name.startswith(("aten.", "stretto."))]  # others are of tests
    assert not [name for name in ours if name not in known]


def test_operators_that_torch_calls_pointwise_are_elementwise() -> None:
    for one in functional():
        if Tag.pointwise in resolve(one.target).tags and one.target != "aten.equal.default":
            assert one.elementwise, one.target  # `equal` gives one bool
            assert one.cost in (Cost.ELEMENT, Cost.FREE), one.target


def test_random_operators_are_never_run_elsewhere_or_twice() -> None:
    seeded = [
        one for one in functional() if Tag.nondeterministic_seeded in resolve(one.target).tags
    ]
    assert len(seeded) > 40
    for one in functional():
        assert one.is_random == (one in seeded), one.target
    for one in seeded:
        if not one.switches:
            op = TensorOp(one.target)
            assert one.batching is None and is_random(op), one.target
            assert hoist.stay_reason(op) == cse.keep_reason(op) == "it is random", one.target


UNDECLARED_VIEWS = {
    *("aten.lift.default", "aten.unsafe_chunk.default", "aten.unsafe_split.Tensor"),
    "aten.unsafe_split_with_sizes.default",
}
"""Operators whose schemas do not say that the results are the operand or views of it."""


def test_operators_with_views_of_operands_share_memory() -> None:
    for one in functional():
        operator = resolve(one.target)
        if Tag.view_copy in operator.tags:
            assert one.rearranges and one.aliases is Aliases.NEVER, one.target
        returns = [item.alias_info for item in operator._schema.returns]
        declared = any(returns) or one.target in UNDECLARED_VIEWS
        assert declared == (one.aliases is not Aliases.NEVER), one.target


def test_operators_that_read_positions_may_fail() -> None:
    for one in functional():
        names = {item.name for item in parameters(one.target).values() if item.is_tensor}
        if names & {"index", "indices", "offsets"} or one.positions is not None:
            assert one.fails in (Fails.POSITIONS, Fails.CHECKS), one.target
        if one.positions is not None:
            known = parameters(one.target)
            assert one.positions.name in known, one.target
            needed = {Reach.ROWS: "weight"}.get(one.positions.reach, "self")
            assert needed in known, one.target
            if one.positions.reach in (Reach.DIM, Reach.WRITTEN, Reach.WINDOW):
                assert "dim" in known, one.target


def test_operators_whose_result_has_a_shape_that_values_decide_may_fail() -> None:
    takes_all = ("aten.nonzero.default", "aten._local_scalar_dense.default")
    for one in functional():
        tags = resolve(one.target).tags
        if (Tag.data_dependent_output in tags or Tag.dynamic_output_shape in tags) and (
            one.target not in takes_all
        ):
            assert one.fails is not Fails.NEVER, one.target


def test_integer_divisions_may_fail() -> None:
    five, none = torch.tensor([5]), torch.tensor([0])
    names = (
        *("div.Tensor", "floor_divide.default", "remainder.Tensor", "fmod.Tensor", "add.Tensor"),
        *("maximum.default", "bitwise_left_shift.Tensor", "atan2.default", "gcd.default"),
    )
    for name in names:
        target = f"aten.{name}"
        assert _raises(target, five, none) == (properties(target).fails is Fails.DIVISOR), name
    for target, exponent in (("aten.pow.Tensor_Tensor", none - 1), ("aten.pow.Tensor_Scalar", -1)):
        assert _raises(target, five, exponent) == (properties(target).fails is Fails.DIVISOR)
    for mode in ("floor", "trunc"):
        with pytest.raises(RuntimeError):
            torch.div(five, none, rounding_mode=mode)
    assert properties("aten.div.Tensor_mode").fails is Fails.DIVISOR


def _raises(target: str, *args: Any) -> bool:
    try:
        resolve(target)(*args)
    except RuntimeError:
        return True
    return False


RAISE_NOTHING = frozenset(
    (
        *("cross", "diagonal", "vander", "vecdot", "vector_norm", "_powsum", "det", "slogdet"),
        *("householder_product", "matmul", "matrix_exp", "multi_dot", "qr", "solve_triangular"),
    )
)
"""Functions of linear algebra that have a result for every matrix."""


def test_decompositions_of_matrices_may_raise_what_eager_raises() -> None:
    for one in functional():
        name = one.target.split(".")[1]
        if name.startswith("linalg_"):
            silent = name.removeprefix("linalg_") in RAISE_NOTHING
            assert (one.raises == ()) is silent, one.target
        if "LinAlgError" in one.raises:
            assert one.fails is not Fails.NEVER, one.target


def test_ways_of_batching_fit_the_schema() -> None:
    for one in functional():
        match one.batching:
            case ShiftDims(names):
                assert set(names) <= parameters(one.target).keys(), one.target
            case AllDims(target):
                assert "dim" in parameters(target), one.target
            case ElementByElement():
                assert one.elementwise, one.target
            case _:
                pass


def test_operators_that_are_lowered_are_known_to_fail_or_not() -> None:
    for target in RULES:
        if target in overloads():
            assert properties(target).fails is not Fails.UNKNOWN, target


def test_updates_change_their_first_operand() -> None:
    for one in functional():
        if one.updates:
            first = next(iter(parameters(one.target).values()))
            assert first.is_tensor and first.name == "self", one.target

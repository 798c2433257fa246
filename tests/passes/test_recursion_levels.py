"""Recursions that are walked first and computed by levels."""

import random
from dataclasses import replace

import pytest
import torch

from stretto.device.costs import HOST_COSTS
from stretto.errors import RunError
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.ops import WhileOp
from stretto.ir.verifier import verify
from stretto.passes.manager import Target, run_passes
from stretto.passes.recursion_levels import RecursionLevels
from tests.support import assert_same, program_of


def levels(rows: int, *, before: bool = False) -> RecursionLevels:
    """before: as on GPUs, a kernel reads the rows of results where they lie."""
    costs = replace(HOST_COSTS, level_bytes=0, level_rows=rows, rows_before=before)
    return RecursionLevels(Target(costs, 2))


def tree(
    rest: str = "%t = aten.sub.Tensor(%a, %b) : f32[4]",
    base: str = "",
    arm: str = "",
    rows: int = 40,
) -> Program:
    """Leaves are the nodes without a left child; the rest of the others gives %t."""
    looked_up = f"{'%o1' if base == DOUBLED else '%o'} = aten.select.int(%x, 0, %n) : f32[4]"
    if base == looked_up:
        looked_up = ""
    return program_of(
        f"""
        func @main(%x: f32[{rows}, 4], %left: i64[40], %right: i64[40], %n: i64[]) -> (f32[4]) {{
          %y = call @f(%n, %x, %left, %right) : f32[4]
          return %y
        }}
        func @f(%n: i64[], %x: f32[{rows}, 4], %left: i64[40], %right: i64[40]) -> (f32[4]) {{
          %w = constant "w" : f32[4, 4]
          %l = aten.select.int(%left, 0, %n) : i64[]
          {looked_up}
          %c = aten.lt.Scalar(%l, 0) : bool[]
          %y = if %c {{
            {base}
            yield %o
          }} else {{
            %a = call @f(%l, %x, %left, %right) : f32[4]
            {arm}
            %r = aten.select.int(%right, 0, %n) : i64[]
            %b = call @f(%r, %x, %left, %right) : f32[4]
            {rest}
            yield %t
          }} : f32[4]
          return %y
        }}
        """
    )


DOUBLED = "%o = aten.add.Tensor(%o1, %o1) : f32[4]"
"""What leaves give, where they compute it."""


def shape(leaves: int, seed: int) -> tuple[list[int], list[int]]:
    """A random tree: the children of each node, which come before it."""
    draw = random.Random(seed)
    left, right = [-1] * leaves, [0] * leaves
    roots = list(range(leaves))
    while len(roots) > 1:
        for children in (left, right):
            children.append(roots.pop(draw.randrange(len(roots)) if seed else -1))
        roots.append(len(left) - 1)
    return left, right


def inputs(leaves: int, seed: int) -> list[torch.Tensor]:
    left, right = shape(leaves, seed)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(seed))
    tables = [torch.tensor(item + [0] * (40 - len(item))) for item in (left, right)]
    return [x, *tables, torch.tensor(len(left) - 1)]


def is_walked(program: Program) -> bool:
    return any(name.endswith("_walk") for name in program.functions)


@pytest.mark.parametrize("base", ["", DOUBLED], ids=("rows", "computed"))
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 16])
def test_trees_of_all_shapes(rows: int, before: bool, base: str) -> None:
    program = tree(base=base)
    after = run_passes(program, [levels(rows, before=before)])
    verify(after)
    assert is_walked(after) and any(isinstance(op, WhileOp) for op in after.walk())
    for leaves in (1, 2, 3, 5, 8, 20):
        for seed in range(3):  # the first is a chain
            data = inputs(leaves, seed)
            assert_same(run(after, data), run(program, data))


@pytest.mark.parametrize("before", [False, True])
def test_what_the_rest_reads_is_kept_and_constants_are_read_once(before: bool) -> None:
    program = tree(
        """
        %e = aten.mul.Tensor(%a, %o) : f32[4]
        %i = aten.mul.Tensor(%e, %l) : f32[4]
        %k = aten.unsqueeze.default(%i, 0) : f32[1, 4]
        %m = aten.mm.default(%k, %w) : f32[1, 4]
        %v = aten.view.default(%m, (4,)) : f32[4]
        %j = aten.softmax.int(%b, 0) : f32[4]
        %t = aten.add.Tensor(%v, %j) : f32[4]
        """
    )
    after = run_passes(program, [levels(4, before=before)])
    assert is_walked(after)
    (walk,) = (item for name, item in after.functions.items() if name.endswith("_walk"))
    # The node and the row of %o are kept, and all numbers in one list; as on GPUs, no results.
    assert len(walk.params) == 4 + 1 + 2 + (not before)
    for leaves in (1, 4, 9, 17):
        data = inputs(leaves, leaves)
        found, wanted = (run(item, data, dtype=torch.float64) for item in (after, program))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("before", [False, True])
def test_results_that_are_no_results_of_the_rest(before: bool) -> None:
    for kept in ("%o", "%a", "%w1"):
        text = "%w1 = aten.select.int(%w, 0, 1) : f32[4]\n%t = aten.clone.default(%a) : f32[4]"
        program = tree(text)
        arm = program.functions["f"].body.ops[-1].blocks[1]
        names = {value.hint: value for op in arm.ops for value in op.results}
        names |= {
            value.hint: value for op in program.functions["f"].body.ops for value in op.results
        }
        arm.yields = (names[kept[1:]],)
        verify(program)
        after = run_passes(program, [levels(4, before=before)])
        assert is_walked(after)
        data = inputs(7, 3)
        assert_same(run(after, data), run(program, data))


STAYS = {
    "a call that needs another": (
        "%t = aten.sub.Tensor(%a, %b) : f32[4]",
        "",
        "%g = aten.sum.default(%a) : f32[]\n%u = aten.gt.Scalar(%g, 0) : bool[]\n"
        "%h = aten._to_copy.default(%u, dtype=torch.int64) : i64[]\n"
        "%q = call @f(%h, %x, %left, %right) : f32[4]",
    ),
    "a draw behind the calls": ("%t = aten.rand_like.default(%a) : f32[4]", "", ""),
    "a position behind the calls": (
        "%g = aten.argmax.default(%a) : i64[]\n%t = aten.select.int(%w, 0, %g) : f32[4]",
        "",
        "",
    ),
    "a check of a result": (
        "%g = aten.sum.default(%a) : f32[]\n%u = aten.gt.Scalar(%g, 0) : bool[]\n"
        'check %u, "ValueError", "no"\n%t = aten.sub.Tensor(%a, %b) : f32[4]',
        "",
        "",
    ),
    "a branch on a result": (
        "%g = aten.sum.default(%a) : f32[]\n%u = aten.gt.Scalar(%g, 0) : bool[]\n"
        "%t = if %u {\nyield %a\n} else {\nyield %b\n} : f32[4]",
        "",
        "",
    ),
}


@pytest.mark.parametrize("parts", STAYS.values(), ids=STAYS)
def test_what_cannot_wait_keeps_the_recursion(parts: tuple[str, str, str]) -> None:
    program = tree(*parts)
    after = run_passes(program, [levels(4)])
    assert not is_walked(after)
    assert [r for r, _ in after.remarks if r.stage == "recursion_levels"]


@pytest.mark.parametrize(
    "body",
    [
        "%m = aten.sub.Tensor(%n, 1) : i64[]\n%a = call @f(%m, %x) : f32[4]\n"
        "%t = aten.add.Tensor(%a, %x) : f32[4]",
        "%m = aten.sub.Tensor(%n, 1) : i64[]\n"
        "%t = for %i in (0, 2, 1) carry (%z = %x) {\n%a = call @f(%m, %z) : f32[4]\n"
        "yield %a\n} : f32[4]",
    ],
    ids=("one call", "calls of a loop"),
)
def test_one_call_and_calls_that_follow_each_other_stay(body: str) -> None:
    program = program_of(
        f"""
        func @main(%n: i64[], %x: f32[4]) -> (f32[4]) {{
          %y = call @f(%n, %x) : f32[4]
          return %y
        }}
        func @f(%n: i64[], %x: f32[4]) -> (f32[4]) {{
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %y = if %c {{
            {body}
            yield %t
          }} else {{
            yield %x
          }} : f32[4]
          return %y
        }}
        """
    )
    assert not is_walked(run_passes(program, [levels(4)]))


@pytest.mark.parametrize("before", [False, True])
def test_draws_and_checks_of_the_walk_keep_their_order(before: bool) -> None:
    """What stops the run first still does, and generators are drawn from in the order of the
    calls."""
    program = tree(
        "%t = aten.sub.Tensor(%a, %p) : f32[4]",
        '%d = aten.ne.Scalar(%n, 5) : bool[]\ncheck %d, "ValueError", "five {}", %n',
        "%p = aten.rand_like.default(%o) : f32[4]",
    )
    after = run_passes(program, [levels(4, before=before)])
    assert is_walked(after)
    for leaves, message in ((4, None), (5, None), (6, "five 5"), (9, "five 5")):
        data = inputs(leaves, leaves)
        found: list[object] = []
        for one in (program, after):
            torch.manual_seed(0)
            if message is None:
                found.append(run(one, data))
            else:
                with pytest.raises(RunError, match=message):
                    run(one, data)
        if message is None:
            assert_same(*found)  # pyright: ignore[reportArgumentType]


def test_without_weights_that_are_worth_it_the_recursion_stays() -> None:
    program = tree()
    assert not is_walked(run_passes(program, [RecursionLevels(Target(HOST_COSTS, 2))]))
    assert not is_walked(run_passes(program, [RecursionLevels()]))


def test_a_recursion_without_end_is_stopped_by_its_depth() -> None:
    after = run_passes(tree(), [levels(4)])
    x, left, right, _ = inputs(3, 0)
    with pytest.raises(RunError, match="recursion"):
        run(after, [x, torch.zeros_like(left), right, torch.tensor(0)], max_depth=50)


def test_the_walk_is_not_converted_again() -> None:
    program = tree()
    again = run_passes(run_passes(program, [levels(4)]), [levels(4)])
    data = inputs(9, 2)
    assert_same(run(again, data), run(program, data))


@pytest.mark.parametrize("before", [False, True])
def test_a_leaf_whose_row_is_out_of_range_stops_the_run(before: bool) -> None:
    """Though nothing reads the row in the walk, where only its number is kept."""
    program = tree(base="%o = aten.select.int(%x, 0, %n) : f32[4]", rows=5)
    after = run_passes(program, [levels(4, before=before)])
    assert is_walked(after)
    for leaves in (5, 6):
        x, left, right, root = inputs(leaves, 0)
        data = [x[:5], left, right, root]
        if leaves == 6:
            with pytest.raises(RunError, match="out of (range|bounds)"):
                run(after, data)
        else:
            assert_same(run(after, data), run(program, data))


def test_leaves_may_be_counted_from_the_end() -> None:
    program = tree()
    after = run_passes(program, [levels(4, before=True)])
    x, left, right, root = inputs(6, 1)
    is_leaf = left < 0
    turned = [
        torch.where(is_leaf[item.clamp_min(0)] & (item >= 0), item - 40, item)
        for item in (left, right)
    ]
    for data in ([x, *turned, root], [x, left, right, torch.tensor(-40)]):
        assert_same(run(after, data), run(program, data))

"""Which variant each kernel gets: alone, and with the whole leaf in view."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import stretto
from stretto.device.costs import CostModel
from stretto.device.expr import Buffer, Var
from stretto.device.operator import Kernel, Loops, TileDim
from stretto.device.regions import Body
from stretto.device.tree import Leaf, Tree, TreeFunction, leaves
from stretto.kernels.groups import single
from stretto.kernels.variants import OpenBody, OpenKernel, Variant
from stretto.options import Debug, Options
from stretto.schedule.choice import chooser, total_seconds
from tests.schedule.trees import buffer, load, map_kernel

X, OUT = buffer("x", 16, kind="input", slot=0), buffer("out", 16, kind="output", slot=1)
COSTS = CostModel(wait_seconds=1e-6, start_seconds=0.0)
UNITS = 4


def opened(out: Buffer, *sources: Buffer, work: float = 4e-5) -> OpenKernel:
    """One task, or four that together take half as long again."""
    value = load(sources[0], Var(0))
    operator = map_kernel(f"k_{out.name}", out, value, 16).stages[0].operator
    for source in sources[1:]:
        operator = replace(operator, value=_added(operator.value, source))
    one = Variant((TileDim(16, 16),), (Loops(),), work, work)
    four = Variant((TileDim(16, 4),), (Loops(),), 1.5 * work / 4, 1.5 * work / UNITS)
    return OpenKernel(operator.name, single(operator), (one, four))


def _added(value, source: Buffer):  # pyright: ignore
    from tests.schedule.trees import call

    return call("add", value, load(source, Var(0)))


def tree(*kernels: OpenKernel, locals: tuple[Buffer, ...] = ()) -> Tree[OpenBody]:
    body: Leaf[OpenBody] = Leaf(kernels)
    return Tree((TreeFunction("main", (), (), (), (), locals, body),), (X, OUT))


def tasks(made: Tree[Body]) -> list[int]:
    (body,) = leaves(made.main.body)
    return [item.tasks for item in body if isinstance(item, Kernel)]


SIDES = tuple(buffer(f"s{n}", 16) for n in range(2 * UNITS))
WIDE = tree(*(opened(b, X) for b in SIDES), opened(OUT, *SIDES), locals=SIDES)
"""Two kernels per unit side by side, and one that all units have for themselves."""


def test_fastest_and_efficient_look_at_each_kernel_alone() -> None:
    assert set(tasks(chooser("fastest", UNITS)(WIDE, COSTS))) == {4}
    assert set(tasks(chooser("efficient", UNITS)(WIDE, COSTS))) == {1}
    (one, four) = opened(OUT, X).variants
    assert total_seconds(four, COSTS) == pytest.approx(1.5 * total_seconds(one, COSTS))


@pytest.mark.parametrize("policy", [None, "list"])
def test_a_wave_that_fills_the_units_gets_efficient_kernels(policy: str | None) -> None:
    """And one that would leave them idle gets fast ones."""
    from stretto.schedule.policies import POLICIES

    chosen = chooser("holistic", UNITS, POLICIES.get(policy or ""))(WIDE, COSTS)
    assert tasks(chosen) == [1] * len(SIDES) + [4]


def test_kernels_one_after_the_other_are_fast() -> None:
    middle = buffer("m", 16)
    made = chooser("holistic", UNITS)(tree(opened(middle, X), opened(OUT, middle)), COSTS)
    assert tasks(Tree(made.functions, made.externals)) == [4, 4]


@pytest.mark.parametrize("units", [1, 2])
def test_leaves_without_kernels_stay(units: int) -> None:
    assert tasks(chooser("holistic", units)(tree(), COSTS)) == []


class Cells(torch.nn.Module):
    """Branches side by side in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(3))

    def forward(self, x: torch.Tensor, trips: int) -> torch.Tensor:
        for _ in range(trips):
            x = torch.stack([torch.tanh(side(x)) for side in self.sides]).sum(0)
        return x


@pytest.mark.parametrize("backend", ["emulator", "cuda-emulated"])
@pytest.mark.parametrize("kernels", ["efficient", "holistic"])
def test_results_do_not_depend_on_the_choice(kernels: str, backend: str) -> None:
    model, x = Cells(), torch.randn(5, 24)
    options = Options(threads=3, units=3, debug=Debug(unroll=0, kernels=kernels))
    with torch.no_grad():
        fast = stretto.compile(model, backend=backend, options=options)
        torch.testing.assert_close(fast(x, 2), model(x, 2))

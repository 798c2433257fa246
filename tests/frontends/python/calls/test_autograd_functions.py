"""The forward of a `torch.autograd.Function` is traced as any other function of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.torch_version import TorchVersion

import stretto
from tests.frontends.python.checks import assert_same

A = torch.tensor([[1.0, -2.0, 3.0, -4.0], [0.5, 0.25, -1.0, 2.0]])


class Counter:
    """Counts calls."""

    def __init__(self) -> None:
        self.calls = 0


COUNTER = Counter()


class Base(torch.autograd.Function):
    """Without a backward that anybody calls."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError


class Seeded(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return x @ torch.randn(4, 3)


class Branching(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        COUNTER.calls += 1
        ctx.save_for_backward(x)
        ctx.factor = 2
        if x.sum() > 0:
            return x * ctx.factor
        return x - 1


class Looping(Base):
    @staticmethod
    def forward(x: Tensor, steps: int = 3) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(())
        for _ in range(steps):
            while x.abs().max() > 1:
                x = x / 2
                total = total + 1
        return x, total

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, _ = inputs
        ctx.save_for_backward(x, output[0])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)


class Dirty(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)


class Same(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int, None]:
        ctx.saved = any(ctx.needs_input_grad)
        return x, y * 2, 3, None


class Modes(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x * 2, torch.is_grad_enabled(), ctx.needs_input_grad


class Nested(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Branching.apply(x) + Seeded.apply(x, 3).sum()


def in_an_arm(x: Tensor) -> Tensor:
    return Seeded.apply(x, 7) if x.sum() > 0 else Seeded.apply(x, 8) * 2


def in_a_loop(x: Tensor) -> Tensor:
    for n in range(3):
        x = Branching.apply(x) + n
    return x


def in_a_traced_loop(x: Tensor) -> Tensor:
    while x.sum() < 20:
        x = Branching.apply(x.abs()) + Branching.apply(x) * 0
    return x


def changed_argument(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = Dirty.apply(y)
    return y, z * 2


def alias(x: Tensor) -> tuple[Tensor, bool]:
    y = x * 2
    z, *_ = Same.apply(y, x)
    z.add_(1)
    return y, z is y


APPLY = Branching.apply

PROGRAMS: dict[str, Callable[..., Any]] = {
    "seed": lambda x: Seeded.apply(x, 7),
    "seed, then draws": lambda x: (Seeded.apply(x, 7), torch.rand(3)),
    "branch": lambda x: Branching.apply(x),
    "alias of apply": lambda x: APPLY(x),
    "loop, new style": lambda x: Looping.apply(x),
    "dirty": changed_argument,
    "an argument that is returned": alias,
    "several results": lambda x: Same.apply(x * 1, x),
    "modes": lambda x: Modes.apply(x),
    "nested": lambda x: Nested.apply(x),
    "in an arm": in_an_arm,
    "in a loop": in_a_loop,
    "in a traced loop": in_a_traced_loop,
    "forward itself": lambda x: Looping.forward(x),
}
if TorchVersion(torch.__version__) >= "2.12":  # before, `apply` takes no keywords
    PROGRAMS["loop, keyword"] = lambda x: Looping.apply(x, steps=2)


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_the_generator_are_those_of_eager(name: str, fallback: bool) -> None:
    function = PROGRAMS[name]
    fast = stretto.compile(function, backend="interpreter", fallback=fallback)
    for x in (A, -A, A, torch.cat([A, A])):
        torch.manual_seed(1)
        COUNTER.calls = 0
        expected, state, calls = function(x.clone()), torch.get_rng_state(), COUNTER.calls
        torch.manual_seed(1)
        COUNTER.calls = 0
        assert_same(fast(x.clone()), expected)
        assert torch.equal(torch.get_rng_state(), state)
        assert COUNTER.calls == calls


def test_what_eager_does_not_do_is_refused() -> None:
    with pytest.raises(stretto.CaptureError, match="is given keyword arguments"):
        stretto.compile(lambda x: Seeded.apply(x, seed=2), backend="interpreter")(A)

    class Lost(Base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.add_(1) * 2

    with pytest.raises(stretto.CaptureError, match="marked as dirty"):
        stretto.compile(lambda x: Lost.apply(x * 1), backend="interpreter")(A)


class Scaled(Base):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, (ctx.saved_tensors[0] * grads[0]).sum(0)


@pytest.mark.gradients
def test_a_weight_that_is_passed_gets_its_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    fast = stretto.compile(lambda x: Scaled.apply(x, weight), backend="interpreter")
    with pytest.warns(stretto.StrettoWarning, match="requires grad"):
        fast(A).sum().backward()
    assert_same(weight.grad, A.sum(0))
    with torch.no_grad():
        assert_same(fast(A), A)

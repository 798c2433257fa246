"""Calls within transformations of torch, and tensors of all kinds: right, or refused clearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import stretto
from stretto.errors import CaptureError, StrettoWarning
from stretto.options import Options
from tests.frontends.python.checks import assert_same

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def f(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2 + x.sum()


def fast(function: Callable[..., Any] = f, backend: str = "cpu") -> Any:
    return stretto.compile(function, backend=backend, options=Options(threads=1))


def eager(why: str) -> Any:
    return pytest.warns(StrettoWarning, match=f"{why}.*running eager")


# ---- transformations ---------------------------------------------------------------------------


def test_make_fx_sees_the_operators() -> None:
    with eager("ProxyTorchDispatchMode is active"):
        graph = make_fx(fast())(X)
    assert "tanh" in graph.code
    assert_same(graph(X), f(X))


@pytest.mark.whole
def test_vmap_and_its_like() -> None:
    compiled = fast()
    compiled(X)
    with eager("within torch.func \\(vmap\\)"):
        assert_same(torch.vmap(compiled)(X), torch.vmap(f)(X))
    with eager("within torch.func \\(jvp\\)"):
        assert_same(torch.func.jvp(fast(), (X,), (X,)), torch.func.jvp(f, (X,), (X,)))
    with eager("within torch.func \\(grad\\)"):
        gradient = torch.func.grad(lambda x: compiled(x).sum())(X)
    assert_same(gradient, torch.func.grad(lambda x: f(x).sum())(X))


def test_forward_mode_keeps_tangents() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        with eager("forward-mode differentiation"):
            found = forward_ad.unpack_dual(fast()(dual))
        assert_same(found.tangent, forward_ad.unpack_dual(f(dual)).tangent)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_jit_trace() -> None:
    with eager("torch.jit.trace is tracing"):
        traced = torch.jit.trace(fast(), (X,))
    assert_same(traced(X * 2), f(X * 2))


def test_modes() -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    class Asked(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    compiled = fast()
    with Seen() as seen, eager("the dispatch mode Seen"):
        assert_same(compiled(X), f(X))
    assert "aten.tanh.default" in seen.names
    with Asked(), eager("the function mode Asked"):
        assert_same(compiled(X), f(X))
    with FlopCounterMode(display=False) as flops, eager("dispatch mode"):
        fast(lambda x: x @ x.t())(X)
    assert flops.get_total_flops() == 2 * 2 * 3 * 2
    assert compiled.signatures == ()


def test_a_default_device_is_no_reason() -> None:
    compiled = fast(lambda x: x + torch.zeros(3))
    with torch.device("cpu"):
        assert_same(compiled(X), X)
    assert len(compiled.signatures) == 1


@pytest.mark.parametrize("active", [False, True])
def test_fake_tensors(active: bool) -> None:
    mode = FakeTensorMode()
    fake = mode.from_tensor(X)
    with eager("dispatch mode FakeTensorMode" if active else "an input is a FakeTensor"):
        if active:
            with mode:
                made = fast()(fake)
        else:
            made = fast()(fake)
    assert isinstance(made, FakeTensor)
    assert made.shape == X.shape


def test_fake_parameters_are_refused() -> None:
    with FakeTensorMode():
        model = nn.Linear(3, 3).eval()
    with torch.no_grad(), pytest.raises(CaptureError, match="FakeTensor cannot be captured"):
        fast(model)(X)


def test_symbolic_tracing() -> None:
    compiled = fast()
    with eager("an input is a Proxy"):
        graph = torch.fx.symbolic_trace(lambda x: compiled(x))
    assert_same(graph(X), f(X))


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = fast()

    def forward(self, x: Tensor) -> Tensor:
        return self.held(x) + 1


@pytest.mark.filterwarnings("ignore:the dispatch mode FakeTensorMode")
def test_export() -> None:
    program = torch.export.export(Held(), (X,), strict=False)
    assert_same(program.module()(X), f(X) + 1)


def test_torch_compile_takes_the_original() -> None:
    compiled = fast()
    assert_same(torch.compile(compiled, backend="eager", fullgraph=True)(X), f(X))
    if TorchVersion(torch.__version__) >= "2.12":  # before, Dynamo does not find `held`
        assert_same(torch.compile(Held(), backend="eager", fullgraph=True)(X), f(X) + 1)
    assert compiled.signatures == ()


# ---- tensors -----------------------------------------------------------------------------------


class Sub(Tensor):
    pass


def test_tensors_of_another_class_keep_it() -> None:
    with eager("an input is a Sub"):
        made = fast()(X.as_subclass(Sub))
    assert type(made) is Sub
    with eager("an input is a Sub"):
        fast(lambda batch: batch["x"] * 2)({"x": X.as_subclass(Sub)})


COMPLEX = torch.tensor([1 + 2j, -3 + 4j, 0.5 - 1j])


@pytest.mark.parametrize(
    "x",
    [
        COMPLEX.conj().imag,
        COMPLEX[:1].conj().imag,
        COMPLEX[0].conj().imag,
        torch._neg_view(X),
        COMPLEX.real,
    ],
)
def test_lazily_negated_inputs(x: Tensor) -> None:
    for backend in ("cpu", "interpreter"):
        assert_same(fast(backend=backend)(x), f(x))


def test_a_lazily_negated_input_that_is_changed() -> None:
    def g(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    first, second = COMPLEX.clone(), COMPLEX.clone()
    assert_same(fast(g)(first.conj().imag), g(second.conj().imag))
    assert torch.equal(first, second)


def test_lazily_negated_constants_are_refused() -> None:
    weight = COMPLEX.conj().imag
    with pytest.raises(CaptureError, match="lazily negated(.|\n)*resolve_neg"):
        fast(lambda x: x * weight)(torch.ones(3))


REFUSED = {
    "is a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "has layout torch.sparse_coo": lambda: X.to_sparse(),
    "has layout torch.sparse_csr": lambda: X.to_sparse_csr(),
    "is on the meta device": lambda: X.to("meta"),
    "has dtype torch.complex64": lambda: torch.complex(X, X),
    "has dtype torch.float8_e4m3fn": lambda: X.to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore:.*prototype.*:UserWarning", "ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("reason", REFUSED)
def test_tensors_that_are_refused(reason: str) -> None:
    compiled = fast()
    compiled(X)
    for _ in range(2):
        with pytest.raises(CaptureError, match=f"an input {reason}(.|\n)*remedy: ") as caught:
            compiled(REFUSED[reason]())
    assert caught.value.remedy


def test_jagged_tensors_run_eager() -> None:
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with eager("an input is a NestedTensor"):
        made = fast(lambda x: torch.tanh(x))(x)
    assert_same(made.unbind(), torch.tanh(x).unbind())


# ---- memory that overlaps itself ---------------------------------------------------------------


def written(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def test_writing_an_expanded_input_raises_what_eager_raises() -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        written(torch.zeros(1).expand(4))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        fast(written)(torch.zeros(1).expand(4))


def test_writing_an_input_that_overlaps_itself_is_refused() -> None:
    compiled = fast(written)
    assert_same(compiled(torch.zeros(3, 3)), torch.full((3, 3), 2.0))
    with pytest.raises(CaptureError, match="several elements at one address(.|\n)*clone"):
        compiled(torch.zeros(5).as_strided((3, 3), (1, 1)))
    y = torch.arange(5.0).as_strided((3, 3), (1, 1))
    assert_same(fast()(y), f(y))

"""Numbers of Python where torch wants tensors: as eager, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

X = torch.tensor([1.0, 2.0, 3.0])
NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "float": lambda x: x.sum().item(),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 0),
}


@pytest.fixture(params=list(NUMBERS))
def number(request: pytest.FixtureRequest) -> Any:
    return NUMBERS[request.param]


def of_one(x: Tensor, p: Any, what: str) -> Any:
    match what:
        case "sqrt":
            return torch.sqrt(p)
        case "sum":
            return torch.sum(p)
        case "max":
            return torch.max(p)
        case "clone":
            return torch.clone(p)
        case "numel":
            return torch.numel(p)
        case "expm1":
            return torch.special.expm1(p)
        case "norm":
            return torch.linalg.norm(p)
        case "gelu":
            return F.gelu(p)
        case "pow":
            return torch.pow(p, 2)
        case "item":
            return p.item()
        case "dtype":
            return p.dtype
        case "shape":
            return p.shape
        case "requires_grad":
            return p.requires_grad
        case "T":
            return p.T
        case _:
            return p[0]


def of_two(x: Tensor, p: Any, what: str) -> Any:
    match what:
        case "stack":
            return torch.stack([x.sum(), p])
        case "cat":
            return torch.cat([x, p])
        case "maximum":
            return torch.maximum(x, p)
        case "method":
            return x.maximum(p)
        case "eq":
            return torch.eq(p, x)
        case "where":
            return torch.where(p > 0, x, x)
        case "equal":
            return x.equal(p)
        case "allclose":
            return torch.allclose(x, p)
        case "matmul":
            return x @ p
        case _:
            x[:] = 1
            p[0] = 1
            return x


ONE = (
    *("sqrt", "sum", "max", "clone", "numel", "expm1", "norm", "gelu", "pow", "item", "dtype"),
    *("shape", "requires_grad", "T", "index"),
)
TWO = (
    *("stack", "cat", "maximum", "method", "eq", "where", "equal", "allclose", "matmul"),
    "set item",
)


@pytest.mark.parametrize("what", ONE)
def test_one_number(number: Any, what: str) -> None:
    raises_as_eager(lambda x: of_one(x, number(x), what))


@pytest.mark.parametrize("what", TWO)
def test_a_number_beside_a_tensor(number: Any, what: str) -> None:
    raises_as_eager(lambda x: of_two(x, number(x), what))


def raises_as_eager(fn: Callable[[Tensor], Any]) -> None:
    with pytest.raises((TypeError, AttributeError)) as eager:
        fn(X.clone())
    with pytest.raises(type(eager.value)):
        stretto.compile(fn, backend="interpreter")(X.clone())


def what_numbers_are(x: Tensor, p: Any) -> Any:
    return (
        torch.is_tensor(p),
        isinstance(p, Tensor),
        hasattr(p, "shape"),
        torch.add(p, 1),
        torch.mul(p, p),
        torch.true_divide(1, p),
        torch.as_tensor(p),
        torch.tensor([p, 1]),
        torch.add(x, p),
        torch.where(x > 1, p, 0),
        torch.clamp(x, p),
        torch.full((2,), p),
        torch.pow(x, p),
        torch.result_type(p, x),
    )


def test_numbers_where_torch_takes_them(number: Any) -> None:
    def fn(x: Tensor) -> Any:
        return what_numbers_are(x, number(x))

    fast = stretto.compile(fn, backend="interpreter")
    for x in (X, X + 1, X):
        assert_same(fast(x), fn(x))


IN_PYTHON: list[Callable[[Tensor], Any]] = [
    lambda x: F.relu(x.sum().item()),  # type: ignore[arg-type]
    lambda x: nn.ReLU()(x.sum().item()),
    lambda x: F.mse_loss(x, x.sum().item()),  # type: ignore[arg-type]
    lambda x: torch.norm(x.sum().item()),  # type: ignore[arg-type]
    lambda x: torch.meshgrid(x.sum().item(), indexing="ij"),  # type: ignore[arg-type]
    lambda x: torch.FloatTensor([x.sum().item()]),
    lambda x: torch.max(x[None], int(x[0])),
]


@pytest.mark.parametrize("fn", IN_PYTHON)
def test_functions_of_torch_in_python(fn: Callable[[Tensor], Any]) -> None:
    with pytest.raises(stretto.CaptureError) as caught:
        stretto.compile(fn, backend="interpreter")(X)
    assert caught.value.location is not None and caught.value.remedy


def asks_for_gradients(x: Tensor) -> Any:
    if x.requires_grad:
        return x * 2, x.is_leaf
    return x * 3, getattr(x, "requires_grad")  # noqa: B009


def test_inputs_that_require_grad() -> None:
    fast = stretto.compile(asks_for_gradients, backend="interpreter")
    with torch.no_grad(), pytest.warns(stretto.StrettoWarning, match="requires grad"):
        for wanted in (False, True, False, True):
            x = torch.ones(3, requires_grad=wanted)
            (one, flag), (other, expected) = fast(x), asks_for_gradients(x)
            assert torch.equal(one, other) and flag == expected


@pytest.mark.parametrize(
    "use", [lambda c, x: torch.where(c, x, x), lambda c, x: torch.logical_not(c)]
)
def test_a_number_as_one_of_several_operands(use: Callable[[Any, Tensor], Any]) -> None:
    """One arm has a tensor, the other a number, for which eager raises."""

    def function(x: Tensor) -> Any:
        return use(int(x[0]) and x > 1, x)

    fast = stretto.compile(function, backend="interpreter")
    for x in (X, -X, X):
        assert_same(fast(x), function(x))
    with pytest.raises(TypeError):
        function(X * 0)
    with pytest.raises(TypeError):
        fast(X * 0)
    assert_same(fast(X), function(X))


def write_item(value: Any) -> Any:
    value[0] = 2
    return value


def delete_item(value: Any) -> Any:
    del value[0]
    return value


REFUSED: dict[str, Callable[[Any], Any]] = {
    "item": lambda v: v[0],
    "write": write_item,
    "len": len,
    "iteration": lambda v: [k + 1 for k in v],
    "method": lambda v: v.upper(),
    "concatenation": lambda v: [1].__add__(v),
    "matmul": lambda v: v @ v,
    "in": lambda v: 1 in v,
    "unpacking": lambda v: (*v,),
    "not in": lambda v: 1 not in v,
    "call": lambda v: v(),
    "call with arguments": lambda v: v(1, k=2),
    "dict of it": lambda v: dict(v),
    "star": lambda v: max(*v),
    "two stars": lambda v: dict(**v),
    "join": lambda v: ",".join(v),
    "sorted": sorted,
    "sum": sum,
    "zip": lambda v: list(zip(v, [1], strict=False)),
    "next": next,
    "delete": delete_item,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_python_refuses_of_a_number_in_an_arm(name: str) -> None:
    """The arm of a number raises when it is taken, and not before."""
    use = REFUSED[name]

    def function(x: Tensor) -> Any:
        n = int(x[0])
        return use(n) if n > 1 else x + 1

    def outcome(called: Callable[[Tensor], Any], x: Tensor) -> Any:
        try:
            return called(x)
        except Exception as error:
            return type(error)

    fast = stretto.compile(function, backend="interpreter")
    for x in (X, X + 4, X):
        found, expected = outcome(fast, x), outcome(function, x)
        if found is stretto.NotCaptured:
            assert name in ("concatenation", "next"), "only functions of C may be refused"
        elif isinstance(expected, type):
            assert issubclass(found, expected)
        else:
            assert_same(found, expected)

"""Each way in which a parameter reaches a program: gradients are those of eager, or none."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto

pytestmark = pytest.mark.gradients
X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])


class Net(nn.Module):
    """A module with several methods."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) * self.scale

    def features(self, x: Tensor) -> Tensor:
        return self.layer(x)

    @torch.no_grad()
    def frozen(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Box:
    """Something that holds a tensor."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight


SHARED: list[Net] = []


def decorated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def called(*args: Any) -> Tensor:
        return function(*args) + 0

    return called


def of_global(x: Tensor) -> Tensor:
    return SHARED[0].features(x)


def of_closures(net: Net) -> dict[str, Callable[[Tensor], Tensor]]:
    box, items, table = Box(net.scale), [net.scale], {"scale": (net.scale,)}

    def default(x: Tensor, weight: Tensor = net.scale) -> Tensor:
        return x * weight

    def in_an_arm(x: Tensor) -> Tensor:
        return x * net.scale if x.sum() > 100 else x * 2

    def in_a_loop(x: Tensor) -> Tensor:
        while x.abs().sum() < 50:
            x = x * net.scale
        return x

    def recursive(x: Tensor, depth: int = 3) -> Tensor:
        return x if depth == 0 else recursive(x * net.scale, depth - 1)

    def no_grad_inside(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = net.layer(x)
        return x + y

    def enable_grad_inside(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return net.layer(x)

    def switched_on(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(True):
            y = net.layer(x)
        return y * 2

    def by_functional_call(x: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(net.named_parameters()), (x,))

    return {
        "lambda": lambda x: net(x),
        "object in a closure": lambda x: x * box.weight,
        "list in a closure": lambda x: x * items[0],
        "dict in a closure": lambda x: x * table["scale"][0],
        "functional": lambda x: nn.functional.linear(x, net.layer.weight),
        "all parameters": lambda x: x + sum(p.sum() for p in net.parameters()),
        "detached": lambda x: x * net.scale.detach(),
        "default argument": default,
        "arm": in_an_arm,
        "loop": in_a_loop,
        "recursion": recursive,
        "no_grad inside": no_grad_inside,
        "enable_grad inside": enable_grad_inside,
        "set_grad_enabled inside": switched_on,
        "functional_call": by_functional_call,
    }


def ways(net: Net) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Functions, with their arguments besides the input."""
    SHARED[:] = [net]
    found: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "module": (net, ()),
        "module within another": (nn.Sequential(net, nn.ReLU()), ()),
        "forward": (net.forward, ()),
        "method": (net.features, ()),
        "decorated method": (decorated(net.features), ()),
        "partial": (functools.partial(lambda module, x: module(x), net), ()),
        "global": (of_global, ()),
        "method without gradients": (net.frozen, ()),
        "module as an argument": (lambda x, module: module(x), (net,)),
        "object as an argument": (lambda x, box: x * box.weight, (Box(net.scale),)),
        "list as an argument": (lambda x, items: x * items[0], ([net.scale],)),
    }
    return found | {name: (function, ()) for name, function in of_closures(net).items()}


NAMES = list(ways(Net()))


def trained(function: Any, net: Net, args: tuple[Any, ...], grad: bool) -> list[Any]:
    """The result under a head that learns, and the gradients of all parameters."""
    head = nn.Linear(3, 1)
    with torch.no_grad():
        head.weight.fill_(0.5)
        head.bias.fill_(0.1)
    with torch.set_grad_enabled(grad):
        found = function(X, *args)
        loss = head(found).pow(2).mean()
    if loss.requires_grad:
        loss.backward()
    parameters = [*net.parameters(), *head.parameters()]
    gradients = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return [found.detach(), found.requires_grad, *gradients]


def check_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one is other


@pytest.mark.filterwarnings("ignore:.*requires grad")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", ["requires grad", "frozen"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_eager(name: str, first: str, training: bool) -> None:
    net = Net().train(training)
    function, args = ways(net)[name]
    fast = stretto.compile(function, backend="interpreter", fallback=training)
    for is_other in (False, True, False):
        net.requires_grad_((first == "requires grad") is not is_other)
        for grad in (True, False):
            expected = trained(function, net, args, grad)
            check_equal(trained(fast, net, args, grad), expected)
    assert fast.signatures, "the program runs where no gradients are wanted"


def made_in_a_loop(x: Tensor) -> Tensor:
    while x.sum() < 10:
        x = x + torch.ones(3, requires_grad=True)
    return x


def made_in_recursion(x: Tensor, depth: int = 2) -> Tensor:
    if x.sum() > 100 or depth == 0:
        return x
    return made_in_recursion(x * nn.Parameter(torch.ones(3)), depth - 1)


def made_and_set(x: Tensor) -> Tensor:
    weight = torch.zeros(3)
    weight.requires_grad = True
    return weight * x


def made_without_grad_mode(x: Tensor) -> Tensor:
    with torch.no_grad():
        weight = torch.zeros(3, requires_grad=True)
    return weight[0] * x


def used_without_grad_mode(x: Tensor) -> Tensor:
    weight = torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        doubled = weight * 2
    return doubled * x


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: torch.zeros(3, requires_grad=True) + x,
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0], requires_grad=True) * x,
    "rand": lambda x: torch.rand(3, requires_grad=True) * 0 + x,
    "eye": lambda x: torch.eye(3, requires_grad=True)[0] * x,
    "zeros_like": lambda x: torch.zeros_like(x, requires_grad=True),
    "new_zeros": lambda x: x.new_zeros(3, requires_grad=True),
    "parameter": lambda x: nn.Parameter(torch.ones(3)) * x,
    "frozen parameter": lambda x: nn.Parameter(torch.ones(3), requires_grad=False) * x,
    "module": lambda x: nn.Linear(3, 3)(x) * 0,
    "method": lambda x: (x + 1).requires_grad_() * 2,
    "attribute": made_and_set,
    "detached": lambda x: torch.zeros(3, requires_grad=True).detach() * x,
    "concatenated": lambda x: torch.cat([x, torch.ones(3, requires_grad=True)]),
    "arm": lambda x: torch.zeros(3, requires_grad=True) if x.sum() > 0 else x,
    "arm, used": lambda x: (x if x.sum() > 0 else torch.zeros(3, requires_grad=True)) * 2,
    "one of a list": lambda x: [x, torch.ones(3, requires_grad=True)][int(x[0])],
    "loop": made_in_a_loop,
    "recursion": made_in_recursion,
    "no_grad inside": made_without_grad_mode,
    "used under no_grad": used_without_grad_mode,
}


@pytest.mark.filterwarnings("ignore:.*requires grad")
@pytest.mark.parametrize("name", MADE)
def test_tensors_that_the_function_makes_require_grad(name: str) -> None:
    function, x = MADE[name], torch.tensor([1.0, 2.0, 3.0])
    fast = stretto.compile(function, backend="interpreter")
    for _ in range(2):
        expected, found = function(x), fast(x)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad is expected.requires_grad


@pytest.mark.filterwarnings("ignore:.*requires grad")
@pytest.mark.parametrize("name", ["zeros", "zeros_like", "new_zeros", "parameter", "method"])
def test_tensors_that_the_function_makes_without_grad_mode(name: str) -> None:
    function, x = MADE[name], torch.tensor([1.0, 2.0, 3.0])
    fast = stretto.compile(function, backend="interpreter")
    with torch.no_grad():
        assert fast(x).requires_grad is function(x).requires_grad


def test_the_warning_says_that_the_function_makes_the_tensor() -> None:
    fast = stretto.compile(MADE["zeros"], backend="interpreter")
    with pytest.warns(stretto.StrettoWarning, match="a tensor that it makes requires grad"):
        fast(torch.ones(3))


@pytest.mark.filterwarnings("ignore:.*requires grad")
@pytest.mark.parametrize("name", ["zeros", "tensor", "method", "parameter"])
def test_tensors_that_a_function_of_instances_makes(name: str) -> None:
    function, xs = MADE[name], [torch.ones(3), torch.tensor([1.0, 2.0, 3.0])]
    fast = stretto.batch(function, backend="interpreter")
    for _ in range(2):
        found, expected = fast(xs), [function(x) for x in xs]
        torch.testing.assert_close(list(found), expected)
        assert [one.requires_grad for one in found] == [one.requires_grad for one in expected]


@pytest.mark.filterwarnings("ignore:.*requires grad")
def test_inputs_decide_where_grad_mode_is_switched_on_inside() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x * 2

    fast = stretto.compile(function, backend="interpreter")
    with torch.no_grad():
        for x in (X, X.clone().requires_grad_(), X):
            assert fast(x).requires_grad is x.requires_grad


def test_batches_run_eager_and_say_so() -> None:
    layer, words = nn.Linear(3, 3), [torch.ones(3), torch.zeros(3)]

    def repeated(x: Tensor, count: int) -> Tensor:
        for _ in range(count):
            x = torch.relu(layer(x))
        return x

    many = stretto.batch(repeated)
    with pytest.warns(stretto.StrettoWarning, match="requires grad"):
        found = many(words, [1, 2])
    sum(y.sum() for y in found).backward()
    assert layer.weight.grad is not None
    assert many.explain().startswith("1 call ran eager: a tensor that it reads requires grad")
    with torch.no_grad():
        check_equal(many(words, [1, 2]), [y.detach() for y in found])
    layer.requires_grad_(False)
    words[1].requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert many(words, [1, 2])[1].requires_grad
        assert not many(words[:1], [1])[0].requires_grad


def test_the_tensors_of_a_file_decide(tmp_path: Path) -> None:
    layer, path = nn.Linear(3, 3), tmp_path / "layer.stretto"
    stretto.compile(layer, (X,), backend="interpreter").save(path)
    again = stretto.load(path, backend="interpreter")
    torch.testing.assert_close(again(X), layer(X).detach())
    again = stretto.load(path, backend="interpreter", tensors=dict(layer.named_parameters()))
    with pytest.raises(stretto.RunError, match="a tensor of the file requires grad"):
        again(X)
    with torch.no_grad():
        torch.testing.assert_close(again(X), layer(X))


@pytest.mark.filterwarnings("ignore:.*requires grad")
def test_graphs_of_dynamo_follow_the_parameters() -> None:
    layer = nn.Linear(3, 3).eval()
    fast = torch.compile(layer, backend="stretto")
    for wanted in (True, False, True):
        layer.requires_grad_(wanted)
        assert fast(X).requires_grad is wanted
    with torch.no_grad():
        assert not fast(X).requires_grad

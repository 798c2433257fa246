"""Changes of modules: hooks, parametrizations, replaced forwards, children, options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tests.e2e.changes.case import Case, X, case


def two_layers() -> Any:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).eval()


def doubled(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


def shifted(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] + 1,)


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


@case
def forward_hook_on_the_root() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.register_forward_hook(doubled))


@case
def forward_hook_on_a_child() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.layer.register_forward_hook(doubled))


@case
def forward_hook_on_a_child_of_a_sequential() -> Case:
    model = two_layers()
    return Case(model, lambda: model[1].register_forward_hook(doubled))


@case
def forward_pre_hook() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.layer.register_forward_pre_hook(shifted))


@case
def forward_hook_with_kwargs() -> Case:
    model = Affine().eval()

    def hook(module: nn.Module, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        return result + 1

    return Case(model, lambda: model.register_forward_hook(hook, with_kwargs=True))


@case
def forward_hook_removed() -> Case:
    model = Affine().eval()
    handle = model.layer.register_forward_hook(doubled)
    return Case(model, handle.remove)


@case
def forward_hook_exchanged() -> Case:
    model = Affine().eval()
    handle = model.layer.register_forward_hook(doubled)

    def change() -> None:
        handle.remove()
        model.layer.register_forward_hook(lambda module, args, result: result * 3)

    return Case(model, change)


@case
def forward_of_the_instance() -> Case:
    model = Affine().eval()

    def change() -> None:
        model.forward = lambda x: x * 5

    return Case(model, change)


@case
def forward_of_a_child_instance() -> Case:
    model = two_layers()

    def change() -> None:
        model[0].forward = lambda x: x * 5

    return Case(model, change)


@case
def forward_of_the_class() -> Case:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    def forward(self: Any, x: Tensor) -> Tensor:
        return x + 2

    return Case(Model().eval(), lambda: setattr(Model, "forward", forward))


@case
def forward_of_a_base_class() -> Case:
    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    return Case(Model().eval(), lambda: setattr(Base, "forward", lambda self, x: x + 2))


@case
def forward_given_to_a_subclass_later() -> Case:
    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Model(Base):
        pass

    return Case(Model().eval(), lambda: setattr(Model, "forward", lambda self, x: x + 2))


@case
def class_of_an_instance() -> Case:
    class One(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Two(One):
        def forward(self, x: Tensor) -> Tensor:
            return x + 2

    model = One().eval()
    return Case(model, lambda: setattr(model, "__class__", Two))


@case
def method_of_the_class() -> Case:
    class Model(nn.Module):
        def part(self, x: Tensor) -> Tensor:
            return x + 1

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x) * 2

    return Case(Model().eval(), lambda: setattr(Model, "part", lambda self, x: x + 2))


@case
def method_of_the_instance() -> Case:
    class Model(nn.Module):
        def part(self, x: Tensor) -> Tensor:
            return x + 1

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x) * 2

    model = Model().eval()
    return Case(model, lambda: setattr(model, "part", lambda x: x - 2))


class Doubling(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w * 2 + 1


@case
def parametrization() -> Case:
    model = Affine().eval()
    return Case(
        model, lambda: parametrize.register_parametrization(model.layer, "weight", Doubling())
    )


@case
def parametrization_removed() -> Case:
    model = Affine().eval()
    parametrize.register_parametrization(model.layer, "weight", Doubling())
    return Case(
        model,
        lambda: parametrize.remove_parametrizations(
            model.layer, "weight", leave_parametrized=False
        ),
    )


@case
def parametrized_original() -> Case:
    model = Affine().eval()
    parametrize.register_parametrization(model.layer, "weight", Doubling())
    return Case(model, lambda: model.layer.parametrizations.weight.original.mul_(3))


@case
def weight_norm_of_parametrizations() -> Case:
    model = Affine().eval()

    def change() -> None:
        nn.utils.parametrizations.weight_norm(model.layer)
        model.layer.parametrizations.weight.original0.mul_(3)

    return Case(model, change)


@case
def spectral_norm_of_parametrizations() -> Case:
    model = Affine().eval()
    return Case(model, lambda: nn.utils.parametrizations.spectral_norm(model.layer))


@case
def half_and_back() -> Case:
    model = Affine().eval()
    return Case(model, lambda: model.half().float())


@case
def double_of_a_module() -> Case:
    model = Affine().eval()
    x = X.double()

    def function(y: Tensor) -> Tensor:
        return model(y.to(model.layer.weight.dtype))

    return Case(function, model.double, (x,))


@case
def bfloat16_of_a_module() -> Case:
    model = Affine().eval()
    return Case(lambda y: model(y.to(model.layer.weight.dtype)), model.bfloat16)


# ---- structure of modules -----------------------------------------------------------------------


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.table = nn.ModuleDict({"a": nn.Tanh(), "b": nn.ReLU()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.last: Any = nn.Sigmoid()
        self.register_buffer("shift", torch.ones(3))
        self.pairs = [(nn.Linear(3, 3), 2.0)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        for part in self.table.values():
            x = part(x)
        for weight in self.weights:
            x = x * weight
        if self.last is not None:
            x = self.last(x)
        for layer, scale in self.pairs:
            x = layer(x) * scale
        return x + self.shift


def stack(change: Callable[[Any], object]) -> Case:
    model = Stack().eval()
    return Case(model, lambda: change(model))


@case
def module_appended() -> Case:
    return stack(lambda model: model.layers.append(nn.Linear(3, 3)))


@case
def module_replaced() -> Case:
    return stack(lambda model: model.layers.__setitem__(0, nn.Linear(3, 3)))


@case
def module_deleted() -> Case:
    return stack(lambda model: model.layers.__delitem__(0))


@case
def modules_exchanged() -> Case:
    def change(model: Any) -> None:
        model.layers[0], model.layers[1] = model.layers[1], model.layers[0]

    return stack(change)


@case
def module_of_a_dict_replaced() -> Case:
    return stack(lambda model: model.table.update({"a": nn.Identity()}))


@case
def module_set_to_none() -> Case:
    return stack(lambda model: setattr(model, "last", None))


@case
def parameter_appended() -> Case:
    return stack(lambda model: model.weights.append(nn.Parameter(torch.full((3,), 2.0))))


@case
def buffer_replaced() -> Case:
    return stack(lambda model: setattr(model, "shift", torch.zeros(3)))


@case
def module_in_a_plain_list_replaced() -> Case:
    return stack(lambda model: model.pairs.__setitem__(0, (nn.Linear(3, 3), 3.0)))


@case
def hook_on_a_module_in_a_plain_list() -> Case:
    return stack(lambda model: model.pairs[0][0].register_forward_hook(doubled))


@case
def option_of_a_layer_of_torch() -> Case:
    model = nn.Sequential(nn.LayerNorm(3, eps=1e-5)).eval()
    return Case(model, lambda: setattr(model[0], "eps", 1.0))


@case
def slope_of_an_activation() -> Case:
    model = nn.LeakyReLU(0.1).eval()
    return Case(model, lambda: setattr(model, "negative_slope", 0.7))


@case
def stride_of_a_pool_of_a_class() -> Case:
    class Pool(nn.AvgPool1d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model = Pool(1).eval()
    return Case(model, lambda: setattr(model, "stride", (2,)))


@case
def training_of_a_child() -> Case:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Identity()).eval()
    model[0].running_mean.fill_(3.0)
    model[0].momentum = 0.0
    return Case(model, lambda: model[0].train())


class Distributed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normal = torch.distributions.Normal(torch.zeros(3), torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.normal.variance + self.normal.mean


@case
def parameter_of_a_distribution() -> Case:
    model = Distributed().eval()
    return Case(model, lambda: setattr(model.normal, "loc", torch.ones(3)))

"""Tests of JAX programs, against eager: those of torch.export's graphs, and those of loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.harness import TOLERANCE, reference_outputs, relative_error, run
from benchmarks.measure import Protocol
from benchmarks.models.entry import ZooEntry
from benchmarks.models.groups import GROUPS
from benchmarks.models.loops import LOOPS
from benchmarks.models.real import MissingPackage
from benchmarks.models.static import STATIC
from benchmarks.peers import Case, Skipped
from benchmarks.peers.jax_peer import JaxPeer
from tests.sampling import sampled

pytest.importorskip("jax", reason="jax is not installed")

from benchmarks.peers import jax_graph

MODELS = {**GROUPS["real"], **STATIC, **LOOPS}
WITHOUT_PROGRAM = ("gpt2_generate", "swin_t")


class Applied(nn.Module):
    """A function of the inputs as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def check(module: nn.Module, *inputs: Tensor, config: Any = None) -> str:
    """Compares two calls with eager in float64; the note on how the program was made."""
    prepared = JaxPeer().prepare(Case("case", config, module, inputs, 2))
    wanted = reference_outputs(module, inputs)
    for _ in range(2):
        assert relative_error(prepared.outputs(prepared.call()), wanted) <= TOLERANCE
    return prepared.note


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


QUICK = (
    "resnext29_grouped",
    "nasbench",
    "deepfm",
    "wide",
    "mixtral_small",
    "lstm_tc",
    "nmt",
)


@pytest.mark.parametrize(
    "name",
    sampled(
        [name for name in MODELS if name not in WITHOUT_PROGRAM],
        QUICK,
    ),
)
def test_models_agree_with_eager(name: str) -> None:
    config = MODELS[name].presets["small"]
    try:
        module, inputs = MODELS[name].make(config, 0)
    except MissingPackage as missing:
        pytest.skip(str(missing))
    note = check(module, *inputs, config=config)
    by_hand = name in ("lstm_tc", "nmt", "ode", "rollout")
    assert by_hand == (note != "exported by torch.export")


@pytest.mark.parametrize("name", ["lstm_tc", "nmt", "ode"])
def test_loops_agree_with_eager_on_a_batch(name: str) -> None:
    config = replace(MODELS[name].presets["small"], batch=3)
    module, inputs = MODELS[name].make(config, 0)
    check(module, *inputs, config=config)


@pytest.mark.parametrize("size", [7, 8, 10])
def test_pools(size: int) -> None:
    def pools(x: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        windows = ((3, 2, 1), (2, 2, 0), (3, 3, 1))
        for (kernel, stride, padding), ceil_mode in product(windows, (False, True)):
            place = (kernel, stride, padding)
            found.append(F.max_pool2d(x, *place, ceil_mode=ceil_mode))
            found.append(F.avg_pool2d(x, *place, ceil_mode))
            found.append(F.avg_pool2d(x, *place, ceil_mode, count_include_pad=False))
        return found

    check(Applied(pools), noise(2, 3, size, size + 1))


def images(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    return (
        F.adaptive_avg_pool2d(x, (2, 3)),
        F.adaptive_avg_pool2d(x, (7, 9)),
        F.max_pool2d(x, 2, stride=1, dilation=2),
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(8, 5)),
        F.pad(x, (1, -1, 0, 2), value=3.0),
        F.group_norm(x, 2),
        x[:, 1:-1, 2, ::3],
        x[..., places],
        torch.cat([x, x[:, :, :, :2]], dim=-1),
    )


def test_operators_of_images() -> None:
    check(Applied(images), noise(2, 4, 5, 6), torch.tensor([[0, 3], [5, 5]]))


def rows(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    values, chosen = x.topk(2, dim=0)
    least, _ = x.topk(1, dim=-1, largest=False)
    ordered, order = x.sort(dim=-1, descending=True)
    first, second = x.split([1, 4], dim=1)
    return (
        *(values, chosen, least, ordered, order, first, second),
        x.gather(1, places),
        x.index_put((places[:, 0],), x + 1),
        torch.addmm(x, x @ x.T, x, beta=2.0, alpha=0.5),
        torch.add(x, x, alpha=3),
        torch.sub(x, 1, alpha=2),
        torch.div(places, 2, rounding_mode="floor"),
        torch.div(-places, 2, rounding_mode="trunc"),
        F.gelu(x, approximate="tanh"),
        F.layer_norm(x, (5,)),
        x.cumsum(0),
        (x > 0).any(1),
        x.sum(),
        torch.full_like(x, 2.0),
    )


def test_operators_of_rows() -> None:
    check(Applied(rows), noise(3, 5), torch.tensor([[4, 0], [2, 2], [1, 3]]).clamp(max=2))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "conv",
    [
        lambda bias: nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=bias),
        lambda bias: nn.Conv2d(4, 6, (3, 1), padding=(2, 0), dilation=(2, 1), bias=bias),
        lambda bias: nn.Conv1d(4, 6, 3, bias=bias),
    ],
)
def test_norms_are_folded_into_convolutions(
    conv: Callable[[bool], nn.Module], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = conv(bias)
    norm = nn.BatchNorm2d(6) if isinstance(layer, nn.Conv2d) else nn.BatchNorm1d(6)
    _draw(norm)
    monkeypatch.delitem(jax_graph.OPERATORS, jax_graph.BATCH_NORM)
    monkeypatch.setattr(jax_graph, "NOTHING", jax_graph.NOTHING | {jax_graph.BATCH_NORM})
    inputs = noise(2, 4, 8, 9) if isinstance(layer, nn.Conv2d) else noise(2, 4, 9)
    check(nn.Sequential(layer, norm, nn.ReLU()).eval(), inputs)


def _draw(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None and norm.running_var is not None
    with torch.no_grad():
        for values in (norm.weight, norm.running_var):
            values.uniform_(0.5, 2.0)
        for values in (norm.bias, norm.running_mean):
            values.normal_()


@pytest.mark.parametrize("channels", [2, 32])
def test_narrow_and_wide_groups(channels: int) -> None:
    torch.manual_seed(0)
    check(nn.Conv2d(3 * channels, 6, 3, 2, 1, groups=3), noise(2, 3 * channels, 5, 6))


class Shared(nn.Module):
    """A convolution that two norms read, and a norm alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.first, self.second, self.third = (nn.BatchNorm2d(3) for _ in range(3))
        for norm in (self.first, self.second, self.third):
            _draw(norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.first(y) + self.second(y) * self.third(x)


def test_norms_that_cannot_be_folded_are_computed() -> None:
    torch.manual_seed(0)
    check(Shared().eval(), noise(2, 3, 4, 4))


class Constant(nn.Module):
    """Results that depend on the inputs, on weights alone, and on nothing."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("places", torch.arange(4), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        shift = torch.tanh(self.layer.weight @ self.layer.bias)
        return x + shift + self.places, shift, torch.ones(2), 2 * self.layer.weight


def test_what_does_not_depend_on_the_inputs_is_computed_once() -> None:
    torch.manual_seed(0)
    module, inputs = Constant(), (noise(2, 4),)
    check(module, *inputs)
    program, weights = jax_graph.graph_program(module, inputs)
    text = str(jax_graph.jax.make_jaxpr(program)(weights, inputs[0].numpy()))
    assert "tanh" not in text and "dot_general" not in text


def entry_of(module: nn.Module, *inputs: Tensor) -> dict[str, ZooEntry]:
    entry = ZooEntry(
        "case", "", lambda config, seed: (module, inputs), {"full": None}, lambda _: ()
    )
    return {"case": entry}


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            Applied(lambda x: torch.special.bessel_j0(x) + torch.lgamma(x)),
            "no JAX function is written for aten.lgamma.default, aten.special_bessel_j0.default",
        ),
        (Applied(lambda x: x if x.sum() > 0 else -x), "torch.export takes no Applied: "),
        (Applied(lambda x: x.add_(1)), "Applied changes its buffers or its inputs"),
        (
            nn.ConvTranspose2d(2, 2, 3),
            "transposed convolutions are not translated to JAX",
        ),
    ],
)
def test_what_has_no_program_is_recorded_as_skipped(
    module: nn.Module, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.harness.measure_rates", lambda threads: None)
    zoo = entry_of(module, noise(1, 2, 4, 4))
    record = run(["case"], ["jax"], 2, protocol=Protocol.quick(), zoo=zoo)
    (result,) = record.models[0].systems
    assert result.status == "skipped"
    assert reason in result.reason and "\n" not in result.reason


def test_graphs_of_unrolled_loops_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_graph, "MOST_OPERATORS", 3)

    def loop(x: Tensor) -> Tensor:
        for _ in range(4):
            x = x + x
        return x

    with pytest.raises(Skipped, match="the exported graph has 4 operators, its loops unrolled"):
        JaxPeer().prepare(Case("case", None, Applied(loop), (noise(2),), 2))


def test_a_loop_of_a_package_is_skipped() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    module, inputs = MODELS["gpt2_generate"].make(MODELS["gpt2_generate"].presets["small"], 0)
    with pytest.raises(Skipped, match="a loop of the package's Python code is not exported"):
        JaxPeer().prepare(Case("gpt2_generate", None, module, inputs, 2))

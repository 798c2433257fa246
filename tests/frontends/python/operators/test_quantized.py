"""Linear layers that quantise their inputs while they run, against torch's own kernel."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import CaptureError
from tests.sampling import sampled

needs_fbgemm = pytest.mark.skipif(
    torch.backends.quantized.engine not in ("x86", "fbgemm"), reason="another kernel in torch"
)
pytestmark = needs_fbgemm


def quantised(model: nn.Module, dtype: torch.dtype = torch.qint8) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        within = nn.Sequential(model).eval()  # what is given itself stays as it is
        return torch.ao.quantization.quantize_dynamic(within, {nn.Linear}, dtype=dtype)[0]


def has_vnni() -> bool:
    """Whether the processor multiplies bytes without saturating."""
    return "vnni" in Path("/proc/cpuinfo").read_text()


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Up to the rounding of a sum of the scaled product and the bias."""
    torch.testing.assert_close(found, expected, rtol=3e-7, atol=3e-7 * float(expected.abs().amax()))


@pytest.mark.whole
@pytest.mark.parametrize("seed", sampled([0, 1, 2, 3], [0, 1]))
def test_the_results_are_those_of_eager(seed: int) -> None:
    torch.manual_seed(seed)
    inputs, outputs = ((37, 70), (64, 64), (1, 3), (130, 17))[seed]
    model = quantised(nn.Linear(inputs, outputs, bias=seed != 1))
    assert_products(model, inputs)


def assert_products(model: nn.Module, inputs: int) -> None:
    compiled = stretto.compile(model, options=stretto.Options(threads=1 + inputs % 3))
    x = torch.randn(5, inputs)
    with torch.no_grad():
        # Also: nothing but 0, one sign only, and scales that are raised.
        small = x * 1e-5, x.abs() * 1e-6, -x.abs() * 1e-9
        for one in (x, x * 1e4, x * 0, x.abs(), -x.abs(), *small):
            assert_same(compiled(one), model(one))
        far = x.clone()
        far[0, 0] = 1e6
        assert_same(compiled(far), model(far))


def test_a_scale_for_each_output_and_a_number_that_stands_for_0() -> None:
    torch.manual_seed(0)
    weight, scales = torch.randn(20, 33), torch.rand(20) * 0.02 + 0.01
    for zeros in (torch.zeros(20, dtype=torch.long), torch.randint(-9, 9, (20,))):
        packed = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        model = quantised(nn.Linear(33, 20))
        model.set_weight_bias(packed, torch.randn(20))
        assert_products(model, 33)


def test_the_whole_range_of_bytes_and_a_rectifier() -> None:
    torch.manual_seed(0)
    packed = quantised(nn.Linear(40, 48))._packed_params._packed_params
    ops = torch.ops.quantized

    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = ops.linear_dynamic(x, packed, reduce_range=False)
        return whole, ops.linear_relu_dynamic(x, packed, True), ops.linear_dynamic(x, packed)

    x = torch.randn(4, 40)
    with torch.no_grad():
        found, expected = stretto.compile(run)(x), run(x)
        weight, bias = packed.unpack()
        exact = x.double() @ weight.dequantize().double().mT + bias.double()
        # Without VNNI torch's kernel adds pairs of products of the whole range in 16 bits, which
        # saturate: its error is then half of a value, and ours that of the rounded inputs.
        for whole in (0, 2):
            if has_vnni():
                assert_same(found[whole], expected[whole])
            assert (found[whole] - exact).abs().max() < 0.01 * exact.abs().max()
        assert_same(found[1], expected[1])


def test_shapes_of_inputs() -> None:
    torch.manual_seed(0)
    model = quantised(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)))
    compiled = stretto.compile(model)
    with torch.no_grad():
        for shape in ((1, 12), (2, 3, 12), (2, 0, 12)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)
    for function in (compiled, model):
        with pytest.raises(RuntimeError, match="dimension of input tensor"):
            function(torch.randn(12))


def test_a_number_of_rows_that_calls_decide_and_a_loop() -> None:
    torch.manual_seed(0)
    layer = quantised(nn.Sequential(nn.Linear(24, 24)))

    def run(x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            x = layer(x)
        return x

    dynamic, steady = stretto.compile(layer, dynamic=True), stretto.compile(run)
    with torch.no_grad():
        for rows in (4, 9, 1):
            x = torch.randn(rows, 24)
            assert_same(dynamic(x), layer(x))
        x = torch.randn(2, 24)
        for steps in (0, 1, 5):
            # A byte that is rounded in the other direction moves the result by one step of it.
            torch.testing.assert_close(steady(x, steps), run(x, steps), rtol=1e-2, atol=1e-2)


def test_weights_that_are_replaced() -> None:
    torch.manual_seed(0)
    model = quantised(nn.Sequential(nn.Linear(16, 8)))
    compiled, x = stretto.compile(model), torch.randn(3, 16)
    with torch.no_grad():
        assert_same(compiled(x), model(x))
        other = torch.quantize_per_tensor(torch.randn(8, 16), 0.02, 0, torch.qint8)
        model[0].set_weight_bias(other, torch.zeros(8))
        assert_same(compiled(x), model(x))


def test_weights_of_halves() -> None:
    torch.manual_seed(0)
    model = quantised(nn.Sequential(nn.Linear(33, 20), nn.ReLU(), nn.Linear(20, 7)), torch.float16)
    x = torch.randn(5, 33)
    with torch.no_grad():
        torch.testing.assert_close(stretto.compile(model)(x), model(x), rtol=1e-5, atol=1e-5)


def test_another_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantised(nn.Linear(4, 4))
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "qnnpack"
    except RuntimeError:
        pytest.skip("torch has no other engine")
    try:
        with pytest.raises(CaptureError, match="cannot be captured"):
            stretto.compile(model)(torch.randn(1, 4))
    finally:
        torch.backends.quantized.engine = before

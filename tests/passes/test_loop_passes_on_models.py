"""The loop passes on captured models of the zoo: where their contractions end up."""

import copy

import pytest
import torch

from benchmarks.models import deepspeech2, lstm, nasrnn
from stretto.frontends.python import capture
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.ops import ForOp
from stretto.options import Options
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline
from tests.passes.loops import contractions


def optimised(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Program:
    """The model's Program after the passes, which must give what the model gives."""
    with torch.no_grad():
        captured = capture(model, inputs, {}, Options()).program
        expected = copy.deepcopy(model).double()(*(item.double() for item in inputs))
    after = run_passes(captured, pipeline())
    (found,) = run(after, inputs, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    return after


@pytest.mark.parametrize("batch", [1, 2])
def test_lstm(batch: int) -> None:
    config = lstm.LSTMConfig(length=16, layers=3, hidden=8, batch=batch)
    after = optimised(*lstm.make(config))
    loops = [op for op in after.main.body.ops if isinstance(op, ForOp)]
    assert [len(contractions(loop.body)) for loop in loops] == [1, 1, 1]
    assert len(contractions(after.main.body)) == 3


def test_nasrnn() -> None:
    after = optimised(*nasrnn.make(nasrnn.NASRNNConfig(length=16, hidden=8)))
    (loop,) = [op for op in after.main.body.ops if isinstance(op, ForOp)]
    assert len(contractions(loop.body)) == 1
    (before,) = contractions(after.main.body)
    assert before.result.tensor.shape == (16, 64)


def test_deepspeech2() -> None:
    kernels = {"kernel1": (5, 3), "kernel2": (3, 3)}
    config = deepspeech2.DeepSpeech2Config(
        frames=64, bins=9, channels=2, **kernels, layers=2, hidden=8, characters=5
    )
    after = optimised(*deepspeech2.make(config))
    loops = [op for op in after.main.body.ops if isinstance(op, ForOp)]
    assert [len(contractions(loop.body)) for loop in loops] == [1, 1]
    # Two convolutions, the inputs of two layers, and the last linear layer.
    assert len(contractions(after.main.body)) == 5

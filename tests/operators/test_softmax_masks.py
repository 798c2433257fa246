"""Scores that a mask makes so small that their exponentials are no normal numbers."""

from __future__ import annotations

import pytest
import torch

from stretto.interp.interpreter import run
from tests.backends import assert_close, built
from tests.sampling import every
from tests.support import program_of


@pytest.mark.parametrize("kind", every(1, ["f32", "f64"]))
def test_masked_scores_have_no_weight(kind: str) -> None:
    text = f"""
    func @main(%x: {kind}[6, 5], %v: {kind}[5, 3]) -> ({kind}[6, 5], {kind}[6, 3], {kind}[6, 5]) {{
      %s = aten._softmax.default(%x, 1, False) : {kind}[6, 5]
      %l = aten._log_softmax.default(%x, 1, False) : {kind}[6, 5]
      %y = aten.mm.default(%s, %v) : {kind}[6, 3]
      return %s, %y, %l
    }}
    """
    dtype = torch.float32 if kind == "f32" else torch.float64
    x = torch.randn(6, 5, dtype=dtype)
    least = 100.0 if kind == "f32" else 740.0
    x[0, 2:] -= least
    x[1, 1] -= 10 * least
    x[2, 3] = -torch.inf
    x[3] = -torch.inf
    x[4, 0] = torch.nan
    given = [x, torch.randn(5, 3, dtype=dtype)]
    program = program_of(text)
    expected = run(program, given)
    assert_close(built(program, 2).cpu()(given), expected)
    assert_close(built(program, 2).emulator()(given), expected)
    (weights, *_) = built(program, 2).cpu()(given)
    assert (weights[0, 2:] == 0).all()

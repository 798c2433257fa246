"""The check that snapshots miss nothing finds what they miss."""

# pyright: basic

import io

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python.calls import call
from tests.frontends.python.state.watch import UnnoticedChange


def test_a_change_that_nobody_notes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "note_call", lambda function, args, kwargs: None)

    def function(x: Tensor) -> Tensor:
        text = io.StringIO()
        if x.sum() > 0:
            text.write("a")
        return x

    with pytest.raises(UnnoticedChange, match="StringIO"):
        stretto.compile(function, backend="interpreter")(torch.ones(2))

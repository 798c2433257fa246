"""Constants that are copied in a thread, while their program is still being compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stretto
from stretto.errors import VerifyError
from stretto.machines import stages as shared
from stretto.runtime import constants
from tests.frontends.python.checks import assert_same

X = torch.randn(3, 24)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 7)).eval()


def test_each_weight_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[constants.Copy]()
    first = constants.Copy.__init__

    def counted(self: constants.Copy, *args: object, **kwargs: object) -> None:
        made.append(self)
        first(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(constants.Copy, "__init__", counted)
    net = model()
    fast = stretto.compile(net, backend="cpu")
    with torch.no_grad():
        assert_same(fast(X), net(X))
        assert len(made) == 2
        assert fast.signatures[0].stages.copies is None
        next(net.parameters()).mul_(2)
        assert_same(fast(X), net(X))
        assert len(made) == 2


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad, torch.no_grad])
def test_modes_of_the_caller(mode: type) -> None:
    with mode():
        net = model().requires_grad_(False)
        fast = stretto.compile(net, backend="cpu")
        assert_same(fast(X), net(X))
        next(net.parameters()).add_(1)
        assert_same(fast(X), net(X))


def test_what_copying_raises_is_raised_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> torch.Tensor:
        raise MemoryError("no room for a copy")

    net = model()
    fast = stretto.compile(net, backend="cpu")
    with torch.no_grad():
        with monkeypatch.context() as patched:
            patched.setattr(constants, "pack", fails)
            with pytest.raises(MemoryError, match="no room"):
                fast(X)
        assert_same(fast(X), net(X))


def test_a_stage_that_fails_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise VerifyError("a race")

    net = model()
    fast = stretto.compile(net, backend="cpu")
    with torch.no_grad():
        with monkeypatch.context() as patched:
            patched.setattr(shared, "schedule_with_report", refused)
            with pytest.raises(VerifyError, match="a race"):
                fast(X)
        assert_same(fast(X), net(X))

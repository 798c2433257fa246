"""Calls that run eager because no program can do what eager PyTorch does, and the warnings about
them."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from pathlib import Path

import torch

from stretto.call.signatures import Key, varying
from stretto.errors import StrettoWarning
from stretto.options import Options
from stretto.text import counted

_REMEDY = "Call it under torch.no_grad() to run it compiled."
_REMEDY_FOR_CREATED = "Make the tensor without requires_grad to run it compiled."


class RunsEager(Exception):
    """Raised for a call that runs eager, with the reason that the user is warned of."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def is_training(module: torch.nn.Module) -> bool:
    """Return True for a module in training mode. A frozen TorchScript module has no mode: False."""
    return getattr(module, "training", False)


class RequiresGrad(RunsEager):
    """Raised for a call that runs eager because `tensor`, which it reads, requires grad; None: a
    tensor that it creates."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self.tensor = tensor
        verb, remedy = ("makes", _REMEDY_FOR_CREATED) if tensor is None else ("reads", _REMEDY)
        super().__init__(
            f"a tensor that it {verb} requires grad and training is not supported yet", remedy
        )


def recheck_requires_grad(call: RequiresGrad) -> Callable[[], None]:
    """Return a function that raises RequiresGrad again as long as the tensor is alive and requires
    grad."""
    wanted = None if call.tensor is None else weakref.ref(call.tensor)

    def check() -> None:
        if wanted is None:
            raise RequiresGrad(None)
        tensor = wanted()
        if tensor is not None:
            check_gradients((tensor,))

    return check


def check_gradients(tensors: Iterable[torch.Tensor]) -> None:
    """Raise RequiresGrad if one of the tensors that a call reads requires grad; call it with grad
    mode on. Eager would then build a graph that the caller means to use."""
    for tensor in filter(requires_grad, tensors):
        raise RequiresGrad(tensor)


requires_grad = attrgetter("requires_grad")


# ---- Warnings to the user of a compiled function: `StrettoWarning`s, each once.


_PACKAGE = str(Path(__file__).parent)


class Notices:
    """The warnings of one compiled function. Only the first of each kind is shown."""

    def __init__(self, options: Options) -> None:
        self._limit = options.debug.max_signatures_before_warning
        self._eager: dict[str, int] = {}
        """Number of calls that ran eager, by reason."""
        self._warned_signatures = False

    def eager(self, call: RunsEager) -> None:
        """Count a call that runs eager, and warn at the first one of its reason."""
        count = self._eager.get(call.reason, 0)
        self._eager[call.reason] = count + 1
        if not count:
            warn(f"{call.reason}: running eager. {call.remedy}".rstrip())

    @property
    def eager_calls(self) -> list[str]:
        """Lines with the number of calls that ran eager, per reason."""
        return [
            f"{counted(count, 'call')} ran eager: {reason}" for reason, count in self._eager.items()
        ]

    def compiled(self, keys: Collection[Key]) -> None:
        """Warn once if there are more keys than `Debug.max_signatures_before_warning`."""
        if len(keys) > self._limit and not self._warned_signatures:
            self._warned_signatures = True
            warn(
                f"{len(keys)} signatures compiled: {varying(list(keys))}. Each new one is compiled "
                "from the start; pad or bucket what varies, or raise "
                "Options(debug=Debug(max_signatures_before_warning=...))."
            )

    def compiled_again(self, builds: int, changed: str) -> None:
        """Warn once if one signature was compiled `builds` times because of `changed`."""
        if builds == self._limit + 1:
            warn(
                f"compiled {builds} times for the same shapes, because what it was compiled "
                f"with changes between calls: {changed}. Pass it as an argument, as a tensor."
            )


def warn(text: str) -> None:
    """Issue a StrettoWarning at the line that called the compiled function."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, StrettoWarning, stacklevel=level)

"""What a stream asks of a batcher, and which calls may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Call:
    """One instance: a value per positional parameter, and the keywords, which all calls of a run
    share."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """What the function returns for one instance."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """What the function raises for one instance."""

    error: BaseException


Outcome = Value | Failure

Run = Callable[[Sequence[Call]], Sequence[Outcome]]
"""Runs calls with equal keywords as one batch: an outcome per call, in their order. Where one
instance raises, its outcome is a Failure. A run that raises itself says that it cannot tell which
instances are at fault; they are then run in smaller batches."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Settings of torch that belong to a thread. A request runs under those that it was submitted
    under, although another thread runs it."""

    grad: bool
    inference: bool
    autocast: tuple[torch.dtype | None, ...]

    @staticmethod
    def current() -> Modes:
        """Those of this thread."""
        autocast = tuple(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in _DEVICE_TYPES
        )
        return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextmanager
    def applied(self) -> Generator[None]:
        """Sets them for this thread inside the block."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype in zip(_DEVICE_TYPES, self.autocast, strict=True):
                if dtype is not None:
                    stack.enter_context(torch.autocast(kind, dtype))
            yield


def shared_key(kwargs: Mapping[str, Any]) -> Hashable:
    """Equal for keywords that one batch can share: the same names, with values that are the same
    object or indistinguishable numbers, texts or tuples of these. Other values are told apart by
    identity, so the key is valid while `kwargs` is alive."""
    return tuple(sorted((name, _value_key(value)) for name, value in kwargs.items()))


def _value_key(value: Any) -> Hashable:
    kind = type(value)  # a subclass may mean another thing by equality
    if kind in (bool, int, str, bytes):
        return kind, value
    if kind is float:
        return kind, value.hex()  # 0.0 equals -0.0, but does not compute the same
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is tuple:
        return kind, tuple(_value_key(item) for item in value)
    return "object", id(value)

"""Eager PyTorch as the reference: in float64, and in its own dtypes with rounding noise.

Under `Wide` every float is a float64. Under `Noise` each result that was rounded is moved by a few
units in its last place, and sums of products that overflow on the way are what another order could
make of them. How far the runs differ is how well a program is conditioned: a found value that lies
among them is right, and a branch that they take differently decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stretto.ops.properties import properties

_aten = torch.ops.aten
_SUMS: tuple[Any, ...] = (
    _aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.mv, _aten.addmv, _aten.dot,
    _aten.linear, _aten.convolution, _aten.sum, _aten.mean, _aten.cumsum,
)  # fmt: skip
"""Sums, whose order and rounding the shapes and the processor decide in eager."""
_EXTREMES = (float("nan"), float("inf"), -float("inf"))
NARROW = (torch.float32, torch.float16, torch.bfloat16)
MOST_OPERATORS = 30_000
"""Operators of one run after which a program is taken to be endless."""


MOST_ELEMENTS = 1 << 22
"""Elements of a tensor after which a program is taken to grow without end."""


class EndlessError(Exception):
    """Eager did not come to an end."""


class Counting(TorchDispatchMode):
    """Eager as it is; ends a program that does not end."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.count += 1
        if self.count > MOST_OPERATORS:
            raise EndlessError
        result = self.run(func, args, kwargs or {})
        if isinstance(result, torch.Tensor) and result.numel() > MOST_ELEMENTS:
            raise EndlessError
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


class Wide(Counting):
    """Every float tensor is a float64, random ones have the values that float32 has."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_random = properties(str(func)).is_random
        if func._schema.is_mutable:
            if not is_random:
                return func(*args, **kwargs)
            narrow = args[0].to(torch.float32)
            func(narrow, *args[1:], **kwargs)
            return args[0].copy_(narrow)
        if not is_random and kwargs.get("dtype") in NARROW:
            kwargs = {**kwargs, "dtype": torch.float64}
        return pytree.tree_map_only(torch.Tensor, _widened, func(*args, **kwargs))


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64) if tensor.dtype in NARROW else tensor


class Noise(Counting):
    """Results that were rounded are moved by about two units in the last place, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.is_view or properties(str(func)).is_random:
            return func(*args, **kwargs)
        exact = self.exact(func, args, kwargs)
        result = func(*args, **kwargs)
        if exact is None:
            return result
        for one, other in zip(pytree.tree_leaves(result), pytree.tree_leaves(exact), strict=True):
            if isinstance(one, torch.Tensor) and one.dtype.is_floating_point and one.numel():
                self.disturb(one, other)
                if func.overloadpacket in _SUMS and not one.isfinite().all():
                    magnitude = self.exact(func, *_magnitudes(args, kwargs))
                    if func.overloadpacket is _aten.mean:
                        magnitude = magnitude * (args[0].numel() / one.numel())
                    self.overflow(one, other, magnitude)
        return result

    def exact(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results in float64; None where there are none."""
        wide_args, wide_kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: _widened(t.clone()), (args, kwargs)
        )
        if wide_kwargs.get("dtype") in NARROW:
            wide_kwargs["dtype"] = torch.float64
        try:
            return func(*wide_args, **wide_kwargs)
        except (RuntimeError, NotImplementedError):
            return None

    def disturb(self, result: torch.Tensor, exact: torch.Tensor) -> None:
        if exact.shape != result.shape:
            return
        value, true = result.to(torch.float64), exact.to(torch.float64)
        error = (value - true).abs()
        size = 4 * torch.maximum(error, torch.finfo(result.dtype).eps * value.abs())
        noise = (
            torch.rand(result.shape, generator=self.generator, dtype=torch.float64) - 0.5
        ) * size
        in_range = value.isfinite() & (true.abs() <= torch.finfo(result.dtype).max)
        moved = torch.where((error != 0) & in_range, value + noise, value)
        result.copy_(moved)

    def overflow(self, result: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor) -> None:
        """Special values of which the order decides: eager's own `x @ y` of overflowing products
        is NaN for vectors and an infinity for matrices. Another order may stay finite."""
        overflows = magnitude.abs() > torch.finfo(result.dtype).max
        extremes = [torch.full_like(result, value) for value in _EXTREMES]
        drawn = torch.randint(len(_EXTREMES) + 1, result.shape, generator=self.generator)
        other = torch.stack([*extremes, exact.to(result.dtype)]).gather(0, drawn[None])[0]
        result.copy_(torch.where(overflows & ~result.isfinite(), other, result))


def _magnitudes(args: Any, kwargs: Any) -> Any:
    """The arguments with magnitudes, of what is finite, in the place of tensors."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.abs().nan_to_num(posinf=0.0), (args, kwargs)
    )


def run_in(mode: Counting, run: Callable[[], Any]) -> Any:
    """What `run` gives when eager computes as the mode says."""
    with mode, torch.no_grad():
        return run()

"""Draws of random numbers into new tensors, and seeding of generators; torch computes them.

`stretto.random_fill(operator, size, stride, numbers, dtype, generator)` is a new tensor of these
strides, filled by `operator`, an ATen operator such as `aten.normal_.default`: which element
gets which number depends on the strides. `stretto.manual_seed(seed, generator)` has no result.
"""

from __future__ import annotations

import torch

from stretto.ops.library import LIBRARY, define


def _random_fill(
    operator: str,
    size: list[int],
    stride: list[int],
    numbers: list[float],
    *,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    namespace, name, overload = operator.split(".")
    fill = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    made = torch.empty_strided(size, stride, dtype=dtype)
    return fill(made, *numbers, generator=generator)


def _manual_seed(seed: int, *, generator: torch.Generator | None = None) -> None:
    if generator is None:
        torch.manual_seed(seed)
    else:
        generator.manual_seed(seed)


def _fake_fill(
    operator: str,
    size: list[int],
    stride: list[int],
    numbers: list[float],
    *,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


define(
    "random_fill(str operator, SymInt[] size, SymInt[] stride, Scalar[] numbers, *, "
    "ScalarType dtype, Generator? generator=None) -> Tensor",
    _random_fill,
    tags=(torch.Tag.nondeterministic_seeded,),
)
define(
    "manual_seed(int seed, *, Generator? generator=None) -> ()",
    _manual_seed,
    tags=(torch.Tag.nondeterministic_seeded,),
)
torch.library.register_fake("stretto::random_fill", _fake_fill, lib=LIBRARY)
torch.library.register_fake("stretto::manual_seed", lambda *_, **__: None, lib=LIBRARY)

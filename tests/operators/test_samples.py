"""Rules against torch on the sample inputs that torch's own tests use.

Each ATen operator that a sample runs, and that has a rule, is lowered and compared on the spot.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from stretto.ir.types import DType
from stretto.lowering.rules import find_rule
from tests.lowering.straight_line import NotNative, check, lowered_of_costly
from tests.sampling import sampled

pytest.importorskip("expecttest", reason="torch's sample inputs need the package expecttest")

from torch.testing._internal.common_methods_invocations import op_db

LARGEST = 20_000
"""Elements of the largest tensor that is tried."""

SAMPLES = 4
"""Samples of each operator."""

DTYPES = (torch.float32, torch.bfloat16, torch.int64)

MAY_DECLINE = frozenset(
    f"aten.{name}"
    for name in (
        "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default",
        "adaptive_max_pool2d.default", "avg_pool2d.default", "avg_pool3d.default",
        "convolution.default", "gather.default", "index.Tensor", "index_add.default",
        "index_copy.default", "index_fill.int_Scalar", "index_fill.int_Tensor",
        "index_put.default", "linspace.default", "log_sigmoid_forward.default",
        "native_batch_norm.default", "native_dropout.default", "native_group_norm.default",
        "native_layer_norm.default", "scatter_add.default", "scatter_reduce.two",
        "scatter.src", "scatter.value", "upsample_bilinear2d.default",
        "upsample_bilinear2d.vec", "upsample_nearest1d.default", "upsample_nearest1d.vec",
        "upsample_nearest2d.default", "upsample_nearest2d.vec", "upsample_nearest3d.default",
        "upsample_nearest3d.vec", "upsample_linear1d.default", "upsample_linear1d.vec",
        "upsample_trilinear3d.default", "upsample_trilinear3d.vec",
        "_native_batch_norm_legit.no_stats",
    )
)  # fmt: skip
"""Some of their arguments have no native lowering."""

UNDEFINED = frozenset(
    f"aten.{name}"
    for name in (
        "empty.memory_format", "empty_like.default", "new_empty.default", "empty_strided.default",
        "new_empty_strided.default", "empty_permuted.default",
    )
)  # fmt: skip
"""Their elements are anything."""

NAMES = sorted(
    {
        info.name
        for info in op_db
        if not info.name.startswith(
            ("_refs", "fft", "linalg", "special", "signal", "sparse", "jit")
        )
    }
)


class Comparing(TorchDispatchMode):
    """Checks the rule of every operator that runs."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        if is_comparable(func, args, keywords, result):
            with _disable_current_modes():
                compare(str(func), args, keywords)
        return result


def is_comparable(func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    leaves = tree_leaves((args, kwargs, result))
    if find_rule(str(func)) is None or func._schema.is_mutable or str(func) in UNDEFINED:
        return False
    return not any(isinstance(leaf, complex) for leaf in leaves) and all(
        is_plain(leaf) for leaf in leaves if isinstance(leaf, Tensor)
    )


def is_plain(tensor: Tensor) -> bool:
    try:
        DType.from_torch(tensor.dtype)
    except KeyError:
        return False
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() <= LARGEST


def compare(target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    places = ("layout", "device", "pin_memory", "memory_format")
    keywords = {k: v for k, v in kwargs.items() if k not in places}
    lowered_of_costly(target, *args, **keywords)  # rules decline without harm
    try:
        check(target, *args, **keywords)
    except NotNative:
        assert target in MAY_DECLINE, f"{target} became a library call for {args}, {kwargs}"
    except RuntimeError as error:  # the test takes other ones for the sample's own
        raise AssertionError(f"{target} fails for {args}, {kwargs}") from error


def samples(name: str, dtype: torch.dtype) -> list[Callable[[], Any]]:
    calls: list[Callable[[], Any]] = []
    for info in (info for info in op_db if info.name == name and info.supports_dtype(dtype, "cpu")):
        # Not `info.sample_inputs`, which looks through the stack for a test case of torch's own.
        found = info.sample_inputs_func(info, "cpu", dtype, requires_grad=False)
        for sample in islice(found, SAMPLES):
            bound = (sample.input, *sample.args)
            calls.append(lambda op=info.op, bound=bound, kw=sample.kwargs: op(*bound, **kw))
    return calls


CASES = [(name, dtype) for name in NAMES for dtype in DTYPES]
FEW = [
    (name, dtype)
    for number, name in enumerate(NAMES)
    for dtype in (torch.float32, (torch.bfloat16, torch.int64)[number % 2])
]


@pytest.mark.parametrize(("name", "dtype"), sampled(CASES, FEW))
def test_samples(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    try:
        calls = samples(name, dtype)
    except (RuntimeError, ImportError) as error:
        pytest.skip(str(error))
    for call in calls:
        with torch.no_grad(), Comparing():
            call()

"""Finds out what eager PyTorch refuses, by asking it: torch's shape rules accept more than its
kernels.

`F.gelu` of integers, `var` of integers, a product of two dtypes and a maximum over no elements have
a shape by those rules. Eager PyTorch raises, and so must the compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils._sympy.functions import Max, Min

from stretto.errors import VerifyError
from stretto.frontends.python.tracing.fakes import (
    call_key,
    fake_like,
    known_result,
    mapped,
    remember,
    tensors_of,
)
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.sizes import hint
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, data_dependent_shape, tracer
from stretto.ir.ops import TensorOp
from stretto.ir.types import Dim
from stretto.ops.elements import require_elements, require_positions
from stretto.ops.infer import infer as types_in_program
from stretto.ops.symints import on_fakes, plainly

OF_OPERATORS = (
    RuntimeError, IndexError, ValueError, TypeError, AssertionError, ZeroDivisionError,
    OverflowError,
)  # fmt: skip
"""What torch's shape rules and decompositions raise for arguments that they refuse."""

LARGEST = 1 << 16
"""The most elements, of all tensors together, with which an operator is tried."""

SMALL = 8
"""Dims are shrunk to this size where only dtypes are asked about."""

_ABOUT_DTYPES = (
    "implemented for",
    "dtype",
    "only support",
    "not supported",
    "scalar type",
    "not allowed",
    "without overflow",
    "must not be",
)


def infer(state: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """The fake results of `func`. What eager PyTorch refuses is refused with eager's error."""
    if kwargs.get("generator") is not None:
        kwargs = {**kwargs, "generator": None}  # no shape depends on it
    sizes = state.sizes
    key = call_key(func, args, kwargs, None if func.is_view else sizes.facts())
    if key is not None:
        known = known_result(state.fake_mode, key, sizes.results)
        if known is not None:
            return known

    def fake_of(item: Any) -> Any:
        if isinstance(item, TracedTensor):
            return item.fake
        is_real = isinstance(item, torch.Tensor) and not isinstance(item, FakeTensor)
        return fake_like(state.fake_mode, item) if is_real else item

    given = mapped(fake_of, args)
    named = {name: mapped(fake_of, item) for name, item in kwargs.items()}
    try:
        outputs = faked(state, func, given, named)
    except (DynamicOutputShapeException, DataDependentOutputException):
        raise data_dependent_shape(f"the result of {func}") from None
    except GuardOnDataDependentSymNode:
        raise data_dependent_shape(f"the shape that {func} needs") from None
    except OF_OPERATORS as problem:
        real = eager_error(func, args, kwargs)
        if real is None:
            fail(
                f"torch's rule for the shape of {func} refuses arguments that its kernel takes: "
                f"{str(problem).strip() or type(problem).__name__}",
                "give the operands one dtype, and shapes that broadcast",
            )
        raise real from None
    refused = eager_refusal(func, args, kwargs)
    if refused is not None:
        raise refused
    if key is not None:
        remember(key, outputs, sizes.results)
    return outputs


def faked(state: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """The results of an operator on fake tensors. Where it refuses sizes that it knows nothing of,
    torch may ask what they are: operands may be broadcast."""
    if not state.sizes.are_symbolic:
        outputs = _faked_of_fixed(state, func, args, kwargs)
        return mapped(partial(_simplified, state), outputs) if state.symbols else outputs
    with state.faking():
        require_elements(func, args, kwargs)
        require_positions(func, args, kwargs)
    try:
        with state.sizes.without_small(), state.faking():
            outputs = on_fakes(func, args, kwargs)
    except OF_OPERATORS:
        with state.sizes.deciding(), state.faking():
            outputs = on_fakes(func, args, kwargs)
    return mapped(partial(_simplified, state), outputs)


def _faked_of_fixed(state: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """The same in a capture without symbolic sizes, where data may decide some."""
    try:
        with state.faking():
            return plainly(func, args, kwargs)
    except RuntimeError:
        if not state.symbols:
            raise
        with state.faking():
            return on_fakes(func, args, kwargs)


def _simplified(state: Tracer, item: Any) -> Any:
    """A fake tensor with its sizes as types have them, where torch does not simplify them: it knows
    less of maxima. So the last of at least one elements is 1 element."""
    if not isinstance(item, FakeTensor):
        return item
    sizes: list[Any] = list(item.shape)
    if not any(isinstance(size, torch.SymInt) and _has_maximum(size) for size in sizes):
        return item
    dims = [
        state.dim_of(size.node.expr) if isinstance(size, torch.SymInt) else size for size in sizes
    ]
    known = [dim for dim in dims if dim is not None]
    return _resized(state, item, known) if len(known) == len(dims) else item


def _has_maximum(size: torch.SymInt) -> bool:
    return size.node.expr.has(Max, Min)


def settled(state: Tracer, op: TensorOp, fakes: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of an operator with the sizes that its operands alone tell. Where data decide
    some, torch knows more in a capture: what earlier operators asked for."""
    types = [state.type_of(fake) for fake in fakes]
    if not state.symbols or all(type.is_static for type in types):
        return fakes
    try:
        known = types_in_program(op.target, op.args, op.kwargs)
    except VerifyError as error:
        fail(error.message, "use tensors whose sizes the capture knows")
    return [
        fake if type == wanted else _resized(state, fake, wanted.shape)
        for fake, type, wanted in zip(fakes, types, known, strict=True)
    ]


def _resized(state: Tracer, fake: torch.Tensor, dims: Sequence[Dim]) -> torch.Tensor:
    shape: Any = [state.symbolic_dim(dim) for dim in dims]
    with state.faking():
        strided = torch.empty_strided(shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return strided


def eager_error(func: Any, args: Any, kwargs: Any, largest: int | None = None) -> Exception | None:
    """The error of `func` on real tensors of the same layout, or with dims of at most `largest`.
    Symbolic sizes are those of this capture."""

    def real(item: Any) -> Any:
        if isinstance(item, torch.SymInt):
            return hint(item)
        if not isinstance(item, torch.Tensor):
            return item
        if largest is not None:
            shape = [min(hint(size), largest) for size in item.shape]
            return torch.zeros(shape, dtype=item.dtype, device=item.device)
        like = item.fake if isinstance(item, TracedTensor) else item
        layout = [tuple(map(hint, sizes)) for sizes in (like.shape, like.stride())]
        return torch.empty_strided(*layout, dtype=item.dtype, device=item.device).zero_()

    sizes = (size for item in tensors_of((args, kwargs)) for size in item.shape)
    if any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in sizes):
        return None  # no real tensors have such a shape
    try:
        with tracer().native():
            func(*tree_map(real, args), **tree_map(real, kwargs))
    except Exception as error:  # what eager raises, of whatever class, is the answer
        return error.with_traceback(None)
    return None


def _sizes_among(given: Any, tensors: list[Any]) -> list[torch.SymInt]:
    """The sizes that the call decides, of the tensors and among the other arguments."""
    own = (size for tensor in tensors for size in tensor.shape)
    return [item for item in (*own, *tree_leaves(given)) if isinstance(item, torch.SymInt)]


_known: dict[tuple[Any, ...], Exception | None] = {}


def eager_refusal(func: Any, args: Any, kwargs: Any) -> Exception | None:
    """The error of a call that torch's shape rule accepts: for its dtypes, or for a size of 0."""
    tensors = tensors_of((args, kwargs))
    for tensor in filter(is_lazy, tensors):
        tracer().type_of(tensor)  # refuses it
    sizes = _sizes_among((args, kwargs), tensors)
    if not all(size.node.has_hint() for size in sizes):
        return None  # the size is known at run time only
    if not sizes and any(tensor.numel() == 0 for tensor in tensors):
        if sum(tensor.numel() for tensor in tensors) <= LARGEST:
            return eager_error(func, args, kwargs)
        return None
    dtypes = tuple((tensor.dtype, tensor.dim()) for tensor in tensors)
    kinds = {dtype for dtype, _ in dtypes}
    unfit = _unfit_numbers(func, args, kwargs, kinds)
    is_float = kinds <= {torch.float32} or kinds <= {torch.float64}
    if is_float and not unfit and torch.Tag.pointwise not in func.tags:
        return None
    if not tensors:
        found = eager_error(func, args, kwargs)
        return found if found is not None and _is_about_dtypes(found) else None
    key = (func, dtypes, unfit)
    if key not in _known:
        found = eager_error(func, args, kwargs, SMALL)
        _known[key] = found if found is not None and _is_about_dtypes(found) else None
    return _known[key]


@cache
def _number_parameters(func: Any) -> tuple[tuple[int, str], ...]:
    """Places and names of the parameters that are numbers of any kind."""
    arguments = enumerate(func._schema.arguments)
    return tuple(
        (place, item.name)
        for place, item in arguments
        if any(kind in str(item.type) for kind in ("number", "float"))
    )


def _unfit_numbers(func: Any, args: Any, kwargs: Any, kinds: set[torch.dtype]) -> tuple[Any, ...]:
    """The number arguments that a kernel might refuse because of the dtypes, together with the
    dtype asked for. They are out of range, or a flag among numbers, or a negative exponent."""
    asked = kwargs.get("dtype")
    kinds = kinds | {asked} if isinstance(asked, torch.dtype) else kinds
    found = list[Any]()
    for place, name in _number_parameters(func):
        number = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(number, complex) or (
            isinstance(number, int | float)
            and not all(_fits(number, kind, name == "exponent") for kind in kinds)
        ):
            found.append((name, type(number), repr(number)))
    return (asked, *found) if found else ()


def _fits(number: float, kind: torch.dtype, is_exponent: bool) -> bool:
    if isinstance(number, bool) or kind is torch.bool:
        return isinstance(number, bool) and kind is torch.bool
    if kind.is_complex:
        return True
    if kind.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(kind).max
    if not math.isfinite(number) or (is_exponent and number < 0):
        return False
    return torch.iinfo(kind).min <= number <= torch.iinfo(kind).max


def _is_about_dtypes(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in _ABOUT_DTYPES)

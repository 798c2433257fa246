"""Checks that operators refuse what eager PyTorch refuses, during the capture and in each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from stretto.frontends.python.tracing.symbolic_sizes import hint
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, data_dependent_shape, tracer
from stretto.frontends.python.values.data_dependent_sizes import condition_of_sizes, plain
from stretto.frontends.python.values.raises import check, require
from stretto.frontends.python.values.scalars import concrete, flag_of
from stretto.ir.core import Block
from stretto.ir.failure import Failure
from stretto.ir.ops import IfOp, TensorOp
from stretto.ir.types import Dim, DType
from stretto.ops.infer import infer as types_in_program
from stretto.ops.symints import on_fakes, plainly, require_elements, require_positions

# ---- Finding what eager PyTorch refuses, by trial calls: torch's shape rules accept more than its
# kernels.
#
# `F.gelu` of integers, `var` of integers, a product of two dtypes and a maximum over no elements
# have a shape by those rules. Eager PyTorch raises, and so must the compiled program.


OF_OPERATORS = (
    RuntimeError, IndexError, ValueError, TypeError, AssertionError, ZeroDivisionError,
    OverflowError,
)  # fmt: skip
"""Errors that torch's shape rules and decompositions raise for arguments that they refuse."""

LARGEST = 1 << 16
"""Maximum number of elements, of all tensors together, with which an operator is tried."""

SMALL = 8
"""Dims are shrunk to this size if only dtypes are tested."""

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
    """Return the fake results of `func`. Arguments that eager PyTorch refuses raise
    eager's error."""
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
    """Return the results of an operator on fake tensors. If it refuses unknown sizes, torch may
    decide by their hints: operands may be broadcast."""
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
    """Do the same in a capture without symbolic sizes, where some may be data-dependent."""
    try:
        with state.faking():
            return plainly(func, args, kwargs)
    except RuntimeError:
        if not state.symbols:
            raise
        with state.faking():
            return on_fakes(func, args, kwargs)


def _simplified(state: Tracer, item: Any) -> Any:
    """Return a fake tensor with its sizes as types have them; torch simplifies maxima less, so
    that a slice of the last of at least one elements would not have size 1."""
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
    """Return the results of an operator with the sizes that follow from its operands alone. With
    data-dependent sizes, torch knows more in a capture: the conditions of earlier operators."""
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
    """Return the error of `func` on real tensors of the same layout, or with dims of at most
    `largest`; None if it succeeds or has data-dependent sizes. Symbolic sizes are those of this
    capture."""

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
    except Exception as error:  # any error of eager, of any class, is the result
        return error.with_traceback(None)
    return None


def _sizes_among(given: Any, tensors: list[Any]) -> list[torch.SymInt]:
    """Return the symbolic sizes of the tensors and among the other arguments."""
    own = (size for tensor in tensors for size in tensor.shape)
    return [item for item in (*own, *tree_leaves(given)) if isinstance(item, torch.SymInt)]


_known: dict[tuple[Any, ...], Exception | None] = {}


def eager_refusal(func: Any, args: Any, kwargs: Any) -> Exception | None:
    """Return the error of a call that torch's shape rule accepts: for its dtypes, or for a size of
    0. None if eager accepts it or it cannot be tried."""
    tensors = tensors_of((args, kwargs))
    for tensor in filter(is_lazy, tensors):
        tracer().type_of(tensor)  # raises for a lazy parameter
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
    """Return places and names of the parameters that are numbers of any kind."""
    arguments = enumerate(func._schema.arguments)
    return tuple(
        (place, item.name)
        for place, item in arguments
        if any(kind in str(item.type) for kind in ("number", "float"))
    )


def _unfit_numbers(func: Any, args: Any, kwargs: Any, kinds: set[torch.dtype]) -> tuple[Any, ...]:
    """Return the number arguments that a kernel might refuse because of the dtypes, with the
    requested dtype: out of range, a flag among numbers, or a negative exponent."""
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


# ---- Operators that check values: eager PyTorch's errors become checks of the Program.


aten = torch.ops.aten


def check_storage(layout: Any = None, pin_memory: Any = None, **_: Any) -> None:
    """Fail for options of a new tensor that a program cannot follow."""
    if layout not in (None, torch.strided):
        fail("only dense tensors can be captured", "make it outside of the compiled function")
    if pin_memory:
        fail(
            "a tensor is made in pinned memory, and a program may place it elsewhere",
            "call pin_memory() outside of the compiled function",
        )


_NOT_TRUE = "Expected Tensor with single nonzero value, but got zero"


def check_all(valid: Any, error: str, message: str, values: Any = None) -> None:
    """Stop the run if an element of `valid` is false.

    values: integers of the same shape; the first invalid one replaces the `{}` in the message.
    It is searched only when the check fails.
    """
    if not isinstance(valid, TracedTensor):
        valid = tracer().promote(valid)
    if valid.numel() == 0:
        return
    if values is None:
        check(valid.all(), error, message)
        return
    state = tracer()
    flag = flag_of(valid.all())
    with state.region() as region:
        wrong = torch.logical_not(valid).reshape(-1).to(torch.int64)
        place = torch.argmax(wrong, 0, keepdim=True)
        first: Any = values.reshape(-1).index_select(0, place).to(torch.int64).reshape(())
        failure = Failure(error, message)
        require(state.literal(False, DType.BOOL), failure, state.read(first))
    state.place(IfOp(flag, Block(), region.scope.block), ())


def _equal(one: Any, other: Any) -> bool:
    """Return the Python flag, for code that is not rewritten."""
    return one.shape == other.shape and bool(concrete((one == other).all(), "bool"))


def _all_close(*args: Any, **kwargs: Any) -> bool:
    return bool(concrete(torch.isclose(*args, **kwargs).all(), "bool"))


def _assert_async(condition: Any, message: str = _NOT_TRUE) -> None:
    check(condition, "RuntimeError", message)


def _functional_assert(condition: Any, message: str, token: Any) -> Any:
    check(condition, "RuntimeError", message)
    return token.clone()


def _nll_loss(scores: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    """Check that the classes are in range; the operator is then recorded like any other."""
    classes = scores.shape[1 if scores.dim() > 1 else 0]
    valid = (target >= 0) & (target < classes) | (target == ignored)
    check_all(valid, "IndexError", "Target {} is out of bounds.", target)
    return NotImplemented


def _binary_cross_entropy(probability: Any, *rest: Any, **kwargs: Any) -> Any:
    check_all(
        (probability >= 0) & (probability <= 1),
        "RuntimeError",
        "all elements of input should be between 0 and 1",
    )
    return NotImplemented


def _max_unpool(x: Any, places: Any, size: Any, *rest: Any) -> Any:
    """Check the places in the output volume; `index_put`, which torch decomposes this to, accepts
    others."""
    shown = "x".join(str(extent) for extent in size)
    check_all(
        (places >= 0) & (places < math.prod(size)),
        "RuntimeError",
        f"Found an invalid max index: {{}} (output volumes are of size {shown})",
        places,
    )
    return NotImplemented


def _index_add(x: Any, dim: int, index: Any, source: Any, **kwargs: Any) -> Any:
    """Check the shape of the source, which torch's own rule does not."""
    shapes = [list(item.shape) for item in (x, source)]
    if any(isinstance(size, torch.SymInt) for shape in shapes for size in shape):
        return NotImplemented
    own, other = (
        shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :] if shape else []
        for shape in shapes
    )
    if x.dim() and own != other:
        refused = eager_error(aten.index_add.default, (x, dim, index, source), kwargs)
        if refused is not None:
            raise refused
    return NotImplemented


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Check the shape of the values, which torch's own rule does not. The number of elements that
    a mask selects is known only at run time: the selection checks it."""
    if any(item is not None and item.dtype in (torch.bool, torch.uint8) for item in indices):
        return NotImplemented
    state = tracer()
    wanted = infer(state, aten.index.Tensor, (x, indices), {}).shape
    wanted = (*[1] * (values.dim() - len(wanted)), *wanted)
    pairs = list(zip(reversed(values.shape), reversed(wanted), strict=False))
    if all(str(state.dim(size)) in ("1", str(state.dim(other))) for size, other in pairs):
        return NotImplemented
    refused = eager_error(aten.index_put.default, (x, indices, values), {"accumulate": accumulate})
    if refused is not None:
        raise refused
    if not all(size == 1 or size == other for size, other in pairs):  # adds guards on sizes
        fail(
            f"values of shape {list(values.shape)} are assigned to a selection of shape "
            f"{list(wanted)}",
            "give as many values as are selected",
        )
    return NotImplemented


def _check_sizes(condition: Any, message: str) -> None:
    """Stop with a RuntimeError unless a condition on sizes holds: outside of arms of branches on
    sizes it is a guard."""
    state = tracer()
    if isinstance(condition, torch.SymBool) and not state.sizes.calls.is_outside:
        found = condition_of_sizes(state, condition)
        condition = condition if found is None else found
    check(plain(condition), "RuntimeError", message)


def _unfold(x: Any, dim: int, size: Any, step: Any) -> Any:
    """Check the size of the windows, which torch's own rule does not if sizes decide it."""
    _check_sizes(size >= 0, "the size of windows must be >= 0")
    return NotImplemented


def _reshape(x: Any, shape: Any) -> Any:
    """Check that no size beside -1 is 0. Guards that only sizes of 0 break are left out where torch
    decides if the result is a view."""
    if any(isinstance(size, int) and size == -1 for size in shape):
        for size in shape:
            _check_sizes(size != 0, "a size of -1 is ambiguous beside a size of 0")
    return NotImplemented


def _reflection_pad(x: Any, padding: Any) -> Any:
    """Check the sizes and the widths of the border, which torch's decomposition does not."""
    for size in x.shape[-1 - len(padding) // 2 :]:
        _check_sizes(size != 0, "Expected non-zero dimensions for input")
    for place, width in enumerate(padding):
        message = "Padding size should be less than the corresponding input dimension"
        _check_sizes(width < x.shape[-1 - place // 2], message)
    return NotImplemented


def check_classes(index: Any, classes: int) -> None:
    """Emit the checks of `one_hot`."""
    check_all(index >= 0, "RuntimeError", "Class values must be non-negative.")
    check_all(index < classes, "RuntimeError", "Class values must be smaller than num_classes.")


RULES: dict[Any, Callable[..., Any]] = {
    aten.equal.default: _equal,
    aten.allclose.default: _all_close,
    aten._assert_async.default: _assert_async,
    aten._assert_async.msg: _assert_async,
    aten._functional_assert_async.msg: _functional_assert,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten.max_unpool2d.default: _max_unpool,
    aten.max_unpool3d.default: _max_unpool,
    aten.index_add.default: _index_add,
    aten.unfold.default: _unfold,
    aten.view.default: _reshape,
    aten.reshape.default: _reshape,
    aten.reflection_pad1d.default: _reflection_pad,
    aten.reflection_pad2d.default: _reflection_pad,
    aten.reflection_pad3d.default: _reflection_pad,
    aten.index_put.default: _index_put,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
}

"""torch calls whose arguments are sizes: a traced number becomes a dim of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from stretto.errors import OnlyInPython
from stretto.frontends.python.lists import sources
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.signals import Abort, abort, fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import (
    bounded_dim,
    dim_of,
    is_decided,
    is_integer,
    plain,
)
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import cast_number, number_kind, to_number

_MADE = [
    "zeros",
    "ones",
    "empty",
    "full",
    "eye",
    "rand",
    "randn",
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_full",
]
_SEEN = ["expand", "view", "reshape", "repeat", "tile", "unflatten", "broadcast_to"]
_PIECES = ["split", "split_with_sizes"]

_NEGATIVE = "Trying to create tensor with negative dimension {}"
_INFERRED = "a size computed by the run is {}; -1 is allowed only if it is written in the code"
_STEP_SIGN = "upper bound and lower bound inconsistent with step sign"
_PIECE = "split_with_sizes expects split_sizes have only non-negative entries, but got {}"

_MESSAGES = {
    **dict.fromkeys(_MADE, _NEGATIVE),
    **dict.fromkeys(_SEEN, _INFERRED),
    **dict.fromkeys(_PIECES, _PIECE),
}
"""torch functions and methods that take sizes, with their error message for a negative one."""

_FILLS = {"full": 1, "new_full": 2}
"""Position of the first argument that is not a size; for methods the tensor counts as
argument 0."""


def with_sizes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replace traced numbers that are sizes by dims in the arguments of a torch call."""
    name = getattr(function, "__name__", "")
    message = _MESSAGES.get(name)
    if message is None or not _is_of_torch(function):
        return args, kwargs
    end = _FILLS.get(name, len(args) + 1) - isinstance(
        getattr(function, "__self__", None), torch.Tensor
    )
    sized = tuple(_dims(item, message) if at < end else item for at, item in enumerate(args))
    named = {k: _dims(v, message) if k in _KEYWORDS else v for k, v in kwargs.items()}
    owner = getattr(function, "__self__", None)
    given: Any = args[0] if args else kwargs.get("input")
    x = owner if isinstance(owner, torch.Tensor) else given
    if name in ("view", "reshape"):
        sized = _with_inferred(x, sized)
        named = {k: _inferred(x.shape, v) if k == "shape" else v for k, v in named.items()}
    elif name == "unflatten":
        *rest, dim, sizes = *sized, *(named[key] for key in ("dim", "sizes") if key in named)
        if any(map(is_decided, sizes)):
            rest = [item for item in rest if item is not x]
            sizes = _inferred(x.shape[dim : dim + 1 or None], sizes)
            return ((*rest, dim, sizes), {}) if x is owner else ((x, *rest, dim, sizes), {})
    return sized, named


def _with_inferred(x: torch.Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace -1 by a computed size in the arguments of `view` or `reshape` if data decide another
    size."""
    given = tuple(arg for arg in args[:1] if arg is x)
    sizes = args[len(given) :]
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        return (*given, _inferred(x.shape, sizes[0]))
    return (*given, *_inferred(x.shape, sizes))


def _inferred(shape: Any, sizes: Any) -> Any:
    """Return `sizes`, into which dims of `shape` are regrouped, with -1 replaced by a computed
    dim."""
    if not any(map(is_decided, sizes)) or not any(_is_inferred(size) for size in sizes):
        return sizes
    rest, count = plain(1), plain(1)
    for size in sizes:
        rest = rest if _is_inferred(size) else rest * plain(size)
    for size in shape:
        count = count * plain(size)
    missing = to_number(count // torch.clamp(rest, min=1))
    shown = ", ".join("-1" if _is_inferred(size) else "{}" for size in sizes)
    is_one = shown.count("{}") == 1
    message = f"shape '[{shown if is_one else '...'}]' is invalid for input of size "
    message += str(count) if isinstance(count, int) else "that the run has"
    fits = (rest > 0) & (missing * rest == count)
    check(fits, "RuntimeError", message, tracer().read(rest) if is_one else None)
    dim = bounded_dim(missing, 0, math.prod(shape))
    return type(sizes)([dim if _is_inferred(size) else size for size in sizes])


def _is_inferred(size: Any) -> bool:
    return isinstance(size, int) and size == -1


_KEYWORDS = ("size", "sizes", "shape", "split_size_or_sections", "split_size", "repeats", "n", "m")


def _is_of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.Tensor):
        return True
    module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
    return str(module).split(".")[0] in ("torch", "_VariableFunctionsClass", "_TensorBase")


def size(entries: Any = ()) -> Any:
    """`torch.Size` whose traced entries become dims."""
    if not isinstance(entries, tuple | list) or not any(map(is_integer, entries)):
        return NotImplemented
    return torch.Size(_dims(tuple(entries), _NEGATIVE))


def count_of_size(size: torch.Size) -> Any:
    """`torch.Size.numel` if data decide one of the sizes."""
    return math.prod(size) if any(map(is_decided, size)) else NotImplemented


def _dims(item: Any, message: str) -> Any:
    if isinstance(item, tuple | list) and any(map(is_integer, item)):
        return type(item)([_dims(part, message) for part in item])
    error = OnlyInPython if message is _INFERRED else RuntimeError
    return dim_of(item, message, error=error) if is_integer(item) else item


def arange(*args: Any, **kwargs: Any) -> Any:
    """`torch.arange` with traced bounds."""
    if not any(isinstance(arg, TracedTensor) for arg in (*args, *kwargs.values())):
        return NotImplemented
    options = {key: kwargs.pop(key) for key in ("dtype", "device") if key in kwargs}
    bounds = [*args, *(kwargs.pop(key) for key in ("start", "end", "step") if key in kwargs)]
    kinds = {number_kind(bound) for bound in bounds}
    if not kinds <= {int, float} or kwargs:
        return NotImplemented
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if isinstance(step, TracedTensor) or step == 0:
        return NotImplemented
    if float in kinds:
        if not (options.get("dtype") or torch.float32).is_floating_point:
            return NotImplemented
        return _range_of_floats(start, stop, step, options)
    if isinstance(start, int) and start == 0 and step > 0:
        distance = stop
    else:
        distance = (stop - start) if step > 0 else (start - stop)
    check(distance >= 0, "RuntimeError", _STEP_SIGN)
    length: Any = distance if abs(step) == 1 else (distance + (abs(step) - 1)) // abs(step)
    count: Any = bounded_dim(length)
    counted: Any = torch.arange(count, device=options.get("device"))
    counted = counted if step == 1 else counted * step
    counted = counted if isinstance(start, int) and start == 0 else counted + start
    return counted.to(options["dtype"]) if options.get("dtype") is not None else counted


def _range_of_floats(start: Any, stop: Any, step: Any, options: dict[str, Any]) -> Any:
    """`torch.arange` with a float bound: computed in double precision, as torch does, and
    converted last."""
    distance = to_number((stop - start) / step)
    check(torch.isfinite(distance), "RuntimeError", "unsupported range")
    check(distance >= 0, "RuntimeError", _STEP_SIGN)
    count: Any = bounded_dim(cast_number(torch.ceil(distance), int))
    counted = torch.arange(count, device=options.get("device")).to(torch.float64) * step + start
    return counted.to(options.get("dtype") or torch.get_default_dtype())


def linspace(start: Any, end: Any, steps: Any, **options: Any) -> Any:
    """`torch.linspace` with a size of the call as `steps`, which the operator does not accept."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    numbers = all(isinstance(number, int | float | torch.SymInt) for number in (start, end))
    known = options.keys() <= {"dtype", "device"} and dtype.is_floating_point
    if not (isinstance(steps, torch.SymInt) and numbers and known) or is_decided(steps):
        return NotImplemented
    return _numbers_between(start, end, steps, options)


def _numbers_between(start: Any, end: Any, steps: Any, options: dict[str, Any]) -> Any:
    first, last = (torch.full((), number, **options) for number in (start, end))
    if steps == 1:
        return first.reshape(1)
    step = (last - first) / (steps - 1)
    places: Any = torch.arange(steps, device=options.get("device"))
    rising, falling = first + step * places, last - step * (steps - 1 - places)
    return torch.where(places < steps // 2, rising, falling)


def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> Any:
    """`torch.logspace` with a size of the call as `steps`."""
    powers = linspace(start, end, steps, **options)
    return powers if powers is NotImplemented else torch.pow(base, powers)


def narrow(input: Any, dim: int, start: Any, length: Any) -> Any:
    """`Tensor.narrow` with a traced length; checks that the part is inside of the tensor."""
    if not is_integer(length) and not is_decided(length):
        return NotImplemented
    state = tracer()
    x = input if isinstance(input, TracedTensor) else state.promote(input)
    dim %= x.dim()
    size, length = plain(x.shape[dim]), plain(length)
    start = (
        torch.where(start < 0, start + size, start) if isinstance(start, TracedTensor) else start
    )
    if isinstance(start, int) and start < 0:
        start = start + size
    message = "narrow(): length must be non-negative."
    check(length >= 0, "RuntimeError", message)
    message = "start and length of a part exceed the dimension size ({})"
    shown = state.read(size) if isinstance(size, TracedTensor) else None
    is_inside = (start + length <= size) & (start >= 0)
    check(is_inside, "RuntimeError", message if shown else message.format(size), shown)
    slices: list[Any] = [slice(None)] * dim
    return x[(*slices, slice(start, start + length))]


def split(*args: Any, **kwargs: Any) -> Any:
    """`torch.split` with a traced length: the pieces, to loop over; the last may be shorter."""
    given: dict[str, Any] = dict(zip(("x", "size", "dim"), args, strict=False))
    given |= {_SPLIT_NAMES.get(name, name): value for name, value in kwargs.items()}
    x, size, dim = given.get("x"), given.get("size"), given.get("dim", 0)
    if not isinstance(x, torch.Tensor):
        return NotImplemented
    if not (is_integer(size) or is_decided(size)):
        return sources.split(x, size, dim)
    whole, length = plain(x.shape[dim]), plain(size)
    check(length >= 0, "RuntimeError", "split expects split_size be non-negative")
    message = "split_size can only be 0 if dimension size is 0"
    check((length > 0) | (plain(whole) == 0), "RuntimeError", message)
    step = torch.clamp(length, min=1)
    count = torch.clamp((whole + (step - 1)) // step, min=1)
    before: list[Any] = [slice(None)] * (dim % x.dim())

    def piece(index: Any) -> Any:
        start = index * step
        return x[(*before, slice(start, start + step))]

    assert isinstance(count, TracedTensor)
    reason = "the number of pieces depends on the content of a tensor"
    unpacked = abort(reason, "use masks, or a for loop over the pieces")
    return _SplitParts(to_number(count), piece, unpacked)


@dataclass(frozen=True, eq=False)
class _SplitParts(Indexed):
    """Pieces whose number only the run knows: they can be looped over but not unpacked."""

    unpacked: Abort

    def __iter__(self) -> Iterator[Any]:
        raise self.unpacked


_SPLIT_NAMES = {
    "input": "x",
    "tensor": "x",
    "split_size": "size",
    "split_size_or_sections": "size",
}


def topk(
    input: Any,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out: Any = None,
) -> Any:
    """`torch.topk` with a traced `k`: the first `k` elements of the sorted dim."""
    if out is not None or (not is_integer(k) and not is_decided(k)):
        return NotImplemented
    x, k = input, plain(k)
    size = plain(x.shape[dim])
    is_inside = (k >= 0) & (k <= size)
    check(is_inside, "RuntimeError", "selected index k out of range")
    values, places = torch.sort(x, stable=True, dim=dim, descending=largest)
    part: tuple[Any, ...] = (*[slice(None)] * (dim % x.dim()), slice(None, k))
    found = [item[part].clone(memory_format=torch.contiguous_format) for item in (values, places)]
    return torch.return_types.topk(found)  # pyright: ignore


def pad(input: Any, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """`F.pad` by traced amounts; negative ones cut."""
    is_decided_in_run = any(is_integer(amount) or is_decided(amount) for amount in pad)
    if not is_decided_in_run or len(pad) % 2 or len(pad) > 2 * input.dim():
        return NotImplemented
    if mode != "constant":
        fail(
            f"a tensor is padded in mode '{mode}' by an amount that depends on a tensor",
            "pad by a constant value, or by a number that Python knows",
        )
    amounts, x = list(map(plain, pad)), input
    for number, pair in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if not all(isinstance(amount, int) and amount == 0 for amount in pair):
            x = _padded(x, input.dim() - 1 - number, *pair, 0 if value is None else value)
    return x


def _padded(x: Any, dim: int, before: Any, after: Any, value: float) -> Any:
    """Pad one dim of a tensor."""
    size: Any = plain(x.shape[dim])
    first = _at_least_zero(-before)
    last = size - _at_least_zero(-after)
    is_inside = (last >= first) & (first <= size)
    check(is_inside, "RuntimeError", "narrow(): length must be non-negative.")
    every: list[Any] = [slice(None)] * dim

    def filled(amount: Any) -> list[Any]:
        amount = _at_least_zero(amount)
        if isinstance(amount, int) and not amount:
            return []
        length: Any = bounded_dim(to_number(amount)) if not isinstance(amount, int) else amount
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        return [torch.full(shape, value, dtype=x.dtype, device=x.device)]

    kept = (
        x
        if isinstance(first, int) and first == 0 and last is size
        else x[(*every, slice(first, last))]
    )
    pieces = [*filled(before), kept, *filled(after)]
    return torch.cat(pieces, dim) if len(pieces) > 1 else kept.clone()


def _at_least_zero(amount: Any) -> Any:
    return max(amount, 0) if isinstance(amount, int) else torch.clamp(amount, min=0)


def select(input: Any, dim: Any, index: Any) -> Any:
    """`Tensor.select` at a traced position."""
    if not isinstance(index, TracedTensor) or not isinstance(dim, int):
        return NotImplemented
    x = input
    if not -x.dim() <= dim < x.dim():
        return NotImplemented  # the call itself says why
    every = (slice(None),) * (dim % x.dim())
    return x[(*every, index)]


def squeeze(input: Any, dim: Any = None) -> Any:
    """`torch.squeeze` of a dim whose size data decide: a branch on that size being 1, since the
    result then has one dim less."""
    dim = int(dim) if isinstance(dim, torch.SymInt) else dim
    given = range(input.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    dims = [one % max(1, input.dim()) for one in given]
    decided = next(
        (one for one in dims if one < input.dim() and is_decided(input.shape[one])), None
    )
    if decided is None:
        return NotImplemented
    rest = [one for one in dims if one != decided]
    lower = [one - (one > decided) for one in rest]
    return Hooks.python.branch(
        plain(input.shape[decided]) == 1,
        lambda: Hooks.call(torch.squeeze, input.select(decided, 0), lower),
        lambda: Hooks.call(torch.squeeze, input, rest),
    )


Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {
    torch.arange: arange,
    torch.linspace: linspace,
    torch.logspace: logspace,
    torch.narrow: narrow,
    torch.select: select,
    torch.squeeze: squeeze,
    torch.topk: topk,
    torch.split: split,
    F.pad: pad,
    torch.Size: size,
}
METHODS: dict[str, Rule] = {
    "narrow": narrow,
    "select": select,
    "squeeze": squeeze,
    "topk": topk,
    "split": split,
}
"""Rules for tensor methods; the tensor is the first argument."""

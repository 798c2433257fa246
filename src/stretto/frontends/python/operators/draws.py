"""Random numbers, drawn from torch's own generators in program order.

In eager PyTorch it depends on the strides of a tensor which element gets which number: memory is
filled from its start, and a kernel for memory without gaps may draw in another way. A Program has
value semantics, so a fill is recorded with the strides that the tensor has in eager PyTorch.
"""

# pyright: reportPrivateUsage=false
# generators are compared by their address

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stretto.frontends.python.operators.checks import eager_refusal, infer
from stretto.frontends.python.operators.functional import overwrite, written_by
from stretto.frontends.python.tracing.fakes import tensors_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.ir.ops import Argument, TensorOp
from stretto.ops.effects import generator_name

aten = torch.ops.aten

_NEW = {
    "aten::rand": "aten.uniform_.default",
    "aten::rand_like": "aten.uniform_.default",
    "aten::randn": "aten.normal_.default",
    "aten::randn_like": "aten.normal_.default",
    "aten::randint": "aten.random_.from",
    "aten::randint_like": "aten.random_.from",
    "aten::normal": "aten.normal_.default",
    "aten::bernoulli": "aten.bernoulli_.float",
}
"""Operators that create a random tensor, with the operator that fills it."""

_OVERLOADS = {"aten::normal": ("float_float",), "aten::bernoulli": ("p",)}
"""Overloads that only fill, for operators whose other overloads do more."""

_NUMBERS = ("from", "low", "to", "high", "mean", "std", "p", "lambd", "median", "sigma")
"""Names of the parameters that are numbers, in the order in which filling takes them."""

_BY_ELEMENT = frozenset(
    (aten.bernoulli.default, aten.poisson.default, aten.binomial.default,
     aten._standard_gamma.default, aten.normal.Tensor_float, aten.normal.float_Tensor,
     aten.normal.Tensor_Tensor)
)  # fmt: skip
"""Operators that draw in the order of their result, which has no gaps, for any strides of
operands."""


def check_device(func: Any, args: Any, kwargs: Any) -> None:
    """Raise Abort for generators that are not the CPU's."""
    wanted = kwargs.get("device") or torch.get_default_device()
    devices = {tensor.device.type for tensor in tensors_of((args, kwargs))} or {
        torch.device(wanted).type
    }
    if devices != {"cpu"}:
        fail(
            f"{func} draws random numbers on {' and '.join(sorted(devices))}",
            "draw them on the CPU and move them, or pass the random tensor as an argument",
        )


def check_order(func: Any, args: Any, kwargs: Any) -> None:
    """Raise Abort if the order of the draws depends on strides that a program does not keep."""
    if func in _BY_ELEMENT:
        return
    for tensor in tensors_of((args, kwargs)):
        fake = tensor.fake if isinstance(tensor, TracedTensor) else tensor
        if _is_open(tensor) or not fake.is_contiguous():
            fail(
                f"the order in which {func} draws random numbers depends on the strides of its "
                "operands",
                "call contiguous() on them before",
            )
    _watch_strides(args, kwargs)


def fill(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operator that only fills memory; NotImplemented for others."""
    schema = func._schema
    if schema.is_mutable:
        numbers = _numbers(func, args, kwargs)
        if numbers is None:
            return NotImplemented
        refused = eager_refusal(func, args, kwargs)
        if refused is not None:
            raise refused
        (target,) = written_by(func, args, kwargs)
        fake = target.fake if isinstance(target, TracedTensor) else target
        _check_known(func, target)
        _watch_strides(args, kwargs)
        overwrite(target, _emit(str(func), fake, numbers, kwargs))
        return target
    operator = _NEW.get(schema.name)
    if operator is None or func._overloadname not in _OVERLOADS.get(
        schema.name, (func._overloadname,)
    ):
        return NotImplemented
    numbers = _numbers(func, args, kwargs)
    if numbers is None:
        return NotImplemented
    for tensor in tensors_of((args, kwargs)):
        _check_known(func, tensor)
    _watch_strides(args, kwargs)
    if operator == "aten.random_.from" and len(numbers) == 1:
        numbers = (0, *numbers)
    plain, named = without_generator(func, kwargs)
    fake = infer(tracer(), plain, args, named)
    return _emit(operator, fake, numbers, kwargs)


def without_generator(func: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the overload and keywords without the generator. Overloads with a generator require
    one, and torch's shape rules for them do not support symbolic sizes."""
    words = [word for word in func._overloadname.split("_") if word != "generator"]
    plain = getattr(func.overloadpacket, "_".join(words) or "default", func)
    if plain is func:
        return func, kwargs
    return plain, {name: item for name, item in kwargs.items() if name != "generator"}


def name_of(generator: torch.Generator) -> str:
    """Return the name of a generator passed to an operator. Raises Abort for one created in the
    function."""
    known = next((item for item in _generators() if _address(item) == _address(generator)), None)
    if known is None:
        fail(
            "random numbers are drawn from a generator that is made in the compiled function",
            "make it outside, and pass it as an argument",
        )
    return generator_name(known)


def is_default(generator: torch.Generator | None) -> bool:
    """True for the generator that operators use if none is given."""
    return generator is None or _address(generator) == _address(torch.default_generator)


def _address(generator: Any) -> int:
    return generator._cdata


def _generators() -> Iterator[torch.Generator]:
    """Yield the generators that existed before the call. Operators receive other Python objects
    for them."""
    return (item for item in tracer().heap.seen.values() if isinstance(item, torch.Generator))


def seed(number: Any, generator: Any = None) -> None:
    """Record that a generator is seeded."""
    state = tracer()
    named = () if is_default(generator) else (("generator", name_of(generator)),)
    value = state.read(number) if isinstance(number, TracedTensor) else int(number)
    state.emit(TensorOp("stretto.manual_seed.default", (value,), named), ())


def _dropout(feature: bool, alpha: bool, in_place: bool) -> Callable[..., Any]:
    """Return the rule of a dropout as ATen computes it on the CPU, from one draw per element or
    channel."""

    def rule(value: Any, p: float, train: bool) -> Any:
        if not 0 <= p <= 1:
            raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p:g}")
        if not train or p == 0 or value.numel() == 0:
            return value
        times = torch.Tensor.mul_ if in_place else torch.Tensor.mul
        if p == 1:
            return times(value, value.new_zeros(()))
        if feature and value.dim() < 2:
            raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
        shape = (*value.shape[:2], *(1 for _ in value.shape[2:]))
        noise = value.new_empty(shape) if feature else torch.empty_like(value)
        noise = noise.bernoulli_(1 - p)
        if not alpha:
            return times(value, noise.div_(1 - p))
        scale = 1.0 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
        shift = noise.add(-1).mul_(_ALPHA * scale).add_(_ALPHA * scale * p)
        product = times(value, noise.mul_(scale))
        return product.add_(shift) if in_place else product + shift

    return rule


_ALPHA = 1.7580993408473766

DROPOUTS = {
    getattr(aten, f"{'feature_' * feature}{'alpha_' * alpha}dropout{'_' * in_place}").default: (
        _dropout(feature, alpha, in_place)
    )
    for feature in (False, True)
    for alpha in (False, True)
    for in_place in (False, True)
}


def _emit(operator: str, fake: torch.Tensor, numbers: tuple[Any, ...], kwargs: Any) -> TracedTensor:
    state = tracer()
    shape, strides = tuple(fake.shape), tuple(fake.stride())
    given = kwargs.get("generator")
    named: list[tuple[str, Argument]] = [("dtype", fake.dtype)]
    if not is_default(given):
        named.append(("generator", name_of(given)))
    args = (operator, _sizes(state, shape), _sizes(state, strides), numbers)
    op = TensorOp("stretto.random_fill.default", args, tuple(named))
    (value,) = state.emit(op, (state.type_of(fake),))
    return state.fresh(value, fake)


def _sizes(state: Tracer, sizes: tuple[Any, ...]) -> tuple[Argument, ...]:
    return tuple(map(state.dim, sizes))


def _numbers(func: Any, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """Return the numbers that an operator fills with, or None if it does more than fill."""
    found = dict[str, Any]()
    for place, item in enumerate(func._schema.arguments):
        given = args[place] if place < len(args) else kwargs.get(item.name, item.default_value)
        if item.name in _NUMBERS and not isinstance(given, torch.Tensor):
            is_size = isinstance(given, torch.SymInt)
            found[item.name] = tracer().dim(given) if is_size else given
        elif isinstance(given, torch.Tensor) and item.name != "self":
            return None
    return tuple(found[name] for name in _NUMBERS if found.get(name) is not None)


def _watch_strides(args: Any, kwargs: Any) -> None:
    """Make the program valid only for inputs with these strides."""
    if tensors_of((args, kwargs)):
        tracer().writes = True


def _is_open(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, TracedTensor) and tensor.memory.any_layout and tensor.numel() > 1


def _check_known(func: Any, tensor: torch.Tensor) -> None:
    if _is_open(tensor):
        fail(
            f"{func} draws random numbers in the order of memory, and the strides of the tensor "
            "are known at run time only",
            "call contiguous() on it before",
        )

"""Arguments of torch functions: NumPy names, bools, and numbers known only at run time."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache, partial
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from stretto.errors import StrettoError
from stretto.frontends.python.operators.decompositions import batch_norm
from stretto.frontends.python.tracing.locations import package_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import data_dependent_shape, tracer
from stretto.frontends.python.values.data_dependent_sizes import is_decided, plain
from stretto.frontends.python.values.number_methods import kind_of_number
from stretto.frontends.python.values.raises import is_of_library
from stretto.frontends.python.values.scalars import is_number, number_kind

# ---- Argument names of functions that have rules.


OF_NUMPY = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
}
"""NumPy's names of arguments, and torch's names for them. torch's argument parser accepts both:
`numpy_compatibility_arg_names` in torch/csrc/utils/python_arg_parser.cpp."""


def names_of_torch(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call with NumPy's names replaced by torch's."""
    if kwargs.keys().isdisjoint(OF_NUMPY) or not is_parsed_by_torch(function):
        return kwargs
    return {OF_NUMPY.get(name, name): item for name, item in kwargs.items()}


def is_parsed_by_torch(function: Any) -> bool:
    """Return True for C functions whose arguments are read by torch's own parser."""
    if isinstance(function, types.MethodDescriptorType):
        return function.__objclass__ in torch.Tensor.__mro__[:-1]  # all but `object`
    if not isinstance(function, types.BuiltinFunctionType):
        return False
    functions = torch._C._VariableFunctions  # pyright: ignore
    is_function = getattr(functions, function.__name__, None) is function
    is_inner = str(function.__module__).startswith("torch._C._")
    return is_function or is_inner or isinstance(function.__self__, torch.Tensor)


def takes(rule: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return True if a rule accepts these keyword names. If not, the function itself is called and
    reports the error."""
    if not kwargs:
        return True
    names = _parameters(rule.func if isinstance(rule, partial) else rule)
    return names is None or kwargs.keys() <= names


@lru_cache(1024)
def _parameters(rule: Any) -> frozenset[str] | None:
    """Return the parameter names of a rule, or None if it accepts any keyword."""
    parameters = inspect.signature(rule).parameters.values()
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return None
    return frozenset(item.name for item in parameters)


# ---- Keyword arguments of torch that must be Python bools, such as `is_causal`.
#
# A flag that is known only at run time cannot be passed there, so the call becomes a branch with
# one call in each arm.


def with_flags(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Resolve conditions on sizes among the keyword arguments of a call.

    Conditions on sizes known at the call become bools, settled by guards. Conditions on sizes
    that data decide become traced flags where the function accepts Python bools only.
    """
    asked = [name for name, item in kwargs.items() if isinstance(item, torch.SymBool)]
    if not asked:
        return kwargs
    known = _switches(getattr(function, "__name__", ""))
    flags = {name: _flag(kwargs[name], is_known=name in known) for name in asked}
    return {**kwargs, **flags}


def _flag(condition: torch.SymBool, *, is_known: bool) -> Any:
    if not is_decided(condition):
        return bool(condition)
    return plain(condition) if is_known else condition


def switch_of(function: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Return the first keyword argument that is a traced flag if the torch function accepts only a
    Python bool for it; else None."""
    for name, item in kwargs.items():
        if is_number(item) and item.dtype is torch.bool:
            known = _switches(getattr(function, "__name__", ""))
            return name if name in known else None
    return None


@cache
def _switches(function: str) -> frozenset[str]:
    """Return the parameters of an ATen operator that are bools in every overload that has them."""
    packet = getattr(torch.ops.aten, function, None)
    overloads = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    types = [
        (item.name, str(item.type))
        for overload in overloads
        for item in overload._schema.arguments  # pyright: ignore[reportPrivateUsage]
    ]
    others = {name for name, kind in types if kind not in ("bool", "Optional[bool]")}
    return frozenset(name for name, _ in types) - others


# ---- Numeric arguments of torch functions that are known only at run time.
#
# torch's parser needs the values of such Python numbers. These rules make them operands of the
# program: a factor `alpha` or `value` becomes a product, the shifts of `roll` become positions, and
# the momentum of batch norm becomes a number in its decomposition.


Rule = Callable[..., Any]


# ---- factors -------------------------------------------------------------------------------------


def _with_alpha(name: str) -> Rule:
    """Return a rule for `add` or `sub` with a traced `alpha`, the factor of the second operand."""
    function = getattr(torch.Tensor, name)

    def rule(input: Any, other: Any, *, alpha: Any = 1) -> Any:
        if not is_number(alpha):
            return NotImplemented
        if number_kind(alpha) is float and not _has_floats(input, other):
            raise RuntimeError(
                "For integral input tensors, argument alpha must not be a floating point number."
            )
        tensors = (item for item in (input, other) if isinstance(item, torch.Tensor))
        if number_kind(alpha) is bool and any(item.dtype != torch.bool for item in tensors):
            raise RuntimeError("Boolean alpha only supported for Boolean results.")
        return function(input, _of_both(other, input) * alpha)

    return rule


def _of_both(factor: Any, input: Any) -> Any:
    """Convert a factor to the result type of both operands, in which torch computes; numbers are
    left alone."""
    tensors = [item for item in (factor, input) if isinstance(item, torch.Tensor)]
    if len(tensors) < 2 or any(map(is_number, tensors)):
        return factor
    return factor.to(torch.result_type(input, factor))


def _has_floats(*operands: Any) -> bool:
    tensors = (item for item in operands if isinstance(item, torch.Tensor))
    return any(item.dtype.is_floating_point for item in tensors)


def _with_value(name: str) -> Rule:
    """Return a rule for `addcmul` or `addcdiv` with a traced `value`, the factor of the product."""
    function = getattr(torch.Tensor, name)

    def rule(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
        if not is_number(value):
            return NotImplemented
        return function(input, _of_both(tensor1, input) * value, tensor2)

    return rule


_FACTORS = {
    **dict.fromkeys(("add", "add_", "sub", "sub_", "subtract", "subtract_"), _with_alpha),
    **dict.fromkeys(("addcmul", "addcmul_", "addcdiv", "addcdiv_"), _with_value),
}


# ---- roll ----------------------------------------------------------------------------------------


def _roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """`torch.roll` with traced shifts: select each element from its source position."""
    every = tuple(shifts) if isinstance(shifts, list | tuple) else (shifts,)
    if not any(isinstance(shift, TracedTensor) for shift in every):
        return NotImplemented
    if dims is None or dims == ():
        return _roll(input.flatten(), shifts, 0).reshape(input.shape)
    places = tuple(dims) if isinstance(dims, list | tuple) else (dims,)
    if len(places) != len(every):
        return NotImplemented
    for shift, dim in zip(every, places, strict=True):
        size = input.shape[dim]
        positions = torch.arange(size, device=input.device)
        input = input.index_select(dim, torch.remainder(positions - shift, size))
    return input


# ---- batch norm ----------------------------------------------------------------------------------


def _batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not is_number(momentum):
        return NotImplemented
    if training:
        F._verify_batch_size(input.size())  # pyright: ignore
    return _batch_norm_of_torch(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


def _batch_norm_of_torch(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    training: bool, momentum: Any, eps: float, cudnn_enabled: bool = False,
) -> Any:  # fmt: skip
    if not is_number(momentum):
        return NotImplemented
    with tracer().running_natively():
        return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


METHODS: dict[str, Rule] = {name: made(name) for name, made in _FACTORS.items()} | {"roll": _roll}
"""Rules for tensor methods; the tensor is the first argument."""
RULES: dict[Any, Rule] = {
    **{getattr(torch, name): rule for name, rule in METHODS.items() if hasattr(torch, name)},
    F.batch_norm: _batch_norm,
    torch.batch_norm: _batch_norm_of_torch,
}


# ---- Checks that torch functions accept Python numbers where traced ones are passed.
#
# torch sees a traced number as a 0-dim tensor and would accept it in places where it refuses a
# Python number. So the function's own parser is run on Python numbers of the same types, and is
# stopped before anything is computed. torch functions written in Python are checked by their
# annotations.


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_CONTAINERS = (list, tuple)
_ARITHMETIC = (
    *("add", "div", "divide", "floor_divide", "mul", "multiply", "sub", "subtract"),
    "true_divide",
)
"""torch functions that make a tensor from two numbers."""
_OF_A_DIM = ("max", "min")
"""Functions that also accept a tensor in the position of `dim`."""
_CONSTRUCTORS: tuple[Any, ...] = type(torch.Tensor), type(torch.FloatTensor)
"""The metaclasses of torch.Tensor and of the legacy tensor classes of one dtype."""


def with_accepted(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return the arguments of a call after checking that the function accepts numbers where traced
    ones are passed. Raises torch's TypeError or a CaptureError if it does not."""
    given = [*_leaves((*args, *kwargs.values()))]
    if not any(map(is_number, given)):
        return args, kwargs
    if is_parsed_by_torch(function):
        if any(_is_of_capture(item) for item in given):
            return args, kwargs
        _parse(function, args, kwargs)
        if function.__name__ in _OF_A_DIM:
            fail(
                f"the dim of '{function.__name__}' is a number that depends on a tensor",
                "choose among the results of known dims",
            )
        owner = getattr(function, "__self__", None)
        if function.__name__ in _ARITHMETIC and not any(map(_is_tensor, (owner, *given))):
            return tuple([Hooks.call(torch.tensor, x) if is_number(x) else x for x in args]), kwargs
    elif isinstance(function, _CONSTRUCTORS):
        fail(
            f"{function.__name__} is called with a number that depends on a tensor",
            "call torch.tensor with the dtype",
        )
    else:
        _check_annotations(function, args, kwargs)
    return args, kwargs


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if type(value) in _CONTAINERS:
            yield from _leaves(value)
        else:
            yield value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not is_number(value)


def _is_of_capture(value: Any) -> bool:
    """Return True for objects by which a capture represents values other than tensors."""
    kind = type(value)
    return kind is not TracedTensor and package_of(kind) == "stretto"


def check_error(
    error: Exception, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Fail if an untraced C or library function raised `error` after receiving traced numbers:
    with Python numbers it might not raise."""
    if _OF_SHAPES in str(error):
        raise data_dependent_shape() from None
    if isinstance(error, StrettoError | StopIteration | LookupError) or is_parsed_by_torch(
        function
    ):
        return
    given = (getattr(function, "__self__", None), *args, *kwargs.values())
    if is_of_library(error) and any(map(is_number, pytree.tree_leaves(given))):
        fail(
            f"'{getattr(function, '__name__', type(function).__name__)}' is called with a number "
            f"that depends on a tensor, and raises {type(error).__name__}: {error}",
            "call it with a number of Python, or compile with fallback=True",
        )


_OF_SHAPES = "data-dependent expression"
"""Part of torch's error messages, of any class, when it needs the value of a data-
dependent size."""


class _Parsed(Exception):
    """Raised once the parser has accepted the arguments."""


class _Parsing(TorchFunctionMode):
    """Stops a call of torch as soon as its arguments are parsed."""

    def __torch_function__(self, *_: Any) -> NoReturn:
        raise _Parsed


def _parse(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run torch's argument parser on a call; raises its TypeError if it refuses the arguments."""
    given = [_as_python(item) for item in args]
    named = {name: _as_python(item) for name, item in kwargs.items()}
    try:
        with _Parsing():
            function(*given, **named)
    except _Parsed:
        return


def _as_python(value: Any) -> Any:
    """Replace each traced number by a Python number of the same type."""
    if type(value) in _CONTAINERS:
        return type(value)(map(_as_python, value))
    return kind_of_number(value)(1) if is_number(value) else value


def _check_annotations(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Fail if a torch function or module written in Python gets a number for a parameter that is a
    tensor."""
    called: Any = type(function).forward if isinstance(function, nn.Module) else function
    if not isinstance(called, types.FunctionType) or package_of(called) != "torch":
        return
    signature = _signature(called)
    given = (function, *args) if called is not function else args
    try:
        bound = signature.bind(*given, **kwargs).arguments
    except TypeError:
        return  # the call raises it
    for name, value in bound.items():
        found = next(filter(is_number, _leaves((value,))), None)
        if found is not None and _wants_tensor(signature.parameters[name]):
            kind = kind_of_number(found).__name__
            fail(
                f"'{called.__name__}' of torch is called with a number of Python, of type {kind}, "
                f"where it takes a tensor, '{name}'",
                "make a tensor of it with torch.tensor",
            )


@lru_cache(1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _wants_tensor(parameter: inspect.Parameter) -> bool:
    if parameter.annotation is parameter.empty:
        return parameter.name in ("input", "self", "tensor", "tensors", "x")
    return parameter.annotation in (torch.Tensor, "Tensor", torch.Tensor | None, "Tensor | None")

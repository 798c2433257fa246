"""Recording: every ATen call of the traced function becomes one or more TensorOps, or a view.

The mode sits below autograd, so composite operators arrive whole. In order of preference an
operator is handled by its own rule, kept, treated as a view, made functional, decomposed by torch's
tables, or recorded as it is.
"""

# pyright: reportPrivateUsage=false
# torch's dispatcher modes have no public names

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from stretto.errors import StrettoError
from stretto.frontends.python.aliasing.aliases import link
from stretto.frontends.python.operators import checks, draws, selections
from stretto.frontends.python.operators.checks import (
    OF_OPERATORS,
    eager_error,
    eager_refusal,
    infer,
    settled,
)
from stretto.frontends.python.operators.decompositions import RULES, decompositions
from stretto.frontends.python.operators.functional import (
    apply_functionally,
    is_mutating,
    written_by,
)
from stretto.frontends.python.operators.memory_access import check_overlap, replaced_methods
from stretto.frontends.python.operators.selections import with_decided_size
from stretto.frontends.python.operators.views import RULES as VIEW_RULES
from stretto.frontends.python.tracing.fakes import mapped, tensors_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.frontends.python.values.arithmetic import (
    as_floats,
    by_reciprocal,
    is_beside_scalar,
    is_beside_tensor,
    is_float_of_ints,
    is_inverse,
    with_floats,
    with_number,
)
from stretto.frontends.python.values.data_dependent_sizes import (
    compare_in_run,
    float_kind,
    is_decided,
    number_of_size,
    plain,
    with_numbers,
)
from stretto.frontends.python.values.scalars import concrete, result_number
from stretto.ir.ops import Argument, TensorOp
from stretto.ops.infer import SchemaParameter, parameters
from stretto.ops.properties import draws as is_drawing
from stretto.ops.properties import properties
from stretto.ops.table import Aliases

_LAYOUT_KEYWORDS = [
    "device",
    "layout",
    "memory_format",
    "pin_memory",
    "non_blocking",
    "implicit",
    "out",
]


_ARANGE = torch.ops.aten.arange
"""Its schema declares sizes as numbers."""


class OperatorRecorder(TorchDispatchMode):
    """Passes every operator to `dispatch`, which runs no user code."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        state = tracer()
        with state.running_natively():
            return dispatch(self, func, args, kwargs or {})


@contextmanager
def recording() -> Generator[None]:
    """Record the calls made inside; the settings that choose fused kernels are off."""
    with ExitStack() as stack:
        # Otherwise a traced tensor could remain in the cache of parameter casts.
        stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(False)
        mkldnn = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        stack.callback(torch._C._set_mkldnn_enabled, mkldnn)
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        log = logging.getLogger(fake_tensor.__name__)
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # errors of the user's function are raised, not logged
        stack.enter_context(replaced_methods())
        mode = OperatorRecorder()
        tracer().mode, tracer().fast_path = mode, fast_path
        stack.enter_context(mode)
        yield


def dispatch(mode: OperatorRecorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle one ATen call."""
    state = tracer()
    checks.check_storage(**kwargs)
    state.gradients.compute(args)
    compare_in_run()
    if state.sizes.are_symbolic:
        args, kwargs = with_numbers(state, args, kwargs)
    if any(map(is_decided, args)):
        func, args = _numbers_for_sizes(func, args)
    if func is torch.ops.aten._local_scalar_dense.default:
        return concrete(args[0], "number")
    if is_mutating(func):
        check_overlap(func, args, kwargs, written_by(func, args, kwargs))
    if func in checks.RULES:
        outcome = _replaced(mode, checks.RULES[func], func, args, kwargs)
        if outcome is not NotImplemented:
            return outcome
    if is_float_of_ints(func, args, kwargs):
        with mode:
            args = as_floats(args)
    if is_inverse(func, args) and not kwargs:
        return _replaced(mode, by_reciprocal, func, args, kwargs)
    if is_beside_scalar(func, args):
        outcome = _replaced(mode, partial(with_number, func), func, args, kwargs)
        if outcome is not NotImplemented:
            return outcome
    if not is_mutating(func) and is_beside_tensor(func, args, kwargs):
        with mode:
            args, kwargs = with_floats(args, kwargs)
    if func in selections.RULES:
        outcome = _replaced(mode, selections.RULES[func], func, args, kwargs)
        if outcome is not NotImplemented:
            return outcome
    if func in RULES:
        outcome = _replaced(mode, RULES[func], func, args, kwargs)
        if outcome is not NotImplemented:
            return outcome
    known = properties(str(func))
    if known.whole:
        return record(func, args, kwargs)
    by_layout = known.aliases is Aliases.BY_LAYOUT
    if by_layout and _is_traced(args[0]) and args[0].memory.any_layout:
        return _perhaps_copied(mode, func, args, kwargs)
    if func in VIEW_RULES:
        first = args[0] if _is_traced(args[0]) else state.promote(args[0])
        return VIEW_RULES[func](first, *args[1:], **kwargs)
    if is_drawing(str(func), args, kwargs.items()):
        return _drawn(mode, func, args, kwargs)
    if is_mutating(func):
        with mode:
            return apply_functionally(func, args, kwargs)
    return _decompose_or_record(mode, func, args, kwargs)


def _numbers_for_sizes(func: Any, args: Any) -> tuple[Any, Any]:
    """Replace data-dependent sizes by traced numbers where the operator takes a tensor or number,
    and choose the overload that takes tensors there."""
    if func.overloadpacket is _ARANGE:
        return func, args
    known = list(parameters(str(func)).values())
    kinds = [known[at] for at, item in enumerate(args) if is_decided(item)]
    if any(kind.is_scalar for kind in kinds) and "Tensor" in func.overloadpacket.overloads():
        func = func.overloadpacket.Tensor
        known = list(parameters(str(func)).values())
    return func, tuple(plain(item) if known[at].is_tensor else item for at, item in enumerate(args))


def _drawn(mode: OperatorRecorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Record an operator that draws random numbers; one that only fills memory as such."""
    if func._can_decompose():
        with mode:
            return func.decompose(*args, **kwargs)
    draws.check_device(func, args, kwargs)
    if draws.is_default(kwargs.get("generator")):
        func, kwargs = draws.without_generator(func, kwargs)
    filled = draws.fill(func, args, kwargs)
    if filled is not NotImplemented:
        return filled
    if is_mutating(func):
        with mode:
            return apply_functionally(func, args, kwargs)
    draws.check_order(func, args, kwargs)
    return record(func, args, kwargs)


def _decompose_or_record(mode: OperatorRecorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Apply a decomposition if there is one, else record the operator. Raises eager's error for
    arguments that only eager refuses."""
    rules = [decompositions().get(func), func.decompose if func._can_decompose() else None]
    if any(rules):
        refused = eager_refusal(func, args, kwargs)
        if refused is not None:
            raise refused
    for rule in filter(None, rules):
        try:
            outcome = _replaced(mode, _reshaping(func, rule), func, args, kwargs)
        except OF_OPERATORS as problem:
            is_final = isinstance(problem, StrettoError) or rule is not rules[0]
            if is_final or eager_error(func, args, kwargs) is not None:
                raise
            return record(func, args, kwargs)  # only the decomposition refuses the arguments
        if outcome is not NotImplemented:
            return outcome
    outcome = with_decided_size(func, args, kwargs)
    return record(func, args, kwargs) if outcome is NotImplemented else outcome


def _reshaping(func: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule; for `reshape` one that reads sizes only to decide if it is a view."""
    if func is not torch.ops.aten.reshape.default:
        return rule

    def reshape(*args: Any, **kwargs: Any) -> Any:
        with tracer().sizes.without_small(is_view=True):
            return rule(*args, **kwargs)

    return reshape


def _replaced(
    mode: OperatorRecorder, by: Callable[..., Any], func: Any, args: Any, kwargs: Any
) -> Any:
    """Return the result of the replacement of `func`. An error for arguments that eager PyTorch
    refuses becomes eager's own error."""
    try:
        with mode:
            return _in_own_memory(func, args, kwargs, by(*args, **kwargs))
    except OF_OPERATORS as problem:
        if isinstance(problem, StrettoError):
            raise
        raise (eager_error(func, args, kwargs) or problem) from None


def _in_own_memory(func: Any, args: Any, kwargs: Any, outcome: Any) -> Any:
    """Return the outcome of a replacement, with copies of the tensors that share memory with an
    operand although those of `func` never do. An operator that is composed of others is replaced
    by these, so that its results share memory as in eager PyTorch."""
    shares = is_mutating(func) or func._can_decompose()
    if shares or properties(str(func)).aliases is not Aliases.NEVER:
        return outcome
    operands = tensors_of((args, kwargs))
    known = tracer().constants
    constants = [known[id(item)].traced for item in operands if id(item) in known]
    taken = {item.memory for item in (*operands, *constants) if isinstance(item, TracedTensor)}

    def copied(item: Any) -> Any:
        is_operand = any(item is operand for operand in operands)
        is_shared = is_operand or (isinstance(item, TracedTensor) and item.memory in taken)
        return item.clone() if is_shared else item

    return mapped(copied, outcome)


def _perhaps_copied(mode: OperatorRecorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a view or a copy, depending on the strides in a run, so that the memory may be
    shared."""
    state = tracer()
    seen = _decompose_or_record(mode, func, args, kwargs)
    if not _is_traced(seen) or seen.memory is not args[0].memory:
        return seen
    made = state.fresh(state.read(seen), seen.fake, seen.number)
    made.memory.any_layout = True
    link(made, [args[0]])
    return made


def _is_traced(value: Any) -> bool:
    return isinstance(value, TracedTensor)


def record(func: Any, args: Any, kwargs: Any) -> Any:
    """Record `func` unchanged and return traced results."""
    state = tracer()

    def promoted(item: Any) -> Any:
        is_real = isinstance(item, torch.Tensor) and not isinstance(item, TracedTensor | FakeTensor)
        return state.promote(item) if is_real else item

    args = mapped(promoted, args)
    kwargs = {name: mapped(promoted, item) for name, item in kwargs.items()}
    outputs = infer(state, func, args, kwargs)
    if outputs is None and not properties(str(func)).raises:
        state.note(f"{func} only checks values: it is left out")
        return None
    op = TensorOp(str(func), *arguments(state, func, args, kwargs))
    given = tensors_of(outputs)
    fakes = settled(state, op, given)
    values = state.emit(op, [state.type_of(fake) for fake in fakes])
    pairs = {id(own): (value, fake) for own, value, fake in zip(given, values, fakes, strict=True)}
    number = result_number(func, args, kwargs)

    any_layout = any(
        isinstance(leaf, TracedTensor) and leaf.memory.any_layout
        for leaf in tensors_of((args, kwargs))
    )

    def wrap(item: Any) -> Any:
        if not isinstance(item, FakeTensor):
            return item
        value, fake = pairs[id(item)]
        made = state.fresh(value, fake, None if fake.dim() else number)
        made.memory.any_layout = any_layout
        return made

    made = mapped(wrap, outputs)
    if properties(str(func)).aliases is not Aliases.NEVER:
        link(tensors_of(made), tensors_of((args, kwargs)))
    return made


def arguments(
    state: Tracer, func: Any, args: Any, kwargs: Any
) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
    """Convert the arguments of an ATen call to those of a TensorOp."""
    if state.sizes.are_symbolic or state.symbols:
        dtype, known = float_kind((args, kwargs)), parameters(str(func))
        is_range = func.overloadpacket is torch.ops.aten.arange

        def settled(parameter: SchemaParameter, item: Any) -> Any:
            is_number = isinstance(item, torch.SymFloat) or (
                isinstance(item, torch.SymInt)
                and (parameter.is_scalar or parameter.is_tensor)
                and not is_range
            )
            return number_of_size(state, item, dtype) if is_number else item

        args = [settled(*pair) for pair in zip(known.values(), args, strict=False)]
        kwargs = {name: settled(known[name], item) for name, item in kwargs.items()}
    named = (
        (key, item)
        for key, item in kwargs.items()
        if key not in _LAYOUT_KEYWORDS and (key != "generator" or not draws.is_default(item))
    )
    return (
        tuple(argument(state, item) for item in args),
        tuple((key, argument(state, item)) for key, item in named),
    )


def argument(state: Tracer, item: Any) -> Argument:
    """Convert an argument of an ATen call to one of a TensorOp."""
    match item:
        case TracedTensor():
            return state.read(item)
        case torch.SymInt():
            return state.dim(item)
        case torch.SymBool():
            return bool(item)
        case list() | tuple():
            return tuple(argument(state, part) for part in item)
        case None | bool() | int() | float() | str() | torch.dtype():
            return item
        case torch.Generator():
            return draws.name_of(item)
        case torch.device() | torch.layout() | torch.memory_format():
            return None
        case _:
            fail(
                f"an argument of type {type(item).__name__} cannot be captured",
                "use operators whose arguments are tensors, numbers and strings",
            )

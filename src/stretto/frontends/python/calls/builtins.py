"""Rules for builtins, math and torch functions whose arguments may be traced numbers or lists."""

from __future__ import annotations

import inspect
import operator
from array import array
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch.utils._pytree import tree_any, tree_leaves, tree_map, tree_map_only

from stretto.frontends.python.calls import (
    arguments,
    number_rules,
    ordering,
    output_journal,
    recurrent,
    sized,
    texts,
    torch_code,
)
from stretto.frontends.python.lists import methods, operations, sources
from stretto.frontends.python.operators import draws
from stretto.frontends.python.operators.checks import check_storage
from stretto.frontends.python.operators.functional import type_name
from stretto.frontends.python.tracing.contents import readable
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import number_methods
from stretto.frontends.python.values.data_dependent_sizes import is_decided, is_size_number, plain
from stretto.frontends.python.values.number_methods import kind_of_number
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import (
    cast_number,
    concrete,
    is_number,
    known_value,
    number_kind,
    number_of,
    to_number,
)
from stretto.frontends.python.values.state import TracedList
from stretto.frontends.python.values.texts import is_text
from stretto.ir.types import INDEX

BuiltinRule = Callable[..., Any]


def _traced(value: Any) -> bool:
    return isinstance(value, TracedTensor)


def length_of(value: Any) -> Any:
    """Return the length of a value of the run; NotImplemented for other values."""
    if is_text(value):
        return Hooks.of_text(value, "__len__")
    if isinstance(value, TracedList):
        return operations.traced_length(value)
    if isinstance(value, sources.Indexed):
        length: Any = value.length
        return number_of(length.clamp(min=0)) if _traced(length) else length
    if isinstance(value, torch.Tensor) and value.dim():
        size: Any = value.shape[0]
        known = isinstance(size, int) or is_size_number(size)
        return size if known else tracer().number_of_dim(size)
    return NotImplemented


def _range(*bounds: Any) -> Any:
    known = [_known_or_self(bound) for bound in bounds]
    if not any(_traced(bound) or isinstance(bound, torch.SymInt) for bound in known):
        return range(*known)
    if any(number_kind(bound) is float for bound in known):
        raise TypeError("'float' object cannot be interpreted as an integer")
    return sources.range_source(*known)


def _known_or_self(bound: Any) -> Any:
    if isinstance(bound, torch.SymInt):
        if sources.is_known_at_call(bound):
            return bound
        bound = tracer().number_of_dim(bound)
    if not _traced(bound):
        return bound
    if bound.dtype == torch.bool:
        bound = cast_number(bound, int)
    elif not is_number(bound) and bound.dtype.is_floating_point:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    bound = to_number(bound, TypeError)
    known = known_value(bound)
    return bound if known is None else known


def _extreme(
    is_better: Callable[[Any, Any], Any], of_integers: BuiltinRule, of_sizes: BuiltinRule
) -> BuiltinRule:
    """Return a rule for `min` or `max` of several arguments or a sequence that contains traced
    numbers or sizes."""
    name = "max" if is_better is operator.gt else "min"

    def rule(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        items: tuple[Any, ...] = args
        if len(args) == 1 and key is None and not kwargs:
            collected = _as_list(args[0])
            if isinstance(collected, TracedList) and collected.numbers:
                return Hooks.own(methods.best)(collected, is_better, name)
        if len(args) == 1:
            items = tuple(ordering.items_of(args[0]) or ())
        if not items or (kwargs and (len(args) > 1 or [*kwargs] != ["default"])):
            return NotImplemented
        if key is not None:
            return ordering.by_key(is_better, items, key)
        if all(type(item) is tuple for item in items):
            return ordering.extreme(items, reverse=is_better is operator.gt)
        if any(map(is_size_number, items)):
            if all(isinstance(item, int | torch.SymInt) for item in items):
                return reduce(of_sizes, items)
            if any(map(_traced, items)):
                items = tuple(_without_size(item) for item in items)
        if not any(map(_traced, items)):
            return NotImplemented
        best, *others = items
        for item in others:
            kind = number_kind(item)
            data = tracer().data if kind is number_kind(best) and kind in (int, float) else None
            if data is not None:
                best = data.computed(name, kind, best, item)
            elif kind is number_kind(best) is int:
                best = of_integers(*map(_as_number, (item, best)))
            else:
                chosen = is_better(item, best)
                best = Hooks.python.branch(chosen, lambda x=item: x, lambda x=best: x)
        return best

    return rule


def _without_size(value: Any) -> Any:
    return tracer().number_of_dim(value) if isinstance(value, torch.SymInt) else value


def _as_number(value: Any) -> Any:
    state = tracer()
    return value if _traced(value) else state.number(state.literal(value, INDEX.dtype))


def _as_list(items: Any) -> Any:
    """Convert an iterable whose length is not a Python number to a list of the Program; return
    others unchanged."""
    source = None if isinstance(items, TracedList) else sources.unsettled(items)
    return items if source is None else sources.listed(source)


def _sum(items: Any, start: Any = 0) -> Any:
    items = _as_list(items)
    if not isinstance(items, TracedList):
        return NotImplemented
    length = operations.traced_length(items)
    if not isinstance(length, TracedTensor) and not length:
        return start
    if items.numbers:
        stacked = operations.stack(items, least=0)
        if stacked.dtype != torch.float64:
            number_rules.check_sum(stacked)
            return cast_number(stacked.sum(0), int) + start
        total = cast_number(stacked.sum(0), float)
        if not isinstance(length, TracedTensor):
            return total + start
        return Hooks.python.branch(length > 0, lambda: total + start, lambda: start)

    def of_some() -> Any:
        return operations.stack(items, least=1).sum(0) + start

    return (
        Hooks.python.branch(length == 0, lambda: start, of_some) if _traced(length) else of_some()
    )


def _joined(operation: BuiltinRule) -> BuiltinRule:
    """Return a rule for `torch.stack` or `torch.cat` of a traced list."""

    def rule(tensors: Any, dim: int = 0) -> Any:
        items = _as_list(tensors)
        return operation(items, dim) if isinstance(items, TracedList) else NotImplemented

    return rule


def _tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Any:
    """`torch.tensor` of traced numbers, also in nested lists."""
    made = _copied(data, dtype)
    if made is NotImplemented:
        return NotImplemented
    check_storage(pin_memory=pin_memory)
    return _required(made if device is None else made.to(device), requires_grad)


def _as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Rule for `torch.as_tensor`, which copies a tensor or an array only for another dtype or
    device."""
    if isinstance(data, np.ndarray):
        made = torch.from_numpy(data)
        return _sharing(made, data).to(device=device or made.device, dtype=dtype or made.dtype)
    if not isinstance(data, torch.Tensor) or is_number(data):
        return _tensor(data, dtype=dtype, device=device)
    return data.to(device=device or data.device, dtype=dtype or data.dtype)


def _asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: Any = None, requires_grad: Any = False
) -> Any:
    """Rule for `torch.asarray`, which copies a tensor only for another dtype or device, or if
    `copy` is True."""
    if isinstance(obj, np.ndarray | bytearray | memoryview | array):
        obj = _sharing(torch.asarray(obj), obj)
    if not isinstance(obj, torch.Tensor) or is_number(obj):
        made = _tensor(obj, dtype=dtype, device=device, requires_grad=requires_grad)
        if made is not NotImplemented and copy is False:
            raise ValueError("can't alias arbitrary sequence into a tensor.")
        return made
    if not _traced(obj):
        return NotImplemented
    made = obj.to(device=device or obj.device, dtype=dtype or obj.dtype, copy=bool(copy))
    if copy is False and made.device != obj.device:
        raise ValueError(f"can't alias tensor from device '{obj.device}' to '{made.device}'.")
    if copy is False and made.dtype != obj.dtype:
        found, wanted = type_name(obj.dtype), type_name(made.dtype)
        raise ValueError(f"can't alias tensor with dtype '{found}' into dtype '{wanted}'.")
    return _required(made, requires_grad)


def _on_memory(function: Callable[..., Any]) -> BuiltinRule:
    """Return the rule for a function that makes a tensor on the memory of its first argument."""
    return lambda data, *args, **kwargs: _sharing(function(data, *args, **kwargs), data)


def _sharing(made: torch.Tensor, data: Any) -> torch.Tensor:
    """Record that a tensor shares memory with an array or buffer, so that neither may be changed
    from now on, and return the tensor."""
    tracer().arrays.append((lambda: data, made))
    return made


def _required(made: Any, requires_grad: Any) -> Any:
    return made.requires_grad_(True) if requires_grad else made


def _copied(data: Any, dtype: Any) -> Any:
    """Return a new tensor of data that holds traced tensors or numbers; NotImplemented for other
    data."""
    if isinstance(data, TracedList):
        made = operations.stack(data)
        wanted = dtype or (_default_dtype(made) if data.numbers else made.dtype)
        return made if made.dtype == wanted else made.to(wanted)
    content = tree_map(_with_content, data) if isinstance(data, list | tuple) else data
    has_conditions = tree_any(lambda item: isinstance(item, torch.SymBool), content)
    if has_conditions:
        content = tree_map_only(torch.SymBool, _flag, content)
    if not tree_any(_traced, content):
        return torch.tensor(content, dtype=dtype) if has_conditions else NotImplemented
    wanted = dtype or _common_dtype(content)

    def build(item: Any) -> Any:
        if isinstance(item, list | tuple):
            return torch.stack([build(_element(part)) for part in item])
        if not _traced(item):
            return torch.tensor(item, dtype=wanted)
        return item.clone() if item.dtype == wanted else item.to(wanted)

    made = build(content)
    if isinstance(made, TracedTensor):
        made.number = None
    return made


def _element(item: Any) -> Any:
    """Return an item of the data of torch.tensor: a tensor as 0-dim. Raises torch.tensor's
    ValueError if it has several elements; one whose size data decide is assumed to have one."""
    if not isinstance(item, torch.Tensor) or not item.dim():
        return item
    if any(not isinstance(size, torch.SymInt) and size != 1 for size in item.shape):
        raise ValueError("only one element tensors can be converted to Python scalars")
    return item.reshape(())


def _result_type(*operands: Any) -> Any:
    """`torch.result_type` of traced numbers: it depends on a number's kind, not on its value."""
    if not any(map(is_number, operands)):
        return NotImplemented
    kinds = [number_kind(item) if is_number(item) else None for item in operands]
    return torch.result_type(
        *(x if k is None else k(1) for x, k in zip(operands, kinds, strict=True))
    )


def _flag(condition: torch.SymBool) -> Any:
    """Return a condition on sizes as a traced flag if data decide it, else as a guarded bool."""
    return plain(condition) if is_decided(condition) else bool(condition)


def _with_content(item: Any) -> Any:
    """Return a real tensor in a form that native code may read; other items unchanged."""
    is_real = isinstance(item, torch.Tensor) and not isinstance(item, TracedTensor)
    return readable(item) if is_real else item


def _common_dtype(data: Any) -> torch.dtype:
    """Return the dtype that torch.tensor gives to a structure of tensors and numbers."""

    def dtype_of(item: Any) -> torch.dtype:
        if not isinstance(item, torch.Tensor):
            return torch.tensor(item).dtype
        return _default_dtype(item) if is_number(item) else item.dtype

    return reduce(torch.promote_types, map(dtype_of, tree_leaves(data)))


def _default_dtype(number: Any) -> torch.dtype:
    """Return the dtype of a tensor made from a number or from numbers."""
    is_float = number.dtype.is_floating_point
    return torch.get_default_dtype() if is_float else number.dtype


def _full(size: Any, fill_value: Any, *, dtype: Any = None, out: Any = None, **kwargs: Any) -> Any:
    if not _traced(fill_value):
        return NotImplemented
    if out is not None:
        return torch.zeros(size, dtype=dtype, out=out, **kwargs).fill_(fill_value)
    known = _default_dtype(fill_value) if is_number(fill_value) else fill_value.dtype
    return torch.empty(size, dtype=dtype or known, **kwargs).fill_(fill_value)


def _full_like(input: Any, fill_value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    if not _traced(fill_value):
        return NotImplemented
    return torch.empty_like(input, dtype=dtype, **kwargs).fill_(fill_value)


_ASSERT_SCALAR = torch.ops.aten._assert_scalar
_NO_MESSAGE = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please "
    "report an enhancement request to PyTorch.)"
)


def _checked(error: type[Exception], condition: Any, message: Any) -> Any:
    """`torch._check_with`. Eager requires a bool; a traced number of dtype bool counts as one."""
    if not is_number(condition) or condition.dtype != torch.bool:
        return NotImplemented

    def fails() -> None:
        raise error(_NO_MESSAGE if message is None else str(Hooks.call(message)))

    Hooks.python.branch(condition, lambda: None, fails)
    return None


def _check(error: type[Exception]) -> BuiltinRule:
    return lambda cond, message=None: _checked(error, cond, message)


def _check_size(i: Any, message: Any = None, *, max: Any = None) -> Any:
    if not is_number(i):
        return NotImplemented
    _checked(RuntimeError, i >= 0, message)
    return None if max is None else _checked(RuntimeError, i <= max, message)


def _check_tensor_all(cond: Any, message: Any = None) -> Any:
    if not _traced(cond) or cond.dtype != torch.bool:
        return NotImplemented
    return _checked(RuntimeError, cast_number(cond.all(), bool), message)


def _assert(condition: Any, message: Any) -> Any:
    def fails() -> None:
        raise AssertionError(message)

    Hooks.python.branch(condition, lambda: None, fails)


def _assert_scalar(value: Any, message: str, *_: Any) -> Any:
    return check(value, "RuntimeError", message) if _traced(value) else NotImplemented


def _item(value: Any) -> Any:
    """The operator that `item()` becomes in a torch graph."""
    return Hooks.item(value) if _traced(value) else NotImplemented


_LIFTS = (
    *(torch.ops.aten.lift, torch.ops.aten.lift.default),
    *(torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh.default),
)
"""Operators that return their argument; the tracer sees those of torch's own calls."""


def _arange(*args: Any, **kwargs: Any) -> Any:
    made = sized.arange(*args, **kwargs)
    if made is not NotImplemented:
        return made
    for arg in filter(_traced, args):
        concrete(arg, "int")
    return NotImplemented


def _compared(method: str) -> BuiltinRule:
    """Return a rule for `torch.equal` or `torch.allclose`: Python flags in eager, traced flags
    here."""

    def rule(input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_traced(input) or _traced(other)):
            return NotImplemented
        traced = input if _traced(input) else tracer().promote(input)
        return getattr(traced, method)(other, *args, **kwargs)

    return rule


def _manual_seed(number: Any) -> Any:
    draws.seed(number)
    return torch.default_generator


def _state_of_generator(*args: Any, **kwargs: Any) -> Any:
    fail(
        "the state of a generator of random numbers is not known while capturing",
        "read or set it outside of the compiled function, or call manual_seed",
    )


_OF_STATES = (
    *(torch.seed, torch.initial_seed, torch.get_rng_state, torch.set_rng_state),
    *(torch.random.seed, torch.random.initial_seed, torch.random.get_rng_state),
    *(torch.random.set_rng_state, torch.random.fork_rng, inspect.unwrap(torch.random.fork_rng)),
    *(torch.cuda.seed, torch.cuda.seed_all, torch.cuda.initial_seed),
    *(torch.cuda.get_rng_state, torch.cuda.get_rng_state_all),
    *(torch.cuda.set_rng_state, torch.cuda.set_rng_state_all),
)


def _generator(*args: Any, **kwargs: Any) -> Any:
    fail(
        "a generator of random numbers is made in the compiled function",
        "make it outside, and pass it as an argument",
    )


def generator_method(function: Any) -> BuiltinRule | None:
    """Return the rule for a method of a random generator made before the call; None for other
    generators."""
    generator = function.__self__
    if not draws.is_default(generator) and not tracer().heap.knows(generator):
        return None

    def rule(number: Any) -> Any:
        draws.seed(number, generator)
        return generator

    return rule if function.__name__ == "manual_seed" else _state_of_generator


RULES: dict[Any, BuiltinRule] = {
    **number_rules.RULES,
    range: _range,
    min: _extreme(operator.lt, torch.minimum, torch.sym_min),
    max: _extreme(
        operator.gt, lambda item, best: torch.maximum(best, item), lambda a, b: torch.sym_max(a, b)
    ),
    dir: lambda *args: (
        dir(kind_of_number(*args)) if args and is_number(args[0]) else NotImplemented
    ),
    sum: _sum,
    torch.is_tensor: lambda value: isinstance(value, torch.Tensor) and not is_number(value),
    torch.compiler.is_compiling: lambda: tracer().hints.is_compiling(),
    torch.Generator: _generator,
    torch.manual_seed: _manual_seed,
    torch.random.manual_seed: _manual_seed,
    **dict.fromkeys(_OF_STATES, _state_of_generator),
    torch.stack: _joined(operations.stack),
    torch.cat: _joined(operations.concatenate),
    torch.tensor: _tensor,
    torch.result_type: _result_type,
    torch.from_numpy: _on_memory(torch.from_numpy),
    torch.frombuffer: _on_memory(torch.frombuffer),
    torch.from_dlpack: _on_memory(torch.from_dlpack),
    torch.as_tensor: _as_tensor,
    torch.asarray: _asarray,
    torch.full: _full,
    torch.full_like: _full_like,
    **sources.RULES,
    **sized.RULES,
    **arguments.RULES,
    **output_journal.RULES,
    **texts.RULES,
    **recurrent.PACKED,
    **torch_code.RULES,
    torch.arange: _arange,
    torch.equal: _compared("equal"),
    torch.allclose: _compared("allclose"),
    torch.ops.aten.item.default: _item,
    torch.ops.aten._local_scalar_dense.default: _item,
    **dict.fromkeys(_LIFTS, lambda self: self),
    torch_map: torch_code.map_rows,
    torch_scan: torch_code.scan,
    **torch_code.OPERATORS,
}


_CHECKS: dict[str, BuiltinRule] = {
    "_check": _check(RuntimeError),
    "_check_index": _check(IndexError),
    "_check_value": _check(ValueError),
    "_check_type": _check(TypeError),
    "_check_not_implemented": _check(NotImplementedError),
    "_check_with": _checked,
    "_check_is_size": _check_size,
    "_check_tensor_all": _check_tensor_all,
    "_assert": _assert,
    "_assert_scalar": _assert_scalar,
}
"""`torch` functions that check a condition; not every version of torch has all of them."""
RULES.update({getattr(torch, name): rule for name, rule in _CHECKS.items() if hasattr(torch, name)})
RULES.update(dict.fromkeys((_ASSERT_SCALAR, _ASSERT_SCALAR.default), _assert_scalar))


def needs_items(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert traced lists among the arguments to Python lists for a function that has no rule for
    them."""
    known = (TracedList, sources.SizedTuple)
    has_list = any(isinstance(item, known) for item in (*args, *kwargs.values()))
    if not has_list:
        return args, kwargs

    def convert(item: Any) -> Any:
        if isinstance(item, sources.SizedTuple):
            return tuple(item)
        return operations.to_python(item) if isinstance(item, TracedList) else item

    return tree_map(convert, args), tree_map(convert, kwargs)


Hooks.compared_lists = operations.compared
Hooks.list_items = operations.to_python
Hooks.list_length = operations.known_length
Hooks.numbers = operations.numbers
Hooks.number_attribute = number_methods.attribute

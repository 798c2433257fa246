"""What rewritten code calls. Rewritten functions reach this module as `__stretto`.

Outside of a capture (a closure that outlives it), everything behaves as plain Python.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable
from numbers import Number
from typing import Any

import torch
from torch import nn

from stretto.capture import branches, indexing, lists, loops, raises
from stretto.capture.aliases import is_one_of
from stretto.capture.calls import call, changes, check_iterator, check_tensor_attribute
from stretto.capture.frames import Frame, Maybe
from stretto.capture.leaves import to_traced_list
from stretto.capture.rewrite import mark as local
from stretto.capture.scalars import concrete, known_value, to_number
from stretto.capture.signals import NeedsUnroll, fail
from stretto.capture.state import TracedList
from stretto.capture.tensor import Hooks, TracedTensor
from stretto.capture.tracer import active, tracer

slice = builtins.slice
if_ = branches.stage_if
ifexp = branches.stage_ifexp
and_ = branches.stage_and
or_ = branches.stage_or
not_ = branches.stage_not


def enter(name: str, probe: Callable[[], object]) -> Frame:
    """Start of a rewritten function: its variables become part of the state."""
    frame = Frame.of(name, probe)
    if active() is not None:
        tracer().frames.append(frame)
    return frame


def leave(frame: Frame) -> None:
    """End of a rewritten function."""
    state = active()
    if state is not None and frame in state.frames:
        del state.frames[state.frames.index(frame) :]


def while_(frame: Frame, test: Any, body: Any, live: tuple[str, ...]) -> None:
    if active() is None:
        while test():
            body()
        return
    loops.stage_while(frame, test, body, live)


def for_(frame: Frame, iterable: Any, body: Any, live: tuple[str, ...], stop: Any = None) -> None:
    if active() is None:
        for item in iterable:
            body(item)
            if stop is not None and stop():
                return
        return
    check_iterator(iterable)
    loops.stage_for(frame, iterable, body, live, stop)


def bound(name: str, read: Callable[[], Any]) -> Any:
    """The value of a variable; the error of Python where it has none."""
    message = f"cannot access local variable '{name}' where it is not associated with a value"
    try:
        value = read()
    except NameError:
        raise UnboundLocalError(message) from None
    if isinstance(value, Maybe):
        if value.bound is False:
            raise UnboundLocalError(message)
        raises.check(value.bound, "UnboundLocalError", message)
        return value.value
    return value


def enter_try(handled: Callable[[], Any]) -> None:
    """Start of a try block whose handlers catch the classes that `handled` gives."""
    if active() is not None:
        tracer().tries.append(_classes(handled()))


def _classes(handled: Any) -> tuple[type[BaseException], ...]:
    if isinstance(handled, tuple):
        return tuple(kind for item in handled for kind in _classes(item))
    return (handled,)


def leave_try() -> None:
    if active() is not None:
        tracer().tries.pop()


def getitem(holder: Any, index: Any) -> Any:
    """`holder[index]`."""
    if isinstance(holder, TracedList):
        return lists.get_item(holder, index)
    if isinstance(holder, TracedTensor) or not indexing.has_position(index):
        return holder[index]
    if isinstance(holder, torch.Tensor):
        return indexing.getitem(tracer().promote(holder), index)
    if isinstance(holder, builtins.list | tuple | nn.ModuleList | nn.ParameterList):
        return _item_of_sequence(holder, index)
    if isinstance(index, TracedTensor):
        return holder[concrete(index, "int")]
    return holder[index]


def _item_of_sequence(holder: Any, index: Any) -> Any:
    """An item of a Python sequence at a traced position."""
    if isinstance(index, builtins.slice):
        parts = (index.start, index.stop, index.step)
        known = [concrete(p, "int") if isinstance(p, TracedTensor) else p for p in parts]
        return holder[builtins.slice(*known)]
    known = known_value(index)
    if known is not None:
        return holder[known]
    unroll: NeedsUnroll | None = None
    try:
        concrete(index, "int")
    except NeedsUnroll as signal:
        unroll = signal
    except BaseException:
        unroll = None
    if unroll is not None:
        raise unroll
    if isinstance(holder, nn.ModuleList):
        fail(
            "a module is chosen by a traced index",
            "choose with if/elif over a Python index, or stack the parameters into one tensor",
        )
    items = builtins.list(holder)
    made = lists.get_item(to_traced_list(items), index)
    if isinstance(made, TracedTensor) and made.number is None:
        is_one_of(made, items, index)
    return made


def setitem(holder: Any, index: Any, value: Any) -> None:
    """`holder[index] = value`."""
    if isinstance(holder, TracedList):
        lists.set_item(holder, index, value)
    elif isinstance(holder, torch.Tensor):
        if active() is not None and not isinstance(holder, TracedTensor):
            holder = tracer().promote(holder)
        holder[index] = value
    else:
        changes(holder)
        holder[concrete(index, "int") if isinstance(index, TracedTensor) else index] = value


def setattr(holder: Any, name: str, value: Any) -> None:
    """`holder.name = value`."""
    if isinstance(holder, torch.Tensor) and active() is not None:
        check_tensor_attribute(holder, name)
    changes(holder)
    builtins.setattr(holder, name, value)


_INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd,
    "Sub": operator.isub,
    "Mult": operator.imul,
    "MatMult": operator.imatmul,
    "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod,
    "Pow": operator.ipow,
    "LShift": operator.ilshift,
    "RShift": operator.irshift,
    "BitOr": operator.ior,
    "BitXor": operator.ixor,
    "BitAnd": operator.iand,
}


def augment_item(holder: Any, index: Any, operation: str, value: Any) -> None:
    """`holder[index] op= value`."""
    setitem(holder, index, _INPLACE[operation](getitem(holder, index), value))


def augment_attr(holder: Any, name: str, operation: str, value: Any) -> None:
    """`holder.name op= value`."""
    before = builtins.getattr(holder, name)
    after = _INPLACE[operation](before, value)
    if after is not before and not (isinstance(before, torch.Tensor) and _is_of(before, after)):
        setattr(holder, name, after)


def _is_of(before: torch.Tensor, after: Any) -> bool:
    """Whether an in-place operator on a real tensor returned its traced form."""
    state = active()
    known = None if state is None else state.constants.get(id(before))
    return known is not None and isinstance(after, TracedTensor) and after.memory is known.memory


def contains(container: Any, item: Any) -> Any:
    """`item in container`."""
    if active() is None:
        return item in container
    if isinstance(container, builtins.list | tuple | range | set) and (
        isinstance(item, TracedTensor) or any(isinstance(i, TracedTensor) for i in container)
    ):
        found: Any = False
        for other in container:
            found = branches.stage_or(item is other or item == other, lambda f=found: f)
        return found
    if isinstance(container, torch.Tensor) and isinstance(item, torch.Tensor | Number):
        return (
            to_number((item == container).any())
            if _has_traced(item, container)
            else item in container
        )
    return item in container


def _has_traced(*values: Any) -> bool:
    return any(isinstance(value, TracedTensor) for value in values)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda item, container: contains(container, item),
    "NotIn": lambda item, container: not_(contains(container, item)),
}


def chain(operators: tuple[str, ...], first: Any, *operands: Callable[[], Any]) -> Any:
    """`first op operand op operand ...`, each operand evaluated at most once."""
    second = operands[0]()
    outcome = _COMPARE[operators[0]](first, second)
    if len(operands) == 1:
        return outcome
    return and_(outcome, lambda: chain(operators[1:], second, *operands[1:]))


def assert_(condition: Any, message: Callable[[], Any], has_message: Callable[[], bool]) -> None:
    """`assert condition, message`."""

    def fails() -> None:
        raise AssertionError(message()) if has_message() else AssertionError()

    if active() is not None and branches.is_traced(condition):
        branches.branch(condition, lambda: None, fails)
    elif not branches.truth(condition):
        fails()


def wrote_outer(place: dict[str, Any] | Frame, name: str) -> None:
    """After `name`, declared global (in `place`, a namespace) or nonlocal, was assigned."""
    state = active()
    if state is not None and isinstance(place, dict):
        state.global_writes += 1
    changes(place.cells[name] if isinstance(place, Frame) else place)


__all__ = [
    "and_", "assert_", "augment_attr", "augment_item", "bound", "call", "chain", "contains",
    "enter", "enter_try", "for_", "getitem", "if_", "ifexp", "leave", "leave_try", "local",
    "not_", "or_", "setattr", "setitem", "slice", "while_", "wrote_outer",
]  # fmt: skip

Hooks.staging = sys.modules[__name__]
Hooks.getitem = indexing.getitem
Hooks.setitem = indexing.setitem
Hooks.item = to_number
Hooks.concrete = concrete

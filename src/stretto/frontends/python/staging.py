"""Functions called by rewritten code, which refers to this module as `__stretto`.

Outside of a capture (in a closure that outlives it), everything behaves as plain Python.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Set
from numbers import Number
from types import CellType, FunctionType
from typing import Any

import torch

from stretto.frontends.python.aliasing.aliases import overlapping
from stretto.frontends.python.calls import (
    arguments,
    generated,
    iterating,
    ordering,
    recurrent,
    statements,
)
from stretto.frontends.python.calls.builtins import RULES
from stretto.frontends.python.calls.call import (
    call,
    changes,
    changes_attribute,
    check_iterator,
    check_tensor_attribute,
    fixed_key,
    fixed_keys,
)
from stretto.frontends.python.calls.generated import Generated, generated_by
from stretto.frontends.python.calls.in_python import mark
from stretto.frontends.python.calls.statements import context
from stretto.frontends.python.calls.texts import percent
from stretto.frontends.python.control import branches, loops
from stretto.frontends.python.lists import indexing, operations, sources
from stretto.frontends.python.lists.iterators import TracedIterator
from stretto.frontends.python.objects.foreign import note_made, note_use
from stretto.frontends.python.operators import decompositions
from stretto.frontends.python.source.redirected import code_of, is_rewritten
from stretto.frontends.python.source.redirected import mark as local
from stretto.frontends.python.tracing.frames import UNDEFINED, CallFrame, Maybe, caught
from stretto.frontends.python.tracing.locations import is_user_file
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import OF_CODE, OF_ERRORS, Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values import arithmetic, number_methods, raises, texts
from stretto.frontends.python.values.either import (
    Either,
    check_compared,
    check_entries,
    first_either,
    may_be_missing,
    replaced,
)
from stretto.frontends.python.values.number_methods import own_method, tested
from stretto.frontends.python.values.scalars import concrete, is_number, number_kind, to_number
from stretto.frontends.python.values.state import TracedList, is_same

slice = builtins.slice
if_ = branches.stage_if
ifexp = branches.stage_ifexp
and_ = branches.stage_and
or_ = branches.stage_or
value_of_and_ = branches.value_of_and
value_of_or_ = branches.value_of_or
not_ = branches.stage_not
as_flag = branches.as_flag
pass_to_consumer = generated.pass_to_consumer


def enter(name: str, probe: Callable[[], object]) -> CallFrame:
    """Start a rewritten function: its variables become part of the state."""
    frame = CallFrame.of(name, probe)
    if active() is not None:
        tracer().frames.append(frame)
    return frame


def leave(frame: CallFrame) -> None:
    """End a rewritten function."""
    state = active()
    if state is not None and frame in state.frames:
        del state.frames[state.frames.index(frame) :]


def while_(frame: CallFrame, test: Any, body: Any, live: tuple[str, ...]) -> None:
    """`while test(): body()`. live: variables read afterwards."""
    if active() is None:
        while test():
            body()
        return
    loops.stage_while(frame, lambda: tested(test()), body, live)


def for_(
    frame: CallFrame, iterable: Any, body: Any, live: tuple[str, ...], stop: Any = None
) -> None:
    """`for item in iterable: body(item)`, until `stop()`. live: variables read afterwards."""
    if active() is not None:
        method = own_method(iterable, "__iter__")
        iterable = iterable if method is None else call(method)
    if isinstance(iterable, Generated) and not iterable.is_pulled:

        def consume(item: Any) -> Any:
            body(item)
            return False if stop is None else stop()

        iterable.feed(consume)
        return
    if active() is None:
        for item in iterable:
            body(item)
            if stop is not None and stop():
                return
        return
    if isinstance(iterable, Either):
        branches.for_each_option(
            iterable, lambda items: for_(frame, items, body, live, stop), frame, frozenset(live)
        )
        return
    note_use(iterable)
    iterable = iterating.loop_over(iterable)
    if isinstance(iterable, TracedIterator):
        _for_iterator(frame, iterable, body, live, stop)
        return
    check_iterator(iterable)
    check_entries(iterable)
    loops.stage_for(frame, iterable, body, live, stop)


def defined(kind: type) -> type:
    """Register a class that rewritten code has defined."""
    state = active()
    if state is not None:
        state.redirected.add(kind)
    return kind


def _for_iterator(
    frame: CallFrame, iterator: TracedIterator, body: Any, live: tuple[str, ...], stop: Any
) -> None:
    """Loop over an iterator that other code can see, advancing it."""
    own = CallFrame("iterator", {"__stretto_iterator": CellType(iterator)})
    tracer().frames.append(own)

    def test() -> Any:
        if stop is None:
            return call(iterator.more)
        return and_(not_(stop()), lambda: call(iterator.more))

    def end() -> None:
        call(iterator.end)

    try:
        loops.stage_while(frame, test, lambda: body(call(iterator.take)), live, body.__code__)
        if_(frame, True if stop is None else not_(stop()), end, lambda: None, live)
    finally:
        leave(own)


def generator(lowered: FunctionType) -> Callable[..., Any]:
    """Wrap a generator function that is local to rewritten code. A call of it runs nothing yet."""

    def start(*args: Any, **kwargs: Any) -> Generated:
        inspect.signature(lowered).bind(*args, **kwargs)  # raises what the call raises
        return generated_by(lowered, lambda: lowered(*args, **kwargs), args, kwargs)

    for name in ("__name__", "__qualname__", "__doc__", "__annotations__"):
        builtins.setattr(start, name, getattr(lowered, name))
    return local(start)


def _is_staged(iterable: Any) -> bool:
    """Return True if a comprehension over `iterable` must be a loop of the Program."""
    if active() is None:
        return False
    is_indexed = isinstance(iterable, TracedList | sources.Indexed)
    return is_indexed or sources.unsettled(iterable) is not None


def listed(iterable: Any, comprehension: FunctionType, lowered: Any = None) -> Any:
    """A list comprehension over `iterable`.

    If the number of items is not a Python number, it is a loop that collects the
    comprehension's result for each item. lowered: the comprehension as a function, if it has
    conditions or several loops.
    """
    if active() is not None:
        if isinstance(iterable, Either):
            return Hooks.use(iterable, lambda items: listed(items, comprehension, lowered))
        note_use(iterable)
        iterable = iterating.loop_over(iterable)
    if active() is not None and lowered is not None:
        return lowered(iterable)
    if isinstance(iterable, TracedIterator):
        iterable = iterating.drained(iterable)
    if not _is_staged(iterable):
        return comprehension(iterable)
    items: Any = []

    def body(item: Any) -> None:
        for made in comprehension([item]):
            call(items.append, made)

    frame = enter("listed", lambda: items)
    try:
        loops.stage_for(frame, iterable, body, ("items",), place=comprehension.__code__)
        return items
    finally:
        leave(frame)


def yielded(iterable: Any, expression: FunctionType, lowered: Any = None) -> Any:
    """A generator expression over `iterable`. If the number of items is not a Python number, its
    values are yielded in a loop of the Program."""
    if active() is not None:
        if isinstance(iterable, Either):
            return Hooks.use(iterable, lambda items: yielded(items, expression, lowered))
        iterable = iterating.loop_over(iterable)
    if active() is not None and lowered is not None:
        return lowered(iterable).of_expression(lambda: expression(iterable))
    if not _is_staged(iterable):
        made = expression(iterable)
        if active() is not None:
            note_made(made, expression, (iterable,))
        return made

    def run() -> None:
        def body(item: Any) -> None:
            for made in expression([item]):
                pass_to_consumer(made)

        frame = enter("yielded", lambda: iterable)
        try:
            loops.stage_for(frame, iterable, body, (), place=expression.__code__)
        finally:
            leave(frame)

    return Generated(run, lambda: expression(iterable), "<genexpr>")


def bound(name: str, read: Callable[[], Any]) -> Any:
    """Return the value of a variable; raise Python's UnboundLocalError if it has none."""
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


def bound_values(names: tuple[str, ...], *reads: Callable[[], Any]) -> dict[str, Any]:
    """Return the variables that have a value: the result of a segment."""
    found = dict[str, Any]()
    for name, read in zip(names, reads, strict=True):
        try:
            value = read()
        except NameError:
            continue
        if isinstance(value, Maybe):
            if not isinstance(value.bound, bool):
                fail(
                    f"whether '{name}' has a value depends on a tensor",
                    "assign it before the branch or loop, too",
                )
            value = value.value if value.bound else UNDEFINED
        if value is not UNDEFINED:
            found[name] = value
    return found


def plain(value: Any) -> Any:
    """Return the operand of a condition that cannot be staged; fail if it is traced."""
    if active() is not None and branches.is_traced(value):
        fail(
            "`:=` follows a condition on a tensor, inside of a lambda or comprehension",
            "assign the variable in a statement before, or use a loop",
        )
    return value


def enter_try(handled: Callable[[], Any], replaced: Callable[[], Any]) -> None:
    """Start a try block. handled: returns the classes that its handlers catch. replaced: returns
    those for which the handlers always raise an exception themselves."""
    if active() is not None:
        tracer().tries.handled.append(_classes(handled()))
        tracer().tries.replaced.append(_classes(replaced()))


def _classes(handled: Any) -> tuple[type[BaseException], ...]:
    if isinstance(handled, tuple):
        return tuple(kind for item in handled for kind in _classes(item))
    return (handled,)


def leave_try() -> None:
    """End a try block. Fails if it raises ZeroDivisionError while sizes are symbolic, since a
    program cannot have that as a condition."""
    if active() is not None:
        tracer().tries.handled.pop()
        tracer().tries.replaced.pop()
        if tracer().sizes.are_symbolic and isinstance(sys.exc_info()[1], ZeroDivisionError):
            raise caught(ZeroDivisionError)


def _for_each_option(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Extend an operation to holders and indices that are one of several: a branch with one call
    per option."""

    @functools.wraps(operation)
    def staged(holder: Any, index: Any, *others: Any) -> Any:
        if isinstance(holder, Either):
            return branches.for_each_option(holder, lambda option: staged(option, index, *others))
        found = first_either(index)
        if found is not None:
            return branches.for_each_option(
                found, lambda option: staged(holder, replaced(index, found, option), *others)
            )
        return operation(holder, index, *others)

    return staged


def _own(holder: Any, name: str) -> Any:
    """Return a user-defined method of the holder, which takes traced positions as they are; None
    outside of a capture."""
    return None if active() is None else own_method(holder, name)


@_for_each_option
def attribute(holder: Any, name: str) -> Any:
    """`holder.name`, for an attribute that tensors have, or that rewriting changes."""
    if active() is None:
        return getattr(holder, name)
    if name in OF_CODE:
        return _of_code(holder, name)
    if name == "__class__":
        is_traced = isinstance(holder, TracedTensor | TracedList | sources.Indexed)
        is_traced |= texts.is_text(holder) or isinstance(holder, Either)
        return call(type, holder) if is_traced else holder.__class__
    if name in OF_ERRORS and isinstance(holder, BaseException) and tracer().tries.notes:
        fail(
            f"'{name}' of an exception is read, but is not known in a function that raises and "
            "catches exceptions",
            "keep what is needed in an attribute of the exception, or compile with fallback=True",
        )
    return number_methods.tensor_attribute(holder, name)


def _of_code(holder: Any, name: str) -> Any:
    """Return `__code__` or `__closure__` of a function; fail for one whose code is rewritten."""
    if isinstance(holder, FunctionType) and is_rewritten(holder):
        fail(
            f"'{name}' is read of '{holder.__name__}', a function made while capturing, whose code "
            "is rewritten",
            "define the function outside of the compiled one, or compile with fallback=True",
        )
    is_code = name == "__code__" and isinstance(holder, FunctionType)
    return code_of(holder) if is_code else getattr(holder, name)


@_for_each_option
def getitem(holder: Any, index: Any) -> Any:
    """`holder[index]`."""
    method = _own(holder, "__getitem__")
    if method is not None:
        return call(method, index)
    if (position := _own(index, "__index__")) is not None and not isinstance(holder, dict):
        index = call(position)
    if isinstance(holder, TracedList):
        return operations.get_item(holder, index)
    if isinstance(holder, TracedTensor | sources.Indexed):
        return holder[index]
    if isinstance(holder, defaultdict):
        index = fixed_key(index)
    if isinstance(holder, torch.Tensor) and indexing.has_size(index):
        return indexing.getitem(tracer().promote(holder), index)
    if not indexing.has_position(index) and not texts.is_text(index):
        return holder[index]
    if isinstance(holder, torch.Tensor):
        return indexing.getitem(tracer().promote(holder), index)
    if isinstance(holder, sources.SEQUENCES):
        return sources.item_of_sequence(holder, index)
    if texts.is_text(index) and isinstance(holder, dict):
        return sources.entry_by_text(holder, index)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(index, TracedTensor) and isinstance(holder, dict):
        return sources.entry_of_dict(holder, index)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(index, TracedTensor):
        return holder[concrete(index, "int")]
    return holder[index]


@_for_each_option
def setitem(holder: Any, index: Any, value: Any) -> None:
    """`holder[index] = value`."""
    method = _own(holder, "__setitem__")
    if method is not None:
        call(method, index, value)
    elif isinstance(holder, TracedList):
        operations.set_item(holder, index, value)
    elif isinstance(holder, torch.Tensor):
        if active() is not None and not isinstance(holder, TracedTensor):
            holder = tracer().promote(holder)
        holder[index] = value
    else:
        changes(holder)
        if isinstance(holder, dict):
            index = fixed_key(index)
        holder[concrete(index, "int") if isinstance(index, TracedTensor) else index] = value


@_for_each_option
def delitem(holder: Any, index: Any) -> None:
    """`del holder[index]`."""
    method = _own(holder, "__delitem__")
    if method is not None:
        call(method, index)
    elif isinstance(holder, TracedList):
        operations.delete_item(holder, index)
    else:
        changes(holder)
        if isinstance(holder, dict) and may_be_missing(holder.get(index)):
            check_entries(holder)
        del holder[concrete(index, "int") if isinstance(index, TracedTensor) else index]


@_for_each_option
def delattr(holder: Any, name: str) -> None:
    """`del holder.name`."""
    changes_attribute(holder, name)
    builtins.delattr(holder, name)


@_for_each_option
def setattr(holder: Any, name: str, value: Any) -> None:
    """`holder.name = value`."""
    if isinstance(holder, torch.Tensor) and active() is not None:
        check_tensor_attribute(holder, name)
    changes_attribute(holder, name)
    _note_restored(holder, name, value)
    try:
        builtins.setattr(holder, name, value)
    except Exception as error:  # whatever a descriptor raises
        arguments.check_error(error, builtins.setattr, (holder, name, value), {})
        raise


def _note_restored(holder: Any, name: str, value: Any) -> None:
    """Count a store of the value that the attribute had before the call as a read of it.

    The program has no such store, so a guard must ensure that it runs only if the value is the
    same.
    """
    state = active()
    if state is None:
        return
    for box in state.heap.boxes_of(holder):
        before = state.heap.before_of(box)
        if name in before and is_same({name: before[name]}, {name: value}):
            state.names_read.add(name)


def store_item(value: Any, holder: Any, index: Any) -> None:
    """`holder[index] = value`, with the parameters in Python's order of evaluation."""
    setitem(holder, index, value)


def store(value: Any, holder: Any, name: str) -> None:
    """`holder.name = value`, with the parameters in Python's order of evaluation."""
    setattr(holder, name, value)


def added(first: Any, second: Any) -> Any:
    """`first + second`. A torch.Size is rebuilt, since it takes Python numbers only."""
    is_size = isinstance(first, torch.Size) or isinstance(second, torch.Size)
    if is_size and isinstance(first, tuple) and isinstance(second, tuple):
        return call(torch.Size, (*first, *second))  # pyright: ignore[reportUnknownArgumentType]
    return first + second


def augment(operation: str, value: Any, other: Any) -> Any:
    """`value op= other`. A Python list extended by a list of the Program stays the same object."""
    if isinstance(value, builtins.list) and isinstance(other, TracedList) and operation == "Add":
        call(value.extend, other)
        return value
    if isinstance(value, tuple) and operation == "Add":
        return added(value, other)  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(value, _IMMUTABLE):
        changes(value)
    if isinstance(value, dict | builtins.set):
        other = fixed_keys(value, other)
    return _INPLACE[operation](value, other)


_IMMUTABLE = (int, float, complex, str, bytes, tuple, torch.Tensor, type(None))


_INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd,
    "Sub": operator.isub,
    "Mult": operator.imul,
    "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod,
    "Pow": operator.ipow,
    "MatMult": operator.imatmul,
    "LShift": operator.ilshift,
    "RShift": operator.irshift,
    "BitOr": operator.ior,
    "BitXor": operator.ixor,
    "BitAnd": operator.iand,
}


@_for_each_option
def augment_item(
    holder: Any, index: Any, operation: str, value: Any, is_late: bool = False
) -> None:
    """`holder[index] op= value`. is_late: `value` is a function that returns it."""
    before = getitem(holder, index)
    setitem(holder, index, augment(operation, before, value() if is_late else value))


@_for_each_option
def augment_attr(holder: Any, name: str, operation: str, value: Any, is_late: bool = False) -> None:
    """`holder.name op= value`. is_late: `value` is a function that returns it."""
    before = builtins.getattr(holder, name)
    after = augment(operation, before, value() if is_late else value)
    is_same = after is before or (isinstance(before, torch.Tensor) and _is_of(before, after))
    if (
        not is_same
        or _is_set_by_method(holder, name)
        or (is_late and builtins.getattr(holder, name) is not before)  # `value()` has set it
    ):
        setattr(holder, name, after)


def _is_set_by_method(holder: Any, name: str) -> bool:
    """Return True if storing the attribute calls a method of the user or of a descriptor."""
    entry = next((vars(kind)[name] for kind in type(holder).__mro__ if name in vars(kind)), None)
    return hasattr(type(entry), "__set__") or own_method(holder, "__setattr__") is not None


def _is_of(before: torch.Tensor, after: Any) -> bool:
    """Return True if an in-place operator on a real tensor returned its traced form."""
    state = active()
    known = None if state is None else state.constants.get(id(before))
    return known is not None and isinstance(after, TracedTensor) and after.memory is known.memory


def contains(container: Any, item: Any) -> Any:
    """`item in container`."""
    if active() is None:
        return item in container
    found = next((side for side in (container, item) if isinstance(side, Either)), None)
    if found is not None:
        return branches.for_each_option(
            found, lambda option: contains(*replaced((container, item), found, option))
        )
    if is_number(container):
        kind = number_methods.kind_of_number(container).__name__
        raise TypeError(f"argument of type '{kind}' is not iterable")
    method = own_method(container, "__contains__")
    if method is not None:
        return not_(not_(call(method, item)))
    if isinstance(container, TracedList):
        return operations.contains(container, item)
    if isinstance(container, TracedIterator):
        return iterating.contains(container, item)
    note_use(container)
    check_compared(item, *(container if isinstance(container, builtins.list | tuple) else ()))
    by_number = is_number(item) and isinstance(container, Set | dict)  # its hash is not known
    if isinstance(container, dict) and not by_number and not texts.is_text(item):
        entry = container.get(item, UNDEFINED)
        if isinstance(entry, Either):
            return branches.flag_of_options(entry, lambda option: option is not UNDEFINED)
    if isinstance(container, str):
        is_late = texts.is_text(container) or texts.is_text(item)
        return texts.has_part(container, item) if is_late else item in container
    by_number |= texts.is_text(item) and isinstance(container, Set | dict)
    is_searched = own_method(container, "__iter__") is not None or (
        isinstance(container, builtins.list | tuple | range | set)
        and any(_may_be_equal_in_some_runs(other) for other in (item, *container))
    )
    if is_searched and isinstance(container, builtins.list | tuple):
        ordering.check_identity(container, item)  # pyright: ignore[reportUnknownArgumentType]
    if by_number or is_searched:
        result: Any = False
        for other in container:
            by_identity = isinstance(container, Set) and any(
                isinstance(one, torch.Tensor) and not is_number(one) for one in (item, other)
            )
            found = (
                is_(item, other)
                if by_identity
                else branches.stage_or(is_found(item, other), lambda other=other: item == other)
            )
            result = branches.stage_or(found, lambda before=result: before)
        return result
    if isinstance(container, torch.Tensor) and isinstance(item, torch.Tensor | Number):
        if not any(isinstance(value, TracedTensor) for value in (item, container)):
            return item in container
        equal: Any = item == container
        return to_number(equal.any())
    return item in container


def _may_be_equal_in_some_runs(item: Any) -> bool:
    known = isinstance(item, TracedTensor | Either) or texts.is_text(item)
    return known or own_method(item, "__eq__") is not None


def whole(value: Any) -> Any:
    """Return a value all items of which are used (in a display, call, comprehension or
    assignment). Fails for a dict that lacks some entries in some runs."""
    check_entries(value)
    return value


def equal(first: Any, second: Any) -> Any:
    """`first == second`."""
    check_compared(first, second)
    return first == second


def not_equal(first: Any, second: Any) -> Any:
    """`first != second`. If `__ne__` is object's, it is the negation of the user's `__eq__`."""
    if active() is None:
        return first != second
    check_compared(first, second)
    kinds = (type(first), type(second))
    is_swapped = kinds[0] is not kinds[1] and issubclass(kinds[1], kinds[0])
    for one, other in ((second, first), (first, second)) if is_swapped else ((first, second),):
        if type(one).__ne__ is not object.__ne__:
            break
        method = own_method(one, "__eq__")
        equal = NotImplemented if method is None else call(method, other)
        if equal is not NotImplemented:
            return not_(equal)
    return first != second


def is_found(item: Any, other: Any) -> Any:
    """Return True, or a traced flag, if an item of a container is the very object searched for."""
    are_numbers = is_a_number(item) or is_a_number(other)
    return item is other if are_numbers else is_(item, other)


def is_(first: Any, second: Any) -> Any:
    """`first is second`."""
    if first is second:
        return True
    if not isinstance(first, Either):
        first, second = second, first
    if isinstance(first, Either):
        if isinstance(second, Either | TracedTensor):
            return branches.for_each_option(first, lambda option: is_(option, second))
        return branches.flag_of_options(first, lambda option: option is second)
    if any(map(is_a_number, (first, second))):
        return _are_one_number(first, second)
    if isinstance(first, TracedTensor) and isinstance(second, TracedTensor):
        return _are_one(first, second)
    return False


def is_a_number(value: Any) -> bool:
    """Return True for a Python number that is known only when the program runs."""
    return is_number(value) or isinstance(value, torch.SymInt | torch.SymFloat)


def _are_one_number(first: Any, second: Any) -> Any:
    """Return True, or a traced flag, if two numbers are one object. Bools are singletons; for
    other numbers this depends on how Python was built and how they were computed, so it fails."""
    kinds = {
        builtins.int if isinstance(x, torch.SymInt) else number_kind(x) for x in (first, second)
    }
    if len(kinds) > 1:
        return False
    if kinds == {bool}:
        return first == second if isinstance(first, TracedTensor) else second == first
    fail(
        "`is` compares two numbers, of which one is known only when the program runs",
        "compare them with ==",
    )


def _are_one(first: TracedTensor, second: TracedTensor) -> Any:
    """Compare the identity of tensors left by branches and loops. Returns a traced flag or
    False."""
    if first.number is not None or second.memory not in overlapping(first.memory):
        return False
    if first.memory is second.memory:
        return False
    for source, tensor in ((first, second), (second, first)):
        flags = [item.flag() for item in tensor.memory.sources if item.tensor is source]
        if flags and flags[0] is not None and not tensor.steps:
            return tracer().number(flags[0])
    fail(
        "whether two variables are the same tensor depends on a traced branch or loop",
        "compare flags or numbers instead of tensors",
    )


def text(*parts: texts.TextPart) -> Any:
    """An f-string."""
    return texts.joined(parts)


def modulo(first: Any, second: Any) -> Any:
    """`first % second`."""
    if active() is None or not isinstance(first, str):
        return first % second
    found = first_either(second)
    if found is not None:
        return branches.for_each_option(
            found, lambda option: modulo(first, replaced(second, found, option))
        )
    return percent(first, second)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": equal,
    "NotEq": not_equal,
    "Is": is_,
    "IsNot": lambda first, second: not_(is_(first, second)),
    "In": lambda item, container: contains(container, item),
    "NotIn": lambda item, container: not_(contains(container, item)),
}


def _chained(both: Callable[..., Any]) -> Callable[..., Any]:
    def chain(operators: tuple[str, ...], first: Any, *operands: Callable[[], Any]) -> Any:
        """`first op operand op operand ...`, each operand evaluated at most once."""
        second = operands[0]()
        outcome = _COMPARE[operators[0]](first, second)
        if len(operands) == 1:
            return outcome
        return both(outcome, lambda: chain(operators[1:], second, *operands[1:]))

    return chain


chain = _chained(and_)
value_of_chain = _chained(value_of_and_)


def assert_(condition: Any, message: Callable[[], Any], has_message: Callable[[], bool]) -> None:
    """`assert condition, message`."""

    def fails() -> None:
        raise AssertionError(message()) if has_message() else AssertionError()

    branches.stage_ifexp(condition, lambda: None, fails)


def _augmented(operation: str) -> Callable[[Any, Any], Any]:
    """Return a rule for a function of the module `operator` that changes its first argument."""
    return lambda value, other: augment(operation, value, other)


RULES.update({function: _augmented(name) for name, function in _INPLACE.items()})
RULES.update({operator.getitem: getitem, operator.setitem: setitem, operator.delitem: delitem})


def namespace(table: dict[str, Any]) -> dict[str, Any]:
    """`globals()` of the user's code. Fails there: variables accessed by name through it are not
    seen as read or assigned."""
    if active() is not None and is_user_file(table.get("__file__", "")):
        fail(
            "globals() is called, but its entries are not tracked while capturing",
            "name the variables; to assign one, declare it with `global`",
        )
    return table


def variables(found: Any) -> Any:
    """`locals()`, `vars()` and `dir()` of the user's code. Fails: parts of the code are separate
    functions with other variables."""
    if active() is not None:
        fail(
            "locals(), vars() or dir() is called, but variables differ while capturing",
            "name the variables, or compile with fallback=True",
        )
    return found


def wrote_outer(place: dict[str, Any] | CallFrame, name: str) -> None:
    """Record an assignment to `name`, declared global (`place` is a namespace) or nonlocal."""
    state = active()
    if state is not None and isinstance(place, dict):
        state.global_writes += 1
    changes(place.cells[name] if isinstance(place, CallFrame) else place)


__all__ = [
    "added",
    "and_",
    "as_flag",
    "assert_",
    "attribute",
    "augment",
    "augment_attr",
    "augment_item",
    "bound",
    "bound_values",
    "call",
    "chain",
    "contains",
    "context",
    "defined",
    "delattr",
    "delitem",
    "enter",
    "enter_try",
    "equal",
    "for_",
    "generator",
    "getitem",
    "if_",
    "ifexp",
    "is_",
    "leave",
    "leave_try",
    "listed",
    "local",
    "mark",
    "modulo",
    "namespace",
    "not_",
    "not_equal",
    "or_",
    "pass_to_consumer",
    "plain",
    "slice",
    "statements",
    "store",
    "store_item",
    "text",
    "value_of_and_",
    "value_of_chain",
    "value_of_or_",
    "variables",
    "while_",
    "whole",
    "wrote_outer",
    "yielded",
]  # fmt: skip

decompositions.RULES.update(recurrent.RECURRENT)
RULES[operator.is_], RULES[operator.is_not] = is_, _COMPARE["IsNot"]

Hooks.staging = sys.modules[__name__]
Hooks.getitem = indexing.getitem
Hooks.setitem = indexing.setitem
Hooks.item = to_number
Hooks.concrete = concrete
Hooks.arithmetic = arithmetic.applied
Hooks.arithmetic_of_one = arithmetic.applied_to_one
Hooks.of_operator = arithmetic.of_operator
Hooks.of_function = arithmetic.of_function

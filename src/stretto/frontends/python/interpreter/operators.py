"""Truth, operators and comparisons, as Python's data model has them."""

from __future__ import annotations

import ast
import operator
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stretto.frontends.python.interpreter import data_texts, native_code
from stretto.frontends.python.interpreter.data_dicts import DataDict
from stretto.frontends.python.interpreter.frames import HostFunction
from stretto.frontends.python.interpreter.heap import (
    ATOMS,
    ITEMS,
    MISSING,
    DataRef,
    DictView,
    HeapObject,
    Ref,
)
from stretto.frontends.python.interpreter.host import apply
from stretto.frontends.python.lists import data_methods, operations
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.signals import Poison
from stretto.frontends.python.tracing.tensor import (
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import (
    to_traced_list,
)
from stretto.frontends.python.values.scalars import (
    is_number,
    known_value,
    number_kind,
)
from stretto.frontends.python.values.state import TracedList
from stretto.frontends.python.values.texts import is_text
from stretto.ir.types import Scalar

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class Operators:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def truth(self, value: Any) -> Any:
        """Return the truth of a value: a bool, or a traced flag."""
        match value:
            case bool():
                return value
            case Either():
                return self.interpreter.regions.each_option(value, self.truth)
            case torch.Tensor() | torch.SymBool() | torch.SymInt() | torch.SymFloat():
                return self.interpreter.regions.condition(value)
            case Poison():
                value.fail()
            case _ if is_text(value) and tracer().data is not None:
                data = tracer().data
                return data.made("truth", (data.text_value(value),), Scalar.BOOL)
            case DictView():
                return self.truth(self.interpreter.containers.length(value))
            case _:
                for name in ("__bool__", "__len__"):
                    method = self.interpreter.attributes.method(value, name)
                    if method is not MISSING:
                        return self._truth_by(name, self.interpreter.calls.call(method, (), {}))
                if isinstance(value, Ref):
                    return self.interpreter.containers.with_content(
                        value, lambda: self._has_items(value)
                    )
                return True if self._is_of_user(value) else apply(bool, value)

    def _truth_by(self, name: str, found: Any) -> Any:
        if name == "__len__":
            return self.truth(self.interpreter.containers.checked_length(found))
        kind = self.interpreter.attributes.type_of(found)
        if kind is not bool:
            raise TypeError(f"__bool__ should return bool, returned {kind.__name__}")
        return self.truth(found)

    def _has_items(self, holder: Ref) -> Any:
        items, regions = self.interpreter.containers.items(holder), self.interpreter.regions
        if isinstance(items, TracedList | DataDict):
            return self.truth(self.interpreter.containers.count(holder) > 0)
        if isinstance(items, dict):
            return regions.any_of([False, *map(regions.is_bound, items.values())])
        return bool(items)

    def special(self, value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a special method that is not native code; NotImplemented if there is none."""
        found = self.interpreter.attributes.method(value, name)
        if found is MISSING:
            return NotImplemented
        return self.interpreter.calls.call(found, args, kwargs)

    def _option_of(self, *values: Any) -> Either | None:
        """Return the first operand that is one of several values and may have methods of its own;
        None if operators of these values are known to all of them."""
        found = next((x for x in values if isinstance(x, Either)), None)
        if found is None:
            return None
        options = [o for x in values if isinstance(x, Either) for o in x.stretto_options]
        plain = all(
            type(o) in ATOMS or isinstance(o, torch.Tensor)
            for o in (*options, *values)
            if not isinstance(o, Either)
        )
        return None if plain else found

    def decided(self, value: Any) -> Any:
        """Return a condition on sizes that is an operand as a bool, or a traced flag."""
        return self.truth(value) if isinstance(value, torch.SymBool) else value

    def each(self, operation: Callable[..., Any], *operands: Any) -> Any:
        """Apply an operation for each option of an operand; NotImplemented if all are known."""
        found = next((x for x in operands if isinstance(x, Either)), None)
        if found is None:
            return NotImplemented

        def on_option(option: Any) -> Any:
            return operation(*_replaced(operands, found, option))

        return self.interpreter.regions.each_option(found, on_option)

    def binary(self, name: str, first: Any, second: Any) -> Any:
        """Return `first <operator> second`."""
        first, second = self.decided(first), self.decided(second)
        either = self._option_of(first, second)
        if either is not None:

            def on_option(x: Any) -> Any:
                return self.binary(name, *_replaced((first, second), either, x))

            return self.interpreter.regions.each_option(either, on_option)
        type_of = self.interpreter.attributes.type_of
        kinds = type_of(first), type_of(second)
        calls = [(first, f"__{name}__", second)]
        if kinds[0] is not kinds[1]:
            calls.append((second, f"__r{name}__", first))
            if self._comes_first(kinds, calls[1][1]):
                calls.reverse()
        for held, method, other in calls:
            result = self.special(held, method, other)
            if result is not NotImplemented:
                return result
        if name == "mul" and tracer().data is not None:
            held, count = (first, second) if isinstance(first, str) else (second, first)
            if isinstance(held, str) and issubclass(type_of(count), int):
                return data_texts.repeated(self.interpreter, held, count)
        if name == "mod" and isinstance(first, str):
            return self.interpreter.strings.percent(first, second)
        if name == "mod" and isinstance(first, bytes | bytearray):
            return self.interpreter.calls.native(operator.mod, (first, second), {})
        if isinstance(first, Ref | DictView) or isinstance(second, Ref | DictView):
            return self.of_containers(name, first, second)
        if name == "add" and isinstance(first, tuple) and isinstance(second, tuple):
            if isinstance(first, torch.Size) or isinstance(second, torch.Size):
                return self.interpreter.calls.call(torch.Size, ((*first, *second),), {})
            return (*first, *second)
        if any(map(self._is_of_user, (first, second))):
            if name == "mul" and isinstance(first, tuple | str | bytes):
                count = self.special(second, "__index__")
                if count is not NotImplemented:
                    return self.binary(name, first, count)
            return self._no_operator(name, first, second)
        return apply(OPERATORS[name], first, second)

    def _comes_first(self, kinds: tuple[type, type], method: str) -> bool:
        """True if the second operand is asked first: its class is derived from that of the first
        one, and has a reflected method of its own."""
        if kinds[0] not in kinds[1].__mro__:
            return False
        entry = self.interpreter.attributes.entry
        return entry(kinds[1], method) is not entry(kinds[0], method)

    def _is_of_user(self, value: Any) -> bool:
        """True for an object whose operators are its own alone."""
        return isinstance(value, HeapObject | DictView) or self.heap.is_own(value)

    def _no_operator(self, name: str, first: Any, second: Any) -> Any:
        if name == "add" and isinstance(first, tuple | str):  # it has a message of its own
            return apply(OPERATORS[name], first, self.heap.real(second))
        left, right = (self.interpreter.attributes.type_of(x).__name__ for x in (first, second))
        shown = SYMBOLS[name] if name != "pow" else "** or pow()"
        raise TypeError(f"unsupported operand type(s) for {shown}: '{left}' and '{right}'")

    def of_containers(self, name: str, first: Any, second: Any) -> Any:
        """Return the result of an operator of lists, dicts, sets and deques."""
        containers = self.interpreter.containers
        if name == "mul":
            found = self._repeated(first, second)
        elif name == "add":
            found = self._concatenated(first, second)
        elif name in _SETS:
            found = containers.of_operator(name, first, second)
        else:
            found = NotImplemented
        if found is not NotImplemented:
            return found
        if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
            return apply(OPERATORS[name], self.heap.real(first), self.heap.real(second))
        return self._no_operator(name, first, second)

    def _concatenated(self, first: Any, second: Any) -> Any:
        if any(isinstance(x, DataRef) and x.kind is tuple for x in (first, second)):
            return self._joint_tuple(first, second)
        if not isinstance(first, Ref) or not issubclass(first.kind, list | deque):
            return NotImplemented
        base = list if issubclass(first.kind, list) else deque
        if not isinstance(second, Ref) or not issubclass(second.kind, base):
            kind = self.interpreter.attributes.type_of(second).__name__
            if isinstance(second, torch.Tensor) and not is_number(second):
                return NotImplemented
            raise TypeError(
                f'can only concatenate {base.__name__} (not "{kind}") to {base.__name__}'
            )
        made = self.interpreter.containers.copied(first)
        self.interpreter.containers.method_call(made, "extend", (second,), {})
        return made

    def _joint_tuple(self, first: Any, second: Any) -> Any:
        """Return the sum of two tuples, one of which is of an instance."""
        for value in (first, second):
            kind = self.interpreter.attributes.type_of(value)
            if not issubclass(kind, tuple):
                raise TypeError(f'can only concatenate tuple (not "{kind.__name__}") to tuple')
        parts = [x.table[ITEMS] if isinstance(x, Ref) else x for x in (first, second)]
        return self.heap.new(tuple, tracer().data.concatenated(*parts))

    def _repeated(self, first: Any, second: Any) -> Any:
        held, count = (first, second) if isinstance(first, Ref) else (second, first)
        if not isinstance(held, Ref) or not issubclass(held.kind, list | deque):
            return NotImplemented
        items = held.table[ITEMS]
        position = self.special(count, "__index__")
        count = count if position is NotImplemented else position
        if isinstance(count, torch.SymInt):
            count = tracer().number_of_dim(count)
        if not issubclass(number_kind(count) or object, int):
            kind = self.interpreter.attributes.type_of(count).__name__
            raise TypeError(f"can't multiply sequence by non-int of type '{kind}'")
        known = known_value(count) if isinstance(count, TracedTensor) else count
        if isinstance(items, TracedList) or known is None:
            return self.heap.new(list, operations.repeated(self.as_traced(items), count))
        made = self.interpreter.containers.copied(held)
        self.interpreter.containers.put_bounded(made, items * known)
        return made

    def as_traced(self, items: Any) -> Any:
        if isinstance(items, TracedList):
            return items

        return to_traced_list(list(items))

    def augment(self, name: str, before: Any, value: Any) -> Any:
        """Return what `before <operator>= value` assigns."""
        if isinstance(before, Either) and self._option_of(before, value) is not None:

            def on_option(x: Any) -> Any:
                return self.augment(name, x, value)

            return self.interpreter.regions.each_option(before, on_option)
        found = self.special(before, f"__i{name}__", value)
        if found is not NotImplemented:
            return found
        if isinstance(before, Ref):
            found = self.interpreter.containers.augment(name, before, value)
            return self.binary(name, before, value) if found is NotImplemented else found
        is_tensor = isinstance(before, torch.Tensor) and not is_number(before)
        if is_tensor and not self._has_reflected(value, name):
            return apply(INPLACE[name], before, self.heap.real(value))
        is_native = not native_code.is_immutable(before) and not self._is_of_user(before)
        method = getattr(before, f"__i{name}__", None) if is_native else None
        if method is not None:
            found = self.interpreter.calls.native(method, (value,), {})
        return self.binary(name, before, value) if found is NotImplemented else found

    def _has_reflected(self, value: Any, name: str) -> bool:
        return self.interpreter.attributes.method(value, f"__r{name}__") is not MISSING

    def unary(self, operation: Callable[[Any], Any], value: Any) -> Any:
        value = self.decided(value)
        if isinstance(value, Either) and self._option_of(value) is not None:

            def on_option(x: Any) -> Any:
                return self.unary(operation, x)

            return self.interpreter.regions.each_option(value, on_option)
        found = self.interpreter.attributes.method(value, f"__{operation.__name__}__")
        if found is not MISSING:
            return self.interpreter.calls.call(found, (), {})
        is_inverted = operation is operator.invert
        of = self.interpreter.attributes.type_of(value)
        if self._is_of_user(value) or (is_inverted and issubclass(of, float | complex)):
            kind = of.__name__
            symbol = _UNARY_SYMBOLS[operation.__name__]
            raise TypeError(f"bad operand type for unary {symbol}: '{kind}'")
        return apply(operation, value)

    def compare(self, op: type, first: Any, second: Any) -> Any:
        first, second = self.decided(first), self.decided(second)
        regions = self.interpreter.regions
        match op:
            case ast.Is:
                return self.same(first, second)
            case ast.IsNot:
                return regions.negated(self.same(first, second))
            case ast.In:
                return self.contains(second, first)
            case ast.NotIn:
                return regions.negated(self.truth(self.contains(second, first)))
            case _:
                pass
        either = self._option_of(first, second)
        if either is not None:

            def on_option(x: Any) -> Any:
                return self.compare(op, *_replaced((first, second), either, x))

            return regions.each_option(either, on_option)
        name = COMPARISONS[op]
        if tracer().data is not None and (is_text(first) or is_text(second)):
            found = tracer().data.compared(name, first, second)
            if found is not NotImplemented:
                return found
        type_of = self.interpreter.attributes.type_of
        kinds = type_of(first), type_of(second)
        calls = [(first, name, second), (second, _SWAPPED[name], first)]
        if kinds[0] is not kinds[1] and kinds[0] in kinds[1].__mro__:
            calls.reverse()
        for held, method, other in calls:
            result = self._compared(held, method, other)
            if result is not NotImplemented:
                return result
        if isinstance(first, tuple) and isinstance(second, tuple):
            items = [(*tuple.__iter__(side),) for side in (first, second)]
            return self.compare_containers(op, *items)
        if any(map(self._is_of_user, (first, second))):
            return self._not_compared(op, first, second)
        return apply(getattr(operator, name), first, second)

    def _compared(self, held: Any, method: str, other: Any) -> Any:
        """Return what an operand says of a comparison."""
        if isinstance(held, Ref | DictView):
            entry = self.interpreter.attributes.method(held, f"__{method}__")
            if entry is MISSING:
                return self.interpreter.containers.compared(method, held, other)
        found = self.special(held, f"__{method}__", other)
        if found is not NotImplemented or method != "ne":
            return found
        if self.interpreter.attributes.method(held, "__ne__") is not MISSING:
            return found
        found = self.special(held, "__eq__", other)
        if found is NotImplemented:
            return found
        return self.interpreter.regions.negated(self.truth(found))

    def _not_compared(self, op: type, first: Any, second: Any) -> Any:
        """Return the comparison of objects none of which knows the other one."""
        if op is ast.Eq:
            return self.same(first, second)
        if op is ast.NotEq:
            return self.interpreter.regions.negated(self.same(first, second))
        left, right = (self.interpreter.attributes.type_of(x).__name__ for x in (first, second))
        raise TypeError(
            f"'{COMPARISON_SYMBOLS[op]}' not supported between instances of '{left}' and '{right}'"
        )

    def compare_containers(self, op: type, a: Any, b: Any) -> Any:
        """Compare two sequences, given as their items."""
        if isinstance(a, DataList) or isinstance(b, DataList):
            return self._compared_data(op, a, b)
        if isinstance(a, TracedList) or isinstance(b, TracedList):
            if not isinstance(a, TracedList):
                a, b, op = b, a, _SWAPPED_OPS.get(op, op)
            other = list(b) if isinstance(b, tuple) else b
            return operations.compared(a, COMPARISON_SYMBOLS[op], other)
        if op is ast.NotEq:
            return self.interpreter.regions.negated(
                self.truth(self.compare_containers(ast.Eq, a, b))
            )
        if op is ast.Eq and len(a) != len(b):
            return False
        return self._lexicographic(op, a, b, 0)

    def _compared_data(self, op: type, a: Any, b: Any) -> Any:
        interpreter, heap = self.interpreter, self.heap
        items, others = heap.new(list, a), heap.new(list, b)
        same = HostFunction(interpreter.membership.equal)
        if op in (ast.Eq, ast.NotEq):
            found = interpreter.run_own(data_methods.are_equal, items, others, same)
            return found if op is ast.Eq else self.interpreter.regions.negated(self.truth(found))
        compare = HostFunction(lambda x, y: self.compare(op, x, y))
        return interpreter.run_own(data_methods.compared, items, others, same, compare)

    def _lexicographic(self, op: type, one: Any, two: Any, start: int) -> Any:
        """Compare two tuples, whose items before `start` are equal."""
        for at in range(start, min(len(one), len(two))):
            a, b = one[at], two[at]
            equal = self.interpreter.membership.equal(a, b)
            if equal is True:
                continue
            if equal is False:
                return False if op is ast.Eq else self.compare(op, a, b)

            def following(after: int = at + 1) -> Any:
                return self._lexicographic(op, one, two, after)

            if op is ast.Eq:
                return self.interpreter.regions.logical(True, equal, following)

            def decided(a: Any = a, b: Any = b) -> Any:
                return self.compare(op, a, b)

            return self.interpreter.regions.branch(equal, following, decided)
        return getattr(operator, COMPARISONS[op])(len(one), len(two))

    def same(self, first: Any, second: Any) -> Any:
        """Return `first is second`: a bool, or a traced flag."""
        return self.interpreter.membership.same(first, second)

    def contains(self, container: Any, item: Any) -> Any:
        """Return `item in container`: a bool, or a traced flag."""
        return self.interpreter.membership.contains(container, item)

    def among(self, holder: Ref, item: Any) -> Any:
        """Return whether an item is in a container, as its class in C decides it."""
        return self.interpreter.membership.in_container(holder, item)


OPERATORS = {
    name: getattr(operator, f"__{name}__")
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift",
        "or", "xor", "and",
    )
}  # fmt: skip
INPLACE = {name: getattr(operator, f"__i{name}__") for name in OPERATORS}
SYMBOLS = dict(
    add="+", sub="-", mul="*", truediv="/", floordiv="//", mod="%", pow="**", matmul="@",
    lshift="<<", rshift=">>", xor="^", **{"or": "|", "and": "&"},
)  # fmt: skip
_SETS = ("or", "and", "sub", "xor")
_UNARY_SYMBOLS = {"neg": "-", "pos": "+", "invert": "~"}
COMPARISONS: dict[type, str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_SWAPPED_OPS: dict[type, type] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
COMPARISON_SYMBOLS: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


def _replaced(values: tuple[Any, ...], either: Either, option: Any) -> tuple[Any, ...]:
    return tuple(option if x is either else x for x in values)

"""Comparisons: order, identity, equality, membership."""

from __future__ import annotations

import ast
import enum
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stretto.batching.frontend.attributes import (
    attribute,
    by_method,
    check_equality,
    compared_fields,
    enumeration,
    is_member,
    may_be_member,
    method_of,
    name_of,
    operated,
    ordered_fields,
)
from stretto.batching.frontend.dispatch import apply
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_items
from stretto.batching.frontend.joins import (
    FEW,
    chosen,
    class_of,
    each_type,
    either,
    has_type,
    python_class,
    unpacked,
)
from stretto.batching.frontend.purity import call_static
from stretto.batching.frontend.python_library import MODULE
from stretto.batching.frontend.tensor_operators import call_torch
from stretto.batching.frontend.tensor_results import (
    NUMBERS,
    holds_tensor,
    is_perhaps_tensor,
    is_tensor_like,
)
from stretto.batching.frontend.truth import truth
from stretto.batching.frontend.values import (
    ChoiceValue,
    Composed,
    Dynamic,
    IterableValue,
    Method,
    Static,
    TupleValue,
    Value,
    is_data,
    is_scalar,
    is_static,
    python_of,
    same,
)
from stretto.ir.types import (
    DataType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
)

_ORDER: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
}


_ORDER_SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def compare(frame: Frame, op: ast.cmpop, left: Value, right: Value) -> Value:
    if isinstance(left, ChoiceValue):
        return chosen(frame, left, lambda one: compare(frame, op, one, right))
    if isinstance(right, ChoiceValue):
        return chosen(frame, right, lambda one: compare(frame, op, left, one))
    if not isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn):
        if is_perhaps_tensor(left):
            return each_type(frame, left, lambda one: compare(frame, op, one, right))
        if is_perhaps_tensor(right):
            return each_type(frame, right, lambda one: compare(frame, op, left, one))
    match op:
        case ast.Is():
            return identical(frame, left, right)
        case ast.IsNot():
            return negated(frame, identical(frame, left, right))
        case ast.Eq():
            return equal(frame, left, right)
        case ast.NotEq():
            if is_static(left) and is_static(right):
                return call_static(frame, operator.ne, [python_of(left), python_of(right)], {})
            if is_tensor_like(left) or is_tensor_like(right):
                return call_torch(frame, operator.ne, [left, right], {})
            return _unequal(frame, left, right)
        case ast.In():
            return contains(frame, right, left)
        case ast.NotIn():
            return negated(frame, contains(frame, right, left))
        case _:
            return _ordered(frame, op, left, right)


def _same_member(frame: Frame, value: Dynamic, other: Value) -> Value:
    """Return a bool value: true if a value of one type, perhaps a member of an enumeration, is
    identical to another value."""
    python = enumeration(frame, value.type)
    if python is None:
        return Static(False) if _is_all_members(frame, other) else identical(frame, value, other)
    if isinstance(other, Static):
        is_one = type(other.value) is python
        return is_member(frame, value, other.value) if is_one else Static(False)
    if not isinstance(other, Dynamic):
        return Static(False)

    def single(one: Dynamic) -> Value:
        if one.type != value.type:
            return Static(False)
        names = [name_of(frame, member).operand for member in (value, one)]
        return frame.assign("eq", Scalar.BOOL, *names)

    return each_type(frame, other, single)


def _is_all_members(frame: Frame, value: Value) -> bool:
    if isinstance(value, Static):
        return isinstance(value.value, enum.Enum)
    kinds = alternatives(value.type) if isinstance(value, Dynamic) else ()
    return bool(kinds) and all(enumeration(frame, kind) is not None for kind in kinds)


def _unequal(frame: Frame, left: Value, right: Value) -> Value:
    """Return left != right: by `__ne__` if the left object has one, else the negation of ==."""
    for value in (left, right):
        kinds = list(alternatives(value.type)) if isinstance(value, Dynamic) else []
        if not any(method_of(frame, kind, "__ne__") is not None for kind in kinds):
            continue
        if isinstance(value, Dynamic) and value is left and len(kinds) == 1:
            found = by_method(frame, value, "__ne__", right)
            if found is not None:
                return found
        frame.refuse("!= of a value that may have a method __ne__ of its own", "use `not ==`")
    return negated(frame, equal(frame, left, right))


def negated(frame: Frame, value: Value) -> Value:
    if isinstance(value, Static):
        return Static(not value.value)
    return frame.assign("not", Scalar.BOOL, frame.operand(value))


def _ordered(frame: Frame, op: ast.cmpop, left: Value, right: Value) -> Value:
    name, function = _ORDER[type(op)]
    if is_static(left) and is_static(right):
        return call_static(frame, function, [python_of(left), python_of(right)], {})
    if is_tensor_like(left) or is_tensor_like(right) or holds_tensor(left, right):
        return call_torch(frame, function, [left, right], {})

    def single(a: Dynamic, b: Dynamic) -> Value:
        own = operated(frame, name, a, b)
        if own is not None:
            return own
        fields = ordered_fields(frame, a.type) if a.type == b.type else None
        if fields is not None:
            parts = ([attribute(frame, one, field) for field in fields] for one in (a, b))
            return _ordered_items(frame, op, *parts)
        if isinstance(a.type, TupleType) and isinstance(b.type, TupleType):
            parts = unpacked(frame, a, a.type), unpacked(frame, b, b.type)
            return _ordered_items(frame, op, *parts)
        if isinstance(a.type, ListType | TupleType) and isinstance(b.type, ListType | TupleType):
            frame.refuse("< or > of lists is not supported", "compare their items")
        numbers = a.type in NUMBERS and b.type in NUMBERS
        if not numbers and not (a.type is Scalar.STR and b.type is Scalar.STR):
            if any(python_class(frame, one.type).__module__ == MODULE for one in (a, b)):
                shown = class_of(frame, a.type).__name__
                frame.refuse(f"a {shown} is compared by its order", "compare lists of the items")
            names = [python_class(frame, one.type).__name__ for one in (a, b)]
            kinds = " and ".join(map(repr, names))
            frame.stop(
                TypeError, f"'{_ORDER_SYMBOLS[name]}' not supported between instances of {kinds}"
            )
        return frame.assign(name, Scalar.BOOL, a.operand, b.operand)

    return each_type(frame, left, lambda a: each_type(frame, right, lambda b: single(a, b)))


def _ordered_items(
    frame: Frame, op: ast.cmpop, left: Sequence[Value], right: Sequence[Value]
) -> Value:
    """Compare tuples by the first items that differ, or by their lengths."""
    if not left or not right:
        _, function = _ORDER[type(op)]
        return Static(function(len(left), len(right)))
    alike = equal(frame, left[0], right[0])
    strict = ast.Lt() if isinstance(op, ast.Lt | ast.LtE) else ast.Gt()
    return either(
        frame,
        frame.operand(alike),
        lambda: _ordered_items(frame, op, left[1:], right[1:]),
        lambda: compare(frame, strict, left[0], right[0]),
    )


def identical(frame: Frame, left: Value, right: Value) -> Value:
    """Return left is right."""
    if left is right or (same(left, right) and not isinstance(left, TupleValue | Method)):
        return Static(True)
    if isinstance(left, Static) and isinstance(right, Static):
        return Static(left.value is right.value)
    if isinstance(left, Method) and isinstance(right, Method):
        frame.refuse("two methods are compared by `is`")
    if isinstance(left, Composed) or isinstance(right, Composed):
        return Static(left is right)
    none = Static(None)
    for value, other in ((left, right), (right, left)):
        if same(value, none):
            return has_type(frame, other, (Scalar.NONE,))
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Dynamic) and may_be_member(frame, value):
            return each_type(frame, value, lambda one, o=other: _same_member(frame, one, o))
    if isinstance(left, Dynamic) and isinstance(right, Dynamic):
        kinds = set(alternatives(left.type)) & set(alternatives(right.type))
        if not kinds:
            return Static(False)
        return frame.assign("is", Scalar.BOOL, left.operand, right.operand)
    if is_scalar(left) or is_scalar(right):
        return frame.assign("is", Scalar.BOOL, frame.operand(left), frame.operand(right))
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Dynamic) and isinstance(other, Static):
            classes = [python_class(frame, kind) for kind in alternatives(value.type)]
            if type(other.value) in classes:
                frame.refuse(
                    f"an object of the instance is compared by `is` with a "
                    f"{type(other.value).__name__} that all instances share"
                )
    return Static(False)


def equal(frame: Frame, left: Value, right: Value) -> Value:
    """Return left == right."""
    if is_static(left) and is_static(right):
        return call_static(frame, operator.eq, [python_of(left), python_of(right)], {})
    if _is_tensor(left) or _is_tensor(right) or holds_tensor(left, right):
        return call_torch(frame, operator.eq, [left, right], {})
    if isinstance(left, TupleValue) and isinstance(right, TupleValue):
        return _equal_tuples(frame, left, right)
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Static) and not is_data(value):
            return _equal_static(frame, other, value)
    a, b = frame.dynamic(left), frame.dynamic(right)
    kinds = (*alternatives(a.type), *alternatives(b.type))
    if any(isinstance(kind, TensorType | RowsType) for kind in kinds):
        frame.refuse("== of a value that may or may not be a tensor is not supported")
    if any(_has_equality(frame, kind) for kind in kinds):
        return each_type(
            frame, a, lambda x: each_type(frame, b, lambda y: _equal_objects(frame, x, y))
        )
    return _equal_data(frame, a, b)


def _equal_static(frame: Frame, value: Value, shared: Static) -> Value:
    """Return a bool value: true if a value equals an object that all instances share and that is
    no data."""
    kinds = tuple(alternatives(frame.type_of(value)))
    for kind in kinds:
        if method_of(frame, kind, "__eq__") is not None:
            found = by_method(frame, frame.dynamic(value), "__eq__", shared)
            return Static(False) if found is None else found
    if isinstance(shared.value, enum.Enum):
        return identical(frame, value, shared)
    if any(issubclass(type(shared.value), python_class(frame, kind)) for kind in kinds):
        frame.refuse(
            f"a {type(shared.value).__name__} that all instances share is compared with one of "
            "the instance",
            "compare what they hold",
        )
    return Static(False)


def _has_equality(frame: Frame, kind: DataType) -> bool:
    """Return True if == of objects of a class is neither that of all fields nor identity."""
    if not isinstance(kind, RecordType):
        return False
    own = method_of(frame, kind, "__eq__") is not None or enumeration(frame, kind) is not None
    return own or compared_fields(frame, kind) is not None


def _equal_objects(frame: Frame, left: Dynamic, right: Dynamic) -> Value:
    """Return == of two values of one type each, either of which may have its own ==."""
    found = operated(frame, "eq", left, right)
    if found is not None:
        return found
    if any(enumeration(frame, one.type) is not None for one in (left, right)):
        return identical(frame, left, right)
    if left.type == right.type and isinstance(left.type, RecordType):
        if method_of(frame, left.type, "__eq__") is not None:  # it returned NotImplemented
            return identical(frame, left, right)
        names = compared_fields(frame, left.type)
        if names is not None:
            pairs = [[attribute(frame, one, name) for one in (left, right)] for name in names]
            return all_of(frame, [lambda p=pair: equal(frame, *p) for pair in pairs])
    return _equal_data(frame, left, right)


def _equal_data(frame: Frame, a: Dynamic, b: Dynamic) -> Value:
    if not _may_be_equal(a.type, b.type):
        return Static(False)
    check_equality(frame, a.type)
    check_equality(frame, b.type)
    return frame.assign("eq", Scalar.BOOL, a.operand, b.operand)


def _is_tensor(value: Value) -> bool:
    if isinstance(value, Composed):
        return True
    return isinstance(value, Dynamic) and all(
        isinstance(kind, TensorType | RowsType) for kind in alternatives(value.type)
    )


def _may_be_equal(left: DataType, right: DataType) -> bool:
    def kinds(type_: DataType) -> set[str]:
        return {
            "number" if item in NUMBERS else str(item) if isinstance(item, Scalar) else "object"
            for item in alternatives(type_)
        }

    return bool(kinds(left) & kinds(right))


def _equal_tuples(frame: Frame, left: TupleValue, right: TupleValue) -> Value:
    if len(left.items) != len(right.items) or left.is_list != right.is_list:
        return Static(False)
    return all_of(
        frame,
        [lambda a=a, b=b: equal(frame, a, b) for a, b in zip(left.items, right.items, strict=True)],
    )


def all_of(frame: Frame, conditions: Sequence[Callable[[], Value]]) -> Value:
    """Return a bool value: true if all conditions hold, evaluated in order until one does not."""
    return _in_order(frame, conditions, False)


def any_of(frame: Frame, conditions: Sequence[Callable[[], Value]]) -> Value:
    """Return a bool value: true if any condition holds, evaluated in order until one does."""
    return _in_order(frame, conditions, True)


def _in_order(frame: Frame, conditions: Sequence[Callable[[], Value]], decisive: bool) -> Value:
    """Evaluate conditions until one equals `decisive`; return `decisive` if one does, else its
    negation."""
    if not conditions:
        return Static(not decisive)
    half = 1 if len(conditions) <= FEW else len(conditions) // 2
    rest = conditions[half:]
    value = conditions[0]() if half == 1 else _in_order(frame, conditions[:half], decisive)
    if isinstance(value, Static):
        decided = bool(value.value) == decisive
        return Static(decisive) if decided else _in_order(frame, rest, decisive)
    if not rest:
        return value
    ends, goes_on = (lambda: Static(decisive)), (lambda: _in_order(frame, rest, decisive))
    arms = (ends, goes_on) if decisive else (goes_on, ends)
    return either(frame, frame.operand(value), *arms)


def contains(frame: Frame, container: Value, item: Value) -> Value:
    """Return item in container."""
    match container:
        case Static(found) if is_static(item):
            note_items(frame.evaluation, found)
            return Static(python_of(item) in found)
        case Static(found) if isinstance(found, tuple | list | set | frozenset | dict):
            note_items(frame.evaluation, found)
            return any_of(frame, [lambda x=x: equal(frame, item, Static(x)) for x in found])
        case Static(str()):
            return _contains(frame, frame.dynamic(container), item)
        case Static(found) if isinstance(found, torch.nn.ModuleDict | torch.nn.ParameterDict):
            note_items(frame.evaluation, found)
            return any_of(frame, [lambda x=x: equal(frame, item, Static(x)) for x in list(found)])
        case TupleValue(items):
            return any_of(frame, [lambda x=x: equal(frame, item, x) for x in items])
        case Dynamic():
            return each_type(frame, container, lambda one: _contains(frame, one, item))
        case IterableValue(_, python) if hasattr(python, "__contains__") and python is not range:
            return contains(frame, apply(frame, Static(list), [container]), item)
        case _:
            return frame.refuse("`in` of something that is not a container of data")


def _contains(frame: Frame, container: Dynamic, item: Value) -> Value:
    kind = container.type
    if isinstance(kind, RecordType) and frame.evaluation.info(kind).kind == "dict":
        return contains(frame, Static(frame.evaluation.info(kind).fields), item)
    own = by_method(frame, container, "__contains__", item)
    if own is not None:
        found = truth(frame, own)
        return Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)
    if isinstance(kind, TensorType | RowsType | RecordType):
        frame.refuse(f"`in` of {frame.show(kind)}")
    given = frame.dynamic(item)
    tensors = any(isinstance(x, TensorType | RowsType) for x in alternatives(given.type))
    if tensors or (
        isinstance(kind, ListType)
        and any(isinstance(x, TensorType) for x in alternatives(frame.evaluation.item_type(kind)))
    ):
        frame.refuse("`in` would compare tensors, which is not supported")
    check_equality(frame, given.type)
    check_equality(frame, kind)
    return frame.assign("contains", Scalar.BOOL, container.operand, given.operand)

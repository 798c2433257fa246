"""Operators of Python on numbers, strings, containers and tensors."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from stretto.batching.frontend.builder import PathEnds
from stretto.batching.frontend.choices import chosen
from stretto.batching.frontend.frame import Frame, constant
from stretto.batching.frontend.guards import note_items
from stretto.batching.frontend.joins import branch
from stretto.batching.frontend.kinds import each_type, unpacked
from stretto.batching.frontend.narrowing import python_class
from stretto.batching.frontend.operators import (
    NUMBERS,
    call_static,
    call_torch,
    is_static,
    is_tensor_like,
    python_of,
)
from stretto.batching.frontend.sameness import same
from stretto.batching.frontend.tuples import as_list, is_tuple, known_items
from stretto.batching.frontend.values import (
    Choice,
    Dynamic,
    Static,
    TupleValue,
    Value,
    is_scalar,
    scalar_type,
)
from stretto.batching.types import (
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    Type,
    UnionType,
    alternatives,
    union,
)

_INT_ONLY = frozenset(("and", "or", "xor", "lshift", "rshift"))


def binary(
    frame: Frame, name: str, function: Callable[[Any, Any], Any], left: Value, right: Value
) -> Value:
    """left <op> right; `name` ends with "=" for an augmented assignment."""
    if isinstance(left, Choice):
        return chosen(frame, left, lambda one: binary(frame, name, function, one, right))
    if isinstance(right, Choice):
        return chosen(frame, right, lambda one: binary(frame, name, function, left, one))
    if _is_perhaps_tensor(left):
        return each_type(frame, left, lambda one: binary(frame, name, function, one, right))
    if _is_perhaps_tensor(right):
        return each_type(frame, right, lambda one: binary(frame, name, function, left, one))
    if is_static(left) and is_static(right):
        return _both_static(frame, name, function, left, right)
    if is_tensor_like(left) or is_tensor_like(right) or _holds_tensor(left, right):
        return call_torch(frame, function, [left, right], {})
    if name == "add" and is_tuple(left) and is_tuple(right):
        return _tuples_together(frame, left, right)
    return each_type(
        frame,
        frame.dynamic(left),
        lambda a: each_type(frame, frame.dynamic(right), lambda b: _single(frame, name, a, b)),
    )


def _is_perhaps_tensor(value: Value) -> bool:
    """Whether the instance decides if a value is a tensor, or which kind of tensor it is."""
    return (
        isinstance(value, Dynamic) and isinstance(value.type, UnionType) and is_tensor_like(value)
    )


def _tuples_together(frame: Frame, left: Value, right: Value) -> Value:
    parts = [known_items(frame, value) for value in (left, right)]
    if parts[0] is not None and parts[1] is not None:
        return TupleValue((*parts[0], *parts[1]))
    made = [as_list(frame, value, frame.site("tuple", i)) for i, value in enumerate((left, right))]
    return each_type(
        frame,
        made[0],
        lambda a: each_type(frame, made[1], lambda b: _single(frame, "add", a, b)),
    )


def _both_static(
    frame: Frame, name: str, function: Callable[[Any, Any], Any], left: Value, right: Value
) -> Value:
    a, b = python_of(left), python_of(right)
    if scalar_type(a) is None or scalar_type(b) is None:
        return call_static(frame, function, [a, b], {})
    try:
        return Static(function(a, b))
    except (ArithmeticError, ValueError, TypeError) as error:
        frame.fail(type(error), str(error))
        raise PathEnds from None


def _holds_tensor(*values: Value) -> bool:
    import torch

    return any(isinstance(v, Static) and isinstance(v.value, torch.Tensor) for v in values)


def _single(frame: Frame, name: str, left: Dynamic, right: Dynamic) -> Value:
    """The operator on two values of one type each."""
    kinds = left.type, right.type
    if all(kind in NUMBERS for kind in kinds) and name != "matmul":
        type_ = number_result(frame, name, left, right)
        if type_ is not None:
            return frame.assign(name, type_, left.operand, right.operand)
    if kinds == (Scalar.STR, Scalar.STR) and name == "add":
        return frame.assign("join_str", Scalar.STR, left.operand, right.operand)
    if (
        isinstance(left.type, ListType)
        and isinstance(right.type, ListType)
        and left.type.is_tuple == right.type.is_tuple
        and name == "add"
    ):
        cell = frame.evaluation.cell(frame.site("concat"))
        for kind in (left.type, right.type):
            frame.evaluation.grow(cell, frame.evaluation.item_type(kind))
        made = ListType(cell, left.type.is_tuple)
        return frame.assign("concat", made, left.operand, right.operand, detail=left.type.is_tuple)
    if name == "mul" and isinstance(left.type, ListType) and right.type is Scalar.INT:
        return _repeated(frame, left, right)
    if name == "mul" and isinstance(right.type, ListType) and left.type is Scalar.INT:
        return _repeated(frame, right, left)
    shown = " and ".join(f"'{python_class(frame, kind).__name__}'" for kind in kinds)
    symbol = _SYMBOLS.get(name, name)
    if isinstance(frame.place, ast.AugAssign):
        symbol = f"{symbol.split(' ')[0]}="
    frame.fail(TypeError, f"unsupported operand type(s) for {symbol}: {shown}")
    raise PathEnds


_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "pow": "** or pow()", "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<",
    "rshift": ">>",
}  # fmt: skip


def _repeated(frame: Frame, items: Dynamic, count: Dynamic) -> Dynamic:
    assert isinstance(items.type, ListType)
    cell = frame.evaluation.cell(frame.site("repeat"))
    frame.evaluation.grow(cell, frame.evaluation.item_type(items.type))
    made = ListType(cell, items.type.is_tuple)
    return frame.assign("repeat", made, items.operand, count.operand)


def number_result(frame: Frame, name: str, left: Dynamic, right: Dynamic) -> Type | None:
    """The type of an arithmetic operator on numbers; None where Python refuses it."""
    kinds = {left.type, right.type}
    if name in _INT_ONLY:
        if Scalar.FLOAT in kinds:
            return None
        logic = kinds == {Scalar.BOOL} and name in ("and", "or", "xor")
        return Scalar.BOOL if logic else Scalar.INT
    if Scalar.FLOAT in kinds or name == "truediv":
        return Scalar.FLOAT
    if name == "pow":
        exponent = constant(right)
        if exponent is ... or exponent < 0:
            frame.refuse(
                "an int to the power of an int that may be negative may be an int or a float",
                "make the base a float, or write the exponent as a number",
            )
    return Scalar.INT


def unary(frame: Frame, name: str, function: Callable[[Any], Any], value: Value) -> Value:
    if is_static(value):
        return call_static(frame, function, [python_of(value)], {})
    if is_tensor_like(value) and not _is_perhaps_tensor(value):
        return call_torch(frame, function, [value], {})

    def single(one: Dynamic) -> Value:
        if is_tensor_like(one):
            return call_torch(frame, function, [one], {})
        if one.type not in NUMBERS or (name == "invert" and one.type is Scalar.FLOAT):
            shown = python_class(frame, one.type).__name__
            symbol = {"neg": "-", "pos": "+", "invert": "~"}.get(name)
            message = f"bad operand type for {f'unary {symbol}' if symbol else name + '()'}: "
            frame.fail(TypeError, f"{message}'{shown}'")
            raise PathEnds
        type_ = Scalar.FLOAT if one.type is Scalar.FLOAT else Scalar.INT
        if name == "pos":
            return one if one.type is type_ else frame.assign("to_int", type_, one.operand)
        return frame.assign(name, type_, one.operand)

    return each_type(frame, value, single)


# ---- comparisons -----------------------------------------------------------------------------

_ORDER: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
}


_ORDER_SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def compare(frame: Frame, op: ast.cmpop, left: Value, right: Value) -> Value:
    if isinstance(left, Choice):
        return chosen(frame, left, lambda one: compare(frame, op, one, right))
    if isinstance(right, Choice):
        return chosen(frame, right, lambda one: compare(frame, op, left, one))
    if not isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn):
        if _is_perhaps_tensor(left):
            return each_type(frame, left, lambda one: compare(frame, op, one, right))
        if _is_perhaps_tensor(right):
            return each_type(frame, right, lambda one: compare(frame, op, left, one))
    match op:
        case ast.Is():
            return identical(frame, left, right)
        case ast.IsNot():
            return negated(frame, identical(frame, left, right))
        case ast.Eq():
            return equal(frame, left, right)
        case ast.NotEq():
            if is_tensor_like(left) or is_tensor_like(right):
                return call_torch(frame, operator.ne, [left, right], {})
            return negated(frame, equal(frame, left, right))
        case ast.In():
            return contains(frame, right, left)
        case ast.NotIn():
            return negated(frame, contains(frame, right, left))
        case _:
            return _ordered(frame, op, left, right)


def negated(frame: Frame, value: Value) -> Value:
    if isinstance(value, Static):
        return Static(not value.value)
    return frame.assign("not", Scalar.BOOL, frame.operand(value))


def _ordered(frame: Frame, op: ast.cmpop, left: Value, right: Value) -> Value:
    name, function = _ORDER[type(op)]
    if is_static(left) and is_static(right):
        return call_static(frame, function, [python_of(left), python_of(right)], {})
    if is_tensor_like(left) or is_tensor_like(right) or _holds_tensor(left, right):
        return call_torch(frame, function, [left, right], {})

    def single(a: Dynamic, b: Dynamic) -> Value:
        if isinstance(a.type, TupleType) and isinstance(b.type, TupleType):
            parts = unpacked(frame, a, a.type), unpacked(frame, b, b.type)
            return _ordered_items(frame, op, *parts)
        if isinstance(a.type, ListType | TupleType) and isinstance(b.type, ListType | TupleType):
            frame.refuse("lists are compared by their order", "compare their items")
        numbers = a.type in NUMBERS and b.type in NUMBERS
        if not numbers and not (a.type is Scalar.STR and b.type is Scalar.STR):
            names = [python_class(frame, one.type).__name__ for one in (a, b)]
            kinds = " and ".join(map(repr, names))
            frame.fail(
                TypeError, f"'{_ORDER_SYMBOLS[name]}' not supported between instances of {kinds}"
            )
            raise PathEnds
        return frame.assign(name, Scalar.BOOL, a.operand, b.operand)

    return each_type(frame, left, lambda a: each_type(frame, right, lambda b: single(a, b)))


def _ordered_items(
    frame: Frame, op: ast.cmpop, left: Sequence[Value], right: Sequence[Value]
) -> Value:
    """Tuples are in the order of the first items that differ, or of their lengths."""
    if not left or not right:
        _, function = _ORDER[type(op)]
        return Static(function(len(left), len(right)))
    alike = equal(frame, left[0], right[0])
    strict = ast.Lt() if isinstance(op, ast.Lt | ast.LtE) else ast.Gt()
    found = branch(
        frame,
        frame.operand(alike),
        (
            lambda: _ordered_items(frame, op, left[1:], right[1:]),
            lambda: compare(frame, strict, left[0], right[0]),
        ),
    )
    assert found is not None
    return found


def identical(frame: Frame, left: Value, right: Value) -> Value:
    """left is right"""
    if same(left, right) and not isinstance(left, TupleValue):
        return Static(True)
    if isinstance(left, Static) and isinstance(right, Static):
        return Static(left.value is right.value)
    none = Static(None)
    for value, other in ((left, right), (right, left)):
        if same(value, none):
            return has_type(frame, other, (Scalar.NONE,))
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


def has_type(frame: Frame, value: Value, types: tuple[Type, ...]) -> Value:
    """Whether a value is of one of some types."""
    if not isinstance(value, Dynamic):
        type_ = frame.type_of(value)
        return Static(type_ in types)
    kinds = set(alternatives(value.type))
    inside = kinds & set(types)
    if not inside:
        return Static(False)
    if inside == kinds:
        return Static(True)
    return frame.assign(
        "has_type", Scalar.BOOL, value.operand, detail=tuple(sorted(inside, key=str))
    )


def equal(frame: Frame, left: Value, right: Value) -> Value:
    """left == right"""
    if is_static(left) and is_static(right):
        return call_static(frame, operator.eq, [python_of(left), python_of(right)], {})
    if _is_tensor(left) or _is_tensor(right) or _holds_tensor(left, right):
        return call_torch(frame, operator.eq, [left, right], {})
    if isinstance(left, TupleValue) and isinstance(right, TupleValue):
        return _equal_tuples(frame, left, right)
    for value in (left, right):
        if isinstance(value, Static) and not is_scalar(value) and type(value.value) is not tuple:
            return Static(False)
    a, b = frame.dynamic(left), frame.dynamic(right)
    for kind in (*alternatives(a.type), *alternatives(b.type)):
        if isinstance(kind, TensorType | RowsType):
            frame.refuse("== of a value that may be a tensor and may be something else")
        if isinstance(kind, RecordType):
            _check_equality(frame, kind)
    if not _may_be_equal(a.type, b.type):
        return Static(False)
    return frame.assign("eq", Scalar.BOOL, a.operand, b.operand)


def _is_tensor(value: Value) -> bool:
    return isinstance(value, Dynamic) and all(
        isinstance(kind, TensorType) for kind in alternatives(value.type)
    )


def _check_equality(frame: Frame, kind: RecordType) -> None:
    info = frame.evaluation.info(kind)
    params = getattr(info.python, "__dataclass_params__", None)
    own = info.python.__eq__ is not object.__eq__
    if own and not (params is not None and params.eq) and info.kind == "object":
        frame.refuse(f"== of {info.python.__name__}, which defines it itself")


def _may_be_equal(left: Type, right: Type) -> bool:
    def kinds(type_: Type) -> set[str]:
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


def all_of(frame: Frame, conditions: list[Callable[[], Value]]) -> Value:
    """Whether all conditions hold, evaluated in order until one does not."""
    if not conditions:
        return Static(True)
    first, *rest = conditions
    value = first()
    if isinstance(value, Static):
        return all_of(frame, rest) if value.value else Static(False)
    if not rest:
        return value
    found = branch(
        frame, frame.operand(value), (lambda: all_of(frame, rest), lambda: Static(False))
    )
    assert found is not None
    return found


def any_of(frame: Frame, conditions: list[Callable[[], Value]]) -> Value:
    """Whether one of some conditions holds, evaluated in order until one does."""
    if not conditions:
        return Static(False)
    first, *rest = conditions
    value = first()
    if isinstance(value, Static):
        return Static(True) if value.value else any_of(frame, rest)
    if not rest:
        return value
    found = branch(frame, frame.operand(value), (lambda: Static(True), lambda: any_of(frame, rest)))
    assert found is not None
    return found


def contains(frame: Frame, container: Value, item: Value) -> Value:
    """item in container"""
    match container:
        case Static(found) if is_static(item):
            note_items(frame.evaluation, found)
            return Static(python_of(item) in found)
        case Static(found) if isinstance(found, tuple | list | set | frozenset | dict):
            note_items(frame.evaluation, found)
            return any_of(frame, [lambda x=x: equal(frame, item, Static(x)) for x in found])
        case TupleValue(items):
            return any_of(frame, [lambda x=x: equal(frame, item, x) for x in items])
        case Dynamic():
            return each_type(frame, container, lambda one: _contains(frame, one, item))
        case _:
            return frame.refuse("`in` of something that is not a container of data")


def _contains(frame: Frame, container: Dynamic, item: Value) -> Value:
    kind = container.type
    if isinstance(kind, RecordType) and frame.evaluation.info(kind).kind == "dict":
        return contains(frame, Static(frame.evaluation.info(kind).fields), item)
    if isinstance(kind, TensorType | RowsType | RecordType):
        frame.refuse(f"`in` of {frame.show(kind)}")
    given = frame.dynamic(item)
    tensors = any(isinstance(x, TensorType | RowsType) for x in alternatives(given.type))
    if tensors or (
        isinstance(kind, ListType)
        and any(isinstance(x, TensorType) for x in alternatives(frame.evaluation.item_type(kind)))
    ):
        frame.refuse("`in` compares tensors")
    return frame.assign("contains", Scalar.BOOL, container.operand, given.operand)


def smallest(frame: Frame, name: str, values: list[Value]) -> Value:
    """min or max of numbers."""
    found = values[0]
    for value in values[1:]:
        found = _smaller(frame, name, found, value)
    return found


def _smaller(frame: Frame, name: str, left: Value, right: Value) -> Value:
    if is_static(left) and is_static(right):
        function = min if name == "min" else max
        return call_static(frame, function, [python_of(left), python_of(right)], {})

    def single(a: Dynamic, b: Dynamic) -> Value:
        if a.type == b.type and a.type in (Scalar.INT, Scalar.FLOAT):
            return frame.assign(name, a.type, a.operand, b.operand)
        op = "lt" if name == "min" else "gt"
        if a.type in NUMBERS and b.type in NUMBERS:
            test = frame.assign(op, Scalar.BOOL, b.operand, a.operand)
            found = branch(frame, test.operand, (lambda: b, lambda: a))
            assert found is not None
            return found
        return frame.refuse(f"{name} of {frame.show(union((a.type, b.type)))}")

    return each_type(frame, left, lambda a: each_type(frame, right, lambda b: single(a, b)))

"""Functions of Python, of `math` and of `operator`, on values of the instances."""

from __future__ import annotations

import ast
import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from stretto.batching.frontend import methods
from stretto.batching.frontend.arithmetic import all_of, any_of, binary, compare, has_type, smallest
from stretto.batching.frontend.builder import PathEnds
from stretto.batching.frontend.data import attribute, converted, read_number, subscript
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.expressions import append, new_list, truth
from stretto.batching.frontend.frame import Frame, constant
from stretto.batching.frontend.iteration import (
    Enumerated,
    Items,
    Known,
    Mapped,
    Plan,
    Range,
    Reversed,
    Zipped,
    iterate,
    plan_of,
)
from stretto.batching.frontend.joins import branch
from stretto.batching.frontend.kinds import each_type
from stretto.batching.frontend.loops import dynamic_loop, nothing
from stretto.batching.frontend.narrowing import is_instance, python_class
from stretto.batching.frontend.operators import (
    NUMBERS,
    call_static,
    call_torch,
    is_static,
    is_tensor_like,
    python_of,
)
from stretto.batching.frontend.values import (
    Dynamic,
    Iterator_,
    Native,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.program import Operand
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
    union,
)

Builtin = Callable[[Frame, list[Value], dict[str, Value]], Value]

BUILTINS: dict[Any, Builtin] = {}


def builtin(*functions: Any) -> Callable[[Builtin], Builtin]:
    """Registers what is done for functions of Python."""

    def register(handler: Builtin) -> Builtin:
        BUILTINS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def call_method(
    frame: Frame, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A method of a value of Python's own classes, or of a tensor."""
    return methods.call_method(frame, name, owner, args, kwargs)


def _all_static(args: list[Value], kwargs: dict[str, Value]) -> bool:
    return all(map(is_static, (*args, *kwargs.values())))


def _natively(
    frame: Frame, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    named = {name: python_of(value) for name, value in kwargs.items()}
    return call_static(frame, function, [python_of(value) for value in args], named)


def _count(frame: Frame, function: str, args: list[Value], least: int, most: int) -> None:
    if not least <= len(args) <= most:
        frame.refuse(f"{function} is called with {len(args)} arguments")


# ---- sizes and iteration ---------------------------------------------------------------------


@builtin(len)
def _len(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _count(frame, "len", args, 1, 1)
    (value,) = args
    if isinstance(value, TupleValue):
        return Static(len(value.items))
    if isinstance(value, Static):
        return _natively(frame, len, args, {})
    return each_type(frame, value, lambda one: _length(frame, one))


def _length(frame: Frame, value: Dynamic) -> Value:
    match value.type:
        case TupleType(items):
            return Static(len(items))
        case TensorType(_, shape) if shape:
            return Static(shape[0])
        case RecordType() as kind:
            info = frame.evaluation.info(kind)
            if info.kind == "dict":
                return Static(len(info.fields))
            if info.kind == "namedtuple":
                return Static(len(info.python._fields))  # type: ignore[attr-defined]
            return apply(frame, attribute(frame, value, "__len__"), [])
        case ListType() | DictType() | RowsType() | Scalar.STR:
            return frame.assign("len", Scalar.INT, value.operand)
        case _:
            shown = frame.show(value.type)
            frame.fail(TypeError, f"object of type '{shown}' has no len()")
            raise PathEnds


@builtin(range)
def _range(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _count(frame, "range", args, 1, 3)
    if _all_static(args, kwargs):
        return _natively(frame, range, args, kwargs)
    given = [_int(frame, value) for value in args]
    start, stop, step = Static(0), given[0], Static(1)
    if len(given) > 1:
        start, stop = given[0], given[1]
    if len(given) > 2:
        step = given[2]
    return Iterator_(Range(start, stop, step))


def _int(frame: Frame, value: Value) -> Value:
    if is_static(value):
        return value
    if is_tensor_like(value):
        return read_number(frame, value, int)
    return frame.expect(value, (Scalar.INT, Scalar.BOOL), "an integer is needed here")


@builtin(enumerate)
def _enumerate(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = kwargs.get("start", args[1] if len(args) > 1 else Static(0))
    return Iterator_(Enumerated(plan_of(frame, args[0]), start))


@builtin(zip)
def _zip(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs and constant(kwargs.get("strict", Static(True))) is not False:
        plans = [plan_of(frame, value) for value in args]
        if any(plan.known is None for plan in plans):
            return _strict_zip(frame, plans)
        if len({len(plan.known or ()) for plan in plans}) > 1:
            frame.fail(ValueError, "zip() arguments have different lengths")
            raise PathEnds
        return Iterator_(Zipped(plans))
    return Iterator_(Zipped([plan_of(frame, value) for value in args]))


def _strict_zip(frame: Frame, plans: list[Plan]) -> Value:
    sources = [plan.source for plan in plans if isinstance(plan, Items)]
    if len(sources) < len(plans):
        frame.refuse("zip(strict=True) of something else than lists")
    lengths = [frame.assign("len", Scalar.INT, item.operand) for item in sources]
    for length in lengths[1:]:
        wrong = frame.assign("ne", Scalar.BOOL, lengths[0].operand, length.operand)

        def fails() -> None:
            frame.fail(ValueError, "zip() arguments have different lengths")
            raise PathEnds

        branch(frame, wrong.operand, (fails, lambda: None))
    return Iterator_(Zipped(plans))


@builtin(reversed)
def _reversed(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    plan = plan_of(frame, args[0])
    if plan.known is not None:
        return Iterator_(Known(plan.known[::-1]))
    if isinstance(plan, Items):
        length = frame.assign("len", Scalar.INT, plan.source.operand)
        return Iterator_(Reversed(plan, length))
    if isinstance(plan, Range):
        plan.begin(frame)
        return Iterator_(Reversed(plan, plan.trips))
    return frame.refuse("reversed() of this value", "make a list of it")


@builtin(map)
def _map(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, *sources = args
    plans = [plan_of(frame, value) for value in sources]
    if len(plans) == 1:
        return Iterator_(Mapped(plans[0], lambda f, item: apply(f, function, [item])))

    def spread(inner: Frame, item: Value) -> Value:
        assert isinstance(item, TupleValue)
        return apply(inner, function, item.items)

    return Iterator_(Mapped(Zipped(plans), spread))


def _to_list(is_tuple: bool) -> Builtin:
    def make(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            if is_tuple:
                return Static(())
            return new_list(frame, frame.evaluation.cell(frame.site("list")), ())
        (value,) = args
        plan = plan_of(frame, value)
        if plan.known is not None:
            if is_tuple:
                return TupleValue(plan.known)
            return new_list(frame, frame.evaluation.cell(frame.site("list")), plan.known)
        made = new_list(frame, frame.evaluation.cell(frame.site("list")), ())
        iterate(frame, plan, lambda item: append(frame, made, item))
        if not is_tuple:
            return made
        assert isinstance(made.type, ListType)
        type_ = ListType(made.type.cell, is_tuple=True)
        return frame.assign("to_list", type_, made.operand, detail=True)

    return make


BUILTINS[list] = _to_list(False)
BUILTINS[tuple] = _to_list(True)


@builtin(dict)
def _dict(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from stretto.batching.frontend.data import new_dict

    if args:
        frame.refuse("dict() of a value", "write a dict display or a comprehension")
    if kwargs:
        return new_dict(frame, tuple(kwargs), list(kwargs.values()))
    cell = frame.evaluation.cell(frame.site("dict"))
    return frame.assign("dict", frame.evaluation.dict_type(cell))


# ---- classes ---------------------------------------------------------------------------------


@builtin(isinstance)
def _isinstance(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, classes = args
    if not is_static(classes):
        frame.refuse("isinstance with a class that the instance decides")
    wanted = python_of(classes)
    match value:
        case Static(item):
            return Static(isinstance(item, wanted))
        case TupleValue(_, is_list):
            return Static(issubclass(list if is_list else tuple, wanted))
        case Dynamic(_, type_):
            kinds = tuple(k for k in alternatives(type_) if is_instance(frame, k, wanted))
            return has_type(frame, value, kinds)
        case _:
            return Static(False)


@builtin(type)
def _type(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    match value:
        case Static(item):
            return Static(type(item))
        case Dynamic():
            return each_type(frame, value, lambda one: Static(python_class(frame, one.type)))
        case _:
            return Static(tuple)


@builtin(getattr)
def _getattr(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = constant(args[1])
    if not isinstance(name, str):
        frame.refuse("getattr with a name that the instance decides")
    if len(args) == 3 and not _has_attribute(frame, args[0], name):
        return args[2]
    return attribute(frame, args[0], name)


@builtin(hasattr)
def _hasattr(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = constant(args[1])
    return Static(_has_attribute(frame, args[0], name))


def _has_attribute(frame: Frame, value: Value, name: str) -> bool:
    if isinstance(value, Static):
        return hasattr(value.value, name)
    found: set[bool] = set()
    for kind in alternatives(frame.type_of(value)):
        fields = frame.evaluation.info(kind).fields if isinstance(kind, RecordType) else ()
        found.add(name in fields or hasattr(python_class(frame, kind), name))
    if len(found) != 1:
        frame.refuse(f"only some of the values here have an attribute {name}", "use isinstance")
    return found.pop()


# ---- numbers ---------------------------------------------------------------------------------


def _conversion(wanted: type) -> Builtin:
    def convert(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if _all_static(args, kwargs):
            return _natively(frame, wanted, args, kwargs)
        (value,) = args
        if wanted is bool:
            found = truth(frame, value)
            return Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)
        return each_type(frame, value, lambda one: _number(frame, one, wanted))

    return convert


def _number(frame: Frame, value: Dynamic, wanted: type) -> Value:
    if isinstance(value.type, TensorType):
        return read_number(frame, value, wanted)
    if value.type not in NUMBERS:
        shown = frame.show(value.type)
        frame.fail(TypeError, f"{wanted.__name__}() argument must be a number, not '{shown}'")
        raise PathEnds
    return converted(frame, value, wanted)


for _kind in (bool, int, float):
    BUILTINS[_kind] = _conversion(_kind)


@builtin(abs)
def _abs(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from stretto.batching.frontend.arithmetic import unary

    return unary(frame, "abs", abs, args[0])


@builtin(round)
def _round(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if _all_static(args, kwargs):
        return _natively(frame, round, args, kwargs)
    if len(args) > 1 or kwargs:
        frame.refuse("round to digits of a value of the instance")
    given = frame.expect(args[0], (Scalar.INT, Scalar.FLOAT), "round needs a number")
    if given.type is Scalar.INT:
        return given
    return frame.assign("round", Scalar.INT, given.operand)


def _extreme(name: str, function: Callable[..., Any]) -> Builtin:
    def find(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if _all_static(args, kwargs):
            return _natively(frame, function, args, kwargs)
        if "key" in kwargs:
            return _extreme_by_key(frame, name, args, kwargs)
        if len(args) > 1:
            return smallest(frame, name, [_as_number(frame, value) for value in args])
        plan = plan_of(frame, args[0])
        if plan.known is not None:
            if not plan.known:
                return _empty(frame, name, kwargs)
            return smallest(frame, name, [_as_number(frame, value) for value in plan.known])
        return _extreme_of_list(frame, name, plan, kwargs)

    return find


def _as_number(frame: Frame, value: Value) -> Value:
    return read_number(frame, value, object) if is_tensor_like(value) else value


def _empty(frame: Frame, name: str, kwargs: dict[str, Value]) -> Value:
    if "default" in kwargs:
        return kwargs["default"]
    try:
        (min if name == "min" else max)([])
    except ValueError as error:  # its text depends on the version of Python
        frame.fail(ValueError, str(error))
    raise PathEnds


def _extreme_of_list(frame: Frame, name: str, plan: Plan, kwargs: dict[str, Value]) -> Value:
    found = folded(frame, plan, None, lambda best, item: smallest(frame, name, [best, item]))

    def missing() -> Value:
        return _empty(frame, name, kwargs)

    return _unless_none(frame, found, missing)


def _unless_none(frame: Frame, value: Value, missing: Callable[[], Value]) -> Value:
    test = has_type(frame, value, (Scalar.NONE,))
    if isinstance(test, Static):
        return missing() if test.value else value
    given = frame.dynamic(value)
    rest = union(kind for kind in alternatives(given.type) if kind is not Scalar.NONE)
    made = branch(frame, frame.operand(test), (missing, lambda: frame.cast(given, rest)))
    assert made is not None
    return made


def folded(
    frame: Frame,
    plan: Plan,
    start: Value | None,
    combine: Callable[[Value, Value], Value],
) -> Value:
    """Combines the items from left to right; None of an empty list where there is no start."""
    from stretto.batching.frontend.iteration import loop_over

    name = ".folded"
    outer = frame.locals.get(name)
    frame.locals[name] = Static(None) if start is None else start

    def step(item: Value) -> None:
        before = frame.locals[name]
        if start is not None:
            frame.locals[name] = combine(before, item)
            return
        test = has_type(frame, before, (Scalar.NONE,))
        if isinstance(test, Static):
            frame.locals[name] = item if test.value else combine(before, item)
            return
        given = frame.dynamic(before)
        rest = union(kind for kind in alternatives(given.type) if kind is not Scalar.NONE)
        found = branch(
            frame,
            frame.operand(test),
            (lambda: item, lambda: combine(frame.cast(given, rest), item)),
        )
        assert found is not None
        frame.locals[name] = found

    loop_over(frame, plan, frozenset((name,)), step, nothing)
    result = frame.locals.pop(name)
    if outer is not None:
        frame.locals[name] = outer
    return result


def _extreme_by_key(frame: Frame, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key = kwargs["key"]
    plan = plan_of(frame, args[0] if len(args) == 1 else TupleValue(tuple(args)))

    def combine(best: Value, item: Value) -> Value:
        assert isinstance(best, TupleValue)
        mine, score = best.items
        other = apply(frame, key, [item])
        better = binary_less(frame, other, score, name)
        if isinstance(better, bool):
            return TupleValue((item, other)) if better else best
        found = branch(frame, better, (lambda: TupleValue((item, other)), lambda: best))
        assert found is not None
        del mine
        return found

    if plan.known is None:
        frame.refuse(f"{name} with a key of a list whose length the instance decides")
    if not plan.known:
        return _empty(frame, name, kwargs)
    first, *rest = plan.known
    best: Value = TupleValue((first, apply(frame, key, [first])))
    for item in rest:
        best = combine(best, item)
    assert isinstance(best, TupleValue)
    return best.items[0]


def binary_less(frame: Frame, left: Value, right: Value, name: str) -> Any:
    import ast

    from stretto.batching.frontend.arithmetic import compare

    op = ast.Lt() if name == "min" else ast.Gt()
    return truth(frame, compare(frame, op, left, right))


BUILTINS[min] = _extreme("min", min)
BUILTINS[max] = _extreme("max", max)


@builtin(sum)
def _sum(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if _all_static(args, kwargs):
        return _natively(frame, sum, args, kwargs)
    start = kwargs.get("start", args[1] if len(args) > 1 else Static(0))
    plan = plan_of(frame, args[0])

    def add(total: Value, item: Value) -> Value:
        return binary(frame, "add", operator.add, total, item)

    if plan.known is not None:
        total = start
        for item in plan.known:
            total = add(total, item)
        return total
    return folded(frame, plan, start, lambda total, item: _add(frame, total, item))


def _add(frame: Frame, total: Value, item: Value) -> Value:
    """total + item, where the total is a number at first and may be a tensor later."""
    if isinstance(total, Dynamic) and is_tensor_like(total) and is_tensor_like(item):
        return each_type(frame, total, lambda one: binary(frame, "add", operator.add, one, item))
    return binary(frame, "add", operator.add, total, item)


def _quantifier(is_all: bool) -> Builtin:
    def find(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        plan = plan_of(frame, args[0])
        if plan.known is not None:
            conditions = [lambda x=x: _condition(frame, x, is_all) for x in plan.known]
            found = any_of(frame, conditions)
            return _negated(frame, found) if is_all else found

        def combine(before: Value, item: Value) -> Value:
            return any_of(frame, [lambda: before, lambda: _condition(frame, item, is_all)])

        found = folded(frame, plan, Static(False), combine)
        return _negated(frame, found) if is_all else found

    return find


def _condition(frame: Frame, value: Value, is_all: bool) -> Value:
    found = truth(frame, value)
    made: Value = Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)
    return _negated(frame, made) if is_all else made


def _negated(frame: Frame, value: Value) -> Value:
    from stretto.batching.frontend.arithmetic import negated

    return negated(frame, value)


BUILTINS[any] = _quantifier(False)
BUILTINS[all] = _quantifier(True)


@builtin(sorted)
def _sorted(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if _all_static(args, kwargs):
        return _natively(frame, sorted, args, kwargs)
    reverse = kwargs.get("reverse", Static(False))
    if not is_static(reverse):
        frame.refuse("sorted with a `reverse` that the instance decides")
    key = kwargs.get("key", Static(None))
    made = frame.dynamic(BUILTINS[list](frame, args, {}))
    assert isinstance(made.type, ListType)
    plain = constant(key) is None and not constant(reverse)
    if plain and frame.evaluation.item_type(made.type) is Scalar.INT:
        return frame.assign("sorted_ints", made.type, made.operand)
    return _inserted(frame, made, key, bool(constant(reverse)))


def _inserted(frame: Frame, items: Dynamic, key: Value, reverse: bool) -> Value:
    """A stable sort by insertion, with the comparisons of Python."""
    found = new_list(frame, frame.evaluation.cell(frame.site("sorted")), ())
    keys = new_list(frame, frame.evaluation.cell(frame.site("keys")), ())
    position = ".position"
    outer = frame.locals.get(position)

    def insert(item: Value) -> None:
        mine = item if constant(key) is None else apply(frame, key, [item])
        frame.locals[position] = frame.assign("len", Scalar.INT, keys.operand)

        def before() -> Value:
            return binary(frame, "sub", operator.sub, frame.locals[position], Static(1))

        def head() -> bool | Operand:
            def other() -> Value:
                theirs = subscript(frame, keys, before())
                pair = (theirs, mine) if reverse else (mine, theirs)
                return compare(frame, ast.Lt(), *pair)

            some = compare(frame, ast.Gt(), frame.locals[position], Static(0))
            return truth(frame, all_of(frame, [lambda: some, other]))

        def step() -> None:
            frame.locals[position] = before()

        dynamic_loop(frame, frozenset((position,)), head, step, nothing)
        place = frame.operand(frame.locals[position])
        for target, value in ((keys, mine), (found, item)):
            given = frame.dynamic(value)
            assert isinstance(target.type, ListType)
            frame.evaluation.grow(target.type.cell, given.type)
            frame.do("insert", target.operand, place, given.operand)

    iterate(frame, plan_of(frame, items), insert, frozenset((position,)))
    frame.locals.pop(position, None)
    if outer is not None:
        frame.locals[position] = outer
    return found


@builtin(filter)
def _filter(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The items for which a function holds, found at once."""
    function, source = args
    made = new_list(frame, frame.evaluation.cell(frame.site("filter")), ())

    def keep(item: Value) -> None:
        test = item if constant(function) is None else apply(frame, function, [item])
        condition = truth(frame, test)
        if condition is True:
            append(frame, made, item)
        elif condition is not False:
            branch(frame, condition, (lambda: append(frame, made, item), lambda: None))

    iterate(frame, plan_of(frame, source), keep)
    return made


@builtin(functools.partial)
def _partial(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, *first = args

    def call(inner: Frame, rest: list[Value], named: dict[str, Value]) -> Value:
        return apply(inner, function, [*first, *rest], kwargs | named)

    return Native("partial", call)


@builtin(divmod)
def _divmod(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    left, right = args
    quotient = binary(frame, "floordiv", operator.floordiv, left, right)
    return TupleValue((quotient, binary(frame, "mod", operator.mod, left, right)))


@builtin(print)
def _print(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return frame.refuse("print in a batched function", "return what you want to see")


@builtin(builtins.super)
def _super(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner = frame.owner
    first = next(iter(frame.locals), None)
    value = frame.locals.get("self", frame.locals.get(first) if first else None)
    if args or owner is None or not isinstance(value, Static):
        frame.refuse("super() of an object that differs from instance to instance")
    return Static(super(owner, value.value))


# ---- modules of Python -----------------------------------------------------------------------

_OPERATORS: dict[Any, tuple[str, Any]] = {
    operator.add: ("add", operator.add),
    operator.sub: ("sub", operator.sub),
    operator.mul: ("mul", operator.mul),
    operator.truediv: ("truediv", operator.truediv),
    operator.floordiv: ("floordiv", operator.floordiv),
    operator.mod: ("mod", operator.mod),
    operator.matmul: ("matmul", operator.matmul),
}


def _of_operator(name: str, function: Any) -> Builtin:
    return lambda frame, args, kwargs: binary(frame, name, function, args[0], args[1])


for _function, (_name, _same) in _OPERATORS.items():
    BUILTINS[_function] = _of_operator(_name, _same)

_MATH = (
    "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "floor", "ceil",
)  # fmt: skip


def _of_math(name: str) -> Builtin:
    function = getattr(math, name)

    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if _all_static(args, kwargs):
            return _natively(frame, function, args, kwargs)
        if len(args) != 1:
            frame.refuse(f"math.{name} with {len(args)} arguments")
        value = args[0]
        if is_tensor_like(value):
            value = read_number(frame, value, float)
        given = frame.dynamic(value)
        given = frame.expect(given, NUMBERS, f"math.{name} needs a number")
        real = frame.dynamic(each_type(frame, given, lambda one: converted(frame, one, float)))
        type_ = Scalar.INT if name in ("floor", "ceil") else Scalar.FLOAT
        return frame.assign("math", type_, real.operand, detail=name)

    return call


for _name in _MATH:
    BUILTINS[getattr(math, _name)] = _of_math(_name)


@builtin(torch.is_tensor)
def _is_tensor(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _isinstance(frame, [args[0], Static(torch.Tensor)], {})


def _combined(frame: Frame, name: str, value: Dynamic, dim: Value) -> Value:
    """torch.stack or torch.cat of a list whose length the instance decides: rows."""
    if constant(dim) != 0:
        frame.refuse(
            f"torch.{name} of a list whose length the instance decides, along another dim than 0"
        )
    types = [
        frame.evaluation.item_type(k) for k in alternatives(value.type) if isinstance(k, ListType)
    ]
    kind = union(types)
    impossible(frame, kind)
    if not isinstance(kind, TensorType) or (name == "cat" and kind.shape[:1] != (1,)):
        frame.refuse(
            f"torch.{name} of a list of {frame.show(kind)}, whose length the instance decides",
            "combine tensors of one shape, whose first size is 1 for torch.cat",
        )
    rows = frame.assign("rows", RowsType(kind), value.operand)
    if name == "stack":
        return rows
    return call_torch(frame, torch.squeeze, [rows, Static(1)], {})


def _of_lists(function: Callable[..., Any], name: str) -> Builtin:
    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = args[0] if args else kwargs.get("tensors")
        if isinstance(value, Dynamic) and isinstance(value.type, ListType):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else Static(0))
            return _combined(frame, name, value, dim)
        if _all_static(args, kwargs):
            return _natively(frame, function, args, kwargs)
        return call_torch(frame, function, args, kwargs)

    return call


BUILTINS[torch.stack] = _of_lists(torch.stack, "stack")
for _cat in (torch.cat, torch.concat, torch.concatenate):
    BUILTINS[_cat] = _of_lists(_cat, "cat")

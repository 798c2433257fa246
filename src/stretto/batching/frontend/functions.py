"""Functions of Python, `math`, `operator` and torch, and the table in which they are registered."""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import functools
import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from stretto.batching.frontend import library
from stretto.batching.frontend.attributes import attribute
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import ABSENT, note_class
from stretto.batching.frontend.joins import each_type, either, has_type, is_instance, python_class
from stretto.batching.frontend.operators import binary, unary
from stretto.batching.frontend.purity import call_static
from stretto.batching.frontend.tensor_operators import call_torch
from stretto.batching.frontend.tensor_results import NUMBERS, is_tensor_like
from stretto.batching.frontend.truth import converted, read_number, truth
from stretto.batching.frontend.values import (
    NONE,
    Closure,
    Dynamic,
    IterableValue,
    Native,
    Static,
    Super,
    TupleValue,
    Value,
    constant,
    is_static,
    python_of,
)
from stretto.batching.frontend.walks import Known, Range, plan_of
from stretto.batching.markers import concurrent, phase
from stretto.batching.program import Literal, Phase
from stretto.batching.types import (
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    alternatives,
    union,
)

Builtin = Callable[[Frame, list[Value], dict[str, Value]], Value]


BUILTINS: dict[Any, Builtin] = {}


def builtin(*functions: Any) -> Callable[[Builtin], Builtin]:
    """Register the handler of calls of some functions."""

    def register(handler: Builtin) -> Builtin:
        BUILTINS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def all_static(args: list[Value], kwargs: dict[str, Value]) -> bool:
    return all(map(is_static, (*args, *kwargs.values())))


def natively(
    frame: Frame, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    named = {name: python_of(value) for name, value in kwargs.items()}
    return call_static(frame, function, [python_of(value) for value in args], named)


def count_arguments(frame: Frame, function: str, args: list[Value], least: int, most: int) -> None:
    if not least <= len(args) <= most:
        frame.refuse(f"{function} is called with {len(args)} arguments")


# ---- Functions and classes of Python's library that are evaluated from their source in `library`.


def as_argument(frame: Frame, value: Value) -> Value:
    """Return an argument that the library's source may iterate over more than once: iterators
    become lists."""
    if not isinstance(value, IterableValue):
        return value
    plan = plan_of(frame, value)
    return BUILTINS[list](frame, [value], {}) if plan.known is None else TupleValue(plan.known)


def from_source(
    frame: Frame, source: Any, args: list[Value], kwargs: dict[str, Value] | None = None
) -> Value:
    """Evaluate a call of a function or class of `library`."""
    named = {name: as_argument(frame, value) for name, value in (kwargs or {}).items()}
    return apply(frame, Static(source), [as_argument(frame, value) for value in args], named)


def _function(function: Any, source: Any, is_iterator: bool) -> Builtin:
    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if all_static(args, kwargs):
            found = natively(frame, function, args, kwargs)
            if is_iterator and isinstance(found, Static):
                return IterableValue(Known([Static(item) for item in found.value]))
            return found
        found = from_source(frame, source, args, kwargs)
        return IterableValue(plan_of(frame, found)) if is_iterator else found

    return call


BUILTINS[functools.reduce] = _function(functools.reduce, library.reduce, False)
for _iterator, _source in (
    (itertools.chain, library.chain),
    (itertools.chain.from_iterable, library.chain_of),
    (itertools.accumulate, library.accumulate),
    (itertools.product, library.product),
    (itertools.pairwise, library.pairwise),
    (itertools.islice, library.islice),
    (itertools.combinations, library.pairs_of),
    (itertools.repeat, library.repeat),
):
    BUILTINS[_iterator] = _function(_iterator, _source, True)


def _class(source: type) -> Builtin:
    return lambda frame, args, kwargs: from_source(frame, source, args, kwargs)


for _python, _made in (
    (collections.deque, library.Deque),
    (collections.Counter, library.Counter),
    (set, library.Set),
):
    BUILTINS[_python] = _class(_made)


@builtin(itertools.count)
def _count(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = args[0] if args else kwargs.get("start", Static(0))
    step = args[1] if len(args) > 1 else kwargs.get("step", Static(1))
    if not all_static([step], {}):
        frame.refuse("itertools.count with a step that the instance decides")
    return IterableValue(Range(start, Static(2**62), step))


@builtin(collections.defaultdict)
def _defaultdict(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        frame.refuse("a defaultdict with content", "make it empty, and store in a loop")
    (factory,) = args
    if isinstance(factory, Closure) and not factory.node.args.args:
        factory = Static(function_of(frame, factory))
    if not isinstance(factory, Static):
        frame.refuse("a defaultdict of a function that the instance decides")
    return apply(frame, Static(_with_factory(factory.value)), [])


@functools.lru_cache(maxsize=256)
def _with_factory(factory: Any) -> type:
    held = staticmethod(factory)
    return type(
        "defaultdict", (library.DefaultDict,), {"factory": held, "__module__": library.__name__}
    )


def function_of(frame: Frame, closure: Closure) -> types.FunctionType:
    """Return a closure that reads only its parameters and global names as a Python function;
    refuse others."""
    arguments = {arg.arg for arg in ast.walk(closure.node.args) if isinstance(arg, ast.arg)}
    names = {name.id for name in ast.walk(closure.node) if isinstance(name, ast.Name)} - arguments
    if closure.defaults or closure.keyword_defaults:
        frame.refuse("a function with defaults is stored in a dict", "define it outside")
    scope = closure.scope
    while scope is not None:
        if names & (scope.local_names | set(scope.locals) | set(scope.free)):
            frame.refuse(
                "a function that reads enclosing variables is stored in a dict or defaultdict",
                "choose between functions by a branch",
            )
        scope = scope.outer
    key = (closure.node, id(closure.scope.globals))
    made = frame.evaluation.definitions.get(key)
    if made is None:
        module = ast.fix_missing_locations(ast.Module([closure.node], []))
        space: dict[str, Any] = {}
        name = closure.node.name
        node = closure.node
        if name == "<lambda>":
            node = ast.FunctionDef("factory", node.args, node.body, [], None)
            ast.copy_location(node, closure.node)
            module = ast.fix_missing_locations(ast.Module([node], []))
        exec(compile(module, closure.scope.file, "exec"), closure.scope.globals, space)
        made = next(iter(space.values()))
        frame.evaluation.definitions[key] = made
        frame.evaluation.definitions[made.__code__] = node
    return made


# ---- Functions of Python, of `math` and of `operator` on numbers.


def _conversion(wanted: type) -> Builtin:
    def convert(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if all_static(args, kwargs):
            return natively(frame, wanted, args, kwargs)
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
        frame.stop(TypeError, f"{wanted.__name__}() argument must be a number, not '{shown}'")
    return converted(frame, value, wanted)


for _kind in (bool, int, float):
    BUILTINS[_kind] = _conversion(_kind)


@builtin(abs)
def _abs(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:

    return unary(frame, "abs", abs, args[0])


@builtin(round)
def _round(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if all_static(args, kwargs):
        return natively(frame, round, args, kwargs)
    digits = constant(kwargs.get("ndigits", args[1] if len(args) > 1 else NONE))
    value = read_number(frame, args[0], object) if is_tensor_like(args[0]) else args[0]
    return each_type(frame, value, lambda one: _rounded(frame, one, digits))


def _rounded(frame: Frame, value: Dynamic, digits: Any) -> Value:
    given = frame.expect(value, NUMBERS, "round needs a number")
    if digits is not None and (type(digits) is not int or digits < 0):
        frame.refuse("round() to tens, or to digits that the instance decides, is not supported")
    if given.type is not Scalar.FLOAT:
        return frame.dynamic(unary(frame, "pos", operator.pos, given))
    if digits is None:
        return frame.assign("round", Scalar.INT, given.operand)
    return frame.assign("round_to", Scalar.FLOAT, given.operand, Literal(digits))


@builtin(divmod)
def _divmod(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    left, right = args
    quotient = binary(frame, "floordiv", operator.floordiv, left, right)
    return TupleValue((quotient, binary(frame, "mod", operator.mod, left, right)))


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
        if all_static(args, kwargs):
            return natively(frame, function, args, kwargs)
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


# ---- Functions on objects: their classes, attributes and calls.


@builtin(isinstance)
def is_instance_of(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
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
    if len(args) < 3:
        return attribute(frame, args[0], name)

    def one(value: Value) -> Value:
        there = _has_attribute(frame, value, name)
        if isinstance(there, Static):
            return attribute(frame, value, name) if there.value else args[2]
        condition = frame.operand(there)
        return either(frame, condition, lambda: attribute(frame, value, name), lambda: args[2])

    return one(args[0]) if isinstance(args[0], Static) else each_type(frame, args[0], one)


@builtin(hasattr)
def _hasattr(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = constant(args[1])
    if not isinstance(name, str):
        frame.refuse("hasattr with a name that the instance decides")
    return _has_attribute(frame, args[0], name)


def _has_attribute(frame: Frame, value: Value, name: str) -> Value:
    if isinstance(value, Static):
        found = hasattr(value.value, name)
        if not found:
            frame.evaluation.read("attribute", value.value, name, ABSENT)
        return Static(found)
    return each_type(frame, value, lambda one: _has_one(frame, one, name))


def _has_one(frame: Frame, value: Dynamic, name: str) -> Value:
    python = python_class(frame, value.type)
    if note_class(frame.evaluation, python, name) is not ABSENT:
        return Static(True)
    if note_class(frame.evaluation, python, "__getattr__") is not ABSENT:
        frame.refuse(f"hasattr() where {python.__name__}.__getattr__ may return {name}")
    if not isinstance(value.type, RecordType):
        return Static(False)
    info = frame.evaluation.info(value.type)
    if info.kind == "dict" or name not in info.fields:
        return Static(False)
    frame.evaluation.tested.add(name)
    initial = dataclasses.fields(python) if dataclasses.is_dataclass(python) else ()
    if info.kind == "namedtuple" or name in {item.name for item in initial if item.init}:
        return Static(True)
    return frame.assign("has", Scalar.BOOL, value.operand, detail=name)


@builtin(functools.partial)
def _partial(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, *first = args

    def call(inner: Frame, rest: list[Value], named: dict[str, Value]) -> Value:
        return apply(inner, function, [*first, *rest], kwargs | named)

    return Native("partial", call)


@builtin(concurrent)
def _concurrent(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue(tuple(args))


@builtin(phase)
def _phase(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    frame.builder.emit(Phase(1))  # the pass `phases` numbers them
    return NONE


@builtin(print)
def _print(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return frame.refuse("print() is not supported in a batched function", "return the values")


@builtin(builtins.super)
def _super(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner = frame.owner
    value = None if frame.receiver is None else frame.locals.get(frame.receiver)
    if len(args) == 2 and isinstance(args[0], Static):
        owner, value = args[0].value, args[1]
    elif args:
        frame.refuse("super() with one argument is not supported")
    if owner is None or value is None:
        frame.stop(RuntimeError, "super(): no arguments")
    if isinstance(value, Static):
        return Static(super(owner, value.value))  # type: ignore[arg-type]
    return Super(owner, frame.dynamic(value))


# ---- Functions of torch that take lists of tensors.


@builtin(torch.is_tensor)
def _is_tensor(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return is_instance_of(frame, [args[0], Static(torch.Tensor)], {})


def _combined(frame: Frame, name: str, value: Dynamic, dim: Value) -> Value:
    """Return torch.stack or torch.cat of a list whose length the instance decides: rows."""
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
        if all_static(args, kwargs):
            return natively(frame, function, args, kwargs)
        return call_torch(frame, function, args, kwargs)

    return call


BUILTINS[torch.stack] = _of_lists(torch.stack, "stack")

for _cat in (torch.cat, torch.concat, torch.concatenate):
    BUILTINS[_cat] = _of_lists(_cat, "cat")


# ---- Tensors of lists of numbers.


def _of_numbers(function: Callable[..., Any], dtype: torch.dtype | None) -> Builtin:
    """Return the handler of a tensor constructor. A list of numbers whose length the instance
    decides becomes rows without dims. dtype: the default."""

    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (value, *more), named = args or [Static(None)], dict(kwargs)
        if not (isinstance(value, Dynamic) and isinstance(value.type, ListType)):
            run = natively if all_static(args, kwargs) else call_torch
            return run(frame, function, args, kwargs)
        asked = named.pop("dtype", Static(dtype))
        if more or named:
            frame.refuse(
                f"{function.__name__} of a list whose length the instance decides, with more than "
                "a dtype"
            )
        kind = frame.evaluation.item_type(value.type)
        if kind not in (Scalar.BOOL, Scalar.INT, Scalar.FLOAT):
            frame.refuse(
                f"{function.__name__} of a list of {frame.show(kind)}",
                "give a list of numbers; combine tensors by torch.stack",
            )
        if kind == Scalar.FLOAT and constant(asked) is None:
            asked = Static(torch.get_default_dtype())
        source = library.tensor_of_some if constant(asked) is None else library.tensor
        return from_source(frame, source, [value, asked])

    return call


for _made, _dtype in (
    (torch.tensor, None),
    (torch.as_tensor, None),
    (torch.LongTensor, torch.int64),
    (torch.FloatTensor, torch.float32),
):
    BUILTINS[_made] = _of_numbers(_made, _dtype)

"""Functions of Python, `math`, `operator` and torch, and the table in which they are registered."""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from stretto.batching.frontend import python_library
from stretto.batching.frontend.attributes import attribute
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_class
from stretto.batching.frontend.joins import (
    class_of,
    each_type,
    either,
    has_type,
    is_instance,
    python_class,
    static_class,
)
from stretto.batching.frontend.operators import binary, unary
from stretto.batching.frontend.purity import call_static
from stretto.batching.frontend.tensor_operators import call_torch
from stretto.batching.frontend.tensor_results import NUMBERS, is_tensor_like
from stretto.batching.frontend.truth import converted, read_number, truth
from stretto.batching.frontend.values import (
    NONE,
    ONE,
    ZERO,
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
from stretto.batching.frontend.walks import EndlessPlan, KnownPlan, MappedPlan, RangePlan, plan_of
from stretto.batching.instances.types import ABSENT
from stretto.batching.markers import concurrent, phase
from stretto.ir.core import Literal
from stretto.ir.data import PhaseOp
from stretto.ir.types import (
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


Handler = TypeVar("Handler", bound=Callable[..., Value])


def builtin(*functions: Any, known: bool = False) -> Callable[[Handler], Handler]:
    """Registers what is done for functions of Python. The parameters of the handler, behind the
    frame, are those of the functions as far as they are understood: a call that does not fit them
    is refused. known: a function whose arguments are all static is called itself."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            BUILTINS[function] = _checked(function, handler, known)
        return handler

    return register


def _checked(function: Any, handler: Callable[..., Value], known: bool) -> Builtin:
    name = getattr(function, "__name__", str(function))

    @functools.wraps(handler)
    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if known and all_static(args, kwargs):
            return natively(frame, function, args, kwargs)
        check_call(frame, name, inspect.signature(handler), [frame, *args], kwargs)
        return handler(frame, *args, **kwargs)

    return call


def check_call(
    frame: Frame, name: str, signature: inspect.Signature, args: list[Any], kwargs: dict[str, Value]
) -> None:
    """Refuses a call with arguments that do not fit a signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        frame.refuse(f"a call of {name}() that is not understood: {error}")


def all_static(args: list[Value], kwargs: dict[str, Value]) -> bool:
    return all(map(is_static, (*args, *kwargs.values())))


def natively(
    frame: Frame, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    named = {name: python_of(value) for name, value in kwargs.items()}
    return call_static(frame, function, [python_of(value) for value in args], named)


# ---- Functions and classes of Python's library that are evaluated from their source in
# `python_library`.


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
    """Evaluate a call of a function or class of `python_library`."""
    named = {name: as_argument(frame, value) for name, value in (kwargs or {}).items()}
    return apply(frame, Static(source), [as_argument(frame, value) for value in args], named)


def _function(function: Any, source: Any, is_iterator: bool) -> Builtin:
    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if all_static(args, kwargs):
            found = natively(frame, function, args, kwargs)
            if is_iterator and isinstance(found, Static):
                return IterableValue(KnownPlan([Static(item) for item in found.value]), found_class)
            return found
        found = from_source(frame, source, args, kwargs)
        return IterableValue(plan_of(frame, found), found_class) if is_iterator else found

    found_class = function if isinstance(function, type) else itertools.chain
    return call


BUILTINS[functools.reduce] = _function(functools.reduce, python_library.reduce, False)
for _iterator, _source in (
    (itertools.chain, python_library.chain),
    (itertools.chain.from_iterable, python_library.from_iterable),
    (itertools.accumulate, python_library.accumulate),
    (itertools.pairwise, python_library.pairwise),
):
    BUILTINS[_iterator] = _function(_iterator, _source, True)


@builtin(itertools.product)
def _product(frame: Frame, /, *iterables: Value, repeat: Value = ONE) -> Value:
    times = known_int(frame, repeat, "itertools.product with a `repeat`")
    if times < 0:
        frame.stop(ValueError, "repeat argument cannot be negative")
    parts = [as_argument(frame, value) for value in iterables] * times
    if not parts:
        return IterableValue(KnownPlan([Static(())]), itertools.product)
    return IterableValue(
        plan_of(frame, from_source(frame, python_library.product, parts)), itertools.product
    )


@builtin(itertools.combinations)
def _combinations(frame: Frame, /, iterable: Value, r: Value) -> Value:
    count = known_int(frame, r, "itertools.combinations with a count")
    if count < 0:
        frame.stop(ValueError, "r must be non-negative")
    pool = BUILTINS[list](frame, [iterable], {})
    found = from_source(frame, python_library.combinations, [pool, *([Static(0)] * count)])
    return IterableValue(plan_of(frame, found), itertools.combinations)


@builtin(itertools.islice)
def _islice(frame: Frame, iterable: Value, first: Value, /, *others: Value) -> Value:
    if len(others) > 2:
        frame.refuse(f"itertools.islice with {len(others) + 2} arguments")
    bounds = (first, *others, NONE)[:3] if others else (NONE, first, NONE)
    given = IterableValue(plan_of(frame, iterable), itertools.islice)  # gone through once
    found = apply(frame, Static(python_library.islice), [given, *bounds])
    return IterableValue(plan_of(frame, found), itertools.islice)


@builtin(itertools.repeat)
def _repeat(frame: Frame, /, object: Value, times: Value | None = None) -> Value:
    if times is None:
        return IterableValue(EndlessPlan(lambda *_: object), itertools.repeat)
    plan = RangePlan(Static(0), as_int(frame, times), Static(1))
    return IterableValue(MappedPlan(plan, lambda *_: object), itertools.repeat)


def known_int(frame: Frame, value: Value, what: str) -> int:
    """An int that must be known before the instance."""
    found = constant(value)
    if found is ...:
        frame.refuse(f"{what} that the instance decides")
    if not isinstance(found, int):
        shown = type(found).__name__
        frame.stop(TypeError, f"'{shown}' object cannot be interpreted as an integer")
    return found


def as_int(frame: Frame, value: Value) -> Value:
    """A value as Python takes it where it needs an int: an int, a bool, or a tensor of one."""
    if is_static(value):
        if not hasattr(type(python_of(value)), "__index__"):
            known_int(frame, value, "an int")
        return value
    if is_tensor_like(value):
        return read_number(frame, value, int)
    return frame.expect(value, (Scalar.INT, Scalar.BOOL), "an integer is needed here")


def _class(source: type) -> Builtin:
    return lambda frame, args, kwargs: from_source(frame, source, args, kwargs)


for _python, _made in (
    (collections.deque, python_library.Deque),
    (collections.Counter, python_library.Counter),
    (set, python_library.Set),
):
    BUILTINS[_python] = _class(_made)


@builtin(itertools.count)
def _count(frame: Frame, /, start: Value = ZERO, step: Value = ONE) -> Value:
    if not is_static(step):
        frame.refuse("itertools.count with a step that the instance decides")
    kinds = tuple(alternatives(frame.type_of(start)))
    if type(constant(step)) is not int or any(kind is not Scalar.INT for kind in kinds):
        frame.refuse("itertools.count of something else than ints", "count in a variable")

    def number(inner: Frame, index: Value) -> Value:
        scaled = binary(inner, "mul", operator.mul, index, step)
        return binary(inner, "add", operator.add, start, scaled)

    return IterableValue(EndlessPlan(number), itertools.count)


@builtin(collections.defaultdict)
def _defaultdict(frame: Frame, /, *args: Value, **named: Value) -> Value:
    if len(args) != 1 or named:
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
        "defaultdict",
        (python_library.DefaultDict,),
        {"factory": held, "__module__": python_library.__name__},
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


def _converts(frame: Frame, value: Value, wanted: type) -> Value:
    if wanted is bool:
        found = truth(frame, value)
        return Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)
    return each_type(frame, value, lambda one: _number(frame, one, wanted))


def _number(frame: Frame, value: Dynamic, wanted: type) -> Value:
    if isinstance(value.type, TensorType):
        return read_number(frame, value, wanted)
    if value.type in NUMBERS:
        return converted(frame, value, wanted)
    python = class_of(frame, value.type)
    if python is str or any(hasattr(python, f"__{name}__") for name in ("int", "float", "index")):
        frame.refuse(f"{wanted.__name__}() of a {python.__name__} of the instance")
    needed = "a string" if wanted is float else "a string, a bytes-like object"
    message = f"{wanted.__name__}() argument must be {needed} or a real number, not "
    frame.stop(TypeError, f"{message}'{python.__name__}'")


@builtin(bool, known=True)
def _bool(frame: Frame, x: Value, /) -> Value:
    return _converts(frame, x, bool)


@builtin(int, known=True)
def _int(frame: Frame, x: Value, /) -> Value:
    return _converts(frame, x, int)


@builtin(float, known=True)
def _float(frame: Frame, x: Value, /) -> Value:
    return _converts(frame, x, float)


@builtin(abs)
def _abs(frame: Frame, x: Value, /) -> Value:
    return unary(frame, "abs", abs, x)


@builtin(round, known=True)
def _round(frame: Frame, /, number: Value, ndigits: Value = NONE) -> Value:
    digits = constant(ndigits)
    value = read_number(frame, number, object) if is_tensor_like(number) else number
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
def _divmod(frame: Frame, x: Value, y: Value, /) -> Value:
    quotient = binary(frame, "floordiv", operator.floordiv, x, y)
    return TupleValue((quotient, binary(frame, "mod", operator.mod, x, y)))


_OPERATORS: dict[Any, tuple[str, Any]] = {
    operator.add: ("add", operator.add),
    operator.sub: ("sub", operator.sub),
    operator.mul: ("mul", operator.mul),
    operator.truediv: ("truediv", operator.truediv),
    operator.floordiv: ("floordiv", operator.floordiv),
    operator.mod: ("mod", operator.mod),
    operator.matmul: ("matmul", operator.matmul),
}


def _of_operator(name: str, function: Any) -> Callable[..., Value]:
    def call(frame: Frame, a: Value, b: Value, /) -> Value:
        return binary(frame, name, function, a, b)

    return call


for _operator, (_name, _same) in _OPERATORS.items():
    builtin(_operator)(_of_operator(_name, _same))


_MATH = (
    "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "floor", "ceil",
)  # fmt: skip


def _of_math(name: str) -> Callable[..., Value]:
    def call(frame: Frame, x: Value, /) -> Value:
        value = read_number(frame, x, float) if is_tensor_like(x) else x
        given = frame.dynamic(value)
        given = frame.expect(given, NUMBERS, f"math.{name} needs a number")
        real = frame.dynamic(each_type(frame, given, lambda one: converted(frame, one, float)))
        type_ = Scalar.INT if name in ("floor", "ceil") else Scalar.FLOAT
        return frame.assign("math", type_, real.operand, detail=name)

    return call


for _name in _MATH:
    builtin(getattr(math, _name), known=True)(_of_math(_name))


# ---- Functions on objects: their classes, attributes and calls.


@builtin(isinstance)
def is_instance_of(frame: Frame, value: Value, classes: Value, /) -> Value:
    if not is_static(classes):
        frame.refuse("isinstance with a class that the instance decides")
    wanted = python_of(classes)
    try:
        isinstance(None, wanted)
    except TypeError as error:
        frame.stop(TypeError, str(error))
    if isinstance(value, Static):
        return Static(isinstance(value.value, wanted))
    if not isinstance(value, Dynamic):
        return Static(issubclass(static_class(frame, value), wanted))
    kinds = tuple(k for k in alternatives(value.type) if is_instance(frame, k, wanted))
    return has_type(frame, value, kinds)


@builtin(type)
def _type(frame: Frame, value: Value, /) -> Value:
    if isinstance(value, Dynamic):
        return each_type(frame, value, lambda one: Static(class_of(frame, one.type)))
    return Static(static_class(frame, value))


@builtin(getattr)
def _getattr(frame: Frame, value: Value, name: Value, default: Value | None = None, /) -> Value:
    known = constant(name)
    if not isinstance(known, str):
        frame.refuse("getattr with a name that the instance decides")
    if default is None:
        return attribute(frame, value, known)

    def one(value: Value) -> Value:
        there = _has_attribute(frame, value, known)
        if isinstance(there, Static):
            return attribute(frame, value, known) if there.value else default
        condition = frame.operand(there)
        return either(frame, condition, lambda: attribute(frame, value, known), lambda: default)

    return one(value) if isinstance(value, Static) else each_type(frame, value, one)


@builtin(hasattr)
def _hasattr(frame: Frame, value: Value, name: Value, /) -> Value:
    known = constant(name)
    if not isinstance(known, str):
        frame.refuse("hasattr with a name that the instance decides")
    return _has_attribute(frame, value, known)


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
def _partial(frame: Frame, function: Value, /, *first: Value, **given: Value) -> Value:
    def call(inner: Frame, rest: list[Value], named: dict[str, Value]) -> Value:
        return apply(inner, function, [*first, *rest], given | named)

    return Native("partial", call, functools.partial)


@builtin(concurrent)
def _concurrent(frame: Frame, /, *values: Value) -> Value:
    return TupleValue(values)


@builtin(phase)
def _phase(frame: Frame, /) -> Value:
    frame.builder.emit(PhaseOp(1))  # the pass `phases` numbers them
    return NONE


@builtin(print)
def _print(frame: Frame, /, *values: Value, **named: Value) -> Value:
    return frame.refuse("print() is not supported in a batched function", "return the values")


@builtin(builtins.super)
def _super(frame: Frame, /, *args: Value) -> Value:
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
def _is_tensor(frame: Frame, obj: Value, /) -> Value:
    return is_instance_of(frame, obj, Static(torch.Tensor))


def _combined(
    frame: Frame, name: str, value: Dynamic, /, dim: Value = ZERO, **named: Value
) -> Value:
    """Return torch.stack or torch.cat of a list whose length the instance decides: rows."""
    if named:
        frame.refuse(f"torch.{name} of a list whose length the instance decides, with {min(named)}")
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
            given = [frame, Static(name), value, *args[1:]]
            named = {key: item for key, item in kwargs.items() if key != "tensors"}
            check_call(frame, f"torch.{name}", inspect.signature(_combined), given, named)
            return _combined(frame, name, value, *args[1:], **named)
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
        source = python_library.tensor_of_some if constant(asked) is None else python_library.tensor
        return from_source(frame, source, [value, asked])

    return call


for _made, _dtype in (
    (torch.tensor, None),
    (torch.as_tensor, None),
    (torch.LongTensor, torch.int64),
    (torch.FloatTensor, torch.float32),
):
    BUILTINS[_made] = _of_numbers(_made, _dtype)

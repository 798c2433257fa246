"""Calls: functions of the user are inlined, or outlined where they are recursive."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from stretto.batching.frontend.builder import Draft, PathEnds, finished, scoped
from stretto.batching.frontend.builtins import BUILTINS, call_method
from stretto.batching.frontend.choices import chosen
from stretto.batching.frontend.data import attribute, construct
from stretto.batching.frontend.dispatch import applies, apply, at, execute, impossible
from stretto.batching.frontend.evaluation import Again
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_cell, note_module
from stretto.batching.frontend.joins import merge
from stretto.batching.frontend.kinds import each_type
from stretto.batching.frontend.narrowing import python_class
from stretto.batching.frontend.operators import (
    call_static,
    call_torch,
    is_static,
    python_of,
)
from stretto.batching.frontend.ownership import owned_names, private_lists
from stretto.batching.frontend.prune import pruned
from stretto.batching.frontend.statements import leave
from stretto.batching.frontend.values import (
    NONE,
    Choice,
    Closure,
    Dynamic,
    Method,
    Native,
    Static,
    TupleValue,
    Unbound,
    Value,
    is_scalar,
)
from stretto.batching.program import Call, Function, Operand, Variable
from stretto.batching.types import NEVER, ListType, TupleType
from stretto.errors import CaptureError, SourceLocation
from stretto.frontends.python.source.liveness import loads, stores
from stretto.frontends.python.source.rewrite import definition_of

MOST_INLINED = 60
"""Calls within calls that are inlined."""


@applies
def _apply(frame: Frame, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    match function:
        case Choice():
            return chosen(frame, function, lambda one: apply(frame, one, args, kwargs))
        case Static(item):
            return _apply_static(frame, item, args, kwargs)
        case Closure():
            return call_function(frame, _source_of_closure(frame, function), args, kwargs)
        case Method(str(name), owner):
            return over_choices(
                frame, args, kwargs, lambda a, k: call_method(frame, name, owner, a, k)
            )
        case Method(python, owner):
            assert isinstance(python, FunctionType)
            return _apply_static(frame, python, [owner, *args], kwargs)
        case Native(_, call):
            return call(frame, args, kwargs)
        case Dynamic():
            return each_type(frame, function, lambda one: _apply_object(frame, one, args, kwargs))
        case _:
            return frame.refuse("this value cannot be called")


def _apply_object(
    frame: Frame, value: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of an object of the instance."""
    python = python_class(frame, value.type)
    if not any("__call__" in vars(owner) for owner in python.__mro__):
        frame.fail(TypeError, f"'{python.__name__}' object is not callable")
        raise PathEnds
    return apply(frame, attribute(frame, value, "__call__"), args, kwargs)


def _apply_static(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not _is_of_user(item):
        return over_choices(frame, args, kwargs, lambda a, k: _apply_foreign(frame, item, a, k))
    return _apply_own(frame, item, args, kwargs)


def over_choices(
    frame: Frame,
    args: list[Value],
    kwargs: dict[str, Value],
    use: Callable[[list[Value], dict[str, Value]], Value],
) -> Value:
    """What `use` makes of arguments none of which is a choice."""
    several = next((v for v in (*args, *kwargs.values()) if isinstance(v, Choice)), None)
    if several is None:
        return use(args, kwargs)

    def once(one: Value) -> Value:
        given = [one if value is several else value for value in args]
        named = {name: one if v is several else v for name, v in kwargs.items()}
        return over_choices(frame, given, named, use)

    return chosen(frame, several, once)


def _is_of_user(item: Any) -> bool:
    """Whether a call evaluates the user's source."""
    if isinstance(item, MethodType):
        return _is_of_user(item.__func__)
    if _builtin(item) is not None:
        return False
    is_module = isinstance(item, torch.nn.Module)
    if is_module and not type(item).__module__.startswith("torch."):
        return True
    return isinstance(item, functools.partial) or (
        isinstance(item, FunctionType) and not _is_of_torch(item)
    )


def _apply_foreign(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    builtin = _builtin(item)
    if builtin is not None:
        return builtin(frame, args, kwargs)
    return _apply_own(frame, item, args, kwargs)


def _apply_own(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    match item:
        case MethodType():
            return _apply_static(frame, item.__func__, [Static(item.__self__), *args], kwargs)
        case functools.partial():
            given = {name: Static(value) for name, value in item.keywords.items()} | kwargs
            return _apply_static(frame, item.func, [*map(Static, item.args), *args], given)
        case torch.nn.Module():
            return _apply_module(frame, item, args, kwargs)
        case type():
            return _apply_class(frame, item, args, kwargs)
        case FunctionType() if not _is_of_torch(item):
            return call_function(frame, _source_of_function(frame, item), args, kwargs)
        case _:
            return _apply_other(frame, item, args, kwargs)


def _builtin(item: Any) -> Callable[..., Value] | None:
    try:
        return BUILTINS.get(item)
    except TypeError:  # not hashable
        return None


def _apply_other(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = [*args, *kwargs.values()]
    if _is_of_torch(item) or isinstance(item, torch.jit.ScriptFunction | torch.jit.ScriptModule):
        return _apply_torch(frame, item, args, kwargs)
    if all(map(is_static, values)):
        named = {name: python_of(value) for name, value in kwargs.items()}
        return call_static(frame, item, [python_of(value) for value in args], named)
    call = getattr(type(item), "__call__", None)  # noqa: B004
    if isinstance(call, FunctionType):
        return _apply_static(frame, call, [Static(item), *args], kwargs)
    name = getattr(item, "__qualname__", type(item).__name__)
    if isinstance(item, BuiltinFunctionType):
        frame.refuse(f"{name} of a value of the instance", "it is not understood by stretto.batch")
    return frame.refuse(f"a call of {name}, whose source is not Python")


def _is_of_torch(item: Any) -> bool:
    module = getattr(item, "__module__", None) or getattr(
        getattr(item, "__objclass__", None), "__module__", ""
    )
    return (isinstance(module, str) and (module == "torch" or module.startswith("torch."))) or (
        getattr(getattr(item, "__self__", None), "__name__", "") == "torch._C"
        or (
            type(item).__name__ in ("OpOverload", "OpOverloadPacket", "method_descriptor")
            and hasattr(torch.Tensor, getattr(item, "__name__", "?"))
        )
        or _is_of_torch_c(item)
    )


def _is_of_torch_c(item: Any) -> bool:
    owner = getattr(item, "__self__", None)
    return owner is not None and getattr(owner, "__module__", "") in (
        "torch._C", "torch._C._nn", "torch._C._linalg", "torch._C._VariableFunctions",
    )  # fmt: skip


def _apply_torch(frame: Frame, item: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = [*args, *kwargs.values()]
    if all(map(is_static, values)):
        named = {name: python_of(value) for name, value in kwargs.items()}
        return call_static(frame, item, [python_of(value) for value in args], named)
    args = [_rows_where_lists(frame, item, value) for value in args]
    return call_torch(frame, item, args, kwargs)


def _rows_where_lists(frame: Frame, item: Any, value: Value) -> Value:
    if isinstance(value, Dynamic) and isinstance(value.type, ListType):
        frame.refuse(
            f"{getattr(item, '__name__', item)} of a list whose length the instance decides",
            "combine its tensors in a loop",
        )
    return value


def _apply_module(
    frame: Frame, module: torch.nn.Module, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    if vars(module).get("_forward_hooks") or vars(module).get("_forward_pre_hooks"):
        frame.refuse(f"a {type(module).__name__} has hooks", "remove them before batching")
    forward = vars(module).get("forward", getattr(type(module), "forward", None))
    is_torch = type(module).__module__.startswith("torch.")
    if not is_torch:
        assert isinstance(forward, FunctionType | MethodType)
        given = args if isinstance(forward, MethodType) else [Static(module), *args]
        return _apply_static(frame, forward, given, kwargs)
    if module.training and any(
        "dropout" in type(part).__name__.lower() and getattr(part, "p", 0) > 0
        for part in module.modules()
    ):
        frame.refuse("a module with dropout is in training mode", "call model.eval()")
    note_module(frame.evaluation, module)
    try:
        return call_torch(frame, module, args, kwargs)
    except CaptureError:
        # A container of the user's modules, as Sequential, may decide on the content of tensors.
        if not any(not type(part).__module__.startswith("torch.") for part in module.modules()):
            raise
    assert isinstance(forward, FunctionType)
    return call_function(
        frame, _source_of_function(frame, forward), [Static(module), *args], kwargs
    )


def _apply_class(frame: Frame, python: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if issubclass(python, BaseException):
        frame.refuse("an exception is made without being raised")
    if python.__module__.startswith("torch."):
        return _apply_torch(frame, python, args, kwargs)
    source = getattr(python, "__module__", "")
    if source == "builtins":
        return _apply_other(frame, python, args, kwargs)
    return construct(frame, python, args, kwargs)


# ---- functions with source -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A function of the user: its definition, and where its names are found."""

    node: ast.FunctionDef
    name: str
    file: str
    globals: dict[str, Any]
    free: dict[str, Any]
    outer: Frame | None
    code: Hashable
    defaults: tuple[Value, ...]
    keyword_defaults: dict[str, Value]
    owner: type | None = None


def _source_of_function(frame: Frame, function: FunctionType) -> Source:
    function = inspect.unwrap(function)
    code = function.__code__
    definitions = frame.evaluation.definitions
    if code not in definitions:
        definitions[code] = definition_of(code)
    node = definitions[code]
    if node is None:
        frame.refuse(f"the source of {function.__qualname__} is not found")
    free: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            free[name] = cell.cell_contents
        except ValueError:
            continue
        note_cell(frame.evaluation, cell, free[name])
    _check_kind(frame, node, function.__qualname__)
    named: dict[str, Value] = {n: Static(v) for n, v in (function.__kwdefaults__ or {}).items()}
    return Source(
        node,
        function.__qualname__,
        code.co_filename,
        function.__globals__,
        free,
        None,
        code if not free else (code, tuple(id(value) for value in free.values())),
        tuple(map(Static, function.__defaults__ or ())),
        named,
        free.get("__class__"),
    )


def _source_of_closure(frame: Frame, function: Closure) -> Source:
    scope = function.scope
    assert isinstance(scope, Frame)
    _check_kind(frame, function.node, function.name)
    return Source(
        function.node,
        f"{scope.name}.<locals>.{function.name}",
        scope.file,
        scope.globals,
        scope.free,
        scope,
        function.node,
        function.defaults,
        function.keyword_defaults,
        scope.owner,
    )


def _check_kind(frame: Frame, node: ast.FunctionDef, name: str) -> None:
    for part in ast.walk(node):
        if isinstance(part, ast.Yield | ast.YieldFrom | ast.Await):
            with at(frame, part):
                frame.refuse(f"{name} is a generator", "return a list instead")
        if isinstance(part, ast.Global | ast.Nonlocal):
            frame.refuse(
                f"{name} assigns {', '.join(part.names)}, a variable outside of it",
                "return the value, or keep it in a list or an object",
            )


def bind(
    frame: Frame, source: Source, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Value]:
    """The parameters of a call by name, as Python binds them."""
    spec = source.node.args
    positional = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional) and spec.vararg is None:
        frame.refuse(
            f"{source.name}() takes {len(positional)} positional arguments but {len(args)} "
            "were given"
        )
    if spec.vararg is not None:
        bound[spec.vararg.arg] = TupleValue(tuple(args[len(positional) :]))
    names = {*positional, *(arg.arg for arg in spec.kwonlyargs)}
    extra: dict[str, Value] = {}
    for name, value in kwargs.items():
        if name in bound and name in names:
            frame.refuse(f"{source.name}() got multiple values for argument '{name}'")
        if name in names:
            bound[name] = value
        elif spec.kwarg is not None:
            extra[name] = value
        else:
            frame.refuse(f"{source.name}() got an unexpected keyword argument '{name}'")
    if spec.kwarg is not None:
        if not all(map(is_static, extra.values())):
            frame.refuse(f"{source.name}() takes ** of values of the instance")
        bound[spec.kwarg.arg] = Static({name: python_of(v) for name, v in extra.items()})
    first = len(positional) - len(source.defaults)
    for name, value in zip(positional[first:], source.defaults, strict=True):
        bound.setdefault(name, value)
    for name, value in source.keyword_defaults.items():
        bound.setdefault(name, value)
    missing = [
        name for name in (*positional, *(a.arg for a in spec.kwonlyargs)) if name not in bound
    ]
    if missing:
        frame.refuse(f"{source.name}() misses the argument {missing[0]!r}")
    return {name: _as_parameter(frame, value) for name, value in bound.items()}


def _as_parameter(frame: Frame, value: Value) -> Value:
    """A list display that is handed to a function of the user becomes a list, which it may
    change."""
    if isinstance(value, TupleValue) and value.is_list:
        return frame.dynamic(value)
    if isinstance(value, Unbound):
        frame.refuse("an argument is not assigned on every way to here")
    return value


def call_function(
    frame: Frame, source: Source, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of a function of the user."""
    bound = bind(frame, source, args, kwargs)
    for value in bound.values():
        if isinstance(value, Dynamic):
            impossible(frame, value.type)
    evaluation = frame.evaluation
    if source.code in evaluation.outlined_code:
        return _call_outlined(frame, source, bound)
    depth = 0
    caller: Frame | None = frame
    while caller is not None:
        if caller.code == source.code:
            evaluation.outlined_code.add(source.code)
            raise Again
        caller, depth = caller.caller, depth + 1
    if depth > MOST_INLINED:
        frame.refuse(f"calls of functions are nested more than {MOST_INLINED} levels deep")
    return _inline(frame, source, bound)


def _local_names(source: Source) -> frozenset[str]:
    return stores(source.node.body) | {
        arg.arg for arg in ast.walk(source.node.args) if isinstance(arg, ast.arg)
    }


def _new_frame(
    frame: Frame, source: Source, bound: dict[str, Value], path: tuple[Hashable, ...]
) -> Frame:
    return Frame(
        frame.evaluation,
        frame.builder,
        source.name,
        source.file,
        source.globals,
        source.outer,
        source.free,
        source.code,
        path,
        bound,
        _local_names(source),
        caller=frame,
        owner=source.owner,
        place=source.node,
        owned=owned_names(source.node),
        private=private_lists(source.node),
    )


def _inline(frame: Frame, source: Source, bound: dict[str, Value]) -> Value:
    inner = _new_frame(frame, source, bound, (*frame.path, frame.site()))
    label = inner.return_label = frame.builder.label()
    draft: Draft = []
    with frame.builder.into(draft):
        run_body(inner, source.node)
    frame.builder.pend(lambda body: scoped(label, body), draft)
    value = merge(inner, inner.returns)
    assert value is not None
    return value


def run_body(inner: Frame, node: ast.FunctionDef) -> None:
    """Evaluates the body of a function, with `return None` at its end."""
    try:
        execute(inner, node.body)
        leave(inner, NONE)
    except PathEnds:
        pass


# ---- recursive functions ---------------------------------------------------------------------


def _call_outlined(frame: Frame, source: Source, bound: dict[str, Value]) -> Value:
    return over_choices(frame, [], bound, lambda _, found: _call_with(frame, source, found))


def _call_with(frame: Frame, source: Source, bound: dict[str, Value]) -> Value:
    evaluation = frame.evaluation
    _widen(frame, source, bound)
    captured = _captured(frame, source)
    parts: list[Dynamic] = []
    key = (
        source.code,
        tuple((name, _shape(frame, value, parts)) for name, value in sorted(bound.items())),
        tuple((name, _shape(frame, value, parts)) for name, value in sorted(captured.items())),
    )
    location = SourceLocation(source.file, source.node.lineno, function=source.name)
    made, is_new = evaluation.outline(key, source.name, location)
    if is_new:
        _evaluate_outlined(frame, source, made, bound, captured)
    result = evaluation.results.get(key, NEVER)
    operands: tuple[Operand, ...] = tuple(part.operand for part in parts)
    if result == NEVER:
        frame.builder.emit(Call(None, made.number, operands, frame.location))
        impossible(frame, result)
    target = frame.builder.variable(source.node.name.strip("_<>") or "result", result)
    frame.builder.emit(Call(target, made.number, operands, frame.location))
    found = Dynamic(target, result)
    if isinstance(result, TupleType):
        return _unpacked(frame, found, result)
    return found


def _unpacked(frame: Frame, value: Dynamic, type_: TupleType) -> Value:
    """The items of a tuple that a function returned, in variables of their own."""
    items: list[Value] = []
    for number, item in enumerate(type_.items):
        part = frame.assign("item", item, value.operand, detail=number)
        items.append(_unpacked(frame, part, item) if isinstance(item, TupleType) else part)
    return TupleValue(tuple(items))


def _widen(frame: Frame, source: Source, bound: dict[str, Value]) -> None:
    """A static scalar that differs between calls within calls of one function, as a depth, becomes
    data."""
    evaluation = frame.evaluation
    for name, value in bound.items():
        if not is_scalar(value):
            continue
        key = (source.code, name)
        if key not in evaluation.dynamic_parameters and _differs(frame, source, name, value):
            evaluation.dynamic_parameters.add(key)
            raise Again
        if key in evaluation.dynamic_parameters:
            bound[name] = frame.dynamic(value)


def _differs(frame: Frame, source: Source, name: str, value: Value) -> bool:
    assert isinstance(value, Static)
    caller: Frame | None = frame
    while caller is not None:
        if caller.code == source.code:
            other = caller.parameters.get(name)
            if not isinstance(other, Static) or type(other.value) is not type(value.value):
                return True
            if other.value != value.value:
                return True
        caller = caller.caller
    return False


def _captured(frame: Frame, source: Source) -> dict[str, Value]:
    """Values of the instance that a nested function reads from around it."""
    if source.outer is None:
        return {}
    found: dict[str, Value] = {}
    pending = [source.node]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for name in sorted(loads(node) - _bound_in(node)):
            value = _from_outer(source.outer, name)
            if value is None:
                continue
            if isinstance(value, Closure):
                pending.append(value.node)
            found[name] = value
    return found


def _bound_in(node: ast.FunctionDef) -> frozenset[str]:
    return stores(node.body) | {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}


def _from_outer(outer: Frame, name: str) -> Value | None:
    scope: Frame | None = outer
    while scope is not None:
        if name in scope.locals:
            return scope.locals[name]
        scope = scope.outer
    return None


def _shape(frame: Frame, value: Value, parts: list[Dynamic]) -> Hashable:
    """What the key of an outlined function says of an argument; its data is added to `parts`."""
    match value:
        case Static(item):
            if is_scalar(value):
                return ("scalar", type(item), item)
            frame.evaluation.kept.append(item)
            return ("object", id(item))
        case Dynamic(_, type_):
            parts.append(value)
            return ("data", type_)
        case TupleValue(items, is_list):
            return ("tuple", is_list, tuple(_shape(frame, item, parts) for item in items))
        case Closure(node):
            return ("closure", node)
        case Method(function, owner):
            return ("method", function, _shape(frame, owner, parts))
        case _:
            parts.append(frame.dynamic(value))
            return ("data", parts[-1].type)


def _evaluate_outlined(
    frame: Frame,
    source: Source,
    made: Any,
    bound: dict[str, Value],
    captured: dict[str, Value],
) -> None:
    parameters: list[Variable] = []
    inner = _new_frame(frame, source, {}, (made.key,))
    inner.builder = made.builder
    inner.result_key = made.key
    inner.locals = {
        name: _parameter(inner, value, name, parameters) for name, value in sorted(bound.items())
    }
    inner.parameters = dict(inner.locals)
    if source.outer is not None:
        around = {
            name: _parameter(inner, value, name, parameters)
            for name, value in sorted(captured.items())
        }
        inner.outer = _around(inner, source, around)
    draft: Draft = []
    with made.builder.into(draft):
        run_body(inner, source.node)
    function: Function = made.function
    function.parameters = tuple(parameters)
    function.body = pruned(finished(draft))
    function.result = frame.evaluation.results.get(made.key, NEVER)


def _around(inner: Frame, source: Source, around: dict[str, Value]) -> Frame:
    """What an outlined nested function sees around it: captured values are its parameters."""
    assert source.outer is not None
    scope = Frame(
        inner.evaluation,
        inner.builder,
        source.outer.name,
        source.file,
        source.globals,
        None,
        source.free,
        ("around", source.code),
        inner.path,
        {},
        frozenset(),
        owner=source.owner,
    )
    for name, value in around.items():
        if isinstance(value, Closure):
            value = Closure(value.node, scope, value.defaults, value.keyword_defaults, value.name)
        scope.locals[name] = value
    return scope


def _parameter(frame: Frame, value: Value, name: str, parameters: list[Variable]) -> Value:
    """An argument inside of the function: its data is in parameters."""
    match value:
        case Dynamic(_, type_):
            made = frame.builder.variable(name, type_)
            parameters.append(made)
            return Dynamic(made, type_)
        case TupleValue(items, is_list, names):
            inner = tuple(_parameter(frame, item, name, parameters) for item in items)
            return TupleValue(inner, is_list, names)
        case Method():
            return replace(value, owner=_parameter(frame, value.owner, name, parameters))
        case Static() | Closure():
            return value
        case _:
            made = frame.builder.variable(name, frame.type_of(value))
            parameters.append(made)
            return Dynamic(made, made.type)

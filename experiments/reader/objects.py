"""Objects: attributes, calls, operators, containers and iteration, as Python's data model has them.

Python's own functions run natively on values without identity (numbers, texts, tensors); those of
containers have rules here. A native function that no rule knows is refused if it is given an object
of the program.
"""

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
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from experiments.reader.heap import CELL, CONTAINERS, ITEMS, MISSING, Heap, Ref, rebuild_tuple
from stretto.frontends.python.calls.call import traced_call
from stretto.frontends.python.lists import operations, sources
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.locations import is_user_file
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import flag_of, is_number, known_value
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from experiments.reader.interpreter import Frame, Interpreter

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.Tensor, torch.dtype,
    torch.device, torch.SymInt, torch.SymFloat, torch.SymBool, torch.layout, torch.memory_format,
    torch.Size, types.EllipsisType, type(NotImplemented),
)  # fmt: skip
"""Classes of values that native code may get: they have no content that a program can change."""
NATIVE_MODULES = (
    "torch", "math", "operator", "builtins", "_operator", "numpy", "_functools", "typing", "enum",
    "warnings", "logging", "os", "time", "copy", "re", "string", "numbers", "abc", "_abc", "inspect", "sys",
)  # fmt: skip


class BoundMethod:
    """A method of a container, a text or another native object of the program."""

    __slots__ = ("holder", "name")

    def __init__(self, holder: Any, name: str) -> None:
        self.holder, self.name = holder, name


class IteratorOf:
    """An iterator that the interpreter advances: `steps` is a host iterator."""

    def __init__(self, steps: Iterator[Any], depth: int) -> None:
        self.steps, self.depth = steps, depth

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.steps)


class GeneratorOf(IteratorOf):
    """A generator of an interpreted function."""


HOST = (BoundMethod, IteratorOf, Indexed, Either, TracedList)
"""Classes of the interpreter, whose methods are not the program's."""


class Objects:
    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.rules: dict[Any, Callable[..., Any]] = _rules(self)

    # -- classes --------------------------------------------------------------------------------

    def type_of(self, value: Any) -> type:
        if isinstance(value, Ref):
            return value.kind
        if isinstance(value, GeneratorOf):
            return types.GeneratorType
        if isinstance(value, TracedTensor):
            return torch.Tensor if value.number is None else _number_type(value)
        if isinstance(value, torch.SymInt):
            return int
        if isinstance(value, torch.SymBool):
            return bool
        if isinstance(value, torch.SymFloat):
            return float
        return type(value)

    def is_instance(self, value: Any, kinds: Any) -> bool:
        if isinstance(kinds, tuple):
            return any(self.is_instance(value, kind) for kind in kinds)
        if isinstance(kinds, types.UnionType):
            return any(self.is_instance(value, kind) for kind in kinds.__args__)
        kind = self.type_of(value)
        if isinstance(value, TracedTensor) and value.number is None:
            return isinstance(value, kinds)
        if kinds in (nn.Parameter,):
            return isinstance(value, kinds)
        return issubclass(kind, kinds)

    @staticmethod
    def entry(kind: type, name: str) -> Any:
        for base in kind.__mro__:
            if name in base.__dict__:
                return base.__dict__[name]
        return MISSING

    def method(self, value: Any, name: str) -> Any:
        """Return a special method that is written in Python, bound; MISSING if there is none."""
        if isinstance(value, HOST):
            return MISSING
        kind = self.type_of(value)
        found = self.entry(kind, name)
        if isinstance(found, types.FunctionType) and not isinstance(value, torch.Tensor):
            return types.MethodType(found, value)
        return MISSING

    # -- attributes -----------------------------------------------------------------------------

    def getattr(self, value: Any, name: str) -> Any:
        found = self.lookup(value, name)
        if found is MISSING:
            kind = self.type_of(value).__name__
            raise AttributeError(f"'{kind}' object has no attribute '{name}'", name=name, obj=value)
        return found

    def lookup(self, value: Any, name: str) -> Any:
        if isinstance(value, Either):
            return self.interpreter.regions.each_option(value, lambda x: self.getattr(x, name))
        if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            found = getattr(value, name, MISSING)
            return self.heap.adopt(found)
        if isinstance(value, types.ModuleType):
            found = getattr(value, name, MISSING)
            if found is not MISSING:
                self.heap.reads.append((value, name, found))
            return self.heap.adopt(found)
        if isinstance(value, type):
            return self._of_class(value, name)
        if isinstance(value, super):
            return getattr(value, name, MISSING)
        if texts.is_text(value) or isinstance(value, str | bytes | int | float | complex | range):
            return getattr(value, name, MISSING)
        kind = self.type_of(value)
        if name == "__class__":
            return kind
        if name == "__dict__":
            return self._namespace(value)
        entry = self.entry(kind, name)
        is_data = entry is not MISSING and hasattr(type(entry), "__set__")
        if isinstance(entry, property):
            if entry.fget is None:
                raise AttributeError(f"property '{name}' has no getter")
            return self.call(entry.fget, (value,), {})
        if isinstance(entry, types.MemberDescriptorType):
            return self._stored(value, name)
        if is_data and isinstance(self.entry(type(entry), "__get__"), types.FunctionType):
            return self.call(type(entry).__get__, (entry, value, kind), {})
        if is_data and not isinstance(entry, types.GetSetDescriptorType):
            return self.heap.adopt(entry.__get__(value, kind))
        found = self._stored(value, name)
        if found is not MISSING:
            return found
        if entry is MISSING:
            return self._missing(value, kind, name)
        return self._bound(entry, value, kind, name)

    def _stored(self, value: Any, name: str) -> Any:
        """Return an attribute of the object itself."""
        table = self.heap.table_of(value)
        if name in table:
            return self.interpreter.regions.bound(table[name], name)
        if isinstance(value, Ref):
            real = next((r for r, ref in self.heap.refs.values() if ref is value), None)
            if real is None or not hasattr(real, "__dict__"):
                return MISSING
            value = real
        if self.heap.is_own(value) and not isinstance(value, types.FunctionType):
            return MISSING
        try:
            held = object.__getattribute__(value, "__dict__")
        except AttributeError:
            held = {}
        if name in held:
            found = held[name]
        else:
            entry = self.entry(type(value), name)
            if not isinstance(entry, types.MemberDescriptorType):
                return MISSING
            try:
                found = entry.__get__(value)
            except AttributeError:
                return MISSING
        self.heap.reads.append((value, name, found))
        return self.heap.adopt(found)

    def _namespace(self, value: Any) -> Ref:
        """Return the attributes of an object as a dict, which is a copy."""
        found = {}
        if not self.heap.is_own(value) and not isinstance(value, Ref):
            found = {key: self.heap.adopt(item) for key, item in vars(value).items()}
        table = self.heap.table_of(value)
        found |= {k: v for k, v in table.items() if isinstance(k, str)}
        return self.heap.new(dict, {k: v for k, v in found.items() if v is not MISSING})

    def _bound(self, entry: Any, value: Any, kind: type, name: str) -> Any:
        match entry:
            case types.FunctionType():
                return types.MethodType(entry, value)
            case staticmethod():
                return entry.__func__
            case classmethod():
                return types.MethodType(entry.__func__, kind)
            case functools.cached_property():
                found = self.call(entry.func, (value,), {})
                self.heap.set(self.heap.table_of(value), name, found)
                return found
            case (
                types.BuiltinFunctionType()
                | types.MethodDescriptorType()
                | types.WrapperDescriptorType()
            ):
                if isinstance(value, Ref | IteratorOf) or self.heap.is_own(value):
                    return BoundMethod(value, name)
                return entry.__get__(value, kind)
            case _ if hasattr(type(entry), "__get__"):
                getter = self.entry(type(entry), "__get__")
                if isinstance(getter, types.FunctionType):
                    return self.call(getter, (entry, value, kind), {})
                return self.heap.adopt(entry.__get__(value, kind))
            case _:
                return self.heap.adopt(entry)

    def _missing(self, value: Any, kind: type, name: str) -> Any:
        hook = self.entry(kind, "__getattr__")
        if hook is MISSING:
            return MISSING
        if hook is nn.Module.__getattr__:
            for table in ("_parameters", "_buffers", "_modules"):
                items = self._stored(value, table)
                if items is not MISSING and name in items.table[ITEMS]:
                    return items.table[ITEMS][name]
            return MISSING
        return self.call(hook, (value, name), {})

    def _of_class(self, kind: type, name: str) -> Any:
        table = self.heap.table_of(kind)
        if name in table:
            return table[name]
        found = inspect.getattr_static(kind, name, MISSING)
        if isinstance(found, property | types.MemberDescriptorType):
            return found
        if isinstance(found, classmethod):
            return types.MethodType(found.__func__, kind)
        return self.heap.adopt(getattr(kind, name, MISSING))

    def setattr(self, value: Any, name: str, new: Any) -> None:
        if isinstance(value, Either):
            self.interpreter.regions.each_option(value, lambda x: self.setattr(x, name, new))
            return
        if isinstance(value, torch.Tensor):
            traced_call(setattr, (value, name, self.heap.real(new)), {})
            return
        kind = self.type_of(value)
        hook = self.entry(kind, "__setattr__")
        if hook is nn.Module.__setattr__:
            for table in ("_parameters", "_buffers", "_modules"):
                items = self._stored(value, table)
                if items is not MISSING and name in items.table[ITEMS]:
                    self.setitem(items, name, new)
                    return
            if isinstance(new, nn.Parameter | nn.Module):
                fail("a module gets a new part", "make it in __init__")
        elif isinstance(hook, types.FunctionType):
            self.call(hook, (value, name, new), {})
            return
        entry = self.entry(kind, name)
        if isinstance(entry, property):
            if entry.fset is None:
                raise AttributeError(f"property '{name}' of '{kind.__name__}' object has no setter")
            self.call(entry.fset, (value, new), {})
            return
        setter = MISSING if entry is MISSING else self.entry(type(entry), "__set__")
        if isinstance(setter, types.FunctionType):
            self.call(setter, (entry, value, new), {})
            return
        if not isinstance(value, type | Ref) and not hasattr(value, "__dict__"):
            if entry is MISSING:
                raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
        self.heap.set(self.heap.table_of(value), name, new)

    def delattr(self, value: Any, name: str) -> None:
        hook = self.entry(self.type_of(value), "__delattr__")
        if isinstance(hook, types.FunctionType) and hook is not nn.Module.__delattr__:
            self.call(hook, (value, name), {})
            return
        if self._stored(value, name) is MISSING:
            raise AttributeError(name)
        self.heap.set(self.heap.table_of(value), name, MISSING)

    # -- calls ----------------------------------------------------------------------------------

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(function, Either):
            return self.interpreter.regions.each_option(
                function, lambda option: self.call(option, args, kwargs)
            )
        try:
            rule = self.rules.get(function)
        except TypeError:
            rule = None
        if rule is not None:
            return rule(*args, **kwargs)
        match function:
            case BoundMethod():
                return self.method_call(function.holder, function.name, args, kwargs)
            case types.MethodType():
                held = function.__self__
                if isinstance(held, nn.Module) and function.__func__ in (
                    nn.Module.__call__,
                    nn.Module._call_impl,
                ):
                    return self.module(held, args, kwargs)
                return self.call(function.__func__, (held, *args), kwargs)
            case functools.partial():
                given = {**function.keywords, **kwargs}
                return self.call(function.func, (*function.args, *args), given)
            case types.FunctionType():
                return self.function(function, args, kwargs)
            case type():
                return self.construct(function, args, kwargs)
            case nn.Module():
                return self.module(function, args, kwargs)
            case functools._lru_cache_wrapper():
                return self.call(function.__wrapped__, args, kwargs)
            case _:
                method = self.method(function, "__call__")
                if method is not MISSING:
                    return self.call(method, args, kwargs)
                return self.native(function, args, kwargs)

    def function(self, function: types.FunctionType, args: Any, kwargs: Any) -> Any:
        code = function.__code__
        made = getattr(code, "co_filename", "")
        if made == "<string>" and args and dataclasses.is_dataclass(self.type_of(args[0])):
            found = self.of_dataclass(function, args, kwargs)
            if found is not NotImplemented:
                return found
        if self.is_interpreted(function):
            return self.interpreter.calls.run(function, args, kwargs)
        return self.native(function, args, kwargs)

    def is_interpreted(self, function: types.FunctionType) -> bool:
        name = function.__module__ or ""
        if is_user_file(function.__code__.co_filename):
            return True
        return name.startswith(
            ("torch.nn.modules", "torch.distributions", "contextlib", "functools", "collections")
        )

    def module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        hooks = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
        if any(self._stored(module, name).table[ITEMS] for name in hooks):
            return self.interpreter.run(nn.Module._call_impl, (module, *args), kwargs)
        return self.call(self.getattr(module, "forward"), args, kwargs)

    def of_dataclass(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a method that `dataclass` has made."""
        held = args[0]
        kind = self.type_of(held)
        if function.__name__ == "__init__":
            given = inspect.signature(function).bind(*args, **kwargs).arguments
            for item in dataclasses.fields(kind):
                if not item.init:
                    continue
                if item.name in given:
                    value = given[item.name]
                elif item.default is not dataclasses.MISSING:
                    value = self.heap.adopt(item.default)
                elif item.default_factory is not dataclasses.MISSING:
                    value = self.call(item.default_factory, (), {})
                self.heap.set(self.heap.table_of(held), item.name, value)
            if self.entry(kind, "__post_init__") is not MISSING:
                self.call(self.getattr(held, "__post_init__"), (), {})
            return None
        if function.__name__ == "__eq__":
            other = args[1]
            if self.type_of(other) is not kind:
                return NotImplemented
            names = [item.name for item in dataclasses.fields(kind) if item.compare]
            return self.compare(
                ast.Eq,
                tuple(self.getattr(held, n) for n in names),
                tuple(self.getattr(other, n) for n in names),
            )
        return NotImplemented

    def construct(self, kind: type, args: Any, kwargs: Any) -> Any:
        if issubclass(kind, BaseException) or kind in (super, property, classmethod, staticmethod):
            if kind is super:
                return super(*args)
            return kind(*args, **kwargs)
        if (
            issubclass(kind, PLAIN)
            or type(kind) is not type
            and not is_user_file(
                inspect.getmodule(kind).__file__ or "" if inspect.getmodule(kind) else ""
            )
        ):
            return self.native(kind, args, kwargs)
        if issubclass(kind, CONTAINERS):
            made = self.heap.new(kind, {} if issubclass(kind, dict | set) else ())
            new = kind.__init__
            if isinstance(new, types.FunctionType):
                self.call(new, (made, *args), kwargs)
            else:
                self.method_call(made, "__init__", args, kwargs)
            return made
        if issubclass(kind, tuple):
            if hasattr(kind, "_fields"):
                return kind(*args, **kwargs)
            return self.native(kind, args, kwargs)
        if kind.__module__ in ("builtins", "itertools", "collections", "functools") or (
            kind.__module__ or ""
        ).startswith("torch"):
            return self.native(kind, args, kwargs)
        new = kind.__new__
        if new is object.__new__:
            made = self.heap.new_object(kind)
        else:
            made = self.call(new, (kind, *args), kwargs)
        start = self.entry(kind, "__init__")
        if isinstance(start, types.FunctionType):
            self.call(start, (made, *args), kwargs)
        elif (args or kwargs) and new is object.__new__:
            raise TypeError(f"{kind.__name__}() takes no arguments")
        return made

    def native(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call native code with values that it cannot change."""
        given = [self._given(item) for item in args]
        named = {key: self._given(item) for key, item in kwargs.items()}
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__module__", None) or getattr(type(owner), "__module__", "")
        if name.split(".")[0] not in NATIVE_MODULES and not isinstance(owner, PLAIN):
            if not isinstance(function, type) or (kwargs or args):
                fail(f"{function!r} is native code that no rule knows", "call it outside")
        found = traced_call(function, tuple(given), named)
        return self.heap.adopt(found)

    def _given(self, value: Any) -> Any:
        real = self.heap.real(value)
        if isinstance(real, types.FunctionType | types.MethodType) and self.heap.is_own(
            getattr(real, "__func__", real)
        ):
            return self.as_host_function(value)
        return real

    def as_host_function(self, function: Any) -> Any:
        """Return a host function that interprets a function of the program."""
        return lambda *args, **kwargs: self.call(function, args, kwargs)

    def bound(self, function: types.FunctionType, args: Any, kwargs: Any) -> dict[str, Any]:
        """Bind arguments to parameters as Python does."""
        code = function.__code__
        count, only = code.co_argcount, code.co_kwonlyargcount
        names = code.co_varnames
        if len(args) <= count and not code.co_flags & 0x0C and not only and not kwargs:
            found = dict(zip(names, args, strict=False))
            missing = names[len(args) : count]
            if not missing:
                return found
            defaults = function.__defaults__ or ()
            first = count - len(defaults)
            if len(args) >= first:
                for number, name in enumerate(missing, len(args)):
                    found[name] = self._default(function, defaults[number - first])
                return found
        signature = _signature(code, function)
        made = signature.bind(*args, **kwargs)
        found = {}
        for name, parameter in signature.parameters.items():
            if name in made.arguments:
                value = made.arguments[name]
                found[name] = (
                    self.heap.new(dict, value) if parameter.kind is parameter.VAR_KEYWORD else value
                )
            elif parameter.kind is parameter.VAR_POSITIONAL:
                found[name] = ()
            elif parameter.kind is parameter.VAR_KEYWORD:
                found[name] = self.heap.new(dict, {})
            else:
                found[name] = self._default(function, parameter.default)
        return found

    def _default(self, function: Any, value: Any) -> Any:
        return value if self.heap.is_own(function) else self.heap.adopt(value)

    def super_of(self, frame: Frame) -> Any:
        scope = frame
        while scope.parent is not None:
            scope = scope.parent
        first = scope.code.co_varnames[0]
        held = self.interpreter.load(scope, first)
        kind = self.interpreter.load(scope, "__class__")
        return SuperOf(kind, held)

    # -- truth, operators -----------------------------------------------------------------------

    def truth(self, value: Any) -> Any:
        """Return the truth of a value: a bool, or a traced flag."""
        match value:
            case bool():
                return value
            case Either():
                return self.interpreter.regions.each_option(value, self.truth)
            case TracedTensor():
                known = known_value(value) if value.number is not None else None
                return bool(known) if known is not None else tracer().number(flag_of(value))
            case torch.Tensor():
                return tracer().number(flag_of(tracer().promote(value)))
            case Ref():
                method = self.method(value, "__bool__")
                if method is MISSING:
                    method = self.method(value, "__len__")
                if method is not MISSING:
                    return self.truth(self.call(method, (), {}))
                items = value.table[ITEMS]
                if isinstance(items, TracedList):
                    return self.truth(operations.traced_length(items) > 0)
                return bool(items)
            case _:
                for name in ("__bool__", "__len__"):
                    method = self.method(value, name)
                    if method is not MISSING:
                        return self.truth(self.call(method, (), {}))
                return bool(value)

    def binary(self, name: str, first: Any, second: Any) -> Any:
        if isinstance(first, Either | torch.Tensor) or isinstance(second, Either):
            if not isinstance(second, Ref):
                return _OPERATORS[name](first, second)
        special, swapped = f"__{name}__", f"__r{name}__"
        kinds = self.type_of(first), self.type_of(second)
        calls = [(first, special, second), (second, swapped, first)]
        if kinds[0] is not kinds[1] and issubclass(kinds[1], kinds[0]):
            calls.reverse()
        for held, method, other in calls:
            found = self.method(held, method)
            if found is not MISSING:
                result = self.call(found, (other,), {})
                if result is not NotImplemented:
                    return result
        if isinstance(first, Ref) or isinstance(second, Ref):
            return self.of_containers(name, first, second)
        if name == "add" and isinstance(first, tuple) and isinstance(second, tuple):
            return (*first, *second)
        if name == "mod" and isinstance(first, str):
            return self.percent(first, second)
        return _OPERATORS[name](first, second)

    def percent(self, first: Any, second: Any) -> Any:
        from stretto.frontends.python import staging

        return staging.modulo(first, self.heap.real(second))

    def of_containers(self, name: str, first: Any, second: Any) -> Any:
        if name == "add" and isinstance(first, Ref) and isinstance(second, Ref):
            if first.kind is list and second.kind is list:
                made = self.heap.new(list, first.table[ITEMS])
                self.method_call(made, "extend", (second,), {})
                return made
        if name == "mul":
            held, count = (first, second) if isinstance(first, Ref) else (second, first)
            items = held.table[ITEMS]
            if isinstance(items, tuple) and isinstance(count, int):
                return self.heap.new(held.kind, items * count)
            if isinstance(items, TracedList) or isinstance(count, TracedTensor):
                made = items if isinstance(items, TracedList) else operations.to_python
                return self.heap.new(list, self.as_traced(items) * count)
        if (
            name in ("or", "and", "sub", "xor")
            and isinstance(first, Ref)
            and isinstance(second, Ref)
        ):
            a, b = first.table[ITEMS], second.table[ITEMS]
            if issubclass(first.kind, set):
                return self.heap.new(first.kind, dict.fromkeys(_SETS[name](a.keys(), b.keys())))
            if name == "or":
                return self.heap.new(first.kind, a | b)
        if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
            return _OPERATORS[name](self.heap.real(first), self.heap.real(second))
        left, right = self.type_of(first).__name__, self.type_of(second).__name__
        raise TypeError(f"unsupported operand type(s) for {name}: '{left}' and '{right}'")

    def as_traced(self, items: Any) -> Any:
        if isinstance(items, TracedList):
            return items
        from stretto.frontends.python.values.leaves import to_traced_list

        return to_traced_list(list(items))

    def augment(self, name: str, before: Any, value: Any) -> Any:
        method = self.method(before, f"__i{name}__")
        if method is not MISSING:
            found = self.call(method, (value,), {})
            if found is not NotImplemented:
                return found
        if isinstance(before, Ref):
            if before.kind is list and name == "add":
                self.method_call(before, "extend", (value,), {})
                return before
            if name == "or" and issubclass(before.kind, dict | set):
                self.method_call(before, "update", (value,), {})
                return before
            made = self.binary(name, before, value)
            self.heap.set(before.table, ITEMS, made.table[ITEMS])
            return before
        if isinstance(before, torch.Tensor):
            return _INPLACE[name](before, self.heap.real(value))
        return self.binary(name, before, value)

    def unary(self, operation: Callable[[Any], Any], value: Any) -> Any:
        method = self.method(value, f"__{operation.__name__}__")
        return operation(value) if method is MISSING else self.call(method, (), {})

    def compare(self, op: type, first: Any, second: Any) -> Any:
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
        name = _COMPARISONS[op]
        if op is ast.NotEq and self.method(first, "__ne__") is MISSING:
            if self.method(first, "__eq__") is not MISSING or isinstance(first, Ref | tuple):
                return regions.negated(self.truth(self.compare(ast.Eq, first, second)))
        for held, method, other in ((first, name, second), (second, _SWAPPED[name], first)):
            found = self.method(held, f"__{method}__")
            if found is not MISSING:
                result = self.call(found, (other,), {})
                if result is not NotImplemented:
                    return result
        if (
            isinstance(first, Ref)
            and isinstance(second, Ref)
            or (isinstance(first, tuple) and isinstance(second, tuple))
        ):
            return self.compare_containers(op, first, second)
        if isinstance(first, Ref) or isinstance(second, Ref):
            if op is ast.Eq:
                return False
            raise TypeError(f"'{name}' not supported between these instances")
        return getattr(operator, name)(first, second)

    def compare_containers(self, op: type, first: Any, second: Any) -> Any:
        a = first.table[ITEMS] if isinstance(first, Ref) else first
        b = second.table[ITEMS] if isinstance(second, Ref) else second
        if isinstance(a, TracedList) or isinstance(b, TracedList):
            return operations.operator(self.as_traced(a), _SYMBOLS[op], self.as_traced(b))
        if isinstance(a, dict) or isinstance(b, dict):
            if op is not ast.Eq:
                return getattr(operator, _COMPARISONS[op])(
                    self.heap.real(first), self.heap.real(second)
                )
            if type(a) is not type(b) or a.keys() != b.keys():
                return False
            a, b = tuple(a.values()), tuple(b[key] for key in a)
        if op is ast.Eq and len(a) != len(b):
            return False
        pairs = list(zip(a, b, strict=False))
        return self._lexicographic(op, pairs, len(a), len(b))

    def _lexicographic(self, op: type, pairs: list[Any], one: int, two: int) -> Any:
        if not pairs:
            return getattr(operator, _COMPARISONS[op])(one, two)
        (a, b), *rest = pairs
        equal = True if a is b else self.truth(self.compare(ast.Eq, a, b))
        if equal is True:
            return self._lexicographic(op, rest, one, two)
        differ = (lambda: False) if op is ast.Eq else (lambda: self.compare(op, a, b))
        if equal is False:
            return differ()
        return self.interpreter.regions.branch(
            equal, lambda: self._lexicographic(op, rest, one, two), differ
        )

    def same(self, first: Any, second: Any) -> Any:
        from stretto.frontends.python import staging

        if first is second:
            return True
        return staging.is_(first, second)

    def contains(self, container: Any, item: Any) -> Any:
        method = self.method(container, "__contains__")
        if method is not MISSING:
            return self.truth(self.call(method, (item,), {}))
        if isinstance(container, Ref):
            items = container.table[ITEMS]
            if isinstance(items, dict):
                if is_number(item):
                    return self._among(list(items), item)
                return self.interpreter.regions.is_bound(items.get(self.key(item), MISSING))
            if isinstance(items, TracedList):
                return operations.contains(items, item)
            return self._among(items, item)
        if isinstance(container, tuple):
            return self._among(container, item)
        if isinstance(container, str | range | torch.Tensor) or texts.is_text(container):
            from stretto.frontends.python import staging

            return staging.contains(container, item)
        if self.method(container, "__iter__") is not MISSING or isinstance(container, IteratorOf):
            return self._among(list(self.iterate(container)), item)
        return item in container

    def _among(self, items: Any, item: Any) -> Any:
        for number, other in enumerate(items):
            found = True if other is item else self.truth(self.compare(ast.Eq, other, item))
            if found is True:
                return True
            if found is not False:
                rest = items[number + 1 :]
                return self.interpreter.regions.branch(
                    found, lambda: True, lambda rest=rest: self._among(rest, item)
                )
        return False

    # -- items ----------------------------------------------------------------------------------

    def key(self, key: Any) -> Any:
        from stretto.frontends.python.calls.call import fixed_key

        if isinstance(key, Ref):
            raise TypeError(f"unhashable type: '{key.kind.__name__}'")
        return fixed_key(key)

    def getitem(self, holder: Any, index: Any) -> Any:
        regions = self.interpreter.regions
        if isinstance(holder, Either):
            return regions.each_option(holder, lambda x: self.getitem(x, index))
        method = self.method(holder, "__getitem__")
        if method is not MISSING:
            return self.call(method, (index,), {})
        if isinstance(holder, type):
            return holder[self.heap.real(index)]
        from stretto.frontends.python import staging

        if not isinstance(holder, Ref):
            if isinstance(holder, tuple) and isinstance(index, int | slice):
                return holder[index]
            return staging.getitem(holder, self.heap.real(index))
        items = holder.table[ITEMS]
        if isinstance(items, dict):
            at = self.key(index)
            if isinstance(at, TracedTensor) or texts.is_text(at):
                return staging.getitem(items, at)
            found = items.get(at, MISSING)
            if found is MISSING:
                missing = self.method(holder, "__missing__")
                if missing is not MISSING:
                    return self.call(missing, (index,), {})
                if issubclass(holder.kind, collections.defaultdict):
                    factory = holder.table.get("default_factory")
                    if factory is not None:
                        made = self.call(factory, (), {})
                        self.setitem(holder, index, made)
                        return made
                if issubclass(holder.kind, collections.Counter):
                    return 0
                raise KeyError(index)
            return regions.bound(found, repr(index))
        if isinstance(items, TracedList):
            made = operations.get_item(items, index)
            return self.heap.new(list, made) if isinstance(made, TracedList) else made
        if isinstance(index, slice):
            made = staging.getitem(list(items), index)
            return self.heap.new(holder.kind, made if isinstance(made, TracedList) else tuple(made))
        if isinstance(index, TracedTensor) and known_value(index) is None:
            return staging.getitem(list(items), index)
        at = operator.index(index)
        if not -len(items) <= at < len(items):
            raise IndexError("list index out of range")
        return items[at]

    def setitem(self, holder: Any, index: Any, value: Any) -> None:
        if isinstance(holder, Either):
            self.interpreter.regions.each_option(holder, lambda x: self.setitem(x, index, value))
            return
        method = self.method(holder, "__setitem__")
        if method is not MISSING:
            self.call(method, (index, value), {})
            return
        from stretto.frontends.python import staging

        if not isinstance(holder, Ref):
            staging.setitem(holder, self.heap.real(index), self.heap.real(value))
            return
        self.setitem_of_table(holder, index, value)

    def setitem_of_table(self, holder: Ref, index: Any, value: Any) -> None:
        items = holder.table[ITEMS]
        if isinstance(items, dict):
            self.heap.set(holder.table, ITEMS, {**items, self.key(index): value})
        elif isinstance(items, TracedList):
            operations.set_item(items, index, value)
        elif isinstance(index, TracedTensor) and known_value(index) is None:
            made = self.as_traced(items)
            operations.set_item(made, index, value)
            self.heap.set(holder.table, ITEMS, made)
        elif isinstance(index, slice):
            changed = list(items)
            changed[index] = list(self.iterate(value))
            self.heap.set(holder.table, ITEMS, tuple(changed))
        else:
            at = operator.index(index)
            if not -len(items) <= at < len(items):
                raise IndexError("list assignment index out of range")
            changed = list(items)
            changed[at] = value
            self.heap.set(holder.table, ITEMS, tuple(changed))

    def delitem(self, holder: Any, index: Any) -> None:
        method = self.method(holder, "__delitem__")
        if method is not MISSING:
            self.call(method, (index,), {})
            return
        items = holder.table[ITEMS]
        if isinstance(items, TracedList):
            operations.delete_item(items, index)
            return
        changed = dict(items) if isinstance(items, dict) else list(items)
        del changed[self.key(index) if isinstance(items, dict) else index]
        self.heap.set(holder.table, ITEMS, changed if isinstance(items, dict) else tuple(changed))

    def append(self, holder: Ref, item: Any) -> None:
        items = holder.table[ITEMS]
        if isinstance(items, TracedList):
            operations.push(items, item)
        else:
            self.heap.set(holder.table, ITEMS, (*items, item))

    def method_call(self, holder: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of a container that Python implements in C."""
        if isinstance(holder, GeneratorOf | IteratorOf):
            return self._of_iterator(holder, name, args)
        if not isinstance(holder, Ref):
            if name in ("__init__", "__init_subclass__"):
                return None
            if name == "__setattr__":
                self.heap.set(self.heap.table_of(holder), *args)
                return None
            if name in ("__getattribute__",):
                return self.getattr(holder, *args)
            if name in ("__eq__", "__ne__", "__hash__"):
                return getattr(holder, name)(*args)
            fail(f"the method {name} of {type(holder).__name__} has no rule", "write it in Python")
        rule = getattr(self, f"container_{name.strip('_')}", None)
        items = holder.table[ITEMS]
        if rule is not None:
            found = rule(holder, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if isinstance(items, TracedList):
            made = traced_call(getattr(items, name), tuple(self.heap.real(x) for x in args), kwargs)
            return self.heap.new(list, made) if isinstance(made, TracedList) else made
        base = next(b for b in (dict, set, deque, list) if issubclass(holder.kind, b))
        if base is set:
            content: Any = set(items)
        elif base is dict:
            content = collections.OrderedDict(items) if name == "move_to_end" else dict(items)
        else:
            content = base(items)
        given = [self._content(x) for x in args]
        found = getattr(content, name)(*given, **kwargs)
        if name in _PURE:
            if isinstance(found, type({}.keys()) | type({}.values()) | type({}.items())):
                return self.heap.new(list, tuple(found))
            return self._copied(holder, found)
        after: Any = (
            dict.fromkeys(content) if base is set else content if base is dict else tuple(content)
        )
        self.heap.set(holder.table, ITEMS, after)
        return found

    def _copied(self, holder: Ref, found: Any) -> Any:
        if isinstance(found, set):
            return self.heap.new(holder.kind, dict.fromkeys(found))
        if isinstance(found, dict):
            return self.heap.new(holder.kind, found)
        if isinstance(found, list | deque):
            return self.heap.new(holder.kind, tuple(found))
        return found

    def _content(self, value: Any) -> Any:
        if isinstance(value, Ref):
            items = value.table[ITEMS]
            return items if isinstance(items, dict) else list(items)
        if isinstance(value, IteratorOf):
            return list(value)
        return value

    def container_init(self, holder: Ref, *args: Any, **kwargs: Any) -> Any:
        if issubclass(holder.kind, collections.defaultdict) and args:
            self.heap.set(holder.table, "default_factory", args[0])
            args = args[1:]
        if issubclass(holder.kind, collections.Counter):
            if args and not isinstance(self._items_of(args[0]), dict):
                for item in self.iterate(args[0]):
                    self.setitem_of_table(holder, item, self.getitem(holder, item) + 1)
                return None
        if issubclass(holder.kind, dict):
            found = self.mapping(args[0]) if args else {}
            self.heap.set(holder.table, ITEMS, {**found, **kwargs})
        elif issubclass(holder.kind, set):
            keys = [self.key(x) for x in self.iterate(args[0])] if args else []
            self.heap.set(holder.table, ITEMS, dict.fromkeys(keys))
        elif args:
            source = self._items_of(args[0])
            if isinstance(source, TracedList):
                self.heap.set(holder.table, ITEMS, operations.copied(source))
                return None
            indexed = self.indexed(args[0])
            if indexed is not None and not isinstance(indexed.length, int):
                self.heap.set(holder.table, ITEMS, sources.listed(indexed))
                return None
            self.heap.set(holder.table, ITEMS, tuple(self.iterate(args[0])))
        return None

    def _items_of(self, value: Any) -> Any:
        return value.table[ITEMS] if isinstance(value, Ref) else None

    def container_append(self, holder: Ref, item: Any) -> None:
        self.append(holder, item)

    def container_extend(self, holder: Ref, items: Any) -> None:
        more = self._items_of(items)
        before = holder.table[ITEMS]
        if isinstance(more, TracedList) or isinstance(before, TracedList):
            made = self.as_traced(before) if before else operations.copied(more)
            if before:
                operations.extend(
                    made, more if isinstance(more, TracedList) else list(self.iterate(items))
                )
            self.heap.set(holder.table, ITEMS, made)
            return
        self.heap.set(holder.table, ITEMS, (*before, *self.iterate(items)))

    def container_update(self, holder: Ref, *args: Any, **kwargs: Any) -> Any:
        items = dict(holder.table[ITEMS])
        for given in args:
            if issubclass(holder.kind, set):
                items |= dict.fromkeys(map(self.key, self.iterate(given)))
            else:
                items |= self.mapping(given)
        self.heap.set(holder.table, ITEMS, items | kwargs)

    def container_get(self, holder: Ref, key: Any, default: Any = None) -> Any:
        at = self.key(key)
        if isinstance(at, TracedTensor) or texts.is_text(at):
            from stretto.frontends.python.calls.call import _get_by_text

            return traced_call(holder.table[ITEMS].get, (at, default), {})
        found = holder.table[ITEMS].get(at, MISSING)
        regions = self.interpreter.regions
        bound = regions.is_bound(found)
        if bound is True:
            return found
        if bound is False:
            return default
        return regions.branch(bound, lambda: regions.bound(found, repr(key)), lambda: default)

    def container_contains(self, holder: Ref, item: Any) -> Any:
        return self.contains(holder, item)

    def container_getitem(self, holder: Ref, index: Any) -> Any:
        return self.getitem(holder, index)

    def container_setitem(self, holder: Ref, index: Any, value: Any) -> None:
        self.setitem_of_table(holder, index, value)

    def container_setattr(self, holder: Ref, name: str, value: Any) -> None:
        self.heap.set(holder.table, name, value)

    def container_getattribute(self, holder: Ref, name: str) -> Any:
        return self.getattr(holder, name)

    def container_len(self, holder: Ref) -> Any:
        return self.length(holder)

    def container_iter(self, holder: Ref) -> Any:
        return IteratorOf(self.iterate(holder), self.interpreter.regions.depth)

    def container_sort(self, holder: Ref, key: Any = None, reverse: bool = False) -> None:
        found = self.sorted(holder, key=key, reverse=reverse)
        self.heap.set(holder.table, ITEMS, found.table[ITEMS])

    def container_index(self, holder: Ref, item: Any, *bounds: Any) -> Any:
        items = holder.table[ITEMS]
        if isinstance(items, TracedList) or bounds:
            return NotImplemented
        return self._position(items, item, 0)

    def _position(self, items: Any, item: Any, at: int) -> Any:
        if at == len(items):
            raise ValueError(f"{item!r} is not in list")
        found = True if items[at] is item else self.truth(self.compare(ast.Eq, items[at], item))
        if isinstance(found, bool):
            return at if found else self._position(items, item, at + 1)
        return self.interpreter.regions.branch(
            found, lambda: at, lambda: self._position(items, item, at + 1)
        )

    def container_count(self, holder: Ref, item: Any) -> Any:
        if isinstance(holder.table[ITEMS], TracedList):
            return NotImplemented
        found = [x is item or self.compare(ast.Eq, x, item) for x in holder.table[ITEMS]]
        return functools.reduce(operator.add, found, 0)

    def container_remove(self, holder: Ref, item: Any) -> Any:
        if not isinstance(holder.table[ITEMS], tuple):
            return NotImplemented
        self.delitem(holder, self.container_index(holder, item))
        return None

    # -- iteration ------------------------------------------------------------------------------

    def indexed(self, iterable: Any) -> Any:
        """Return a sequence whose length only the run may know, or None."""
        if isinstance(iterable, Ref) and self.method(iterable, "__iter__") is MISSING:
            items = iterable.table[ITEMS]
            return sources.as_source(items) if isinstance(items, TracedList) else None
        if isinstance(iterable, Indexed | range | torch.Tensor):
            return sources.as_source(iterable)
        return None

    def iterate(self, iterable: Any) -> Iterator[Any]:
        """Return a host iterator over the items."""
        if isinstance(iterable, Either):
            return iter([self.getitem(iterable, n) for n in range(int(self.length(iterable)))])
        method = self.method(iterable, "__iter__")
        if method is not MISSING:
            return self.iterate(self.call(method, (), {}))
        method = self.method(iterable, "__next__")
        if method is not MISSING:
            return self._by_next(method)
        if isinstance(iterable, Ref):
            items = iterable.table[ITEMS]
            if isinstance(items, dict):
                return iter(list(items))
            if isinstance(items, TracedList):
                return iter(items)
            return self._of_list(iterable)
        if isinstance(iterable, IteratorOf):
            return iterable
        if isinstance(iterable, TracedTensor) and iterable.number is not None:
            raise TypeError("'int' object is not iterable")
        if self.method(iterable, "__getitem__") is not MISSING:
            return self._by_index(iterable)
        return map(self.heap.adopt, iter(iterable))

    def _of_list(self, holder: Ref) -> Iterator[Any]:
        at = 0
        while at < len(holder.table[ITEMS]):
            yield holder.table[ITEMS][at]
            at += 1

    def _by_next(self, method: Any) -> Iterator[Any]:
        while True:
            try:
                item = self.call(method, (), {})
            except StopIteration:
                return
            yield item

    def _by_index(self, holder: Any) -> Iterator[Any]:
        for at in itertools.count():
            try:
                item = self.getitem(holder, at)
            except IndexError:
                return
            yield item

    def generator(self, frame: Frame, steps: Generator[Any, Any, Any]) -> GeneratorOf:
        return GeneratorOf(steps, self.interpreter.regions.depth)

    def delegate(self, value: Any) -> Generator[Any, Any, Any]:
        if isinstance(value, GeneratorOf):
            return (yield from value.steps)
        yield from self.iterate(value)
        return None

    def _of_iterator(self, holder: IteratorOf, name: str, args: Any) -> Any:
        match name:
            case "__next__":
                return self.next(holder)
            case "__iter__":
                return holder
            case "send":
                return holder.steps.send(*args)
            case "close":
                return holder.steps.close()
            case "throw":
                return holder.steps.throw(*args)
            case _:
                fail(f"{name} of an iterator has no rule", "use a loop")

    def next(self, iterator: Any, *default: Any) -> Any:
        method = self.method(iterator, "__next__")
        if method is not MISSING:
            try:
                return self.call(method, (), {})
            except StopIteration:
                if default:
                    return default[0]
                raise
        if isinstance(iterator, IteratorOf) and iterator.depth < self.interpreter.regions.depth:
            fail(
                "an iterator is advanced in a branch or loop on a tensor", "use a list and an index"
            )
        try:
            return next(iterator)
        except StopIteration:
            if default:
                return default[0]
            raise

    def length(self, value: Any) -> Any:
        if isinstance(value, Either):
            return self.interpreter.regions.each_option(value, self.length)
        method = self.method(value, "__len__")
        if method is not MISSING:
            return self.call(method, (), {})
        if isinstance(value, Ref):
            items = value.table[ITEMS]
            if isinstance(items, TracedList):
                return operations.traced_length(items)
            if isinstance(items, dict):
                bound = [self.interpreter.regions.is_bound(x) for x in items.values()]
                return functools.reduce(operator.add, [1 if b is True else b for b in bound], 0)
            return len(items)
        return traced_call(len, (value,), {})

    def mapping(self, value: Any) -> dict[Any, Any]:
        """Return a mapping, or pairs, as a dict."""
        items = self._items_of(value)
        if isinstance(items, dict):
            return items
        if self.entry(self.type_of(value), "keys") is not MISSING:
            keys = self.call(self.getattr(value, "keys"), (), {})
            return {self.key(k): self.getitem(value, k) for k in self.iterate(keys)}
        pairs = [tuple(self.iterate(pair)) for pair in self.iterate(value)]
        return {self.key(key): item for key, item in pairs}

    def sorted(self, items: Any, *, key: Any = None, reverse: bool = False) -> Any:
        found = list(self.iterate(items))
        keys = [item if key is None else self.call(key, (item,), {}) for item in found]
        if any(isinstance(k, TracedTensor) for k in keys):
            from stretto.frontends.python.calls.builtins import RULES

            made = RULES[sorted](found, key=key and self.as_host_function(key), reverse=reverse)
            return self.heap.new(list, made if isinstance(made, TracedList) else tuple(made))

        def before(one: int, other: int) -> int:
            less = self.truth(self.compare(ast.Lt, keys[one], keys[other]))
            return (
                -1 if less else int(bool(self.truth(self.compare(ast.Lt, keys[other], keys[one]))))
            )

        order = sorted(range(len(found)), key=functools.cmp_to_key(before), reverse=reverse)
        return self.heap.new(list, tuple(found[n] for n in order))

    # -- contexts, exceptions, patterns, classes ------------------------------------------------

    def enter(self, manager: Any) -> Any:
        method = self.method(manager, "__enter__")
        if method is not MISSING:
            return self.call(method, (), {})
        if self.heap.is_own(manager):
            raise TypeError(
                f"'{type(manager).__name__}' object does not support the context manager protocol"
            )
        return manager.__enter__()

    def leave(self, manager: Any, error: BaseException | None) -> Any:
        given = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        method = self.method(manager, "__exit__")
        if method is not MISSING:
            return self.truth(self.call(method, given, {}))
        return manager.__exit__(*given)

    def matches(self, error: BaseException, kinds: Any) -> bool:
        return isinstance(error, kinds)

    def match(self, frame: Frame, pattern: ast.pattern, subject: Any) -> Any:
        """Return the truth of a pattern's match, and bind its names."""
        interpreter = self.interpreter
        match pattern:
            case ast.MatchValue(value=value):
                return self.truth(self.compare(ast.Eq, subject, interpreter.value(frame, value)))
            case ast.MatchSingleton(value=value):
                return self.same(subject, value)
            case ast.MatchAs(pattern=None, name=name):
                if name is not None:
                    interpreter.store_name(frame, name, subject)
                return True
            case ast.MatchAs(pattern=inner, name=name):
                found = self.match(frame, inner, subject)
                if found is not False and name is not None:
                    interpreter.store_name(frame, name, subject)
                return found
            case ast.MatchOr(patterns=patterns):
                return self._any_of(frame, patterns, subject)
            case ast.MatchSequence(patterns=patterns):
                kind = self.type_of(subject)
                if issubclass(kind, str | bytes) or not issubclass(kind, collections.abc.Sequence):
                    return False
                items = list(self.iterate(subject))
                return self._sequence(frame, patterns, items)
            case ast.MatchMapping(keys=keys, patterns=patterns, rest=rest):
                if not issubclass(self.type_of(subject), collections.abc.Mapping):
                    return False
                known = self.mapping(subject)
                names = [self.key(interpreter.value(frame, key)) for key in keys]
                if not all(name in known for name in names):
                    return False
                if rest is not None:
                    left = {k: v for k, v in known.items() if k not in names}
                    interpreter.store_name(frame, rest, self.heap.new(dict, left))
                return self._all_of(frame, patterns, [known[name] for name in names])
            case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=names, kwd_patterns=named):
                kind = interpreter.value(frame, cls)
                if not self.is_instance(subject, kind):
                    return False
                known = getattr(kind, "__match_args__", ())
                if (
                    patterns
                    and issubclass(
                        kind,
                        bool
                        | bytearray
                        | bytes
                        | dict
                        | float
                        | frozenset
                        | int
                        | list
                        | set
                        | str
                        | tuple,
                    )
                    and not known
                ):
                    return self._all_of(frame, patterns, [subject])
                if len(patterns) > len(known):
                    raise TypeError(
                        f"{kind.__name__}() accepts {len(known)} positional sub-patterns "
                        f"({len(patterns)} given)"
                    )
                fields = [*known[: len(patterns)], *names]
                held = [self.lookup(subject, name) for name in fields]
                if any(item is MISSING for item in held):
                    return False
                return self._all_of(frame, [*patterns, *named], held)
            case _:
                raise AssertionError(pattern)

    def _any_of(self, frame: Frame, patterns: Any, subject: Any) -> Any:
        found = self.match(frame, patterns[0], subject)
        if found is True or len(patterns) == 1:
            return found
        if found is False:
            return self._any_of(frame, patterns[1:], subject)
        return self.interpreter.regions.branch(
            found, lambda: True, lambda: self._any_of(frame, patterns[1:], subject)
        )

    def _all_of(self, frame: Frame, patterns: Any, subjects: Any) -> Any:
        result: Any = True
        for pattern, subject in zip(patterns, subjects, strict=True):
            found = self.match(frame, pattern, subject)
            if found is False:
                return False
            if found is not True:
                before = result
                result = (
                    found
                    if before is True
                    else self.interpreter.regions.branch(
                        before, lambda found=found: found, lambda: False
                    )
                )
        return result

    def _sequence(self, frame: Frame, patterns: Any, items: list[Any]) -> Any:
        star = next((n for n, p in enumerate(patterns) if isinstance(p, ast.MatchStar)), None)
        if star is None:
            return len(items) == len(patterns) and self._all_of(frame, patterns, items)
        rest = len(patterns) - star - 1
        if len(items) < len(patterns) - 1:
            return False
        middle = items[star : len(items) - rest]
        if patterns[star].name is not None:
            self.interpreter.store_name(frame, patterns[star].name, self.heap.list(middle))
        others = [*patterns[:star], *patterns[star + 1 :]]
        return self._all_of(frame, others, [*items[:star], *items[len(items) - rest :]])

    def make_class(self, frame: Frame, node: ast.ClassDef) -> Any:
        from experiments.reader.interpreter import Frame as NewFrame

        interpreter = self.interpreter
        bases = tuple(interpreter.value(frame, base) for base in node.bases)
        keywords = {k.arg: interpreter.value(frame, k.value) for k in node.keywords}
        code = self.code_of(frame, node, node.name)
        names: dict[str, Any] = {
            "__module__": frame.function.__globals__.get("__name__"),
            "__qualname__": code.co_qualname,
        }
        inner = NewFrame(frame.function, code, parent=frame, names=names)
        cell = types.CellType()
        if "__class__" in code.co_cellvars:
            inner.cells["__class__"] = cell
        interpreter.finish(interpreter.block(inner, node.body))
        found = {key: self.heap.real(value) for key, value in names.items()}
        made = types.new_class(node.name, bases, keywords, lambda space: space.update(found))
        self.heap.set(self.heap.table_of(cell), CELL, made)
        result: Any = made
        for decorator in reversed([interpreter.value(frame, d) for d in node.decorator_list]):
            if getattr(decorator, "__module__", "") == "dataclasses":
                result = decorator(result)
            else:
                result = self.call(decorator, (result,), {})
        return result

    def code_of(self, frame: Frame, node: Any, name: str) -> types.CodeType:
        """Return the code object of a nested definition."""
        scope = frame.code
        pending = [scope]
        line = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        found = []
        while pending:
            for item in pending.pop().co_consts:
                if isinstance(item, types.CodeType):
                    if item.co_firstlineno == line and item.co_name == name:
                        found.append(item)
                    pending.append(item)
        if not found:
            fail(f"the code of {name} is not found", "define it in the function itself")
        if len(found) > 1 and isinstance(node, ast.Lambda):
            at = [c for c in found if _column(c) == node.body.col_offset]
            found = at or found
        return found[0]

    def formatted(self, value: Any, conversion: int, spec: Any) -> Any:
        if isinstance(value, Ref | IteratorOf) or self.heap.is_own(value):
            text = self.text(value, repr if conversion == ord("r") else str)
            return (text, -1, spec)
        return (value, conversion, spec)

    def text(self, value: Any, kind: Any = str) -> Any:
        for name in ("__str__", "__repr__") if kind is str else ("__repr__",):
            method = self.method(value, name)
            if method is not MISSING:
                return self.call(method, (), {})
        return traced_call(kind, (self.heap.real(value),), {})


class SuperOf:
    """`super()` in a method."""

    def __init__(self, kind: type, held: Any) -> None:
        self.kind, self.held = kind, held


def _column(code: types.CodeType) -> int | None:
    columns = [
        p[2] for p in code.co_positions() if p[2] is not None and p[0] == code.co_firstlineno
    ]
    return min([c for c in columns if c], default=None)


@functools.lru_cache(maxsize=None)
def _signature(code: types.CodeType, function: types.FunctionType) -> inspect.Signature:
    return inspect.signature(function, follow_wrapped=False)


def _number_type(value: TracedTensor) -> type:
    from stretto.frontends.python.values.number_methods import kind_of_number

    return kind_of_number(value)


_OPERATORS = {
    name: getattr(operator, f"__{name}__")
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift",
        "or", "xor", "and",
    )
}  # fmt: skip
_INPLACE = {name: getattr(operator, f"__i{name}__") for name in _OPERATORS}
_SETS = {"or": operator.or_, "and": operator.and_, "sub": operator.sub, "xor": operator.xor}
_COMPARISONS: dict[type, str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_SYMBOLS: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_PURE = frozenset(
    ("copy", "keys", "values", "items", "union", "intersection", "difference", "__len__",
     "symmetric_difference", "issubset", "issuperset", "isdisjoint", "__contains__", "__eq__")
)  # fmt: skip


def _rules(objects: Objects) -> dict[Any, Callable[..., Any]]:
    heap, get = objects.heap, objects.getattr

    def get_attribute(value: Any, name: str, *default: Any) -> Any:
        try:
            return get(value, name)
        except AttributeError:
            if default:
                return default[0]
            raise

    def has_attribute(value: Any, name: str) -> bool:
        try:
            return objects.lookup(value, name) is not MISSING
        except AttributeError:
            return False

    def items_of(items: Any) -> Any:
        indexed = objects.indexed(items)
        if indexed is not None and not isinstance(indexed.length, int):
            return indexed
        return None

    def iterated(steps: Iterator[Any]) -> IteratorOf:
        return IteratorOf(steps, objects.interpreter.regions.depth)

    def enumerate_(items: Any, start: Any = 0) -> Any:
        found = objects.indexed(items)
        if found is not None:
            return sources.enumerated(found, start)
        return iterated(
            ((n, item) for n, item in zip(itertools.count(start), objects.iterate(items)))
        )

    def zip_(*items: Any, strict: bool = False) -> Any:
        found = [objects.indexed(item) for item in items]
        if items and all(item is not None for item in found):
            return sources.zipped(*found, strict=strict)
        if any(item is not None and not isinstance(item.length, int) for item in found):
            given = [f if f is not None else list(objects.iterate(i)) for f, i in zip(found, items)]
            return sources.zipped(*given, strict=strict)
        return iterated(zip(*map(objects.iterate, items), strict=strict))

    def map_(function: Any, *items: Any) -> Any:
        return iterated(
            objects.call(function, given, {}) for given in zip(*map(objects.iterate, items))
        )

    def filter_(function: Any, items: Any) -> Any:
        def keeps(item: Any) -> bool:
            found = objects.truth(item if function is None else objects.call(function, (item,), {}))
            return objects.interpreter._known(found)

        return iterated(item for item in objects.iterate(items) if keeps(item))

    def reversed_(items: Any) -> Any:
        found = objects.indexed(items)
        if found is not None:
            return sources.backwards(items.table[ITEMS] if isinstance(items, Ref) else items)
        method = objects.method(items, "__reversed__")
        if method is not MISSING:
            return objects.call(method, (), {})
        return iterated(iter(list(objects.iterate(items))[::-1]))

    def iter_(items: Any, *sentinel: Any) -> Any:
        if isinstance(items, IteratorOf):
            return items
        return iterated(objects.iterate(items))

    def tuple_(items: Any = ()) -> Any:
        return tuple(objects.iterate(items))

    def fold(items: Any, stops: bool) -> Any:
        for item in objects.iterate(items):
            found = objects.truth(item)
            if found is stops:
                return stops
            if not isinstance(found, bool):
                rest = items if isinstance(items, IteratorOf) else iterated(iter(()))
                others = list(objects.iterate(items)) if isinstance(items, IteratorOf) else None
                return _fold(found, others or [], stops)
        return not stops

    def _fold(found: Any, others: list[Any], stops: bool) -> Any:
        rest = lambda: fold(tuple(others), stops)
        branch = objects.interpreter.regions.branch
        return branch(found, lambda: True, rest) if stops else branch(found, rest, lambda: False)

    def sum_(items: Any, start: Any = 0) -> Any:
        indexed = items_of(items)
        if indexed is not None:
            return heap.adopt(traced_call(sum, (indexed, start), {}))
        for item in objects.iterate(items):
            start = objects.binary("add", start, item)
        return start

    def extreme(function: Any) -> Any:
        def rule(*args: Any, key: Any = None, **kwargs: Any) -> Any:
            given = list(args)
            if len(args) == 1:
                indexed = items_of(args[0])
                given = [indexed if indexed is not None else list(objects.iterate(args[0]))]
            named = dict(kwargs)
            if key is not None:
                named["key"] = objects.as_host_function(key)
            return heap.adopt(traced_call(function, tuple(given), named))

        return rule

    def is_subclass(kind: Any, kinds: Any) -> bool:
        return issubclass(kind, kinds)

    def type_(value: Any, *rest: Any) -> Any:
        return type(value, *rest) if rest else objects.type_of(value)

    def new_object(kind: type, *args: Any, **kwargs: Any) -> Any:
        return heap.new_object(kind)

    def join(items: Any, dim: int = 0, *, name: Any, **kwargs: Any) -> Any:
        content = items.table[ITEMS] if isinstance(items, Ref) else items
        if isinstance(content, TracedList):
            return traced_call(name, (content, dim), kwargs)
        return traced_call(name, (tuple(objects.iterate(items)), dim), kwargs)

    def joiner(name: Any) -> Any:
        def rule(tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
            return join(tensors, kwargs.pop("axis", dim), name=name, **kwargs)

        return rule

    def reduce_(function: Any, items: Any, *start: Any) -> Any:
        steps = objects.iterate(items)
        value = start[0] if start else next(steps)
        for item in steps:
            value = objects.call(function, (value, item), {})
        return value

    def of_text(kind: Any) -> Any:
        return lambda *args: objects.text(args[0], kind) if args else ""

    def isinstance_(value: Any, kinds: Any) -> Any:
        if isinstance(value, Either):
            return objects.interpreter.regions.each_option(value, lambda x: isinstance_(x, kinds))
        return objects.is_instance(value, kinds)

    def cond(condition: Any, then: Any, orelse: Any, operands: Any = ()) -> Any:
        given = tuple(objects.iterate(operands))
        return objects.interpreter.regions.branch(
            objects.truth(condition),
            lambda: objects.call(then, given, {}),
            lambda: objects.call(orelse, given, {}),
        )

    def copy_(value: Any) -> Any:
        if isinstance(value, Ref):
            made = heap.new(value.kind, value.table[ITEMS])
            made.table.update(value.table)
            return made
        if heap.is_own(value):
            made = heap.new_object(type(value))
            heap.table_of(made).update(heap.table_of(value))
            return made
        return heap.adopt(traced_call(__import__("copy").copy, (value,), {}))

    return {
        len: objects.length, getattr: get_attribute, hasattr: has_attribute,
        setattr: objects.setattr, delattr: objects.delattr, isinstance: isinstance_,
        issubclass: is_subclass, type: type_, enumerate: enumerate_, zip: zip_, map: map_,
        filter: filter_, reversed: reversed_, iter: iter_, next: objects.next, tuple: tuple_,
        all: lambda items: fold(items, False), any: lambda items: fold(items, True), sum: sum_,
        min: extreme(min), max: extreme(max), sorted: objects.sorted, bool: lambda *x: bool(x) and objects.truth(x[0]),
        str: of_text(str), repr: of_text(repr), object.__new__: new_object, torch.cat: joiner(torch.cat),
        torch.concat: joiner(torch.cat), torch.stack: joiner(torch.stack),
        callable: lambda x: callable(x) or isinstance(x, BoundMethod), functools.reduce: reduce_,
        id: id, print: lambda *a, **k: None, __import__("copy").copy: copy_,
        torch.cond: cond, torch.jit.is_scripting: lambda: False, torch.jit.is_tracing: lambda: False,
        object.__init__: lambda *a, **k: None, nn.Module.__call__: lambda m, *a, **k: objects.module(m, a, k),
    }  # fmt: skip


_lookup = Objects.lookup


def _lookup_with_super(self: Objects, value: Any, name: str) -> Any:
    if not isinstance(value, SuperOf):
        return _lookup(self, value, name)
    held = value.held
    kind = held if isinstance(held, type) else self.type_of(held)
    mro = kind.__mro__
    for base in mro[mro.index(value.kind) + 1 :]:
        if name in base.__dict__:
            entry = base.__dict__[name]
            if isinstance(entry, types.FunctionType):
                return (
                    entry
                    if isinstance(held, type) and name == "__new__"
                    else types.MethodType(entry, held)
                )
            if isinstance(entry, property):
                return self.call(entry.fget, (held,), {})
            if isinstance(entry, classmethod):
                return types.MethodType(entry.__func__, kind)
            if isinstance(entry, staticmethod):
                return entry.__func__
            if name == "__new__":
                return entry
            return BoundMethod(held, name)
    return MISSING


Objects.lookup = _lookup_with_super

"""Rules for Python's built-in functions."""

from __future__ import annotations

import abc
import ast
import collections
import dataclasses
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stretto.frontends.python.interpreter import data_dicts, data_texts, native_code
from stretto.frontends.python.interpreter.frames import (
    BoundMethod,
    SuperOf,
)
from stretto.frontends.python.interpreter.heap import ITEMS, MISSING, Ref
from stretto.frontends.python.interpreter.host import apply
from stretto.frontends.python.interpreter.iterator_rules import IteratorRules
from stretto.frontends.python.interpreter.membership import is_late_number
from stretto.frontends.python.interpreter.protocol_rules import ProtocolRules
from stretto.frontends.python.lists import sources
from stretto.frontends.python.tracing.signals import Poison, fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.data import DataObject, DataTable
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class BuiltinRules:
    """Rules for built-in functions on values of the interpreter."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def of_functions(self) -> dict[Any, Callable[..., Any]]:
        """Return the rules by function."""
        interpreter = self.interpreter
        attributes, containers = interpreter.attributes, interpreter.containers
        each = self.each
        return {
            **IteratorRules(interpreter).of_functions(),
            **data_dicts.of_functions(containers),
            **data_texts.of_functions(interpreter),
            **ProtocolRules(interpreter).of_functions(),
            **interpreter.definitions.of_classes(),
            vars: self.get_variables,
            len: containers.length,
            getattr: each(self.get_attribute),
            hasattr: each(self.has_attribute),
            setattr: self.set_attribute,
            delattr: self.delete_attribute,
            isinstance: each(attributes.is_instance),
            issubclass: each(self.is_subclass),
            type: self.type_,
            sorted: containers.sorted,
            bool: self.truth,
            str: self.of_text(str),
            repr: self.of_text(repr),
            ascii: self.of_text(ascii),
            format: self.format_,
            callable: each(self.is_callable),
            id: self.identity,
            weakref.ref: self.weak_reference,
            types.MappingProxyType: self.mapping_proxy,
            typing.get_type_hints: self.type_hints,
            super: self.super_,
            abc.abstractmethod: self.as_it_is(abc.abstractmethod),
            dataclasses.dataclass: self.as_it_is(dataclasses.dataclass),
            dataclasses.field: self.as_it_is(dataclasses.field),
            dataclasses.InitVar: self.as_it_is(dataclasses.InitVar),
            object.__new__: self.new_object,
            object.__init__: self.init_object,
            dict.fromkeys: self.from_keys,
            collections._count_elements: self.count_elements,  # type: ignore[attr-defined]
            sys.exc_info: self.exc_info,
            os.getenv: self.get_environment,
            torch.cat: self.joiner(torch.cat),
            torch.concat: self.joiner(torch.cat),
            torch.concatenate: self.joiner(torch.cat),
            torch.stack: self.joiner(torch.stack),
            torch.cond: self.cond,
            getattr(torch.jit, "is_scripting"): self.no,  # noqa: B009 - torch does not export them
            getattr(torch.jit, "is_tracing"): self.no,  # noqa: B009
            nn.Module.__call__: self.called_module,
        }

    def name_of(self, name: Any) -> str:
        if not isinstance(name, str):
            kind = self.interpreter.attributes.type_of(name).__name__
            raise TypeError(f"attribute name must be string, not '{kind}'")
        return texts.settled(name)

    def set_attribute(self, value: Any, name: Any, new: Any) -> None:
        self.interpreter.attributes.setattr(value, self.name_of(name), new)

    def delete_attribute(self, value: Any, name: Any) -> None:
        self.interpreter.attributes.delattr(value, self.name_of(name))

    def get_attribute(self, value: Any, name: Any, *default: Any) -> Any:
        name, attributes = self.name_of(name), self.interpreter.attributes
        if not default:
            return attributes.getattr(value, name)
        held = self.is_held(value, name)
        if held is not NotImplemented:
            branch = self.interpreter.regions.branch
            return branch(held, lambda: attributes.getattr(value, name), lambda: default[0])
        found = attributes.of_some_runs(value, name, lambda held: held, lambda: default[0])
        if found is NotImplemented:
            found = attributes.lookup(value, name)
        return default[0] if found is MISSING else found

    def has_attribute(self, value: Any, name: Any) -> Any:
        name = self.name_of(name)
        kind = self.interpreter.attributes.type_of(value)
        if kind in (bool, int, float):
            return hasattr(kind, name)
        held, attributes = self.is_held(value, name), self.interpreter.attributes
        if held is not NotImplemented:
            return held
        found = attributes.of_some_runs(value, name, lambda _: True, lambda: False)
        return attributes.lookup(value, name) is not MISSING if found is NotImplemented else found

    def is_held(self, value: Any, name: str) -> Any:
        """Return whether an object of an instance has an attribute; NotImplemented if its class
        tells."""
        table = value.table if isinstance(value, DataObject) else None
        if not isinstance(table, DataTable) or name not in table:
            return NotImplemented
        return table.has(name)

    def is_subclass(self, kind: Any, kinds: Any) -> Any:
        if isinstance(kinds, tuple):
            return any(self.is_subclass(kind, one) for one in kinds)
        if isinstance(kinds, types.UnionType):
            return any(self.is_subclass(kind, one) for one in kinds.__args__)
        if isinstance(kinds, type):
            hook = self.interpreter.attributes.method(kinds, "__subclasscheck__")
            if hook is not MISSING and native_code.is_of_user(type(kinds)):
                found = self.interpreter.calls.call(hook, (kind,), {})
                return self.interpreter.operators.truth(found)
        return apply(issubclass, kind, kinds)

    def exc_info(self) -> Any:
        error = self.interpreter.handled_error()
        return (None,) * 3 if error is None else (type(error), error, error.__traceback__)

    def from_keys(self, keys: Any, value: Any = None) -> Ref:
        made, containers = self.heap.new_container(dict), self.interpreter.containers
        keys = data_dicts.in_any_order(containers, keys)
        self.interpreter.iteration.through_all(
            keys, lambda key: containers.set_item(made, key, value)
        )
        return made

    def count_elements(self, counts: Any, items: Any) -> None:
        """The part of `Counter` that Python implements in C."""
        interpreter = self.interpreter

        def add(item: Any) -> None:
            get = interpreter.attributes.getattr(counts, "get")
            found = interpreter.calls.call(get, (item, 0), {})
            more = interpreter.operators.binary("add", found, 1)
            interpreter.containers.setitem(counts, item, more)

        interpreter.iteration.through_all(
            data_dicts.in_any_order(interpreter.containers, items), add
        )

    def identity(self, value: Any) -> Any:
        is_late = isinstance(value, Either) or texts.is_text(value) or is_late_number(value)
        if is_late or (isinstance(value, TracedTensor) and value.memory.sources):
            fail("id() is taken of a value that only the run knows", "compare values with ==")
        return id(value)

    def type_hints(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate annotations natively, and note the variables that their texts name."""
        function = getattr(value, "__func__", value)
        if not isinstance(function, types.FunctionType):
            return self.interpreter.calls.native(typing.get_type_hints, (value, *args), kwargs)
        space = self.heap.outside.namespace(function.__globals__)
        for text in function.__annotations__.values():
            tree = ast.parse(text, mode="eval") if isinstance(text, str) else ast.Constant(None)
            for node in ast.walk(tree):
                if isinstance(node, ast.Name):
                    self.heap.field(space, node.id)
        return self.heap.received(typing.get_type_hints(function, *args, **kwargs))

    def mapping_proxy(self, mapping: Any) -> Any:
        """Return a value that may be kept: a proxy shows what the dict will hold."""
        if not isinstance(mapping, Ref):
            return types.MappingProxyType(mapping)
        return Poison("a mappingproxy of a dict of the program is used", "use the dict")

    def weak_reference(self, value: Any, callback: Any = None) -> Any:
        if isinstance(value, Ref) or (callback is not None and self.heap.is_own(value)):
            fail("a weak reference has a callback, or is one of a container", "keep the object")
        return weakref.ref(value)  # what is from outside outlives the call

    def type_(self, value: Any, *rest: Any, **keywords: Any) -> Any:
        if not rest and not keywords:
            return self.interpreter.regions.of_each(value, self.interpreter.attributes.type_of)
        if len(rest) != 2:
            raise TypeError("type() takes 1 or 3 arguments")
        made = self.interpreter.definitions.of_classes()[type.__new__]
        return made(type, value, *rest, **keywords)

    def super_(self, *args: Any) -> Any:
        if len(args) > 2:
            raise TypeError(f"super() expected at most 2 arguments, got {len(args)}")
        if len(args) < 2:
            fail("super() gets no object", "write super() or super(kind, self)")
        kind, held = args
        if not isinstance(kind, type):
            of = self.interpreter.attributes.type_of(kind).__name__
            raise TypeError(f"super() argument 1 must be a type, not {of}")
        is_class = isinstance(held, type) and issubclass(held, kind)
        if not is_class and not issubclass(self.interpreter.attributes.type_of(held), kind):
            raise TypeError("super(type, obj): obj must be an instance or subtype of type")
        return SuperOf(kind, held)

    def new_object(self, kind: type, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            entry = self.interpreter.attributes.entry
            if kind.__new__ is not object.__new__:
                raise TypeError(
                    "object.__new__() takes exactly one argument (the type to instantiate)"
                )
            if entry(kind, "__init__") is object.__init__:
                raise TypeError(f"{kind.__name__}() takes no arguments")
        return self.heap.new_object(kind)

    def join(self, items: Any, dim: int = 0, *, name: Any, **kwargs: Any) -> Any:
        content = items.table[ITEMS] if isinstance(items, Ref) else items
        if isinstance(content, TracedList | sources.Indexed):
            return self.interpreter.calls.native(name, (content, dim), kwargs)
        given = tuple(self.interpreter.iteration.iterate(items))
        return self.interpreter.calls.native(name, (given, dim), kwargs)

    def joiner(self, name: Any) -> Any:
        def rule(tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
            return self.join(tensors, kwargs.pop("axis", dim), name=name, **kwargs)

        return rule

    def of_text(self, kind: Any) -> Any:
        def rule(*args: Any, **named: Any) -> Any:
            if len(args) == 1 and not named:
                return self.interpreter.strings.text(args[0], kind)
            if not args and named.keys() == {"object"}:
                return self.interpreter.strings.text(named["object"], kind)
            return self.interpreter.calls.native(kind, args, named)

        return rule

    def each(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Return a rule that is applied for each option of an argument that is one of several."""

        def of_each(*args: Any) -> Any:
            found = self.interpreter.operators.each(of_each, *args)
            return rule(*args) if found is NotImplemented else found

        return of_each

    def format_(self, value: Any, spec: Any = "") -> Any:
        return texts.joined((self.interpreter.strings.formatted(value, -1, spec),))

    def cond(self, condition: Any, then: Any, orelse: Any, operands: Any = ()) -> Any:
        given = tuple(self.interpreter.iteration.iterate(operands))
        return self.interpreter.regions.branch(
            self.interpreter.operators.truth(condition),
            lambda: self.interpreter.calls.call(then, given, {}),
            lambda: self.interpreter.calls.call(orelse, given, {}),
        )

    def get_variables(self, *held: Any) -> Any:
        if not held:
            fail("vars() without an argument shows the variables", "name the variables")
        return self.interpreter.attributes.getattr(held[0], "__dict__")

    def as_it_is(self, function: Any) -> Any:
        """Return the rule of a function that only notes its arguments, or makes a class."""
        real = self.heap.real
        return lambda *args, **kwargs: function(
            *map(real, args), **{name: real(item) for name, item in kwargs.items()}
        )

    def get_environment(self, *args: str) -> Any:
        self.heap.outside.log.environment()
        return os.getenv(*args)

    def truth(self, *value: Any) -> Any:
        if len(value) > 1:
            raise TypeError(f"bool expected at most 1 argument, got {len(value)}")
        return bool(value) and self.interpreter.operators.truth(value[0])

    def is_callable(self, value: Any) -> bool:
        return callable(value) or isinstance(value, BoundMethod)

    def called_module(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        return self.interpreter.calls.called_module(module, args, kwargs)

    def init_object(self, value: Any, *args: Any, **kwargs: Any) -> None:
        kind = self.interpreter.attributes.type_of(value)
        if args or kwargs:
            if self.interpreter.attributes.entry(kind, "__init__") is not object.__init__:
                raise TypeError(
                    "object.__init__() takes exactly one argument (the instance to initialize)"
                )
            if kind.__new__ is object.__new__:
                raise TypeError(
                    f"{kind.__name__}.__init__() takes exactly one argument (the instance to "
                    "initialize)"
                )

    def no(self) -> bool:
        return False

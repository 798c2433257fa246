"""Attributes and classes of objects, as Python looks them up."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import types
from collections.abc import Callable
from enum import EnumMeta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from stretto.frontends.python.calls.recurrent import PaddedSequence
from stretto.frontends.python.calls.texts import TextMethod
from stretto.frontends.python.guards.user_code import is_of_user
from stretto.frontends.python.interpreter import native_code, python_classes
from stretto.frontends.python.interpreter.descriptors import Descriptors
from stretto.frontends.python.interpreter.frames import (
    BoundMethod,
    PythonFrame,
    SuperOf,
)
from stretto.frontends.python.interpreter.heap import (
    ATOMS,
    ITEMS,
    MISSING,
    DictView,
    HeapObject,
    IteratorRef,
)
from stretto.frontends.python.interpreter.host import apply
from stretto.frontends.python.lists.sources import Indexed, SizedTuple, TracedRange
from stretto.frontends.python.tracing.signals import (
    fail,
)
from stretto.frontends.python.tracing.tensor import (
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import number_methods, texts
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.number_methods import kind_of_number
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

HOST = (BoundMethod, IteratorRef, Indexed, Either, TracedList)
"""Classes of the interpreter, whose methods are not the program's."""

_WITHOUT_METHODS = (*HOST, torch.Tensor)
_WITHOUT_HOOK = (*HOST, torch.Tensor, nn.Module)
"""Classes whose `__getattr__` is no function of the program."""
_NOTHING = contextlib.nullcontext()
_WITHOUT_PLACES = (*HOST, torch.Tensor, type, types.ModuleType)
"""Classes of values whose attributes are not places that only some runs have."""

_STOOD_FOR: dict[type, type] = {
    SizedTuple: tuple, TracedRange: range, Indexed: list, texts.TracedText: str,
    torch.SymInt: int, torch.SymBool: bool, torch.SymFloat: float,
    BoundMethod: types.BuiltinMethodType,
}  # fmt: skip
"""Python's class of values that only the call or the run knows."""


def _check_thread(value: Any) -> None:
    """Fail for an object that has other attributes in each thread."""
    if isinstance(value, threading.local):
        fail(
            f"an attribute of a {type(value).__name__} is used, which each thread has for itself",
            "keep the state in an object of your own",
        )


class Attributes:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.descriptors = Descriptors(interpreter, self)
        self.of_tensors: set[str] = set()
        """Names of attributes that the program has set on tensors."""
        self.changes_classes = False
        """True once the program has set attributes of classes."""

    def type_of(self, value: Any) -> type:
        kind = type(value)
        if kind is TracedTensor:
            return torch.Tensor if value.number is None else kind_of_number(value)
        if issubclass(kind, HeapObject):
            return value.kind
        if kind is DictView:
            return type(getattr({}, value.name)())
        return _STOOD_FOR.get(kind, kind)

    def is_instance(self, value: Any, kinds: Any) -> Any:
        """Return `isinstance(value, kinds)`."""
        if isinstance(kinds, tuple):
            return any(self.is_instance(value, kind) for kind in kinds)
        if isinstance(kinds, types.UnionType):
            return any(self.is_instance(value, kind) for kind in kinds.__args__)
        kind = PackedSequence if isinstance(value, PaddedSequence) else self.type_of(value)
        if kind is not kinds and isinstance(kinds, type):
            hook = self.method(kinds, "__instancecheck__")
            if hook is not MISSING and native_code.is_of_user(type(kinds)):
                found = self.interpreter.calls.call(hook, (value,), {})
                return self.interpreter.operators.truth(found)
        if isinstance(value, TracedTensor) and value.number is None:
            return isinstance(value, kinds)
        if kinds in (nn.Parameter,):
            return isinstance(value, kinds)
        if apply(issubclass, kind, kinds):
            return True
        claimed = self.getattr(value, "__class__") if self._claims_a_class(kind) else kind
        return isinstance(claimed, type) and issubclass(claimed, kinds)

    def _claims_a_class(self, kind: type) -> bool:
        """True for a class of the user that says itself what `__class__` of its objects is."""
        if not native_code.is_of_user(kind):
            return False
        is_written = isinstance(self.entry(kind, "__getattribute__"), types.FunctionType)
        return is_written or self.entry(kind, "__class__") is not vars(object)["__class__"]

    def entry(self, kind: type, name: str) -> Any:
        """Return the entry of a class or its bases, unbound; MISSING if there is none."""
        if id(kind) in python_classes.METHODS and name in python_classes.METHODS[id(kind)]:
            return python_classes.METHODS[id(kind)][name]
        if self.changes_classes:
            found = self._changed_entry(kind.__mro__, name)
            if found is not NotImplemented:
                return found
        found = self.heap.outside.log.class_entry(kind, name, MISSING)
        if type(found) in ATOMS and not name.startswith("__"):
            base = next(base for base in kind.__mro__ if name in vars(base))
            if is_of_user(base):  # the program may change it: it is read as a place
                return self.heap.field(base, name)
        return found

    def _changed_entry(self, bases: tuple[type, ...], name: str) -> Any:
        """Return the entry of the first class that has it, if the program has set or deleted it
        there; NotImplemented if not."""
        for number, base in enumerate(bases):
            table = self.heap.tables.get(id(base), (base, {}))[1]
            if name in table:
                return self._or_of_bases(table[name], bases[number + 1 :], name)
            if name in vars(base):
                break
        return NotImplemented

    def _or_of_bases(self, held: Any, bases: tuple[type, ...], name: str) -> Any:
        """Return an entry of a class, or that of the following classes in the runs in which the
        class has none."""
        regions = self.interpreter.regions
        bound = regions.is_bound(held)
        if bound is True:
            return held
        of_bases = self._changed_entry(bases, name)
        if of_bases is NotImplemented:
            found = (self.heap.field(base, name) for base in bases)
            of_bases = next((entry for entry in found if entry is not MISSING), MISSING)
        if bound is False:
            return of_bases
        if of_bases is MISSING:
            fail(
                f"the attribute '{name}' of a class is read, which only some runs have",
                "set it in the class",
            )
        return regions.branch(bound, lambda: regions.present(held), lambda: of_bases)

    def method(self, value: Any, name: str) -> Any:
        """Return a special method, bound; MISSING if there is none, or the one that a class in C
        has under this name."""
        if type(value) in ATOMS or issubclass(type(value), _WITHOUT_METHODS):
            return MISSING
        kind = self.type_of(value)
        found = self.entry(kind, name)
        if found is MISSING or kind is EnumMeta:
            return MISSING
        if isinstance(found, _NATIVE) and found.__name__ == name:
            return MISSING
        return self.descriptors.bound(found, value, kind, name)

    # -- reading --------------------------------------------------------------------------------

    def getattr(self, value: Any, name: str) -> Any:
        """Return an attribute as Python finds it."""
        found = self.of_some_runs(
            value, name, lambda found: found, lambda: self.no_attribute(value, name)
        )
        if found is not NotImplemented:
            return found
        try:
            with self._catching_for(value):
                found, problem = self._found(value, name), None
        except AttributeError as error:
            found, problem = MISSING, error
        if found is MISSING:
            found = self._missing(value, self.type_of(value), name)
        if found is not MISSING:
            return found
        if problem is not None:
            raise problem
        self.no_attribute(value, name)

    def of_some_runs(
        self,
        value: Any,
        name: str,
        present: Callable[[Any], Any],
        absent: Callable[[], Any],
    ) -> Any:
        """Return `present` of an attribute that an object has in some runs only; `absent()` in the
        others, if its class has none. NotImplemented if every run or none has it."""
        if type(value) in ATOMS or issubclass(type(value), _WITHOUT_PLACES):
            return NotImplemented
        held, regions = self.heap.table_of(value).get(name), self.interpreter.regions
        if not isinstance(held, Either):
            return NotImplemented
        bound, kind = regions.is_bound(held), self.type_of(value)
        entry = MISSING if isinstance(bound, bool) else self.entry(kind, name)
        is_slot = isinstance(entry, types.MemberDescriptorType)
        if isinstance(bound, bool) or (self.descriptors.is_data(entry) and not is_slot):
            return NotImplemented

        def without() -> Any:
            if entry is not MISSING and not is_slot:
                return present(self.descriptors.bound(entry, value, kind, name))
            found = self._missing(value, kind, name)
            return absent() if found is MISSING else present(found)

        return regions.branch(bound, lambda: present(regions.present(held)), without)

    def no_attribute(self, value: Any, name: str) -> NoReturn:
        shown = f"type object '{value.__name__}'" if isinstance(value, type) else ""
        kind = self.type_of(value).__name__
        shown = shown or f"'{kind}' object"
        raise AttributeError(f"{shown} has no attribute '{name}'", name=name, obj=value)

    def _catching_for(self, value: Any) -> Any:
        """Return a context in which an AttributeError is caught, if the class has `__getattr__`."""
        if type(value) in ATOMS or issubclass(type(value), _WITHOUT_HOOK):
            return _NOTHING
        hook = self.entry(self.type_of(value), "__getattr__")
        return _NOTHING if hook is MISSING else self.interpreter.contexts.catching(AttributeError)

    def lookup(self, value: Any, name: str) -> Any:
        """Return an attribute; MISSING if there is none."""
        try:
            with self.interpreter.contexts.catching(AttributeError):
                return self.getattr(value, name)
        except AttributeError:
            return MISSING

    def _found(self, value: Any, name: str) -> Any:
        match value:
            case SuperOf():
                return self.descriptors.of_super(value, name)
            case Either():
                return self.interpreter.regions.each_option(value, lambda x: self.getattr(x, name))
            case torch.Tensor() | torch.SymInt() | torch.SymFloat() | torch.SymBool() if (
                name == "__class__"
            ):
                return self.type_of(value)
            case torch.Tensor() | torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._of_tensor(value, name)
            case functools.partial() if name in ("func", "args", "keywords"):
                parts = self.interpreter.calls.parts_of_partial(value)
                found = parts[("func", "args", "keywords").index(name)]
                return self.heap.new(dict, found) if name == "keywords" else found
            case types.ModuleType():
                return self._of_module(value, name)
            case str() | bytes() | int() | float() | complex() | range() | slice() if (
                type(value) in ATOMS
            ):
                return getattr(value, name, MISSING)
            case _ if texts.is_text(value):
                return TextMethod(value, name) if hasattr(str, name) else MISSING
            case _:
                pass
        hook = self.method(value, "__getattribute__")
        if hook is not MISSING:
            return self.interpreter.calls.call(hook, (name,), {})
        return self.generic(value, name)

    def generic(self, value: Any, name: str) -> Any:
        """Return an attribute as `object` and `type` find it; MISSING if there is none."""
        if isinstance(value, type):
            return self.descriptors.of_class(value, name)
        _check_thread(value)
        kind = self.type_of(value)
        if name == "__class__" and self.entry(kind, name) is vars(object)[name]:
            return kind
        if name == "__dict__" and self.has_namespace(value):
            return self.heap.namespace_of(value)
        entry = self.entry(kind, name)
        if self.descriptors.is_data(entry) and self.descriptors.has_getter(entry):
            if isinstance(value, types.FunctionType) and name in self.heap.table_of(value):
                return self.heap.table_of(value)[name]
            return self.descriptors.bound(entry, value, kind, name)
        found = self.stored(value, name)
        if found is MISSING and entry is not MISSING:
            return self.descriptors.bound(entry, value, kind, name)
        return found

    def has_namespace(self, value: Any) -> bool:
        """True for an object with `__dict__`."""
        return bool(self.type_of(value).__dictoffset__)

    def _of_module(self, module: types.ModuleType, name: str) -> Any:
        if is_of_user(module):
            found = self.heap.field(self.heap.outside.namespace(vars(module)), name)
            if found is not MISSING:
                return self.interpreter.regions.bound(found, name)
        holder = self.heap.outside.boxes.get(id(vars(module)))
        changed = MISSING if holder is None else self.heap.table_of(holder).get(name, MISSING)
        if changed is not MISSING:
            return self.interpreter.regions.bound(changed, name)
        if module is os and name in ("environ", "getenv"):
            self.heap.outside.log.environment()
        return self.heap.adopt(getattr(module, name, MISSING))

    def stored(self, value: Any, name: str) -> Any:
        """Return an attribute of the object itself."""
        found = self.heap.field(value, name)
        return found if found is MISSING else self.interpreter.regions.bound(found, name)

    def _missing(self, value: Any, kind: type, name: str) -> Any:
        """Return what `__getattr__` gives; MISSING if there is none."""
        if isinstance(value, (*HOST, torch.Tensor, types.ModuleType, SuperOf)):
            return MISSING
        hook = self.entry(kind, "__getattr__")
        if hook is MISSING:
            return MISSING
        if hook is nn.Module.__getattr__:
            for table in _PARTS:
                items = self.stored(value, table)
                if items is not MISSING and name in items.table[ITEMS]:
                    return items.table[ITEMS][name]
            return MISSING
        method = self.descriptors.bound(hook, value, kind, name)
        return self.interpreter.calls.call(method, (name,), {})

    # -- changing -------------------------------------------------------------------------------

    def setattr(self, value: Any, name: str, new: Any) -> None:
        """Perform `value.name = new`."""
        if isinstance(value, Either):
            self.interpreter.regions.each_option(value, lambda x: self.setattr(x, name, new))
            return
        if isinstance(value, torch.Tensor):
            self._set_of_tensor(value, name, new)
            return
        hook = self.method(value, "__setattr__")
        if hook is MISSING:
            self.generic_setattr(value, name, new)
        elif getattr(hook, "__func__", None) is nn.Module.__setattr__:
            if not self._set_part(value, name, new):
                self.generic_setattr(value, name, new)
        else:
            self.interpreter.calls.call(hook, (name, new), {})

    def _set_of_tensor(self, tensor: torch.Tensor, name: str, new: Any) -> None:
        """Set an attribute of a tensor: one of torch's, or one in the heap of a tensor that the
        program has made."""
        if hasattr(torch.Tensor, name):
            setattr(tensor, name, self.heap.real(new))
            return
        state = tracer()
        known = [*state.inputs.values(), *(item.traced for item in state.constants.values())]
        if not isinstance(tensor, TracedTensor) or any(tensor is item for item in known):
            fail(
                f"the attribute '{name}' is set on a tensor that outlives the call",
                "call copy_() to change its content; keep other values in an object of your own",
            )
        self.of_tensors.add(name)
        self.heap.set(self.heap.table_of(tensor), name, new)

    def _of_tensor(self, tensor: Any, name: str) -> Any:
        if name in self.of_tensors:
            found = self.heap.table_of(tensor).get(name, MISSING)
            if found is MISSING:
                fail(
                    f"whether a tensor has the attribute '{name}' is not known",
                    "keep such values in an object of your own",
                )
            return self.interpreter.regions.bound(found, name)
        kind = self.type_of(tensor)
        if kind in (bool, int, float) and not hasattr(kind, name):
            return MISSING
        try:
            return self.heap.received(number_methods.tensor_attribute(tensor, name))
        except AttributeError:
            return MISSING

    def _set_part(self, module: Any, name: str, new: Any) -> bool:
        """Replace a parameter, a buffer or a module of a module. False if it is something else."""
        for table, (kind, of) in _PARTS.items():
            items = self.stored(module, table)
            if items is not MISSING and name in items.table[ITEMS]:
                if new is not None and not self.is_instance(new, kind):
                    shown = self.type_of(new).__name__
                    raise TypeError(
                        f"cannot assign '{shown}' as {of.replace('{}', name)} (or None expected)"
                    )
                self.interpreter.containers.setitem(items, name, new)
                return True
        if not self.is_instance(new, (nn.Parameter, nn.Module)):
            return False
        if not self.heap.is_own(module):
            fail("a module gets a new part", "make it in __init__")
        holder = self.stored(
            module, "_modules" if self.is_instance(new, nn.Module) else "_parameters"
        )
        if holder is MISSING:
            raise AttributeError("cannot assign a part before Module.__init__() call")
        self.interpreter.containers.setitem(holder, name, new)
        return True

    def generic_setattr(self, value: Any, name: str, new: Any) -> None:
        """Set an attribute as `object.__setattr__` does."""
        _check_thread(value)
        kind = self.type_of(value)
        if name in ("__class__", "__dict__"):
            what = "a function that outlives the call" if callable(value) else "an object"
            fail(f"'{name}' of {what} is set", "make a new object, or set single attributes")
        entry = self.entry(kind, name)
        if name in _OF_FUNCTIONS and self.heap.is_own(value):
            self.heap.assign(value, name, new)
            return
        if isinstance(value, types.FunctionType) and name in vars(types.FunctionType):
            fail(
                f"'{name}' of a function that outlives the call is set",
                "set it outside of the compiled function",
            )
        is_native = isinstance(entry, types.GetSetDescriptorType | types.MemberDescriptorType)
        if isinstance(value, BaseException) and is_native:
            real = self.heap.real(new)
            if self.interpreter.regions.depth or isinstance(real, torch.Tensor):
                fail(f"'{name}' of an exception depends on a tensor", "raise another exception")
            setattr(value, name, real)
            return
        if self.descriptors.is_data(entry) and self.descriptors.set(entry, value, kind, name, new):
            return
        self._check_settable(value, kind, name, entry)
        if isinstance(value, types.ModuleType):
            value = self.heap.outside.namespace(vars(value))
        self.changes_classes |= isinstance(value, type)
        self.heap.assign(value, name, new)

    def _check_settable(self, value: Any, kind: type, name: str, entry: Any) -> None:
        """Raise AttributeError for an object that has neither `__dict__` nor the slot."""
        if isinstance(value, type | types.ModuleType) or self.has_namespace(value):
            return
        if isinstance(entry, types.MemberDescriptorType):
            is_slot = "__slots__" in vars(entry.__objclass__)
            if is_slot or not native_code.is_immutable(value):
                return
            raise AttributeError("readonly attribute", name=name, obj=value)
        problem = (
            f"'{kind.__name__}' object has no attribute '{name}'"
            if entry is MISSING
            else f"'{kind.__name__}' object attribute '{name}' is read-only"
        )
        raise AttributeError(problem, name=name, obj=value)

    def delattr(self, value: Any, name: str) -> None:
        """Perform `del value.name`."""
        if isinstance(value, Either):
            self.interpreter.regions.each_option(value, lambda x: self.delattr(x, name))
            return
        hook = self.method(value, "__delattr__")
        if hook is MISSING:
            self.generic_delattr(value, name)
        elif getattr(hook, "__func__", None) is nn.Module.__delattr__:
            if any(name in self.stored(value, table).table[ITEMS] for table in _PARTS):
                fail("a part of a module is deleted", "delete it outside")
            self.generic_delattr(value, name)
        else:
            self.interpreter.calls.call(hook, (name,), {})

    def generic_delattr(self, value: Any, name: str) -> None:
        """Delete an attribute as `object.__delattr__` does."""
        _check_thread(value)
        kind = self.type_of(value)
        entry = self.entry(kind, name)
        if self.descriptors.is_data(entry) and self.descriptors.delete(entry, value, kind, name):
            return
        if self.stored(value, name) is MISSING:
            raise AttributeError(
                f"'{kind.__name__}' object has no attribute '{name}'", name=name, obj=value
            )
        self.changes_classes |= isinstance(value, type)
        self.heap.assign(value, name, MISSING)

    # -- methods of object ----------------------------------------------------------------------

    def of_object(self, value: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method that a class of the user has from `object`; NotImplemented if no rule
        knows it."""
        match name:
            case "__init__" | "__init_subclass__":
                return None
            case "__setattr__":
                return self.generic_setattr(value, *args)
            case "__delattr__":
                return self.generic_delattr(value, *args)
            case "__getattribute__":
                found = self.generic(value, *args)
                if found is MISSING:
                    kind = self.type_of(value).__name__
                    shown = f"'{kind}' object has no attribute '{args[0]}'"
                    raise AttributeError(shown, name=args[0], obj=value)
                return found
            case "__eq__":
                return True if self.heap.are_same(value, args[0]) else NotImplemented
            case "__ne__":
                found = self.interpreter.operators.special(value, "__eq__", args[0])
                if found is NotImplemented:
                    return False if self.heap.are_same(value, args[0]) else NotImplemented
                return self.interpreter.regions.negated(self.interpreter.operators.truth(found))
            case "__hash__":
                return object.__hash__(value)
            case "__call__" if isinstance(value, type):
                return self.interpreter.calls.instance(value, args, kwargs)
            case _:
                return NotImplemented

    def super_of(self, frame: PythonFrame) -> Any:
        """Return `super()` in a method."""
        scope = frame
        while scope.parent is not None:
            scope = scope.parent
        if not scope.code.co_argcount:
            raise RuntimeError("super(): no arguments")
        first = scope.code.co_varnames[0]
        held = self.interpreter.load(scope, first)
        kind = self.interpreter.load(scope, "__class__")
        return SuperOf(kind, held)


_NATIVE = (
    types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType,
)  # fmt: skip
_OF_FUNCTIONS = ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__")
"""Attributes of functions that say nothing about what a call does."""
_PARTS: dict[str, tuple[type, str]] = {
    "_parameters": (nn.Parameter, "parameter '{}' (torch.nn.Parameter"),
    "_buffers": (torch.Tensor, "buffer '{}' (torch.Tensor"),
    "_modules": (nn.Module, "child module '{}' (torch.nn.Module"),
}
"""The dicts that hold the parts of a module: the class of a part, and how errors name it."""

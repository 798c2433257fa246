"""Entries of classes: how they are bound, set and deleted as attributes of objects and classes."""

from __future__ import annotations

import functools
import types
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.frames import BoundMethod, SuperOf
from stretto.frontends.python.interpreter.heap import MISSING, DictView, HeapObject
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.attributes import Attributes
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

_WITH_REAL_STATE = (
    tuple, BaseException, types.FunctionType, types.MethodType, property, classmethod, staticmethod,
    functools.partial,
)  # fmt: skip
"""Classes whose objects are real ones, with all that they were made of."""
_NATIVE_METHODS = types.MethodDescriptorType, types.WrapperDescriptorType


class Descriptors:
    """The descriptor protocol."""

    def __init__(self, interpreter: PythonInterpreter, attributes: Attributes) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.attributes = attributes

    def call(self, function: Any, *args: Any) -> Any:
        return self.interpreter.calls.call(function, args, {})

    def _entry_of(self, entry: Any, name: str) -> Any:
        return self.attributes.entry(self.attributes.type_of(entry), name)

    def is_data(self, entry: Any) -> bool:
        """True for a data descriptor, which comes before the attributes of an object itself."""
        if entry is MISSING or isinstance(entry, types.FunctionType):
            return False
        if isinstance(entry, property | types.MemberDescriptorType | types.GetSetDescriptorType):
            return True
        names = "__set__", "__delete__"
        return any(self._entry_of(entry, name) is not MISSING for name in names)

    def has_getter(self, entry: Any) -> bool:
        """False for a data descriptor of the program without `__get__`: an attribute of the object
        itself comes before it."""
        is_native = isinstance(entry, property | types.MemberDescriptorType)
        return is_native or self._entry_of(entry, "__get__") is not MISSING

    def bound(self, entry: Any, value: Any, kind: type, name: str) -> Any:
        """Return what an entry of a class is as an attribute of an object."""
        match entry:
            case Either():  # the program has set it in a branch
                each_option = self.interpreter.regions.each_option
                return each_option(entry, lambda option: self.bound(option, value, kind, name))
            case types.FunctionType():
                return types.MethodType(entry, value)
            case staticmethod():
                return self.heap.adopt(entry.__func__)
            case classmethod():
                return types.MethodType(entry.__func__, kind)
            case property():
                if entry.fget is None:
                    shown = f"property '{name}' of '{kind.__qualname__}' object"
                    raise AttributeError(f"{shown} has no getter", name=name, obj=value)
                return self.call(self.heap.adopt(entry.fget), value)
            case types.MemberDescriptorType():
                return self._slot(entry, value, name)
            case functools.cached_property():
                found = self.attributes.stored(value, name)
                if found is MISSING:
                    found = self.call(entry.func, value)
                    self.heap.assign(value, name, found)
                return found
            case functools.partialmethod():
                inner = self.bound(entry.func, value, kind, name)
                return functools.partial(inner, *entry.args, **entry.keywords)
            case _ if isinstance(entry, _NATIVE_METHODS):
                if isinstance(value, HeapObject | DictView) or self.heap.is_own(value):
                    return BoundMethod(value, entry.__name__)
                native: Any = entry
                return native.__get__(value, kind)
            case _:
                return self.got(entry, value, kind)

    def _slot(self, entry: types.MemberDescriptorType, value: Any, name: str) -> Any:
        is_native = "__slots__" not in vars(entry.__objclass__)
        has_real = isinstance(value, _WITH_REAL_STATE)
        has_real |= not isinstance(value, HeapObject) and not self.heap.is_own(value)
        if is_native and has_real:
            return self.heap.received(entry.__get__(value))
        found = self.attributes.stored(value, entry.__name__)
        if found is MISSING:
            raise AttributeError(
                f"'{self.attributes.type_of(value).__name__}' object has no attribute '{name}'",
                name=name,
                obj=value,
            )
        return found

    def got(self, entry: Any, value: Any, kind: type) -> Any:
        """Return the result of `__get__` of an entry, or the entry itself if it has none. value:
        None for an attribute of the class."""
        getter = self.attributes.method(entry, "__get__")
        is_constant = isinstance(value, Enum) or isinstance(entry, type)
        if getter is not MISSING and not is_constant:
            return self.call(getter, value, kind)
        if self._entry_of(entry, "__get__") is MISSING or isinstance(entry, type):
            return self.heap.adopt(entry)
        if entry is deque.maxlen:
            return self.attributes.stored(value, "maxlen")
        if isinstance(value, types.FunctionType):
            found = self.attributes.stored(value, entry.__name__)
            return self.heap.adopt(entry.__get__(value, kind)) if found is MISSING else found
        if isinstance(value, HeapObject | DictView) or self.heap.is_own(value):
            fail(
                f"an attribute of native code of a {kind.__name__} is read",
                "keep it in an attribute of its own",
            )
        return self.heap.adopt(entry.__get__(value, kind))

    def set(self, entry: Any, value: Any, kind: type, name: str, new: Any) -> bool:
        """Set an attribute by a data descriptor. False if it is a slot."""
        match entry:
            case types.MemberDescriptorType():
                return False
            case property():
                if entry.fset is None:
                    shown = f"property '{name}' of '{kind.__qualname__}' object"
                    raise AttributeError(f"{shown} has no setter", name=name, obj=value)
                self.call(self.heap.adopt(entry.fset), value, new)
                return True
            case _:
                return self._written(entry, "__set__", name, value, new)

    def delete(self, entry: Any, value: Any, kind: type, name: str) -> bool:
        """Delete an attribute by a data descriptor. False if it is a slot."""
        match entry:
            case types.MemberDescriptorType():
                return False
            case property():
                if entry.fdel is None:
                    shown = f"property '{name}' of '{kind.__qualname__}' object"
                    raise AttributeError(f"{shown} has no deleter", name=name, obj=value)
                self.call(self.heap.adopt(entry.fdel), value)
                return True
            case _:
                return self._written(entry, "__delete__", name, value)

    def _written(self, entry: Any, method: str, name: str, *args: Any) -> bool:
        found = self.attributes.method(entry, method)
        if found is MISSING:
            if self._entry_of(entry, method) is MISSING:
                raise AttributeError(method.strip("_"))
            kind = self.attributes.type_of(args[0])
            if kind is types.FunctionType and name in _TEXTS and method == "__set__":
                self.heap.assign(args[0], name, args[1])
                return True
            fail(f"'{name}' is set, which is an attribute of native code", "set it outside")
        self.call(found, *args)
        return True

    # -- attributes of classes and of `super()` --------------------------------------------------

    def of_class(self, kind: type, name: str) -> Any:
        """Return an attribute of a class, as `type.__getattribute__` finds it."""
        meta = type(kind)
        if name == "__class__":
            return meta
        of_meta = self.attributes.entry(meta, name)
        if name == "__dict__" and self.attributes.changes_classes:
            fail("'__dict__' of a class is read after a change of one", "name the attributes")
        if isinstance(of_meta, types.GetSetDescriptorType | types.MemberDescriptorType):
            return self.heap.adopt(getattr(kind, name, MISSING))
        if self.is_data(of_meta) and self.has_getter(of_meta):
            return self.bound(of_meta, kind, meta, name)
        entry = self.attributes.entry(kind, name)
        if entry is not MISSING:
            return self._of_none(entry, kind, name)
        if of_meta is MISSING:
            return MISSING
        if isinstance(of_meta, _NATIVE_METHODS):
            return getattr(kind, name)
        return self.bound(of_meta, kind, meta, name)

    def _of_none(self, entry: Any, kind: type, name: str) -> Any:
        """Return what an entry is as an attribute of the class itself."""
        match entry:
            case Either():
                each_option = self.interpreter.regions.each_option
                return each_option(entry, lambda option: self._of_none(option, kind, name))
            case types.FunctionType() | property() | types.MemberDescriptorType():
                return entry
            case staticmethod():
                return self.heap.adopt(entry.__func__)
            case classmethod():
                return types.MethodType(entry.__func__, kind)
            case functools.cached_property() | functools.partialmethod():
                return (
                    entry if isinstance(entry, functools.cached_property) else getattr(kind, name)
                )
            case _ if isinstance(
                entry,
                (*_NATIVE_METHODS, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
            ):
                return getattr(kind, name)
            case _:
                return self.got(entry, None, kind)

    def of_super(self, value: SuperOf, name: str) -> Any:
        """Return an attribute that the classes behind one in the order of resolution have."""
        held = value.held
        is_class = issubclass(type(held), type) and issubclass(held, value.kind)
        kind = held if is_class else self.attributes.type_of(held)
        mro = kind.__mro__
        if value.kind not in mro:
            fail("super() gets an object that only claims to be one of its class", "use its class")
        for base in mro[mro.index(value.kind) + 1 :]:
            if name not in vars(base):
                continue
            entry = self.attributes.entry(base, name)
            if name == "__new__":
                return entry.__func__ if isinstance(entry, staticmethod) else entry
            if is_class:
                bound = not isinstance(entry, classmethod | types.ClassMethodDescriptorType)
                return (
                    self._of_none(entry, kind, name) if bound else self._class_method(entry, kind)
                )
            is_plain = issubclass(kind, (int, float, complex, str, bytes))
            if isinstance(entry, _NATIVE_METHODS) and not is_plain:
                return BoundMethod(held, entry.__name__)
            return self.bound(entry, held, kind, name)
        return MISSING

    def _class_method(self, entry: Any, kind: type) -> Any:
        if isinstance(entry, classmethod):
            return types.MethodType(entry.__func__, kind)
        return BoundMethod(kind, entry.__name__)


_TEXTS = ("__name__", "__qualname__", "__annotations__")
"""Attributes of functions, in native code, that have no meaning for calls."""

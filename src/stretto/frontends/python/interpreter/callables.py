"""Calls of functions, classes and modules."""

# pyright: reportPrivateUsage=false
# torch's hooks and calls of modules are private

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import operator
import types
import weakref
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from stretto.frontends.python.calls import output_journal, special
from stretto.frontends.python.calls.texts import TextMethod
from stretto.frontends.python.guards.user_code import original
from stretto.frontends.python.interpreter import native_code, python_classes, sourceless
from stretto.frontends.python.interpreter.dataclass_methods import DataclassMethods
from stretto.frontends.python.interpreter.frames import BoundMethod, HostFunction
from stretto.frontends.python.interpreter.heap import (
    CELL,
    CONTAINERS,
    ITEMS,
    MISSING,
    IteratorRef,
    Ref,
)
from stretto.frontends.python.interpreter.host import apply, call_rule
from stretto.frontends.python.interpreter.membership import is_late_number
from stretto.frontends.python.interpreter.native_calls import GivenValues, NativeCaller
from stretto.frontends.python.interpreter.sequence_methods import of_tuple
from stretto.frontends.python.tracing.locations import (
    enter_graph,
    in_module,
    is_user_file,
    package_of,
)
from stretto.frontends.python.tracing.signals import Poison, fail
from stretto.frontends.python.tracing.tracer import suspended, tracer
from stretto.frontends.python.values.data import DataObject
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.texts import is_text

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

_OF_MODULES: frozenset[Any] = frozenset({nn.Module.__call__, nn.Module._call_impl})
_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType)
_INSPECTED = (types.FunctionType, types.MethodType, type)
"""Classes of objects that `inspect` looks at without calling them."""
_UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)
_HOLDING = (
    super, property, classmethod, staticmethod, functools.partial, types.MethodType,
    functools.cached_property, operator.attrgetter, operator.itemgetter, operator.methodcaller,
)  # fmt: skip
"""Classes whose objects only hold what they are made of."""
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_GLOBAL_HOOKS = (
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
)
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")

_COMPILERS = ("stretto.call.compiled", "torch._dynamo.eval_frame")
"""Modules of the classes of compiled functions: what they were compiled from is interpreted."""
_OF_THE_TRACER = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
"""Classes whose methods in Python are not those of the program's objects."""


class Callables:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.natives = NativeCaller(interpreter)
        self.hosts: dict[int, tuple[Any, Any]] = {}
        """The host functions that interpret functions of the program, with these, by id."""
        self.dataclasses = DataclassMethods(interpreter)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(function, Either):
            return self.interpreter.regions.each_option(
                function, lambda option: self.call(option, args, kwargs)
            )
        if isinstance(function, TextMethod):
            found = self.interpreter.strings.method(function.text, function.name, args, kwargs)
            if found is NotImplemented:
                found = self.heap.received(function(*map(self.heap.real, args), **kwargs))
            return found
        if isinstance(function, Poison):
            function.fail()
        if type(function).__module__ in _COMPILERS or getattr(function, "__dict__", None):
            function = original(function)
        if is_late_number(function):
            raise _not_callable(self.interpreter.attributes.type_of(function))
        is_hashed = type(function).__hash__ is not None
        is_hashed &= not isinstance(type(function).__hash__, types.FunctionType)
        try:
            rule = self.interpreter.rules.get(function) if is_hashed else None
        except TypeError:
            rule = None
        is_own = not self.heap.own.keys().isdisjoint(map(id, args))
        if is_own and native_code.is_function_of_torch(function):
            found = self._overloaded(function, args, kwargs)
            if found is not NotImplemented:
                return found
        if rule is not None:
            return call_rule(rule, *args, **kwargs)
        if type(function) is types.FunctionType:
            return self.function(function, args, kwargs)
        match function:
            case BoundMethod():
                return self.interpreter.containers.method_call(
                    function.holder, function.name, args, kwargs
                )
            case types.BuiltinMethodType() if isinstance(
                function.__self__, tuple
            ) and function.__name__ in ("count", "index"):
                items = (*tuple.__iter__(function.__self__),)
                containers = self.interpreter.containers
                return of_tuple(containers, items, function.__name__, *args, **kwargs)
            case types.BuiltinMethodType() if isinstance(function.__self__, str):
                return self._of_text(function, function.__self__, args, kwargs)
            case _ if isinstance(function, _BUILTIN) and isinstance(function.__self__, CONTAINERS):
                held = self.heap.adopt(function.__self__)
                return self.call(BoundMethod(held, function.__name__), args, kwargs)
            case types.MethodType() if isinstance(function.__self__, _OF_THE_TRACER):
                return self.native(function, args, kwargs)
            case HostFunction():
                return function.run(*args)
            case types.MethodType():
                return self.method(function, args, kwargs)
            case functools.partial():
                inner, before, named = self.parts_of_partial(function)
                return self.call(inner, (*before, *args), {**named, **kwargs})
            case type():
                return self.construct(function, args, kwargs)
            case nn.Module():
                return self.module(function, args, kwargs)
            case functools._lru_cache_wrapper():
                return self.cached(function, args, kwargs)
            case _:
                return self.other(function, args, kwargs)

    def parts_of_partial(self, function: functools.partial[Any]) -> tuple[Any, Any, Any]:
        """Return the function, the arguments and the named arguments of a partial function."""
        if self.heap.is_own(function):
            return function.func, function.args, function.keywords
        adopt = self.heap.adopt
        return (
            adopt(function.func), adopt(function.args), adopt(function.keywords).table[ITEMS]
        )  # fmt: skip

    def other(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call an object with `__call__`, a method of C code, or a function in C."""
        if isinstance(function, weakref.ReferenceType):
            return self.heap.adopt(function())
        name = getattr(function, "__name__", "")
        holder = getattr(function, "__self__", None)
        if isinstance(function, types.MethodWrapperType):
            if name == "__call__":
                return self.call(holder, args, kwargs)
            if name == "__get__" and isinstance(holder, types.FunctionType):
                return holder if args[0] is None else types.MethodType(holder, args[0])
        if isinstance(function, _UNBOUND) and args and self.has_state(args[0]):
            return self.interpreter.containers.method_call(args[0], name, args[1:], kwargs)
        if isinstance(function, types.GenericAlias):
            return self.call(function.__origin__, args, kwargs)
        if package_of(type(function)) == "torch":
            outcome = self.natives.outcome_of_rule(function, args, kwargs)
            if outcome is not NotImplemented:
                return outcome
        method = self.interpreter.attributes.method(function, "__call__")
        if method is not MISSING:
            return self.call(method, args, kwargs)
        if isinstance(function, _GETTERS) and len(args) == 1 and not kwargs:
            return self._got(function, args[0])
        kind = self.interpreter.attributes.type_of(function)
        if self.interpreter.attributes.entry(kind, "__call__") is MISSING:
            raise _not_callable(kind)
        return self.native(function, args, kwargs)

    def _got(self, getter: Any, value: Any) -> Any:
        """Call an object of the module `operator` that reads or calls something of a value."""
        kind, parts = getter.__reduce__()[:2]
        interpreter = self.interpreter
        if kind in (operator.attrgetter, operator.itemgetter):

            def read(part: Any) -> Any:
                if kind is operator.itemgetter:
                    return interpreter.containers.getitem(value, part)
                return functools.reduce(interpreter.attributes.getattr, part.split("."), value)
        else:
            is_named = isinstance(kind, functools.partial)
            name, *given = (*kind.args, *parts) if is_named else parts
            method = interpreter.attributes.getattr(value, name)
            return self.call(method, tuple(given), kind.keywords if is_named else {})
        return read(parts[0]) if len(parts) == 1 else tuple(map(read, parts))

    def _overloaded(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call `__torch_function__` of an argument; NotImplemented if none has it."""
        attributes, kinds = self.interpreter.attributes, dict[type, None]()
        for item in (*args, *kwargs.values()):
            for part in item if type(item) is tuple else (item,):
                kind = attributes.type_of(part)
                if not native_code.is_of_user(kind) or isinstance(part, torch.Tensor):
                    continue
                if attributes.entry(kind, "__torch_function__") is not MISSING:
                    kinds[kind] = None
        for kind in kinds:
            method = attributes.getattr(kind, "__torch_function__")
            found = self.call(
                method, (function, tuple(kinds), args, self.heap.new(dict, kwargs)), {}
            )
            if found is not NotImplemented:
                return found
        if kinds:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise TypeError(
                f"no implementation found for '{function}' on types that implement "
                f"__torch_function__: [{names}]"
            )
        return NotImplemented

    def has_state(self, value: Any) -> bool:
        """True for an object whose state is in the heap."""
        if isinstance(value, Ref | IteratorRef) or self.heap.is_own(value):
            return True
        plain = native_code.is_immutable(value) or isinstance(value, torch.Tensor)
        return not plain and native_code.is_of_user(type(value))

    def method(self, function: types.MethodType, args: Any, kwargs: Any) -> Any:
        held, inner = function.__self__, function.__func__
        if isinstance(held, nn.Module) and inner in _OF_MODULES:
            return self.called_module(held, args, kwargs)
        kind = special.applied(function)
        if kind is not None:
            context = self.interpreter.heap.new_object(special.AutogradContext)
            return special.apply(kind, args, kwargs, self.call, context)
        if output_journal.rule_of(function) is not None:
            return self.natives.call(function, args, kwargs)
        self.check(function, args, kwargs)
        return self.call(inner, (held, *args), kwargs)

    def _of_text(self, method: Any, text: Any, args: Any, kwargs: Any) -> Any:
        found = self.interpreter.strings.method(text, method.__name__, args, kwargs)
        if found is not NotImplemented:
            return found
        if tracer().data is not None and any(map(is_text, args)):
            return tracer().data.of_text(text, method.__name__, args, kwargs)
        return self.native(method, args, kwargs)

    def function(self, function: types.FunctionType, args: Any, kwargs: Any) -> Any:
        code = function.__code__
        if (function.__module__, code.co_qualname) in native_code.RECORDS:
            return None
        if code.co_filename.startswith("<string>"):
            return self.generated(function, args, kwargs)
        chosen = self.dispatched(function, args)
        if chosen is not None:
            return self.call(chosen, args, kwargs)
        if is_user_file(code.co_filename) or self.heap.is_own(function):
            return self.interpreter.recursion.run(function, args, kwargs)
        host, original = self.hosts.get(id(function), (None, None))
        if host is function:
            return self.call(original, args, kwargs)
        if output_journal.rule_of(function) is not None:
            return self.natives.call(function, args, kwargs)
        self.check(function, args, kwargs)
        outcome = self.natives.outcome_of_rule(function, args, kwargs)
        if outcome is not NotImplemented:
            return outcome
        if self.is_interpreted(function, (*args, *kwargs.values())):
            return self.interpreter.recursion.run(function, args, kwargs)
        if (function.__module__ or "").startswith(_TRANSFORMS):
            args = tuple(
                [self.as_host_function(x) if isinstance(x, nn.Module) else x for x in args]
            )
        return self.natives.call(function, args, kwargs)

    def dispatched(self, function: types.FunctionType, args: Any) -> Any:
        """Return the function that single dispatch chooses; None if the call is no single dispatch
        of a function from outside."""
        kind = special.dispatches_by(function.__code__)
        if kind is None or not args:
            return None
        chosen = self.interpreter.attributes.type_of(args[0])
        if kind is functools.singledispatch:
            if self.heap.is_own(function):
                return None
            return self.heap.adopt(function.dispatch(chosen))  # type: ignore[attr-defined]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held = {name: self.heap.field(cell, CELL) for name, cell in cells}
        if self.heap.is_own(held["self"].dispatcher):
            return None
        found = held["self"].dispatcher.dispatch(chosen)
        descriptors = self.interpreter.attributes.descriptors
        return descriptors.bound(found, held["obj"], held["cls"], function.__name__)

    def generated(self, function: types.FunctionType, args: Any, kwargs: Any) -> Any:
        """Call a function that a library has made from a text: a method of a dataclass, or that
        makes a named tuple."""
        if args and dataclasses.is_dataclass(self.interpreter.attributes.type_of(args[0])):
            found = self.dataclasses.run(function, args, kwargs)
            if found is not NotImplemented:
                return found
        if function.__name__ == "__new__" and args and hasattr(args[0], "_fields"):
            return function(*args, **kwargs)
        if native_code.is_known(function, None):
            return self.natives.call(function, args, kwargs)
        return sourceless.call(self.interpreter, function, args, kwargs)

    def is_interpreted(self, function: types.FunctionType, given: Any) -> bool:
        """True for a function of a library that is interpreted: one that may call functions of the
        user, or that gets objects that only the heap knows."""
        module = function.__module__ or ""
        if module.startswith(("torch.nn.modules", "torch.distributions", python_classes.__name__)):
            return True
        if package_of(function) == "stretto":
            return False
        if not native_code.is_known(function, None):
            return True
        if module == "inspect" and all(
            isinstance(x, _INSPECTED) or self.is_plain(x) for x in given
        ):
            return False
        if module.startswith(_TRANSFORMS):
            return False
        held = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
        is_closed = not any(callable(x) and not _is_native(x) for x in held)
        return not (is_closed and all(map(self.is_plain, given)))

    def is_plain(self, value: Any) -> bool:
        """True for a value that native code may get as it is, or as a copy."""
        if isinstance(value, Ref):
            items = value.table[ITEMS]
            inside = items.values() if isinstance(items, dict) else items
            known = value.kind.__module__ in ("builtins", "collections")
            return known and (
                not isinstance(items, tuple | dict) or all(map(self.is_plain, inside))
            )
        if isinstance(value, tuple):
            return all(map(self.is_plain, value))
        if isinstance(value, IteratorRef | DataObject) or self.heap.is_own(value):
            return False
        if is_text(value) and tracer().data is not None:
            return False
        if isinstance(value, types.FunctionType | types.MethodType | nn.Module | BoundMethod):
            return _is_native(value)
        if isinstance(value, type):
            return native_code.is_immutable(value)
        return not native_code.is_of_user(type(value))

    def check(self, function: Any, args: Any, kwargs: Any) -> None:
        """Fail for a function of a library whose next call gives another value, or that acts on
        the world outside."""
        special.check_repeatable(function)
        special.check_harmless(function, args, kwargs)
        special.check_frames(function, args, kwargs)

    def is_of_program(self, function: types.FunctionType) -> bool:
        """True for a function that has to be interpreted wherever it is called."""
        return self.heap.is_own(function) or is_user_file(function.__code__.co_filename)

    def cached(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function with a cache (`functools.lru_cache`).

        Its cached results outlive the capture. If all arguments are Python values, it is called as
        in eager PyTorch; else its body is interpreted and nothing is cached. One that prints, warns
        or logs is called by the run, and so acts once for equal arguments.
        """
        given = (*args, *kwargs.values())
        if self.heap.is_own(function.__wrapped__) or not all(map(_is_key, given)):
            return self.call(function.__wrapped__, args, kwargs)
        is_known = not given and function.cache_info().currsize > 0  # its body does not run
        if not is_known and is_user_file(
            getattr(function.__wrapped__, "__code__", _CODE).co_filename
        ):
            self._check_unchanged(function)
        if output_journal.called_once(function, args, kwargs):
            return None
        if any(isinstance(item, logging.Logger) for item in given):
            return self.call(function.__wrapped__, args, kwargs)
        with suspended():
            return self.heap.adopt(function(*args, **kwargs))

    def _check_unchanged(self, function: Any) -> None:
        journal = {id(self.heap.adopt(items).table) for items in self.heap.journal.lists()}
        changes = self.heap.changes(0).values()
        changed = (x.table for x in changes if x.new is not x.old and id(x.table) not in journal)
        if any(not self.heap.is_born_after(table, 0) for table in changed):
            fail(
                f"'{function.__name__}', which has a cache, is called after a change of what "
                "outlives the call",
                "call it first, or outside of the compiled function",
            )

    def module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        own = self.interpreter.attributes.entry(type(module), "__call__")
        is_written = isinstance(own, types.FunctionType) and own is not nn.Module.__call__
        if is_written and not isinstance(module, fx.GraphModule):
            return self.call(own, (module, *args), kwargs)
        return self.called_module(module, args, kwargs)

    def called_module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module as `nn.Module.__call__` does."""
        if isinstance(module, torch.jit.ScriptModule):
            return self.native(module, args, kwargs)
        if isinstance(module, fx.GraphModule):
            enter_graph(module)
        with in_module(tracer().path_of(module)):
            return self._forward(module, args, kwargs)

    def _forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        stored = self.interpreter.attributes.stored
        globally = [self.heap.adopt(hooks) for hooks in _GLOBAL_HOOKS]
        own = (stored(module, name) for name in _HOOKS)
        if any(map(self.has_items, (*globally, *own))):
            return self.interpreter.run(nn.Module._call_impl, (module, *args), kwargs)
        return self.call(self.interpreter.attributes.getattr(module, "forward"), args, kwargs)

    def has_items(self, holder: Any) -> bool:
        return isinstance(holder, Ref) and bool(holder.table[ITEMS])

    def construct(self, kind: type, args: Any, kwargs: Any) -> Any:
        """Call a class."""
        if kind in _HOLDING:
            made = kind(*args, **kwargs)
            self.heap.own[id(made)] = made
            self.heap.kept.append(made)
            return made
        caller = self.interpreter.attributes.entry(type(kind), "__call__")
        if isinstance(caller, types.FunctionType):
            return self.call(caller, (kind, *args), kwargs)
        return self.instance(kind, args, kwargs)

    def instance(self, kind: type, args: Any, kwargs: Any) -> Any:
        """Make an object of a class, as `type.__call__` does."""
        new = kind.__new__
        is_written = isinstance(new, types.FunctionType) and not self._is_of_tuples(new)
        if is_written and (native_code.is_of_user(kind) or not all(map(self.is_plain, args))):
            made = self.call(new, (kind, *args), kwargs)
            is_one = issubclass(self.interpreter.attributes.type_of(made), kind)
            return self._started(kind, made, args, kwargs) if is_one else made
        if issubclass(kind, CONTAINERS):
            return self._started(kind, self.heap.new_container(kind), args, kwargs)
        if issubclass(kind, tuple) and native_code.is_of_user(kind):
            if hasattr(kind, "_fields"):
                return kind(*args, **kwargs)
            start = self.interpreter.attributes.entry(kind, "__init__")
            if kwargs and not isinstance(start, types.FunctionType):
                raise TypeError("tuple() takes no keyword arguments")
            if len(args) > 1:
                raise TypeError(f"tuple expected at most 1 argument, got {len(args)}")
            made = tuple.__new__(kind, self.interpreter.iteration.known(args[0]) if args else ())
            return self._started(kind, made, args, kwargs)
        if id(kind) in python_classes.METHODS:
            maker: Any = new
            made = self.heap.take(maker(kind))
            return self._started(kind, made, args, kwargs)
        if new is object.__new__ and inspect.isabstract(kind):
            return apply(object.__new__, kind)  # raises TypeError
        if new is object.__new__ and self.is_made_in_heap(kind, args, kwargs):
            made = self.heap.new_object(kind)
            return self._started(kind, made, args, kwargs)
        if issubclass(kind, BaseException):
            return self.exception(kind, args, kwargs)
        return self.native(kind, args, kwargs)

    def _is_of_tuples(self, new: types.FunctionType) -> bool:
        return new.__code__.co_filename.startswith("<string>")

    def is_made_in_heap(self, kind: type, args: Any, kwargs: Any) -> bool:
        """True if an object of a class is one of the heap: a class of the user, or one in Python
        whose methods are interpreted."""
        if native_code.is_of_user(kind):
            return True
        start = self.interpreter.attributes.entry(kind, "__init__")
        if not isinstance(start, types.FunctionType) or kind.__module__ == "threading":
            return False
        return self.is_interpreted(start, (*args, *kwargs.values()))

    def exception(self, kind: type, args: Any, kwargs: Any) -> Any:
        """Make an exception. Attributes that its `__init__` sets are in the heap."""
        start = self.interpreter.attributes.entry(kind, "__init__")
        if not isinstance(start, types.FunctionType):
            return kind(*args, **kwargs)
        made = self.heap.take(kind.__new__(kind, *args, **kwargs))
        self.call(start, (made, *args), kwargs)
        return made

    def _started(self, kind: type, made: Any, args: Any, kwargs: Any) -> Any:
        """Call `__init__` of an object."""
        start = self.interpreter.attributes.entry(
            self.interpreter.attributes.type_of(made), "__init__"
        )
        if isinstance(start, types.FunctionType):
            found = self.call(start, (made, *args), kwargs)
            if found is not None:
                name = self.interpreter.attributes.type_of(found).__name__
                raise TypeError(f"__init__() should return None, not '{name}'")
        elif isinstance(made, Ref):
            if made.kind.__new__ is not list.__new__ and issubclass(made.kind, list):
                kwargs = {}  # those of a `__new__` of the program
            self.interpreter.containers.method_call(made, "__init__", args, kwargs)
        elif (args or kwargs) and kind.__new__ is object.__new__:
            raise TypeError(f"{kind.__name__}() takes no arguments")
        return made

    def native(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call native code, with values that it cannot change."""
        self.check(function, args, kwargs)
        return self.natives.call(function, args, kwargs)

    def as_host_function(self, function: Any) -> Any:
        """Return a host function that interprets a function of the program."""

        def host(*args: Any, **kwargs: Any) -> Any:
            return self.from_host(function, args, kwargs)

        self.hosts[id(host)] = host, function
        return host

    def from_host(self, function: Any, args: Any, kwargs: Any, *, is_own: bool = False) -> Any:
        """Call a function for native code, or for a rule. is_own: interpret a function of this
        package."""
        active = self.natives.active
        given = active[-1] if active else GivenValues(self.interpreter)
        function = given.result(function)
        received = tuple(map(given.result, args))
        named = {key: given.result(item) for key, item in kwargs.items()}
        held = [(ref, ref.table[ITEMS]) for _, ref, _ in given.copies.values()]
        call = self.interpreter.recursion.run if is_own else self.call
        found = call(function, received, named)
        if any(ref.table[ITEMS] is not items for ref, items in held):
            fail(
                "a function that is given to native code changes a container that this code has",
                "call it in a loop",
            )
        return given.real(found)


_TRANSFORMS = tuple(
    f"torch.{name}"
    for name in (
        "_functorch.apis", "_functorch.vmap", "_functorch.eager_transforms",
        "_functorch.pyfunctorch", "_functorch.utils", "_functorch.predispatch", "_vmap_internals",
    )
)  # fmt: skip
"""Modules of torch whose functions call others under a state of torch, which only they change."""
_CODE = compile("", "<none>", "exec")


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not MISSING
    except ValueError:
        return False


def _is_native(function: Any) -> bool:
    """True for something to call in whose code no function of the user is called."""
    inner = getattr(function, "__func__", function)
    if isinstance(inner, types.FunctionType):
        return not is_user_file(inner.__code__.co_filename) and not inner.__closure__
    if isinstance(inner, nn.Module):
        return False
    return isinstance(inner, type) or package_of(type(inner)) in ("builtins", "torch", "stretto")


def _is_key(value: Any) -> bool:
    """True for a value by which a cache finds a result."""
    if type(value) is tuple:
        return all(map(_is_key, value))
    return type(value) in _KEYS or isinstance(value, type | Enum | logging.Logger)


_KEYS = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device))


def _not_callable(kind: type) -> TypeError:
    return TypeError(f"'{kind.__name__}' object is not callable")

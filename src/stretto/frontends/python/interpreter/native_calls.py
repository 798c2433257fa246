"""Calls of native code: functions in C, and those of libraries that are not interpreted."""

# pyright: reportPrivateUsage=false
# torch's native module is private

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from stretto.frontends.python.calls import arguments, output_journal, sized
from stretto.frontends.python.calls.builtins import RULES, generator_method, needs_items
from stretto.frontends.python.calls.texts import TextMethod
from stretto.frontends.python.interpreter import native_code
from stretto.frontends.python.interpreter.frames import BoundMethod, SuperOf
from stretto.frontends.python.interpreter.heap import (
    ATOMS,
    CONTAINERS,
    ITEMS,
    DictView,
    IteratorRef,
    Ref,
    rebuild_tuple,
)
from stretto.frontends.python.lists import sources
from stretto.frontends.python.tracing.signals import Poison, abort, fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import number_methods
from stretto.frontends.python.values.data_dependent_sizes import compare_in_run, plain
from stretto.frontends.python.values.either import Either, first_either, replaced
from stretto.frontends.python.values.state import TracedList
from stretto.frontends.python.values.texts import settled_texts

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

_METHODS = {**sources.METHODS, **sized.METHODS, **arguments.METHODS}
_AS_THEY_ARE = ATOMS - {slice}
"""Tensor methods that have rules."""
_OF_TORCHSCRIPT = "failed in the TorchScript interpreter"
"""Part of the message of each error of TorchScript's interpreter, also for an unknown value."""


class GivenValues:
    """The values of one native call: containers are copied, functions of the program become host
    functions that interpret them."""

    def __init__(
        self, interpreter: PythonInterpreter, view: Callable[[Any, Any], Any] | None = None
    ) -> None:
        """view: makes what stands for an object of the user; None: it is given as it is."""
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.view = view
        self.copies: dict[int, tuple[Any, Ref, Any]] = {}
        """For each copy, by its id: it, its reference, and its items before the call."""
        self.by_ref: dict[int, Any] = {}
        self.open = set[int]()
        """The containers that are being copied, or have been, by id."""
        self.iterators: list[Any] = []
        self.originals: dict[int, tuple[Any, Any]] = {}
        """The functions and objects of the program, by the id of what is given in their place."""

    def real(self, value: Any) -> Any:
        if type(value) is TracedTensor or type(value) in _AS_THEY_ARE:
            return value
        match value:
            case Poison():
                value.fail()
            case Ref():
                return self._copy(value)
            case IteratorRef():
                return self._advanced(value)
            case DictView():
                return getattr(self._copy(value.holder), value.name)()
            case BoundMethod() | types.FunctionType() | types.MethodType():
                return self._function(value)
            case SuperOf():
                fail("super() is given to native code", "call the method itself")
            case slice():
                return slice(*(self.real(x) for x in (value.start, value.stop, value.step)))
            case tuple() if not isinstance(value, torch.Size):
                items = [self.real(item) for item in value]
                same = all(a is b for a, b in zip(items, value, strict=True))
                return value if same else rebuild_tuple(value, items)
            case _ if self.view is not None and not self.interpreter.calls.is_plain(value):
                made = self.view(self, value)
                self.originals[id(made)] = made, value
                return made
            case _ if self.heap.is_own(value):
                found = self.interpreter.operators.special(value, "__index__")
                return value if found is NotImplemented else self.real(found)
            case _:
                return value

    def arguments(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(self.real, args)), {key: self.real(x) for key, x in kwargs.items()}

    def _copy(self, ref: Ref) -> Any:
        if id(ref) not in self.by_ref:
            if id(ref) in self.open:
                fail("a container that contains itself is given to native code", "make a copy")
            self.open.add(id(ref))
            items = self.interpreter.containers.items(ref)
            if isinstance(items, Either):
                fail(
                    "a container whose length depends on a tensor is part of another one that "
                    "native code gets",
                    "give it to the function itself",
                )
            if isinstance(items, dict):
                items = self.interpreter.containers.entries(ref)
                given: Any = {key: self.real(item) for key, item in items.items()}
            elif isinstance(items, tuple):
                given = tuple(map(self.real, items))
            else:
                given = items
            self._check_methods(ref.kind)
            made = self.heap.real(Ref(ref.kind, {**ref.table, ITEMS: given}, 0))
            self.by_ref[id(ref)] = made
            self.copies[id(made)] = made, ref, _items(made)
        return self.by_ref[id(ref)]

    def _check_methods(self, kind: type) -> None:
        for name in ("__iter__", "__getitem__", "__len__", "__contains__"):
            found = self.interpreter.attributes.entry(kind, name)
            if isinstance(found, types.FunctionType):
                fail(
                    f"a {kind.__name__}, which has its own {name}, is given to native code",
                    "make a list or a dict of it first",
                )

    def _advanced(self, iterator: IteratorRef) -> Any:
        """Return a host iterator. The native code has to take all items."""
        host = map(self.real, self.interpreter.iteration.known(iterator))
        self.iterators.append(host)
        return host

    def check_used_up(self, function: Any) -> None:
        if any(next(host, host) is not host for host in self.iterators):
            name = getattr(function, "__name__", function)
            fail(f"'{name}' takes only some items of an iterator", "give it a list")

    def _function(self, value: Any) -> Any:
        inner = getattr(value, "__func__", value)
        if isinstance(inner, types.FunctionType) and not self.interpreter.calls.is_of_program(
            inner
        ):
            return value
        host = self.interpreter.calls.as_host_function(value)
        if isinstance(inner, types.FunctionType):
            host.__wrapped__ = value
        self.originals[id(host)] = host, value
        return host

    def result(self, value: Any) -> Any:
        """Return the value of the interpreter for one that native code has made."""
        if id(value) in self.copies:
            return self.copies[id(value)][1]
        if id(value) in self.originals:
            return self.originals[id(value)][1]
        if isinstance(value, TracedList):
            return self.heap.new(list, value)
        if native_code.is_over_known_items(value):
            return self.interpreter.iteration.iterator(tuple(map(self.result, value)))
        if isinstance(value, CONTAINERS):
            made = self.heap.new(type(value), self._content(value))
            if isinstance(value, defaultdict):
                made.table["default_factory"] = value.default_factory
            return made
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            items = [self.result(item) for item in value]
            same = all(a is b for a, b in zip(items, value, strict=True))
            return value if same else rebuild_tuple(value, items)
        return value

    def _content(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.result(item) for key, item in value.items()}
        if isinstance(value, set):
            return dict.fromkeys(value)
        return tuple(map(self.result, value))

    def write_back(self) -> None:
        """Store what the native code has changed in the copies."""
        for made, ref, before in self.copies.values():
            now = _items(made)
            if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
                self.heap.set(ref.table, ITEMS, self._content(made))


def _items(made: Any) -> list[Any]:
    if isinstance(made, TracedList):
        return []
    return [*made, *made.values()] if isinstance(made, dict) else list(made)


_MOST_CALLS = 1000
"""Number of combinations of the options of its operands for which a function is called."""


class NativeCaller:
    """Calls of native code with values that it cannot change, if a table knows what it does."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.active: list[GivenValues] = []
        """The calls that have not returned."""

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = next((x for x in (*args, *kwargs.values()) if isinstance(x, Either)), None)
        if found is not None:
            return self._each_option(function, args, kwargs, found)
        for item in (*args, *kwargs.values()):
            if isinstance(item, Ref) and isinstance(item.table[ITEMS], Either):

                def again() -> Any:
                    return self.call(function, args, kwargs)

                return self.interpreter.containers.with_content(item, again)
        self.heap.outside.log.native(function)
        for item in args:
            if isinstance(item, nn.Module):
                self._check_module(item)
        given = GivenValues(self.interpreter)
        real, named = given.arguments(args, kwargs)
        self.active.append(given)
        try:
            if number_methods.is_of_operator(function, real):  # its result may be NotImplemented
                outcome = number_methods.of_operator(function, real)
            else:
                outcome = self.by_rule(function, real, named)
                if outcome is NotImplemented:
                    real, named = arguments.with_accepted(function, real, named)
                    outcome = self._prepared(function, real, named)
        finally:
            self.active.pop()
        given.check_used_up(function)
        given.write_back()
        sources_of = (getattr(function, "__self__", None), *real, *named.values())
        for item in outcome if isinstance(outcome, tuple | list) else (outcome,):
            self._note_made(item, sources_of)
            if given.copies and not native_code.takes_copies(item):
                fail(
                    f"a {type(item).__name__} is made of a container, which it may keep",
                    "make it of tensors, numbers and texts, or outside of the compiled function",
                )
        return given.result(outcome)

    def run(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        view: Callable[[Any, Any], Any],
    ) -> Any:
        """Call code that is known to change nothing but its arguments."""
        given = GivenValues(self.interpreter, view)
        real, named = given.arguments(args, kwargs)
        self.active.append(given)
        try:
            outcome = self._native(function, real, named)
        finally:
            self.active.pop()
        given.write_back()
        return given.result(outcome)

    def outcome_of_rule(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call the rule of a function in Python. NotImplemented if there is none that fits."""
        if self.rule(function) is None:
            return NotImplemented
        if any(isinstance(item, nn.Module) and self.heap.is_own(item) for item in args):
            return NotImplemented  # a rule reads a module as it is
        for item in args:
            if isinstance(item, nn.Module):
                self._check_module(item)
        given = GivenValues(self.interpreter)
        real, named = given.arguments(args, kwargs)
        self.active.append(given)
        try:
            outcome = self.by_rule(function, real, named)
        finally:
            self.active.pop()
        return outcome if outcome is NotImplemented else given.result(outcome)

    def _each_option(self, function: Any, args: Any, kwargs: Any, found: Either) -> Any:
        several = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Either)]
        calls = prod(len(one.stretto_options) for one in several)
        if calls > _MOST_CALLS:
            fail(
                f"{len(several)} operands, each of several types, have {calls} combinations of "
                "types",
                "keep values of one type in one variable, list or attribute",
            )

        def with_option(option: Any) -> Any:
            return self.call(function, *replaced((args, kwargs), found, option))

        return self.interpreter.regions.each_option(found, with_option)

    # -- rules ----------------------------------------------------------------------------------

    def by_rule(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a rule for values of the run. NotImplemented if there is none."""
        if isinstance(function, TextMethod):
            return function(*args, **kwargs)
        acts = output_journal.rule_of(function)
        if acts is not None:
            return acts(*args, **kwargs)
        args, kwargs = arguments.with_accepted(function, args, kwargs)
        rule = self.rule(function)
        if rule is None:
            return NotImplemented
        args = tuple(map(plain, args))
        found = first_either((args, kwargs))
        if found is not None:
            return self._each_option(function, args, kwargs, found)
        named = arguments.names_of_torch(function, kwargs)
        return rule(*args, **named) if arguments.takes(rule, named) else NotImplemented

    def rule(self, function: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, TracedTensor) and owner.number is not None:
            number_methods.check_attribute(owner, function.__name__)
        if isinstance(owner, torch.Tensor) and function.__name__ in _METHODS:
            method = _METHODS[function.__name__]
            return lambda *args, **kwargs: method(owner, *args, **kwargs)
        if isinstance(owner, torch.Size) and function.__name__ == "numel":
            return lambda: sized.count_of_size(owner)
        if isinstance(owner, torch.Generator):
            return generator_method(function)
        try:
            return RULES.get(function)
        except TypeError:
            return None

    # -- native code ----------------------------------------------------------------------------

    def _prepared(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = settled_texts((args, kwargs))
        found = first_either((args, kwargs))
        if found is not None:
            return self._each_option(function, args, kwargs, found)
        args, kwargs = needs_items(args, kwargs)
        args, kwargs = sized.with_sizes(function, args, kwargs)
        kwargs = arguments.with_flags(function, kwargs)
        switch = arguments.switch_of(function, kwargs)
        if switch is not None:
            return self.interpreter.regions.branch(
                kwargs[switch],
                lambda: self._prepared(function, args, {**kwargs, switch: True}),
                lambda: self._prepared(function, args, {**kwargs, switch: False}),
            )
        self.check(function, args, kwargs)
        return self._native(function, args, kwargs)

    def _native(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            made = function(*args, **kwargs)
        except Exception as error:  # whatever it raises
            arguments.check_error(error, function, args, kwargs)
            if _OF_TORCHSCRIPT in str(error):
                fail(
                    "TorchScript code decides by the content of a tensor, or raises an error",
                    "compile the Python function or module that it was made of, or with "
                    "fallback=True",
                )
            raise
        compare_in_run()
        return made

    # -- what native code may do ----------------------------------------------------------------

    def check(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Fail for native code that is not known to depend on its arguments alone."""
        name = getattr(function, "__name__", type(function).__name__)
        owner = getattr(function, "__self__", None)
        if args and getattr(type(args[0]), name, None) is function:  # an unbound method
            owner, args = args[0], args[1:]
        if isinstance(owner, types.ModuleType) or type(owner).__module__.startswith("pybind11"):
            owner = None
        if not native_code.is_known(function, owner):
            of = f" of {type(owner).__name__}" if owner is not None else ""
            fail(
                f"'{name}'{of} is native code of which it is not known what it changes",
                "call it outside of the compiled function, or compile with fallback=True",
            )
        if owner is not None:
            self._check_state(owner, name)
            is_fixed = native_code.reads_only(owner, name) or native_code.is_of_a_context(owner)
            if not is_fixed and not isinstance(owner, type):
                self.note_change(owner, name)
        written = kwargs.get("out")
        for item in (*args, *kwargs.values()):
            self._check_argument(function, name, item, written)

    def _check_argument(self, function: Any, name: str, item: Any, written: Any) -> None:
        if isinstance(item, list | tuple | set | frozenset | dict):
            inside = [*item, *item.values()] if isinstance(item, dict) else item
            for part in inside:
                self._check_argument(function, name, part, written)
            return
        if isinstance(item, types.FunctionType | types.MethodType | types.GeneratorType):
            return
        if native_code.is_immutable(item) or native_code.is_of_this_package(item):
            return
        self._check_state(item, name)
        if native_code.may_write(function, name, item, written):
            self.note_change(item, name)

    def _check_state(self, item: Any, name: str) -> None:
        """Fail for an object whose state the program may have changed, and for one with special
        methods of the user."""
        if native_code.is_immutable(item):
            return
        kind = item if isinstance(item, type) else type(item)
        if isinstance(item, nn.Module) or self.heap.is_own(item) or native_code.is_of_user(kind):
            what = "the class" if isinstance(item, type) else "an object of class"
            fail(
                f"{what} {kind.__name__} is given to native code, '{name}'",
                "give it tensors, numbers, texts and containers of these",
            )

    def note_change(self, target: Any, name: str) -> None:
        """Record that a native object is changed. It has to be one that the program has made."""
        kind = type(target).__name__
        stop = abort(
            f"'{name}' may change an object of class {kind}, which is not known to the capture",
            "keep the state in tensors, numbers, lists, dicts or objects with attributes, or "
            "compile with fallback=True",
        )
        for array in (reference() for reference, _ in tracer().arrays):
            if _share_memory(target, array):
                fail(
                    f"'{name}' may change an array whose memory a tensor shares",
                    "make the tensor of a copy of the array",
                )
        self.heap.change_native(target, stop)

    def _check_module(self, module: nn.Module) -> None:
        """Fail if the program has changed a module that a rule reads as it is."""
        changed = {id(table) for table, _, _ in self.heap.trail}
        for part in module.modules():
            held = (part, *vars(part).values())
            if self.heap.is_own(part) or any(
                id(self.heap.table_of(self.heap.adopt(item))) in changed
                for item in held
                if item is part or isinstance(item, CONTAINERS)
            ):
                fail(
                    f"a {type(part).__name__} that the function has changed is called",
                    "change it outside of the compiled function",
                )

    def _note_made(self, item: Any, sources_of: tuple[Any, ...]) -> None:
        if native_code.is_immutable(item) or isinstance(item, (*CONTAINERS, tuple)):
            return
        if isinstance(item, nn.Module) or native_code.is_of_this_package(item):
            return
        if not any(item is source for source in sources_of):
            held = [x for x in sources_of if not native_code.is_immutable(x)]
            kinds = (*CONTAINERS, types.FunctionType, types.MethodType, types.GeneratorType)
            self.heap.note_native(item, [x for x in held if not isinstance(x, kinds)])


def _share_memory(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    return one is other

"""Rules for functions of Python that call a special method of an object: `abs`, `int`, `hash` and
those of the module `operator`."""

from __future__ import annotations

import ast
import copy
import math
import operator
import types
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stretto.frontends.python.interpreter import native_code
from stretto.frontends.python.interpreter.heap import ATOMS, ITEMS, MISSING, HeapKey, Ref
from stretto.frontends.python.interpreter.operators import OPERATORS
from stretto.frontends.python.lists import operations
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

Rule = Callable[..., Any]

_OF_FLOATS = (
    "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "fabs", "isnan", "isinf", "isfinite", "degrees", "radians",
)  # fmt: skip
_OF_METHODS: dict[Any, tuple[str, ...]] = {
    abs: ("__abs__",), round: ("__round__",), divmod: ("__divmod__",),
    int: ("__int__", "__index__", "__trunc__"), float: ("__float__", "__index__"),
    complex: ("__complex__", "__float__", "__index__"), hash: ("__hash__",),
    bytes: ("__bytes__",), dir: ("__dir__",),
    math.floor: ("__floor__", "__float__"), math.ceil: ("__ceil__", "__float__"),
    math.trunc: ("__trunc__",), operator.index: ("__index__",),
    **{getattr(math, name): ("", "__float__", "__index__") for name in _OF_FLOATS},
    bin: ("", "__index__"), oct: ("", "__index__"), hex: ("", "__index__"), chr: ("", "__index__"),
}  # fmt: skip
"""Functions, and the special methods that they ask for, in this order."""
_RESULTS: dict[Any, tuple[str, type]] = {
    int: ("__int__", int), float: ("__float__", float), complex: ("__complex__", complex),
    hash: ("__hash__", int), format: ("__format__", str), bytes: ("__bytes__", bytes),
    operator.index: ("__index__", int),
}  # fmt: skip
_FINAL = (abs, round, divmod, hash, format, bytes, dir, math.trunc, operator.index)
"""Functions that return what a method returns; others are called again with it, unless the method
is the first one."""


class ProtocolRules:
    """Rules for functions that are defined by special methods of their arguments."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter

    def of_functions(self) -> dict[Any, Rule]:
        """Return the rules, by function."""
        operators, containers = self.interpreter.operators, self.interpreter.containers
        binary = {getattr(operator, f"__{name}__"): self._binary(name) for name in OPERATORS}
        augmented = {getattr(operator, f"__i{name}__"): self._augmented(name) for name in OPERATORS}
        compared = {getattr(operator, name): self._compared(op) for name, op in _COMPARED.items()}
        return {
            **{function: self.by_method(function) for function in _OF_METHODS},
            **binary, **augmented, **compared,
            operator.neg: lambda x: operators.unary(operator.neg, x),
            operator.pos: lambda x: operators.unary(operator.pos, x),
            operator.invert: lambda x: operators.unary(operator.invert, x),
            operator.abs: self.by_method(abs), operator.concat: self._binary("add"),
            operator.truth: operators.truth,
            operator.not_: lambda x: self.interpreter.regions.negated(operators.truth(x)),
            operator.is_: operators.same,
            operator.is_not: lambda a, b: self.interpreter.regions.negated(operators.same(a, b)),
            operator.contains: operators.contains, operator.getitem: containers.getitem,
            operator.setitem: containers.setitem, operator.delitem: containers.delitem,
            pow: self._power, copy.copy: self.copied, copy.deepcopy: self.deep_copied,
        }  # fmt: skip

    def _binary(self, name: str) -> Rule:
        return lambda a, b: self.interpreter.operators.binary(name, a, b)

    def _augmented(self, name: str) -> Rule:
        return lambda a, b: self.interpreter.operators.augment(name, a, b)

    def _compared(self, op: type[ast.cmpop]) -> Rule:
        return lambda a, b: self.interpreter.operators.compare(op, a, b)

    def _power(self, base: Any, exp: Any, mod: Any = None) -> Any:
        if mod is None:
            return self.interpreter.operators.binary("pow", base, exp)
        found = self.interpreter.operators.special(base, "__pow__", exp, mod)
        if found is not NotImplemented:
            return found
        return self.interpreter.calls.native(pow, (base, exp, mod), {})

    def by_method(self, function: Any) -> Rule:
        """Return the rule for a function that calls one of several special methods."""
        names = _OF_METHODS[function]

        def rule(*args: Any, **kwargs: Any) -> Any:
            if not args:
                return self.interpreter.calls.native(function, args, kwargs)
            value, *others = args
            if function is operator.index and isinstance(value, int):
                return self.interpreter.calls.native(function, args, kwargs)
            if isinstance(value, Either):

                def on_option(x: Any) -> Any:
                    return rule(x, *others, **kwargs)

                return self.interpreter.regions.each_option(value, on_option)
            for name in filter(None, names):
                given = (*others,) if name not in ("__float__", "__index__") else ()
                found = self.interpreter.operators.special(value, name, *given, **kwargs)
                if found is not NotImplemented:
                    self._check(function, name, found)
                    again = function not in _FINAL and name != names[0]
                    return rule(found, *others) if again else found
                if self._has_native(value, name):
                    break
            if function is divmod:
                return self._divmod(value, *others)
            if function is hash and type(value) is tuple:
                return self._hash(value)
            if function is format and self._has_table(value):
                return self._formatted(value, *others)
            return self.interpreter.calls.native(function, args, kwargs)

        return rule

    def _has_native(self, value: Any, name: str) -> bool:
        """True for a number of a class of the user whose special method is that of Python."""
        is_number = isinstance(value, int | float | complex)
        return is_number and hasattr(type(value), name)

    def _formatted(self, value: Any, spec: Any = "") -> Any:
        """Return `object.__format__(value, spec)`."""
        if spec:
            kind = self.interpreter.attributes.type_of(value).__name__
            raise TypeError(f"unsupported format string passed to {kind}.__format__")
        return self.interpreter.strings.text(value)

    def _check(self, function: Any, name: str, found: Any) -> None:
        method, kind = _RESULTS.get(function, ("", object))
        of = self.interpreter.attributes.type_of(found)
        if name == method and not issubclass(of, kind):
            article = "an integer" if function is hash else f"{kind.__name__}"
            raise TypeError(f"{name} returned non-{article} (type {of.__name__})")

    def _divmod(self, first: Any, second: Any) -> Any:
        if isinstance(second, Either):
            return self.interpreter.regions.each_option(second, lambda x: self._divmod(first, x))
        found = self.interpreter.operators.special(second, "__rdivmod__", first)
        if found is NotImplemented:
            kinds = [self.interpreter.attributes.type_of(x) for x in (first, second)]
            if not all(hasattr(kind, "__divmod__") for kind in kinds):
                left, right = (kind.__name__ for kind in kinds)
                raise TypeError(f"unsupported operand type(s) for divmod(): '{left}' and '{right}'")
            return self.interpreter.calls.native(divmod, (first, second), {})
        return found

    def _hash(self, value: Any) -> Any:
        """Return the hash of a tuple, whose items may have hashes of their own."""
        key = self.interpreter.containers.key(value)
        return (
            hash(key)
            if isinstance(key, HeapKey)
            else self.interpreter.calls.native(hash, (key,), {})
        )

    # -- copies ---------------------------------------------------------------------------------

    def copied(self, value: Any) -> Any:
        """Return `copy.copy(value)`."""
        if isinstance(value, Either):
            return self.interpreter.regions.each_option(value, self.copied)
        found = self.interpreter.operators.special(value, "__copy__")
        if found is not NotImplemented:
            return found
        if type(value) in ATOMS or type(value) is tuple:
            return value
        if not self._has_table(value):
            return self.interpreter.calls.native(copy.copy, (value,), {})
        return self._same(value, lambda item: item)

    def deep_copied(self, value: Any, memo: Any = None) -> Any:
        """Return `copy.deepcopy(value, memo)`."""
        if isinstance(value, Either):
            return self.interpreter.regions.each_option(value, lambda x: self.deep_copied(x, memo))
        memo = self.interpreter.heap.new(dict, {}) if memo is None else memo
        known = self.interpreter.containers.items(memo).get(id(value))
        if known is not None:
            return known
        found = self.interpreter.operators.special(value, "__deepcopy__", memo)
        if found is NotImplemented:

            def again(item: Any) -> Any:
                return self.deep_copied(item, memo)

            if type(value) is tuple:
                items = [again(item) for item in value]
                same = all(a is b for a, b in zip(items, value, strict=True))
                found = value if same else tuple(items)
            elif isinstance(value, slice):
                found = slice(*map(again, (value.start, value.stop, value.step)))
            elif isinstance(value, types.MethodType):
                found = types.MethodType(value.__func__, again(value.__self__))
            elif self._has_table(value):
                return self._same(value, again, memo)
            elif type(value) in ATOMS or isinstance(value, type | types.FunctionType | Enum):
                found = value
            elif isinstance(value, TracedTensor):
                found = copy.deepcopy(value)
            else:
                found = self.interpreter.calls.native(copy.deepcopy, (value,), {})
        self.interpreter.containers.set_entry(memo, id(value), found)
        return found

    def _has_table(self, value: Any) -> bool:
        """True for a container, and for an object whose state is in its attributes."""
        if isinstance(value, Ref):
            return True
        if isinstance(value, type | types.FunctionType | Enum | torch.Tensor | nn.Module | tuple):
            return False
        return self.interpreter.heap.is_own(value) or native_code.is_of_user(type(value))

    def _same(self, value: Any, part: Rule, memo: Any = None) -> Any:
        """Return an object of the same class with copies of the parts."""
        heap, attributes = self.interpreter.heap, self.interpreter.attributes
        kind = attributes.type_of(value)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"):
            if attributes.method(value, name) is not MISSING:
                fail(f"an object of a class with {name} is copied", "write __copy__")
        is_container = isinstance(value, Ref)
        made = heap.new_container(kind) if is_container else heap.new_object(kind)
        if memo is not None:
            self.interpreter.containers.set_entry(memo, id(value), made)
        if is_container:
            items = self.interpreter.containers.items(value)
            heap.set(made.table, ITEMS, self._content(items, part))
        for name in heap.names(value):
            found = heap.field(value, name)
            if found is not MISSING:
                heap.set(heap.table_of(made), name, part(found))
        return made

    def _content(self, items: Any, part: Rule) -> Any:
        if isinstance(items, dict):
            return {key: item if item is None else part(item) for key, item in items.items()}
        return tuple(map(part, items)) if isinstance(items, tuple) else operations.copied(items)


_COMPARED: dict[str, type[ast.cmpop]] = {
    "eq": ast.Eq, "ne": ast.NotEq, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE,
}  # fmt: skip

"""Methods that `dataclass` makes from a text, of which no source is found."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.frames import SuperOf
from stretto.frontends.python.interpreter.heap import MISSING

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

_ORDERS: dict[str, type[ast.cmpop]] = {
    "__eq__": ast.Eq, "__lt__": ast.Lt, "__le__": ast.LtE, "__gt__": ast.Gt, "__ge__": ast.GtE,
}  # fmt: skip


class DataclassMethods:
    """Runs the methods by what they are documented to do with the fields."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a method; NotImplemented if it is none of these. The class is that which the method
        was made for."""
        held, name = args[0], function.__name__
        kind = self._owner(function, self.interpreter.attributes.type_of(held))
        if kind is None:
            return NotImplemented
        if name == "__init__":
            return self._init(function, kind, held, args, kwargs)
        if name in _ORDERS:
            return self._compare(_ORDERS[name], kind, held, args[1])
        if name in ("__setattr__", "__delattr__"):
            return self._frozen(kind, held, name, args)
        if name == "__hash__":
            names = [x.name for x in dataclasses.fields(kind) if _is_hashed(x)]
            return self.interpreter.calls.call(hash, (self._values(held, names),), {})
        if name == "__repr__":
            return self._shown(held)
        return NotImplemented

    def _owner(self, function: Any, kind: type) -> type | None:
        for base in kind.__mro__:
            found = vars(base).get(function.__name__)
            while found is not None:
                if found is function:
                    return base if dataclasses.is_dataclass(base) else None
                found = getattr(found, "__wrapped__", None)
        return None

    def _values(self, held: Any, names: Any) -> tuple[Any, ...]:
        return tuple(self.interpreter.attributes.getattr(held, name) for name in names)

    def _init(self, function: Any, kind: type, held: Any, args: Any, kwargs: Any) -> None:
        attributes, params = self.interpreter.attributes, kind.__dataclass_params__  # type: ignore[attr-defined]
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        sets = attributes.generic_setattr if params.frozen else attributes.setattr
        passed: list[Any] = []
        for item, is_variable in _all_fields(kind):
            if item.name in given:
                value = given[item.name]
            elif item.default_factory is not dataclasses.MISSING:
                value = self.interpreter.calls.call(self.heap.adopt(item.default_factory), (), {})
            elif item.default is not dataclasses.MISSING and (
                item.init or "__slots__" in vars(kind)
            ):
                value = self.heap.adopt(item.default)
            else:
                continue
            if is_variable:
                passed.append(value)
            else:
                sets(held, item.name, value)
        after = attributes.lookup(held, "__post_init__")
        if after is not MISSING:
            self.interpreter.calls.call(after, tuple(passed), {})

    def _compare(self, op: type[ast.cmpop], kind: type, held: Any, other: Any) -> Any:
        type_of = self.interpreter.attributes.type_of
        if type_of(other) is not type_of(held):
            return NotImplemented
        names = [item.name for item in dataclasses.fields(kind) if item.compare]
        values = self._values(held, names), self._values(other, names)
        return self.interpreter.operators.compare(op, *values)

    def _frozen(self, kind: type, held: Any, method: str, args: Any) -> Any:
        names = {item.name for item in dataclasses.fields(kind)}
        attributes = self.interpreter.attributes
        if attributes.type_of(held) is kind or args[1] in names:
            verb = "assign to" if method == "__setattr__" else "delete"
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {args[1]!r}")
        following = attributes.descriptors.of_super(SuperOf(kind, held), method)
        return self.interpreter.calls.call(following, args[1:], {})

    def _shown(self, held: Any) -> Any:
        kind = self.interpreter.attributes.type_of(held)
        shown = self.interpreter.strings
        parts: list[Any] = []
        if any(held is holder for holder in shown.shown):
            return "..."
        shown.shown.append(held)
        try:
            for item in dataclasses.fields(kind):
                if item.repr:
                    value = self.interpreter.attributes.getattr(held, item.name)
                    parts += [", " if parts else "", f"{item.name}=", shown.text(value, repr)]
        finally:
            shown.shown.pop()
        found: Any = f"{kind.__qualname__}("
        for part in (*parts, ")"):
            found = self.interpreter.operators.binary("add", found, part)
        return found


def _is_hashed(item: dataclasses.Field[Any]) -> bool:
    return item.compare if item.hash is None else item.hash


def _all_fields(kind: type) -> Iterator[tuple[dataclasses.Field[Any], bool]]:
    """Yield the fields in the order in which `__init__` sets them; True for variables that only
    `__post_init__` gets."""
    for item in kind.__dataclass_fields__.values():  # type: ignore[attr-defined]
        field_type = item._field_type
        if field_type is dataclasses._FIELD:  # type: ignore[attr-defined]
            yield item, False
        elif field_type is dataclasses._FIELD_INITVAR:  # type: ignore[attr-defined]
            yield item, True

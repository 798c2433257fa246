"""Definitions inside of interpreted functions: classes, and the code of nested functions."""

from __future__ import annotations

import ast
import copy
import dataclasses
import types
from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter import native_code
from stretto.frontends.python.interpreter.frames import (
    PythonFrame,
    SuperOf,
)
from stretto.frontends.python.interpreter.heap import (
    CELL,
    MISSING,
    HeapObject,
    Ref,
)
from stretto.frontends.python.source.definitions import Mangler
from stretto.frontends.python.tracing.locations import is_user_file
from stretto.frontends.python.tracing.signals import (
    fail,
)

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class Definitions:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def make_class(self, frame: PythonFrame, node: ast.ClassDef) -> Any:
        """Make the class of a `class` statement, by a call of its metaclass."""
        interpreter = self.interpreter
        given = tuple(interpreter.expressions.items(frame, node.bases))
        keywords: dict[str, Any] = {}
        for item in node.keywords:
            value = interpreter.expressions.value(frame, item.value)
            more = {item.arg: value} if item.arg else interpreter.containers.keywords(value)
            if not keywords.keys().isdisjoint(more):
                (name,) = list(keywords.keys() & more.keys())[:1]
                raise TypeError(f"{node.name} got multiple values for keyword argument '{name}'")
            keywords |= more
        decorators = [interpreter.expressions.value(frame, d) for d in node.decorator_list]
        code = self.code_of(frame, node, node.name)
        bases = types.resolve_bases(given)
        meta = keywords.pop("metaclass", type)
        if isinstance(meta, type):
            meta = types.prepare_class(node.name, bases, {"metaclass": meta})[0]
        names: dict[str, Any] = {
            "__module__": frame.function.__globals__.get("__name__"),
            "__qualname__": code.co_qualname,
        }
        doc = ast.get_docstring(node, clean=False)
        if doc is not None:
            names["__doc__"] = doc
        if bases is not given:
            names["__orig_bases__"] = tuple(given)
        inner = PythonFrame(frame.function, code, parent=frame, names=names)
        cell = self.heap.new_cell()
        if "__class__" in code.co_cellvars:
            inner.cells["__class__"] = cell
            names["__classcell__"] = cell
        with interpreter.regions.inside_of_statement():
            interpreter.finish(interpreter.statements.block(inner, body_of_class(node)))
        made = self._called(meta, node.name, bases, names, keywords)
        if CELL not in self.heap.table_of(cell):
            self.heap.set(self.heap.table_of(cell), CELL, made)
        for decorator in reversed(decorators):
            if getattr(decorator, "__module__", "") == "dataclasses":
                made = decorator(made)
            else:
                made = interpreter.calls.call(decorator, (made,), {})
        return made

    def _called(self, meta: Any, name: str, bases: Any, names: Any, keywords: Any) -> Any:
        """Call a metaclass for the names of a class's body."""
        methods = ("__call__", "__prepare__", "__new__", "__init__")
        entry = self.interpreter.attributes.entry
        if isinstance(meta, type) and not any(_is_of_user(entry(meta, m)) for m in methods):
            return self.new_class(meta, name, bases, names, keywords)
        if _is_of_user(entry(meta, "__prepare__")):
            fail("a metaclass with __prepare__ makes a class", "define the class outside")
        space = self.heap.new(dict, dict(names))
        return self.interpreter.calls.call(meta, (name, bases, space), keywords)

    def new_class(self, meta: type, name: str, bases: Any, names: Any, keywords: Any) -> type:
        """Make a class, as `type.__new__` does, with calls of `__set_name__` and of
        `__init_subclass__` of the user."""
        attributes, call = self.interpreter.attributes, self.interpreter.calls.call
        if _is_of_user(attributes.entry(meta, "mro")):
            fail("a metaclass with the method mro makes a class", "define the class outside")
        cell = names.get("__classcell__")
        names = {key: value for key, value in names.items() if key != "__classcell__"}
        held = {key: self.heap.real(value) for key, value in names.items()}
        told = {
            key: value
            for key, value in held.items()
            if not isinstance(value, type)
            and attributes.method(value, "__set_name__") is not MISSING
            and native_code.is_of_user(attributes.type_of(value))
        }
        for value in held.values():
            default = value.default if isinstance(value, dataclasses.Field) else None
            if (
                self.heap.is_own(default)
                and attributes.method(default, "__set_name__") is not MISSING
            ):
                fail(
                    "the default of a dataclass field has a method __set_name__",
                    "define the class outside",
                )
        later = {key: held.pop(key) for key in told}
        starts = [
            base for kind in bases for base in kind.__mro__ if "__init_subclass__" in vars(base)
        ]
        start = starts[0] if starts else object
        is_of_user = _is_of_user(vars(start)["__init_subclass__"])
        given = {} if is_of_user else keywords
        kinds = (_Quiet,) if is_of_user else bases
        methods = ("__call__", "__new__", "__init__")
        if any(_is_of_user(attributes.entry(meta, method)) for method in methods):
            if any(not native_code.is_of_user(kind) for kind in meta.__mro__[:-2]):
                fail(f"the metaclass {meta.__name__} makes a class", "define the class outside")
            made = type.__new__(meta, name, kinds, held, **given)
        else:
            made = types.new_class(
                name, kinds, {"metaclass": meta, **given}, lambda space: space.update(held)
            )
        if is_of_user:
            try:
                made.__bases__ = bases
            except TypeError:
                fail(
                    f"'{name}' is derived from a class with __init_subclass__ and slots or items",
                    "define it outside",
                )
        for key, value in later.items():
            type.__setattr__(made, key, value)
        self.heap.note(self.heap.table_of(made))
        if isinstance(cell, types.CellType):
            self.heap.set(self.heap.table_of(cell), CELL, made)
        for key, value in names.items():
            if held.get(key) is not value and isinstance(value, HeapObject):
                self.heap.refs[id(held[key])] = held[key], value
        for key, value in told.items():
            call(attributes.method(value, "__set_name__"), (made, key), {})
        if is_of_user:
            call(attributes.getattr(SuperOf(made, made), "__init_subclass__"), (), keywords)
        return made

    def of_classes(self) -> dict[Any, Any]:
        """Return rules for functions that make classes and objects of them."""

        def new_type(meta: type, name: str, bases: Any, names: Ref, **keywords: Any) -> type:
            items = self.interpreter.containers.entries(names)
            if self.interpreter.frames:
                space = self.interpreter.frames[-1].function.__globals__
                items = {"__module__": space.get("__name__"), **items}
            return self.new_class(meta, name, bases, items, keywords)

        def new_tuple(kind: type, items: Any = ()) -> Any:
            return tuple.__new__(kind, self.interpreter.iteration.known(items))

        def new_number(of: type) -> Any:
            def rule(kind: type, *args: Any) -> Any:
                value = self.interpreter.calls.call(of, args, {})
                if type(value) is not of:
                    fail(
                        f"an object of class {kind.__name__} is made of a value that depends on a "
                        "tensor",
                        "keep the value in an attribute",
                    )
                return of.__new__(kind, value)

            return rule

        def new_container(kind: type, *args: Any, **kwargs: Any) -> Ref:
            return self.heap.new_container(kind)

        containers = (list, dict, set, deque, OrderedDict, defaultdict)
        return {
            type.__new__: new_type, tuple.__new__: new_tuple,
            type.__init__: lambda *args, **kwargs: None,
            **{kind.__new__: new_number(kind) for kind in (int, float, complex, str, bytes)},
            **{kind.__new__: new_container for kind in containers},
        }  # fmt: skip

    def code_of(self, frame: PythonFrame, node: Any, name: str) -> types.CodeType:
        """Return the code object of a nested definition."""
        scope = frame.code
        pending = [scope]
        line = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        found = []
        while pending:
            for item in pending.pop().co_consts:
                if isinstance(item, types.CodeType):
                    is_mangled = item.co_name.startswith("__") and name.endswith(item.co_name)
                    if item.co_firstlineno == line and (item.co_name == name or is_mangled):
                        found.append(item)
                    pending.append(item)
        if not found:
            fail(f"the code of {name} is not found", "define it in the function itself")
        if len(found) > 1 and isinstance(node, ast.Lambda):
            at = [c for c in found if _column(c) == node.body.col_offset]
            found = at or found
        return found[0]


class _Quiet:
    """Stands in for the bases of a class while it is made: no `__init_subclass__` is called."""


def _is_of_user(method: Any) -> bool:
    """True for a method that is to be interpreted."""
    function = getattr(method, "__func__", method)
    return isinstance(function, types.FunctionType) and is_user_file(function.__code__.co_filename)


def _column(code: types.CodeType) -> int | None:
    columns = [
        p[2] for p in code.co_positions() if p[2] is not None and p[0] == code.co_firstlineno
    ]
    return min([c for c in columns if c], default=None)


def body_of_class(node: ast.ClassDef) -> list[ast.stmt]:
    """Return the statements of a class's body, with its private names (`__name`) as Python
    renames them."""
    found: list[ast.stmt] | None = getattr(node, "stretto_body", None)
    if found is None:
        mangler = Mangler(node.name)
        found = [mangler.visit(copy.deepcopy(statement)) for statement in node.body]
        setattr(node, "stretto_body", found)  # noqa: B010 - a note on the node
    return found

"""Functions and classes of Python's library that are evaluated from their source in
`state.library`."""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import types
from typing import Any

from stretto.batching.frontend.builtins.table import (
    BUILTINS,
    Builtin,
    all_static,
    builtin,
    natively,
)
from stretto.batching.frontend.iteration.plans import Known, Range
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.state import library
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import (
    Closure,
    Iterator_,
    Static,
    TupleValue,
    Value,
)


def as_argument(frame: Frame, value: Value) -> Value:
    """An argument that the library's source may go through more than once."""
    if not isinstance(value, Iterator_):
        return value
    plan = plan_of(frame, value)
    return BUILTINS[list](frame, [value], {}) if plan.known is None else TupleValue(plan.known)


def from_source(
    frame: Frame, source: Any, args: list[Value], kwargs: dict[str, Value] | None = None
) -> Value:
    """A call of a function or class of `state.library`."""
    named = {name: as_argument(frame, value) for name, value in (kwargs or {}).items()}
    return apply(frame, Static(source), [as_argument(frame, value) for value in args], named)


def _function(function: Any, source: Any, is_iterator: bool) -> Builtin:
    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if all_static(args, kwargs):
            found = natively(frame, function, args, kwargs)
            if is_iterator and isinstance(found, Static):
                return Iterator_(Known([Static(item) for item in found.value]))
            return found
        found = from_source(frame, source, args, kwargs)
        return Iterator_(plan_of(frame, found)) if is_iterator else found

    return call


BUILTINS[functools.reduce] = _function(functools.reduce, library.reduce, False)
for _iterator, _source in (
    (itertools.chain, library.chain),
    (itertools.chain.from_iterable, library.chain_of),
    (itertools.accumulate, library.accumulate),
    (itertools.product, library.product),
    (itertools.pairwise, library.pairwise),
    (itertools.islice, library.islice),
    (itertools.combinations, library.pairs_of),
    (itertools.repeat, library.repeat),
):
    BUILTINS[_iterator] = _function(_iterator, _source, True)


def _class(source: type) -> Builtin:
    return lambda frame, args, kwargs: from_source(frame, source, args, kwargs)


for _python, _made in (
    (collections.deque, library.Deque),
    (collections.Counter, library.Counter),
    (set, library.Set),
):
    BUILTINS[_python] = _class(_made)


@builtin(itertools.count)
def _count(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = args[0] if args else kwargs.get("start", Static(0))
    step = args[1] if len(args) > 1 else kwargs.get("step", Static(1))
    if not all_static([step], {}):
        frame.refuse("itertools.count with a step that the instance decides")
    return Iterator_(Range(start, Static(2**62), step))


@builtin(collections.defaultdict)
def _defaultdict(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        frame.refuse("a defaultdict with content", "make it empty, and store in a loop")
    (factory,) = args
    if isinstance(factory, Closure) and not factory.node.args.args:
        factory = Static(function_of(frame, factory))
    if not isinstance(factory, Static):
        frame.refuse("a defaultdict of a function that the instance decides")
    return apply(frame, Static(_with_factory(factory.value)), [])


@functools.lru_cache(maxsize=256)
def _with_factory(factory: Any) -> type:
    held = staticmethod(factory)
    return type(
        "defaultdict", (library.DefaultDict,), {"factory": held, "__module__": library.__name__}
    )


def function_of(frame: Frame, closure: Closure) -> types.FunctionType:
    """A function that reads its parameters and global names alone, as one of Python."""
    arguments = {arg.arg for arg in ast.walk(closure.node.args) if isinstance(arg, ast.arg)}
    names = {name.id for name in ast.walk(closure.node) if isinstance(name, ast.Name)} - arguments
    if closure.defaults or closure.keyword_defaults:
        frame.refuse("a function with defaults is kept in a dict", "define it outside")
    scope = closure.scope
    while scope is not None:
        if names & (scope.local_names | set(scope.locals) | set(scope.free)):
            frame.refuse(
                "a function that reads variables around it is kept in a dict, or in a defaultdict",
                "choose between functions by a branch",
            )
        scope = scope.outer
    key = (closure.node, id(closure.scope.globals))
    made = frame.evaluation.definitions.get(key)
    if made is None:
        module = ast.fix_missing_locations(ast.Module([closure.node], []))
        space: dict[str, Any] = {}
        name = closure.node.name
        node = closure.node
        if name == "<lambda>":
            node = ast.FunctionDef("factory", node.args, node.body, [], None)
            ast.copy_location(node, closure.node)
            module = ast.fix_missing_locations(ast.Module([node], []))
        exec(compile(module, closure.scope.file, "exec"), closure.scope.globals, space)
        made = next(iter(space.values()))
        frame.evaluation.definitions[key] = made
        frame.evaluation.definitions[made.__code__] = node
    return made

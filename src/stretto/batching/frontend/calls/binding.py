"""The parameters of a call."""

from __future__ import annotations

from stretto.batching.frontend.calls.sources import Source
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import is_static, python_of
from stretto.batching.frontend.state.values import Static, TupleValue, Unbound, Value


def bind(
    frame: Frame, source: Source, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Value]:
    """The parameters of a call by name, as Python binds them."""
    spec = source.node.args
    positional = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional) and spec.vararg is None:
        frame.refuse(
            f"{source.name}() takes {len(positional)} positional arguments but {len(args)} "
            "were given"
        )
    if spec.vararg is not None:
        bound[spec.vararg.arg] = TupleValue(tuple(args[len(positional) :]))
    names = {*positional, *(arg.arg for arg in spec.kwonlyargs)}
    extra: dict[str, Value] = {}
    for name, value in kwargs.items():
        if name in bound and name in names:
            frame.refuse(f"{source.name}() got multiple values for argument '{name}'")
        if name in names:
            bound[name] = value
        elif spec.kwarg is not None:
            extra[name] = value
        else:
            frame.refuse(f"{source.name}() got an unexpected keyword argument '{name}'")
    if spec.kwarg is not None:
        if not all(map(is_static, extra.values())):
            frame.refuse(f"{source.name}() takes ** of values of the instance")
        bound[spec.kwarg.arg] = Static({name: python_of(v) for name, v in extra.items()})
    first = len(positional) - len(source.defaults)
    for name, value in zip(positional[first:], source.defaults, strict=True):
        bound.setdefault(name, value)
    for name, value in source.keyword_defaults.items():
        bound.setdefault(name, value)
    missing = [
        name for name in (*positional, *(a.arg for a in spec.kwonlyargs)) if name not in bound
    ]
    if missing:
        frame.refuse(f"{source.name}() misses the argument {missing[0]!r}")
    return {name: _as_parameter(frame, value) for name, value in bound.items()}


def _as_parameter(frame: Frame, value: Value) -> Value:
    """A list display that is handed to a function of the user becomes a list, which it may
    change."""
    if isinstance(value, TupleValue) and value.is_list:
        return frame.dynamic(value)
    if isinstance(value, Unbound):
        frame.refuse("an argument is not assigned on every way to here")
    return value

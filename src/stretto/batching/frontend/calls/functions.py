"""Calls of functions of the user."""

from __future__ import annotations

from stretto.batching.frontend.calls.activation import new_frame, run_body
from stretto.batching.frontend.calls.binding import bind
from stretto.batching.frontend.calls.recursion import call_recursive
from stretto.batching.frontend.calls.sources import Source
from stretto.batching.frontend.control.joins import merge
from stretto.batching.frontend.state.builder import Draft, scoped
from stretto.batching.frontend.state.dispatch import impossible
from stretto.batching.frontend.state.evaluation import Again
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Value

MOST_INLINED = 60
"""Calls within calls that are inlined."""


def call_function(
    frame: Frame, source: Source, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of a function of the user."""
    bound = bind(frame, source, args, kwargs)
    for value in bound.values():
        if isinstance(value, Dynamic):
            impossible(frame, value.type)
    evaluation = frame.evaluation
    if source.code in evaluation.outlined_code:
        return call_recursive(frame, source, bound)
    depth = 0
    caller: Frame | None = frame
    while caller is not None:
        if caller.code == source.code:
            evaluation.outlined_code.add(source.code)
            raise Again
        caller, depth = caller.caller, depth + 1
    if depth > MOST_INLINED:
        frame.refuse(f"calls of functions are nested more than {MOST_INLINED} levels deep")
    return _inline(frame, source, bound)


def _inline(frame: Frame, source: Source, bound: dict[str, Value]) -> Value:
    inner = new_frame(frame, source, bound, (*frame.path, frame.site()))
    label = inner.return_label = frame.builder.label()
    draft: Draft = []
    with frame.builder.into(draft):
        run_body(inner, source.node)
    frame.builder.pend(lambda body: scoped(label, body), draft)
    value = merge(inner, inner.returns)
    assert value is not None
    return value

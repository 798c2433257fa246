"""`torch.cond` and `torch.while_loop` as branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()) -> Any:
    from stretto.capture.branches import stage_ifexp
    from stretto.capture.calls import traced_call

    given = tuple(operands)
    return stage_ifexp(
        pred,
        lambda: traced_call(true_fn, given, {}),
        lambda: traced_call(false_fn, given, {}),
    )


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any = ()) -> Any:
    from stretto.capture.calls import traced_call
    from stretto.capture.frames import Frame
    from stretto.capture.loops import stage_while
    from stretto.capture.tracer import tracer

    values = tuple(carried_inputs)
    extra = tuple(additional_inputs)

    def test() -> Any:
        return traced_call(cond_fn, (*values, *extra), {})

    def body() -> None:
        nonlocal values
        made = traced_call(body_fn, (*values, *extra), {})
        values = tuple(made) if isinstance(made, tuple | list) else (made,)

    frame = Frame.of("while_loop", lambda: values)
    tracer().frames.append(frame)
    try:
        stage_while(frame, test, body, ("values",))
    finally:
        tracer().frames.pop()
    return values

"""`torch.cond` and `torch.while_loop` as branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.capture.branches import stage_ifexp
from stretto.capture.frames import Frame
from stretto.capture.loops import stage_while
from stretto.capture.tensor import Hooks
from stretto.capture.tracer import tracer


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()) -> Any:
    given = tuple(operands)
    return stage_ifexp(
        pred, lambda: Hooks.call(true_fn, *given), lambda: Hooks.call(false_fn, *given)
    )


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any = ()) -> Any:
    values = tuple(carried_inputs)
    extra = tuple(additional_inputs)

    def test() -> Any:
        return Hooks.call(cond_fn, *values, *extra)

    def body() -> None:
        nonlocal values
        made = Hooks.call(body_fn, *values, *extra)
        values = tuple(made) if isinstance(made, tuple | list) else (made,)

    frame = Frame.of("while_loop", lambda: values)
    tracer().frames.append(frame)
    try:
        stage_while(frame, test, body, ("values",))
    finally:
        tracer().frames.remove(frame)
    return values

"""`torch.cond`, `torch.while_loop` and `map` as branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.frontends.python.control.branches import stage_ifexp
from stretto.frontends.python.control.loops import stage_while
from stretto.frontends.python.tracing.frames import CallFrame
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.tracing.tracer import tracer


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

    frame = CallFrame.of("while_loop", lambda: values)
    tracer().frames.append(frame)
    try:
        stage_while(frame, test, body, ("values",))
    finally:
        tracer().frames.remove(frame)
    return values


def map_rows(f: Any, xs: Any, *args: Any) -> Any:
    """`f` of each row of tensors, the results stacked. The rows are unrolled."""
    tensors, spec = pytree.tree_flatten(xs)
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise RuntimeError(f"Mapped xs can only consist of tensors. Got xs {tensors}.")
    sizes = {tensor.shape[0] for tensor in tensors}
    if sizes == {0}:
        raise RuntimeError("Leading dimensions of mapped xs cannot be 0.")
    if len(sizes) > 1:
        shapes = [tensor.shape for tensor in tensors]
        raise RuntimeError(
            f"Leading dimensions of mapped xs must be consistent. Got shapes {shapes}."
        )
    rows = [
        Hooks.call(f, pytree.tree_unflatten([tensor[row] for tensor in tensors], spec), *args)
        for row in range(sizes.pop())
    ]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *rows)

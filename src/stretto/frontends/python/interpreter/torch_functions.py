"""Functions of torch that call functions: they are interpreted from the sources below."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import noop_context_fn

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any = ()) -> Any:
    values = tuple(carried_inputs)
    while cond_fn(*values, *additional_inputs):
        made = body_fn(*values, *additional_inputs)
        values = tuple(made) if isinstance(made, tuple | list) else (made,)
    # torch clones the inputs if no iteration runs, and refuses a body that returns its inputs
    return tuple([x.clone() if isinstance(x, torch.Tensor) else x for x in values])


def checkpoint(
    function: Any, *args: Any, use_reentrant: Any = None, context_fn: Any = noop_context_fn,
    determinism_check: str = "default", debug: bool = False, early_stop: bool = True,
    preserve_rng_state: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    if context_fn is noop_context_fn:
        return function(*args, **kwargs)
    forward, _ = context_fn()
    with forward:
        return function(*args, **kwargs)


_SOURCES: dict[str, Any] = {"cond": cond, "while_loop": while_loop}


def torch_rules(interpreter: PythonInterpreter) -> dict[Any, Callable[..., Any]]:
    """Return rules that interpret these sources."""

    def rule(source: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: interpreter.recursion.run(source, args, kwargs)

    found = {getattr(torch, name): rule(source) for name, source in _SOURCES.items()}
    found[torch_checkpoint] = rule(checkpoint)
    for name, source in _SOURCES.items():
        operator = getattr(torch.ops.higher_order, name, None)
        if operator is not None:
            found[operator] = rule(source)
    return found

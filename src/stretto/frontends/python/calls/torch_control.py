"""torch's operators with functions as operands: `cond`, `while_loop`, `map` and `scan`.

They become branches and loops. The functions named after them are for programs that call the
public functions of torch; the others take what torch's graphs have in their place, where trees of
tensors are flat.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._higher_order_ops.scan import scan as torch_scan
from torch.utils import _pytree as pytree

from stretto.frontends.python.calls import recursion
from stretto.frontends.python.control.branches import stage_ifexp
from stretto.frontends.python.control.loops import stage_while
from stretto.frontends.python.source.rewrite import rewritten
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
        stage_while(frame, test, body, ("values",), (_code_of(cond_fn), _code_of(body_fn)))
    finally:
        tracer().frames.remove(frame)
    # torch clones what came in where no round runs, and refuses a body that returns it
    return pytree.tree_map_only(torch.Tensor, torch.clone, values)


def _code_of(function: Any) -> Hashable:
    """What tells a function from others also where it is made anew in each round of a loop."""
    if isinstance(function, partial):
        return _code_of(function.func)
    if isinstance(function, torch.nn.Module):
        function = function.forward
    own = getattr(function, "__code__", None)
    return own if own is not None else getattr(type(function).__call__, "__code__", None)


def map_rows(f: Any, xs: Any, *args: Any) -> Any:
    """`f` of each row of tensors, the results stacked."""
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
    made_spec: list[Any] = []

    def step(*row: Any) -> Any:
        made = Hooks.call(f, pytree.tree_unflatten(row, spec), *args)
        flat, *made_spec[:] = pytree.tree_flatten(made)
        return (), tuple(flat)

    _, stacked = _over_rows(step, (), tuple(tensors))
    return pytree.tree_unflatten(stacked, made_spec[0])


def map_flat(f: Any, xs: Sequence[Any], args: Sequence[Any] = ()) -> Any:
    """The operator that `map` is in a graph."""

    def step(*row: Any) -> Any:
        return (), tuple(Hooks.call(f, *row, *args))

    return _over_rows(step, (), tuple(xs))[1]


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """`combine_fn` of a carried tree and each row of the tensors in `xs`, in order."""
    carried, carried_spec = pytree.tree_flatten(init)
    tensors, spec = pytree.tree_flatten(xs)
    if not tensors:
        return init, []
    dim = dim % tensors[0].dim()
    rows = [torch.movedim(tensor, dim, 0) for tensor in tensors]
    if any(tensor.shape[0] == 0 for tensor in rows):
        raise RuntimeError(
            "All xs leaves must at least have 'dim' number of dimensions and scan dimension > 0"
        )
    made_spec: list[Any] = []

    def step(*values: Any) -> Any:
        state = pytree.tree_unflatten(values[: len(carried)], carried_spec)
        row = pytree.tree_unflatten(values[len(carried) :], spec)
        state, made = Hooks.call(combine_fn, state, row)
        flat, *made_spec[:] = pytree.tree_flatten(made)
        return tuple(pytree.tree_leaves(state)), tuple(flat)

    rows = [torch.flip(row, [0]) for row in rows] if reverse else rows
    state, stacked = _over_rows(step, tuple(carried), tuple(rows))
    stacked = tuple(torch.flip(item, [0]) for item in stacked) if reverse else stacked
    if dim != 0 and _scan_moves_back():
        stacked = (torch.movedim(x, 0, dim) if dim < x.dim() else x for x in stacked)
    return (
        pytree.tree_unflatten(state, carried_spec),
        pytree.tree_unflatten(stacked, made_spec[0]),
    )


@cache
def _scan_moves_back() -> bool:
    """Whether this version of torch puts the results of a scan along `dim`; older ones put them
    along the first dim."""
    return inspect.getsource(torch_scan).count("movedim") > 1


def scan_flat(
    combine_fn: Any, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Any:
    """The operator that `scan` is in a graph."""
    carried, extra = tuple(init), tuple(additional_inputs)

    def step(*values: Any) -> Any:
        made = tuple(Hooks.call(combine_fn, *values, *extra))
        return made[: len(carried)], made[len(carried) :]

    state, stacked = _over_rows(step, carried, tuple(xs))
    return (*state, *stacked)


Step = Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
"""From the carried values and a row of each tensor to the next carried values and a row of each
result."""


def _over_rows(
    step: Step, carried: tuple[Any, ...], tensors: tuple[torch.Tensor, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The carried values after the last row, and the results stacked."""
    with tracer().transaction() as take_back:
        _, made = step(*carried, *(tensor[0] for tensor in tensors))
        count = len(made)
        take_back()
    arguments = (step, carried, tensors, [[] for _ in range(count)])
    return recursion.call_user(_loop, rewritten(_loop), arguments, {})


def _loop(step: Any, carried: Any, tensors: Any, results: Any) -> Any:
    """This is traced like a function of the user, so its loop is one of the program."""
    for row in range(len(tensors[0])):
        carried, made = step(*carried, *[tensor[row] for tensor in tensors])
        for number in range(len(results)):
            results[number].append(made[number])
    return carried, tuple([torch.stack(result) for result in results])


def _inner(position: int) -> Callable[..., Any]:
    """An operator that only calls the function at this position, with what follows it."""
    return lambda *args, **kwargs: Hooks.call(args[position], *args[position + 1 :])


def _under_grad_mode(enabled: bool, function: Any, *args: Any) -> Any:
    with torch.set_grad_enabled(enabled):
        return Hooks.call(function, *args)


def _under_autocast(
    device: str, dtype: Any, enabled: bool, cache: Any, function: Any, *args: Any
) -> Any:
    with torch.autocast(device, dtype, enabled, cache):
        return Hooks.call(function, *args)


def _invoke_subgraph(function: Any, name: Any, *args: Any) -> Any:
    return Hooks.call(function, *args)


_RULES: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "while_loop": while_loop,
    "map_impl": map_flat,
    "scan": scan_flat,
    "invoke_subgraph": _invoke_subgraph,
    "tag_activation_checkpoint": _inner(0),
    "wrap": _inner(0),
    "wrap_activation_checkpoint": _inner(0),
    "wrap_with_autocast": _under_autocast,
    "wrap_with_set_grad_enabled": _under_grad_mode,
}
"""What graphs have in place of the functions, and around a part of a graph."""

OPERATORS: dict[Any, Callable[..., Any]] = {
    found: rule
    for name, rule in _RULES.items()
    if (found := getattr(torch.ops.higher_order, name, None)) is not None
}
"""Those of `_RULES` that this version of torch has."""

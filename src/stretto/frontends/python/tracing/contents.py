"""The one way to what a tensor holds while a function is captured.

Python code asks for it by `item`, `tolist`, `numpy` and the like. A tensor of outside that the
program does not write is read as it is, and guards check from then on that it still holds that. One
that the program writes is *updated*: it is a traced tensor from the start of the capture, so that
each read is one of its state at that point of the program. Where Python cannot continue without a
number, or needs an array, what a tensor holds at that point is evaluated, if it follows from
tensors of outside alone. All else is an error.
"""

from __future__ import annotations

import torch

from stretto.frontends.python.tracing.evaluate import evaluated_by_reading
from stretto.frontends.python.tracing.signals import Replan, abort
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, tracer


def content(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """A tensor with what `tensor` holds at this point of the program. kind: what Python needs, for
    the error where it is not known."""
    found = known_content(tensor)
    if found is None:
        raise abort(
            f"a {kind} is needed here, but the value is that of a traced tensor",
            "use torch operators on it, compute it outside of the compiled function and pass it "
            "in, or compile with fallback=True",
        )
    return found


def known_content(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same; None where inputs or the run decide it. It must not be changed."""
    state = tracer()
    if not isinstance(tensor, TracedTensor):
        tensor = readable(tensor)
    if not isinstance(tensor, TracedTensor):
        return tensor
    return evaluated_by_reading(state.read(tensor))


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of outside itself where native code may read it, which guards then watch; a traced
    one where the program has its state."""
    state = tracer()
    if _is_followed(state, tensor):
        return state.promote(tensor)
    state.read_as_found[id(tensor)] = state.read_values[id(tensor)] = tensor
    return tensor


def _is_followed(state: Tracer, tensor: torch.Tensor) -> bool:
    """True if the program has the state of a tensor of outside. Raises Replan where it should have
    been traced from the start."""
    if id(tensor) in state.inputs or id(tensor) in state.updated:
        return True
    constant = state.constants.get(id(tensor))
    if constant is not None and constant.key in state.written_keys:
        state.read_as_found[id(tensor)] = tensor
        raise Replan
    return False


def newly_updated(state: Tracer) -> dict[int, torch.Tensor]:
    """The tensors that were read as they were found, and are written by the program."""
    return {
        key: tensor
        for key, tensor in state.read_as_found.items()
        if key in state.constants and state.constants[key].key in state.written_keys
    }

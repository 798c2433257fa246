"""Writes through views to elements that another operand reads, as in `x[1:].add_(x[:-1])`.

A kernel reads and writes element by element, so the result depends on its order. The pure form of
an operator has no such order. Eager PyTorch refuses most of these calls, and is asked whether it
does. Where it does not look that closely, and its order shows, the call is a CaptureError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from stretto.capture.eager import OF_OPERATORS, tensors_of
from stretto.capture.signals import fail
from stretto.capture.tensor import Storage, TracedTensor
from stretto.capture.tracer import Tracer, tracer

MOST = 1 << 26
"""Elements of a memory up to which eager is asked."""

_MESSAGE = "refer to a single memory location", "refers to a single memory location"


def check_overlap(func: Any, args: Any, kwargs: Any, targets: Sequence[Any]) -> None:
    """Raises where `func` writes to `targets`, and another operand, or another element of a target,
    is in part in the same memory. Views at positions known at run time are not looked at."""
    state = tracer()
    given = tensors_of((args, kwargs))
    traced = {id(item): _traced(state, item) for item in given}
    if not any(_may_overlap(traced[id(target)], traced.values()) for target in targets):
        return
    with state.native():
        _ask(func, args, kwargs, targets, traced)


def _ask(func: Any, args: Any, kwargs: Any, targets: Sequence[Any], traced: Any) -> None:
    """Makes the call on real tensors that share memory as the traced ones do."""
    made = _real_tensors(traced, distinct=False)
    if made is None:
        return
    try:
        _call(func, args, kwargs, made)
    except OF_OPERATORS as error:
        if any(text in str(error) for text in _MESSAGE):
            raise error.with_traceback(None) from None
    for target in targets:
        if any(_share(made[id(target)], other) for other in made.values()):
            if not _is_as_pure(func, args, kwargs, targets, traced):
                fail(
                    f"{func} writes elements that it reads at another place; the result depends "
                    "on the order in which eager PyTorch goes through them",
                    "call clone() on the tensor that is read",
                )
            return


def _is_as_pure(func: Any, args: Any, kwargs: Any, targets: Sequence[Any], traced: Any) -> bool:
    """Whether the call gives what it gives where the operands that are read are copies."""
    one, other = (_real_tensors(traced, distinct=True) for _ in range(2))
    assert one is not None and other is not None
    written = {id(target) for target in targets}
    copied = {name: item if name in written else item.clone() for name, item in other.items()}
    try:
        _call(func, args, kwargs, one)
        _call(func, args, kwargs, copied)
    except OF_OPERATORS:
        return True
    return all(torch.allclose(one[name], copied[name], equal_nan=True) for name in written)


def _call(func: Any, args: Any, kwargs: Any, made: dict[int, torch.Tensor]) -> None:
    def replaced(item: Any) -> Any:
        return made[id(item)] if isinstance(item, torch.Tensor) else item

    func(*tree_map(replaced, args), **tree_map(replaced, kwargs))


def _share(target: Any, operand: Any) -> bool:
    """Whether one element belongs to both at different positions, as tensors of positions."""
    if target.data_ptr() == operand.data_ptr() and target.stride() == operand.stride():
        return False
    memory = target.untyped_storage()
    if memory.data_ptr() != operand.untyped_storage().data_ptr() or operand.dim() > target.dim():
        return False
    places = torch.arange(memory.nbytes() // target.element_size())
    try:
        read = _view_of(places, operand).expand(target.shape).flatten()
    except RuntimeError:  # not an operator that goes through both element by element
        return False
    written = _view_of(places, target).flatten()
    last = torch.full_like(places, -1)
    last[written] = torch.arange(len(written))
    at = last[read]
    return bool(((at >= 0) & (at != torch.arange(len(read)))).any())


def _view_of(places: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return places.as_strided(like.shape, like.stride(), like.storage_offset())


def _traced(state: Tracer, item: torch.Tensor) -> TracedTensor:
    return item if isinstance(item, TracedTensor) else state.promote(item)


def _may_overlap(target: TracedTensor, operands: Any) -> bool:
    """Whether it is worth asking: mostly an operator reads other memory, or the same elements."""
    fake = target.fake
    if any(stride == 0 for stride in fake.stride()):
        return True
    others = [other for other in operands if other.memory is target.memory]
    return any(other.steps != target.steps for other in others)


def _real_tensors(
    traced: dict[int, TracedTensor], *, distinct: bool
) -> dict[int, torch.Tensor] | None:
    """Of zeros, or of numbers that differ. None where the place of the elements is not known, or
    there are very many."""
    memories: dict[tuple[Storage, torch.dtype], torch.Tensor] = {}
    made: dict[int, torch.Tensor] = {}
    for name, item in traced.items():
        fake = item.fake
        symbolic = any(isinstance(size, torch.SymInt) for size in fake.shape)
        if symbolic or any(step.values for step in item.steps):
            return None
        elements = fake.untyped_storage().nbytes() // fake.element_size()
        if elements > MOST:
            return None
        if (item.memory, fake.dtype) not in memories:
            numbers = torch.arange(elements) * 40503 % 97 if distinct else torch.zeros(elements)
            memories[item.memory, fake.dtype] = numbers.to(fake.dtype)
        memory = memories[item.memory, fake.dtype]
        made[name] = memory.as_strided(fake.shape, fake.stride(), fake.storage_offset())
    return made

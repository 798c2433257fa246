"""Methods of tensors."""

from __future__ import annotations

import torch

from stretto.batching.frontend.data.attributes import attribute
from stretto.batching.frontend.data.lists import append, item_type, new_list
from stretto.batching.frontend.data.numbers import read_number
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.iteration.walks import iterate
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant
from stretto.batching.frontend.state.values import Composed, Dynamic, Static, TupleValue, Value
from stretto.batching.frontend.tensors.operators import call_torch, getitem
from stretto.batching.types import ListType, RowsType, TensorType
from stretto.eager import Trained


def _is_harmless(name: str) -> bool:
    """Returns True if a method of this name gives the tensor itself. Raises Trained for one that
    makes it require grad."""
    if name == "requires_grad_":
        raise Trained(None)
    return name in ("contiguous", "detach", "cpu")


def tensor_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    kind = owner.type
    assert isinstance(kind, TensorType)
    if _is_harmless(name):
        return owner
    match name:
        case "item":
            return read_number(frame, owner, object)
        case "size":
            shape = torch.Size(kind.shape)
            return Static(shape[constant(args[0])] if args else shape)
        case "dim" | "ndimension":
            return Static(len(kind.shape))
        case "numel" | "nelement":
            return Static(torch.Size(kind.shape).numel())
        case "tolist":
            return _tolist(frame, owner, kind)
        case "is_floating_point":
            return Static(kind.dtype.is_float)
        case "__len__":
            return Static(kind.shape[0])
        case _ if name.endswith("_") and not name.endswith("__"):
            return frame.refuse(
                f"{name} changes a tensor in place", f"use {name[:-1]}, which returns a new tensor"
            )
        case _:
            return call_torch(frame, getattr(torch.Tensor, name), [owner, *args], kwargs)


def composed_method(
    frame: Frame, name: str, owner: Composed, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A method of a tensor that is no data of the program."""
    if _is_harmless(name):
        return owner
    if name in ("dim", "ndimension"):
        return Static(owner.dims)
    is_in_place = name.endswith("_") and not name.endswith("__")
    if is_in_place or name in ("item", "size", "numel", "nelement", "tolist", "__len__", "unbind"):
        frame.refuse(owner.refusal.message, owner.refusal.remedy)
    return call_torch(frame, getattr(torch.Tensor, name), [owner, *args], kwargs)


def _tolist(frame: Frame, owner: Dynamic, kind: TensorType) -> Value:
    """The numbers of a small tensor, each read for itself."""
    shape = list(kind.shape)
    if not shape:
        return read_number(frame, owner, object)
    if len(shape) > 1 or shape[0] > 64:
        frame.refuse("tolist of a tensor that is no short vector")

    parts = [getitem(frame, owner, Static(i)) for i in range(shape[0])]
    numbers = tuple(read_number(frame, part, object) for part in parts)
    return new_list(frame, frame.evaluation.cell(frame.site("tolist")), numbers)


def rows_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    match name:
        case "size":
            shape = attribute(frame, owner, "shape")
            assert isinstance(shape, TupleValue)
            return shape.items[constant(args[0])] if args else shape
        case "unbind" if not args or constant(args[0]) == 0:
            cell = frame.evaluation.cell(frame.site("unbind"))
            frame.evaluation.grow(cell, item_type(frame, owner.type))
            return frame.assign(
                "to_list", ListType(cell, is_tuple=True), owner.operand, detail=True
            )
        case "dim" | "ndimension":
            assert isinstance(owner.type, RowsType)
            return Static(len(owner.type.row.shape) + 1)
        case "tolist":
            made = new_list(frame, frame.evaluation.cell(frame.site("tolist")), ())
            iterate(frame, plan_of(frame, owner), lambda x: append(frame, made, _item_of(frame, x)))
            return made
        case _ if _is_harmless(name):
            return owner
        case _:
            return call_torch(frame, getattr(torch.Tensor, name), [owner, *args], kwargs)


def _item_of(frame: Frame, value: Value) -> Value:
    given = frame.dynamic(value)
    if isinstance(given.type, TensorType) and given.type.shape:
        frame.refuse("tolist of a tensor of more than one dim")
    return read_number(frame, given, object)

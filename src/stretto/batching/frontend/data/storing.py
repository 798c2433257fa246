"""Items that are assigned and deleted."""

from __future__ import annotations

from stretto.batching.frontend.control.joins import stop_outside
from stretto.batching.frontend.data.special import by_method
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant, is_int
from stretto.batching.frontend.state.values import Dynamic, SliceValue, Value
from stretto.batching.frontend.tensors.operands import is_tensor_like
from stretto.batching.types import DictType, ListType, RecordType, Scalar, alternatives


def set_item(frame: Frame, owner: Value, index: Value, value: Value) -> None:
    """owner[index] = value"""
    if not isinstance(owner, Dynamic):
        frame.refuse("an item of something that all instances share is assigned")
    kinds = list(alternatives(owner.type))
    if len(kinds) == 1 and by_method(frame, owner, "__setitem__", index, value) is not None:
        return
    given = frame.dynamic(value)
    if all(isinstance(kind, ListType) and not kind.is_tuple for kind in kinds):
        if isinstance(index, SliceValue) or isinstance(constant(index), slice):
            frame.refuse("a slice of a list is assigned", "make a new list with +")
        position = frame.expect(index, (Scalar.INT,), "list indices must be integers")
        for kind in kinds:
            assert isinstance(kind, ListType)
            frame.evaluation.grow(kind.cell, given.type)
        frame.do("put", owner.operand, position.operand, given.operand)
    elif all(isinstance(kind, DictType) for kind in kinds):
        for kind in kinds:
            assert isinstance(kind, DictType)
            frame.evaluation.grow(kind.cell, given.type)
            _check_key(frame, kind, index)
        frame.do("store", owner.operand, frame.operand(index), given.operand)
    elif all(
        isinstance(kind, RecordType) and frame.evaluation.info(kind).kind == "dict"
        for kind in kinds
    ):
        key = constant(index)
        for kind in kinds:
            assert isinstance(kind, RecordType)
            cell = frame.evaluation.field_cell(kind, key) if isinstance(key, str) else None
            if cell is None:
                frame.refuse("a key is added to a dict with fixed keys")
            frame.evaluation.grow(cell, given.type)
        frame.do("set", owner.operand, given.operand, detail=key)
    else:
        frame.refuse(
            f"an item of {frame.show(owner.type)} is assigned",
            "make a new tensor, with torch.cat, torch.stack or torch.where"
            if is_tensor_like(owner)
            else None,
        )


def delete_item(frame: Frame, owner: Value, index: Value) -> None:
    """del owner[index]"""
    kind = owner.type if isinstance(owner, Dynamic) else None
    if isinstance(owner, Dynamic) and by_method(frame, owner, "__delitem__", index) is not None:
        return
    if isinstance(owner, Dynamic) and isinstance(kind, DictType):
        frame.do("remove", owner.operand, frame.operand(index))
        return
    if not isinstance(owner, Dynamic) or not isinstance(kind, ListType) or kind.is_tuple:
        frame.refuse("del of an item of something else than a list or a dict of the instance")
    if isinstance(index, SliceValue) or not is_int(index):
        frame.refuse("del of a slice", "make a new list of the items that stay")
    position = frame.operand(index)
    length = frame.assign("len", Scalar.INT, owner.operand).operand
    stop_outside(frame, position, length, IndexError, "list assignment index out of range")
    frame.do("pop", owner.operand, position)


def _check_key(frame: Frame, kind: DictType, key: Value) -> None:
    """Notes the type of the keys of a dict."""
    type_ = frame.dynamic(key).type
    if type_ not in (Scalar.INT, Scalar.STR, Scalar.BOOL):
        frame.refuse(f"a key of a dict is {frame.show(type_)}", "use an int or a string as key")
    assert isinstance(type_, Scalar)
    frame.evaluation.has_keys(kind.cell, type_)

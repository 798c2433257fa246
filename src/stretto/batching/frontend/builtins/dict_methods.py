"""Methods of dicts."""

from __future__ import annotations

from stretto.batching.frontend.arithmetic.comparisons import contains
from stretto.batching.frontend.control.joins import branch
from stretto.batching.frontend.data.items import field_by_key, subscript
from stretto.batching.frontend.data.storing import set_item
from stretto.batching.frontend.iteration.plans import Known, Mapped
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.state.dispatch import impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant
from stretto.batching.frontend.state.values import (
    NONE,
    Dynamic,
    Iterator_,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.types import DictType, ListType, RecordType, union


def dict_method(frame: Frame, name: str, owner: Dynamic, args: list[Value]) -> Value:
    kind = owner.type
    assert isinstance(kind, DictType)
    type_ = frame.evaluation.cells[kind.cell]
    match name:
        case "get":
            default = frame.dynamic(args[1] if len(args) > 1 else NONE)
            made = union((type_, default.type))
            key = frame.operand(args[0])
            return frame.assign("lookup_or", made, owner.operand, key, default.operand)
        case "setdefault":
            return _set_default(frame, owner, args[0], args[1] if len(args) > 1 else NONE)
        case "pop" if len(args) == 1:
            found = frame.assign("remove", type_, owner.operand, frame.operand(args[0]))
            impossible(frame, type_)
            return found
        case "keys" | "values":
            cell = frame.evaluation.cell(frame.site(name))
            frame.evaluation.grow(cell, kind.key if name == "keys" else type_)
            return frame.assign(name, ListType(cell), owner.operand)
        case "items":
            return _dict_items(frame, owner, kind)
        case "clear":
            frame.do("clear", owner.operand)
            return NONE
        case _:
            return frame.refuse(f"the method {name} of a dict")


def _set_default(frame: Frame, owner: Dynamic, key: Value, default: Value) -> Value:
    given = frame.dynamic(default)
    there = contains(frame, owner, key)

    def store() -> None:
        set_item(frame, owner, key, given)

    branch(frame, frame.operand(there), (lambda: None, store))
    return subscript(frame, owner, key)


def _dict_items(frame: Frame, owner: Dynamic, kind: DictType) -> Value:

    cell = frame.evaluation.cell(frame.site("keys"))
    frame.evaluation.grow(cell, kind.key)
    keys = frame.assign("keys", ListType(cell), owner.operand)
    type_ = frame.evaluation.cells[kind.cell]

    def pair(inner: Frame, key: Value) -> Value:
        value = inner.assign("lookup", type_, owner.operand, inner.operand(key))
        return TupleValue((key, value))

    return Iterator_(Mapped(plan_of(frame, keys), pair))


def fixed_dict_method(
    frame: Frame, name: str, owner: Dynamic, kind: RecordType, args: list[Value]
) -> Value:
    info = frame.evaluation.info(kind)
    if info.kind != "dict":
        return frame.refuse(f"the method {name} of a {info.python.__name__}")

    def value(field: str) -> Value:
        return subscript(frame, owner, Static(field))

    match name:
        case "get":
            key = constant(args[0])
            default = args[1] if len(args) > 1 else NONE
            if key is ...:
                given = frame.dynamic(args[0])
                return field_by_key(frame, owner, kind, given, lambda: default)
            if key in info.fields:
                return value(key)
            return default
        case "keys":
            return TupleValue(tuple(map(Static, info.fields)), is_list=True)
        case "values":
            return Iterator_(Known([value(field) for field in info.fields]))
        case "items":
            pairs = [TupleValue((Static(field), value(field))) for field in info.fields]
            return Iterator_(Known(pairs))
        case _:
            return frame.refuse(f"the method {name} of a dict with fixed keys")

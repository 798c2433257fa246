"""Values that may have one of several types: what is done for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.batching.frontend.dispatch import impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.joins import branch
from stretto.batching.frontend.values import Dynamic, Value
from stretto.batching.types import Scalar, TupleType, Type, alternatives, union


def switch(
    frame: Frame,
    value: Dynamic,
    groups: Sequence[Sequence[Type]],
    handler: Callable[[Dynamic], Value],
) -> Value:
    """What `handler` makes of a value, evaluated for each group of types that it may have."""
    first, *rest = groups
    if not rest:
        return handler(frame.cast(value, union(first)))
    test = frame.assign("has_type", Scalar.BOOL, value.operand, detail=tuple(first))
    found = branch(
        frame,
        test.operand,
        (
            lambda: handler(frame.cast(value, union(first))),
            lambda: switch(frame, value, rest, handler),
        ),
    )
    assert found is not None
    return found


def each_type(frame: Frame, value: Value, handler: Callable[[Dynamic], Value]) -> Value:
    """What `handler` makes of a value of one type; evaluated for each that the value may have."""
    given = frame.dynamic(value)
    impossible(frame, given.type)
    kinds = sorted(alternatives(given.type), key=str)
    return switch(frame, given, [[kind] for kind in kinds], handler)


def unpacked(frame: Frame, value: Dynamic, type_: TupleType) -> tuple[Dynamic, ...]:
    """The items of a tuple of known length, in variables of their own."""
    return tuple(
        frame.assign("item", item, value.operand, detail=position)
        for position, item in enumerate(type_.items)
    )

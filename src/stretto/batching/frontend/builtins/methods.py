"""Methods of values of Python's own classes, and of tensors."""

from __future__ import annotations

from stretto.batching.frontend.builtins.dict_methods import dict_method, fixed_dict_method
from stretto.batching.frontend.builtins.list_methods import list_method, tuple_method
from stretto.batching.frontend.builtins.tensor_methods import (
    composed_method,
    rows_method,
    tensor_method,
)
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import is_static, python_of
from stretto.batching.frontend.state.values import Composed, Dynamic, Static, TupleValue, Value
from stretto.batching.frontend.tensors.purity import call_static
from stretto.batching.types import DictType, ListType, RecordType, RowsType, TensorType


def call_method(
    frame: Frame, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A method of a value of Python's own classes, or of a tensor."""
    match owner:
        case Dynamic(_, ListType()):
            return list_method(frame, name, owner, args, kwargs)
        case Dynamic(_, DictType()):
            return dict_method(frame, name, owner, args)
        case Dynamic(_, RecordType() as kind):
            return fixed_dict_method(frame, name, owner, kind, args)
        case Dynamic(_, TensorType()):
            return tensor_method(frame, name, owner, args, kwargs)
        case Dynamic(_, RowsType()):
            return rows_method(frame, name, owner, args, kwargs)
        case Composed():
            return composed_method(frame, name, owner, args, kwargs)
        case TupleValue(_, is_list=True):
            return frame.refuse(
                f"the method {name} of a list of functions", "append to it where it is made only"
            )
        case TupleValue(items):
            return tuple_method(frame, name, items, args)
        case Static(item) if all(map(is_static, args)):
            return call_static(frame, getattr(item, name), [python_of(a) for a in args], {})
        case _:
            return frame.refuse(f"the method {name} of {frame.show(frame.type_of(owner))}")

"""Python values as JSON. A value is itself where JSON has it, else an object with one entry, whose
name says what it is."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stretto.errors import LoadError, SaveError
from stretto.frontends.python.results.output import (
    CollectionOf,
    Container,
    DictOf,
    RecordOf,
    SubclassOf,
    TupleOf,
)

Json = Any


def value_to_json(value: Any, what: str) -> Json:
    """A value that is no container. `what` names it in the error. Raises SaveError for one of
    another class than those that a file can hold."""
    match value:
        case None | bool() | int() | str() if type(value) in (type(None), bool, int, str):
            return value
        case float() if type(value) is float:
            return {"float": value.hex()}
        case complex():
            return {"complex": [value.real.hex(), value.imag.hex()]}
        case slice():
            return {
                "slice": [value_to_json(x, what) for x in (value.start, value.stop, value.step)]
            }
        case range():
            return {"range": [value.start, value.stop, value.step]}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": str(value)}
        case torch.Size():
            return {"size": list(value)}
        case tuple() if type(value) is tuple:
            return {"values": [value_to_json(item, what) for item in value]}
        case _:
            kind = type(value)
            raise SaveError(
                f"{what} is of class {class_name(kind)}, which a file cannot hold",
                remedy="use tensors, numbers, strings, None, and tuples, lists and dicts of these",
            )


def value_from_json(found: Json) -> Any:
    """The inverse of `value_to_json`."""
    match found:
        case None | bool() | int() | str():
            return found
        case {"float": str(text)}:
            return float.fromhex(text)
        case {"complex": [str(real), str(imaginary)]}:
            return complex(float.fromhex(real), float.fromhex(imaginary))
        case {"slice": [start, stop, step]}:
            return slice(*map(value_from_json, (start, stop, step)))
        case {"range": [int(start), int(stop), int(step)]}:
            return range(start, stop, step)
        case {"dtype": str(name)}:
            return dtype_named(name)
        case {"device": str(name)}:
            return torch.device(name)
        case {"values": list(items)}:
            return tuple(map(value_from_json, items))
        case {"size": list(sizes)}:
            return torch.Size(integers(sizes))
        case _:
            raise LoadError(f"{_short(found)} is no value")


def dtype_named(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise LoadError(f"{name!r} is no dtype")
    return found


def integers(found: Json) -> list[int]:
    """A list of JSON that has ints only."""
    if not isinstance(found, list) or any(type(item) is not int for item in found):
        raise LoadError(f"{_short(found)} is no list of ints")
    return found  # pyright: ignore[reportUnknownVariableType]


def nested_tuples(found: Json) -> Any:
    """Lists, as tuples were written, as tuples again."""
    return tuple(map(nested_tuples, found)) if isinstance(found, list) else found  # pyright: ignore[reportUnknownArgumentType]


def _short(found: Json) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- containers ------------------------------------------------------------------------------
_PLAIN: dict[str, type] = {
    "tuple": tuple, "list": list, "set": set, "frozenset": frozenset, "deque": deque,
    "dict": dict, "OrderedDict": OrderedDict, "Size": torch.Size, "range": range, "slice": slice,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _PLAIN.items()}
_FORMS: dict[str, type] = {
    "tuple": TupleOf, "collection": CollectionOf, "dict": DictOf, "record": RecordOf,
}  # fmt: skip


def container_to_json(container: Any, items: Sequence[Json]) -> Json:
    """A container with items that are JSON already. Classes go by their names."""
    match container:
        case TupleOf(kind):
            extra: list[Any] = []
        case CollectionOf(kind, None):
            extra = []
        case DictOf(kind, keys, None):
            extra = [value_to_json(key, "a key of a dict") for key in keys]
        case RecordOf(kind, names):
            extra = list(names)
        case _:
            raise SaveError(
                "a result is a defaultdict, a deque of limited length or a container with "
                "attributes, which a file cannot hold",
                remedy="return a plain dict or list",
            )
    form = next(name for name, made in _FORMS.items() if isinstance(container, made))
    return {form: [class_name(kind), extra, list(items)]}


def container_from_json(
    found: Json, classes: Mapping[str, type], item: Callable[[Json], Any]
) -> tuple[Container, tuple[Any, ...]] | None:
    """The inverse; None where it is no container. classes: of the caller, by name."""
    match found:
        case {"tuple": [str(name), [], list(items)]}:
            made: Container = TupleOf(_class(name, classes))
        case {"collection": [str(name), [], list(items)]}:
            made = CollectionOf(_class(name, classes))
        case {"dict": [str(name), list(keys), list(items)]}:
            made = DictOf(_class(name, classes), tuple(map(value_from_json, keys)))
        case {"record": [str(name), list(names), list(items)]}:
            made = RecordOf(_class(name, classes), tuple(map(str, names)))
        case _:
            return None
    children = tuple(map(item, items))
    _check_form(made, len(children))
    return made, children


def _check_form(made: Container, count: int) -> None:
    """Raises LoadError where a class and the form of its objects do not go together."""
    kind = made.kind
    match made:
        case TupleOf():
            is_right = issubclass(kind, tuple) or (kind in (range, slice) and count == 3)
        case CollectionOf():
            is_right = kind in (list, set, frozenset, deque)
        case DictOf():
            is_right = issubclass(kind, dict) and len(made.keys) == count
        case RecordOf():
            is_right = kind not in _NAMES and len(made.names) == count
        case SubclassOf():
            is_right = False
    if not is_right:
        raise LoadError(f"a result of class {kind.__name__} has another form than the file says")


def class_name(kind: type) -> str:
    """How a file names a class."""
    return _NAMES.get(kind) or f"{kind.__module__}.{kind.__qualname__}"


def _class(name: str, classes: Mapping[str, type]) -> type:
    """The class of that name: one of Python's containers, of torch's named tuples, or of those that
    the caller has passed. None is imported because a file says so."""
    if name in _PLAIN:
        return _PLAIN[name]
    place, _, last = name.rpartition(".")
    if place == "torch.return_types":
        found = vars(torch.return_types).get(last)
        if isinstance(found, type) and issubclass(found, tuple):
            return found
    if name not in classes:
        raise LoadError(
            f"the results are of class {name}, which stretto.load does not import by itself",
            remedy=f"pass it: stretto.load(path, classes=[{name.rpartition('.')[2]}])",
        )
    return classes[name]

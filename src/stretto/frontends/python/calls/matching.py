"""What patterns of `match` ask of their subject: called by rewritten code (`source/matches.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.frontends.python.calls.call import call
from stretto.frontends.python.control import branches
from stretto.frontends.python.lists.sources import Indexed, Iterated
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.state import TracedList

_TEXTS = (str, bytes, bytearray)
_MATCHES_ITSELF = 1 << 22
"""The flag of classes like int and str, whose only positional pattern is for the object itself."""


def length(value: Any) -> Any:
    return call(len, value)


def is_sequence(value: Any) -> Any:
    if isinstance(value, Either):
        return branches.use(value, is_sequence)
    if isinstance(value, TracedList | Indexed):
        return not isinstance(value, Iterated)
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)


def is_mapping(value: Any) -> Any:
    return branches.use(value, is_mapping) if isinstance(value, Either) else _is_mapping(value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def is_instance(value: Any, kind: Any, positional: int) -> Any:
    """`isinstance(value, kind)`. positional: how many patterns without a name there are."""
    if not isinstance(kind, type):
        raise TypeError("called match pattern must be a class")
    found = call(isinstance, value, kind)
    most = len(_names(kind))
    if positional > most and found is not False:
        plural = "" if most == 1 else "s"
        raise TypeError(
            f"{kind.__name__}() accepts {most} positional sub-pattern{plural} ({positional} given)"
        )
    return found


def _names(kind: type) -> tuple[str | None, ...]:
    """The attributes that positional patterns are for; None for the object itself."""
    names = getattr(kind, "__match_args__", None)
    if names is not None:
        return names
    return (None,) if kind.__flags__ & _MATCHES_ITSELF else ()


def _name(kind: type, place: int | str) -> str | None:
    return place if isinstance(place, str) else _names(kind)[place]


def has_part(value: Any, kind: type, place: int | str) -> Any:
    name = _name(kind, place)
    return True if name is None else call(hasattr, value, name)


def part(value: Any, kind: type, place: int | str) -> Any:
    """What the pattern at a position, or of an attribute, is compared with."""
    name = _name(kind, place)
    return value if name is None else call(getattr, value, name)


def between(value: Any, before: int, after: int) -> list[Any]:
    """The items of a sequence without the first and last ones, of which these are the numbers."""
    places = range(before, len(value) - after)
    return [Hooks.staging.getitem(value, place) for place in places]


def rest(value: Any, *keys: Any) -> dict[Any, Any]:
    return {key: item for key, item in value.items() if key not in keys}

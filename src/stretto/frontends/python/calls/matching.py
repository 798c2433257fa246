"""What patterns of `match` ask of their subject: called by rewritten code (`source/matches.py`)."""

from __future__ import annotations

from typing import Any

from stretto.frontends.python.calls.call import call
from stretto.frontends.python.control import branches
from stretto.frontends.python.lists.sources import Indexed, Iterated
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.state import TracedList

_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
"""The flags of classes whose objects match patterns of sequences, and of mappings."""
_MATCHES_ITSELF = 1 << 22
"""The flag of classes like int and str, whose only positional pattern is for the object itself."""


def length(value: Any) -> Any:
    return call(len, value)


def is_sequence(value: Any) -> Any:
    if isinstance(value, Either):
        return branches.use(value, is_sequence)
    if isinstance(value, TracedList | Indexed):
        return not isinstance(value, Iterated)
    return bool(type(value).__flags__ & _SEQUENCE)


def is_mapping(value: Any) -> Any:
    if isinstance(value, Either):
        return branches.use(value, is_mapping)
    return bool(type(value).__flags__ & _MAPPING)


def is_instance(value: Any, kind: Any, positional: int) -> Any:
    """`isinstance(value, kind)`. positional: how many patterns without a name there are."""
    if not isinstance(kind, type):
        raise TypeError("called match pattern must be a class")
    found = call(isinstance, value, kind)
    most = 0 if found is False or not positional else len(_names(kind))
    if positional > most and found is not False:
        plural = "" if most == 1 else "s"
        raise TypeError(
            f"{kind.__name__}() accepts {most} positional sub-pattern{plural} ({positional} given)"
        )
    return found


def _names(kind: type) -> tuple[Any, ...]:
    """The attributes that positional patterns are for; None for the object itself."""
    names = getattr(kind, "__match_args__", None)
    if names is not None and type(names) is not tuple:
        found = f"(got {type(names).__name__})"
        raise TypeError(f"{kind.__name__}.__match_args__ must be a tuple {found}")
    if names is not None:
        return names
    return (None,) if kind.__flags__ & _MATCHES_ITSELF else ()


def _name(kind: type, place: int | str) -> str | None:
    if isinstance(place, str):
        return place
    found = _names(kind)[place]
    if not isinstance(found, str | None):
        kinds = f"(got {type(found).__name__})"
        raise TypeError(f"__match_args__ elements must be strings {kinds}")
    return found


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

"""Effects of the primitives of the `data` dialect (`ir/data.PRIMITIVES`)."""

from __future__ import annotations

from stretto.ir.data import PRIMITIVES


def _named(text: str) -> frozenset[str]:
    names = frozenset(text.split())
    assert names <= PRIMITIVES.keys(), names - PRIMITIVES.keys()
    return names


MAKING = _named(
    "record list dict slice concat repeat to_list keys values sorted_ints rows tuple shared "
    "join_str join_all characters repr text"
)
"""Their result is a new object."""

SAME = _named("copy cast expect")
"""Their result is their argument."""

STORING = _named("set put append insert extend store")
"""They store a value in their first argument."""

CHANGING = STORING | _named("pop remove reverse clear")
"""They change their first argument."""

DEEP = _named("eq ne contains index")
"""They read everything reachable from their arguments."""

SAFE = _named(
    "copy shared record tuple list dict is not truth has_type cast append clear extend concat "
    "to_list rows keys values reverse join_str item ready unset has join_all characters repr text "
    "round_to"
)
"""They never raise on operands that the verifier accepts."""

SAFE_ON_NUMBERS = _named("lt le gt ge eq ne min max to_float and or xor invert")
"""They never raise on numbers."""

DROPPED = _named(
    "copy shared has_type is not truth cast tuple item list record add sub mul neg abs and or xor "
    "lt le gt ge eq ne min max len to_list to_float concat keys values dict"
)
"""They are dropped if their result is not read."""

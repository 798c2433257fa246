"""What operators and kernels are called: after the user's module, or function and line, and the
operator, as `layers.3.q_proj.linear` or `decode:41.softmax`.

Names are for people. They change when a line is moved or a module is renamed, so nothing that is
kept on disk may depend on them: printed texts show them in comments, which cache keys leave out,
and name functions after `label` alone.
"""

from __future__ import annotations

import re
from collections import Counter

from stretto.errors import SourceLocation

MOST_LETTERS = 80
"""Of a name, without the number that tells equal ones apart; what is left out is at its front."""

_FOREIGN = re.compile(r"[^A-Za-z0-9_.:]+")
_NAMESPACES = ("aten", "stretto", "prims")


def operator_name(target: str) -> str:
    """`aten.mm.default` as `mm`, and `mylib.rotary.default` as `rotary`."""
    parts = target.split(".")
    is_known = len(parts) == 3 or (len(parts) > 1 and parts[0] in _NAMESPACES)
    return parts[1] if is_known else target


def origin(place: SourceLocation | None, operator: str) -> str:
    """The name of an operator that the user's program has at a place."""
    operator = operator.lstrip("_")
    if place is None:
        return _plain(operator)
    if place.module:
        return _plain(f"{place.module}.{operator}")
    function = (place.function or "").rpartition(".")[2].strip("<>") or "line"
    return _plain(f"{function}:{place.line}.{operator}")


def beside(known: str, operator: str) -> str:
    """The name of an operator that the compiler adds at the place of another one."""
    return ".".join(name for name in (known.rpartition(".")[0], operator) if name)


def label(name: str) -> str:
    """The operator of a name, as an identifier: `layers.3.q_proj.linear.2` as `linear`."""
    words = (word for word in reversed(re.split(r"[.:]", name)) if not word.isdigit())
    return next(words, "") or "kernel"


class UniqueNames:
    """Tells equal names apart by numbers behind them."""

    def __init__(self) -> None:
        self.taken = set[str]()
        self.counts = Counter[str]()

    def of(self, wanted: str) -> str:
        """`wanted`, cut at its front if it is long, with a number from the second time on."""
        base = name = _bounded(_plain(wanted) or "kernel")
        while name in self.taken:
            self.counts[base] += 1
            name = f"{base}.{self.counts[base] + 1}"
        self.taken.add(name)
        return name


def _plain(name: str) -> str:
    return _FOREIGN.sub("_", name)


def _bounded(name: str) -> str:
    """The last words of a long name, and of a long word its last letters."""
    if len(name) <= MOST_LETTERS:
        return name
    kept = name[-MOST_LETTERS:]
    return kept.partition(".")[2] or kept

"""Names on the command line, and the answer where there is no such thing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """What the user named cannot be found or used; the message says why and what to do."""


def require_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises UsageError for the first unknown name, with the closest one and the list."""
    known = list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {kind} {name!r}{suggestion(name, known)}")


def suggestion(name: str, known: list[str]) -> str:
    """The end of a message about an unknown name."""
    close = difflib.get_close_matches(name.lower(), known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{meant} known are {', '.join(known)}"

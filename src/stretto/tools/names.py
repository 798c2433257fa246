"""Checks of names on the command line, with suggestions for unknown ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """A name that the user gave cannot be found or used; the message says why and what to do."""


def require_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for the first unknown name, with the closest known one and a list of all."""
    known = list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {kind} {name!r}{suggestion(name, known)}")


def suggestion(name: str, known: list[str]) -> str:
    """Return the end of a message about an unknown name."""
    close = difflib.get_close_matches(name.lower(), known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{meant} known are {', '.join(known)}"

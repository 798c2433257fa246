"""Groups of models, and their names on the command line."""

from collections.abc import Mapping, Sequence

from .entry import ZooEntry
from .loops import LOOPS
from .real import REAL
from .static import STATIC

GROUPS: dict[str, Mapping[str, ZooEntry]] = {"real": REAL, "static": STATIC, "loops": LOOPS}


def expanded(names: Sequence[str]) -> list[str]:
    """Return the names, with each group's name replaced by its models, without duplicates."""
    found = (list(GROUPS[name]) if name in GROUPS else [name] for name in names)
    return list(dict.fromkeys(name for part in found for name in part))

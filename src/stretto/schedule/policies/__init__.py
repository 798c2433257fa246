"""The scheduling policies, one per file. Each registers itself when this package is imported."""

from importlib import import_module
from pkgutil import iter_modules

from stretto.schedule.policy import POLICIES

__all__ = ["POLICIES"]

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

"""Classes with special methods in which tensors decide, and functions of a tensor that reach each
of these methods: what Python calls by itself must be traced as what the user calls."""

from tests.e2e.data_model import (
    attributes,
    classes,
    containers,
    library,
    lookups,
    modules,
    operators,
    protocols,
    states,
)
from tests.e2e.data_model.uses import USES, Use

__all__ = [
    "USES",
    "Use",
    "attributes",
    "classes",
    "containers",
    "library",
    "lookups",
    "modules",
    "operators",
    "protocols",
    "states",
]

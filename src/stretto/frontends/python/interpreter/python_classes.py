"""Sources in Python of methods of classes in C whose objects have attributes."""

from __future__ import annotations

from types import FunctionType, SimpleNamespace
from typing import Any

_NAMESPACE: type = SimpleNamespace


class _OfNamespaces:
    """The methods of `types.SimpleNamespace`."""

    def __init__(self, /, **kwargs: Any) -> None:
        for name in kwargs:
            setattr(self, name, kwargs[name])

    def __repr__(self) -> str:
        name = "namespace" if type(self) is _NAMESPACE else type(self).__name__
        return f"{name}({', '.join([f'{key}={item!r}' for key, item in vars(self).items()])})"

    def __eq__(self, other: object) -> Any:
        if isinstance(self, SimpleNamespace) and isinstance(other, SimpleNamespace):
            return vars(self) == vars(other)
        return NotImplemented


METHODS: dict[int, dict[str, FunctionType]] = {
    id(SimpleNamespace): {
        name: item for name, item in vars(_OfNamespaces).items() if isinstance(item, FunctionType)
    }
}
"""The methods of a class by name, for the id of the class."""

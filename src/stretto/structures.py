"""Objects among the arguments of calls: when calls with other objects of the same classes share
their programs.

The first objects get programs of their own. Once others were passed, and for objects that the
function changes, since they will hold something else, programs are made for any objects of these
classes. Where none can be made, each object has its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.utils import _pytree as pytree

from stretto.families import CallForm
from stretto.frontends.python import is_structural
from stretto.frontends.python.results.inputs import key_of
from stretto.keys import BY_STRUCTURE, Key


@dataclass(eq=False, slots=True)
class Structures:
    """What is known of the objects among the arguments, by families of calls.

    known: the only objects passed so far, or whether there may be a program for any of their
    classes.
    """

    known: dict[Key, Key | bool] = field(default_factory=dict[Key, Key | bool])

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any], mode: bool) -> Key | None:
        """The key of a call for any objects of the same classes, if there are objects. mode: that
        of the module."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        objects = tuple(key_of(leaf) for leaf in leaves if is_structural(leaf))
        if not objects:
            return None
        parts = (type(x) if is_structural(x) else key_of(x) for x in leaves)
        wide = (BY_STRUCTURE, mode, spec, *parts)
        family = CallForm.of(wide).family
        if self.known.setdefault(family, objects) not in (True, False, objects):
            self.known[family] = True
        return wide

    def may_share(self, wide: Key) -> bool:
        """Whether there may be a program for any objects."""
        return self.known[CallForm.of(wide).family] is not False

    def shares(self, wide: Key) -> bool:
        """Whether calls with any objects share programs."""
        return self.known.get(CallForm.of(wide).family) is True

    def share(self, wide: Key, *, can: bool) -> None:
        """From now on calls with any objects share programs, or cannot."""
        self.known[CallForm.of(wide).family] = can

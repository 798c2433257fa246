"""Changes that cannot be taken back: those of objects whose state Python code cannot read and set.

Arms of branches, bodies of loops and recursive calls are traced by running them, from a snapshot of
the state that is restored afterwards. A change of an object that no snapshot holds, as a file in
memory, would have happened although its arm is not taken, or once instead of in each round. So
going back behind such a change is an error, unless the object was made after the snapshot: then
nobody sees it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.frontends.python.tracing.signals import Abort


@dataclass(frozen=True, slots=True)
class _Change:
    target: object
    time: int
    stop: Abort


@dataclass(frozen=True, slots=True)
class _Birth:
    value: object
    time: int
    sources: tuple[object, ...]


@dataclass(slots=True)
class LastingChanges:
    """The changes of one capture, in order. `time` counts them, and the objects made."""

    time: int = 0
    changes: list[_Change] = field(default_factory=list[_Change])
    boxes: list[tuple[Any, int]] = field(default_factory=list[tuple[Any, int]])
    births: dict[int, _Birth] = field(default_factory=dict[int, "_Birth"])
    """The objects that were made while capturing, by id."""

    def note_made(self, value: object, sources: Sequence[object]) -> None:
        """Notes that `value` is new, and may refer to `sources`."""
        if id(value) not in self.births and not any(value is source for source in sources):
            self.time += 1
            self.births[id(value)] = _Birth(value, self.time, tuple(sources))

    def origins(self, value: object) -> list[object]:
        """The object, and those that it may refer to."""
        found, pending = dict[int, object](), [value]
        while pending:
            item = pending.pop()
            if id(item) not in found:
                found[id(item)] = item
                birth = self.births.get(id(item))
                pending += birth.sources if birth else ()
        return list(found.values())

    def note_change(self, target: object, stop: Abort) -> None:
        """Notes that `target` is changed. stop: the error where that has to be taken back."""
        self.time += 1
        self.changes.append(_Change(target, self.time, stop))

    def note_box(self, box: object) -> None:
        """Notes that a box of the state is changed that the capture may not follow yet."""
        self.time += 1
        self.boxes.append((box, self.time))

    def unfollowed(self, since: int, held: Mapping[int, object]) -> list[Any]:
        """The boxes that were changed after a time, and that a snapshot does not hold."""
        found = list[Any]()
        for box, time in reversed(self.boxes):
            if time <= since:
                break
            if id(box) not in held:
                found.append(box)
        return found

    def was_made(self, value: object, since: int = 0) -> bool:
        """True for an object that was made while capturing, after the time `since`."""
        birth = self.births.get(id(value))
        return birth is not None and birth.time > since

    def check(self, since: int) -> None:
        """Fails where the state is restored that was at a time before a change."""
        for change in reversed(self.changes):
            if change.time <= since:
                return
            if not self.was_made(change.target, since):
                raise change.stop

"""Loop slots that hold one of several kinds of values, and the order of these options.

A slot that holds another kind of value after an iteration than before it is carried as an
`Either`: a flag and a value for each kind. The value at the end of an iteration is rearranged
into the order in which the options are carried.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import NONE, Either, flag_for, options_of
from stretto.frontends.python.values.leaves import Slot, kind_of
from stretto.frontends.python.values.scalars import LeafKind, number_kind, unify, unify_rows
from stretto.frontends.python.values.state import (
    Snapshot,
    contents,
    equal_leaves,
    have_same_parts,
    is_box,
    parts_of,
    rebuild_tuple,
    refill,
    with_part,
)

_MOST_OPTIONS = 4
"""The largest number of kinds of a carried value."""


def unified(before: Any, after: Any) -> LeafKind | None:
    """Return the kind that can hold both values, or None."""
    first, second = kind_of(before), kind_of(after)
    if first is None or second is None:
        return None
    return unify(first, second)


def rows_of(known: LeafKind | None, *values: Any, promote: bool) -> LeafKind | None:
    """Return the kind for tensors that differ in the size of one dim only; None if there is none.

    Each value may be one of several. known: a kind that the result must hold as well. promote:
    sizes that are numbers may differ, too.
    """
    kinds = [] if known is None else [known]
    for option in (option for value in values for option in options_of(value)):
        kind = kind_of(option) if isinstance(option, torch.Tensor) else None
        if kind is None:
            return None
        kinds.append(kind)
    found: LeafKind | None = kinds[0]
    for kind in kinds[1:]:
        if found != kind:
            joint = None if found is None else unify(found, kind)
            found = joint or unify_rows(found, kind, promote=promote)
    return None if found is None or found.rows is None else found


def are_numbers(before: Any, after: Any) -> bool:
    """Return True if both are numbers; then running the first iteration before the loop does not
    help."""
    return number_kind(before) is not None and number_kind(after) is not None


@dataclass(eq=False)
class CarriedOptions:
    """The options of slots. `base` is the state before the region; splitting a slot changes it."""

    base: Snapshot
    placed: dict[Slot, Either] = field(default_factory=dict[Slot, Either])
    """Values that are one of several, as they are at the start of an iteration."""
    examples: dict[Slot, list[Any]] = field(default_factory=dict[Slot, list[Any]])
    """For each option of such a value, an example seen at the end of an iteration."""
    replaced: list[tuple[dict[Any, Any], Any, Any]] = field(
        default_factory=list[tuple[dict[Any, Any], Any, Any]]
    )
    """Original values that were replaced in `base`, each as (table, key, value)."""
    inside: dict[Slot, Any] = field(default_factory=dict[Slot, Any])
    """Initial items of containers carried as copies that replace those in `base`."""

    def split(self, slot: Slot, before: Any, after: Any) -> bool:
        """Carry a slot as one of several kinds. Returns False if there are too many kinds."""
        start = before if isinstance(before, Either) else Either([True], [before])
        known = self._examples(slot, start)
        _, new = self._matched(slot, start, after)
        if len(known) + len(new) > _MOST_OPTIONS:
            return False
        made = Either(
            [*start.stretto_flags, *(False for _ in new)],
            [*start.stretto_options, *map(self.before_round, new)],
        )
        self.examples[slot] = [*known, *new]
        self._set_base(slot, made)
        return True

    def arranged(self, slot: Slot, before: Either, after: Any) -> Either | None:
        """Return `after` with its options in the carried order; None if one of them is new."""
        placed = self._placed(slot, before)
        if after is placed:
            return after
        found, new = self._matched(slot, before, after)
        if new:
            return None
        pairs = zip(found, placed.stretto_options, strict=True)
        return Either(
            [flag_for(after, option) for option in found],
            [own if option is NONE else option for option, own in pairs],
        )

    def _matched(self, slot: Slot, before: Either, after: Any) -> tuple[list[Any], list[Any]]:
        """Return the option of `after` that matches each carried option (or NONE), and the
        unmatched ones."""
        examples = self._examples(slot, before)
        own = self._placed(slot, before).stretto_options
        found, pending = [NONE] * len(examples), list(options_of(after))
        for is_match in (lambda n, x: x is own[n], lambda n, x: self._is_alike(examples[n], x)):
            for number in range(len(examples)):
                if found[number] is NONE:
                    match = next((x for x in pending if is_match(number, x)), NONE)
                    found[number] = match
                    pending = [x for x in pending if x is not match]
        return found, pending

    def _examples(self, slot: Slot, value: Either) -> list[Any]:
        """Return an example of each option of the slot's value. Examples of another number of
        options are ignored: they belong to another object that was in the slot."""
        options = value.stretto_options
        known = self.examples.get(slot, options)
        return list(known if len(known) == len(options) else options)

    def _placed(self, slot: Slot, before: Either) -> Either:
        """Return the slot's value at the start of the iteration."""
        found = self.placed.get(slot, before)
        return found if len(found.stretto_options) == len(before.stretto_options) else before

    def _is_alike(self, known: Any, option: Any) -> bool:
        """Return True if two options are of one kind."""
        if known is option or equal_leaves(known, option):
            return True
        if unified(known, option) is not None:
            return (number_kind(known) is None) is (number_kind(option) is None)
        if is_box(known) and (self.base.knows(known) or self.base.knows(option)):
            return False
        return have_same_parts(known, option)

    # -- objects --------------------------------------------------------------------------------

    def apart(self, before: Any, after: Any) -> bool:
        """Return True if an object must not be carried as a copy, because its identity matters."""
        apart = tracer().keeps_apart and self.base.knows(before)
        return apart or self.base.knows(after)

    def before_round(self, value: Any) -> Any:
        """Return the value with UNDEFINED for everything that the Program would hold: the form of
        a variable before it has a value. Objects from before the region are unchanged."""
        if kind_of(value) is not None:
            return UNDEFINED
        parts = parts_of(value)
        if parts is not None:
            return rebuild_tuple(value, list(map(self.before_round, parts)))
        if is_box(value) and not self.base.knows(value):
            made, items = copy.copy(value), contents(value)
            refill(made, {key: self.before_round(item) for key, item in items.items()})
            return made
        return value

    # -- the state before -----------------------------------------------------------------------

    def _set_base(self, slot: Slot, value: Any) -> None:
        """Make the region start with `value` in a slot."""
        (kind, *place), *path = slot
        if kind == "cell":
            cells: dict[Any, Any] = self.base.cells  # type: ignore[assignment]
            key = (place[0], place[1])
        else:
            cells = self.base.boxes[place[0]][1]
            key, path = path[0], path[1:]
        made = with_part(cells[key], path, value)
        if made is NONE:
            self.inside[slot] = value
            return
        self.replaced.append((cells, key, cells[key]))
        cells[key] = made

    def give_up(self) -> None:
        """Restore the state from before the region."""
        for cells, key, value in reversed(self.replaced):
            cells[key] = value
        self.base.restore()

"""Side effects of a function, as a journal that is carried out after each run.

During a capture nothing is printed, warned of or logged. Instead the program keeps a journal: a
list of the lines with side effects that it reached, in order, and for each of these lines
(`SideEffectSite`) lists of the values that it needs. These lists are state of the program like
any list of the user's, so arms and loops append to them when the run reaches them. When the run
has ended, the side effects of the lines are executed in Python, in order, with the values of the
run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

SideEffect = Callable[[Sequence[Any]], object]
"""Function that performs the side effect of a line, given the values of the run that it needs."""


@dataclass(frozen=True, slots=True, eq=False)
class SideEffectSite:
    """A line with a side effect. columns: a list for each value that it needs. of_user: True if
    the user's own code has the effect, not a library's."""

    number: int
    act: SideEffect
    columns: tuple[list[Any], ...]
    of_user: bool


@dataclass(frozen=True, slots=True, eq=False)
class Journal:
    """The journal of a capture: the numbers of its sites in the order in which a run reaches them.
    All lists are empty before a run."""

    order: list[int] = field(default_factory=list[int])
    sites: dict[Hashable, SideEffectSite] = field(default_factory=dict[Hashable, SideEffectSite])
    referred: list[Any] = field(default_factory=list[Any])
    """Objects that are shown in their state after the run, so they must not change during it."""

    def lists(self) -> list[list[Any]]:
        """Return all lists of the journal."""
        return [self.order, *(column for site in self.sites.values() for column in site.columns)]

    def holds(self, box: Any) -> bool:
        """True if a list belongs to the journal."""
        return any(box is item for item in self.lists())

    def site(self, key: Hashable, act: SideEffect, columns: int, of_user: bool) -> SideEffectSite:
        """Return the site of a key, created if there is none."""
        if key not in self.sites:
            lists = tuple(list[Any]() for _ in range(columns))
            self.sites[key] = SideEffectSite(len(self.sites), act, lists, of_user)
        return self.sites[key]


def act_out(
    sites: Sequence[SideEffectSite], order: Sequence[int], columns: Sequence[Sequence[Any]]
) -> None:
    """Perform the side effects of the lines that a run reached. columns: those of all sites,
    concatenated."""
    supply = iter(columns)
    values: list[list[Iterator[Any]]] = [[iter(next(supply)) for _ in s.columns] for s in sites]
    for number in order:
        sites[number].act([next(column) for column in values[number]])

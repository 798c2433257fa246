"""What a function does to the world outside, as a journal that is acted out after each run.

While a function is captured, nothing is printed, warned of or logged. The program keeps a journal
in its place: a list of the lines that it has come to, in their order, and for each of these lines
(`Site`) lists of the values that it needs. The lists are state of the program like any list of the
user's, so that arms and loops add to them where the run comes there. When the run has ended, the
lines do what they do in Python, in order, with the values of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Act = Callable[[Sequence[Any]], object]
"""Does what a line does, given the values that it needs of the run."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A line that acts on the world outside. columns: a list for each value that it needs.
    of_user: whether the user's own code does it, not code of a library."""

    number: int
    act: Act
    columns: tuple[list[Any], ...]
    of_user: bool


@dataclass(frozen=True, slots=True, eq=False)
class Journal:
    """The journal of a capture: the numbers of its sites in the order in which a run comes to them.
    All lists are empty before a run."""

    order: list[int] = field(default_factory=list[int])
    sites: dict[Hashable, Site] = field(default_factory=dict[Hashable, Site])
    referred: list[Any] = field(default_factory=list[Any])
    """Objects that are shown as they are after the run, which must not change in it."""

    def lists(self) -> list[list[Any]]:
        """All lists of the journal."""
        return [self.order, *(column for site in self.sites.values() for column in site.columns)]

    def holds(self, box: Any) -> bool:
        """Whether a list is one of the journal's."""
        return any(box is item for item in self.lists())

    def site(self, key: Hashable, act: Act, columns: int, of_user: bool) -> Site:
        """The site of a key, made if there is none."""
        if key not in self.sites:
            lists = tuple(list[Any]() for _ in range(columns))
            self.sites[key] = Site(len(self.sites), act, lists, of_user)
        return self.sites[key]


def act_out(sites: Sequence[Site], order: Sequence[int], columns: Sequence[Sequence[Any]]) -> None:
    """Does what the lines do that a run has come to. columns: those of all sites, one after the
    other."""
    supply = iter(columns)
    values: list[list[Iterator[Any]]] = [[iter(next(supply)) for _ in s.columns] for s in sites]
    for number in order:
        sites[number].act([next(column) for column in values[number]])

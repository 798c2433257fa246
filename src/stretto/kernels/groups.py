"""Groups: operators that become one kernel, over a common grid.

A grid dim corresponds to a dim of every member; a member computes one or more boxes of its own
dims, tied to the task's range of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from stretto.device.expr import Buffer, Extent, Reg, Var
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import LibraryCall, Operator, Span
from stretto.device.tree import Check, Let, Tree, TreeFunction, map_leaves
from stretto.device.user_kernels import whole_dims
from stretto.ir.sizes import Symbol

Box = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """An operator of a group, and the boxes of it that a task computes."""

    operator: Operator
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Operators that become one kernel over the grid dims `grid`."""

    grid: tuple[Extent, ...]
    members: tuple[Member, ...]

    @property
    def written(self) -> set[Buffer]:
        return {member.operator.out.buffer for member in self.members}

    @property
    def read(self) -> set[Buffer]:
        return {load.access.buffer for m in self.members for load in m.operator.reads()}


Grouped = Group | LibraryCall | Let | Check


def single(operator: Operator) -> Group:
    """Return the group of one operator: all parallel dims are tiled, except those that a task
    computes whole; an indivisible operator is one task."""
    if not divisible(operator):
        return Group((), (Member(operator, (tuple(Span(extent) for extent in operator.dims),)),))
    whole = whole_dims(operator)
    dims = [n for n, extent in enumerate(operator.dims) if extent != 1 and n not in whole]
    return tiled(operator, dims)


def tiled(operator: Operator, dims: Sequence[int], producers: Iterable[Member] = ()) -> Group:
    """Return the group whose grid is some dims of an operator, with producers of what it reads."""
    box = tuple(
        Span(extent, dims.index(n), 0) if n in dims else Span(extent)
        for n, extent in enumerate(operator.dims)
    )
    return Group(tuple(operator.dims[n] for n in dims), (*producers, Member(operator, (box,))))


def divisible(operator: Operator) -> bool:
    """True if tasks cannot write the same element: no element is stored at a computed position."""
    return all(
        isinstance(atom, Var | Reg | Symbol)
        for index in operator.out.index
        for atom in index.atoms()
    )


# ---- Replacing an operator by several steps, with new buffers between them --------------------


@dataclass(slots=True)
class NewBuffers:
    """New local buffers of one function."""

    function: str
    buffers: list[Buffer] = field(default_factory=list[Buffer])

    def name(self, hint: str) -> str:
        """Return a name for the next buffer."""
        return f"{self.function}.{hint}{len(self.buffers)}"


def replace_operators(
    tree: Tree[Items], steps: Callable[[Operator, NewBuffers], tuple[LeafItem, ...]]
) -> Tree[Items]:
    """Replace each operator in the tree by the items that `steps` returns for it."""

    def function(old: TreeFunction[Items]) -> TreeFunction[Items]:
        new = NewBuffers(old.name)

        def leaf(items: Items) -> Items:
            lists = (steps(i, new) if isinstance(i, Operator) else (i,) for i in items)
            return tuple(step for found in lists for step in found)

        body = map_leaves(old.body, leaf)
        return replace(old, locals=(*old.locals, *new.buffers), body=body)

    return Tree(tuple(function(old) for old in tree.functions), tree.externals)

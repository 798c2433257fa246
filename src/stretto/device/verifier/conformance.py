"""Check that a DeviceProgram does the same as the tree that it schedules.

Control nodes, kernels, buffers and signatures of functions must be equal, and each leaf must have
the statements of its source. A leaf may only change their order. It must keep the order of the
register statements; a kernel reads the registers as they are at its place in the source, after all
checks that precede it. The order of accesses to memory is checked by `races` and by
`check_unit_order`, which take the places in the source from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from stretto.device import tree
from stretto.device.expr import Access
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Item, Run, Schedule
from stretto.device.regions import Body, Region, Statement, overlap
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Origin:
    """The positions of a leaf's items in its source: of kernels by name, of statements in order."""

    kernels: Mapping[str, int]
    statements: tuple[int, ...]

    def places(self, items: tuple[Item, ...]) -> Iterator[int | None]:
        """Yield the position in the source of each item of a unit; None for a wait or a signal."""
        statements = iter(self.statements)
        for item in items:
            match item:
                case Run(kernel=name):
                    yield self.kernels[name]
                case tree.Let() | tree.Check():
                    yield next(statements)
                case _:
                    yield None


Origins = Mapping[int, Origin]
"""The origin of each leaf, by the `id` of its schedule."""


def check_conformance(
    program: DeviceProgram, source: tree.Tree[Body], touched: ItemRegions
) -> Origins:
    """Return the origin of each leaf. Raise VerifyError if the program differs from its source in
    more than the order."""
    if program.tree.externals != source.externals:
        raise VerifyError("the external buffers are not those of the source")
    theirs = {function.name: function for function in source.functions}
    if {function.name for function in program.tree.functions} != theirs.keys():
        raise VerifyError("the functions are not those of the source")
    comparison = _Comparison(touched)
    for function in program.tree.functions:
        _check_signature(function, theirs[function.name])
        comparison.nodes(function.body, theirs[function.name].body)
    return comparison.found


def _check_signature(ours: tree.TreeFunction[Schedule], theirs: tree.TreeFunction[Body]) -> None:
    for what in ("params", "tensors", "written", "results", "locals"):
        if getattr(ours, what) != getattr(theirs, what):
            raise VerifyError(f"the {what} of function {ours.name} are not those of the source")


class _Comparison:
    def __init__(self, touched: ItemRegions) -> None:
        self._touched = touched
        self.found: dict[int, Origin] = {}

    def nodes(self, ours: tree.Node[Schedule], theirs: tree.Node[Body]) -> None:
        mine = [node for node in tree.flattened(ours) if not _only_waits(node)]
        wanted = [node for node in tree.flattened(theirs) if not _does_nothing(node)]
        for one, other in zip(mine, wanted, strict=False):
            self._node(one, other)
        if len(mine) != len(wanted):
            raise VerifyError("the program has more or fewer control nodes than its source")

    def _node(self, ours: tree.Node[Schedule], theirs: tree.Node[Body]) -> None:
        kind = type(ours).__name__
        if type(theirs) is not type(ours):
            raise VerifyError(
                f"the program has a {kind} node where its source has a {type(theirs).__name__} node"
            )
        if isinstance(ours, tree.Leaf) and isinstance(theirs, tree.Leaf):
            self._leaf(ours.body, tuple(item for item in theirs.body if _is_run(item)))
            return
        if _head(ours) != _head(theirs):
            raise VerifyError(f"a {kind} node is not that of the source")
        for one, other in zip(tree.children(ours), tree.children(theirs), strict=True):
            self.nodes(one, other)

    # ---- leaves --------------------------------------------------------------------------------
    def _leaf(self, schedule: Schedule, body: Body) -> None:
        kernels = {item.name: (n, item) for n, item in enumerate(body) if isinstance(item, Kernel)}
        if schedule.kernels != kernels.keys():
            name = min(schedule.kernels ^ kernels.keys())
            there = "does not run" if name in kernels else "runs"
            raise VerifyError(f"a leaf {there} kernel {name}, unlike its source")
        for name, (_, kernel) in kernels.items():
            if self._touched.kernels[name] != kernel:
                raise VerifyError(f"kernel {name} is not that of the source")
        statements = [(n, item) for n, item in enumerate(body) if not isinstance(item, Kernel)]
        mine = [item for item in schedule.units[0] if isinstance(item, tree.Let | tree.Check)]
        if mine != [item for _, item in statements]:
            raise VerifyError("the register statements of a leaf are not those of its source")
        origin = Origin(
            {name: place for name, (place, _) in kernels.items()},
            tuple(place for place, _ in statements),
        )
        if self.found.setdefault(id(schedule), origin) != origin:
            raise VerifyError("one leaf schedules two different leaves of the source")
        needed = _needed(body, self._touched)
        for items in schedule.units:
            _check_registers(items, needed)
            check_unit_order(items, origin, self._touched)


@dataclass(frozen=True, slots=True)
class _Needed:
    """State required before a kernel: number of assignments of each register in the leaf, number
    of passed checks."""

    versions: Mapping[str, int]
    checks: int


def _needed(body: Body, touched: ItemRegions) -> dict[str, _Needed]:
    versions: Counter[str] = Counter()
    checks = 0
    needed: dict[str, _Needed] = {}
    for item in body:
        match item:
            case Kernel(name=name):
                read = {reg.name for reg in touched.registers(name)}
                needed[name] = _Needed({reg: versions[reg] for reg in read}, checks)
            case tree.Let(reg=reg):
                versions[reg.name] += 1
            case tree.Check():
                checks += 1
    return needed


def _check_registers(items: tuple[Item, ...], needed: Mapping[str, _Needed]) -> None:
    versions: Counter[str] = Counter()
    checks = 0
    for item in items:
        match item:
            case Run(kernel=name):
                wanted = needed[name]
                for reg, version in wanted.versions.items():
                    if versions[reg] != version:
                        raise VerifyError(
                            f"kernel {name} reads register {reg} before or after an assignment "
                            "that the source has on its other side"
                        )
                if checks < wanted.checks:
                    raise VerifyError(f"kernel {name} runs before a check that it may rely on")
            case tree.Let(reg=reg):
                versions[reg.name] += 1
            case tree.Check():
                checks += 1
            case _:
                pass


def check_unit_order(items: tuple[Item, ...], origin: Origin, touched: ItemRegions) -> None:
    """Check that each unit accesses any memory in the order of the source.

    Most units keep the order of the source as a whole, which is tested first and quickly.
    """
    places = list(origin.places(items))
    latest = -1
    for place in places:
        if place is not None:
            if place < latest:
                break
            latest = place
    else:
        return
    seen: dict[str, list[tuple[int, Region, Item]]] = {}
    last: dict[tuple[str, bool], int] = {}
    for item, place in zip(items, places, strict=True):
        if place is None:
            continue
        for region in touched.regions(item):
            name = region.buffer.name
            after = last.get((name, True), -1)
            if region.write:
                after = max(after, last.get((name, False), -1))
            if after > place:
                for other, earlier, what in seen[name]:
                    if other > place and (region.write or earlier.write):
                        _check_apart(earlier, region, what, item)
            seen.setdefault(name, []).append((place, region, item))
            key = name, region.write
            last[key] = max(last.get(key, -1), place)


def _check_apart(earlier: Region, later: Region, first: Item, second: Item) -> None:
    if overlap(earlier, later):
        raise VerifyError(
            f"{what_of(first)} accesses {earlier.buffer.name} before {what_of(second)}, which "
            "comes first in the source"
        )


def what_of(item: Item) -> str:
    """Return the name of an item for error messages."""
    match item:
        case Run(kernel=name):
            return f"kernel {name}"
        case tree.Let(reg=register):
            return f"let {register.name}"
        case _:
            return "a check"


def _head(node: tree.Node[L]) -> tree.Node[None]:
    """Return a control node without the nodes below it. Places bound by calls become positions in
    memory."""
    if isinstance(node, tree.Call):
        placed = tree.with_inputs(node, lambda value: value, _flat_access)
        return cast("tree.Node[None]", placed)
    return tree.rebuilt(node, [_NOTHING for _ in tree.children(node)])


_NOTHING: tree.Leaf[None] = tree.Leaf(None)


def _flat_access(access: Access) -> Access:
    return Access(access.buffer, (1,), (access.offset,))


def _only_waits(node: tree.Node[Schedule]) -> bool:
    return isinstance(node, tree.Leaf) and not any(
        isinstance(item, Run | tree.Let | tree.Check) for items in node.body.units for item in items
    )


def _does_nothing(node: tree.Node[Body]) -> bool:
    return isinstance(node, tree.Leaf) and not any(_is_run(item) for item in node.body)


def _is_run(item: Statement) -> bool:
    """Return True if the item does anything. A kernel without tasks is omitted from schedules."""
    return not (isinstance(item, Kernel) and item.is_static and item.tasks == 0)

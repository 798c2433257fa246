"""Kernels compute their operators: in the way of a template that can, and every element once.

An operator may be computed in parts, by several stages of the kernels of one leaf: their boxes
together are its dims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations
from math import prod

from stretto.device.operator import Kernel, Operator, Stage
from stretto.device.regions import Body, Interval
from stretto.device.tree import Tree, leaves
from stretto.errors import VerifyError

Part = tuple[Interval | None, ...]
"""What a stage computes of the dims of its operator; None is the whole dim."""


def check_coverage(tree: Tree[Body]) -> None:
    """Raises VerifyError for an operator of which a part is not computed, or more than once.

    Parts of a size that is known only at run time are left to the run.
    """
    for function in tree.functions:
        for body in leaves(function.body):
            parts: dict[Operator, list[Part]] = {}
            unknown: set[Operator] = set()
            for kernel in (item for item in body if isinstance(item, Kernel)):
                for stage in kernel.stages:
                    part = computed_part(kernel, stage)
                    if part is None:
                        unknown.add(stage.operator)
                    else:
                        parts.setdefault(stage.operator, []).append(part)
            for operator, found in parts.items():
                if operator not in unknown:
                    _check(operator, found)


def check_templates(kernels: Iterable[Kernel]) -> None:
    """Raises VerifyError for a stage whose template cannot compute its operator so."""
    for kernel in kernels:
        for stage in kernel.stages:
            template = stage.template
            try:
                found = template.parsed(stage.operator, dict(template.choices), template.packed)
            except ValueError as error:
                raise VerifyError(
                    f"kernel {kernel.name}, template {template.name}: {error}"
                ) from error
            if found != template:
                raise VerifyError(
                    f"template {template.name} of kernel {kernel.name} is of another operator"
                )


def computed_part(kernel: Kernel, stage: Stage) -> Part | None:
    """What all tasks of a kernel compute in one of its stages; None where that is not known."""
    part: list[Interval | None] = []
    for span, dim in zip(stage.box, stage.operator.dims, strict=True):
        extent = span.extent if span.grid is None else kernel.grid[span.grid].extent
        if span.offset == 0 and extent == dim:
            part.append(None)
        elif isinstance(extent, int) and isinstance(dim, int):
            part.append((span.offset, span.offset + extent))
        else:
            return None
    return tuple(part)


def are_all(operator: Operator, parts: Collection[Part]) -> bool:
    """Whether parts are all of an operator, and do not overlap. A part that is not a whole dim is
    of one whose size is a number."""
    if any(_overlap(one, other) for one, other in combinations(parts, 2)):
        return False
    fixed = [n for n, dim in enumerate(operator.dims) if isinstance(dim, int)]
    whole = {n: (0, dim) for n, dim in enumerate(operator.dims) if isinstance(dim, int)}
    lengths = (prod(b - a for a, b in (part[n] or whole[n] for n in fixed)) for part in parts)
    return sum(lengths) == prod(dim for _, dim in whole.values())


def _check(operator: Operator, parts: list[Part]) -> None:
    """A leaf may contain an operator several times; then all elements are computed as often."""
    extents = [dim if isinstance(dim, int) else 1 for dim in operator.dims]
    size = prod(extents)
    done = sum(
        prod(
            extent if one is None else one[1] - one[0]
            for one, extent in zip(part, extents, strict=True)
        )
        for part in parts
    )
    if size and done % size:
        raise VerifyError(
            f"the kernels compute {done % size} of the {size} elements of operator {operator.name}"
        )
    if done == size and any(_overlap(one, other) for one, other in combinations(parts, 2)):
        raise VerifyError(f"a part of operator {operator.name} is computed more than once")


def _overlap(one: Part, other: Part) -> bool:
    return all(a is None or b is None or _meet(a, b) for a, b in zip(one, other, strict=True))


def _meet(a: Interval, b: Interval) -> bool:
    return a[0] < b[1] and b[0] < a[1]

"""Facts about operators that torch's tags and schemas do not give: one entry each, and only data.

The families of operators (`operators`) fill the table. `properties` joins its entries with what
torch says; other folders use that. An entry is under the name of all overloads of an operator
(`aten.gather`), or of one (`aten.sort.stable`); the entry of an overload has precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch.torch_version import TorchVersion


class Fails(Enum):
    """Why an operator may stop the run for some values of its operands; the value is text for
    `explain`."""

    NEVER = "it takes all values"
    DIVISOR = "it refuses some integers, as a divisor of 0"
    POSITIONS = "the integers it reads may be positions out of range"
    VALUES = "it refuses some values"
    UNKNOWN = "it is not known to take all values"
    CHECKS = "it only checks values"


class Cost(Enum):
    """Cost class of an operator, as fine as passes and the frontend need."""

    FREE = "it only renames elements"
    ELEMENT = "each element of its operands is read at most once"
    PRODUCT = "it multiplies and sums: a contraction"
    OTHER = "anything else"


class Aliases(Enum):
    """Aliasing of the result with an operand in torch. In a Program, results never alias."""

    NEVER = "the result has memory of its own"
    ALWAYS = "the result is a view"
    BY_LAYOUT = "the result is a view or a copy, as the strides say"


class Reach(Enum):
    """The range that the positions read by an operator must be in."""

    DIM = "in the dim `dim` of `self`"
    WRITTEN = "in the dim `dim` of `self`, unless that has no elements"
    WINDOW = "in the dim `dim` of `self`, with the elements that follow"
    ROWS = "in the first dim of `weight`"
    FLAT = "among all elements of `self`"
    TABLES = "in the leading dims of `self`, one table per dim, unless nothing is selected"


@dataclass(frozen=True, slots=True)
class PositionArgument:
    """The argument that holds positions, and the error in eager if one is out of range.

    wraps: True if negative positions count from the end. In `message`, `{}` is replaced by the
    position, `{dim}` by the dim and `{size}` by its size; the text after `|` is omitted if the
    size is unknown. inner: error and message for any dim but the first, if they differ.
    """

    reach: Reach
    name: str = "index"
    wraps: bool = False
    error: str = "IndexError"
    message: str = "index {} is out of bounds for dimension {dim}| with size {size}"
    inner: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ElementByElement:
    """Batched by the same operator: operands with leading batch dims broadcast."""


@dataclass(frozen=True, slots=True)
class ShiftDims:
    """Batched with each dim in the arguments `names` moved up by one.

    none_is_all: no dims mean all dims. grows: the operand may have no dims.
    """

    names: tuple[str, ...] = ("dim",)
    none_is_all: bool = False
    grows: bool = False


@dataclass(frozen=True, slots=True)
class KeepDims:
    """Batched by the same operator, which does not affect dims before the last `rank`."""

    rank: int


@dataclass(frozen=True, slots=True)
class MergeRows:
    """Batched in its operand's own batch dim, the first of `rank`."""

    rank: int


@dataclass(frozen=True, slots=True)
class AllDims:
    """Batched by `target`, which takes the dims that this operator reduces."""

    target: str


@dataclass(frozen=True, slots=True)
class OwnRule:
    """Batched by a function of the operator's family, a `passes.batching.rules.Rule`."""

    rule: Callable[..., Any]


class Replaced(Enum):
    """When torch's shape rule of an operator is replaced by one of its family."""

    ALWAYS = "it is wrong"
    SYMBOLIC = "it needs sizes that are numbers"
    UNBACKED = "it asks for the values of sizes that are known only at run time"


@dataclass(frozen=True, slots=True)
class ShapeRule:
    """Computes the results of an operator on fake tensors in place of torch."""

    when: Replaced
    compute: Callable[..., torch.Tensor]


Batching = ElementByElement | ShiftDims | KeepDims | MergeRows | AllDims | OwnRule
"""How an operator is computed for all iterations of a loop at once."""


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """Facts about an operator. For a field that is None, torch decides.

    fails: NEVER for operators that take every value of the right shape and dtype, although they
    lack torch's `core` tag.
    updates: the first operand may be changed into the result if nothing reads it later.
    needs_elements: it refuses to reduce dims of size 0.
    whole: the frontend records the operator as it is, although torch can decompose it.
    raises: names of the exceptions that eager raises for values which `fails` does not cover.
    """

    elementwise: bool | None = None
    rearranges: bool | None = None
    fails: Fails | None = None
    cost: Cost | None = None
    aliases: Aliases | None = None
    positions: PositionArgument | None = None
    batching: Batching | None = None
    raises: tuple[str, ...] | None = None
    shape: ShapeRule | None = None
    needs_elements: bool | None = None
    updates: bool | None = None
    whole: bool | None = None


TABLE: dict[str, OperatorFacts] = {}
AnyRule = TypeVar("AnyRule", bound=Callable[..., torch.Tensor])


@cache
def load_families() -> None:
    """Import `stretto.operators`, which fills the tables of operators. The folder is on a higher
    layer, since lowering is part of a family; so it is imported when a table is first read."""
    import_module("stretto.operators")


def describe(names: str, namespace: str = "aten", **said: Any) -> None:
    """Add to the entry of each operator in `names`, which are separated by spaces."""
    for key in (f"{namespace}.{name}" for name in names.split()):
        TABLE[key] = replace(TABLE.get(key, OperatorFacts()), **said)
    entry.cache_clear()


def shape_rule(
    name: str, when: Replaced, before: str | None = None
) -> Callable[[AnyRule], AnyRule]:
    """Register the decorated function as the shape rule of an operator of ATen, in versions of
    torch before `before`."""

    def register(compute: AnyRule) -> AnyRule:
        if before is None or TorchVersion(torch.__version__) < before:
            describe(name, shape=ShapeRule(when, compute))
        return compute

    return register


@cache
def entry(target: str) -> OperatorFacts:
    """Return the entry of an overload, completed by that of all overloads of its operator."""
    load_families()
    own = TABLE.get(target, OperatorFacts())
    shared = TABLE.get(".".join(target.split(".")[:2]), OperatorFacts())
    given = {
        name: said for name in OperatorFacts.__slots__ if (said := getattr(own, name)) is not None
    }
    return replace(shared, **given)

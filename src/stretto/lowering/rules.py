"""The registry of lowering rules, and `TensorOpCall`, the op that a rule lowers.

A rule is a function of a `TensorOpCall`, registered for one or more targets. It returns a lazy
tensor per result. It declines by raising `Decline` or returning None; then the op becomes a library
call.
What it has emitted before that remains, such as operands that it has stored, so it must not have
written to memory that existed before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch

from stretto.device.expr import Expr, Extent, Reg
from stretto.device.operator import LibraryCall, Operator
from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy
from stretto.lowering.lower_function import Lowering
from stretto.ops.arguments import arguments
from stretto.ops.infer import parameters
from stretto.ops.table import load_families

Rule = Callable[[Lowering, TensorOp], tuple[Lazy, ...] | None]

RULES: dict[str, Rule] = {}
"""All rules by target, such as `aten.add.Tensor`."""


class Decline(Exception):
    """Raised by a rule if these arguments have no native lowering; the message is the reason."""


@dataclass(frozen=True, slots=True)
class TensorOpCall:
    """A tensor op to lower: its arguments by their names in the schema, defaults filled in."""

    low: Lowering
    op: TensorOp
    arguments: Mapping[str, Argument]

    # ---- results -----------------------------------------------------------------------------
    @property
    def result(self) -> Value:
        """The first result."""
        return self.op.results[0]

    @property
    def shape(self) -> tuple[Extent, ...]:
        """Dims of the first result."""
        return self.low.extents(self.result.tensor.shape)

    @property
    def dtype(self) -> DType:
        """Element type of the first result."""
        return self.result.tensor.dtype

    def used(self, number: int) -> bool:
        """True if anything reads result `number`."""
        return self.low.uses.total.get(self.op.results[number], 0) > 0

    # ---- tensors -----------------------------------------------------------------------------
    def has(self, name: str) -> bool:
        """True if the argument exists and is not None."""
        return self.arguments.get(name) is not None

    def is_number(self, name: str) -> bool:
        """True for a number, even one known only at run time; False for a tensor."""
        known = parameters(self.op.target)[name]
        return not (known.is_tensor and isinstance(self.arguments[name], Value))

    def value(self, name: str) -> Value:
        """Return an argument that must be a Value."""
        argument = self.arguments[name]
        if not isinstance(argument, Value):
            raise Decline(f"`{name}` is a number")
        return argument

    def tensor(self, name: str) -> Lazy:
        """Return a tensor, or a number as a tensor without dims."""
        return self.low.tensor(self.arguments[name])

    def optional(self, name: str) -> Lazy | None:
        """Return a tensor argument, or None if it is absent."""
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> tuple[Lazy, ...]:
        """Return a list of tensors."""
        items = self.arguments[name]
        assert isinstance(items, tuple)
        return tuple(self.low.tensor(item) for item in items)

    def cheap(self, name: str) -> Lazy:
        """Return a tensor that may be read several times: stored if computing it again is
        expensive."""
        lazy = self.tensor(name)
        return lazy if lazy.is_stored or self.low.costs.is_cheap(lazy.expr) else self.stored(name)

    def stored(self, name: str) -> Lazy:
        """Return a tensor with every element a plain load; later uses of the value read it too."""
        return self.low.materialised(self.arguments[name])

    # ---- numbers -----------------------------------------------------------------------------
    def scalar(self, name: str) -> Expr:
        """Return a number, possibly known only at run time, as an expression."""
        return self.low.scalar(self.arguments[name])

    def number(self, name: str) -> bool | int | float:
        """Return a number; decline if it is known only at run time."""
        argument = self.arguments[name]
        if not isinstance(argument, bool | int | float):
            raise Decline(f"`{name}` is known only at run time")
        return argument

    def integer(self, name: str) -> int:
        """Return an int; decline if it is known only at run time."""
        return _integer(name, self.arguments[name])

    def dim(self, name: str) -> Extent:
        """Return the size of a dim, which may be known only at run time."""
        argument = self.arguments[name]
        return self.low.extent(argument) if isinstance(argument, Size) else self.integer(name)

    def integers(self, name: str, length: int | None = None) -> tuple[int, ...]:
        """Return a tuple of ints; a single int is repeated to `length`."""
        argument = self.arguments[name]
        items = argument if isinstance(argument, tuple) else (argument,)
        numbers = tuple(_integer(name, item) for item in items)
        return numbers * length if length is not None and len(numbers) == 1 else numbers

    def flag(self, name: str) -> bool:
        return bool(self.number(name))

    def text(self, name: str) -> str | None:
        argument = self.arguments[name]
        return argument if isinstance(argument, str) else None

    def axis(self, rank: int, name: str = "dim") -> int:
        """Return a dim, counted from the front."""
        return _axis(self.integer(name), rank)

    def axes(self, rank: int, name: str = "dim") -> tuple[int, ...]:
        """Return dims in ascending order; all dims if none are given."""
        argument = self.arguments.get(name)
        if rank == 0 or argument is None or argument == ():
            return tuple(range(rank))
        return tuple(sorted(_axis(dim, rank) for dim in self.integers(name)))


def _integer(name: str, argument: Argument) -> int:
    if isinstance(argument, bool) or not isinstance(argument, int):
        raise Decline(f"`{name}` is known only at run time")
    return argument


def _axis(dim: int, rank: int) -> int:
    return dim + max(rank, 1) if dim < 0 else dim


def static_size(dims: tuple[Extent, ...]) -> int | None:
    """Return the product of dims; None if one is dynamic."""
    return prod(d for d in dims if isinstance(d, int)) if all_static(dims) else None


def all_static(dims: tuple[Extent, ...]) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def static_dims(dims: tuple[Extent, ...]) -> tuple[int, ...]:
    """Return the dims as ints; decline if one is dynamic."""
    found = tuple(dim for dim in dims if isinstance(dim, int))
    if len(found) != len(dims):
        raise Decline("a dim is known only at run time")
    return found


def sized_dims(dims: tuple[Extent, ...]) -> tuple[int | Size, ...]:
    """Return the dims as sizes known at the call; decline if one is known only at run time."""
    found = tuple(dim for dim in dims if not isinstance(dim, Reg))
    if len(found) != len(dims):
        raise Decline("a dim is known only at run time")
    return found


Body = Callable[[TensorOpCall], Lazy | tuple[Lazy, ...] | None]


AnyBody = TypeVar("AnyBody", bound=Body)


def rule(*names: str) -> Callable[[AnyBody], AnyBody]:
    """Register a function as the rule of operators, whose names are separated by spaces.

    `select.int` is short for `aten.select.int`, and `permute` for `aten.permute.default`.
    """

    def register(body: AnyBody) -> AnyBody:
        for target in (full_name(name) for text in names for name in text.split()):
            assert target not in RULES, target
            RULES[target] = _adapt(body)
        return body

    return register


def find_rule(target: str) -> Rule | None:
    """Return the rule of an operator, or None if it has no native lowering."""
    load_families()
    return RULES.get(target)


def full_name(name: str) -> str:
    """Return the full target for the short form of a name; see `rule`."""
    if name.startswith("stretto.") or name.count(".") == 2:
        return name
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def _adapt(body: Body) -> Rule:
    def run(low: Lowering, op: TensorOp) -> tuple[Lazy, ...] | None:
        before = len(low.items), len(low.locals), len(low.externals.buffers)
        try:
            results = body(TensorOpCall(low, op, arguments(op.target, op.args, op.kwargs)))
        except Decline:
            results = None
        if results is None:
            _require_harmless(low, op, *before)
        return (results,) if isinstance(results, Lazy) else results

    return run


def _require_harmless(low: Lowering, op: TensorOp, items: int, own: int, others: int) -> None:
    """Assert that a rule that declines has only written to buffers that it has created itself.

    items, own, others: numbers of items, local buffers and external buffers before the rule.
    """
    fresh = {*low.locals[own:], *low.externals.buffers[others:]}
    for item in low.items[items:]:
        match item:
            case Operator(out=out):
                written = {out.buffer}
            case LibraryCall(outs=outs):
                written = {*outs}
            case _:
                continue
        assert written <= fresh, f"{op.target} declines after it has changed something"


def common_dtype(first: Lazy | bool | int | float, second: Lazy | bool | int | float) -> DType:
    """Return the dtype in which torch compares or computes the two (`torch.result_type`)."""
    return DType.from_torch(torch.result_type(_sample(first), _sample(second)))


def _sample(item: Lazy | bool | int | float) -> Any:
    if not isinstance(item, Lazy):
        return item
    return torch.empty((1,) * item.rank, dtype=item.dtype.torch, device="meta")

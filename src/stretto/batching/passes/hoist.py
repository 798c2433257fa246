"""Hoisting: products that need no recurrent value become blocks of their own, at depth 0.

    loop:                                       loop:
      %y = Linear(%x)                             %y = block 0(%x)        # of depth 0
      %u = Linear'(%h)                  =>        %h = block 1(%y, %h)
      %h = tanh(add(%y, %u))

In one block with the recurrence they would run step by step, a few rows at a time; as a block of
their own, all of a batch (of all steps and all nodes) run as one large product. (ACRoBat,
section B.1.)

Changes: contractions that need no recurrent value, and what they need, become `Record`s; layers
that are partly recurrent are opened (`layers.py`). Needs: `phases` done, since what an earlier
phase has made is known in a later one. Guarantees: the same values up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from stretto.batching.passes.coarsen import Former
from stretto.batching.passes.layers import Concatenations, Opener
from stretto.batching.passes.recurrences import Node, called, reads_tensors, recurrent
from stretto.batching.passes.tidy import remove_unused
from stretto.batching.passes.uses import (
    Blocks,
    FunctionUses,
    Names,
    all_assigned,
    leaves,
    used,
    with_bodies,
)
from stretto.batching.program import (
    Body,
    Function,
    InstanceProgram,
    Loop,
    Operate,
    Phase,
    Remark,
    Statement,
    Variable,
    bodies,
    call_operation,
    walk,
)
from stretto.batching.types import RowsType, Scalar, TensorType
from stretto.ops.properties import properties


@dataclass(frozen=True, slots=True)
class Hoist:
    name: ClassVar[str] = "hoist"

    def apply(self, program: InstanceProgram) -> None:
        blocks = Blocks(program.blocks)
        costs = _Costs()
        segments = segments_of(program.functions[0].body)
        sets = [recurrent(program, [segment]) for segment in segments]
        for number, function in enumerate(program.functions):
            if number == 0:
                function.body = sum(
                    (
                        _opened(program, function, *pair)
                        for pair in zip(segments, sets, strict=True)
                    ),
                    (),
                )
                remove_unused(function)
                pieces = list(zip(segments_of(function.body), sets, strict=True))
            else:
                mine: set[Node] = set()
                for segment, found in zip(segments, sets, strict=True):
                    if number in called(program, [segment]):
                        mine |= found
                function.body = _opened(program, function, function.body, mine)
                remove_unused(function)
                pieces = [(function.body, mine)]
            hoister = _Hoister(program, blocks, function, costs)
            formed = [hoister.part(piece, found) for piece, found in pieces]
            function.body = sum(formed, ())


def segments_of(body: Body) -> list[Body]:
    """The pieces of a body between its phases; each `Phase` begins one."""
    found: list[list[Statement]] = [[]]
    for statement in body:
        if isinstance(statement, Phase):
            found.append([])
        found[-1].append(statement)
    return [tuple(piece) for piece in found]


def _opened(program: InstanceProgram, function: Function, body: Body, recurrent: Set[Node]) -> Body:
    opener = Opener(recurrent, Names(function))

    def visit(inner: Body, repeated: bool) -> Body:
        found: list[Statement] = []
        whole = Concatenations()
        for statement in inner:
            if isinstance(statement, Loop):
                again = not reads_tensors(program, statement.body)
                statement = Loop(visit(statement.body, again))
            else:
                statement = with_bodies(statement, lambda part: visit(part, repeated))
            found.extend(opener.opened(statement, whole) if repeated else [statement])
            whole.note(statement)
        return tuple(found)

    return visit(body, not reads_tensors(program, body))


def why_not_alone(operates: Iterable[Operate], recurrent: Set[Node], costs: _Costs) -> str | None:
    """Why operators of one body stay together, or None where some of them run at depth 0."""
    operates = list(operates)
    late = [item for item in operates if any(v in recurrent for v in used(item))]
    if not late:
        return "no operator of it needs a recurrent value"
    early = [item for item in operates if item not in late]
    if not any(map(costs.is_contraction, early)):
        return "what needs no recurrent value is no contraction"
    return None


@dataclass(slots=True)
class _Costs:
    """Which operations are contractions, each found once."""

    _known: dict[tuple[int, tuple[Any, ...]], bool] = field(
        default_factory=dict[tuple[int, tuple[Any, ...]], bool]
    )
    _kept: list[Any] = field(default_factory=list[Any])

    def is_contraction(self, statement: Operate) -> bool:
        types = tuple(
            operand.type for operand in statement.operands if isinstance(operand, Variable)
        )
        key = (id(statement.operation), types)
        if key not in self._known:
            self._kept.append(statement.operation)
            whole = len(types) == len(statement.operands)
            self._known[key] = whole and contracts(statement.operation, types)
        return self._known[key]


class _Contractions(TorchDispatchMode):
    """Notes whether an operator that sums products is called."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self.found |= name in _OF_VECTORS or properties(name).is_product
        return func(*args, **(kwargs or {}))


_OF_VECTORS = frozenset(("aten.mv.default", "aten.addmv.default"))


def contracts(operation: Any, types: Iterable[Any]) -> bool:
    """Whether an operation sums products: it is worth a block of its own."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given: list[Any] = []
    for type_ in types:
        match type_:
            case TensorType(dtype, shape):
                with mode:
                    given.append(torch.empty(shape, dtype=dtype.torch))
            case RowsType():
                return False
            case Scalar.BOOL:
                given.append(False)
            case Scalar.INT:
                given.append(0)
            case _:
                given.append(0.0)
    with torch.no_grad(), mode, _Contractions() as seen:
        call_operation(operation, given)
    return seen.found


@dataclass(slots=True)
class _Hoister:
    program: InstanceProgram
    blocks: Blocks
    function: Function
    costs: _Costs

    def part(self, body: Body, recurrent: Set[Node]) -> Body:
        """Forms the blocks of depth 0 in a body."""
        chosen: set[int] = set()
        self._choose(body, recurrent, not reads_tensors(self.program, body), chosen)
        if not chosen:
            return body
        uses = FunctionUses.of(self.function)
        for item in walk(body):
            if id(item) in chosen and isinstance(item, Operate):
                reason = "it needs no value of a recurrence"
                place = item.operation.location
                remark = Remark("an operator runs at depth 0", reason, place, is_done=True)
                self.program.remarks.append(remark)
        former = Former(self.blocks, uses, lambda item: id(item) in chosen)
        return former.body(_moved_up(body, chosen, uses))

    def _choose(self, body: Body, recurrent: Set[Node], repeated: bool, chosen: set[int]) -> None:
        """Notes the operators that run at depth 0. repeated: whether a body runs several times
        for one instance without waiting for values in between."""
        operates = [item for item in body if isinstance(item, Operate)]
        if repeated and why_not_alone(operates, recurrent, self.costs) is None:
            wanted: set[Variable] = set()
            for item in reversed(operates):
                early = not any(variable in recurrent for variable in used(item))
                if early and (
                    self.costs.is_contraction(item) or not wanted.isdisjoint(item.targets)
                ):
                    chosen.add(id(item))
                    wanted.update(used(item))
        for statement in body:
            if isinstance(statement, Loop):
                waits = reads_tensors(self.program, statement.body)
                self._choose(statement.body, recurrent, not waits, chosen)
            else:
                for inner in bodies(statement):
                    self._choose(inner, recurrent, repeated, chosen)


def _moved_up(body: Body, chosen: Set[int], uses: FunctionUses) -> Body:
    """Moves chosen operators up over what they do not depend on, so that they meet."""
    found: list[Statement] = []
    for statement in body:
        statement = with_bodies(statement, lambda inner: _moved_up(inner, chosen, uses))
        place = len(found)
        if isinstance(statement, Operate) and id(statement) in chosen:
            while place and _may_precede(statement, found[place - 1], chosen, uses):
                place -= 1
        found.insert(place, statement)
    return tuple(found)


def _may_precede(operate: Operate, other: Statement, chosen: Set[int], uses: FunctionUses) -> bool:
    """Whether an operator may come before another statement, which stands before it. It stays
    behind other chosen operators, and behind what may leave the body, in which case it would be
    computed for nothing."""
    if id(other) in chosen or isinstance(other, Phase) or leaves(other):
        return False
    if not all(map(uses.is_single, operate.targets)):
        return False
    return all_assigned(other).isdisjoint(used(operate))

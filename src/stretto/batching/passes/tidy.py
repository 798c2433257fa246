"""Tidying: copies are propagated, equal operators computed once, unused ones removed.

    %shared = shared() <f32[4]>
    %h = copy(%x)
    %a = mul(%h, %shared)       =>     %a = mul(%x, <f32[4]>)
    %b = mul(%x, %shared)
    %c = add(%a, %b)                   %c = add(%a, %a)

Changes: operands; tensors of constant content (`zeros_like`) become shared ones; copies,
`shared` and operators whose results are not read are removed, except operators that may raise.
Needs: nothing. Guarantees: the same values and exceptions. A tensor that is the same for all
instances becomes a static argument of the operators that use it: it is read once per batch, not
once per row (parameter reuse, ACRoBat, section 5.1).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from stretto.batching.instance_program import (
    Body,
    InstanceProgram,
    call_operation,
    filled,
    inputs_of,
)
from stretto.batching.passes.uses import (
    FunctionUses,
    all_assigned,
    with_bodies,
    with_operands,
)
from stretto.ir.core import Op, Operand, Variable
from stretto.ir.data import AssignOp, InstanceFunction, OperandPlaceholder, OperateOp, operation_key
from stretto.ir.types import TensorType
from stretto.passes.cse import merge_equal
from stretto.passes.dce import drop_unused


@dataclass(frozen=True, slots=True)
class Tidy:
    """shares: tensors that all instances share become static arguments of operators."""

    shares: bool = True
    name: ClassVar[str] = "tidy"

    def apply(self, program: InstanceProgram) -> None:
        filled = _Filled()
        for function in program.functions.values():
            _follow_copies(function)
            function.body.ops = list(filled.visit(function.body.ops))
            if self.shares:
                _share(function)
            merge_equal(function)
            drop_unused(function, _COPIES)


_COPIES = frozenset(("copy", "shared", "cast"))
"""Primitives that are removed if their result is not read."""

# ---- copies


def _follow_copies(function: InstanceFunction) -> None:
    function.body.ops = list(_followed(function.body.ops, {}))


def _followed(body: Body, sources: dict[Variable, Operand]) -> Body:
    """Return a body in which reads of copies read the original. sources: the operand that each
    variable is a copy of at this place."""
    found: list[Op] = []
    for statement in body:
        statement = with_operands(statement, lambda operand: _source(sources, operand))
        for variable in all_assigned(statement):
            _forget(sources, variable)
        statement = with_bodies(statement, lambda inner: _followed(inner, dict(sources)))
        found.append(statement)
        match statement:
            case AssignOp(Variable() as target, "copy", (Variable() as source,)):
                # A copy to another type is kept: it converts to a union type.
                if target is not source and target.type == source.type:
                    sources[target] = source
            case _:
                pass
    return tuple(found)


def _source(sources: Mapping[Variable, Operand], operand: Operand) -> Operand:
    return sources.get(operand, operand) if isinstance(operand, Variable) else operand


def _forget(sources: dict[Variable, Operand], variable: Variable) -> None:
    sources.pop(variable, None)
    for target in [target for target, source in sources.items() if source is variable]:
        del sources[target]


# ---- tensors that all instances share

_FILLED = frozenset(
    ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor")
)
"""Torch functions whose result depends only on the dtype and shape of an operand."""


@dataclass(slots=True)
class _Filled:
    """Tensors of constant content, one per content."""

    made: dict[Hashable, torch.Tensor] = field(default_factory=dict[Hashable, torch.Tensor])

    def visit(self, body: Body) -> Body:
        return tuple(with_bodies(self._constant(item), self.visit) for item in body)

    def _constant(self, statement: Op) -> Op:
        if not isinstance(statement, OperateOp) or len(statement.inputs) != 1:
            return statement
        operation, (operand,) = statement.operation, statement.inputs
        name = getattr(operation.function, "__name__", "")
        if name not in _FILLED or not isinstance(operand, Variable):
            return statement
        if not isinstance(operand.type, TensorType) or list(inputs_of(operation.args[1:])):
            return statement
        key = (operand.type, operation_key(operation))
        if key not in self.made:
            example = torch.zeros(operand.type.static_shape(), dtype=operand.type.dtype.torch)
            self.made[key] = call_operation(operation, [example])
        return AssignOp(
            "shared",
            (),
            self.made[key],
            results=(statement.targets[0],),
            location=operation.location,
        )


def _share(function: InstanceFunction) -> None:
    uses = FunctionUses.of(function)
    shared: dict[Variable, torch.Tensor] = {}

    def visit(body: Body) -> Body:
        found: list[Op] = []
        for statement in body:
            match statement:
                case AssignOp(Variable() as target, "shared", _, tensor) if uses.is_single(target):
                    shared[target] = tensor
                case OperateOp():
                    statement = _with_static(statement, shared)
                case _:
                    pass
            found.append(with_bodies(statement, visit))
        return tuple(found)

    function.body.ops = list(visit(function.body.ops))


def _with_static(statement: OperateOp, shared: dict[Variable, torch.Tensor]) -> OperateOp:
    """Return an operator with its shared operands as static arguments. An operator without any
    other operand is unchanged, since an instance could not record it without operands."""
    stay = [n for n, operand in enumerate(statement.inputs) if operand not in shared]
    if not stay or len(stay) == len(statement.inputs):
        return statement
    given: list[Any] = []
    for number, operand in enumerate(statement.inputs):
        if number in stay:
            given.append(OperandPlaceholder(stay.index(number)))
        else:
            assert isinstance(operand, Variable)
            given.append(shared[operand])
    args, kwargs = filled((statement.operation.args, statement.operation.kwargs), given)
    operation = replace(statement.operation, args=args, kwargs=kwargs)
    return OperateOp(operation, tuple(statement.inputs[n] for n in stay), results=statement.targets)

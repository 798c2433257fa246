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
    AssignStatement,
    Body,
    InstanceFunction,
    InstanceProgram,
    Operand,
    OperandPlaceholder,
    OperateStatement,
    Statement,
    Variable,
    call_operation,
    filled,
    inputs_of,
)
from stretto.batching.passes.uses import (
    FunctionUses,
    OperationKeys,
    all_assigned,
    assigned,
    operand_key,
    used,
    with_bodies,
    with_operands,
)
from stretto.batching.types import InstanceTensorType


@dataclass(frozen=True, slots=True)
class Tidy:
    """shares: tensors that all instances share become static arguments of operators."""

    shares: bool = True
    name: ClassVar[str] = "tidy"

    def apply(self, program: InstanceProgram) -> None:
        filled = _Filled()
        for function in program.functions:
            _follow_copies(function)
            function.body = filled.visit(function.body)
            if self.shares:
                _share(function)
            _merge_equal(function)
            remove_unused(function)


# ---- copies


def _follow_copies(function: InstanceFunction) -> None:
    function.body = _followed(function.body, {})


def _followed(body: Body, sources: dict[Variable, Operand]) -> Body:
    """Return a body in which reads of copies read the original. sources: the operand that each
    variable is a copy of at this place."""
    found: list[Statement] = []
    for statement in body:
        statement = with_operands(statement, lambda operand: _source(sources, operand))
        for variable in all_assigned(statement):
            _forget(sources, variable)
        statement = with_bodies(statement, lambda inner: _followed(inner, dict(sources)))
        found.append(statement)
        match statement:
            case AssignStatement(Variable() as target, "copy", (Variable() as source,)):
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

    contents: OperationKeys = field(default_factory=OperationKeys)
    made: dict[Hashable, torch.Tensor] = field(default_factory=dict[Hashable, torch.Tensor])

    def visit(self, body: Body) -> Body:
        return tuple(with_bodies(self._constant(item), self.visit) for item in body)

    def _constant(self, statement: Statement) -> Statement:
        if not isinstance(statement, OperateStatement) or len(statement.operands) != 1:
            return statement
        operation, (operand,) = statement.operation, statement.operands
        name = getattr(operation.function, "__name__", "")
        if name not in _FILLED or not isinstance(operand, Variable):
            return statement
        if not isinstance(operand.type, InstanceTensorType) or list(inputs_of(operation.args[1:])):
            return statement
        key = (operand.type, self.contents.operation(operation))
        if key not in self.made:
            example = torch.zeros(operand.type.shape, dtype=operand.type.dtype.torch)
            self.made[key] = call_operation(operation, [example])
        return AssignStatement(
            statement.targets[0], "shared", (), self.made[key], operation.location
        )


def _share(function: InstanceFunction) -> None:
    uses = FunctionUses.of(function)
    shared: dict[Variable, torch.Tensor] = {}

    def visit(body: Body) -> Body:
        found: list[Statement] = []
        for statement in body:
            match statement:
                case AssignStatement(Variable() as target, "shared", _, tensor) if uses.is_single(
                    target
                ):
                    shared[target] = tensor
                case OperateStatement():
                    statement = _with_static(statement, shared)
                case _:
                    pass
            found.append(with_bodies(statement, visit))
        return tuple(found)

    function.body = visit(function.body)


def _with_static(
    statement: OperateStatement, shared: dict[Variable, torch.Tensor]
) -> OperateStatement:
    """Return an operator with its shared operands as static arguments. An operator without any
    other operand is unchanged, since an instance could not record it without operands."""
    stay = [n for n, operand in enumerate(statement.operands) if operand not in shared]
    if not stay or len(stay) == len(statement.operands):
        return statement
    given: list[Any] = []
    for number, operand in enumerate(statement.operands):
        if number in stay:
            given.append(OperandPlaceholder(stay.index(number)))
        else:
            assert isinstance(operand, Variable)
            given.append(shared[operand])
    args, kwargs = filled((statement.operation.args, statement.operation.kwargs), given)
    operation = replace(statement.operation, args=args, kwargs=kwargs)
    return OperateStatement(
        statement.targets, operation, tuple(statement.operands[n] for n in stay)
    )


# ---- equal operators


def _merge_equal(function: InstanceFunction) -> None:
    merger = _Merger(FunctionUses.of(function))
    function.body = merger.body(function.body, {})


@dataclass(slots=True)
class _Merger:
    uses: FunctionUses
    contents: OperationKeys = field(default_factory=OperationKeys)
    same: dict[Variable, Variable] = field(default_factory=dict[Variable, Variable])

    def body(self, body: Body, known: dict[Hashable, tuple[Variable, ...]]) -> Body:
        """Replace repeated operators. known: the results of earlier operators, by content and
        operands."""
        found: list[Statement] = []
        for statement in body:
            statement = with_operands(statement, lambda operand: _source(self.same, operand))
            if isinstance(statement, OperateStatement) and self._has_one_value(statement):
                operands = tuple(map(operand_key, statement.operands))
                key = (self.contents.operation(statement.operation), operands)
                if key in known:
                    self.same.update(zip(statement.targets, known[key], strict=True))
                    continue
                known[key] = statement.targets
            found.append(with_bodies(statement, lambda inner: self.body(inner, dict(known))))
        return tuple(found)

    def _has_one_value(self, statement: OperateStatement) -> bool:
        return all(map(self.uses.is_single, (*statement.targets, *statement.operands)))


# ---- unused results

_PURE = frozenset(("copy", "shared", "cast"))


def remove_unused(function: InstanceFunction) -> None:
    """Remove operators and copies whose results are not read, except those that may raise."""
    reads = FunctionUses.of(function).reads
    changed = True

    def visit(body: Body) -> Body:
        nonlocal changed
        found: list[Statement] = []
        # From the bottom up, so that operators read only by unused operators are removed, too.
        for statement in reversed(body):
            statement = with_bodies(statement, visit)
            match statement:
                case OperateStatement():
                    pure = not statement.may_raise
                case AssignStatement(op=op):
                    pure = op in _PURE
                case _:
                    pure = False
            if pure and not any(reads[variable] for variable in assigned(statement)):
                reads.subtract(used(statement))
                changed = True
                continue
            found.append(statement)
        return tuple(reversed(found))

    while changed:
        changed = False
        function.body = visit(function.body)

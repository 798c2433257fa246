"""The opposite of parameter reuse: parameters become operands of each instance.

    %y = Linear(%x)        =>        %weight = shared() <f32[4, 4]>
                                     %bias = shared() <f32[4]>
                                     %y = Linear(%x, %weight, %bias)

Each argument of an operator then comes from a row per instance, and is gathered like the
others: as in a batcher that does not know which tensors all instances share. The pass exists to
measure what parameter reuse is worth (ACRoBat, section 5.1 and figure 5). Changes: tensors
among the arguments of operators, and the parameters of modules, become `shared` operands.
Needs: `Tidy(shares=False)` before. Guarantees: the same values up to rounding. Operators
without operands, and tensors in keyword arguments, are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn

from stretto.batching.instance_program import Body, InstanceProgram
from stretto.batching.passes.uses import with_bodies
from stretto.ir.core import Op, Variable
from stretto.ir.data import AssignOp, OperandPlaceholder, OperateOp
from stretto.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class GatherParameters:
    name: ClassVar[str] = "gathered"

    def apply(self, program: InstanceProgram) -> None:
        gatherer = _Gatherer()
        for function in program.functions.values():
            function.body.ops = list(gatherer.body(function.body.ops))


@dataclass(frozen=True, eq=False)
class _Called:
    """A module as a function of its arguments followed by its parameters."""

    module: nn.Module
    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return type(self.module).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        count = len(args) - len(self.names)
        given = dict(zip(self.names, args[count:], strict=True))
        return torch.func.functional_call(self.module, given, args[:count], kwargs)


@dataclass(slots=True)
class _Gatherer:
    called: dict[nn.Module, _Called] = field(default_factory=dict[nn.Module, _Called])

    def body(self, body: Body) -> Body:
        found: list[Op] = []
        for statement in body:
            statement = with_bodies(statement, self.body)
            if isinstance(statement, OperateOp) and statement.inputs:
                shared, statement = self.gathered(statement)
                found += shared
            found.append(statement)
        return tuple(found)

    def gathered(self, operate: OperateOp) -> tuple[list[AssignOp], OperateOp]:
        """Return the operator with its tensors as operands, and the statements that define them."""
        operation = operate.operation
        operands = list(operate.inputs)
        shared: list[AssignOp] = []

        def operand(tensor: torch.Tensor) -> OperandPlaceholder:
            dtype = DType.from_torch(tensor.dtype)
            variable = Variable("parameter", TensorType(dtype, tuple(tensor.shape)))
            shared.append(
                AssignOp("shared", (), tensor, results=(variable,), location=operation.location)
            )
            operands.append(variable)
            return OperandPlaceholder(len(operands) - 1)

        def change(item: Any) -> Any:
            match item:
                case torch.Tensor() if _is_carried(item):
                    return operand(item)
                case tuple() if type(item) is tuple:
                    return tuple(map(change, item))
                case list():
                    return list(map(change, item))
                case _:
                    return item

        function, args = operation.function, change(operation.args)
        if isinstance(function, nn.Module):
            names = tuple(name for name, _ in function.named_parameters())
            if names and all(map(_is_carried, function.parameters())):
                args = (*args, *(operand(p) for _, p in function.named_parameters()))
                function = self.called.setdefault(function, _Called(function, names))
        changed = replace(operation, function=function, args=args)
        return shared, OperateOp(changed, tuple(operands), results=operate.targets)


def _is_carried(tensor: torch.Tensor) -> bool:
    """Return True if a Program can hold tensors of this dtype."""
    try:
        DType.from_torch(tensor.dtype)
    except KeyError:
        return False
    return True

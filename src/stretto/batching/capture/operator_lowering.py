"""Tensor operators of a captured Program as operators that an instance records.

A value with another size than the first that data decide is no data: the operators that make it
become part of those that use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.batching.capture.lowered_values import LoweredValues
from stretto.batching.capture.number_lowering import NumberLowering
from stretto.batching.capture.rows_lowering import RowsLowering, placeholder
from stretto.batching.instance_program import program_operator, tensor_places
from stretto.ir.core import Literal, Operand, Value
from stretto.ir.data import OperandPlaceholder, OperateOp, Operation
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Size
from stretto.ops.positions import CHECK

_FREE_OF_STRIDES = {"aten.view.default": "aten.reshape.default"}
"""Operators that depend on strides, which values of a Program have not, and what they compute."""

Checked = tuple[TensorOp, ...]
"""An operator, after the checks of its positions."""


@dataclass(eq=False)
class OperatorLowering:
    """Records operators. checks: those of positions, for the next operators that use them. inner:
    for each value that is no data, the operator that makes it."""

    main: LoweredValues
    rows: RowsLowering
    numbers: NumberLowering
    checks: list[TensorOp] = field(default_factory=list[TensorOp])
    inner: dict[Value, Checked] = field(default_factory=dict[Value, Checked])

    def record(self, op: TensorOp) -> None:
        """Emit an operator of the instance."""
        main = self.main
        given = [c for c in self.checks if not set(c.operands).isdisjoint(op.operands)]
        self.checks = [c for c in self.checks if c not in given]
        if len(op.results) == 1 and not main.types.is_data(op.result):
            self.inner[op.result] = (*given, op)
            return
        steps = self.steps((*given, op), {})
        self.rows.check_lengths([one[-1] for one in steps])
        self.operate(steps, op.results)

    def emit_checks(self) -> None:
        """Emit the checks of positions that no operator uses."""
        for check in self.checks:
            if not self.numbers.check(check):
                self.operate([(check,)], ())
        self.checks = []

    def operate(self, steps: list[Checked], values: tuple[Value, ...]) -> None:
        """Emit operators as one. values: its results; none for a check."""
        main, operands = self.main, list[Operand]()
        for one in steps:
            self.operation(one, steps, operands)  # finds the operands
        operations = [self.operation(one, steps, operands) for one in steps]
        (*_, operation), location = operations, steps[-1][-1].location
        results = operation.results
        if len(operations) > 1:
            function = main.types.composition(tuple(operations))
            args = tuple(map(OperandPlaceholder, range(len(operands))))
            operation = Operation(function, args, (), results, location)
        targets = tuple(map(main.fresh, results))
        self.rows.check_short(operation, operands)
        main.emit(OperateOp(operation, tuple(operands), results=targets, location=location))
        main.values |= dict(zip(values, targets, strict=bool(values)))

    def steps(self, op: Checked, found: dict[Value, Checked]) -> list[Checked]:
        """Return the operators that make what an operator needs and is no data, and itself last.
        found: those that are known."""
        for value in (value for one in op for value in one.operands):
            if value in self.inner and value not in found:
                self.steps(self.inner[value], found)
        found[op[-1].results[0]] = op
        return list(found.values())

    def operation(self, op: Checked, steps: list[Checked], operands: list[Operand]) -> Operation:
        """Return one of the steps of an operator. Adds what it needs to the operands; the results
        of the steps follow them."""
        main = self.main

        def place(item: Any, is_tensor: bool = False) -> Any:
            if isinstance(item, Value):
                if item in main.constants:
                    return main.constants[item]
                if item in self.inner:
                    number = steps.index(self.inner[item])
                    return OperandPlaceholder(len(operands) + number)
                found = main.values[item]
                if isinstance(found, Literal):
                    held, dtype = found.value, item.tensor.dtype.torch
                    return torch.tensor(held, dtype=dtype) if is_tensor else held
                return placeholder(main.as_tensor(item) if is_tensor else found, operands)
            if isinstance(item, tuple):
                return tuple([place(part, is_tensor) for part in item])
            return self.rows.count(item, operands) if isinstance(item, Size) else item

        *checks, last = op
        args = tuple(tuple(map(place, one.args)) for one in checks)
        places = tensor_places(last.target)
        args += (tuple(place(item, n in places) for n, item in enumerate(last.args)),)
        kwargs = tuple((name, place(item)) for name, item in last.kwargs)
        is_inner = len(last.results) == 1 and last.result in self.inner
        made = last.operands if last.target == CHECK else last.results
        types = () if is_inner else tuple(map(main.types.tensor_type_of, made))
        names = (*(one.target for one in checks), _FREE_OF_STRIDES.get(last.target, last.target))
        return Operation(program_operator(*names), args, kwargs, types, last.location)

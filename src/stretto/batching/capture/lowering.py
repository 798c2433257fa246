"""From the captured Program of a function for one instance to an InstanceProgram.

The Program is in SSA form: blocks yield, lists are values. Here results of branches and loops
become variables, and lists and numbers become Python data: an operator on numbers is a primitive, a
list that nothing reads any more is changed in place. The other operators are recorded for the
batch. A number in a tensor is read where Python data or control needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.batching.capture.data_types import DataTypes
from stretto.batching.capture.function_lowering import FunctionLowering
from stretto.batching.capture.instance_data import InstanceData
from stretto.batching.instance_program import InstanceProgram, instance_program
from stretto.batching.instances.types import tensor_type
from stretto.batching.verifier import type_of as type_of_operand
from stretto.errors import CaptureError
from stretto.ir.core import Literal, Operand, Program
from stretto.ir.data import InstanceFunction
from stretto.ir.types import NEVER, ListType, RecordType, TupleType, union


@dataclass(frozen=True, slots=True)
class YieldedResult:
    """The part of a result that the Program yields as value number `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class SharedResult:
    """A part of a result that is the same for all instances."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class MadeResult:
    """A container or an object that the function makes, with its parts by position or name."""

    kind: type
    parts: dict[Any, ResultPart]


ResultPart = YieldedResult | SharedResult | MadeResult


def lowered(program: Program, data: InstanceData, result: ResultPart) -> InstanceProgram:
    """Return the InstanceProgram of a captured Program. result: the structure of what its main
    function returns."""
    made = dict[str, InstanceFunction]()
    types = DataTypes(program, data)
    functions = [FunctionLowering(types, one, made) for one in program.functions.values()]
    for one in functions:
        one.declare(NEVER if one.function is program.main else None)
    for one in functions:
        is_main = one.function is program.main
        one.lower((lambda main: ResultBuilder(main).built(result)) if is_main else None)
    evaluation = data.evaluation
    return instance_program(made.values(), evaluation.classes.infos, evaluation.cells)


@dataclass(eq=False)
class ResultBuilder:
    """Builds what the main function returns. made: the parts that are built."""

    main: FunctionLowering
    made: dict[ResultPart, Operand] = field(default_factory=dict[ResultPart, Operand])

    def built(self, part: ResultPart) -> Operand:
        """Return a part of the result as data."""
        if part not in self.made:
            self.made[part] = self.new_part(part)
        return self.made[part]

    def new_part(self, part: ResultPart) -> Operand:
        match part:
            case YieldedResult(number):
                return self.main.as_data(self.main.function.body.yields[number])
            case SharedResult(None | bool() | int() | float() | str() as value):
                return Literal(value)
            case SharedResult(torch.Tensor() as tensor):
                return self.main.assign("shared", (), tensor_type(tensor), tensor)
            case SharedResult(value):
                raise CaptureError(f"a {type(value).__name__} is returned")
            case MadeResult():
                pass
        evaluation, kind = self.main.types.evaluation, part.kind
        items = [self.built(item) for item in part.parts.values()]
        types = list(map(type_of_operand, items))
        if kind is tuple:
            return self.main.assign("tuple", items, TupleType(tuple(types)))
        if kind is list:
            cell = evaluation.new_cell(union(types))
            return self.main.assign("list", items, ListType(cell), False)
        names = tuple(part.parts)
        form = "dict" if kind is dict else "namedtuple" if issubclass(kind, tuple) else "object"
        number = evaluation.class_number(kind, form, names)
        for name, its in zip(names, types, strict=True):
            cell = evaluation.field_cell(RecordType(number), name)
            assert cell is not None
            evaluation.cells[cell] = union((evaluation.cells[cell], its))
        return self.main.assign("record", items, RecordType(number), (number, names))

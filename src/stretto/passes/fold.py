"""Constant folding: ops that depend only on constants are computed at compile time.

The interpreter runs a tensor op whose operands are constants and literals; the result
becomes a literal if it has no dims, or else a new constant, unless it would be larger than
its operands together and than `max_bytes`. A run-time number that is known becomes an
attribute, a known bound of a loop an int. An `if` with a known condition becomes the arm
that is taken; a loop of no or one iteration becomes its initial values or its body. An op
that would stop the run is left in place, to stop it.

    %a = constant "w" : f32[8, 64]            %t = constant "folded_0" : f32[64, 8]
    %t = aten.t.default(%a)                   %y = aten.mm.default(%x, %t)
    %c = literal True : bool[]         ->
    %y = if %c {
      %z = aten.mm.default(%x, %t)
      yield %z
    } else { ... }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import torch

from stretto.errors import RunError, VerifyError
from stretto.interp.interpreter import evaluate
from stretto.ir.core import Op, Program, Value, argument_values, map_argument
from stretto.ir.ops import CheckOp, ConstantOp, ForOp, IfOp, LiteralOp, TensorOp, WhileOp
from stretto.ir.rewrite import Definitions, Replacement, inline_block, rewrite_program
from stretto.ir.sizes import Size
from stretto.ir.symbols import symbols_of_op
from stretto.ir.types import INDEX
from stretto.ops.arguments import with_arguments
from stretto.ops.infer import named_arguments
from stretto.ops.properties import is_random
from stretto.passes.algebra import number
from stretto.passes.analyses.op_facts import on_host


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """The pass. A result is not folded if it takes more than `max_bytes` and more than its
    operands together."""

    max_bytes: int = 64 * 1024
    name: ClassVar[str] = "fold"

    def apply(self, program: Program) -> bool:
        return rewrite_program(program, _Folder(program, self.max_bytes).visit)


def keep_reason(op: TensorOp, definitions: Definitions, max_bytes: int) -> str | None:
    """Return why the op is left for the run, or None."""
    operands = [definitions.get(value) for value in op.operands]
    if not all(isinstance(item, ConstantOp | LiteralOp) for item in operands):
        return "an operand is not constant"
    if is_random(op):
        return "it is random"
    types = [value.tensor for value in (*op.results, *op.operands)]
    if symbols_of_op(op) or not all(type.is_static for type in types):
        return "it has symbolic dims"
    size = sum(value.tensor.nbytes for value in op.results)
    if size > max(max_bytes, sum(value.tensor.nbytes for value in set(op.operands))):
        return f"its result of {size} bytes is larger than its operands"
    return None


class _Folder:
    def __init__(self, program: Program, max_bytes: int) -> None:
        self.program = program
        self.max_bytes = max_bytes

    def visit(self, op: Op, definitions: Definitions) -> Replacement | None:
        fold = _FOLDS.get(type(op))
        return fold(self, op, definitions) if fold is not None else None

    def constant(self, op: ConstantOp, _: Definitions) -> Replacement | None:
        tensor = self.program.constants[op.key]
        return self.known(op, (tensor,), [tensor]) if tensor.dim() == 0 else None

    def tensor(self, op: TensorOp, definitions: Definitions) -> Replacement | None:
        if keep_reason(op, definitions, self.max_bytes) is not None:
            return with_numbers(op, definitions)
        values = {item: self.value(definitions[item]) for item in op.operands}
        try:
            return self.known(op, evaluate(op, values, {}), self.tensors(op, definitions))
        except RunError:
            return None

    def value(self, maker: Op) -> torch.Tensor:
        if isinstance(maker, LiteralOp):
            return torch.tensor(maker.value, dtype=maker.result.tensor.dtype.torch)
        assert isinstance(maker, ConstantOp)
        return on_host(self.program.constants[maker.key])

    def tensors(self, op: TensorOp, definitions: Definitions) -> list[torch.Tensor]:
        """The constants among the operands of an op."""
        makers = [definitions[value] for value in op.operands]
        return [self.program.constants[m.key] for m in makers if isinstance(m, ConstantOp)]

    def known(
        self, op: Op, tensors: tuple[Any, ...], sources: Sequence[torch.Tensor]
    ) -> Replacement:
        """Return literals and new constants with the values `tensors`, computed from `sources`, to
        replace the results of an op."""
        ops: list[Op] = []
        for old, tensor in zip(op.results, tensors, strict=True):
            result = Value(old.type, old.hint)
            self.program.folded.note(sources, tensor if tensor.dim() else None)
            if tensor.dim() == 0:
                ops.append(LiteralOp(tensor.item(), results=(result,), location=op.location))
                continue
            key = next(k for i in count() if (k := f"folded_{i}") not in self.program.constants)
            self.program.constants[key] = tensor
            ops.append(ConstantOp(key, results=(result,), location=op.location))
        return ops, tuple(item.result for item in ops)

    def branch(self, op: IfOp, definitions: Definitions) -> Replacement | None:
        condition = number(op.condition, definitions)
        if condition is None:
            return None
        arm = op.then if condition else op.orelse
        if any(one.type != other.type for one, other in zip(arm.yields, op.results, strict=True)):
            return None  # the arm names its symbols differently
        return inline_block(arm, ())

    def check(self, op: CheckOp, definitions: Definitions) -> Replacement | None:
        """Drop a check that holds; one that does not is left, to stop the run."""
        return ([], ()) if number(op.condition, definitions) else None

    def while_loop(self, op: WhileOp, definitions: Definitions) -> Replacement | None:
        if number(op.condition.yields[0], definitions) is not False:
            return None
        ops, _ = inline_block(op.condition, op.inits)  # its checks run once
        return ops, op.inits

    def for_loop(self, op: ForOp, definitions: Definitions) -> Replacement | None:
        given = op.start, op.stop
        op.start, op.stop = (_bound(bound, definitions) for bound in given)
        trips = op.trip_count()
        if trips == 0:
            return [], op.inits
        if trips != 1:
            return ([op], op.results) if (op.start, op.stop) != given else None
        assert isinstance(op.start, int)
        index = LiteralOp(op.start, results=(Value(INDEX, op.index.hint),), location=op.location)
        ops, values = inline_block(op.body, (index.result, *op.inits))
        return [index, *ops], values


def with_numbers(op: TensorOp, definitions: Definitions) -> Replacement | None:
    """Return the op with known run-time numbers as attributes, or None. A position out of range is
    left as it is: at run time it raises the error, as an attribute it is invalid."""
    known = {
        value: found for value in op.operands if (found := number(value, definitions)) is not None
    }
    changed = {
        parameter.name: map_argument(item, lambda value: known.get(value, value))
        for parameter, item in named_arguments(op.target, op.args, op.kwargs)
        if not parameter.is_tensor and not known.keys().isdisjoint(argument_values(item))
    }
    if not changed:
        return None
    try:
        new = with_arguments(op, changed)
    except VerifyError:
        return None
    if [one.type for one in new.results] != [one.type for one in op.results]:
        return None
    new.location = op.location
    for one, other in zip(new.results, op.results, strict=True):
        one.hint = other.hint
    return [new], new.results


def _bound(bound: int | Size | Value, definitions: Definitions) -> int | Size | Value:
    known = number(bound, definitions)
    if known is not None:
        return int(known)
    maker = definitions.get(bound) if isinstance(bound, Value) else None
    if isinstance(maker, TensorOp) and maker.target == "aten.scalar_tensor.default":
        size = maker.args[0]
        return size if isinstance(size, Size) else bound
    return bound


# Each method takes its own op class, which the type of a dict cannot express.
_FOLDS: dict[type[Op], Callable[[_Folder, Any, Definitions], Replacement | None]] = {
    ConstantOp: _Folder.constant,
    TensorOp: _Folder.tensor,
    CheckOp: _Folder.check,
    IfOp: _Folder.branch,
    WhileOp: _Folder.while_loop,
    ForOp: _Folder.for_loop,
}

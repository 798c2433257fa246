"""Recognising contractions with one constant operand, and making constants from others.

`linear`, `mm`, `addmm`, `mv` and `matmul` with a constant matrix all are `input @ weight.T + bias`
over the last dim of the input, so passes treat them as one (`Linear`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import Argument, ConstantOp, TensorOp, argument_values
from stretto.ir.symbols import symbols_of_argument
from stretto.ir.types import DType, TensorType
from stretto.ops.arguments import argument, value_argument
from stretto.ops.infer import resolve
from stretto.ops.properties import is_view
from stretto.passes.analyses.host import on_host


def _depends(argument: Argument) -> bool:
    """Whether an argument is known in the run or at the call only."""
    return bool(argument_values(argument)) or any(symbols_of_argument(argument))


@dataclass(frozen=True, slots=True)
class Constants:
    """The values of a function that are known tensors, and the constants that a pass makes of them.

    made: keys of the constants that this run of a pass made; the same ones are made once.
    """

    program: Program
    makers: Mapping[Value, Op]
    made: dict[Hashable, str]

    @staticmethod
    def by_function(program: Program) -> Iterator[tuple[Block, Constants]]:
        """The body and the constants of each function."""
        made: dict[Hashable, str] = {}
        for function in program.functions.values():
            makers = {value: op for op in function.body.walk() for value in op.results}
            yield function.body, Constants(program, makers, made)

    def tensor(self, value: Value | None) -> torch.Tensor | None:
        """The tensor that the value always is, or None: of constants, and of views of them."""
        op = None if value is None else self.makers.get(value)
        if isinstance(op, ConstantOp):
            return on_host(self.program.constants[op.key])
        if not (isinstance(op, TensorOp) and is_view(op) and len(op.results) == 1):
            return None
        source, *rest = op.args or (None,)
        if op.kwargs or not isinstance(source, Value) or any(map(_depends, rest)):
            return None
        known = self.tensor(source)
        # By value there is no layout: a view of a transposed tensor is a reshape.
        return None if known is None else resolve(op.target)(known.contiguous(), *rest)

    def derived(
        self,
        stem: str,
        sources: Sequence[torch.Tensor | int],
        make: Callable[[], torch.Tensor],
    ) -> ConstantOp:
        """A constant op for `make()`, which depends on `sources` and on what `stem` says alone."""
        identity = (stem, *(_identity(item) for item in sources))
        constants = self.program.constants
        if identity not in self.made:
            keys = (f"{stem}.{number}" for number in count())
            key = self.made[identity] = next(key for key in keys if key not in constants)
            constants[key] = make()
            tensors = [item for item in sources if isinstance(item, torch.Tensor)]
            self.program.folded.note(tensors, constants[key])
        tensor = constants[self.made[identity]]
        type = TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))
        return ConstantOp(self.made[identity], results=(Value(type, stem),))


def _identity(item: torch.Tensor | int) -> Hashable:
    """Equal for tensors that are the same part of the same memory."""
    if isinstance(item, int):
        return item
    return (item.data_ptr(), item.dtype, item.device, tuple(item.shape), item.stride())


@dataclass(frozen=True, slots=True)
class Linear:
    """result = input @ weight.T + bias, with weight [N, K], bias [N], input [..., K]."""

    op: TensorOp
    input: Value
    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]


_LINEAR = {
    "aten.linear.default": ("input", "weight", False, "bias"),
    "aten.mm.default": ("self", "mat2", True, ""),
    "aten.matmul.default": ("self", "other", True, ""),
    "aten.addmm.default": ("mat1", "mat2", True, "self"),
    "aten.mv.default": ("vec", "self", False, ""),
    "aten.addmv.default": ("vec", "mat", False, "self"),
}
"""Names of the input and the weight, whether the weight is [K, N], and the name of the bias."""


def as_linear(op: Op, constants: Constants) -> Linear | str:
    """The op as a Linear, or why it is none."""
    if not isinstance(op, TensorOp) or op.target not in _LINEAR:
        return "it is not a product with a matrix"
    input_name, weight_name, transposed, bias_name = _LINEAR[op.target]
    source, bias = value_argument(op, input_name), value_argument(op, bias_name)
    weight, known = constants.tensor(value_argument(op, weight_name)), constants.tensor(bias)
    if source is None or weight is None:
        return "the weight is not constant"
    if weight.dim() != 2 or source.tensor.rank == 0:
        return "the weight is not a matrix"
    if bias is not None and known is None:
        return "the bias is not constant"
    weight = weight.t() if transposed else weight
    if known is not None and known.shape not in ((weight.shape[0],), (1, weight.shape[0])):
        return "the bias is not one number per output"
    if known is not None and any(argument(op, name) not in (None, 1) for name in ("alpha", "beta")):
        return "the product is scaled"
    return Linear(op, source, weight, None if known is None else known.reshape(-1))

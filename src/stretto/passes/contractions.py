"""Recognising contractions with one constant operand.

`linear`, `mm`, `addmm`, `mv` and `matmul` with a constant matrix all are `input @ weight.T + bias`
over the last dim of the input, so passes treat them as one (`Linear`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import Argument, ConstantOp, TensorOp, argument_values
from stretto.ir.types import DType, TensorType
from stretto.ops.arguments import argument, value_argument
from stretto.ops.infer import resolve
from stretto.ops.properties import is_view
from stretto.passes.host import on_host


@dataclass(frozen=True, slots=True)
class Constants:
    """The values of a function that are known tensors: constants, and views of them."""

    tensors: Mapping[str, torch.Tensor]
    makers: Mapping[Value, Op]

    @staticmethod
    def of(program: Program, body: Block) -> Constants:
        makers = {value: op for op in body.walk() for value in op.results}
        return Constants(program.constants, makers)

    def tensor(self, value: Value) -> torch.Tensor | None:
        """The tensor that the value always is, or None."""
        op = self.makers.get(value)
        if isinstance(op, ConstantOp):
            return on_host(self.tensors[op.key])
        if not (isinstance(op, TensorOp) and is_view(op) and len(op.results) == 1):
            return None
        source, *rest = op.args or (None,)
        if op.kwargs or not isinstance(source, Value) or any(_has_value(item) for item in rest):
            return None
        known = self.tensor(source)
        # By value there is no layout: a view of a transposed tensor is a reshape.
        return None if known is None else resolve(op.target)(known.contiguous(), *rest)


def _has_value(item: Argument) -> bool:
    return bool(argument_values(item))


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


def as_linear(op: Op, constants: Constants) -> Linear | str:
    """The op as a Linear, or why it is none."""
    if not isinstance(op, TensorOp):
        return "not a tensor operator"
    reader = _LINEAR.get(op.target)
    if reader is None:
        return f"`{op.target}` is not a product with a matrix"
    source, factor, transposed, bias = reader(op)
    if source is None or factor is None:
        return "an operand is missing"
    weight = constants.tensor(factor)
    if weight is None:
        return "the weight is not constant"
    if weight.dim() != 2 or source.tensor.rank == 0:
        return "the weight is not a matrix"
    known = None if bias is None else constants.tensor(bias)
    if bias is not None and known is None:
        return "the bias is not constant"
    weight = weight.t() if transposed else weight
    if known is not None and known.shape not in ((weight.shape[0],), (1, weight.shape[0])):
        return "the bias is not one number per output"
    if known is not None and (_scaled(op, "alpha") or _scaled(op, "beta")):
        return "the product is scaled"
    return Linear(op, source, weight, None if known is None else known.reshape(-1))


def _scaled(op: TensorOp, name: str) -> bool:
    factor = argument(op, name)
    return factor is not None and (isinstance(factor, Value) or factor != 1)


_Reading = tuple[Value | None, Value | None, bool, Value | None]
"""Input, weight, whether the weight is [K, N], bias."""


def _read_linear(op: TensorOp) -> _Reading:
    weight, bias = value_argument(op, "weight"), value_argument(op, "bias")
    return value_argument(op, "input"), weight, False, bias


def _read_product(op: TensorOp) -> _Reading:
    right = "other" if op.target == "aten.matmul.default" else "mat2"
    return value_argument(op, "self"), value_argument(op, right), True, None


def _read_addmm(op: TensorOp) -> _Reading:
    bias = value_argument(op, "self")
    return value_argument(op, "mat1"), value_argument(op, "mat2"), True, bias


def _read_mv(op: TensorOp) -> _Reading:
    return value_argument(op, "vec"), value_argument(op, "self"), False, None


def _read_addmv(op: TensorOp) -> _Reading:
    bias = value_argument(op, "self")
    return value_argument(op, "vec"), value_argument(op, "mat"), False, bias


_LINEAR = {
    "aten.linear.default": _read_linear,
    "aten.mm.default": _read_product,
    "aten.matmul.default": _read_product,
    "aten.addmm.default": _read_addmm,
    "aten.mv.default": _read_mv,
    "aten.addmv.default": _read_addmv,
}


@dataclass(frozen=True, slots=True)
class DerivedConstants:
    """Constants that one run of a pass makes from others; the same ones are made once."""

    program: Program
    made: dict[Hashable, str] = field(default_factory=dict[Hashable, str])

    def op(
        self,
        stem: str,
        sources: Sequence[torch.Tensor | int],
        make: Callable[[], torch.Tensor],
    ) -> ConstantOp:
        """A constant op for `make()`, which depends on `sources` and on what `stem` says alone."""
        identity = (stem, *(_identity(item) for item in sources))
        if identity not in self.made:
            made = make()
            self.made[identity] = _new_constant(self.program, stem, made)
            tensors = [item for item in sources if isinstance(item, torch.Tensor)]
            self.program.folded.note(tensors, made)
        key = self.made[identity]
        tensor = self.program.constants[key]
        type = TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))
        return ConstantOp(key, results=(Value(type, stem),))


def _identity(item: torch.Tensor | int) -> Hashable:
    """Equal for tensors that are the same part of the same memory."""
    if isinstance(item, int):
        return item
    return (item.data_ptr(), item.dtype, item.device, tuple(item.shape), item.stride())


def _new_constant(program: Program, stem: str, tensor: torch.Tensor) -> str:
    """The key, which starts with `stem`, under which the tensor was entered."""
    keys = (f"{stem}.{number}" for number in count())
    key = next(key for key in keys if key not in program.constants)
    program.constants[key] = tensor
    return key

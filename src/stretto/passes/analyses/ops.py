"""Which ops may run earlier, later or where they would not have run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod

import torch
from torch.utils.weak import WeakIdKeyDictionary

from stretto.ir.core import Block, Op, Program, Value, argument_values
from stretto.ir.ops import (
    Argument,
    ConstantOp,
    ForOp,
    IfOp,
    ListExtendOp,
    ListLengthOp,
    ListNewOp,
    ListPushOp,
    LiteralOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.rewrite import free_values_of_op
from stretto.ir.size_bounds import bounds
from stretto.ir.sizes import usual_value
from stretto.ir.symbols import bound_symbols, symbols_bound_by, symbols_of_argument, symbols_of_op
from stretto.ir.types import Dim, DType, TensorType
from stretto.ops.arguments import argument, value_argument
from stretto.ops.infer import resolve
from stretto.ops.properties import is_view, properties, stay_reason
from stretto.ops.table import Cost
from stretto.passes.manager import PassCosts

LIST_OPS = (ListNewOp, ListPushOp, ListExtendOp, ListLengthOp)
"""Ops on lists that take every list."""


def may_stop(op: Op) -> bool:
    """Whether the op may stop the run, never end, or draw random numbers, which all are seen by
    who runs the program; or whether it binds a symbol, which holds behind a check only."""
    match op:
        case ConstantOp() | LiteralOp():
            return False
        case TensorOp():
            return stay_reason(op) is not None
        case IfOp() | ForOp():
            return any(may_stop(inner) for block in op.blocks for inner in block.ops)
        case _:
            return not isinstance(op, LIST_OPS)


def any_may_stop(ops: Iterable[Op]) -> bool:
    return any(may_stop(op) for op in ops)


def reads(op: Op) -> tuple[Value, ...]:
    """What the op and its blocks read from outside of it."""
    return free_values_of_op(op) if op.blocks else op.operands


def needed_for(ops: Iterable[Op], wanted: Iterable[Value]) -> set[Op]:
    """Those of some ops, given in order, that others of them or `wanted` are made from."""
    found: set[Op] = set()
    values = set(wanted)
    for op in reversed(list(ops)):
        if not values.isdisjoint(op.results):
            found.add(op)
            values.update(reads(op))
    return found


def made_from(ops: Iterable[Op], sources: Iterable[Value]) -> set[Op]:
    """Those of some ops, given in order, that read `sources`, or what is made from these."""
    found: set[Op] = set()
    values = set(sources)
    for op in ops:
        if not values.isdisjoint(reads(op)):
            found.add(op)
            values.update(op.results)
    return found


def names_own_sizes(op: Op, blocks: Iterable[Block]) -> bool:
    """Whether the op binds symbols, or names symbols that are bound in the blocks."""
    if symbols_bound_by(op):
        return True
    named = symbols_of_op(op)
    return bool(named) and any(not named.isdisjoint(bound_symbols(block)) for block in blocks)


def keeps_types(op: IfOp, place: int | None = None) -> bool:
    """Whether the arms yield the types of the results (of one of them) as they are, not renamed."""
    places = range(len(op.results)) if place is None else (place,)
    return all(arm.yields[one].type == op.results[one].type for arm in op.blocks for one in places)


# ---- What ops of a Program take, roughly, before there are kernels that a machine could say it
# of.


_PASSES = 4
"""How often an operator that is neither elementwise nor a product looks at each element."""

SizeOf = Callable[[Dim], float]


def largest(dim: Dim) -> float:
    """The most that a dim can be."""
    high = bounds(dim)[1]
    return float("inf") if high is None else high


def usual(dim: Dim) -> float:
    """What a dim is taken to be."""
    return max(usual_value(dim), 1)


def seconds(op: Op, costs: PassCosts, size_of: SizeOf = largest, units: int = 1) -> float:
    """Units compute the op together, with what they read at hand. Infinite where that cannot be
    said, as for a tensor of any size, a loop or a call."""
    if isinstance(op, ConstantOp | LiteralOp):
        return 0.0
    if not isinstance(op, TensorOp):
        return float("inf")
    cost = properties(op.target).cost
    made = sum(elements(value, size_of) for value in op.results)
    if cost is Cost.FREE:
        return 0.0
    if cost is Cost.ELEMENT:
        return made * costs.element_seconds / units
    read = max((elements(value, size_of) for value in op.operands), default=0.0)
    if cost is Cost.PRODUCT:
        weights = sum(nbytes(value, size_of) for value in op.operands)
        work = costs.product_seconds(_product_flops(op, made, size_of), weights, units)
    else:
        work = _PASSES * max(made, read) * costs.element_seconds / units
    return costs.start_seconds + work


def seconds_of_all(ops: Iterable[Op], costs: PassCosts, size_of: SizeOf = largest) -> float:
    return sum(seconds(op, costs, size_of) for op in ops)


def run_seconds(ops: Iterable[Op], costs: PassCosts, units: int) -> float:
    """One run of some ops, each shared out to the units, which wait for each other behind it."""
    return sum(_op_seconds(op, costs, units) for op in ops)


def _op_seconds(op: Op, costs: PassCosts, units: int) -> float:
    inner = [run_seconds(block.ops, costs, units) for block in op.blocks]
    match op:
        case IfOp():
            return max(inner)
        case WhileOp():
            return costs.unknown_trips * sum(inner)
        case ForOp():
            trips = op.trips()
            return (costs.unknown_trips if trips is None else usual(trips)) * sum(inner)
        case TensorOp():
            alone = seconds(op, costs, usual)
            if units == 1 or alone < costs.small_waits * costs.wait_seconds:
                return alone
            return seconds(op, costs, usual, units) + costs.wait_seconds
        case _:
            return 0.0


def elements(value: Value, size_of: SizeOf = largest) -> float:
    """How many numbers a tensor has; infinite for a list."""
    if not isinstance(value.type, TensorType):
        return float("inf")
    return prod((size_of(dim) for dim in value.type.shape), start=1.0)


def nbytes(value: Value, size_of: SizeOf = largest) -> float:
    return elements(value, size_of) * value.tensor.dtype.itemsize


def _product_flops(op: TensorOp, made: float, size_of: SizeOf) -> float:
    """Floating point operations: each element of the result is a sum over what two operands share.

    Of [M, K] and [K, N] the elements are M K, K N and M N, so K is the root of M K K N / M N. A
    convolution shares channels and taps: what its weight has for one channel of the result.
    """
    tensors = [value for value in op.operands if isinstance(value.type, TensorType)]
    if len(tensors) < 2:
        return 2.0 * made
    if "conv" in op.target:
        taps = prod((size_of(dim) for dim in tensors[1].tensor.shape[1:]), start=1.0)
        return 2.0 * made * taps
    ranked = sorted(tensors, key=lambda value: elements(value, size_of))[-2:]
    shared = (elements(ranked[0], size_of) * elements(ranked[1], size_of) / max(made, 1.0)) ** 0.5
    return 2.0 * made * max(shared, 1.0)


# ---- Constants where passes compute: on the CPU, wherever the program will run.


# pyright: reportPrivateUsage=false
# version counters of tensors


_COPIES = WeakIdKeyDictionary()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient; of one on a GPU a copy, the same one as long as the tensor
    has the same version.

    What passes compute from it is a constant on the CPU, which is moved when the program is loaded;
    a constant that is used as it is stays where it is.
    """
    if tensor.is_cpu:
        return tensor.detach()
    version = None if tensor.is_inference() else tensor._version
    found = _COPIES.get(tensor)
    if found is None or found[0] != version:
        found = _COPIES[tensor] = version, tensor.detach().cpu()
    return found[1]


# ---- Recognising contractions with one constant operand, and making constants from others.
#
# `linear`, `mm`, `addmm`, `mv` and `matmul` with a constant matrix all are `input @ weight.T +
# bias` over the last dim of the input, so passes treat them as one (`Linear`).


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

"""Facts about ops that passes share: which may move, what they cost, and which values are
constant."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
"""Ops on lists that never fail, whatever the list."""


def may_stop(op: Op) -> bool:
    """True if moving, dropping or repeating the op can be observed: it may stop the run, never
    end, or draw random numbers, or it binds a symbol, which is valid only after a check."""
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
    """Values from outside the op that it or its blocks read."""
    return free_values_of_op(op) if op.blocks else op.operands


def backward_slice(ops: Iterable[Op], wanted: Iterable[Value]) -> set[Op]:
    """Those of `ops`, which are in program order, that compute `wanted`, directly or through each
    other."""
    found: set[Op] = set()
    values = set(wanted)
    for op in reversed(list(ops)):
        if not values.isdisjoint(op.results):
            found.add(op)
            values.update(reads(op))
    return found


def dependents(ops: Iterable[Op], sources: Iterable[Value]) -> set[Op]:
    """Those of `ops`, which are in program order, that read `sources`, directly or through each
    other."""
    found: set[Op] = set()
    values = set(sources)
    for op in ops:
        if not values.isdisjoint(reads(op)):
            found.add(op)
            values.update(op.results)
    return found


def names_own_sizes(op: Op, blocks: Iterable[Block]) -> bool:
    """True if the op binds symbols, or names symbols that are bound in the blocks."""
    if symbols_bound_by(op):
        return True
    named = symbols_of_op(op)
    return bool(named) and any(not named.isdisjoint(bound_symbols(block)) for block in blocks)


def keeps_types(op: IfOp, place: int | None = None) -> bool:
    """True if the arms yield exactly the result types, with no symbol renamed; `place` restricts
    the test to one result."""
    places = range(len(op.results)) if place is None else (place,)
    return all(arm.yields[one].type == op.results[one].type for arm in op.blocks for one in places)


# ---- Rough cost estimates of the ops of a Program, made before there are kernels that a machine
# could estimate.


_PASSES = 4
"""Assumed number of visits to each element by an operator that is neither elementwise nor a
product."""

SizeOf = Callable[[Dim], float]


def largest(dim: Dim) -> float:
    """Return the upper bound of a dim; infinite if it has none."""
    high = bounds(dim)[1]
    return float("inf") if high is None else high


def usual(dim: Dim) -> float:
    """Return the usual value of a dim, at least 1."""
    return max(usual_value(dim), 1)


def seconds(op: Op, costs: PassCosts, size_of: SizeOf = largest, units: int = 1) -> float:
    """Return the estimated seconds of one op that `units` compute together, its operands being in
    cache.

    Infinite if there is no estimate: for ops other than tensor ops and constants, and for dims
    without a bound. `size_of` gives the number to assume for a dim.
    """
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


def run_seconds(ops: Iterable[Op], costs: PassCosts, units: int) -> float:
    """Return the estimated seconds of one run of `ops`, each shared among the units, which then
    wait for each other."""
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
    """Return the number of elements of a tensor; infinite for a list."""
    if not isinstance(value.type, TensorType):
        return float("inf")
    return prod((size_of(dim) for dim in value.type.shape), start=1.0)


def nbytes(value: Value, size_of: SizeOf = largest) -> float:
    return elements(value, size_of) * value.tensor.dtype.itemsize


def _product_flops(op: TensorOp, made: float, size_of: SizeOf) -> float:
    """Return the floating-point operations of a product: each element of the result is a sum over
    the dim that two operands share.

    [M, K] and [K, N] have M K and K N elements and the result M N, so K is the root of M K K N / M
    N. A convolution sums over channels and taps: the elements of its weight per output channel.
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


# ---- Constants are computed on the CPU, wherever the program will run.


# `Tensor._version` is the only access to version counters.


_COPIES = WeakIdKeyDictionary()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor detached and on the CPU. A GPU tensor is copied, and the copy is reused
    until the tensor's version changes.

    A constant that a pass computes from it is on the CPU, and is moved when the program is
    loaded; a constant that is used unchanged stays where it is.
    """
    if tensor.is_cpu:
        return tensor.detach()
    version = None if tensor.is_inference() else tensor._version
    found = _COPIES.get(tensor)
    if found is None or found[0] != version:
        found = _COPIES[tensor] = version, tensor.detach().cpu()
    return found[1]


# ---- Recognition of contractions with one constant operand, and constants computed from others.
#
# `linear`, `mm`, `addmm`, `mv` and `matmul` with a constant matrix are all `input @ weight.T +
# bias` over the last dim of the input, so passes treat them alike (`Linear`).


def _depends(argument: Argument) -> bool:
    """True if an argument is known only in the run or at the call."""
    return bool(argument_values(argument)) or any(symbols_of_argument(argument))


@dataclass(frozen=True, slots=True)
class DerivedConstants:
    """Constants that one run of a pass derives, each once.

    keys: key of each constant, by its function and sources. copies: tensors that are not
    constants, by the address of their storage, each with the constant that it is a copy of; they
    are kept alive so that no other tensor gets their memory. contiguous: those that passes made.
    """

    keys: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict[int, tuple[torch.Tensor, torch.Tensor]]
    )
    contiguous: dict[Hashable, torch.Tensor] = field(default_factory=dict[Hashable, torch.Tensor])

    def noted(self, copy: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Record and return a copy of `source`, which may also be the same memory."""
        address = copy.untyped_storage().data_ptr()
        if address != source.untyped_storage().data_ptr():
            self.copies.setdefault(address, (copy, self.constant(source)))
        return copy

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the constant that a tensor is a view or a copy of."""
        _, source = self.copies.get(tensor.untyped_storage().data_ptr(), (tensor, tensor))
        return source

    def in_order(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the contiguous form of a tensor, one object per tensor."""
        if tensor.is_contiguous():
            return tensor
        identity = _identity(tensor)
        if identity not in self.contiguous:
            self.contiguous[identity] = self.noted(tensor.contiguous(), tensor)
        return self.contiguous[identity]


@dataclass(frozen=True, slots=True)
class Constants:
    """Values of a function that are known tensors, and what a pass computes from them."""

    program: Program
    makers: Mapping[Value, Op]
    made: DerivedConstants

    @staticmethod
    def by_function(program: Program) -> Iterator[tuple[Block, Constants]]:
        """Yield the body and the constants of each function."""
        made = DerivedConstants()
        for function in program.functions.values():
            makers = {value: op for op in function.body.walk() for value in op.results}
            yield function.body, Constants(program, makers, made)

    def tensor(self, value: Value | None) -> torch.Tensor | None:
        """Return the tensor that the value always is, or None; only constants and views of them
        are known."""
        op = None if value is None else self.makers.get(value)
        if isinstance(op, ConstantOp):
            constant = self.program.constants[op.key]
            return self.made.noted(on_host(constant), constant)
        if not (isinstance(op, TensorOp) and is_view(op) and len(op.results) == 1):
            return None
        source, *rest = op.args or (None,)
        if op.kwargs or not isinstance(source, Value) or any(map(_depends, rest)):
            return None
        known = self.tensor(source)
        # A Program has no layouts, so that a view of a transposed tensor is a reshape.
        return None if known is None else resolve(op.target)(self.made.in_order(known), *rest)

    def derived(
        self,
        stem: str,
        make: Callable[..., torch.Tensor],
        *sources: torch.Tensor | int,
    ) -> ConstantOp:
        """Return a constant op for `make(*sources)`, one constant for the same sources. `make`
        must be a function that uses nothing else."""
        assert getattr(make, "__closure__", None) is None, "it depends on more than its sources"
        identity = (stem, make, *(_identity(item) for item in sources))
        constants = self.program.constants
        if identity not in self.made.keys:
            keys = (f"{stem}.{number}" for number in count())
            key = self.made.keys[identity] = next(key for key in keys if key not in constants)
            constants[key] = make(*sources)
            tensors = [self.made.constant(x) for x in sources if isinstance(x, torch.Tensor)]
            self.program.folded.note(tensors, constants[key])
        key = self.made.keys[identity]
        type = TensorType(DType.from_torch(constants[key].dtype), tuple(constants[key].shape))
        return ConstantOp(key, results=(Value(type, stem),))


def _identity(item: torch.Tensor | int) -> Hashable:
    """Return a key that is equal for tensors that are the same part of the same memory."""
    if isinstance(item, int):
        return item
    place = item.data_ptr(), item.dtype, item.device, tuple(item.shape), item.stride()
    return place, item.is_neg()


@dataclass(frozen=True, slots=True)
class LinearProduct:
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
"""Per operator: the names of the input and the weight, True if the weight is [K, N], and the name
of the bias."""


def as_linear(op: Op, constants: Constants) -> LinearProduct | str:
    """Return the op as a LinearProduct, or the reason why it is none."""
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
    return LinearProduct(op, source, weight, None if known is None else known.reshape(-1))

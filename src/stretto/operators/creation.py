"""Tensors of numbers and positions (full, arange, eye, triangles, one-hot), and random numbers."""

from __future__ import annotations

import torch

from stretto.device.expr import Apply, Const, Expr, Position
from stretto.ir.failure import Failure
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.lowering.emit import apply, like, number, where
from stretto.lowering.lazy import Lazy, cast, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule
from stretto.ops.custom_operators import LIBRARY, define
from stretto.ops.table import Cost, Fails, KeepDims, describe

# ---- Draws of random numbers into new tensors, and seeding of generators; torch computes them.
#
# `stretto.random_fill(operator, size, stride, numbers, dtype, generator)` is a new tensor of
# these strides, filled by `operator`, an ATen operator such as `aten.normal_.default`: which
# element gets which number depends on the strides. `stretto.manual_seed(seed, generator)` has no
# result.


def _random_fill(
    operator: str,
    size: list[int],
    stride: list[int],
    numbers: list[float],
    *,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    namespace, name, overload = operator.split(".")
    fill = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    made = torch.empty_strided(size, stride, dtype=dtype)
    return fill(made, *numbers, generator=generator)


def _manual_seed(seed: int, *, generator: torch.Generator | None = None) -> None:
    if generator is None:
        torch.manual_seed(seed)
    else:
        generator.manual_seed(seed)


def _fake_fill(
    operator: str,
    size: list[int],
    stride: list[int],
    numbers: list[float],
    *,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


define(
    "random_fill(str operator, SymInt[] size, SymInt[] stride, Scalar[] numbers, *, "
    "ScalarType dtype, Generator? generator=None) -> Tensor",
    _random_fill,
    tags=(torch.Tag.nondeterministic_seeded,),
)
define(
    "manual_seed(int seed, *, Generator? generator=None) -> ()",
    _manual_seed,
    tags=(torch.Tag.nondeterministic_seeded,),
)
torch.library.register_fake("stretto::random_fill", _fake_fill, lib=LIBRARY)
torch.library.register_fake("stretto::manual_seed", lambda *_, **__: None, lib=LIBRARY)

# ---- properties ------------------------------------------------------------------------------

describe(
    "tril triu full new_full fill zeros zeros_like new_zeros zero ones ones_like new_ones "
    "empty_like new_empty new_empty_strided empty_permuted arange linspace eye",
    fails=Fails.NEVER,
)
describe("one_hot", fails=Fails.VALUES)  # a class may be out of range
describe("full full_like", cost=Cost.ELEMENT)
describe("zeros_like ones_like full_like", batching=KeepDims(0))
describe("tril triu", batching=KeepDims(2))
describe("linspace logspace tril triu", whole=True)


def _filled(call: TensorOpCall, value: Expr) -> Lazy:
    return Lazy(call.dtype, call.shape, cast(value, call.dtype))


@rule("full full_like new_full fill.Scalar fill.Tensor scalar_tensor")
def _full(call: TensorOpCall) -> Lazy:
    name = next(name for name in ("value", "fill_value", "s") if name in call.arguments)
    return _filled(call, call.scalar(name))


@rule(
    "zeros zeros_like new_zeros zero empty.memory_format empty_like empty_strided new_empty "
    "new_empty_strided empty_permuted",
)
def _zeros(call: TensorOpCall) -> Lazy:
    return _filled(call, Const(0, DType.I64))


@rule("ones ones_like new_ones")
def _ones(call: TensorOpCall) -> Lazy:
    return _filled(call, Const(1, DType.I64))


@rule("arange arange.start arange.start_step")
def _arange(call: TensorOpCall) -> Lazy:
    given = (call.arguments.get("start", 0), call.arguments.get("step", 1))
    place = Position(variables(call.shape)[0])
    exact = all(isinstance(item, int | Size) for item in given)
    dtype = DType.I64 if exact or not call.dtype.is_float else DType.F64

    def bound(name: str, default: int) -> Expr:
        if isinstance(call.arguments.get(name), Size):
            return cast(call.scalar(name), dtype)
        found = call.number(name) if name in call.arguments else default
        return number(found if exact or dtype is DType.F64 else int(found), dtype)

    steps = apply("mul", cast(place, dtype), bound("step", 1))
    return _filled(call, apply("add", bound("start", 0), steps))


@rule("linspace")
def _linspace(call: TensorOpCall) -> Lazy:
    start, end = float(call.number("start")), float(call.number("end"))
    steps = call.integer("steps")
    if not call.dtype.is_float or steps < 2:
        raise Decline("integers, or fewer than two steps")
    step = (end - start) / (steps - 1)
    place = Position(variables(call.shape)[0])
    front = apply("mul", cast(place, DType.F64), Const(step, DType.F64))
    back = apply("sub", Const(steps - 1, DType.I64), place)
    back = apply("mul", cast(back, DType.F64), Const(step, DType.F64))
    first = apply("lt", place, Const(steps // 2, DType.I64))
    low = apply("add", Const(start, DType.F64), front)
    high = apply("sub", Const(end, DType.F64), back)
    return _filled(call, where(first, low, high))


@rule("eye eye.m")
def _eye(call: TensorOpCall) -> Lazy:
    row, column = (Position(index) for index in variables(call.shape))
    return _filled(call, apply("eq", row, column))


@rule("tril triu")
def _triangle(call: TensorOpCall) -> Lazy:
    """Keep the elements whose column - row is at most (tril) or at least (triu) the diagonal; 0
    elsewhere."""
    function = "le" if call.op.target == "aten.tril.default" else "ge"
    lazy = call.tensor("self")
    row, column = variables(lazy.shape)[-2:]
    diagonal = call.scalar("diagonal")
    inside = apply(function, Position(column + row * -1), cast(diagonal, DType.I64))
    return Lazy(lazy.dtype, lazy.shape, where(inside, lazy.expr, like(0, lazy.expr)))


@rule("one_hot")
def _one_hot(call: TensorOpCall) -> Lazy:
    classes = call.integer("num_classes")
    if classes < 0:
        raise Decline("the number of classes depends on the data")
    lazy = call.cheap("self")
    *lead, last = variables(call.shape)
    size = Const(classes, DType.I64)
    failure = Failure("RuntimeError", "Class values must be smaller than num_classes.")
    number = Const(call.low.stop(failure), DType.I64)
    index = Apply("checked", (cast(lazy.at(*lead), DType.I64), size, number), DType.I64)
    return _filled(call, apply("eq", index, Position(last)))

"""stretto's own tensor operators, registered with torch so that they resolve and trace like ATen's.

`stretto.narrow(x, dim, start, length)` is a slice whose position may be known only at run time, and
whose length is a number or a size; `stretto.narrow_scatter(x, src, dim, start)` is `x` with that
slice replaced by `src`. Positions must be in range; negative ones count from the end.

`stretto.rows_before(x, positions, start, length)` gives rows of `x` that are all before the window
of `length` rows at `start`. The window must be inside `x`, after its first row. Positions are
clamped to 0 .. `start` - 1. In `stretto.rows_of(x, source, positions, start, length)` a position >=
0 is a row of `source`, which must exist, and a negative one, -p, is row p of `x` as above.
`stretto.topk(x, k, dim, largest)` is `aten.topk` with a defined order of equal elements: the one
that comes first in `x` is first. All these return tensors with separate memory.

`stretto.check_positions(positions, size, length, operator, dim, wraps)` has no result: it raises
the error of `operator` unless `length` elements of dim `dim`, which has `size`, begin at each of
the positions; negative ones count from the end if `wraps`. `stretto.evaluate(value)` has no result
either: it makes the op that computes the value run, which may refuse its operands.

`stretto.call_table(numbers, ranks, ends, first, length, signed)` sorts the records of n activations
by a recursion's walk, [n, 1 + k], by their `ranks` [n], and pads them with rows of zeros: [length,
2 + k]. Column 0 has the `ends`, the last one the numbers of the activations. The columns between
have positions: one >= 0 is unchanged, and -1 - i, which refers to activation i, becomes its rank +
`first`, negated if `signed`.

`stretto.number_row(numbers)` puts single integers [] into one tensor, computed in one operation.

`stretto.grouped_mm(rows, matrices, ends)` multiplies rows [S, K] by matrices [G, K, N], where group
g of the rows ends before row `ends[g]`: [S, N], with zeros after the last group.

`stretto.byte_mm(bytes, weight)` multiplies u8 [M, K] by i8 [K, N]: i32 [M, N], exact except that it
wraps around.

`stretto.random_fill(operator, size, stride, numbers, dtype, generator)` is a new tensor of these
strides, filled by `operator`, an ATen operator such as `aten.normal_.default`: which element gets
which number depends on the strides. `stretto.manual_seed(seed, generator)` has no result.
"""

from __future__ import annotations

import torch

from stretto.ir.failure import eager_class
from stretto.ops.bounds import position_failure

_library = torch.library.Library("stretto", "DEF")
_library.define("narrow(Tensor self, int dim, SymInt start, SymInt length) -> Tensor")
_library.define("narrow_scatter(Tensor self, Tensor src, int dim, SymInt start) -> Tensor")
_library.define("rows_before(Tensor self, Tensor positions, SymInt start, SymInt length) -> Tensor")
_library.define(
    "rows_of(Tensor self, Tensor source, Tensor positions, SymInt start, SymInt length) -> Tensor"
)
_library.define(
    "call_table(Tensor numbers, Tensor ranks, Tensor ends, SymInt first, SymInt length, "
    "bool signed) -> Tensor"
)
_library.define("number_row(Tensor[] numbers) -> Tensor")
_library.define(
    "topk(Tensor self, int k, int dim, bool largest) -> (Tensor values, Tensor indices)"
)
_library.define("grouped_mm(Tensor rows, Tensor matrices, Tensor ends) -> Tensor")
_library.define("byte_mm(Tensor bytes, Tensor weight) -> Tensor")
_library.define(
    "check_positions(Tensor positions, SymInt size, SymInt length, str operator, int dim, "
    "bool wraps) -> ()"
)
_library.define("evaluate(Tensor value) -> ()")
_library.define(
    "random_fill(str operator, SymInt[] size, SymInt[] stride, Scalar[] numbers, *, "
    "ScalarType dtype, Generator? generator=None) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_library.define(
    "manual_seed(int seed, *, Generator? generator=None) -> ()",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _check_start(self: torch.Tensor, dim: int, start: int, length: int) -> None:
    """Raise ATen's error for a position out of range; `narrow` itself raises for slices of several
    rows."""
    size = self.size(dim)
    if length == 1 and not -size <= start < size:
        raise IndexError(f"index {start} is out of bounds for dimension {dim} with size {size}")


def _narrow(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    _check_start(self, dim, start, length)
    return self.narrow(dim, start, length).clone()


def _narrow_shape(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """Return the result without data. Symbolic sizes are checked at run time."""
    if type(length) is int and type(self.size(dim)) is int:
        return _narrow(self, dim, start, length)
    shape = list(self.shape)
    shape[dim] = length
    return self.new_empty(shape)


def _narrow_scatter_shape(
    self: torch.Tensor, src: torch.Tensor, dim: int, start: int
) -> torch.Tensor:
    if not any(isinstance(size, torch.SymInt) for size in (*self.shape, *src.shape)):
        return _narrow_scatter(self, src, dim, start)
    if self.dtype != src.dtype or self.dim() != src.dim():
        raise ValueError(f"cannot put {src.dtype} {src.shape} into {self.dtype} {self.shape}")
    for place, (size, part) in enumerate(zip(self.shape, src.shape, strict=True)):
        if place != dim % self.dim():
            torch._check(size == part)  # pyright: ignore[reportPrivateUsage]
    return self.new_empty(self.shape)


def _narrow_scatter(self: torch.Tensor, src: torch.Tensor, dim: int, start: int) -> torch.Tensor:
    _check_start(self, dim, start, src.size(dim))
    result = self.clone()
    place = result.narrow(dim, start, src.size(dim))
    if place.shape != src.shape or self.dtype != src.dtype:
        raise ValueError(f"cannot put {src.dtype} {src.shape} into {place.dtype} {place.shape}")
    place.copy_(src)
    return result


def _rows_before(
    self: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    if not 1 <= start <= self.size(0) - length:
        raise IndexError(f"no window of {length} rows is at {start} > 0 of {self.size(0)} rows")
    return self.index_select(0, positions.clamp(0, start - 1))


def _rows_before_shape(
    self: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    if positions.dim() != 1 or positions.dtype != torch.int64 or self.dim() < 1:
        raise ValueError(f"expected rows, i64 positions: {self.shape}, {positions.dtype}")
    return self.new_empty((positions.size(0), *self.shape[1:]))


def _rows_of(
    self: torch.Tensor, source: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    _rows_of_shape(self, source, positions, start, length)
    made = _rows_before(self, -positions, start, length)
    given = source.index_select(0, positions.clamp_min(0))
    is_given = (positions >= 0).view(-1, *[1] * (self.dim() - 1))
    return torch.where(is_given, given, made)


def _rows_of_shape(
    self: torch.Tensor, source: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    if self.dtype != source.dtype or self.shape[1:] != source.shape[1:]:
        raise ValueError(f"the rows differ in dtype or shape: {self.shape} and {source.shape}")
    return _rows_before_shape(self, positions, start, length)


def _call_table(
    numbers: torch.Tensor,
    ranks: torch.Tensor,
    ends: torch.Tensor,
    first: int,
    length: int,
    signed: bool,
) -> torch.Tensor:
    table = _call_table_shape(numbers, ranks, ends, first, length, signed).zero_()
    places = numbers[:, 1:]
    found = ranks[(-1 - places).clamp_min(0)] + first
    places = torch.where(places >= 0, places, -found if signed else found)
    numbered = torch.arange(len(ranks), dtype=torch.int64)
    table[ranks] = torch.cat((ends[:, None], places, numbered[:, None]), 1)
    return table


def _call_table_shape(
    numbers: torch.Tensor,
    ranks: torch.Tensor,
    ends: torch.Tensor,
    first: int,
    length: int,
    signed: bool,
) -> torch.Tensor:
    if (numbers.dim(), ranks.dim(), ends.dim()) != (2, 1, 1):
        raise ValueError(f"wrong ranks of a table: {numbers.shape}, {ranks.shape}, {ends.shape}")
    return numbers.new_empty((length, numbers.size(1) + 1))


def _number_row(numbers: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(numbers)


def _topk(self: torch.Tensor, k: int, dim: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if any(isinstance(size, torch.SymInt) for size in (*self.shape, k)):
        shape = [k if place == dim % self.dim() else n for place, n in enumerate(self.shape)]
        return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)
    values, indices = self.sort(stable=True, dim=dim, descending=largest)
    if self.dim() == 0:
        return values, indices
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


def _grouped_mm(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result, start = _grouped_mm_shape(rows, matrices, ends).zero_(), 0
    for end, matrix in zip(ends.tolist(), matrices, strict=True):
        result[start:end] = rows[start:end] @ matrix
        start = end
    return result


def _grouped_mm_shape(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    if (rows.dim(), matrices.dim(), ends.dim()) != (2, 3, 1) or rows.dtype != matrices.dtype:
        raise ValueError(
            f"expected rows, matrices and ends of 2, 3 and 1 dims and one dtype: {rows.shape}, "
            f"{matrices.shape}, {ends.shape}"
        )
    torch._check(rows.size(1) == matrices.size(1))  # pyright: ignore[reportPrivateUsage]
    torch._check(ends.size(0) == matrices.size(0))  # pyright: ignore[reportPrivateUsage]
    return rows.new_empty((rows.size(0), matrices.size(2)))


def _byte_mm(bytes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    _byte_mm_shape(bytes, weight)
    return bytes.int() @ weight.int()


def _byte_mm_shape(bytes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if (bytes.dtype, weight.dtype) != (torch.uint8, torch.int8) or bytes.dim() != 2:
        raise ValueError(
            f"expected a u8 and an i8 matrix: {bytes.dtype} {bytes.shape}, {weight.dtype}"
        )
    torch._check(bytes.size(1) == weight.size(0))  # pyright: ignore[reportPrivateUsage]
    return bytes.new_empty((bytes.size(0), weight.size(1)), dtype=torch.int32)


def _check_positions(
    positions: torch.Tensor, size: int, length: int, operator: str, dim: int, wraps: bool
) -> None:
    for position in positions.flatten().tolist():
        first = position + size if wraps and position < 0 else position
        if not 0 <= first <= size - length:
            failure = position_failure(operator, size, length, dim)
            raise eager_class(failure.error)(failure.message.replace("{}", str(position)))


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


_library.impl("narrow", _narrow, "CompositeExplicitAutograd")
_library.impl("narrow", _narrow_shape, "Meta")
_library.impl("narrow_scatter", _narrow_scatter, "CompositeExplicitAutograd")
_library.impl("narrow_scatter", _narrow_scatter_shape, "Meta")
_library.impl("rows_before", _rows_before, "CompositeExplicitAutograd")
_library.impl("rows_before", _rows_before_shape, "Meta")
_library.impl("rows_of", _rows_of, "CompositeExplicitAutograd")
_library.impl("rows_of", _rows_of_shape, "Meta")
_library.impl("call_table", _call_table, "CompositeExplicitAutograd")
_library.impl("call_table", _call_table_shape, "Meta")
_library.impl("number_row", _number_row, "CompositeExplicitAutograd")
_library.impl("number_row", _number_row, "Meta")
_library.impl("topk", _topk, "CompositeExplicitAutograd")
_library.impl("grouped_mm", _grouped_mm, "CompositeExplicitAutograd")
_library.impl("grouped_mm", _grouped_mm_shape, "Meta")
_library.impl("byte_mm", _byte_mm, "CompositeExplicitAutograd")
_library.impl("byte_mm", _byte_mm_shape, "Meta")
_library.impl("check_positions", _check_positions, "CompositeExplicitAutograd")
_library.impl("check_positions", lambda *_: None, "Meta")
_library.impl("evaluate", lambda *_: None, "CompositeExplicitAutograd")
_library.impl("evaluate", lambda *_: None, "Meta")
_library.impl("random_fill", _random_fill, "CompositeExplicitAutograd")
_library.impl("manual_seed", _manual_seed, "CompositeExplicitAutograd")


def _filled(
    operator: str,
    size: list[int],
    stride: list[int],
    numbers: list[float],
    *,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


torch.library.register_fake("stretto::random_fill", _filled, lib=_library)
torch.library.register_fake("stretto::manual_seed", lambda *_, **__: None, lib=_library)

"""JAX functions of ATen operators, by the name of the overload: arithmetic, shapes, sums,
indexing.

Convolutions, pools and norms are in `jax_windows.py`. Each function takes the operator's
arguments, except keywords about memory. 64-bit integers become 32-bit ones, which is JAX's
default.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

OPERATORS: dict[str, Callable[..., Any]] = {}

# Operators that only check or allocate: their results are not used.
NOTHING = frozenset({"aten._assert_tensor_metadata.default"})

_DTYPES: Mapping[torch.dtype, Any] = {
    torch.float64: jnp.float32,
    torch.float32: jnp.float32,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.int64: jnp.int32,
    torch.int32: jnp.int32,
    torch.int16: jnp.int16,
    torch.int8: jnp.int8,
    torch.uint8: jnp.uint8,
    torch.bool: jnp.bool_,
}


def dtype_of(dtype: torch.dtype | None) -> Any:
    """Return JAX's dtype; None if none is named."""
    return None if dtype is None else _DTYPES[dtype]


def implements(*overloads: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function into the table under each of these names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update(dict.fromkeys(overloads, function))
        return function

    return enter


OPERATORS.update(
    {
        "getitem": operator.getitem,
        "aten.abs.default": jnp.abs,
        "aten.bitwise_and.Tensor": jnp.bitwise_and,
        "aten.bmm.default": jnp.matmul,
        "aten.clamp.default": lambda x, low=None, high=None: jnp.clip(x, low, high),
        "aten.cos.default": jnp.cos,
        "aten.eq.Scalar": jnp.equal,
        "aten.eq.Tensor": jnp.equal,
        "aten.erf.default": lax.erf,
        "aten.exp.default": jnp.exp,
        "aten.ge.Scalar": jnp.greater_equal,
        "aten.gt.Scalar": jnp.greater,
        "aten.hardtanh.default": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
        "aten.le.Tensor": jnp.less_equal,
        "aten.log.default": jnp.log,
        "aten.logical_not.default": jnp.logical_not,
        "aten.lt.Scalar": jnp.less,
        "aten.maximum.default": jnp.maximum,
        "aten.minimum.default": jnp.minimum,
        "aten.mm.default": jnp.matmul,
        "aten.mul.Scalar": jnp.multiply,
        "aten.mul.Tensor": jnp.multiply,
        "aten.ne.Scalar": jnp.not_equal,
        "aten.neg.default": jnp.negative,
        "aten.permute.default": jnp.transpose,
        "aten.pow.Tensor_Scalar": jnp.power,
        "aten.relu.default": jax.nn.relu,
        "aten.rsqrt.default": lax.rsqrt,
        "aten.sigmoid.default": jax.nn.sigmoid,
        "aten.sin.default": jnp.sin,
        "aten.sqrt.default": jnp.sqrt,
        "aten.tanh.default": jnp.tanh,
        "aten.unsqueeze.default": jnp.expand_dims,
        "aten.view.default": jnp.reshape,
        "aten.where.self": jnp.where,
    }
)


@implements("aten.alias.default", "aten.clone.default")
def alias(x: jax.Array) -> jax.Array:
    return x


@implements("aten.add.Tensor")
def add(x: Any, y: Any, alpha: float = 1) -> jax.Array:
    return jnp.add(x, y if alpha == 1 else alpha * y)


@implements("aten.sub.Tensor")
def sub(x: Any, y: Any, alpha: float = 1) -> jax.Array:
    return jnp.subtract(x, y if alpha == 1 else alpha * y)


@implements("aten.div.Tensor", "aten.div.Tensor_mode")
def div(x: Any, y: Any, rounding_mode: str | None = None) -> jax.Array:
    match rounding_mode:
        case "floor":
            return jnp.floor_divide(x, y)
        case "trunc":
            whole = jnp.trunc(jnp.true_divide(x, y))
            return whole.astype(jnp.result_type(x, y))
        case _:
            return jnp.true_divide(x, y)


@implements("aten.gelu.default")
def gelu(x: jax.Array, approximate: str = "none") -> jax.Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@implements("aten._to_copy.default")
def converted(x: jax.Array, dtype: torch.dtype | None = None) -> jax.Array:
    return x if dtype is None else x.astype(dtype_of(dtype))


@implements("aten.addmm.default")
def addmm(total: Any, x: jax.Array, y: jax.Array, beta: float = 1, alpha: float = 1) -> jax.Array:
    product = x @ y
    product = product if alpha == 1 else alpha * product
    return product + (total if beta == 1 else beta * total)


@implements("transformers.grouped_mm_fallback.default")
def grouped_product(x: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
    """x [S, I] in groups of rows that end at `ends` [G], each by its matrix of [G, I, O]."""
    return lax.ragged_dot(x, weights, jnp.diff(ends, prepend=0).astype(jnp.int32))


@implements("aten._softmax.default")
def softmax(x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return jax.nn.softmax(x.astype(jnp.float32) if half_to_float else x, axis=dim)


# Tensors of given values.


@implements("aten.full.default")
def full(size: Sequence[int], value: Any, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.full(tuple(size), value, dtype_of(dtype))


@implements("aten.full_like.default")
def full_like(x: jax.Array, value: Any, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.full(x.shape, value, dtype_of(dtype) or x.dtype)


@implements("aten.empty_permuted.default")
def empty_permuted(
    size: Sequence[int], order: Sequence[int], dtype: torch.dtype | None = None
) -> jax.Array:
    """Zeros, since JAX has no uninitialised memory."""
    return jnp.zeros(tuple(size), dtype_of(dtype))


@implements("aten.scalar_tensor.default")
def scalar_tensor(value: Any, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.asarray(value, dtype_of(dtype))


@implements("aten.arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.arange(start, end, step, dtype=dtype_of(dtype))


# Shapes.


@implements("aten.cat.default")
def cat(parts: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """Concatenate. Empty vectors are left out: torch joins them with tensors of any rank."""
    joined = [part for part in parts if part.shape != (0,)]
    return jnp.concatenate(joined or list(parts), axis=dim)


@implements("aten.expand.default")
def expand(x: jax.Array, size: Sequence[int]) -> jax.Array:
    old = (1,) * (len(size) - x.ndim) + x.shape
    wanted = [has if asked == -1 else asked for has, asked in zip(old, size, strict=True)]
    return jnp.broadcast_to(x, tuple(wanted))


@implements("aten.select.int")
def select(x: jax.Array, dim: int, index: int) -> jax.Array:
    return lax.index_in_dim(x, index, dim, keepdims=False)


@implements("aten.slice.Tensor")
def sliced(
    x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    first, last, _ = slice(start, end, step).indices(x.shape[dim])
    return lax.slice_in_dim(x, first, max(first, last), step, dim)


@implements("aten.split_with_sizes.default")
def split_with_sizes(x: jax.Array, sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes) - 1)]
    return jnp.split(x, ends, axis=dim)


@implements("aten.squeeze.dims")
def squeeze(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.squeeze(x, axis=tuple(dim for dim in dims if x.shape[dim] == 1))


@implements("aten.constant_pad_nd.default")
def pad(x: jax.Array, edges: Sequence[int], value: float = 0) -> jax.Array:
    """edges: (before, after) of the last dim, then of the one before it, and so on; a negative one
    cuts values off."""
    given = [(edges[place], edges[place + 1], 0) for place in range(0, len(edges), 2)]
    rest = [(0, 0, 0)] * (x.ndim - len(given))
    return lax.pad(x, jnp.asarray(value, x.dtype), rest + given[::-1])


# Sums and other results of many values.


@implements("aten.sum.dim_IntList")
def total(
    x: jax.Array, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> jax.Array:
    return jnp.sum(x, axis=axes(dims), keepdims=keepdim, dtype=dtype_of(dtype))


@implements("aten.mean.dim")
def mean(
    x: jax.Array, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> jax.Array:
    return jnp.mean(x, axis=axes(dims), keepdims=keepdim, dtype=dtype_of(dtype))


def axes(dims: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the axes to reduce: all if torch is given none."""
    return tuple(dims) if dims else None


@implements("aten.linalg_vector_norm.default")
def vector_norm(x: jax.Array, order: float, dims: Any = None, keepdim: bool = False) -> jax.Array:
    powers = jnp.sum(jnp.abs(x) ** order, axis=axes(dims), keepdims=keepdim)
    return powers ** (1 / order)


@implements("aten.any.dim")
def any_of(x: jax.Array, dim: int, keepdim: bool = False) -> jax.Array:
    return jnp.any(x, axis=dim, keepdims=keepdim)


@implements("aten.cumsum.default")
def cumsum(x: jax.Array, dim: int, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.cumsum(x, axis=dim, dtype=dtype_of(dtype))


@implements("aten.histc.default")
def histc(x: jax.Array, bins: int, low: float, high: float) -> jax.Array:
    found, _ = jnp.histogram(x, bins=bins, range=(low, high))
    return found.astype(x.dtype)


@implements("aten.sort.default")
def sort(x: jax.Array, dim: int = -1, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    order = jnp.argsort(x, axis=dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, order, axis=dim), order


@implements("aten.topk.default")
def topk(
    x: jax.Array, count: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[jax.Array, jax.Array]:
    moved = jnp.moveaxis(x, dim, -1)
    values, places = lax.top_k(moved if largest else -moved, count)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


# Values at places that are computed.


@implements("aten.embedding.default")
def embedding(
    table: jax.Array,
    places: jax.Array,
    padding: int = -1,
    scale_grad: bool = False,
    sparse: bool = False,
) -> jax.Array:
    return table[places]


@implements("aten.gather.default")
def gather(x: jax.Array, dim: int, places: jax.Array, sparse_grad: bool = False) -> jax.Array:
    """Gather values. Only the part of `x` that `places` covers in the other dims is read."""
    dims = range(x.ndim)
    start = tuple(slice(None if d == dim % x.ndim else places.shape[d]) for d in dims)
    return jnp.take_along_axis(x[start], places, axis=dim)


@implements("aten.index.Tensor")
def index(x: jax.Array, places: Sequence[jax.Array | None]) -> jax.Array:
    return x[_positions(places)]


@implements("aten.index_put.default")
def index_put(
    x: jax.Array,
    places: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
) -> jax.Array:
    target = x.at[_positions(places)]
    return target.add(values) if accumulate else target.set(values)


def _positions(places: Sequence[jax.Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if place is None else place for place in places)

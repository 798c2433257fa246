"""Facts about operators that torch's tags and schemas do not give: one entry each, and only
data.

`properties` joins these entries with what torch says; other folders use that. An entry is under
the name of all overloads of an operator (`aten.gather`), or of one (`aten.sort.stable`); the
entry of an overload has precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any


class Fails(Enum):
    """Why an operator may stop the run for some values of its operands; the value is text for
    `explain`."""

    NEVER = "it takes all values"
    DIVISOR = "it refuses some integers, as a divisor of 0"
    POSITIONS = "the integers it reads may be positions out of range"
    VALUES = "it refuses some values"
    UNKNOWN = "it is not known to take all values"
    CHECKS = "it only checks values"


class Cost(Enum):
    """Cost class of an operator, as fine as passes and the frontend need."""

    FREE = "it only renames elements"
    ELEMENT = "each element of its operands is read at most once"
    PRODUCT = "it multiplies and sums: a contraction"
    OTHER = "anything else"


class Aliases(Enum):
    """Aliasing of the result with an operand in torch. In a Program, results never alias."""

    NEVER = "the result has memory of its own"
    ALWAYS = "the result is a view"
    BY_LAYOUT = "the result is a view or a copy, as the strides say"


class Reach(Enum):
    """The range that the positions read by an operator must be in."""

    DIM = "in the dim `dim` of `self`"
    WRITTEN = "in the dim `dim` of `self`, unless that has no elements"
    WINDOW = "in the dim `dim` of `self`, with the elements that follow"
    ROWS = "in the first dim of `weight`"
    FLAT = "among all elements of `self`"
    TABLES = "in the leading dims of `self`, one table per dim, unless nothing is selected"


@dataclass(frozen=True, slots=True)
class PositionArgument:
    """The argument that holds positions, and the error in eager if one is out of range.

    wraps: True if negative positions count from the end. In `message`, `{}` is replaced by the
    position, `{dim}` by the dim and `{size}` by its size; the text after `|` is omitted if the
    size is unknown. inner: error and message for any dim but the first, if they differ.
    """

    reach: Reach
    name: str = "index"
    wraps: bool = False
    error: str = "IndexError"
    message: str = "index {} is out of bounds for dimension {dim}| with size {size}"
    inner: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ElementByElement:
    """Batched by the same operator: operands with leading batch dims broadcast."""


@dataclass(frozen=True, slots=True)
class ShiftDims:
    """Batched with each dim in the arguments `names` moved up by one.

    none_is_all: no dims mean all dims. grows: the operand may have no dims.
    """

    names: tuple[str, ...] = ("dim",)
    none_is_all: bool = False
    grows: bool = False


@dataclass(frozen=True, slots=True)
class KeepDims:
    """Batched by the same operator, which does not affect dims before the last `rank`."""

    rank: int


@dataclass(frozen=True, slots=True)
class MergeRows:
    """Batched in its operand's own batch dim, the first of `rank`."""

    rank: int


@dataclass(frozen=True, slots=True)
class AllDims:
    """Batched by `target`, which takes the dims that this operator reduces."""

    target: str


@dataclass(frozen=True, slots=True)
class OwnRule:
    """Batched by a function of the operator's family, a `passes.batching.rules.Rule`."""

    rule: Callable[..., Any]


Batching = ElementByElement | ShiftDims | KeepDims | MergeRows | AllDims | OwnRule
"""How an operator is computed for all iterations of a loop at once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Facts about an operator. For a field that is None, torch decides.

    updates: the first operand may be changed into the result if nothing reads it later.
    whole: the frontend records the operator as it is, although torch can decompose it.
    raises: names of the exceptions that eager raises for values which `fails` does not cover.
    """

    elementwise: bool | None = None
    rearranges: bool | None = None
    fails: Fails | None = None
    cost: Cost | None = None
    aliases: Aliases | None = None
    positions: PositionArgument | None = None
    batching: Batching | None = None
    raises: tuple[str, ...] | None = None
    updates: bool | None = None
    whole: bool | None = None


TABLE: dict[str, Entry] = {}


@cache
def load_families() -> None:
    """Import `stretto.operators`, which fills the tables of operators. The folder is on a higher
    layer, since lowering is part of a family; so it is imported when a table is first read."""
    import_module("stretto.operators")


def describe(names: str, namespace: str = "aten", **said: Any) -> None:
    """Add to the entry of each operator in `names`, which are separated by spaces."""
    for key in (f"{namespace}.{name}" for name in names.split()):
        TABLE[key] = replace(TABLE.get(key, Entry()), **said)
    entry.cache_clear()


@cache
def entry(target: str) -> Entry:
    """Return the entry of an overload, completed by that of all overloads of its operator."""
    load_families()
    own = TABLE.get(target, Entry())
    shared = TABLE.get(".".join(target.split(".")[:2]), Entry())
    given = {name: said for name in Entry.__slots__ if (said := getattr(own, name)) is not None}
    return replace(shared, **given)


# ---- failures --------------------------------------------------------------------------------

describe(
    "floor_divide rsub.Tensor where.ScalarSelf where.ScalarOther where.Scalar masked_fill.Tensor "
    "hardswish log_sigmoid",
    elementwise=True,
)
describe("floor_divide remainder fmod pow.Tensor_Scalar", fails=Fails.DIVISOR)
describe(
    "div.Tensor_mode div.Scalar_mode divide.Tensor_mode divide.Scalar_mode", fails=Fails.DIVISOR
)
# They take every value of the right shape and dtype, although they lack torch's `core` tag.
describe(
    "linear matmul baddbmm mv addmv dot vdot inner outer ger conv1d conv2d conv3d "
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_attention_math layer_norm group_norm batch_norm rms_norm instance_norm "
    "native_batch_norm cudnn_batch_norm softmax log_softmax _safe_softmax logsumexp sum all "
    "max.default min.default aminmax var std var_mean std_mean norm linalg_vector_norm cumprod "
    "sort.stable max_pool1d max_pool2d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d pixel_shuffle "
    "log_sigmoid_forward prelu _prelu_kernel glu dropout feature_dropout alpha_dropout",
    fails=Fails.NEVER,
)
describe(
    "stack concat tril triu roll tile pad replication_pad1d repeat_interleave.self_int "
    "unsafe_split unsafe_chunk unsafe_split_with_sizes diagonal_scatter lift type_as "
    "_reshape_copy _unsafe_view atleast_1d atleast_2d full new_full fill zeros zeros_like "
    "new_zeros zero ones ones_like new_ones empty_like new_empty new_empty_strided "
    "empty_permuted arange linspace eye",
    fails=Fails.NEVER,
)
describe("topk", "stretto", fails=Fails.NEVER)
describe("byte_mm", "stretto", fails=Fails.NEVER, cost=Cost.PRODUCT)
describe("rows_before rows_of call_table number_row", "stretto", fails=Fails.NEVER)
# masked_scatter refuses too few elements, one_hot a class out of range.
describe("masked_scatter one_hot", fails=Fails.VALUES)
describe(
    "_linalg_check_errors cholesky cholesky_inverse cholesky_solve inverse pinverse svd "
    "linalg_cholesky linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals "
    "linalg_eigvalsh linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex "
    "linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve "
    "linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_norm linalg_pinv "
    "linalg_solve linalg_solve_ex linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve "
    "lu_solve matrix_power _linalg_eigh _linalg_eigvals _linalg_solve_ex _linalg_svd",
    raises=("LinAlgError",),
)
describe("check_positions", "stretto", raises=("IndexError", "RuntimeError"))
describe("evaluate", "stretto", raises=("RuntimeError",))

# ---- positions -------------------------------------------------------------------------------

_NO_VALUE = "index out of range in self"
describe("select select_scatter", positions=PositionArgument(Reach.DIM, wraps=True))
describe("index_fill", positions=PositionArgument(Reach.WRITTEN, wraps=True))
describe("index_add", positions=PositionArgument(Reach.WRITTEN, error="RuntimeError"))
describe(
    "index_copy",
    positions=PositionArgument(
        Reach.WRITTEN,
        message="index_copy_(): index {} is out of bounds for dimension {dim}| with size {size}",
    ),
)
describe(
    "gather scatter scatter_add scatter_reduce",
    positions=PositionArgument(Reach.DIM, error="RuntimeError"),
)
_INNER = "RuntimeError", "INDICES element is out of DATA bounds|, id={} axis_dim={size}"
describe("index_select", positions=PositionArgument(Reach.DIM, message=_NO_VALUE, inner=_INNER))
describe("embedding", positions=PositionArgument(Reach.ROWS, "indices", message=_NO_VALUE))
describe(
    "take",
    positions=PositionArgument(
        Reach.FLAT,
        wraps=True,
        message="out of range: tried to access index {} on a tensor of {size} elements.",
    ),
)
describe("index index_put", positions=PositionArgument(Reach.TABLES, "indices", wraps=True))
describe(
    "narrow narrow_scatter",
    "stretto",
    positions=PositionArgument(Reach.WINDOW, "start", wraps=True),
)

# ---- cost, and what the result is made of ----------------------------------------------------

describe(
    "linear mm addmm mv addmv matmul bmm baddbmm dot convolution conv1d conv2d conv3d "
    "scaled_dot_product_attention",
    cost=Cost.PRODUCT,
)
describe("all amax amin any argmax argmin max mean min prod sum", cost=Cost.ELEMENT)
describe("full full_like", cost=Cost.ELEMENT)
describe("_unsafe_view", rearranges=True)
describe("narrow", "stretto", rearranges=True)
describe("reshape contiguous flatten.using_ints", aliases=Aliases.BY_LAYOUT)
describe(
    "select_scatter slice_scatter index_put scatter.src scatter.value",
    updates=True,
)
describe("narrow_scatter", "stretto", updates=True)

# ---- batching --------------------------------------------------------------------------------

describe(
    "softmax.int _softmax log_softmax.int _log_softmax max.dim min.dim any.dim "
    "any.dims all.dim all.dims prod.dim_int cumsum cumprod logsumexp topk sort squeeze.dim "
    "squeeze.dims slice.Tensor split.Tensor split_with_sizes chunk unbind unflatten.int "
    "narrow.default",
    batching=ShiftDims(),
)
describe("topk narrow", "stretto", batching=ShiftDims())
describe(
    "sum.dim_IntList mean.dim amax amin var.correction std.correction var_mean.correction "
    "var.dim std.dim var_mean.dim std_mean.dim linalg_vector_norm",
    batching=ShiftDims(none_is_all=True),
)
describe("unsqueeze", batching=ShiftDims(grows=True))
describe("diagonal", batching=ShiftDims(("dim1", "dim2")))
describe("flip roll", batching=ShiftDims(("dims",)))
describe("flatten.using_ints", batching=ShiftDims(("start_dim", "end_dim")))
describe(
    "_to_copy to.dtype contiguous detach alias zeros_like ones_like full_like",
    batching=KeepDims(0),
)
describe("layer_norm native_layer_norm constant_pad_nd", batching=KeepDims(1))
describe("tril triu", batching=KeepDims(2))
describe("group_norm", batching=MergeRows(2))
describe("avg_pool1d max_pool1d", batching=MergeRows(3))
describe(
    "avg_pool2d max_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_avg_pool2d",
    batching=MergeRows(4),
)
for _name, _target in (
    *(("sum", "sum.dim_IntList"), ("mean", "mean.dim"), ("max", "amax.default")),
    *(("min", "amin.default"), ("any", "any.dims"), ("all", "all.dims")),
):
    describe(f"{_name}.default", batching=AllDims(f"aten.{_target}"))
# ---- capture ---------------------------------------------------------------------------------

describe(
    "linear convolution native_layer_norm native_group_norm _softmax _log_softmax embedding "
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d gelu silu hardtanh hardswish "
    "hardsigmoid leaky_relu elu softplus log_sigmoid_forward stack cat linspace logspace var "
    "var_mean std std_mean sum mean masked_fill tril triu flip roll index_select index_add "
    "index_copy index_fill take select_scatter slice_scatter square floor_divide rsub addmm "
    "baddbmm max min all where repeat cumsum upsample_nearest2d upsample_linear1d "
    "upsample_bilinear2d upsample_trilinear3d scaled_dot_product_attention",
    whole=True,
)
describe("where.default", whole=False)

"""Blocks of plain torch functions, by name: what operators of models do on one instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from stretto.ir.types import DType, RowsType, Scalar, TensorType
from tests.batching.levels import Kind, f32

F64 = TensorType(DType.F64, (4,))
I64 = TensorType(DType.I64, (4,))
I32 = TensorType(DType.I32, (4,))
FLAGS = TensorType(DType.BOOL, (4,))
ONE = TensorType(DType.F64, ())
INDEX = TensorType(DType.I64, ())
ROWS = RowsType(f32(4))
V, M = f32(4), f32(4, 4)
INT, FLOAT, BOOL = Scalar.INT, Scalar.FLOAT, Scalar.BOOL

torch.manual_seed(3)
_linear = nn.Linear(4, 4)
_gru, _lstm = nn.GRUCell(4, 4), nn.LSTMCell(4, 4)
_norm = nn.LayerNorm(4)
_table = nn.Embedding(3, 4)
_conv = nn.Conv1d(1, 2, 3, padding=1)
_bilinear = nn.Bilinear(4, 4, 2)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = torch.softmax(q @ k.t() / 2.0, dim=-1)
    return scores @ v


def _one_hot(x: Any) -> Any:
    best = x.argmax(dim=-1)
    return F.one_hot(best, 4).to(torch.float32), best


def _chunks(x: Any) -> Any:
    a, b = x.chunk(2)
    return torch.cat([b, a]), torch.stack([a, b]), b


def _in_place(x: Any, y: Any) -> Any:
    z = x * 2
    z += y
    z[1:3] = 0
    z[0] = 5.0
    return z


def _sums(x: Any) -> Any:
    return x.sum(), x.mean(), x.max(), x.min(), x.sum(0, keepdim=True), (x > 0).any(), (x > 9).all()


BLOCKS: dict[str, tuple[tuple[Kind, ...], Callable[..., Any]]] = {
    # -- products
    "linear": ((V,), _linear),
    "linear_of_matrix": ((M,), _linear),
    "vector_times_matrix": ((V, M), lambda v, m: v @ m),
    "matrix_times_vector": ((M, V), lambda m, v: m @ v),
    "matrix_times_matrix": ((M, M), lambda a, b: a @ b),
    "mv": ((M, V), torch.mv),
    "dot": ((V, V), torch.dot),
    "matmul_of_vectors": ((V, V), lambda a, b: a @ b),
    "outer": ((V, V), torch.outer),
    "weight_times_vector": ((V,), lambda v: _linear.weight @ v),
    "vector_times_weight": ((V,), lambda v: v @ _linear.weight),
    "weight_times_matrix": ((M,), lambda m: _linear.weight @ m),
    "weight_times_wide_matrix": ((f32(4, 70),), lambda m: _linear.weight @ m),
    "weight_times_products": ((M, f32(4, 33)), lambda m, w: (_linear.weight @ (m @ w)) + w[0]),
    "vector_of_weights": ((V,), lambda v: v @ _linear.bias),
    "bias_times_matrix": ((M,), lambda m: _linear.bias @ m),
    "addmm": ((V, M, M), torch.addmm),
    "addmm_scaled": ((M, M), lambda a, b: torch.addmm(_linear.bias, a, b, beta=2, alpha=3)),
    "bmm": ((f32(2, 3, 4), f32(2, 4, 5)), torch.bmm),
    "einsum": ((V, M), lambda v, m: torch.einsum("i,ij->j", v, m)),
    "bilinear": ((V, V), _bilinear),
    "linear_with_own_weight": ((V, M, V), F.linear),
    "conv": ((f32(1, 5),), _conv),
    # -- modules
    "gru": ((V, V), _gru),
    "lstm": ((V, V, V), lambda x, h, c: _lstm(x, (h, c))),
    "layer_norm": ((V,), _norm),
    "attention": ((f32(3, 4), f32(5, 4), f32(5, 4)), _attention),
    "attention_of_a_query": ((V, f32(5, 4)), lambda q, k: torch.softmax(k @ q, 0) @ k),
    "sdpa": ((f32(2, 3, 4), f32(2, 5, 4), f32(2, 5, 4)), F.scaled_dot_product_attention),
    # -- numbers
    "int": ((V, INT), lambda x, i: x * i),
    "float": ((V, FLOAT), lambda x, a: x * a + a),
    "compare_float": ((V, FLOAT), lambda x, a: (x > a, torch.where(x > 0, x, a))),
    "bool": ((V, BOOL), lambda x, b: x + b),
    "numbers_alone": ((INT, FLOAT), lambda i, a: torch.tensor(1.0) * i + a),
    "power": ((V, INT), lambda x, i: x**i),
    "clamp": ((V, FLOAT), lambda x, a: x.clamp(max=a)),
    "number_minus": ((V, FLOAT, INT), lambda x, a, i: (a - x) / (i + 1.5)),
    "embedding": ((INT,), lambda i: _table.weight[i]),
    "embedding_of_tensor": ((INDEX,), lambda i: _table(i % 3)),
    "item_of_vector": ((V, INT), lambda x, i: x[i]),
    "item_of_matrix": ((M, INT, INT), lambda m, i, j: m[i, j]),
    "column": ((M, INT), lambda m, i: m[:, i]),
    "put": ((V, INT, V), lambda x, i, y: torch.cat([x, y])[i] + x),
    "index_of_tensors": ((M, INDEX), lambda m, i: m[i % 4]),
    "index_select": (
        (M, TensorType(DType.I64, (3,))),
        lambda m, i: m.index_select(0, i % 4),
    ),
    "gather": ((M, TensorType(DType.I64, (4, 2))), lambda m, i: m.gather(1, i % 4)),
    "take_along": ((V, TensorType(DType.I64, (2,))), lambda x, i: x[i % 4]),
    "one_hot_of_int": ((INT,), lambda i: torch.eye(4)[i]),
    # -- dtypes
    "f64": ((F64, V), lambda a, b: a * b),
    "dtype_of_one": ((V, ONE), lambda x, a: (x * a, x > a, x + a.to(torch.float32))),
    "ints": ((I64, I32), lambda a, b: (a + b, a * 2, b // 2, a > b, (a & b))),
    "flags": ((FLAGS, FLAGS), lambda a, b: (a & b, a | ~b, a.to(torch.float32))),
    "true_division": ((I64, INDEX), lambda a, b: a / (b.abs() + 1)),
    "cast": ((V,), lambda x: (x.double(), x.to(torch.int64), x.bool(), x.half())),
    # -- shapes
    "chunks": ((V,), _chunks),
    "cat_of_other": ((V,), lambda x: torch.cat([x, _linear.bias])),
    "stack": ((V, V), lambda a, b: torch.stack([a, b, a], dim=1)),
    "views": ((M,), lambda m: (m.t(), m.reshape(2, 8), m[1:3, ::2], m.flatten(), m[None])),
    "expand": ((V,), lambda x: x.unsqueeze(0).expand(3, 4).contiguous()),
    "repeat": ((V,), lambda x: (x.repeat(2), x.roll(1), x.flip(0))),
    "split": ((f32(5),), lambda x: torch.split(x, [2, 3])),
    "pad": ((V,), lambda x: F.pad(x, (1, 2))),
    "triangle": ((M,), lambda m: (m.tril(), m.diagonal(), torch.diag(m))),
    "zero_size": ((f32(0), f32(2, 0)), lambda a, b: (a * 2, b.sum(1), torch.cat([a, a]))),
    "scalars": ((f32(), f32()), lambda a, b: (a + b, torch.stack([a, b]), a * _linear.bias)),
    # -- reductions and orders
    "sums": ((V,), _sums),
    "sums_of_matrix": ((M,), lambda m: (m.sum(), m.mean(1), m.amax(0), m.norm(), m.var(0))),
    "arg": ((M,), lambda m: (m.argmax(), m.argmin(1), m.max(1), m.argmax(0))),
    "argmax_one_hot": ((V,), _one_hot),
    "topk": ((f32(6),), lambda x: x.topk(3)),
    "sort": ((V,), lambda x: (x.sort(descending=True).values, x.argsort())),
    "cumsum": ((V,), lambda x: (x.cumsum(0), x.cumprod(0))),
    "softmax": ((M,), lambda m: (m.softmax(0), m.log_softmax(-1), m.logsumexp(1))),
    "cross_entropy": ((V, INDEX), lambda x, y: F.cross_entropy(x, y % 4)),
    "normalize": ((V,), lambda x: F.normalize(x, dim=0)),
    "cosine": ((V, V), lambda a, b: F.cosine_similarity(a, b, dim=0)),
    # -- pointwise
    "activations": ((V,), lambda x: (F.relu(x), F.gelu(x), F.elu(x), F.leaky_relu(x), x.exp())),
    "choices": ((V, V), lambda a, b: (torch.where(a > b, a, 0.0), torch.maximum(a, b))),
    "masked": ((V, FLAGS), lambda x, m: (x.masked_fill(m, -1.0), x * m)),
    "in_place": ((V, V), _in_place),
    "same_operand_twice": ((V, V), lambda a, b: (a - b, a - b)),
    "constant": ((), lambda: _linear.bias * 2),
    "no_tensor": ((INT,), lambda i: torch.zeros(4) + i),
    "input_returned": ((V, V), lambda a, b: (a, b.clone(), b)),
}
"""By name: the inputs, and the function of one instance. Ints are from 0 to 2."""

ROWS_BLOCKS: dict[str, tuple[tuple[Kind, ...], Callable[..., Any]]] = {
    "sum_of_rows": ((ROWS,), lambda r: r.sum(0)),
    "linear_of_rows": ((ROWS,), lambda r: _linear(r).sum(0)),
    "attention_over_rows": ((V, ROWS), lambda q, k: torch.softmax(k @ q, 0) @ k),
    "rows_times_vector": ((ROWS, V), lambda r, v: (r * v).sum(0)),
    "mean_of_numbers": ((RowsType(f32()),), lambda r: (r * 2).sum()),
}

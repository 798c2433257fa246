"""Rules for products of groups of rows, and for histograms."""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.operators.eager import eager_refusal
from stretto.frontends.python.tracing.tracer import tracer

aten = torch.ops.aten


def _grouped_mm(
    rows: Any, matrices: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Rows times matrices; torch's shape rule for it refuses dtypes that its kernels take."""
    is_plain = offs is not None and bias is None and out_dtype in (None, rows.dtype)
    if not is_plain or (rows.dim(), matrices.dim()) != (2, 3):
        return NotImplemented
    refused = eager_refusal(aten._grouped_mm.default, (rows, matrices, offs), {})
    if refused is not None:
        raise refused
    return torch.ops.stretto.grouped_mm(rows, matrices, offs)


def _histogram(values: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """As torch's kernel finds bins: by one multiplication and one division in the values' dtype."""
    if min == max or not values.dtype.is_floating_point:
        return NotImplemented  # the bounds of the data
    refused = eager_refusal(aten.histc.default, (values, bins, min, max), {})
    if refused is not None:
        raise refused
    with tracer().native():
        bounds = torch.tensor([min, max], dtype=torch.float64).to(values.dtype)
        (least, most), span = bounds.tolist(), float(bounds[1] - bounds[0])
    flat = values.reshape(-1, 1)
    places = ((flat - least) * bins / span).clamp(0, bins - 1).to(torch.int64)
    inside = torch.logical_and(flat >= least, flat <= most)
    hits = torch.logical_and(places == torch.arange(bins), inside)
    return hits.sum(0, dtype=values.dtype)


RULES = {aten._grouped_mm.default: _grouped_mm, aten.histc.default: _histogram}

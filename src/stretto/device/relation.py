"""Relations between units as matrices of booleans."""

from __future__ import annotations

import numpy as np

from stretto.device.boxes import Mask

FEW_ROWS = 64
"""So many rows are composed faster than equal ones among them are found."""


def compose(a: Mask, b: Mask) -> Mask:
    """[i, k]: is there a j with a[i, j] and b[j, k]? Equal rows of `a` are looked at once.

    By words of 64 columns: a product of matrices would wake the threads of the BLAS library, which
    costs milliseconds where others use the cores.
    """
    if len(a) < FEW_ROWS:
        return _compose(a, b)
    kinds: dict[bytes, int] = {}
    kind_of = [kinds.setdefault(row.tobytes(), len(kinds)) for row in np.packbits(a, axis=1)]
    if len(kinds) == len(a):
        return _compose(a, b)
    _, first = np.unique(kind_of, return_index=True)
    return _compose(a[first], b)[kind_of]


def _compose(a: Mask, b: Mask) -> Mask:
    columns = b.shape[1]
    packed = np.zeros((len(b), -(-columns // 64) * 8), np.uint8)
    packed[:, : -(-columns // 8)] = np.packbits(b, axis=1)
    words = packed.view(np.uint64)
    met = np.where(a[:, :, None], words[None], np.uint64(0))
    joined = np.ascontiguousarray(np.bitwise_or.reduce(met, axis=1))
    return np.unpackbits(joined.view(np.uint8), axis=1, count=columns).astype(np.bool_)

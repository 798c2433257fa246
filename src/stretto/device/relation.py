"""Relations between units as matrices of booleans."""

from __future__ import annotations

import numpy as np

from stretto.device.boxes import Mask


def compose(a: Mask, b: Mask) -> Mask:
    """[i, k]: is there a j with a[i, j] and b[j, k]?

    By words of 64 columns: a product of matrices would wake the threads of the BLAS library, which
    costs milliseconds where others use the cores.
    """
    columns = b.shape[1]
    packed = np.zeros((len(b), -(-columns // 64) * 8), np.uint8)
    packed[:, : -(-columns // 8)] = np.packbits(b, axis=1)
    words = packed.view(np.uint64)
    met = np.where(a[:, :, None], words[None], np.uint64(0))
    joined = np.ascontiguousarray(np.bitwise_or.reduce(met, axis=1))
    return np.unpackbits(joined.view(np.uint8), axis=1, count=columns).astype(np.bool_)

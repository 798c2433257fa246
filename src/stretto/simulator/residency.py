"""Which buffers lie in the cache that all units share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import kernel_regions


class Residency:
    """Whole buffers, of which those go that were not touched for longest.

    A program that fits into the cache finds all of its buffers there, as in the second of two
    calls; another one begins with an empty cache.
    """

    def __init__(self, capacity: int, costs: CostModel, kernels: Sequence[Kernel]) -> None:
        buffers: set[Buffer] = {r.buffer for kernel in kernels for r in kernel_regions(kernel)}
        self._capacity = capacity
        self._sizes = {b.name: costs.points(b.shape) * b.dtype.itemsize for b in buffers}
        self._fits = sum(self._sizes.values()) <= capacity
        self._held: OrderedDict[str, float] = OrderedDict()

    def touch(self, moved: Sequence[tuple[str, float]], tasks: int) -> frozenset[str]:
        """A kernel of so many tasks that move so many bytes each; the buffers that were not in the
        cache."""
        if self._fits:
            return frozenset()
        missing = frozenset(name for name, _ in moved if name not in self._held)
        for name, nbytes in moved:
            most = self._sizes.get(name, nbytes * tasks)
            self._held[name] = max(self._held.get(name, 0.0), min(nbytes * tasks, most))
            self._held.move_to_end(name)
        while sum(self._held.values()) > self._capacity:
            self._held.popitem(last=False)
        return missing

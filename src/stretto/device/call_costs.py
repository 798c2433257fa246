"""What library calls take on so many threads: rough figures, by the work that torch has to do."""

from __future__ import annotations

from math import prod

from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import LibraryCall
from stretto.ops.properties import properties

DISPATCH_SECONDS = 5e-6
"""What a call takes in torch's dispatcher (Zen 3), unless `CostModel.call_seconds` is more."""
REGION_SECONDS = 5e-6
"""Starting threads for a part of an operator, and joining them."""
SERIAL = 0.12
"""What of an operator's work several threads do not share out evenly (a guess: GoogLeNet's calls
take 112 ms on one thread, and 79 ms on the two of a Zen 3)."""
GRAIN = 32768
"""Elements up to which torch uses one thread, but for products and pooling."""
EFFICIENCY = 0.8
"""Of the rate of the machine's own products."""
CALL_BANDWIDTH = 1.5e10
"""Bytes per second that one thread reads or writes in an operator."""
WINDOW_SECONDS = 4e-9
"""An element of a window of pooling, which torch looks at one by one."""


def call_seconds(call: LibraryCall, costs: CostModel, threads: int) -> float:
    """Seconds of a call on so many threads of torch."""
    made = max((_elements(buffer, costs) for buffer in call.outs), default=0.0)
    moved = sum(_bytes(item, costs) for item in (*call.inputs, *call.outs))
    operations = _operations(call, made, costs) / (costs.flops * EFFICIENCY)
    work = moved / CALL_BANDWIDTH + operations + made * _window(call) * WINDOW_SECONDS
    begin = max(costs.call_seconds, DISPATCH_SECONDS)
    if threads == 1 or not (operations or _window(call) or made > GRAIN):
        return begin + work
    share = SERIAL + (1 - SERIAL) / threads
    return begin + REGION_SECONDS + work * share


def _operations(call: LibraryCall, made: float, costs: CostModel) -> float:
    """Of a product. Each element of the result is a sum over what two operands share, as in
    `passes/analyses/ops.py`."""
    if not properties(call.target).is_product:
        return 0.0
    tensors = [item for item in call.inputs if isinstance(item, Buffer)]
    if len(tensors) < 2:
        return 2.0 * made
    if "conv" in call.target:
        return 2.0 * made * prod((costs.size(dim) for dim in tensors[1].shape[1:]), start=1)
    sizes = sorted(_elements(buffer, costs) for buffer in tensors)[-2:]
    return 2.0 * made * max((sizes[0] * sizes[1] / max(made, 1.0)) ** 0.5, 1.0)


def _window(call: LibraryCall) -> float:
    """The elements of a window, which a pooling operator names first; 0 for other operators."""
    if "pool" not in call.target:
        return 0.0
    size = next((item for item in call.args if isinstance(item, tuple)), ())
    return float(prod((item for item in size if isinstance(item, int)), start=1))


def _elements(buffer: Buffer, costs: CostModel) -> float:
    return float(costs.points(buffer.shape))


def _bytes(item: object, costs: CostModel) -> float:
    if not isinstance(item, Buffer):
        return 0.0
    return _elements(item, costs) * item.dtype.itemsize

"""The work of a model that runs straight through, counted while it runs once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .entry import Made, Phase


class _Counted(TorchDispatchMode):
    """Lists a phase for each operator with products: its operations, and its weights' bytes."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.sizes = {weight.data_ptr(): weight.nbytes for weight in weights}
        self.phases = list[Phase]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            operations = float(count(*args, **kwargs, out_val=result))
            held = (one for one in args if isinstance(one, Tensor))
            read = float(sum(self.sizes.get(one.data_ptr(), 0) for one in held))
            resident = float(sum(self.sizes.values()))
            self.phases.append(Phase(str(func), operations, read, resident))
        return result


def counted_work(make: Callable[[Any, int], Made], config: Any) -> tuple[Phase, ...]:
    """Count the operations of a model's products and convolutions, and the weights that
    they read.

    The weights are assumed to be in the nearest memory that holds all of them; operators
    other than products are not counted. Convolutions count as sums of products: a
    program that transforms tiles to save multiplications (Winograd) may stay below such
    a floor. `make` and `config` are those of a `ZooEntry`.
    """
    model, inputs = make(config, 0)
    with torch.no_grad(), _Counted(model.parameters()) as counted:
        model(*inputs)
    return tuple(counted.phases)

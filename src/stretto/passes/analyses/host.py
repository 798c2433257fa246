"""Constants where passes compute: on the CPU, wherever the program will run."""

# pyright: reportPrivateUsage=false
# version counters of tensors

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

_COPIES = WeakIdKeyDictionary()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient; of one on a GPU a copy, the same one as long as the tensor
    has the same version.

    What passes compute from it is a constant on the CPU, which is moved when the program is loaded;
    a constant that is used as it is stays where it is.
    """
    if tensor.is_cpu:
        return tensor.detach()
    version = None if tensor.is_inference() else tensor._version
    found = _COPIES.get(tensor)
    if found is None or found[0] != version:
        found = _COPIES[tensor] = version, tensor.detach().cpu()
    return found[1]

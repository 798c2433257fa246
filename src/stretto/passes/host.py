"""Constants where passes compute: on the CPU, wherever the program will run."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

_COPIES = WeakIdKeyDictionary()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient; of one on a GPU a copy, the same one every time.

    What passes compute from it is a constant on the CPU, which is moved when the program is loaded;
    a constant that is used as it is stays where it is.
    """
    if tensor.device.type == "cpu":
        return tensor.detach()
    if tensor not in _COPIES:
        _COPIES[tensor] = tensor.detach().cpu()
    return _COPIES[tensor]

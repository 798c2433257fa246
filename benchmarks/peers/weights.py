"""Weights of the zoo's modules as arrays, prepared as a peer's author would by hand."""

import numpy as np
import torch
from torch import Tensor, nn

from ..models.lstm import LSTMCell


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[np.ndarray, np.ndarray]:
    """Weight (OIHW) and bias of the convolution that does `norm(conv(x))` in eval mode."""
    assert norm.running_mean is not None and norm.running_var is not None
    with torch.no_grad():
        scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
        weight = conv.weight.double() * scale[:, None, None, None]
        bias = norm.bias - norm.running_mean.double() * scale
        if conv.bias is not None:
            bias = bias + conv.bias.double() * scale
    return array(weight.float()), array(bias.float())


def lstm_weights(cell: LSTMCell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(input weight [4H, I], hidden weight [4H, H], sum of both biases [4H])."""
    bias = cell.input_map.bias + cell.hidden_map.bias
    return array(cell.input_map.weight), array(cell.hidden_map.weight), array(bias)

"""JAX programs of the models that skip residual blocks: a cond per block, batch norms folded."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch import nn

from ..models.blockdrop import BasicBlock, BlockDrop, BlockDropConfig, BlockDropPolicy
from ..models.skipnet import Bottleneck, SkipNet, SkipNetConfig
from .jax_layers import ConvWeights, Program, conv_weights, convolve
from .jax_recurrent import cell_weights, lstm_step
from .weights import array

Linear = tuple[jax.Array, jax.Array]


def linear_weights(layer: nn.Linear | nn.Conv2d) -> Linear:
    """(weight [I, O], bias) of a linear layer or of a 1 x 1 convolution."""
    assert layer.bias is not None
    weight = array(layer.weight)
    return jnp.asarray(weight.reshape(weight.shape[:2]).T), jnp.asarray(array(layer.bias))


def linear(x: jax.Array, weights: Linear) -> jax.Array:
    return x @ weights[0] + weights[1]


def run_or_skip(condition: jax.Array, identity: jax.Array, x: jax.Array, block: Any) -> jax.Array:
    """relu(identity + block(x)) if the condition holds, else identity."""
    return lax.cond(
        condition,
        lambda identity, x: jax.nn.relu(identity + block(x)),
        lambda identity, x: identity,
        identity,
        x,
    )


def resnet_weights(model: BlockDrop) -> Any:
    blocks = [
        (conv_weights(block.conv1, block.bn1), conv_weights(block.conv2, block.bn2))
        for block in model.blocks
    ]
    return conv_weights(model.conv, model.bn), blocks, linear_weights(model.fc)


def resnet(model: BlockDrop, weights: Any, image: jax.Array, keep: jax.Array) -> jax.Array:
    stem, blocks, head = weights
    x = jax.nn.relu(convolve(image, stem, model.conv))
    for i, (block, parts) in enumerate(zip(model.blocks, blocks, strict=True)):
        assert isinstance(block, BasicBlock)
        identity = _halve(x) if block.shortcut.shrink else x

        def body(x: jax.Array, block: BasicBlock = block, parts: Any = parts) -> jax.Array:
            x = jax.nn.relu(convolve(x, parts[0], block.conv1))
            return convolve(x, parts[1], block.conv2)

        x = run_or_skip(keep[i] >= 0.5, identity, x, body)
    return linear(x.mean(axis=(1, 2)), head)


def _halve(x: jax.Array) -> jax.Array:
    """Half the size by averaging, and as many zero channels again."""
    batch, height, width, channels = x.shape
    pooled = x.reshape(batch, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))
    return jnp.concatenate([pooled, jnp.zeros_like(pooled)], axis=-1)


def blockdrop(model: BlockDrop, config: BlockDropConfig) -> Program:
    def program(weights: Any, image: jax.Array, keep: jax.Array) -> jax.Array:
        return resnet(model, weights, image.transpose(0, 2, 3, 1), keep)

    return program, resnet_weights(model)


def blockdrop_policy(model: BlockDropPolicy, config: BlockDropConfig) -> Program:
    def program(weights: Any, image: jax.Array) -> jax.Array:
        conv1, conv2, head, rest = weights
        image = image.transpose(0, 2, 3, 1)
        x = jax.nn.relu(convolve(image, conv1, model.conv1))
        x = jax.nn.relu(convolve(x, conv2, model.conv2))
        keep = jax.nn.sigmoid(linear(x.mean(axis=(1, 2)), head).mean(axis=0))
        return resnet(model.resnet, rest, image, keep)

    policy = (conv_weights(model.conv1), conv_weights(model.conv2), linear_weights(model.fc))
    return program, (*policy, resnet_weights(model.resnet))


def bottleneck_weights(block: nn.Module) -> tuple[list[ConvWeights], ConvWeights | None]:
    assert isinstance(block, Bottleneck)
    pairs = ((block.conv1, block.bn1), (block.conv2, block.bn2), (block.conv3, block.bn3))
    shortcut = None
    if isinstance(block.shortcut, nn.Sequential):
        conv, norm = block.shortcut
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        shortcut = conv_weights(conv, norm)
    return [conv_weights(conv, norm) for conv, norm in pairs], shortcut


def bottleneck(block: Bottleneck, parts: list[ConvWeights], x: jax.Array) -> jax.Array:
    x = jax.nn.relu(convolve(x, parts[0], block.conv1))
    x = jax.nn.relu(convolve(x, parts[1], block.conv2))
    return convolve(x, parts[2], block.conv3)


def skip_path(block: Bottleneck, parts: ConvWeights | None, x: jax.Array) -> jax.Array:
    if parts is None:
        return x
    assert isinstance(block.shortcut, nn.Sequential)
    conv = block.shortcut[0]
    assert isinstance(conv, nn.Conv2d)
    return convolve(x, parts, conv)


def skipnet(model: SkipNet, config: SkipNetConfig) -> Program:
    blocks = list(model.blocks)

    def program(weights: Any, image: jax.Array) -> jax.Array:
        stem, block_parts, gate_parts, (input_weight, hidden_weight, bias), output, head = weights
        x = jax.nn.relu(convolve(image.transpose(0, 2, 3, 1), stem, model.conv))
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        edges = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, edges)
        parts, shortcut = block_parts[0]
        x = jax.nn.relu(bottleneck(blocks[0], parts, x) + skip_path(blocks[0], shortcut, x))
        h = c = jnp.zeros((1, config.gate_size), x.dtype)
        rest = zip(blocks[1:], block_parts[1:], gate_parts, strict=True)
        for block, (parts, shortcut), gate_input in rest:
            seen = linear(x.mean(axis=(1, 2)), gate_input)
            h, c = lstm_step(seen @ input_weight + h @ hidden_weight + bias, c)
            gate = jax.nn.sigmoid(linear(h, output))[0, 0]

            def body(x: jax.Array, block: Any = block, parts: Any = parts) -> jax.Array:
                return bottleneck(block, parts, x)

            x = run_or_skip(gate > 0.5, skip_path(block, shortcut, x), x, body)
        return linear(x.mean(axis=(1, 2)), head)

    weights = (
        conv_weights(model.conv, model.bn),
        [bottleneck_weights(block) for block in blocks],
        [linear_weights(gate) for gate in model.gate_inputs],
        cell_weights(model.gate_cell),
        linear_weights(model.gate_output),
        linear_weights(model.fc),
    )
    return program, weights

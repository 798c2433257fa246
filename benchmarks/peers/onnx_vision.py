"""ONNX programs of the models that skip residual blocks: an If per block, batch norms folded."""

import numpy as np
import onnx
from torch import nn

from ..models.blockdrop import BasicBlock, BlockDrop, BlockDropConfig, BlockDropPolicy
from ..models.skipnet import Bottleneck, SkipNet, SkipNetConfig
from .onnx_graph import GraphBuilder
from .weights import array, fold, lstm_weights


def folded_conv(g: GraphBuilder, x: str, conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> str:
    """Add the convolution with its batch norm folded in (None: with its own bias)."""
    if norm is None:
        assert conv.bias is not None
        weight, bias = array(conv.weight), array(conv.bias)
    else:
        weight, bias = fold(conv, norm)
    pads = [int(pad) for pad in conv.padding] * 2
    strides = list(conv.stride)
    return g.op("Conv", x, g.constant(weight), g.constant(bias), pads=pads, strides=strides)


def blockdrop(model: BlockDrop, config: BlockDropConfig) -> onnx.ModelProto:
    g = GraphBuilder()
    image = g.input((config.batch, 3, config.image, config.image))
    keep = g.input((sum(config.blocks),))
    return g.model({_resnet(g, model, image, keep): "float32"})


def blockdrop_policy(model: BlockDropPolicy, config: BlockDropConfig) -> onnx.ModelProto:
    g = GraphBuilder()
    image = g.input((config.batch, 3, config.image, config.image))
    x = g.op("Relu", folded_conv(g, image, model.conv1, None))
    x = g.op("Relu", folded_conv(g, x, model.conv2, None))
    scores = g.linear(_pooled(g, x), array(model.fc.weight), array(model.fc.bias))
    mean = g.op("ReduceMean", scores, g.constant([0], "int64"), keepdims=0)
    return g.model({_resnet(g, model.resnet, image, g.op("Sigmoid", mean)): "float32"})


def _resnet(g: GraphBuilder, model: BlockDrop, image: str, keep: str) -> str:
    x = g.op("Relu", folded_conv(g, image, model.conv, model.bn))
    kept = g.op("GreaterOrEqual", keep, g.constant(0.5))
    for i, block in enumerate(model.blocks):
        assert isinstance(block, BasicBlock)
        identity = x
        if block.shortcut.shrink:
            pooled = g.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
            zeros = g.op("Mul", pooled, g.constant(0.0))
            identity = g.op("Concat", pooled, zeros, axis=1)
        run = g.child()
        y = run.op("Relu", folded_conv(run, x, block.conv1, block.bn1))
        y = folded_conv(run, y, block.conv2, block.bn2)
        x = _run_or_skip(g, g.gather(kept, g.constant(i, "int64")), run, y, identity)
    return g.linear(_pooled(g, x), array(model.fc.weight), array(model.fc.bias))


def skipnet(model: SkipNet, config: SkipNetConfig) -> onnx.ModelProto:
    g = GraphBuilder()
    image = g.input((1, 3, config.image, config.image))
    x = g.op("Relu", folded_conv(g, image, model.conv, model.bn))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    first = model.blocks[0]
    x = g.op("Relu", g.op("Add", _bottleneck(g, x, first), _shortcut(g, x, first)))
    h = c = g.constant(np.zeros((1, config.gate_size)))
    for block, gate_input in zip(list(model.blocks)[1:], model.gate_inputs, strict=True):
        assert isinstance(gate_input, nn.Conv2d) and gate_input.bias is not None
        weight = array(gate_input.weight)[:, :, 0, 0]
        seen = g.linear(_pooled(g, x), weight, array(gate_input.bias))
        h, c = _gate_cell(g, model, seen, h, c)
        assert model.gate_output.bias is not None
        weight = array(model.gate_output.weight)[:, :, 0, 0]
        logit = g.linear(h, weight, array(model.gate_output.bias))
        gate = g.op("Greater", g.op("Sigmoid", logit), g.constant(0.5))
        run = g.child()
        y = _bottleneck(run, x, block)
        x = _run_or_skip(g, g.reshape(gate, 1), run, y, _shortcut(g, x, block))
    return g.model(
        {g.linear(_pooled(g, x), array(model.fc.weight), array(model.fc.bias)): "float32"}
    )


def _run_or_skip(g: GraphBuilder, condition: str, run: GraphBuilder, y: str, identity: str) -> str:
    """relu(identity + y) if the condition holds, else identity; `run` has the nodes that compute
    y."""
    then = run.graph({run.op("Relu", run.op("Add", identity, y)): "float32"})
    skip = g.child()
    return g.branch(condition, then, skip.graph({skip.op("Identity", identity): "float32"}))


def _bottleneck(g: GraphBuilder, x: str, block: nn.Module) -> str:
    assert isinstance(block, Bottleneck)
    x = g.op("Relu", folded_conv(g, x, block.conv1, block.bn1))
    x = g.op("Relu", folded_conv(g, x, block.conv2, block.bn2))
    return folded_conv(g, x, block.conv3, block.bn3)


def _shortcut(g: GraphBuilder, x: str, block: nn.Module) -> str:
    assert isinstance(block, Bottleneck)
    if isinstance(block.shortcut, nn.Identity):
        return x
    assert isinstance(block.shortcut, nn.Sequential)
    conv, norm = block.shortcut
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    return folded_conv(g, x, conv, norm)


def _gate_cell(g: GraphBuilder, model: SkipNet, seen: str, h: str, c: str) -> tuple[str, str]:
    weight, hidden_weight, bias = lstm_weights(model.gate_cell)
    joined = g.op("Concat", seen, h, axis=-1)
    gates = g.linear(joined, np.concatenate([weight, hidden_weight], axis=1), bias)
    i, f, k, o = g.ops("Split", gates, outputs=4, axis=-1, num_outputs=4)
    kept = g.op("Mul", g.op("Sigmoid", f), c)
    c = g.op("Add", kept, g.op("Mul", g.op("Sigmoid", i), g.op("Tanh", k)))
    return g.op("Mul", g.op("Sigmoid", o), g.op("Tanh", c)), c


def _pooled(g: GraphBuilder, x: str) -> str:
    """Mean over the image: [B, C, H, W] -> [B, C]."""
    return g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)

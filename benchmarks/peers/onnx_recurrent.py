"""ONNX programs of the models with loops and trees, with the operators ONNX Runtime is good at.

These are fused LSTM nodes, a Scan for NASRNN, and a Loop for steps that feed back.
"""

import numpy as np
import onnx

from ..models.attention import Attention, AttentionConfig
from ..models.deepspeech2 import DeepSpeech2, DeepSpeech2Config
from ..models.lstm import LSTM, LSTMCell, LSTMConfig
from ..models.nasrnn import NASRNN, NASRNNConfig
from ..models.rae import RAE, RAEConfig
from ..models.seq2seq import EOS, SOS, Seq2Seq, Seq2SeqConfig
from .onnx_graph import GraphBuilder
from .onnx_vision import folded_conv
from .weights import array, lstm_weights


def lstm(model: LSTM, config: LSTMConfig) -> onnx.ModelProto:
    """One fused LSTM node per layer."""
    g = GraphBuilder()
    rows = () if config.batch == 1 else (config.batch,)
    x = g.input((config.length, *rows, config.hidden))
    x = g.reshape(x, config.length, config.batch, config.hidden)
    for cell in model.cells:
        sequence, last = fused_lstm(g, x, cell)
        x = g.op("Squeeze", sequence, g.constant([1], "int64"))
    return g.model({g.reshape(last, *rows, config.hidden): "float32"})


def fused_lstm(g: GraphBuilder, x: str, cell: LSTMCell) -> list[str]:
    """x [T, B, I] -> [h of all steps [T, 1, B, H], last h [1, B, H]]."""
    weight, hidden_weight, bias = (_iofc(part) for part in lstm_weights(cell))
    hidden = hidden_weight.shape[1]
    both_biases = np.concatenate([bias, np.zeros_like(bias)])
    parts = (g.constant(part[None]) for part in (weight, hidden_weight, both_biases))
    return g.ops("LSTM", x, *parts, outputs=2, hidden_size=hidden)


def _iofc(weight: np.ndarray) -> np.ndarray:
    """Reorder gates from PyTorch's i, f, g, o to ONNX's order."""
    i, f, g, o = np.split(weight, 4)
    return np.concatenate([i, o, f, g])


def nasrnn(model: NASRNN, config: NASRNNConfig) -> onnx.ModelProto:
    """All inputs' projections in one product, then a Scan over the steps."""
    g = GraphBuilder()
    shape = (config.hidden,) if config.batch == 1 else (config.batch, config.hidden)
    x = g.input((config.length, *shape))
    projected = g.reshape(
        g.linear(x, array(model.input_map.weight)), config.length, config.batch, 8 * config.hidden
    )
    body = g.child()
    h, c = (body.input((config.batch, config.hidden)) for _ in range(2))
    row = body.input((config.batch, 8 * config.hidden))
    gates = body.op("Add", row, body.linear(h, array(model.hidden_map.weight)))
    g0, g1, g2, g3, g4, g5, g6, g7 = body.ops("Split", gates, outputs=8, axis=-1, num_outputs=8)
    p0 = body.op("Tanh", body.op("Mul", body.op("Sigmoid", g0), body.op("Relu", g1)))
    p1 = body.op("Tanh", body.op("Add", body.op("Sigmoid", g2), body.op("Relu", g3)))
    p2 = body.op("Tanh", body.op("Mul", body.op("Tanh", g4), body.op("Sigmoid", g5)))
    p3 = body.op("Sigmoid", body.op("Add", body.op("Tanh", g6), body.op("Sigmoid", g7)))
    next_c = body.op("Mul", body.op("Tanh", body.op("Add", p0, c)), p1)
    mix = body.op("Tanh", body.op("Add", p2, p3))
    next_h = body.op("Tanh", body.op("Mul", next_c, mix))
    graph = body.graph({next_h: "float32", next_c: "float32"})
    zero = g.constant(np.zeros((config.batch, config.hidden)))
    last, _ = g.ops("Scan", zero, zero, projected, outputs=2, body=graph, num_scan_inputs=1)
    return g.model({g.reshape(last, *shape): "float32"})


def attention(model: Attention, config: AttentionConfig) -> onnx.ModelProto:
    """A Loop that carries the caches; a slot is written by a select over all slots."""
    g = GraphBuilder()
    cache = (config.batch, config.heads, config.slots, config.head_size)
    one = (config.batch, config.heads, 1, config.head_size)
    inputs = [g.input(one), g.input(cache), g.input(cache)]
    body = g.child()
    step, again = body.input((), "int64"), body.input((), "bool")
    x, keys, values = body.input(one), body.input(cache), body.input(cache)
    slot = body.op("Add", step, body.constant(config.start, "int64"))
    chosen = body.op("Equal", slot, body.constant(np.arange(config.slots)[:, None], "int64"))
    query = body.op("MatMul", x, body.constant(array(model.query) * model.scale))
    key = body.op("MatMul", x, body.constant(array(model.key)))
    value = body.op("MatMul", x, body.constant(array(model.value)))
    next_keys = body.op("Where", chosen, key, keys)
    next_values = body.op("Where", chosen, value, values)
    columns = body.op("Transpose", next_keys, perm=[0, 1, 3, 2])
    weights = body.op("Softmax", body.op("MatMul", query, columns), axis=-1)
    mixed = body.op("MatMul", weights, next_values)
    next_x = body.op("MatMul", mixed, body.constant(array(model.output)))
    carried = dict.fromkeys((next_x, next_keys, next_values), "float32")
    graph = body.graph({body.op("Identity", again): "bool", **carried})
    trips = g.constant(config.slots - config.start, "int64")
    results = g.ops("Loop", trips, g.constant(True, "bool"), *inputs, outputs=3, body=graph)
    return g.model(dict.fromkeys(results, "float32"))


def seq2seq(model: Seq2Seq, config: Seq2SeqConfig) -> onnx.ModelProto:
    """A Loop that stops when all tokens are the end token; its tokens are padded afterwards."""
    g = GraphBuilder()
    state = (config.batch, config.hidden)
    h0, c0 = g.input(state), g.input(state)
    body = g.child()
    body.input((), "int64")
    body.input((), "bool")
    h, c, token = body.input(state), body.input(state), body.input((config.batch,), "int64")
    weight, hidden_weight, bias = lstm_weights(model.cell)
    # The cell's two products become one, over the word's vector and h side by side.
    word = body.gather(body.constant(array(model.embedding.weight)), token)
    joined = body.op("Concat", word, h, axis=-1)
    gates = body.linear(joined, np.concatenate([weight, hidden_weight], axis=1), bias)
    i, f, k, o = body.ops("Split", gates, outputs=4, axis=-1, num_outputs=4)
    kept = body.op("Mul", body.op("Sigmoid", f), c)
    added = body.op("Mul", body.op("Sigmoid", i), body.op("Tanh", k))
    next_c = body.op("Add", kept, added)
    next_h = body.op("Mul", body.op("Sigmoid", o), body.op("Tanh", next_c))
    logits = body.linear(next_h, array(model.output.weight), array(model.output.bias))
    chosen = body.op("ArgMax", logits, axis=-1, keepdims=0)
    ended = body.op("Equal", chosen, body.constant(EOS, "int64"))
    running = body.op("Not", body.op("Cast", _all(body, ended), to=onnx.TensorProto.BOOL))
    outputs = {running: "bool", next_h: "float32", next_c: "float32", chosen: "int64"}
    graph = body.graph({**outputs, body.op("Identity", chosen): "int64"})
    start = g.constant(np.full(config.batch, SOS), "int64")
    trips, go = g.constant(config.max_length, "int64"), g.constant(True, "bool")
    last, _, _, rows = g.ops("Loop", trips, go, h0, c0, start, outputs=4, body=graph)
    length = g.gather(g.op("Shape", rows), g.constant([0], "int64"))
    missing = g.op("Sub", g.constant([config.max_length], "int64"), length)
    zeros = g.constant([0, 0], "int64")
    pads = g.op("Concat", zeros, missing, g.constant([0], "int64"), axis=0)
    tokens = g.op("Pad", rows, pads, g.constant(EOS, "int64"))
    return g.model({tokens: "int64", last: "float32"})


def _all(g: GraphBuilder, values: str) -> str:
    numbers = g.op("Cast", values, to=onnx.TensorProto.INT32)
    return g.op("ReduceMin", numbers, keepdims=0)


def rae(model: RAE, config: RAEConfig) -> onnx.ModelProto:
    """Nodes in the order of their numbers, children first; codes replace leaves in one buffer."""
    g = GraphBuilder()
    buffer = (config.slots, config.hidden)
    leaves = g.input(buffer)
    left, right = (g.input((config.slots,), "int64") for _ in range(2))
    is_leaf, root = g.input((config.slots,), "bool"), g.input((), "int64")
    body = g.child()
    node, again, codes = body.input((), "int64"), body.input((), "bool"), body.input(buffer)
    keep, encode = body.child(), body.child()
    unchanged = keep.graph({keep.op("Identity", codes): "float32"})
    children = [encode.gather(codes, encode.gather(side, node)) for side in (left, right)]
    joined = encode.op("Unsqueeze", encode.op("Concat", *children, axis=0), _zero(encode))
    code = encode.op(
        "Tanh", encode.linear(joined, array(model.encoder.weight), array(model.encoder.bias))
    )
    place = encode.reshape(node, 1, 1)
    encoded = encode.graph({encode.op("ScatterND", codes, place, code): "float32"})
    updated = body.branch(body.gather(is_leaf, node), unchanged, encoded)
    graph = body.graph({body.op("Identity", again): "bool", updated: "float32"})
    trips = g.op("Add", root, g.constant(1, "int64"))
    last = g.op("Loop", trips, g.constant(True, "bool"), leaves, body=graph)
    return g.model({g.gather(last, root): "float32"})


def _zero(g: GraphBuilder) -> str:
    return g.constant([0], "int64")


def deepspeech2(model: DeepSpeech2, config: DeepSpeech2Config) -> onnx.ModelProto:
    g = GraphBuilder()
    x = g.input((config.batch, 1, config.frames, config.bins))
    low, high = g.constant(0.0), g.constant(20.0)
    for conv, norm in ((model.conv1, model.bn1), (model.conv2, model.bn2)):
        x = g.op("Clip", folded_conv(g, x, conv, norm), low, high)
    x = g.op("Transpose", x, perm=[2, 0, 1, 3])
    x = g.reshape(x, 0, 0, -1)
    for cell in model.layers:
        sequence, _ = fused_lstm(g, x, cell)
        x = g.op("Squeeze", sequence, g.constant([1], "int64"))
    return g.model({g.linear(x, array(model.fc.weight), array(model.fc.bias)): "float32"})
